"""TrainingState: a moment put back is the moment taken, and nothing else is accepted."""

import pytest
import torch

from bqn.models import mlp
from bqn.training import CheckpointError, EpochRecord
from bqn.training.checkpoint import Moment
from bqn.training.state import TrainingState


def new_state(hidden=4, seed=0):
    net = mlp(6, 3, hidden=(hidden,))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1, fused=True)
    return TrainingState(net, optimizer, seed, torch.device("cpu"))


def step(state):
    x = torch.randn(5, 6) + torch.randn(5, 6, generator=state.augmentation)
    state.optimizer.zero_grad()
    terms = state.net.elbo_terms(x, torch.tensor([0, 1, 2, 0, 1]), 5, 1.0)
    (-terms.value).backward()
    state.optimizer.step()
    state.term_sums += torch.stack(terms).detach()
    state.position += 1


def record(epoch, nll):
    return EpochRecord(epoch, -1.0, -0.9, 100.0, 0.9, nll, 0.1, None, 0.03, 1e-3, 2.0, 8.0)


def copied(moment):
    return Moment({name: tensor.clone() for name, tensor in moment.tensors.items()}, moment.facts)


def same(a, b):
    return (
        a.facts == b.facts
        and a.tensors.keys() == b.tensors.keys()
        and all(torch.equal(a.tensors[name], b.tensors[name]) for name in a.tensors)
    )


def test_restored_state_goes_the_same_way():
    first = new_state()
    step(first)
    first.end_epoch(record(1, 0.5))
    first.draw_order(10)
    step(first)
    moment = copied(first.capture())
    second = new_state(seed=5)
    second.restore(moment, "moment")
    assert same(second.capture(), moment)
    order = second.draw_order(10)
    step(second)
    after_second = copied(second.capture())
    first.restore(moment, "moment")
    assert torch.equal(first.draw_order(10), order)
    step(first)
    assert same(first.capture(), after_second)
    assert not same(moment, after_second)


def test_orders_differ_between_epochs_but_not_within():
    state = new_state()
    first = state.draw_order(50)
    assert torch.equal(state.draw_order(50), first)
    state.end_epoch(record(1, 0.5))
    second = state.draw_order(50)
    assert sorted(second.tolist()) == list(range(50))
    assert not torch.equal(first, second)


def test_best_weights_are_those_of_the_best_epoch():
    state = new_state()
    kept = []
    for epoch, nll in enumerate([0.5, 0.3, 0.4], 1):
        step(state)
        kept.append(state.net.head.log_scale.item())
        state.end_epoch(record(epoch, nll))
    assert state.best["head.log_scale"].item() == kept[1]
    assert len(set(kept)) == 3


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda moment: moment.facts.update(epoch=-1), "epoch must be a count"),
        (lambda moment: moment.facts.update(position=1.5), "position must be a count"),
        (lambda moment: moment.facts.update(seconds="long"), "seconds must be a time"),
        (lambda moment: moment.facts.update(epoch=4), "1 records for 4 finished epochs"),
        (lambda moment: moment.facts.pop("records"), "records must be a list"),
        (
            lambda moment: moment.tensors.pop("model/head.log_scale"),
            r"another architecture.*missing \['head.log_scale'",
        ),
        (lambda moment: moment.tensors.pop("best/head.log_scale"), "another architecture"),
        (lambda moment: moment.tensors.update({"model/new": torch.zeros(1)}), r"another arch.*unexpected \['new'\]"),
        (lambda moment: moment.tensors["model/head.log_scale"].fill_(torch.nan), "head.log_scale has NaN"),
        (lambda moment: moment.tensors.pop("optimizer/head.log_scale/step"), "optimizer's state of head.log_scale"),
        (lambda moment: moment.tensors["optimizer/head.log_scale/exp_avg"].fill_(torch.inf), "is not finite"),
        (lambda moment: moment.tensors.update({"optimizer/other/step": torch.zeros(())}), "which this network lacks"),
        (lambda moment: moment.tensors.pop("term_sums"), "term_sums must be three numbers"),
        (lambda moment: moment.tensors.pop("generator/order"), "state of the generators cannot be used"),
        (lambda moment: moment.tensors.update({"generator/torch": torch.zeros(3)}), "generators cannot be used"),
    ],
)
def test_a_spoilt_moment_is_refused_and_changes_nothing(spoil, message):
    state = new_state()
    step(state)
    state.end_epoch(record(1, 0.5))
    moment = copied(state.capture())
    spoil(moment)
    other = new_state(seed=1)
    weights = {name: tensor.clone() for name, tensor in other.net.state_dict().items()}
    with pytest.raises(CheckpointError, match=message):
        other.restore(moment, "moment")
    assert all(torch.equal(tensor, weights[name]) for name, tensor in other.net.state_dict().items())
    assert other.epoch == 0


def test_another_width_is_another_architecture():
    with pytest.raises(CheckpointError, match=r"another architecture.*\(4, 6, 2\), expected .*\(9, 6, 2\)"):
        new_state(hidden=9).restore(new_state().capture(), "moment")
