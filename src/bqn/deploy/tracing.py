"""Which layers a network calls, in which order, on what: also where its forward is one of its own."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.nn import Identity, Module, Sequential

from bqn import nn
from bqn.deploy import rules as _rules  # noqa: F401  the rules register themselves
from bqn.deploy.folding import Symbol, UnpackableError
from bqn.deploy.lowering import Lowering, is_known

_ADDITIONS = {operator.add, operator.iadd, torch.add}
_FLATTENINGS = {torch.flatten}


class _Proxy(fx.Proxy):
    """A value in a forward. fx itself takes `h += y` for `h + y`, as if nobody else could hold the same tensor."""

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operator.iadd, (self, other), {})


class _Tracer(fx.Tracer):
    """Looks into everything but the layers that are lowered as a whole, and layers of torch itself."""

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, m: Module, module_qualified_name: str) -> bool:
        return is_known(m) or (type(m).__module__.startswith("torch.nn") and not isinstance(m, Sequential))


def lower(bodies: Sequence[Module], lowering: Lowering) -> Symbol:
    """Walk through the bodies of all members together; what comes out of them."""
    roots = [body if not is_known(body) else Sequential(body) for body in bodies]
    graphs = [_trace(root) for root in roots]
    first = graphs[0]
    _require_unshared(roots[0], first)
    for member, graph in enumerate(graphs[1:], 1):
        _require_equal(member, (roots[0], first), (roots[member], graph))
    values: dict[fx.Node, Symbol] = {}
    for node in first.nodes:
        if node.op == "placeholder":
            if values:
                raise UnpackableError(f"the body takes a second input, {node.target}; a packed network takes one")
            values[node] = lowering.input
        elif node.op == "output":
            (result,) = node.args
            if not isinstance(result, fx.Node):
                raise UnpackableError("the body must return one tensor")
            return values[result]
        else:
            layers = [_layer_of(root, node) for root in roots]
            inputs = [values[arg] for arg in node.args if isinstance(arg, fx.Node)]
            inputs += [values[arg] for arg in node.kwargs.values() if isinstance(arg, fx.Node)]
            values[node] = lowering.call(_name_of(node), layers, inputs)
    raise UnpackableError("the body returns nothing")


def _trace(root: Module) -> fx.Graph:
    try:
        return _Tracer().trace(root)
    except UnpackableError:
        raise
    except Exception as error:  # a forward is a user's code and may fail in any way on values that are only named
        raise UnpackableError(
            f"the forward of {type(root).__name__} cannot be followed; it must call layers and add tensors and do no "
            f"more: {error}"
        ) from error


def _require_unshared(root: Module, graph: fx.Graph) -> None:
    """Raise if `+=` changes a tensor that is read behind it by another name."""
    place = {node: position for position, node in enumerate(graph.nodes)}
    memory: dict[fx.Node, set[fx.Node]] = {}  # names of the same tensor
    for node in graph.nodes:
        memory[node] = memory[node.all_input_nodes[0]] if _keeps_memory(root, node) else set()
        memory[node].add(node)
    for node in graph.nodes:
        if node.target is operator.iadd:
            readers = {reader for name in memory[node] if place[name] < place[node] for reader in name.users}
            if any(place[reader] > place[node] for reader in readers):
                raise UnpackableError(
                    f"{node.name}: += changes a tensor in place that the forward reads again by another name; write "
                    "a = a + b if that is not meant"
                )


def _keeps_memory(root: Module, node: fx.Node) -> bool:
    """Whether what a node makes is, or may be, the tensor that it reads."""
    if node.op == "call_module":
        return isinstance(root.get_submodule(str(node.target)), Identity | nn.Flatten)
    return node.target is operator.iadd or node.target in _FLATTENINGS or node.target == "flatten"


def _layer_of(root: Module, node: fx.Node) -> Module:
    """The layer that a node calls, or one that does the same."""
    if node.op == "call_module":
        return root.get_submodule(str(node.target))
    others = [arg for arg in (*node.args, *node.kwargs.values()) if not isinstance(arg, fx.Node)]
    if node.op == "call_function" and node.target in _ADDITIONS and not others:
        return nn.Add()
    flattens = node.target in _FLATTENINGS if node.op == "call_function" else node.target == "flatten"
    if flattens and others in ([1], [1, -1]):
        return nn.Flatten()
    target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    raise UnpackableError(f"{node.name}: the forward calls {target}, which cannot be packed; use a layer of bqn.nn")


def _name_of(node: fx.Node) -> str:
    return str(node.target) if node.op == "call_module" else node.name


def _require_equal(member: int, one: tuple[Module, fx.Graph], other: tuple[Module, fx.Graph]) -> None:
    """Raise unless two members are of one architecture."""
    described = [[_describe(root, node) for node in graph.nodes] for root, graph in (one, other)]
    for expected, got in zip(*described, strict=False):
        if expected != got:
            raise UnpackableError(f"member {member} is of another architecture: {got} where member 0 has {expected}")
    if len(described[0]) != len(described[1]):
        raise UnpackableError(f"member {member} is of another architecture: it has more or fewer layers than member 0")


def _describe(root: Module, node: fx.Node) -> tuple[Any, ...]:
    described: tuple[Any, ...] = (node.op, str(node.target), str(node.args), str(node.kwargs))
    if node.op != "call_module":
        return described
    layer = root.get_submodule(str(node.target))
    shifted = getattr(layer, "expected_shift", None) is not None
    return (*described, type(layer).__name__, layer.extra_repr(), shifted)
