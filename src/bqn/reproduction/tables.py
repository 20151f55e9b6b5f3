"""Records as rows of Markdown tables: the paper's figures, the aims and ours side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bqn.reproduction import paper, records, rivals
from bqn.reproduction.aims import AIMS, MC_RATIO
from bqn.reproduction.paper import Figure
from bqn.reproduction.recipes import LEVELS, RECIPES, lam_variant, levels_variant, settings, swept
from bqn.reproduction.records import Statistic

NAMES = {
    "mlp": "MLP",
    "cnn": "CNN",
    "vgg": "VGG",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "kmnist": "KMNIST",
    "cifar10": "CIFAR-10",
}
MODES = {
    "analytic": "analytic",
    "mc": "MC-5",
    "mc_recalibrated": "MC-5, recalibrated",
    "map": "MAP",
    "map_recalibrated": "MAP, recalibrated",
}
DISTILLED = dict(zip(records.DISTILLED_MODES, ("MC-5, distilled", "MAP, distilled"), strict=True))
# The modes of plain networks, and what heads their columns.
_PLAIN = {
    "mc": "MC-5",
    "mc_recalibrated": "recalibrated",
    "mc_distilled": "distilled",
    "map": "MAP",
    "map_recalibrated": "recalibrated",
    "map_distilled": "distilled",
}
NOTHING = "–"  # the paper has no figure, or there is no aim
MISSING = "not measured"
SHORT = "✗"
_TABLES = {"analytic": "table1", "map": "table2", "mc": "table3"}
# Unit on the page and digits of each figure.
_FORMS = {"nll": (1e3, 1), "bound": (1e3, 1), "error": (100.0, 2), "ece": (100.0, 2)}

Documents = Sequence[Mapping[str, Any]]
Limits = Mapping[str, float | None]


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def title(architecture: str, data: str) -> str:
    """A network in words."""
    return f"{NAMES.get(architecture, architecture)} {NAMES.get(data, data)}"


def shown(found: Statistic | None, name: str, limit: float | None = None) -> str:
    """Mean ± standard deviation in the unit of the page, marked where it is worse than `limit`, in the same unit."""
    if found is None:
        return MISSING
    factor, digits = _FORMS[name]
    mean = f"{factor * found.mean:.{digits}f}"
    spread = "" if found.std is None else f" ± {factor * found.std:.{digits}f}"
    worse = limit is not None and float(mean) > round(limit, digits)
    return f"{mean}{spread}{f' {SHORT}' if worse else ''}"


def ours(documents: Documents, mode: str, limits: Limits | None = None, part: str = "test") -> str:
    """NLL / error of a mode, over how many seeds, and how many more failed, which falls short of any limit."""
    nll, error = (records.figure(documents, part, mode, name) for name in ("nll", "error"))
    limits = limits or {}
    failed = lost(documents, mode, marked=bool(limits))
    if nll is None:
        return failed or MISSING
    text = f"{shown(nll, 'nll', limits.get('nll'))} / {shown(error, 'error', limits.get('error'))} ({nll.seeds})"
    return f"{text}, {failed}" if failed else text


def lost(documents: Documents, mode: str = "", marked: bool = False) -> str:
    """How many runs failed, in words; "" for none."""
    failed = records.failures(documents, mode)
    return f"{failed} failed{f' {SHORT}' if marked else ''}" if failed else ""


def theirs(table: str, architecture: str, data: str, method: str) -> str:
    """NLL / error as the paper prints them."""
    found = [paper.printed(table, architecture, data, method, name) for name in ("nll", "error")]
    return " / ".join(_printed(*pair) for pair in zip(found, (1, 2), strict=True)) if found[0] else NOTHING


def _printed(figure: Figure | None, digits: int) -> str:
    if figure is None:
        return NOTHING
    spread = "" if figure.std is None else f" ± {figure.std:.{digits}f}"
    return f"{figure.mean:.{digits}f}{spread}"


def paper_limits(table: str, architecture: str, data: str) -> dict[str, float]:
    """The paper's own BQN, which the recipe `paper` is held against."""
    found = {name: paper.printed(table, architecture, data, "bqn", name) for name in ("nll", "error")}
    return {name: figure.mean for name, figure in found.items() if figure is not None}


def aim_limits(architecture: str, data: str, mode: str) -> dict[str, float]:
    """The aim, which the recipe `best` is held against."""
    aim = AIMS.get((architecture, data), {}).get(mode)
    return {} if aim is None else aim._asdict()


def aim(architecture: str, data: str, mode: str) -> str:
    """The aim in words."""
    limits = aim_limits(architecture, data, mode)
    return f"{limits['nll']:g} / {limits['error']:.2f}" if limits else NOTHING


def rival(out: Path, method: str, architecture: str, data: str, mode: str) -> str:
    """Our run of another method, from the records that docs/baselines.md shows; ensembles of five where there are."""
    record = rivals.read(out, method, architecture, data, mode)
    if record is None:
        return MISSING
    return ours(record.seeds, mode) + ("" if record.members is None else f", {record.members} members")


def gaussian(architecture: str, data: str) -> str:
    """The paper's Gaussian BNN, each figure at its best λ."""
    nll, error = (paper.gaussian(architecture, data, name) for name in ("nll", "error"))
    return NOTHING if nll is None or error is None else f"{nll:.1f} / {error:.2f}"


# --- the tables -------------------------------------------------------------------------------------------------------


def table1(out: Path) -> str:
    """Analytic prediction."""
    heads = (
        "",
        "paper: E-QNN",
        "paper: BQN",
        "recipe `paper`",
        "aim",
        "recipe `best`",
        "Gaussian BNN, paper",
        "Gaussian BNN, ours",
    )
    rows = []
    for network in paper.NETWORKS:
        rows.append([title(*network), theirs("table1", *network, "e-qnn"), theirs("table1", *network, "bqn"),
                     _recipe(out, "paper", network, "analytic", paper_limits("table1", *network)),
                     aim(*network, "analytic"),
                     _recipe(out, "best", network, "analytic", aim_limits(*network, "analytic")),
                     gaussian(*network), rival(out, "gaussian-bnn", *network, "mc")])  # fmt: skip
    return markdown(heads, rows)


def bounds(out: Path) -> str:
    """What the paper reports of its analytic pass, an upper bound of the NLL, beside ours."""
    heads = ("", "paper: BQN", *(f"recipe `{recipe}`" for recipe in RECIPES))
    rows = []
    for network in paper.NETWORKS:
        printed = paper.printed("table1", *network, "bqn", "nll")
        row = [title(*network), _printed(printed, 1)]
        for recipe in RECIPES:
            found = _bound(records.seeds(*network, recipe, out))
            limit = None if printed is None else printed.mean
            row.append(shown(found, "bound", limit) + ("" if found is None else f" ({found.seeds})"))
        rows.append(row)
    return markdown(heads, rows)


def _bound(documents: Documents) -> Statistic | None:
    return records.figure(documents, "test", "analytic", "bound")


def table2(out: Path) -> str:
    """The most probable network."""
    heads = (
        "",
        "paper: QNN",
        "paper: BQN",
        "recipe `paper`",
        "`paper`, recalibrated",
        "aim",
        "recipe `best`",
        "`best`, recalibrated",
        "`best`, distilled",
        "QNN, ours",
    )
    return markdown(heads, _compressed(out, "table2", "map", "qnn", "qnn"))


def table3(out: Path) -> str:
    """Five sampled networks."""
    heads = (
        "",
        "paper: E-QNN",
        "paper: BQN",
        "recipe `paper`",
        "`paper`, recalibrated",
        "aim",
        "recipe `best`",
        "`best`, recalibrated",
        "`best`, distilled",
        "E-QNN, ours",
    )
    return markdown(heads, _compressed(out, "table3", "mc", "e-qnn", "e-qnn"))


def _compressed(out: Path, table: str, mode: str, said: str, method: str) -> list[list[str]]:
    rows = []
    for network in paper.NETWORKS:
        limits, said_limits = aim_limits(*network, mode), paper_limits(table, *network)
        # The ensemble of the paper's table 3 has the figures of table 1, for the networks that table 3 has.
        there = paper.printed(table, *network, "bqn", "nll") is not None
        printed = theirs("table1" if said == "e-qnn" and there else table, *network, said)
        rows.append([title(*network), printed, theirs(table, *network, "bqn"),
                     _recipe(out, "paper", network, mode, said_limits),
                     _recipe(out, "paper", network, f"{mode}_recalibrated", said_limits),
                     aim(*network, mode), _recipe(out, "best", network, mode, limits),
                     _recipe(out, "best", network, f"{mode}_recalibrated", limits),
                     _recipe(out, "best", network, f"{mode}_distilled", limits),
                     rival(out, method, *network, "map" if method == "qnn" else "logits")])  # fmt: skip
    return rows


def _recipe(out: Path, recipe: str, network: tuple[str, str], mode: str, limits: Limits) -> str:
    return ours(records.seeds(*network, recipe, out), mode, limits)


def scoreboard(out: Path) -> str:
    """How many aims the recipe `best` meets, and how often it is ahead of the paper, NLL and error counted apart.

    Of the analytic prediction the paper has an upper bound of the NLL: ours is compared with it.
    """
    rows = []
    for mode, words in {**MODES, **DISTILLED}.items():
        plain = mode.partition("_")[0]
        aims, papers = [], []
        for network in paper.NETWORKS:
            documents = records.seeds(*network, "best", out)
            aims += _reached(documents, mode, aim_limits(*network, plain))
            said = paper_limits(_TABLES[plain], *network)
            papers += _reached(
                documents,
                mode,
                {"bound" if (mode, name) == ("analytic", "nll") else name: limit for name, limit in said.items()},
            )
        unmeasured = 2 * len(paper.NETWORKS) - len(aims)
        rows.append(
            [words, str(sum(aims)), str(len(aims) - sum(aims)), str(unmeasured), f"{sum(papers)} of {len(papers)}"]
        )
    return markdown(("", "aims met", "missed", "not measured", "no worse than the paper's BQN"), rows)


def _reached(documents: Documents, mode: str, limits: Mapping[str, float]) -> list[bool]:
    """Of each figure that has been measured whether it keeps to its limit; with a failed run none does."""
    if records.failures(documents, mode):
        return [False] * len(limits)
    found = {name: records.figure(documents, "test", mode, name) for name in limits}
    return [not shown(value, name, limits[name]).endswith(SHORT) for name, value in found.items() if value is not None]


# Our modes beside the rivals that take as much: mode, method, the rival's mode, in words.
_BESIDE = (
    ("analytic", "gaussian-bnn", "mc", "Gaussian BNN, real weights"),
    ("mc_recalibrated", "e-qnn", "logits", "E-QNN, five or ten binary networks"),
    ("mc_distilled", "e-qnn", "logits", "the same"),
    ("map_recalibrated", "qnn", "map", "QNN, one binary network"),
    ("map_distilled", "qnn", "map", "the same"),
)


def beside_rivals(out: Path) -> str:
    """How often the recipe `best` is no worse than a rival that was trained here, NLL and error counted apart."""
    rows = []
    for mode, method, other, words in _BESIDE:
        won: dict[str, list[bool]] = {}
        for network in paper.NETWORKS:
            record = rivals.read(out, method, *network, other)
            if record is None:
                continue
            limits = {
                name: _FORMS[name][0] * found.mean
                for name in ("nll", "error")
                if (found := records.figure(record.seeds, "test", other, name)) is not None
            }
            won.setdefault(network[0], []).extend(_reached(records.seeds(*network, "best", out), mode, limits))
        counts = [
            f"{sum(won[name])} of {len(won[name])}" if won.get(name) else MISSING for name in ("mlp", "cnn", "vgg")
        ]
        rows.append([{**MODES, **DISTILLED}[mode], words, *counts])
    return markdown(("recipe `best`", "beside", "MLP", "CNN", "VGG"), rows)


def sweep(out: Path) -> str:
    """The λ of CNN and VGG by the recipe `best`, whose points lie too close together to be read off a figure."""
    modes = ("analytic", "mc_recalibrated", "map_recalibrated", "map")
    heads = ("network", "λ", *(MODES[mode] for mode in modes[:-1]), "MAP as it is")
    rows = []
    for network in paper.NETWORKS:
        if network[0] == "mlp" or not any(out.glob(f"{'-'.join(network)}/best-lam-*/seed-*.json")):
            continue
        own = settings("best", *network)["lam"]
        for lam in swept("figure-power", "best", *network):
            documents = records.seeds(*network, "best" if lam == own else f"best-{lam_variant(lam)}", out)
            name = f"{lam:g}" + (", the recipe" if lam == own else "")
            rows.append([title(*network), name, *(ours(documents, mode) for mode in modes)])
    return markdown(heads, rows) if rows else "Not measured yet."


def ratios(out: Path) -> str:
    """The NLL of sampled and most probable networks by the analytic one, seed by seed."""
    heads = ("", *_PLAIN.values(), "aim for MC-5")
    rows = []
    for network in paper.NETWORKS:
        limit = MC_RATIO.get(network[0])
        documents = records.seeds(*network, "best", out)
        cells = [_ratio(documents, mode, limit if mode.startswith("mc") else None) for mode in _PLAIN]
        rows.append([title(*network), *cells, NOTHING if limit is None else f"{limit:g}"])
    return markdown(heads, rows)


def _ratio(documents: Documents, mode: str, limit: float | None) -> str:
    tests = [row["test"] for row in documents if row.get("test", {}).get("analytic", {}).get("nll")]
    found = records.statistic([test[mode]["nll"] / test["analytic"]["nll"] for test in tests if mode in test])
    failed = lost(documents, mode)
    if found is None:
        return failed or MISSING
    spread = "" if found.std is None else f" ± {found.std:.2f}"
    worse = limit is not None and (round(found.mean, 2) > limit or bool(failed))
    return f"{found.mean:.2f}{spread}{f', {failed}' if failed else ''}{f' {SHORT}' if worse else ''}"


def calibration(out: Path) -> str:
    """ECE of the recipe `best` in every mode, and what is left of the posterior's entropy."""
    heads = ("", "analytic", *_PLAIN.values(), "entropy of the posterior")
    rows = []
    for network in paper.NETWORKS:
        documents = records.seeds(*network, "best", out)
        cells = [shown(records.figure(documents, "test", mode, "ece"), "ece") for mode in ("analytic", *_PLAIN)]
        entropy = records.statistic([row["entropy"] for row in documents if "entropy" in row])
        name = ", ".join(filter(None, (title(*network), lost(documents))))
        rows.append([name, *cells, MISSING if entropy is None else f"{entropy.mean:.0%}"])
    return markdown(heads, rows)


def levels(out: Path) -> str:
    """Quality against bits and time, for networks that have been trained with D levels."""
    modes = ("analytic", "mc_recalibrated", "map_recalibrated")
    heads = ("", "D", "bits a weight", *(MODES[mode] for mode in modes), "seconds a run", "side by side", "on")
    rows = []
    for network in paper.NETWORKS:
        found = {count: records.seeds(*network, f"best-{levels_variant(count)}", out) for count in LEVELS}
        if not any(found.values()):
            continue
        for count, documents in found.items():
            seconds = records.statistic([row["seconds"] for row in documents if "seconds" in row])
            rows.append([title(*network), str(count), f"{math.log2(count):.3g}",
                         *(ours(documents, mode) for mode in modes),
                         MISSING if seconds is None else f"{seconds.mean:.0f}", _side_by_side(documents),
                         " or ".join(sorted({row.get("hardware", "?") for row in documents})) or MISSING])  # fmt: skip
    return markdown(heads, rows) if rows else "Not measured yet."


def _side_by_side(documents: Documents) -> str:
    """How many runs shared the device: times compare only where as many did."""
    counts = sorted({int(row["together"]) for row in documents if "together" in row})
    return " or ".join(map(str, counts)) or MISSING
