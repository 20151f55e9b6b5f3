"""Scores on examples that are held out."""

import math

from bqn.data import to_input
from bqn.training import Preprocessing, build_model
from bqn.training.validation import validate
from tests.training import tiny


def test_predictions_that_are_no_numbers_have_no_score() -> None:
    """The loop ends a run by them, with its state saved; an error of the metrics would not save it."""
    split, config = tiny.images(20), tiny.config()
    net = build_model(config, (1, 6, 6), 3)
    preprocessing = Preprocessing((1, 6, 6), outputs=3)
    assert math.isfinite(validate(net, split.x, split.y, preprocessing).nll)
    net.head.log_scale.data.fill_(math.nan)
    assert bool(net.predict(to_input(split.x)).isnan().any())
    scores = validate(net, split.x, split.y, preprocessing)
    assert math.isnan(scores.nll)
    assert scores.rmse is None
