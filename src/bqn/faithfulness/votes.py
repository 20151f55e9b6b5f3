"""Averages of few and of many networks, from one pass over many."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

import torch
from torch import Tensor

from bqn import metrics

SCORES = ("nll", "error", "ece")


class Votes:
    """Scores of averages over S networks, for several S at once.

    The networks that are added are cut into groups of S, one after the other; each group is one average. So few
    networks are judged many times, and every S by the same networks.

    Parameters
    ----------
    counts : sequence of int
        The sizes S of groups.
    y : integer Tensor `(N,)`
    bins : int
        Of the calibration error.
    """

    def __init__(self, counts: Sequence[int], y: Tensor, bins: int = 15) -> None:
        self.y, self.bins = y.cpu(), bins
        self.added = 0
        self._sums: dict[int, Tensor] = {count: torch.zeros((), dtype=torch.float64) for count in sorted(set(counts))}
        self._scores: dict[int, list[dict[str, float]]] = {count: [] for count in self._sums}

    def add(self, probs: Tensor) -> None:
        """The probabilities `(N, K)` that one more network gives, on the host."""
        self.added += 1
        for count, total in self._sums.items():
            total = total + probs.double()
            if self.added % count == 0:
                self._scores[count].append(score(total / count, self.y, self.bins))
                total = torch.zeros((), dtype=torch.float64)
            self._sums[count] = total

    def table(self) -> list[dict[str, float | int | None]]:
        """One row an S: "samples", "groups", and mean and standard deviation over the groups of each score."""
        rows = []
        for count, scores in self._scores.items():
            row: dict[str, float | int | None] = {"samples": count, "groups": len(scores)}
            for name in SCORES:
                values = [each[name] for each in scores]
                row[name] = fmean(values) if values else None
                row[f"{name}_std"] = stdev(values) if len(values) > 1 else None
            rows.append(row)
        return rows


def score(probs: Tensor, y: Tensor, bins: int = 15) -> dict[str, float]:
    """NLL, error and calibration error of probabilities `(N, K)`."""
    return {
        "nll": metrics.nll(probs, y),
        "error": metrics.error(probs, y),
        "ece": metrics.ece(probs, y, bins),
    }
