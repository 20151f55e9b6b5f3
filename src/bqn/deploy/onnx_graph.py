"""A graph of ONNX operators, built one by one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np

OPSET = 18
IR_VERSION = 9  # readers of 2023 and later
_MOST_BYTES = 2**31 - 1  # of a protocol buffer


class Graph:
    """Operators in order; equal constants are stored once."""

    def __init__(self) -> None:
        try:
            import onnx
            from onnx import helper, numpy_helper
        except ImportError as error:
            raise ImportError('exporting to ONNX needs the package onnx: pip install "bqn[onnx]"') from error
        self._onnx, self._helper, self._numpy = onnx, helper, numpy_helper
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def input(self, name: str, kind: str, shape: tuple[str | int, ...]) -> None:
        self._inputs.append(self._helper.make_tensor_value_info(name, self._type(kind), shape))

    def output(self, name: str, kind: str, shape: tuple[str | int, ...]) -> None:
        self._outputs.append(self._helper.make_tensor_value_info(name, self._type(kind), shape))

    def add(self, operator: str, *inputs: Any, output: str | None = None, to: str | None = None, **options: Any) -> str:
        """Add an operator on values by name, or on numbers and arrays, which become constants; return the new name."""
        names = [value if isinstance(value, str) else self._constant(np.asarray(value)) for value in inputs]
        name = output or f"v{len(self._nodes)}"
        if to is not None:
            options["to"] = self._type(to)
        self._nodes.append(self._helper.make_node(operator, names, [name], name=f"n{len(self._nodes)}", **options))
        return name

    def finish(self, about: str, facts: Mapping[str, str]) -> bytes:
        """The model, checked."""
        graph = self._helper.make_graph(
            self._nodes, "bqn", self._inputs, self._outputs, list(self._constants.values()), doc_string=about
        )
        opsets = [self._helper.make_opsetid("", OPSET)]
        model = self._helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="bqn", doc_string=about
        )
        self._helper.set_model_props(model, {key: value for key, value in facts.items() if value})
        size = model.ByteSize()
        if size > _MOST_BYTES:
            raise ValueError(
                f"the model would take {size:,} bytes, more than an ONNX file can hold; export fewer members"
            )
        self._onnx.checker.check_model(model, full_check=True)
        content: bytes = model.SerializeToString(deterministic=True)
        return content

    def _constant(self, values: np.ndarray[Any, Any]) -> str:
        values = np.ascontiguousarray(values) if values.ndim else values
        digest = hashlib.sha256(f"{values.dtype} {values.shape} ".encode() + values.tobytes()).hexdigest()[:16]
        name = f"c{digest}"
        if name not in self._constants:
            self._constants[name] = self._numpy.from_array(values, name)
        return name

    def _type(self, kind: str) -> int:
        code: int = self._helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        return code
