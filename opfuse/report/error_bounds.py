"""How far a kernel's answer may lie from the float64 one: a bound for every element, by running error analysis.

    values, bounds = analyse(region.subgraph(graph), feeds)    # {value: float64 array}, {value: Bounded}

The inputs are taken as exact. Every operation adds its own rounding and passes on the errors of its operands (Higham,
Accuracy and Stability of Numerical Algorithms, 2nd ed., sections 3.1-3.3):

    contraction   c(d) eps sum|a||b|        and  sum(e_a |b| + |a| e_b)
    sum           c(d) eps sum|x|           and  sum(e_x)
    function      ulps(f) eps |y|           and  the largest change of f over the operands' intervals

d is how many roundings a term meets at most in the order in which kernels add (`tile.summation`): the number of terms,
or the length of a block where there are more. c(d) is 2 sqrt(d), how rounding errors behave that have nothing to do
with each other (section 2.8). Sums of equal terms round the same way again and again: inputs with a structure of their
own are judged with the worst case, d / 2.

Operators are read through their structures (loops, index maps, scalar formula), composites through their expansions,
so that a new operator needs nothing here. An infinite bound says that rounding alone may change the element as far as
it likes (a comparison near a tie, a sum that may overflow): such an element is not judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from opfuse.ir.evaluate import evaluate, run_node
from opfuse.ir.graph import Graph, Node
from opfuse.ir.index import AxisTerm, Gathered, Index, Quotient, Remainder
from opfuse.ir.ops import Kind, call_of, get, structure_of
from opfuse.ir.scalar import Const, Operand, Position, Scalar
from opfuse.ir.structure import Access, Structure
from opfuse.ir.types import DType
from opfuse.report.scalar_errors import Bounded, accumulator, apply_with_errors, overflow_limit, unit
from opfuse.tile.summation import depth_of_dot, depth_of_sum

Growth = Callable[[int], float]  # c(d)
_CONTRACTIONS = ("matmul", "conv", "conv_transpose")


def unrelated(depth: int) -> float:
    return 2.0 * math.sqrt(depth)


def worst_case(depth: int) -> float:
    return max(unrelated(depth), depth / 2)


def analyse(
    graph: Graph, feeds: Mapping[str, np.ndarray], growth: Growth = unrelated
) -> tuple[dict[str, np.ndarray], dict[str, Bounded]]:
    """Float64 values of everything in `graph` (shapes are numbers), and the bounds on what native code may answer.

    `growth` is c(d): how rounding grows with the roundings of a term, `unrelated` or `worst_case`.
    """
    wanted = [v for n in graph.nodes.values() for v in n.outputs]
    values = dict(evaluate(graph, feeds, "f64", wanted))
    for name in graph.inputs:
        values[name] = np.asarray(feeds[name] if name in feeds else graph.defaults[name])
    values |= graph.constants
    state: dict[str, Bounded] = {v: Bounded(_wide(a), 0.0) for v, a in values.items() if v not in set(wanted)}
    for node in graph.nodes.values():
        _analyse_node(graph, node, values, state, growth)
    return values, {v: state[v] for v in values}


def _wide(array: np.ndarray) -> np.ndarray:
    kind = DType.of(array.dtype)
    return array.astype(np.float64) if kind.is_float else array


def _analyse_node(
    graph: Graph, node: Node, values: Mapping[str, np.ndarray], state: dict[str, Bounded], growth: Growth
) -> None:
    """Fills in `state` for the node's outputs."""
    operator, call = get(node.op), call_of(graph, node)
    operands = [state[i] if i is not None else None for i in node.inputs]
    errors: list[np.ndarray | float]
    if node.op in _CONTRACTIONS:
        errors = [_contraction(graph, node, operands, _wide(values[node.output]), growth)]
    elif operator.kind is Kind.COMPOSITE and operator.expand is not None:
        errors = _composite(graph, node, operands, growth)
    elif (structure := structure_of(graph, node)) is not None:
        errors = [_structured(structure, operands, call.output.dtype, growth)]
    else:
        errors = [_unstructured(operands, _wide(values[v]), graph.types[v].dtype, growth) for v in node.outputs]
    for value, error in zip(node.outputs, errors, strict=True):
        state[value] = _settled(_wide(values[value]), error, graph.types[value].dtype, operands)


def _settled(value: np.ndarray, error: np.ndarray | float, dtype: DType, operands: list[Bounded | None]) -> Bounded:
    """The error with no NaN in it: 0 where exact operands make a NaN or infinity, infinite where anything may come."""
    if isinstance(error, float) and error == 0.0 and not dtype.is_float:
        return Bounded(value, 0.0)
    error = np.broadcast_to(np.asarray(error, np.float64), value.shape)
    exact = all(o is None or o.exact for o in operands)
    with np.errstate(all="ignore"):
        error = np.where(np.isnan(error), 0.0 if exact else np.inf, error)
        if dtype.is_float:
            error = np.where(np.isfinite(value) & (np.abs(value) > overflow_limit(dtype)), np.inf, error)
            if exact:
                error = np.where(np.isfinite(value), error, 0.0)
    return Bounded(value, error if error.any() else 0.0)


# ---- contractions ----------------------------------------------------------------------------------------------------
def _contraction(
    graph: Graph, node: Node, operands: list[Bounded | None], value: np.ndarray, growth: Growth
) -> np.ndarray:
    """|a||b| is summed by the operator's own oracle, on absolute values; float32 has digits enough for a bound."""
    oracle, dtype = get(node.op).oracle, graph.types[node.output].dtype
    a, b = operands[0], operands[1]
    assert a is not None and b is not None
    narrow = np.float64 if dtype is DType.F64 else np.float32

    def summed(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        out = oracle(node.attrs, [x.astype(narrow), y.astype(narrow)])
        return np.asarray(out[0] if isinstance(out, tuple) else out, np.float64)

    with np.errstate(all="ignore"):
        total = summed(np.abs(a.value), np.abs(b.value))
        bias = operands[2] if len(operands) > 2 else None
        added: np.ndarray | float = 0.0
        rounded = np.abs(value)  # to the type: the sum, and where there is a bias the products' sum before it too
        if bias is not None:
            shape = [1] * value.ndim
            shape[-1 if node.attrs.get("layout") == "NHWC" else 1] = bias.value.size
            total = total + np.abs(bias.value).reshape(shape)
            rounded = 2 * rounded + np.abs(bias.value).reshape(shape)
            added = np.asarray(bias.full()).reshape(shape) if not bias.exact else 0.0
        carried = accumulator(dtype)
        error = growth(depth_of_dot(_terms(graph, node))) * 2 * unit(carried) * total + added
        error = error + (2 * unit(dtype) * rounded if carried is not dtype else 0.0)
        if not a.exact:
            error = error + summed(a.full(), np.abs(b.value) + b.full())
        if not b.exact:
            error = error + summed(np.abs(a.value), b.full())
        return np.where(total > overflow_limit(carried), np.inf, error + _smallest(dtype))


def _terms(graph: Graph, node: Node) -> int:
    """K: how many products are summed for an element."""
    assert node.inputs[1] is not None and node.inputs[0] is not None
    weights = graph.types[node.inputs[1]].static_shape
    if node.op == "matmul":
        return max(1, graph.types[node.inputs[0]].static_shape[-1])
    per_output = weights[:-1] if node.attrs.get("layout") == "NHWC" else weights[1:]
    if node.op == "conv_transpose":
        per_output = (weights[0] // node.attrs.get("group", 1), *weights[2:])
    return max(1, int(np.prod(per_output)))


def _smallest(dtype: DType) -> float:
    """Below this a result may be flushed to zero or lose digits."""
    return 2.0**-126 if dtype in (DType.F32, DType.BF16) else 2.0**-24 if dtype is DType.F16 else 0.0


# ---- composites and operators without loops --------------------------------------------------------------------------
def _composite(
    graph: Graph, node: Node, operands: list[Bounded | None], growth: Growth
) -> list[np.ndarray | float]:
    """The same analysis on what the composite expands into, starting from the operands' errors."""
    inner = Graph("composite")
    names: list[str | None] = []
    for number, (name, operand) in enumerate(zip(node.inputs, operands, strict=True)):
        names.append(None if operand is None or name is None else inner.add_input(f"in{number}", graph.types[name]))
    expand = get(node.op).expand
    assert expand is not None
    made = expand(inner, call_of(graph, node), tuple(names))
    inner.set_outputs({f"out{k}": v for k, v in enumerate(made)})
    state = {n: o for n, o in zip(names, operands, strict=True) if n is not None and o is not None}
    state |= {c: Bounded(_wide(a), 0.0) for c, a in inner.constants.items()}
    values = {n: o.value for n, o in state.items()}
    for part in inner.nodes.values():
        values |= zip(part.outputs, run_node(part, values, {}, wide=True), strict=True)
        _analyse_node(inner, part, values, state, growth)
    return [state[v].error for v in made]


def _unstructured(
    operands: list[Bounded | None], value: np.ndarray, dtype: DType, growth: Growth
) -> np.ndarray | float:
    """Scans, ArgMax and the like: a few roundings where the operands are exact, not judged otherwise."""
    if any(o is not None and not o.exact for o in operands):
        return float("inf")
    if not dtype.is_float:
        return 0.0
    longest = max((max(o.value.shape, default=1) for o in operands if o is not None), default=1)
    size = max((float(np.max(np.abs(o.value), initial=0.0, where=np.isfinite(o.value))) for o in operands
                if o is not None and o.value.dtype.kind == "f"), default=0.0)  # fmt: skip
    return np.asarray(np.abs(value) * 8 * unit(dtype) + growth(longest) * 2 * unit(dtype) * longest * size)


# ---- structured operators --------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Space:
    """The iteration space as open mesh: the position along an axis as an array that broadcasts over all axes."""

    names: tuple[str, ...]
    extents: tuple[int, ...]

    def position(self, name: str) -> np.ndarray:
        k = self.names.index(name)
        return np.arange(self.extents[k]).reshape([-1 if i == k else 1 for i in range(len(self.names))])


def _structured(
    structure: Structure, operands: list[Bounded | None], dtype: DType, growth: Growth
) -> np.ndarray | float:
    axes = (*structure.axes, *structure.reduce_axes)
    space = _Space(tuple(a.name for a in axes), tuple(int(str(a.extent)) for a in axes))
    reads: list[Bounded | None] = [None] * len(structure.reads)

    def read(number: int) -> Bounded:
        found = reads[number]
        if found is None:
            access = structure.reads[number]
            operand = operands[access.operand]
            assert operand is not None
            found = reads[number] = _read(access, operand, space, read)
        return found

    with np.errstate(all="ignore"):
        result = _expression(structure.body, read, space)
        if not structure.reduce_axes:
            return _out(result, structure, space)
        reduced = _reduce(structure, result, space, dtype, growth)
        if structure.finish is not None:
            outer = len(structure.axes)
            outside = _Space(space.names[:outer], space.extents[:outer])
            return _out(_expression(structure.finish, lambda _: reduced, outside), structure, space)
        return reduced.error


def _out(result: Bounded, structure: Structure, space: _Space) -> np.ndarray | float:
    if result.exact:
        return 0.0
    return np.broadcast_to(result.full(), space.extents[: len(structure.axes)])


def _expression(x: Scalar, read: object, space: _Space) -> Bounded:
    assert callable(read)
    done: dict[int, Bounded] = {}

    def walk(node: Scalar) -> Bounded:
        found = done.get(id(node))
        if found is None:
            found = done[id(node)] = one(node)
        return found

    def one(node: Scalar) -> Bounded:
        match node:
            case Const(value, kind):
                return Bounded(np.asarray(value, np.float64 if kind.is_float else kind.numpy), 0.0)
            case Operand(index, _):
                found = read(index)
                assert isinstance(found, Bounded)
                return found
            case Position(axis, _):
                return Bounded(space.position(axis), 0.0)
            case _:
                return apply_with_errors(node, [walk(a) for a in getattr(node, "args", ())])

    return walk(x)


def _reduce(structure: Structure, terms: Bounded, space: _Space, dtype: DType, growth: Growth) -> Bounded:
    outer = len(structure.axes)
    over = tuple(range(outer, len(space.names)))
    value = np.broadcast_to(terms.value, space.extents)
    error = np.broadcast_to(np.asarray(terms.error, np.float64), space.extents)
    count = max(1, int(np.prod(space.extents[outer:])))
    carried = accumulator(dtype)
    rounding = 2 * unit(carried) * growth(depth_of_sum(count)) if dtype.is_float and count > 1 else 0.0
    match structure.combine:
        case "sum":
            total = np.sum(np.abs(value), axis=over, dtype=np.float64)
            out = np.sum(error, axis=over) + rounding * total
            if carried is not dtype:
                out = out + 2 * unit(dtype) * total
            return Bounded(np.sum(value, axis=over), np.where(total > overflow_limit(carried), np.inf, out))
        case "prod":
            largest = np.prod(np.abs(value) + error, axis=over, dtype=np.float64)
            exact = np.abs(np.prod(value, axis=over, dtype=np.float64))
            return Bounded(np.prod(value, axis=over), largest - exact + count * 2 * unit(dtype) * largest)
        case "max" | "or":
            return Bounded(np.max(value, axis=over, initial=_lowest(value)), np.max(error, axis=over, initial=0.0))
        case _:
            return Bounded(np.min(value, axis=over, initial=_highest(value)), np.max(error, axis=over, initial=0.0))


def _lowest(value: np.ndarray) -> float | int | bool:
    return False if value.dtype.kind == "b" else -np.inf if value.dtype.kind == "f" else int(np.iinfo(value.dtype).min)


def _highest(value: np.ndarray) -> float | int | bool:
    return True if value.dtype.kind == "b" else np.inf if value.dtype.kind == "f" else int(np.iinfo(value.dtype).max)


# ---- reads through index maps ----------------------------------------------------------------------------------------
def _read(access: Access, operand: Bounded, space: _Space, read: object) -> Bounded:
    """The operand at every point of the space, as arrays that broadcast over it."""
    assert callable(read)
    plain = _as_view(access, operand.value.shape, space)
    if plain is not None:
        order, shape = plain
        value = operand.value.transpose(order).reshape(shape)
        return Bounded(value, 0.0 if operand.exact else operand.full().transpose(order).reshape(shape))
    index, inside = [], np.asarray(True)
    for dimension, expression in enumerate(access.index):
        extent = operand.value.shape[dimension]
        at = _positions(expression, space, read)
        if any(isinstance(t, Gathered) for t, _ in expression.terms):
            at = np.where(at < 0, at + extent, at)
        if access.pad is not None:
            inside = inside & (at >= 0) & (at < extent)
            at = np.clip(at, 0, max(0, extent - 1))
        index.append(at)
    point = tuple(index)
    empty = operand.value.size == 0
    value = np.zeros(inside.shape, operand.value.dtype) if empty else operand.value[point]
    error: np.ndarray | float = 0.0 if operand.exact or empty else operand.full()[point]
    if access.pad is not None:
        value = np.where(inside, value, access.pad.value)
        error = 0.0 if operand.exact else np.where(inside, error, 0.0)
    return Bounded(value, error)


def _as_view(access: Access, shape: tuple[int, ...], space: _Space) -> tuple[list[int], list[int]] | None:
    """(order of the dimensions, shape over the space) where the read is a broadcast transposition; else None."""
    if access.pad is not None:
        return None
    dimension_of: dict[str, int] = {}
    unit_dimensions = []
    for dimension, expression in enumerate(access.index):
        match expression:
            case Index(((AxisTerm(name), 1),), 0) if name not in dimension_of:
                if shape[dimension] != space.extents[space.names.index(name)]:
                    return None
                dimension_of[name] = dimension
            case Index((), 0) if shape[dimension] == 1:
                unit_dimensions.append(dimension)
            case _:
                return None
    order = [dimension_of[n] for n in space.names if n in dimension_of] + unit_dimensions
    return order, [extent if n in dimension_of else 1 for n, extent in zip(space.names, space.extents, strict=True)]


def _positions(expression: Index, space: _Space, read: object) -> np.ndarray:
    total = np.asarray(int(str(expression.const)))
    for term, factor in expression.terms:
        total = total + _term(term, space, read) * int(str(factor))
    return total


def _term(term: object, space: _Space, read: object) -> np.ndarray:
    assert callable(read)
    match term:
        case AxisTerm(name):
            return space.position(name)
        case Quotient(numerator, divisor):
            return np.asarray(_positions(numerator, space, read) // int(str(divisor)))
        case Remainder(numerator, divisor):
            return np.asarray(_positions(numerator, space, read) % int(str(divisor)))
        case Gathered(source):
            found = read(source)
            assert isinstance(found, Bounded)
            return np.asarray(found.value).astype(np.int64)
        case _:
            raise TypeError(f"no such index term: {term!r}")
