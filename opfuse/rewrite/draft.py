"""A draft: what a rule would put into the graph, held apart until it is known to be right.

    def halve(m: Match, to: Draft) -> str | Refusal:
        return to.emit("mul", m["x"], to.scalar(0.5, m.type("x").dtype))

A rule writes nodes and constants into the draft and returns the value that stands for the old one. Nothing has
happened to the graph by then, so a rule that raises or that makes a value of another type is undone by dropping its
draft.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Sequence
from typing import Any

import numpy as np

from opfuse.ir.dims import Dim
from opfuse.ir.graph import Graph, Node, user_names
from opfuse.ir.ops import call_of, get, infer
from opfuse.ir.types import DType, TensorType


class Draft:
    """Nodes and constants to be; reads the graph, never writes it."""

    def __init__(self, graph: Graph, stands_for: tuple[Node, ...] = ()) -> None:
        self.graph = graph
        self.stands_for = stands_for
        self.nodes: list[Node] = []
        self.constants: dict[str, np.ndarray] = {}
        self._types: dict[str, TensorType] = {}
        self._all_types = ChainMap(self._types, graph.types)

    def emit(self, op: str, *inputs: str | None, of: Node | Sequence[Node] | None = None, **attrs: Any) -> str:
        """A new operator; its value. It stands for the user's nodes of `of`, or for those of all that was matched."""
        nodes = self.stands_for if of is None else (of,) if isinstance(of, Node) else of
        origin = user_names(nodes)
        node = self.graph.make(op, inputs, attrs, origin=origin)
        for value, type_ in zip(node.outputs, infer(node, self._all_types), strict=True):
            self._types[value] = type_
        self.nodes.append(node)
        return node.output

    def constant(self, array: np.ndarray) -> str:
        """A new constant; arrays that other values share are never written, so a changed weight is a new constant."""
        name = self.graph.fresh("const")
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        self.constants[name] = array
        self._types[name] = TensorType(DType.of(array.dtype), array.shape)
        return name

    def scalar(self, value: float | int | bool, dtype: DType) -> str:
        return self.constant(np.asarray(value, dtype.numpy))

    def type(self, value: str) -> TensorType:
        return self._all_types[value]

    def shape(self, value: str) -> tuple[Dim, ...]:
        return self._all_types[value].shape

    def array(self, value: str | None) -> np.ndarray | None:
        """The array of a constant; None where the value is not one."""
        if value is None:
            return None
        return self.constants.get(value, self.graph.constants.get(value))

    # ---- movements that leave out what moves nothing -----------------------------------------------------------------
    def reshape(self, value: str, shape: Sequence[Dim], of: Node | None = None) -> str:
        """The value in another shape; itself where it has that shape; a constant stays a constant."""
        shape = tuple(shape)
        if self.shape(value) == shape:
            return value
        array = self.array(value)
        if array is not None:
            return self.constant(np.reshape(array, self._integers(shape)))
        return self.emit("reshape", value, shape=shape, of=of)

    @staticmethod
    def _integers(shape: tuple[Dim, ...]) -> tuple[int, ...]:
        return TensorType(DType.F32, shape).static_shape

    def transpose(self, value: str, perm: Sequence[int], of: Node | None = None) -> str:
        """The value with its axes in another order; itself where the order is the same; a constant stays a constant."""
        perm = tuple(perm)
        if perm == tuple(range(len(perm))):
            return value
        array = self.array(value)
        if array is not None:
            return self.constant(np.transpose(array, perm))
        return self.emit("transpose", value, perm=perm, of=of)

    def expansion(self, node: Node) -> tuple[str, ...]:
        """The operators that a node of the graph stands for, as its row in the operator table expands it."""
        expand = get(node.op).expand
        assert expand is not None, f"{node.op} stands for itself"
        inner = Graph("expansion")
        for value in node.reads:
            inner.add_input(value, self.type(value))
        results = expand(inner, call_of(self.graph, node), node.inputs)
        here = {v: v for v in node.reads} | {name: self.constant(a) for name, a in inner.constants.items()}
        for part in inner.nodes.values():
            self.emit(part.op, *(here[i] if i is not None else None for i in part.inputs), **part.attrs)
            here |= zip(part.outputs, self.nodes[-1].outputs, strict=True)
        return tuple(here[r] for r in results)

    # ---- what the engine asks ----------------------------------------------------------------------------------------
    def needed(self, *results: str) -> tuple[list[Node], dict[str, np.ndarray]]:
        """The nodes and constants of the draft that the results need, nodes in order."""
        wanted, nodes = set(results), []
        for node in reversed(self.nodes):
            if wanted & set(node.outputs):
                nodes.append(node)
                wanted.update(node.reads)
        return nodes[::-1], {n: a for n, a in self.constants.items() if n in wanted}

    def makes(self, value: str) -> bool:
        """Is it the output of a node of the draft?"""
        return any(value in n.outputs for n in self.nodes)
