"""What a step maximizes has the settings of its run."""

from __future__ import annotations

import pytest
import torch

from bqn.data import to_input
from bqn.training import ConfigError, train
from bqn.training.loop import Trainer
from bqn.training.models import build_model
from tests.training import tiny

SMOOTHING = 0.3


@pytest.mark.parametrize("kind", ["analytic", "both", "drawn"])
def test_labels_are_smoothed_in_every_kind_of_step(kind: str) -> None:
    drawn = {"analytic": {}, "both": {"drawn_epochs": 1}, "drawn": {"drawn_epochs": 1, "drawn_alone": 1}}[kind]
    config = tiny.config(epochs=1, batch_norm=False, label_smoothing=SMOOTHING, **drawn)
    trainer = Trainer(build_model(config, (1, 6, 6), 3), tiny.images(40), None, config, torch.device("cpu"))
    trainer.state.position = config.drawn_alone
    assert trainer.step_kind == kind
    generators = trainer.state.generator_states()
    found = trainer.terms(torch.arange(10)).log_likelihood
    trainer.state.set_generator_states(generators)
    draws = trainer.net.draw(trainer.state.augmentation)
    x, y = trainer.examples(torch.arange(10))
    x, net = to_input(x), trainer.net

    def likelihood(labels: torch.Tensor) -> torch.Tensor:
        if kind == "analytic":
            return net.elbo_terms(x, labels, 40, config.lam).log_likelihood
        return (net.half_drawn_elbo_terms if kind == "both" else net.drawn_elbo_terms)(
            x, labels, 40, config.lam, draws
        ).log_likelihood

    every = torch.stack([likelihood(torch.full_like(y, label)) for label in range(3)]).mean()
    torch.testing.assert_close(found, (1 - SMOOTHING) * likelihood(y) + SMOOTHING * every)


def test_numbers_are_not_smoothed() -> None:
    config = tiny.regression_config(label_smoothing=SMOOTHING)
    with pytest.raises(ConfigError, match=r"label_smoothing is for classification, got 0[.]3"):
        train(config, dataset=tiny.regression_dataset())
