"""What has been measured and what has not."""

from __future__ import annotations

from pathlib import Path

from bqn.reproduction import paper, recipes, records, tables
from bqn.reproduction.plan import FIGURES, plan, seeds_of

# Targets of many settings, each with the recipes that it has runs for.
_MANY = {**dict.fromkeys(FIGURES, ("paper", "best")), "levels": ("best",), "ablations": ("best", "paper")}


def coverage(out: Path) -> str:
    """Of tables 1 to 3: networks without any record, and those with fewer seeds than planned, by recipe; in words."""
    lines = []
    for recipe in ("best", "paper"):
        counts = {network: len(records.seeds(*network, recipe, out)) for network in paper.NETWORKS}
        without = [tables.title(*network) for network, count in counts.items() if not count]
        if without:
            networks = "all seven networks" if len(without) == len(counts) else ", ".join(without)
            lines.append(f"- Not measured with the recipe `{recipe}`: {networks}.")
        fewer: dict[str, list[str]] = {}
        for network, count in counts.items():
            if 0 < count < seeds_of(network[1]):
                fewer.setdefault(f"{count} of {seeds_of(network[1])}", []).append(tables.title(*network))
        if fewer:
            words = "; ".join(f"{count} for {', '.join(networks)}" for count, networks in fewer.items())
            lines.append(f"- Fewer seeds than planned with the recipe `{recipe}`: {words}.")
    return "\n".join(lines) or "All seven networks have been measured with both recipes and as many seeds as planned."


def many_settings(out: Path) -> str:
    """Of sweeps, levels and ideas: how many settings have been measured, with how many seeds."""
    rows = []
    for target, names in _MANY.items():
        for recipe in names:
            models = [name for name in recipes.RECIPES[recipe] if isinstance(name, str)]
            # The recipe itself is in the tables.
            cells = [cell for cell in plan(target, recipe, 1, models=models) if cell.variant]
            counts = {cell: len(records.seeds(cell.architecture, cell.data, cell.folder, out)) for cell in cells}
            found = [cell for cell in cells if counts[cell]]
            networks, measured = ({tables.title(cell.architecture, cell.data): None for cell in some}
                                  for some in (cells, found))  # fmt: skip
            without = [name for name in networks if name not in measured]
            words = "all" if not measured else ", ".join(without) or "none"
            seeds = _range([counts[cell] for cell in found])
            rows.append([f"`{target}`", recipe, f"{len(found)} of {len(cells)}", seeds, words])
    return tables.markdown(("", "recipe", "settings measured", "seeds of each", "networks without any"), rows)


def _range(counts: list[int]) -> str:
    if not counts:
        return tables.NOTHING
    return str(min(counts)) if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
