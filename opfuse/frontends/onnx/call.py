"""One ONNX node on its way into the IR: what an import function sees, and how it answers.

    def leaky_relu(call: Call) -> str:
        return call.emit("leaky_relu", [call.input(0)], alpha=call.float_attribute("alpha", 0.01))

An import function emits IR operators and returns the value of each ONNX output (one name, or a tuple; None for an output
that nobody reads). Numbers that the IR wants as attributes come from `call.numbers`; where they depend on data, or an
attribute asks for what is not there yet, the function calls `call.unsupported(reason)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from onnx import AttributeProto, NodeProto, helper

from opfuse.frontends.onnx.shapes import Contents
from opfuse.ir.dims import Dim, symbol, symbols
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType


class Unsupported(Exception):
    """An import function declines a node; the text says what about it is not supported."""


class InvalidNode(Exception):
    """The node breaks the rules of ONNX: a required input or attribute is missing, shapes do not fit, ..."""

    def __init__(self, text: str, code: str = "bad-node") -> None:
        self.code = code
        super().__init__(text)


class EqualDims(Exception):
    """The node can only run where two dimensions are equal: the import starts anew with `symbol` meaning `value`."""

    def __init__(self, symbol: str, value: Dim) -> None:
        self.symbol, self.value = symbol, value
        super().__init__(f"{symbol} must be {value}")


_BROADCASTING = frozenset((
    "add", "sub", "mul", "div", "pow", "maximum", "minimum", "mod", "fmod", "equal", "not_equal", "less", "less_equal",
    "greater", "greater_equal", "and", "or", "xor", "where", "clip", "prelu",
))  # fmt: skip


def is_symbol(d: Dim) -> bool:
    """One symbol and nothing else."""
    return any(d == symbol(name) for name in symbols(d))


def dimensions_that_meet(op: str, shapes: Sequence[Sequence[Dim]], attrs: Mapping[str, Any]) -> Iterator[tuple[Dim, Dim]]:
    """Pairs of dimensions that an operator wants equal, some of them symbolic and not known to be.

    Two that broadcast are taken to be equal unless one of them is the number 1: models whose exporter gave one axis two
    names (or none) are many, and those where a symbolic axis is 1 at times and broadcasts then are few. Feeding the
    latter is refused, not computed wrongly, since both axes become one symbol.
    """
    if op in _BROADCASTING:
        yield from _aligned(shapes)
    elif op == "expand":
        yield from _aligned([*shapes, attrs["shape"]])
    elif op == "matmul" and all(shapes):
        a, b = shapes
        yield a[-1], b[-2] if len(b) > 1 else b[0]
        yield from _aligned([a[:-2], b[:-2]])
    elif op == "concat" and len({len(s) for s in shapes}) == 1:
        for k in range(len(shapes[0])):
            if k != attrs["axis"]:
                yield from ((shapes[0][k], s[k]) for s in shapes[1:])


def _aligned(shapes: Sequence[Sequence[Dim]]) -> Iterator[tuple[Dim, Dim]]:
    rank = max(map(len, shapes))
    for k in range(1, rank + 1):
        column = [d for s in shapes if len(s) >= k and (d := s[-k]) != 1]
        yield from ((column[0], d) for d in column[1:])


@dataclass
class Call:
    graph: Graph
    contents: Contents
    node: NodeProto
    version: int  # since-version of the operator that the model's opset selects
    opset: int
    inputs: tuple[str | None, ...]  # IR values; None for an input left out
    origin: str
    folder: Path | None = None  # where external data lie
    wanted: tuple[bool, ...] = ()  # for each output: whether anything reads it

    # ---- inputs -----------------------------------------------------------------------------------------------------
    def has(self, k: int) -> bool:
        return k < len(self.inputs) and self.inputs[k] is not None

    def input(self, k: int) -> str:
        found = self.optional(k)
        if found is None:
            raise InvalidNode(f"its input {k} is missing")
        return found

    def optional(self, k: int) -> str | None:
        return self.inputs[k] if k < len(self.inputs) else None

    def present(self) -> list[str]:
        """The inputs of a variadic operator; InvalidNode where there is none."""
        found = [i for i in self.inputs if i is not None]
        if not found:
            raise InvalidNode("it has no inputs")
        return found

    def type(self, value: str) -> TensorType:
        return self.graph.types[value]

    def shape(self, value: str) -> tuple[Dim, ...]:
        return self.graph.types[value].shape

    def rank(self, value: str) -> int:
        return len(self.graph.types[value].shape)

    def dtype(self, value: str) -> DType:
        return self.graph.types[value].dtype

    def wants(self, k: int) -> bool:
        return k < len(self.wanted) and self.wanted[k]

    # ---- numbers ----------------------------------------------------------------------------------------------------
    def dims(self, k: int) -> tuple[Dim, ...]:
        """The numbers in integer input k, in order, as Dims; Unsupported where they depend on data."""
        value = self.input(k)
        self.contents.fix_defaults(value)
        known = self.contents.of(value)
        if known is None:
            array = self.contents.array(value)
            if array is None or not np.issubdtype(array.dtype, np.integer):
                self.unsupported(f"its input {self._name(k)!r} holds numbers that depend on data")
            return tuple(int(d) for d in array.reshape(-1))
        return tuple(known.reshape(-1))

    def integers(self, k: int) -> tuple[int, ...]:
        """As `dims`, where symbols do not help: axes, for example."""
        found = self.dims(k)
        if not all(isinstance(d, int) for d in found):
            self.unsupported(f"its input {self._name(k)!r} holds numbers that depend on input shapes")
        return tuple(int(d) for d in found)  # type: ignore[arg-type]

    def constant(self, k: int) -> np.ndarray:
        """Input k as an array; Unsupported where it does not follow from constants."""
        self.contents.fix_defaults(self.input(k))
        array = self.contents.array(self.input(k))
        if array is None:
            self.unsupported(f"its input {self._name(k)!r} is not a constant")
        return array

    def item(self, k: int) -> Any:
        """The one element of constant input k, as Python's own number."""
        array = self.constant(k)
        if array.size != 1:
            raise InvalidNode(f"its input {self._name(k)!r} must have one element, and has shape {list(array.shape)}")
        return array.reshape(-1)[0].item()

    def _name(self, k: int) -> str:
        return str(self.node.input[k])

    # ---- attributes -------------------------------------------------------------------------------------------------
    def attribute(self, name: str) -> AttributeProto | None:
        return next((a for a in self.node.attribute if a.name == name), None)

    def int_attribute(self, name: str, default: int | None = None) -> int:
        return int(self._value(name, AttributeProto.INT, default))

    def float_attribute(self, name: str, default: float | None = None) -> float:
        return float(self._value(name, AttributeProto.FLOAT, default))

    def string_attribute(self, name: str, default: str | None = None) -> str:
        value = self._value(name, AttributeProto.STRING, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def ints_attribute(self, name: str) -> tuple[int, ...] | None:
        """A list of integers; None where the attribute is left out."""
        if self.attribute(name) is None:
            return None
        return tuple(self._value(name, AttributeProto.INTS, None))

    def _value(self, name: str, kind: int, default: Any) -> Any:
        found = self.attribute(name)
        if found is None:
            if default is None:
                raise InvalidNode(f"its attribute {name!r} is missing")
            return default
        if found.type != kind:
            wanted = AttributeProto.AttributeType.Name(kind).lower()
            raise InvalidNode(f"its attribute {name!r} must be of type {wanted}")
        return helper.get_attribute_value(found)

    def axis(self, axis: int, rank: int) -> int:
        """A non-negative axis; InvalidNode where it is outside [-rank, rank)."""
        if not -rank <= axis < rank:
            raise InvalidNode(f"axis {axis} is outside a tensor of rank {rank}")
        return axis % rank

    def axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        """Non-negative axes in ascending order; InvalidNode where one is outside or stands twice."""
        found = sorted(self.axis(a, rank) for a in axes)
        if len(set(found)) != len(found):
            raise InvalidNode(f"its axes {list(axes)} repeat")
        return tuple(found)

    # ---- answers ----------------------------------------------------------------------------------------------------
    def emit(self, op: str, inputs: Sequence[str | None], **attrs: Any) -> str:
        """Append an IR operator that stands for this node; returns its first output."""
        name = self.node.name or self.origin
        made = self.graph.make(op, inputs, attrs, name=name, origin=(self.origin,))
        for a, b in dimensions_that_meet(op, [self.shape(i) for i in made.reads], attrs):
            self.require_equal(a, b)
        self.contents.record(self.graph.insert(made))
        return made.output

    def require_equal(self, a: Dim, b: Dim) -> None:
        """Two dimensions that must be equal, or the node cannot run: where one is a symbol, it takes the other's meaning.

        Numbers that differ are left to the operator's own rule.
        """
        for one, other in ((b, a), (a, b)):
            if one != other and is_symbol(one) and (isinstance(other, int) or is_symbol(other)):
                raise EqualDims(str(one), other)

    def scalar(self, number: float, like: str) -> str:
        """A constant of rank 0 and the element type of another value."""
        return self.graph.scalar(number, self.dtype(like))

    def reshape(self, value: str, shape: Sequence[Dim]) -> str:
        """The value in another shape; itself where it has that shape already."""
        return value if self.shape(value) == tuple(shape) else self.emit("reshape", [value], shape=tuple(shape))

    def transpose(self, value: str, perm: Sequence[int]) -> str:
        return value if tuple(perm) == tuple(range(len(perm))) else self.emit("transpose", [value], perm=tuple(perm))

    def cast(self, value: str, dtype: DType) -> str:
        return value if self.dtype(value) is dtype else self.emit("cast", [value], to=dtype)

    def unsupported(self, reason: str) -> NoReturn:
        raise Unsupported(reason)
