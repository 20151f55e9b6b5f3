"""A run of a recipe: what is trained, what it is called, and where its record lies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from bqn.reproduction import recipes
from bqn.training import TrainConfig
from bqn.training.surroundings import takes_mixed_precision


@dataclass(frozen=True, order=True)
class Cell:
    """One run of one recipe.

    Attributes
    ----------
    architecture, data : names as in `TrainConfig`
    recipe : "paper" or "best"
    variant : str
        Which settings are changed, see `bqn.reproduction.recipes`; "" for none.
    seed : int
    """

    architecture: str
    data: str
    recipe: str = "best"
    variant: str = ""
    seed: int = 0

    @property
    def folder(self) -> str:
        """The name of recipe and variant together."""
        return f"{self.recipe}-{self.variant}" if self.variant else self.recipe

    @property
    def name(self) -> str:
        """The record's path without its ending, relative to the folder of results."""
        return f"{self.architecture}-{self.data}/{self.folder}/seed-{self.seed}"

    @property
    def judged_on_test(self) -> bool:
        """Whether the test examples are looked at: not for ideas that are only tried out."""
        return self.variant not in recipes.IDEAS

    def path(self, out: str | Path) -> Path:
        """Where the record lies."""
        return Path(out) / f"{self.name}.json"

    def config(self, device: str = "auto") -> TrainConfig:
        """Its config on a device. Compilation is for a GPU, half precision for what has it; else they are left out."""
        chosen = recipes.config(self.recipe, self.architecture, self.data, self.variant, self.seed)
        on_cpu = device == "cpu" or (device == "auto" and not torch.cuda.is_available())
        if on_cpu:
            low = chosen.mixed_precision and takes_mixed_precision(torch.device("cpu"))
            chosen = replace(chosen, mixed_precision=low, compile=False)
        return replace(chosen, device=device)
