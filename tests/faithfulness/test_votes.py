"""Averages of few and many networks, by hand."""

import pytest
import torch

from bqn import metrics
from bqn.faithfulness import Votes


def test_groups_one_after_the_other():
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(7, 20, 4, generator=generator).softmax(-1)
    y = torch.randint(4, (20,), generator=generator)
    votes = Votes((1, 3, 7, 8), y)
    for each in probs:
        votes.add(each)
    rows = {row["samples"]: row for row in votes.table()}
    assert [rows[count]["groups"] for count in (1, 3, 7, 8)] == [7, 2, 1, 0]
    alone = [metrics.nll(each.double(), y) for each in probs]
    assert rows[1]["nll"] == pytest.approx(sum(alone) / 7)
    assert rows[1]["nll_std"] == pytest.approx(float(torch.tensor(alone, dtype=torch.float64).std()))
    threes = [metrics.nll(probs[start : start + 3].double().mean(0), y) for start in (0, 3)]  # the seventh is left over
    assert rows[3]["nll"] == pytest.approx(sum(threes) / 2)
    whole = probs.double().mean(0)
    assert rows[7]["nll"] == pytest.approx(metrics.nll(whole, y))
    assert rows[7]["error"] == pytest.approx(metrics.error(whole, y))
    assert rows[7]["ece"] == pytest.approx(metrics.ece(whole, y, 15))
    assert rows[7]["nll_std"] is None
    assert rows[8]["nll"] is None
