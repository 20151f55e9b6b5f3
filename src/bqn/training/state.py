"""The state of a training run: all that decides the steps to come, taken down and put back exactly."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from bqn.network import Network
from bqn.training.checkpoint import Moment
from bqn.training.errors import CheckpointError
from bqn.training.records import EpochRecord, best_epoch, parse_records

_ADAM = ("step", "exp_avg", "exp_avg_sq")


class TrainingState:
    """Network, optimizer, generators, position, and what has happened so far.

    A checkpoint is a `Moment` of it on disk, the guard's way back one in memory.

    Attributes
    ----------
    epoch, position : int
        Finished epochs, and finished steps within the current one.
    order, augmentation : torch.Generator
        Draw the order of the examples (on the CPU) and the augmentation (on the device of the network).
    term_sums : Tensor `(3,)`
        ELBO, log-likelihood and KL, summed over the steps of the epoch.
    seconds : float
        Time spent on the epoch so far, in all processes that worked on it.
    records : list of EpochRecord
    best : dict of Tensor, or None
        The weights of the best epoch.
    """

    def __init__(
        self,
        net: Network,
        optimizer: torch.optim.Optimizer,
        seed: int,
        device: torch.device,
        best_by: str = "nll",
        best_after: int = 0,
    ) -> None:
        self.net, self.optimizer, self.device = net, optimizer, device
        self._best_by, self._best_after = best_by, best_after
        seeds = torch.randint(2**63 - 1, (3,), generator=torch.Generator().manual_seed(seed)).tolist()
        self.order = torch.Generator().manual_seed(seeds[0])
        self.augmentation = torch.Generator(device).manual_seed(seeds[1])
        torch.default_generator.manual_seed(seeds[2])  # for layers with randomness of their own
        if device.type == "cuda":
            with torch.cuda.device(device):  # which may have no index: then it is the current one
                torch.cuda.manual_seed(seeds[2])
        self._aside: dict[str, Tensor] | None = None
        self.epoch = self.position = 0
        self._order_at_start = self.order.get_state()
        self.term_sums = torch.zeros(3, dtype=torch.float64, device=device)
        self.seconds = 0.0
        self.records: list[EpochRecord] = []
        self.best: dict[str, Tensor] | None = None

    def draw_order(self, examples: int) -> Tensor:
        """The order of the examples in this epoch, `(examples,)`: the same however often it is asked for."""
        self.order.set_state(self._order_at_start)
        return torch.randperm(examples, generator=self.order)

    def end_epoch(self, record: EpochRecord) -> None:
        """Put the record down and turn to the next epoch. Keeps the weights if no epoch was better."""
        self.records.append(record)
        if self.best_epoch() == record.epoch:
            self.best = {name: tensor.detach().clone() for name, tensor in self.net.state_dict().items()}
        self.epoch, self.position, self.seconds = self.epoch + 1, 0, 0.0
        self.term_sums.zero_()
        self._order_at_start = self.order.get_state()

    def best_epoch(self) -> int | None:
        """The best epoch so far by its validation scores; None without."""
        return best_epoch(self.records, self._best_by, self._best_after)

    def put_aside(self) -> None:
        """Keep the state of torch's own generators, which belong to others until `turn`."""
        self._aside = self._common_states()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Inside the block torch's own generators are this run's, if they had been put aside."""
        if self._aside is None:
            yield
            return
        aside, self._aside = self._aside, None
        self._set_common_states(aside)
        try:
            yield
        finally:
            self.put_aside()

    def generator_states(self) -> dict[str, Tensor]:
        """The generators that a step may use."""
        common = self._common_states() if self._aside is None else self._aside
        return {"augmentation": self.augmentation.get_state(), **common}

    def set_generator_states(self, states: dict[str, Tensor]) -> None:
        common: dict[str, Tensor] = {name: states[name] for name in states if name in ("torch", "cuda")}
        self.augmentation.set_state(states["augmentation"])
        before = self._common_states()
        self._set_common_states({"torch": states["torch"], **common})
        if self._aside is not None:  # they have been tried, and others are at work
            self._aside = common
            self._set_common_states(before)

    def _common_states(self) -> dict[str, Tensor]:
        states = {"torch": torch.get_rng_state()}
        if self.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.device)
        return states

    def _set_common_states(self, states: dict[str, Tensor]) -> None:
        torch.set_rng_state(states["torch"])
        if self.device.type == "cuda" and "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"], self.device)

    def capture(self) -> Moment:
        """This moment. Tensors are shared with the run, which will change them: write or copy them at once."""
        tensors = {f"model/{name}": tensor for name, tensor in self.net.state_dict().items()}
        tensors |= {f"best/{name}": tensor for name, tensor in (self.best or {}).items()}
        for name, parameter in self.net.named_parameters():
            held = self.optimizer.state.get(parameter, {})
            tensors |= {f"optimizer/{name}/{key}": held[key] for key in _held(self.optimizer, parameter) if key in held}
        tensors |= {f"generator/{name}": value for name, value in self.generator_states().items()}
        tensors["generator/order"] = self._order_at_start
        tensors["term_sums"] = self.term_sums
        facts = {
            "epoch": self.epoch,
            "position": self.position,
            "seconds": self.seconds,
            "records": [record.to_dict() for record in self.records],
        }
        return Moment(tensors, facts)

    def restore(self, moment: Moment, source: str) -> None:
        """Return to a moment of a run of the same network, or say why it is none and leave the network as it is."""
        epoch, position, seconds, records = _read_facts(moment.facts, source)
        model = _part(moment.tensors, "model/")
        has_best = best_epoch(records, self._best_by, self._best_after) is not None
        best = _part(moment.tensors, "best/") if has_best else None
        for weights in (model, best):
            if weights is not None:
                require_weights(self.net, weights, source)
        optimizer = self._optimizer_state(_part(moment.tensors, "optimizer/"), source)
        generators = _part(moment.tensors, "generator/")
        sums = moment.tensors.get("term_sums")
        if sums is None or sums.shape != (3,) or sums.dtype != torch.float64:
            raise CheckpointError(f"{source}: term_sums must be three numbers")
        try:
            torch.Generator().set_state(generators["order"])
            self.set_generator_states(generators)
        except (KeyError, RuntimeError, TypeError) as error:
            raise CheckpointError(f"{source}: the state of the generators cannot be used: {error}") from None
        self.net.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        self._order_at_start = generators["order"].clone()
        self.term_sums.copy_(sums)
        self.epoch, self.position, self.seconds, self.records = epoch, position, seconds, list(records)
        self.best = None if best is None else {name: tensor.to(self.device) for name, tensor in best.items()}

    def _optimizer_state(self, held: dict[str, Tensor], source: str) -> dict[str, Any]:
        state: dict[int, dict[str, Tensor]] = {}
        groups = self.optimizer.param_groups
        places = {
            id(parameter): place for place, parameter in enumerate(p for group in groups for p in group["params"])
        }
        for name, parameter in self.net.named_parameters():
            names = _held(self.optimizer, parameter)
            entry = {key: held.pop(f"{name}/{key}") for key in names if f"{name}/{key}" in held}
            if not entry:
                continue
            shapes = {key: tensor.shape for key, tensor in entry.items()}
            if shapes != {key: torch.Size(()) if key == "step" else parameter.shape for key in names}:
                raise CheckpointError(f"{source}: the optimizer's state of {name} does not fit this network")
            if not all(bool(torch.isfinite(tensor).all()) for tensor in entry.values()):
                raise CheckpointError(f"{source}: the optimizer's state of {name} is not finite")
            # In the memory layout of the parameter: a fused step runs over the memory of both side by side.
            state[places[id(parameter)]] = {
                key: tensor.clone() if key == "step" else torch.empty_like(parameter).copy_(tensor)
                for key, tensor in entry.items()
            }
        if held:
            raise CheckpointError(f"{source}: the optimizer has state for {sorted(held)[0]}, which this network lacks")
        return {"state": state, "param_groups": self.optimizer.state_dict()["param_groups"]}


def _held(optimizer: torch.optim.Optimizer, parameter: Tensor) -> tuple[str, ...]:
    """What the optimizer keeps for a parameter: a scalar called "step", everything else of the parameter's shape."""
    names = getattr(optimizer, "state_names", None)  # of an optimizer that is not Adam: see `bqn.baselines`
    return _ADAM if names is None else names(parameter)


def require_weights(net: Network, weights: dict[str, Tensor], source: str) -> None:
    """Raise unless `weights` are finite and name for name, shape for shape those of `net`."""
    own = net.state_dict()
    if set(weights) != set(own):
        missing, extra = sorted(set(own) - set(weights)), sorted(set(weights) - set(own))
        raise CheckpointError(
            f"{source} is of another architecture than this network, or of an older version: missing {missing[:3]}, "
            f"unexpected {extra[:3]}"
        )
    for name, tensor in weights.items():
        if tensor.shape != own[name].shape or tensor.dtype != own[name].dtype:
            raise CheckpointError(
                f"{source} is of another architecture than this network: {name} is {tensor.dtype} "
                f"{tuple(tensor.shape)}, expected {own[name].dtype} {tuple(own[name].shape)}"
            )
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"{source}: {name} has NaN or infinite values")


def best_weights(moment: Moment) -> dict[str, Tensor]:
    """The weights to use: those of the best epoch, or the latest where no epoch has been compared."""
    return _part(moment.tensors, "best/") or _part(moment.tensors, "model/")


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _read_facts(facts: dict[str, Any], source: str) -> tuple[int, int, float, tuple[EpochRecord, ...]]:
    epoch, position, seconds = (facts.get(name) for name in ("epoch", "position", "seconds"))
    for name, value in (("epoch", epoch), ("position", position)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise CheckpointError(f"{source}: {name} must be a count, got {value!r:.40}")
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < math.inf:
        raise CheckpointError(f"{source}: seconds must be a time, got {seconds!r:.40}")
    records = parse_records(facts.get("records"), f"{source}: records")
    assert isinstance(epoch, int)
    assert isinstance(position, int)
    if len(records) != epoch:
        raise CheckpointError(f"{source}: {len(records)} records for {epoch} finished epochs")
    return epoch, position, float(seconds), records
