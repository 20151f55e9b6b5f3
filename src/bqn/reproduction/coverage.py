"""What of tables 1 to 3 has been measured and what has not, in words."""

from __future__ import annotations

from pathlib import Path

from bqn.reproduction import paper, records, tables
from bqn.reproduction.plan import seeds_of


def coverage(out: Path) -> str:
    """Networks without any record, and those with fewer seeds than planned, by recipe."""
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
