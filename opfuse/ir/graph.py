"""The graph: named operators on typed values, in single assignment.

Values are names (`str`) with a `TensorType`; a `Node` is frozen and reads and makes values; constants are arrays.
Every node carries `origin`, the names of the user's own nodes that it stands for, so that whatever is said about it
later can be said in the user's words.

    g = Graph("m")
    g.add_input("x", TensorType(F32, (1, 8)))
    y = g.emit("relu", ["x"], origin=("Relu_3",))        # type comes from the table's shape rule
    g.set_outputs({"y": y})

Edits happen on a graph in place (`replace`, `remove`); `copy` is cheap (arrays are shared and never written).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from opfuse.ir.dims import Bindings, bind
from opfuse.ir.placement import Placement
from opfuse.ir.types import DType, TensorType

Attributes = Mapping[str, Any]  # int, float, bool, str, DType, or (nested) tuples of int / Dim / float / str; None


@dataclass(frozen=True, eq=False)
class Node:
    name: str
    op: str
    inputs: tuple[str | None, ...]
    outputs: tuple[str, ...]
    attrs: Attributes = field(default_factory=dict)
    origin: tuple[str, ...] = ()

    @property
    def output(self) -> str:
        return self.outputs[0]

    @property
    def reads(self) -> tuple[str, ...]:
        """The inputs that are there, each once."""
        return tuple(dict.fromkeys(i for i in self.inputs if i is not None))

    def __str__(self) -> str:
        args = ", ".join(i if i is not None else "-" for i in self.inputs)
        attrs = "".join(f" {k}={v}" for k, v in self.attrs.items())
        return f"{', '.join(self.outputs)} = {self.op}({args}){attrs}"


class Graph:
    """Mutable; `nodes` is always in a topological order as long as edits go through the methods."""

    is_open: ClassVar[bool] = False  # whether the nodes are there only once `bind` has numbers for the symbols

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.nodes: dict[str, Node] = {}
        self.types: dict[str, TensorType] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.inputs: list[str] = []
        self.outputs: dict[str, str] = {}  # public name -> value
        self.defaults: dict[str, np.ndarray] = {}  # inputs that may be left out (initialisers that are also inputs)
        self.placements: dict[str, Placement] = {}  # values that lie in another's bytes, once kernels are settled
        # what `structure_of` found, shared with the graphs that are taken out of this one
        self.structures: WeakKeyDictionary[Node, Any] = WeakKeyDictionary()
        self._producer: dict[str, str] = {}
        self._consumers: dict[str, dict[str, None]] = {}  # value -> names of the nodes that read it, in order
        self._counter = 0

    # ---- building ---------------------------------------------------------------------------------------------------
    def add_input(self, name: str, type_: TensorType, default: np.ndarray | None = None) -> str:
        self._claim(name)
        self.inputs.append(name)
        self.types[name] = type_
        if default is not None:
            self.defaults[name] = default
        return name

    def add_constant(self, array: np.ndarray, name: str | None = None) -> str:
        name = self._claim(name) if name is not None else self.fresh("const")
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        self.constants[name] = array
        self.types[name] = TensorType(DType.of(array.dtype), array.shape)
        return name

    def scalar(self, value: float | int | bool, dtype: DType) -> str:
        return self.add_constant(np.asarray(value, dtype.numpy))

    def emit(self, op: str, inputs: Sequence[str | None], attrs: Attributes | None = None, *, name: str | None = None,
             outputs: Sequence[str] | None = None, origin: tuple[str, ...] = ()) -> str:  # fmt: skip
        """Append a node whose output types come from the operator table; returns its first output."""
        return self.insert(self.make(op, inputs, attrs, name=name, outputs=outputs, origin=origin)).output

    def make(self, op: str, inputs: Sequence[str | None], attrs: Attributes | None = None, *, name: str | None = None,
             outputs: Sequence[str] | None = None, origin: tuple[str, ...] = ()) -> Node:  # fmt: skip
        """A node with defaults filled in and output names chosen, not yet in the graph."""
        from opfuse.ir.ops import get

        definition = get(op)
        name = name if name is not None and name not in self.nodes else self.fresh(name or op)
        count = definition.output_count(attrs or {})
        chosen = outputs if outputs is not None else [self.fresh(f"{name}.out{k or ''}") for k in range(count)]
        return Node(name, op, tuple(inputs), tuple(chosen), definition.complete(attrs or {}), origin)

    def insert(self, node: Node) -> Node:
        """Append a node after everything that it reads; infers its output types."""
        from opfuse.ir.ops import infer

        self._link(node, infer(node, self.types))
        return node

    def take(self, node: Node, types: Mapping[str, TensorType]) -> Node:
        """Append a node of another graph, whose output types stand in that graph's."""
        self._link(node, [types[v] for v in node.outputs])
        return node

    def set_outputs(self, outputs: Mapping[str, str]) -> None:
        self.outputs = dict(outputs)

    def fresh(self, hint: str) -> str:
        """A name that no value and no node of the graph has."""
        while True:
            self._counter += 1
            name = f"{hint}_{self._counter}"
            if name not in self.types and name not in self.nodes:
                return name

    def _claim(self, name: str) -> str:
        if name in self.types:
            raise ValueError(f"the graph has a value {name!r} already")
        return name

    def _link(self, node: Node, types: Sequence[TensorType]) -> None:
        if node.name in self.nodes:
            raise ValueError(f"the graph has a node {node.name!r} already")
        for i in node.reads:
            if i not in self.types:
                raise ValueError(f"node {node.name!r} reads {i!r}, which nothing makes before it")
        for value, type_ in zip(node.outputs, types, strict=True):
            self._claim(value)
            self.types[value] = type_
            self._producer[value] = node.name
        self.nodes[node.name] = node
        for i in node.reads:
            self._consumers.setdefault(i, {})[node.name] = None

    # ---- questions --------------------------------------------------------------------------------------------------
    def producer(self, value: str) -> Node | None:
        name = self._producer.get(value)
        return self.nodes[name] if name is not None else None

    def consumers(self, value: str) -> list[Node]:
        return [self.nodes[n] for n in self._consumers.get(value, ())]

    def is_output(self, value: str) -> bool:
        return value in self.outputs.values()

    def is_constant(self, value: str | None) -> bool:
        return value in self.constants

    def sole_consumer(self, value: str) -> Node | None:
        """The one node that reads the value; None where there are several, or it is a graph output."""
        nodes = self._consumers.get(value, {})
        return self.nodes[next(iter(nodes))] if len(nodes) == 1 and not self.is_output(value) else None

    # ---- edits ------------------------------------------------------------------------------------------------------
    def redirect(self, old: str, new: str) -> None:
        """Every reader of `old`, and every graph output that shows it, takes `new`."""
        for name in list(self._consumers.get(old, ())):
            node = self.nodes[name]
            inputs = tuple(new if i == old else i for i in node.inputs)
            self.nodes[name] = Node(node.name, node.op, inputs, node.outputs, node.attrs, node.origin)
            self._consumers.setdefault(new, {})[name] = None
        self._consumers.pop(old, None)
        for public, value in self.outputs.items():
            if value == old:
                self.outputs[public] = new

    def rename(self, old: str, new: str) -> None:
        """Give the output of a node, or a constant, another name; ValueError where the new name is taken."""
        self._claim(new)
        self.redirect(old, new)
        self.types[new] = self.types.pop(old)
        if old in self.constants:
            self.constants[new] = self.constants.pop(old)
            return
        node = self.nodes[self._producer.pop(old)]
        outputs = tuple(new if o == old else o for o in node.outputs)
        self.nodes[node.name] = Node(node.name, node.op, node.inputs, outputs, node.attrs, node.origin)
        self._producer[new] = node.name

    def remove(self, node: Node) -> None:
        """Remove a node whose outputs nobody reads; ValueError otherwise."""
        for value in node.outputs:
            if self._consumers.get(value) or self.is_output(value):
                raise ValueError(f"{value!r} of node {node.name!r} is still read")
        del self.nodes[node.name]
        for i in node.reads:
            self._consumers.get(i, {}).pop(node.name, None)
        for value in node.outputs:
            del self.types[value], self._producer[value]
            self._consumers.pop(value, None)

    def remove_dead(self) -> list[Node]:
        """Remove nodes and constants that no output needs; returns the nodes removed."""
        removed = []
        for node in reversed(list(self.nodes.values())):
            if not any(self._consumers.get(v) or self.is_output(v) for v in node.outputs):
                self.remove(node)
                removed.append(node)
        for name in [c for c in self.constants if not self._consumers.get(c) and not self.is_output(c)]:
            del self.constants[name], self.types[name]
        return removed

    def sort(self) -> None:
        """Put the nodes into a topological order (stable: earlier nodes stay earlier where they can)."""
        order, state = {}, dict.fromkeys(self.nodes, 0)
        for root in self.nodes:
            stack = [root]
            while stack:
                name = stack[-1]
                if state[name] == 2:
                    stack.pop()
                    continue
                producers = (self._producer.get(i) for i in self.nodes[name].reads)
                needs = [p for p in producers if p is not None and state[p] != 2]
                if not needs:
                    state[name] = 2
                    order[name] = self.nodes[name]
                    stack.pop()
                elif state[name] == 1 and any(state[p] == 1 for p in needs):
                    raise ValueError(f"node {name!r} is part of a cycle")
                else:
                    state[name] = 1
                    stack += reversed(needs)
        self.nodes = order

    def copy(self) -> Graph:
        out = Graph(self.name)
        out.nodes, out.types, out.constants = dict(self.nodes), dict(self.types), dict(self.constants)
        out.inputs, out.outputs, out.defaults = list(self.inputs), dict(self.outputs), dict(self.defaults)
        out.placements, out.structures = dict(self.placements), self.structures
        out._producer = dict(self._producer)
        out._consumers = {v: dict(c) for v, c in self._consumers.items()}
        out._counter = self._counter
        return out

    def restore(self, saved: Graph) -> None:
        """Take over the state of a copy made earlier: how a failing rewrite is undone."""
        self.__dict__.update(saved.copy().__dict__)

    # ---- symbolic dimensions ----------------------------------------------------------------------------------------
    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the dimensions that are not bound to a number, in the order of the inputs."""
        from opfuse.ir.dims import symbols

        return tuple(dict.fromkeys(s for i in self.inputs for d in self.types[i].shape for s in sorted(symbols(d))))

    def bind(self, values: Bindings) -> Graph:
        """A copy with symbols replaced by numbers in every type and attribute; types are inferred anew."""
        out = Graph(self.name)
        for i in self.inputs:
            out.add_input(i, self.types[i].bind(values), self.defaults.get(i))
        for name, array in self.constants.items():
            out.add_constant(array, name)
        for node in self.nodes.values():
            attrs = {k: bind_attribute(v, values) for k, v in node.attrs.items()}
            out.insert(Node(node.name, node.op, node.inputs, node.outputs, attrs, node.origin))
        out.outputs, out._counter = dict(self.outputs), self._counter
        return out


def bind_attribute(value: Any, values: Bindings) -> Any:
    if isinstance(value, tuple):
        return tuple(bind_attribute(v, values) for v in value)
    return value if isinstance(value, (str, float, bool, type(None), DType)) else bind(value, values)


def user_name(node: Node) -> str:
    """The first of the user's own names behind a node."""
    return (node.origin or (node.name,))[0]


def user_names(nodes: Iterable[Node]) -> tuple[str, ...]:
    """The user's own names behind some nodes, each once, in order."""
    return tuple(dict.fromkeys(o for n in nodes for o in (n.origin or (n.name,))))
