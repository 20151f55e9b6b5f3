"""What a report shows: plain numbers and text, all that is needed to draw the page and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bqn.training import EpochRecord

POINTS = 300  # examples at most that a figure shows one by one


@dataclass(frozen=True)
class PosteriorSummary:
    """How decided the weights of one posterior are.

    Attributes
    ----------
    name : str
    shape : tuple of int
    levels : tuple of float
    mean_bits : float
        Mean entropy of a weight, at most `most_bits`.
    shares : tuple of float
        Shares of the weights in bins of equal width from entropy 0 to the largest possible.
    """

    name: str
    shape: tuple[int, ...]
    levels: tuple[float, ...]
    mean_bits: float
    shares: tuple[float, ...]

    @property
    def most_bits(self) -> float:
        """Entropy of a weight that is undecided between all levels."""
        return math.log2(len(self.levels))


@dataclass(frozen=True)
class Histogram:
    """Shares of examples, of several groups, in bins between `edges`."""

    edges: tuple[float, ...]
    shares: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True)
class Example:
    """One example and what the network says about it.

    Attributes
    ----------
    index : int
        Its place in its set, counted from 0.
    predicted, confidence
        The most probable class and its probability.
    second, second_confidence
        The next one.
    entropy : float
        In nats.
    label : str or None
        The true class; None for an example from elsewhere.
    picture : str or None
        A data address; None for tables.
    """

    index: int
    predicted: str
    confidence: float
    second: str
    second_confidence: float
    entropy: float
    label: str | None
    picture: str | None


@dataclass(frozen=True)
class Gallery:
    """Examples that have something in common."""

    title: str
    note: str
    examples: tuple[Example, ...]


@dataclass(frozen=True)
class Uncertainty:
    """How uncertain one mode is, about right and wrong answers, and about examples from elsewhere.

    Attributes
    ----------
    entropy, epistemic : Histogram
        Of examples answered "right" and "wrong". All `epistemic` are None for a mode that cannot tell.
    parts : dict of tuple of pairs, or None
        Aleatoric and epistemic part for some of the examples answered "right" and "wrong".
    outside_entropy, outside_epistemic : Histogram or None
        Of "test" examples and those from "outside".
    roc : tuple of pairs
        Telling outside from test examples by entropy: false and true positive rates; empty without such a set.
    """

    entropy: Histogram
    epistemic: Histogram | None
    parts: Mapping[str, tuple[tuple[float, float], ...]] | None
    outside_entropy: Histogram | None
    outside_epistemic: Histogram | None
    roc: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Classification:
    """What only classifiers have.

    Attributes
    ----------
    classes : tuple of str
    uncertainty : dict of Uncertainty
        By mode.
    galleries : tuple of Gallery
    corrupted : dict of tuple of str
        By kind of corruption, pictures of one example at each strength.
    sharp : bool
        Whether pictures are so small that their pixels should be seen.
    outside : str or None
        Name of the set from elsewhere.
    """

    classes: tuple[str, ...]
    uncertainty: Mapping[str, Uncertainty]
    galleries: tuple[Gallery, ...]
    corrupted: Mapping[str, tuple[str, ...]]
    sharp: bool
    outside: str | None


@dataclass(frozen=True)
class Fit:
    """What one mode says about one output.

    Attributes
    ----------
    target, mean, deviation : tuple of float
        True values, predictive means and standard deviations of some test examples.
    residuals : Histogram
        Of `(target - mean) / deviation` of all test examples; the outermost bins hold all beyond.
    """

    target: tuple[float, ...]
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    residuals: Histogram


@dataclass(frozen=True)
class Surprise:
    """A test example far from its prediction: its index and output, counted from 0, and its numbers."""

    index: int
    output: int
    target: float
    mean: float
    deviation: float


@dataclass(frozen=True)
class Regression:
    """What only regressions have.

    Attributes
    ----------
    fits : dict of tuple of Fit
        By mode, one an output.
    coverage : dict of tuple of pairs
        By mode: probability of a central interval, and share of the test targets within.
    surprises : tuple of Surprise
        The largest first.
    """

    fits: Mapping[str, tuple[Fit, ...]]
    coverage: Mapping[str, tuple[tuple[float, float], ...]]
    surprises: tuple[Surprise, ...]


@dataclass(frozen=True)
class ReportData:
    """All that a page shows.

    Attributes
    ----------
    title, subtitle : str
    facts, settings : tuple of (name, text)
        What the run is, in words; and every setting.
    records : tuple of EpochRecord
    best_epoch : int or None
    result : dict
        What `bqn.evaluation.evaluate` returned.
    posteriors : tuple of PosteriorSummary
    task : Classification or Regression
    version : str
        Of this library.
    """

    title: str
    subtitle: str
    facts: tuple[tuple[str, str], ...]
    settings: tuple[tuple[str, str], ...]
    records: tuple[EpochRecord, ...]
    best_epoch: int | None
    result: Mapping[str, Any]
    posteriors: tuple[PosteriorSummary, ...]
    task: Classification | Regression
    version: str
