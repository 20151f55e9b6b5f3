"""Which runs a table or figure needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from bqn.choices import expected_one_of
from bqn.data import available
from bqn.reproduction import paper, recipes
from bqn.reproduction.cells import Cell
from bqn.training import ConfigError

# What each target shows, in a line. Tables 1 to 3 are three views of the same runs.
TARGETS: Mapping[str, str] = {
    "table1": "classification, analytic prediction",
    "table2": "classification, the most probable network",
    "table3": "classification, five sampled networks",
    "table4": "regression on Boston, beside other methods",
    "figure-power": "NLL and error against λ",
    "figure-gap": "analytic prediction against sampled networks, by λ",
    "levels": "2, 3, 4 and 8 levels: quality against bits and time",
    "ablations": "one idea changed at a time, judged on validation examples",
}
TABLES = ("table1", "table2", "table3")
FIGURES = ("figure-power", "figure-gap")
_Number = TypeVar("_Number", int, float)

# Ten seeds as in the paper, five for CIFAR-10; fewer where many settings are compared.
SEEDS, SEEDS_CIFAR, SEEDS_OF_MANY = 10, 5, 3


def plan(
    target: str,
    recipe: str = "best",
    seeds: int | None = None,
    *,
    models: Sequence[str] | None = None,
    data: Sequence[str] | None = None,
    ideas: Sequence[str] | None = None,
    lams: Sequence[float] | None = None,
    levels: Sequence[int] | None = None,
    seed: int | None = None,
) -> list[Cell]:
    """The runs of a target.

    Parameters
    ----------
    target : one of `TARGETS`, but for "table4", which `bqn.comparison` carries out
    recipe : "paper" or "best"
        For "ablations": only ideas that change this recipe.
    seeds : int or None
        How many, from 0 on; by default 10 for tables, 5 on CIFAR-10, and 3 where many settings are compared.
    models, data : names or None
        Only these. Data sets that are not the paper's are allowed if they are named.
    ideas : names or None
        For "ablations": only these.
    lams : floats or None
        For "figure-power" and "figure-gap": only these values of λ.
    levels : ints or None
        For "levels": only these numbers of them.
    seed : int or None
        Only this one, whatever `seeds` would plan.
    """
    if target not in TARGETS or target == "table4":
        raise ConfigError(expected_one_of("target", (name for name in TARGETS if name != "table4"), target))
    if seeds is not None and seeds < 1:
        raise ConfigError(f"seeds must be at least 1, got {seeds}")
    if seed is not None and seed < 0:
        raise ConfigError(f"seed must be at least 0, got {seed}")
    if recipe not in recipes.RECIPES:
        raise ConfigError(expected_one_of("recipe", recipes.RECIPES, recipe))
    if target == "levels" and recipe != "best":
        raise ConfigError(f"recipe must be best for levels, got {recipe!r}")
    chosen = networks(models, data)
    if lams is not None:
        swept = (
            {lam for network in chosen for lam in recipes.swept(target, recipe, *network)} if target in FIGURES else ()
        )
        lams = _known("lam", target, swept, lams)
    if levels is not None:
        levels = _known("levels", target, recipes.LEVELS if target == "levels" else (), levels)
    cells: list[Cell] = []
    for architecture, name in chosen:
        variants = _variants(target, recipe, architecture, name, ideas, lams, levels)
        count = seeds or (seeds_of(name) if target in TABLES else SEEDS_OF_MANY)
        numbers = range(count) if seed is None else (seed,)
        cells += [Cell(architecture, name, recipe, variant, number) for variant in variants for number in numbers]
    if not cells:
        raise ConfigError(f"{target} has no runs with the recipe {recipe} for these models, data and settings")
    return cells


def seeds_of(data: str) -> int:
    """How many runs of a recipe the tables have on a data set, unless another number is asked for."""
    return SEEDS_CIFAR if data == "cifar10" else SEEDS


def networks(models: Sequence[str] | None, data: Sequence[str] | None) -> list[tuple[str, str]]:
    """Architectures and data sets: those of the paper, restricted to the named ones; or exactly those named."""
    known = [name for name in recipes.PAPER if isinstance(name, str)]
    for model in models or ():
        if model not in known:
            raise ConfigError(expected_one_of("model", known, model))
    classified = [info.name for info in available() if info.task == "classification"]
    for name in data or ():
        if name not in classified:
            raise ConfigError(expected_one_of("data", classified, name))
    ours = [
        (architecture, name)
        for architecture, name in paper.NETWORKS
        if (models is None or architecture in models) and (data is None or name in data)
    ]
    others = [name for name in data or () if name not in {each for _, each in paper.NETWORKS}]
    return list(dict.fromkeys(ours + [(model, name) for model in models or ("mlp",) for name in others]))


def _known(what: str, target: str, known: Iterable[_Number], asked: Sequence[_Number]) -> list[_Number]:
    """Those of the numbers that a target has which were asked for, each by its six digits."""
    names = {f"{number:g}": number for number in sorted(known)}
    if not names:
        raise ConfigError(f"{what} is not for {target}")
    for number in asked:
        if f"{number:g}" not in names:
            raise ConfigError(f"{what} must be one of {', '.join(names)}, got {number:g}")
    return [names[f"{number:g}"] for number in asked]


def _variants(
    target: str, recipe: str, architecture: str, data: str, ideas: Sequence[str] | None, lams: Sequence[float] | None,
    levels: Sequence[int] | None,
) -> list[str]:  # fmt: skip
    if target in FIGURES:
        own = recipes.settings(recipe, architecture, data).get("lam")
        swept = recipes.swept(target, recipe, architecture, data)
        return ["" if lam == own else recipes.lam_variant(lam) for lam in swept if lams is None or lam in lams]
    if target == "levels":
        return [recipes.levels_variant(count) for count in recipes.LEVELS if levels is None or count in levels]
    if target == "ablations":
        return _ablations(recipe, architecture, data, ideas)
    return [""]


def _ablations(recipe: str, architecture: str, data: str, ideas: Sequence[str] | None) -> list[str]:
    """Each idea that changes the recipe, and what it is compared with."""
    for name in ideas or ():
        if name not in recipes.IDEAS:
            raise ConfigError(expected_one_of("idea", recipes.IDEAS, name))
    chosen = [
        name
        for name, idea in recipes.IDEAS.items()
        if idea.recipe == recipe and (ideas is None or name in ideas) and _concerns(idea, architecture, data)
    ]
    return list(dict.fromkeys([*(recipes.IDEAS[name].against for name in chosen), *chosen]))


def _concerns(idea: recipes.Idea, architecture: str, data: str) -> bool:
    """Whether a network is one of the idea's; on other data than the paper's one of its architectures."""
    if (architecture, data) in paper.NETWORKS:
        return (architecture, data) in idea.networks
    return architecture in {each for each, _ in idea.networks}
