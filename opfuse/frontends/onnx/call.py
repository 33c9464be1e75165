"""One ONNX node on its way into the IR: what an import function sees, and how it answers.

    def leaky_relu(call: Call) -> str:
        return call.emit("leaky_relu", [call.input(0)], alpha=call.float_attribute("alpha", 0.01))

An import function emits IR operators and returns the value of each ONNX output (one name, or a tuple; None for an
output that nobody reads). Numbers that the IR wants as attributes come from `call.dims`; where they depend on data, or
an attribute asks for what is not there yet, the function calls `call.unsupported(reason)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from onnx import AttributeProto, NodeProto, helper

from opfuse.frontends.onnx.equal_dims import Demand, demands, require_equal
from opfuse.frontends.onnx.shapes import Contents
from opfuse.ir.dims import Dim
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType

GIVE_SHAPES = "give the shapes of the inputs"


class Unsupported(Exception):
    """An import function declines a node; the text says what about it is not supported.

    `needs` are inputs of the model: were they constants, the node might be supported. `by_shapes`: were the dimensions
    of the inputs numbers, it might be.
    """

    def __init__(self, text: str, needs: Sequence[str] = (), by_shapes: bool = False) -> None:
        self.needs, self.by_shapes = tuple(needs), by_shapes
        super().__init__(text)


class InvalidNode(Exception):
    """The node breaks the rules of ONNX: a required input or attribute is missing, shapes do not fit, ..."""

    def __init__(self, text: str, code: str = "bad-node") -> None:
        self.code = code
        super().__init__(text)


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
                self._depends(k, "holds numbers that depend on data")
            return tuple(int(d) for d in array.reshape(-1))
        return tuple(known.reshape(-1))

    def integers(self, k: int) -> tuple[int, ...]:
        """As `dims`, where symbols do not help: axes, for example."""
        found = self.dims(k)
        if not all(isinstance(d, int) for d in found):
            self.needs_shapes(f"its input {self._name(k)!r} holds numbers that depend on input shapes")
        return tuple(int(d) for d in found)  # type: ignore[arg-type]

    def constant(self, k: int) -> np.ndarray:
        """Input k as an array; Unsupported where it does not follow from constants."""
        self.contents.fix_defaults(self.input(k))
        array = self.contents.array(self.input(k))
        if array is None:
            self._depends(k, "is not a constant")
        return array

    def truth(self, value: str | None) -> bool:
        """A condition that is known; Unsupported where it depends on data."""
        known = self.contents.array(value) if value is not None else None
        if known is None or known.size != 1:
            raise Unsupported("its condition depends on data", self.behind(value) if value is not None else ())
        return bool(known.reshape(-1)[0])

    def _depends(self, k: int, problem: str) -> NoReturn:
        """Decline for numbers of input k that are not known: by inputs that they follow from, or by open dimensions."""
        behind = self.behind(self.input(k))
        text = f"its input {self._name(k)!r} {problem}"
        if behind:
            raise Unsupported(text, behind)
        self.needs_shapes(text)

    def item(self, k: int) -> Any:
        """The one element of constant input k, as Python's own number."""
        array = self.constant(k)
        if array.size != 1:
            raise InvalidNode(f"its input {self._name(k)!r} must have one element, and has shape {list(array.shape)}")
        return array.reshape(-1)[0].item()

    def behind(self, value: str) -> tuple[str, ...]:
        """Inputs of the model that a value follows from, in order."""
        return inputs_behind(self.graph, value)

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
        operands = list(inputs)
        shapes = [None if i is None else self.shape(i) for i in inputs]
        for demand in demands(op, shapes, attrs):
            value = operands[demand.operand]
            assert value is not None
            operands[demand.operand] = self._held_to(value, demand)
        return self._append(op, operands, attrs)

    def _append(self, op: str, inputs: Sequence[str | None], attrs: Mapping[str, Any]) -> str:
        name = self.node.name or self.origin
        made = self.graph.make(op, inputs, attrs, name=name, origin=(self.origin,))
        self.contents.record(self.graph.insert(made))
        return made.output

    def _held_to(self, value: str, demand: Demand) -> str:
        """The value, its dimension held to the extent asked for; two numbers are left to the operator's rule."""
        shape = self.shape(value)
        have = shape[demand.axis]
        require_equal(have, demand.extent)
        if isinstance(have, int) and isinstance(demand.extent, int):
            return value
        held = (*shape[: demand.axis], demand.extent, *shape[demand.axis + 1 :])
        return self._append("reshape", [value], {"shape": held})

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

    def needs_shapes(self, reason: str) -> NoReturn:
        """Decline as long as dimensions are open: the import is tried again when they are numbers."""
        raise Unsupported(f"{reason}; {GIVE_SHAPES}", by_shapes=True)


def inputs_behind(graph: Graph, value: str) -> tuple[str, ...]:
    """Inputs of the model that a value follows from, in order."""
    found, stack = {value}, [value]
    while stack:
        producer = graph.producer(stack.pop())
        new = {i for i in producer.reads if i not in found} if producer is not None else set()
        found |= new
        stack += new
    return tuple(i for i in graph.inputs if i in found)
