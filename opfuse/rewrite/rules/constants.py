"""What is known before the model runs: constant operands, twins, and constants that repeat themselves.

    add(2, 3) -> 5        relu(x), relu(x) -> relu(x) once        a constant of equal rows -> expand(one row)

Folding goes through the operators' oracles, in the operators' own types. A random operator is never folded or merged,
and a constant does not grow into one that is larger than what it was made of, unless it is small.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from opfuse.decision import Refusal
from opfuse.ir.dims import SymbolicDim
from opfuse.ir.graph import Graph, Node
from opfuse.ir.ops import get
from opfuse.ir.types import DType, TensorType
from opfuse.rewrite.draft import Draft
from opfuse.rewrite.pattern import COMMUTATIVE, Match, any_node
from opfuse.rewrite.rule import Case, Rule, declared, rule

SMALL = 1024  # elements: below it a constant is stored as it is, whatever it was made of
LARGEST_GROWTH = 1 << 20  # bytes that a folded constant may be larger than its operands


def fold(node: Node, arrays: list[np.ndarray | None], result: TensorType) -> np.ndarray | Refusal:
    """The value of a node by its oracle; a Refusal where the oracle gives another type than the table."""
    with np.errstate(all="ignore"):
        out = get(node.op).oracle(node.attrs, arrays)
    array = np.asarray(out[0] if isinstance(out, tuple) else out)
    if array.shape != result.shape or array.dtype != result.dtype.numpy:
        return Refusal("oracle", f"the oracle gives {array.dtype}{list(array.shape)} where the table says {result}")
    return array


def source(graph: Graph, value: str) -> np.ndarray | None:
    """The array of a constant, or that of one which is only expanded."""
    maker = graph.producer(value)
    return graph.constants.get(str(maker.inputs[0]) if maker is not None and maker.op == "expand" else value)


def _expanded(graph: Graph, value: str | None) -> np.ndarray | None:
    found = None if value is None else source(graph, value)
    return None if found is None else np.broadcast_to(found, graph.types[str(value)].static_shape)


def _has_symbols(value: Any) -> bool:
    return isinstance(value, SymbolicDim) or (isinstance(value, tuple) and any(map(_has_symbols, value)))


def _foldable(m: Match) -> Refusal | None:
    node, operator = m.root, get(m.root.op)
    sources = {i: source(m.graph, i) for i in node.reads}
    variable = [i for i, constant in sources.items() if constant is None]
    if variable:
        return Refusal("not-constant", f"{variable[0]} is known only when the model runs", {"value": variable[0]})
    if operator.random:
        return Refusal("random", f"{node.op} is random")
    if not m.result.static or any(map(_has_symbols, node.attrs.values())):
        return Refusal("symbolic", f"{node.name} depends on dimensions that are not bound yet")
    size = int(np.prod(m.result.static_shape)) * m.result.dtype.bytes
    given = sum(constant.nbytes for constant in sources.values() if constant is not None)
    elements = size // m.result.dtype.bytes
    if node.op in ("expand", "fill") and elements > SMALL:
        return Refusal("repeats", f"{elements} elements that repeat themselves are not stored", {"elements": elements})
    wide = max((e for i in sources if isinstance(e := m.graph.types[i].elements, int)), default=0)
    if wide * m.result.dtype.bytes > given + LARGEST_GROWTH:
        return Refusal("wide", f"an operand of {wide} elements that repeat themselves", {"elements": wide})
    if size > given + LARGEST_GROWTH:
        return Refusal("grows", f"{size} bytes out of {given}", {"bytes": size, "given": given})
    return None


def _constant_pair(g: Graph) -> list[str]:
    a, b = g.add_constant(np.arange(3, dtype=np.float32)), g.add_constant(np.ones((2, 1), np.float32))
    return [g.emit("add", [g.emit("mul", [a, b]), g.add_input("x", TensorType(DType.F32, (2, 3)))])]


def _large_expand(g: Graph) -> list[str]:
    one = g.add_constant(np.ones((1, 3), np.float32))
    return [
        g.emit("add", [g.emit("expand", [one], {"shape": (SMALL, 3)}), g.add_input("x", TensorType(DType.F32, (3,)))])
    ]


def _repeating(g: Graph) -> list[str]:
    table = g.add_constant(np.arange(8, dtype=np.float32).reshape(2, 4))
    rows = g.emit("gather", [table, g.add_constant(np.zeros((1, 600), np.int64))], {"axis": 0})
    return [g.emit("add", [rows, g.add_input("x", TensorType(DType.F32, (1, 600, 4)))])]


def _causal_mask(g: Graph) -> list[str]:
    ones = g.emit("expand", [g.add_constant(np.ones((), np.float32))], {"shape": (40, 40)})
    mask = g.emit("trilu", [ones], {"upper": False})
    return [g.emit("mul", [mask, g.add_input("x", TensorType(DType.F32, (2, 40, 40)))])]


@rule("exact", any_node(), when=(_foldable,), cases=(
    Case(build=_constant_pair), Case(build=_repeating), Case(build=_causal_mask),
    Case(build=_large_expand, fires=False),
))  # fmt: skip
def fold_constants(m: Match, to: Draft) -> str | Refusal:
    """f(constants) -> constant; one that repeats itself along an axis -> expand(constant)"""
    array = fold(m.root, [_expanded(m.graph, i) for i in m.root.inputs], m.result)
    if isinstance(array, Refusal):
        return array
    if array.size <= SMALL:
        return to.constant(array)
    smaller = without_repeats(array)
    name = to.constant(smaller)
    return name if smaller.shape == array.shape else to.emit("expand", name, shape=array.shape)


def without_repeats(array: np.ndarray) -> np.ndarray:
    """The array with extent 1 along every axis on which all slices have the same bits."""
    bits = array.view(f"u{array.dtype.itemsize}") if array.dtype != np.bool_ and array.ndim else array
    for axis in range(array.ndim):
        first = np.take(bits, [0], axis) if array.shape[axis] else bits
        if array.shape[axis] > 1 and bool(np.all(bits == first)):
            bits, array = first, np.take(array, [0], axis)
    return array


# ---- fill ------------------------------------------------------------------------------------------------------------
@rule("exact", any_node("fill", "fill"), cases=(
    Case(build=lambda g: [_filled(g)]),
))  # fmt: skip
def fill_to_expand(m: Match, to: Draft) -> str:
    """fill(shape, value) -> expand(value)"""
    attrs = m.root.attrs
    return to.emit("expand", to.scalar(attrs["value"], m.result.dtype), shape=m.result.shape)


def _filled(g: Graph) -> str:
    filled = g.emit("fill", [], {"shape": (SMALL, 2), "value": 3.0, "dtype": DType.F32})
    return g.emit("mul", [filled, g.add_input("x", TensorType(DType.F32, (SMALL, 2)))])


# ---- twins -----------------------------------------------------------------------------------------------------------
def _twins(m: Match, other: Node) -> bool:
    node = m.root
    if other.op != node.op or len(other.inputs) != len(node.inputs) or not _same(other.attrs, node.attrs):
        return False
    pairs = [(node.inputs, other.inputs)]
    if node.op in COMMUTATIVE:
        pairs.append((node.inputs[::-1], other.inputs))
    return any(all(_same_operand(m.graph, a, b) for a, b in zip(p, q, strict=True)) for p, q in pairs)


def _same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return a == b and all(type(a[k]) is type(b[k]) for k in a)


def _same_operand(graph: Graph, a: str | None, b: str | None) -> bool:
    if a == b:
        return True
    x, y = graph.constants.get(a or ""), graph.constants.get(b or "")
    if x is None or y is None or x.dtype != y.dtype or x.shape != y.shape or x.size > SMALL:
        return False
    return x.tobytes() == y.tobytes()


def _two_relus(g: Graph) -> list[str]:
    x = g.add_input("x", TensorType(DType.F32, (2, 3)))
    return [g.emit("relu", [x]), g.emit("relu", [x])]


def _two_sums(g: Graph) -> list[str]:
    x = g.add_input("x", TensorType(DType.F32, (2, 3)))
    return [g.emit("add", [x, g.scalar(1, DType.F32)]), g.emit("exp", [g.emit("add", [g.scalar(1, DType.F32), x])])]


def _two_slices(g: Graph) -> list[str]:
    x = g.add_input("x", TensorType(DType.F32, (4, 3)))
    return [g.emit("slice", [x], {"starts": (s, 0), "stops": (s + 2, 3), "steps": (1, 1)}) for s in (0, 1)]


@rule("exact", any_node(), cases=(
    Case(build=_two_relus), Case(build=_two_sums), Case(build=_two_slices, fires=False),
))  # fmt: skip
def merge_twins(m: Match, to: Draft) -> str | Refusal:
    """f(x), f(x) -> f(x) once"""
    reads = [i for i in m.root.reads if not m.graph.is_constant(i)]
    if not reads or get(m.root.op).random or len(m.root.outputs) != 1:
        return Refusal("alone", "no operand that another node could share, or random")
    readers = min((m.graph.consumers(i) for i in reads), key=len)
    twin = next(n for n in readers if n.name == m.root.name or _twins(m, n))
    return twin.output if twin.name != m.root.name else Refusal("alone", "no other node computes the same")


RULES: tuple[Rule, ...] = declared(globals())
