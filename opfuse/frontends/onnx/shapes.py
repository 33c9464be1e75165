"""Symbolic shape arithmetic: what is known of the numbers inside small integer tensors.

A model computes shapes with the same operators as data: Shape, Gather, Mul, Concat, Reshape. Beside the graph, this
keeps for every such value its *contents*: an array of Dims (and of truth values, for comparisons) of the value's shape.

    x: f32[N, 12]   s = dims(N, 12)   g = gather(s, 0)   m = mul(g, 2)      contents of m: 2*N

An operator that needs numbers (Reshape, Slice, Range, ...) takes them from here; where a value with known contents also
flows into real data, `materialise` puts one `dims` in the place of the whole computation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from opfuse.frontends.onnx.ratios import Ratio, ratios_of
from opfuse.ir import dims
from opfuse.ir.dims import Dim
from opfuse.ir.graph import Graph, Node
from opfuse.ir.ops import get
from opfuse.ir.types import DType

LARGEST = 4096  # elements: tensors of shape arithmetic are short; longer integer tensors are data
LARGEST_ARRAY = 1 << 20  # elements of a value that is worked out from constants because an operator asks for it
LARGEST_FLOAT = 16  # float constants longer than a shape are weights
_FAR = 10**8  # exporters write such numbers (2**31 - 1, 10**9) for "to the end"; no axis is that long
_TRACKED = (DType.I64, DType.I32, DType.BOOL, DType.F32, DType.F64)


class Unknown(Exception):
    """The numbers depend on data, or on a comparison of symbols that cannot be decided."""


# ---- dimensions ----------------------------------------------------------------------------------------------------
def bounds(d: Dim, least: int = 0) -> tuple[int | None, int | None]:
    """The least and greatest value of d, given that every symbol is at least `least` (0 or 1); None for no bound."""
    if isinstance(d, int):
        return d, d
    low: int | None = 0
    high: int | None = 0
    for monomial, c in d.terms:
        a, b = _monomial_bounds(monomial, least)
        if c < 0:
            a, b = b, a
        low = low + c * a if low is not None and a is not None else None
        high = high + c * b if high is not None and b is not None else None
    return low, high


def _monomial_bounds(monomial: dims.Monomial, least: int) -> tuple[int | None, int | None]:
    low, high = 1, 1 if not monomial else None
    for atom in monomial:
        smallest = least if isinstance(atom, dims.Symbol) else _operation_least(atom, least)
        if smallest is None or smallest < 0:
            return None, None
        low *= smallest
    return low, high


def _operation_least(operation: dims.Operation, least: int) -> int | None:
    left, right = bounds(operation.left, least)[0], bounds(operation.right, least)
    if operation.op == "min":
        return min(left, right[0]) if left is not None and right[0] is not None else None
    if operation.op == "max":
        return max((b for b in (left, right[0]) if b is not None), default=None)
    if right[0] is None or right[0] <= 0 or left is None or left < 0:
        return None
    return left // right[1] if operation.op == "floordiv" and right[1] is not None else 0


def minimum(a: Dim, b: Dim, least: int = 0) -> Dim:
    low, high = bounds(a - b, least)
    return a if high is not None and high <= 0 else b if low is not None and low >= 0 else dims.minimum(a, b)


def maximum(a: Dim, b: Dim, least: int = 0) -> Dim:
    low, high = bounds(a - b, least)
    return b if high is not None and high <= 0 else a if low is not None and low >= 0 else dims.maximum(a, b)


def is_negative(d: Dim) -> bool:
    """Known to be below zero for every value of the symbols."""
    high = bounds(d)[1]
    return high is not None and high < 0


def truncated_quotient(a: Dim, b: Dim) -> Dim:
    """a / b rounded towards zero, as integer division of ONNX."""
    if b == 0:
        raise Unknown("division by zero")
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    floor = dims.floordiv(a, b)
    low_a, low_b = bounds(a)[0], bounds(b)[0]
    if floor * b == a or (low_a is not None and low_a >= 0 and low_b is not None and low_b >= 0):
        return floor
    raise Unknown(f"the signs of {a} and {b} are not known")


def slice_bounds(start: Dim, stop: Dim, step: int, extent: Dim) -> tuple[Dim, Dim]:
    """Start and stop with negative numbers resolved and, where that can be decided, clamped to the extent.

    Against a symbolic extent (taken to be at least 1), a number of the model that is a start or counts from the end is
    taken to lie inside; as a stop it is clamped (`min(100, d)`). A symbolic bound is taken to lie inside. The rule of
    the IR's `slice` refuses what does not when the symbols are bound. For a negative step the stop may be -1: before
    the first element.
    """
    low, high = (0, extent) if step > 0 else (-1, extent - 1)
    from_end = is_negative(stop)
    start = _from_end(start, extent) if is_negative(start) else start
    stop = _from_end(stop, extent) if from_end else stop
    return _clamp(start, 0, high, exact=False), _clamp(stop, low, high, exact=not from_end)


def _from_end(d: Dim, extent: Dim) -> Dim:
    return d if isinstance(d, int) and d <= -_FAR else d + extent


def _clamp(d: Dim, low: int, high: Dim, exact: bool) -> Dim:
    above = bounds(d - high, least=1)[0]
    if isinstance(d, int) and d >= _FAR or above is not None and above >= 0:
        return high
    below = bounds(d - low, least=1)[1]
    if below is not None and below < 0:
        return low
    return minimum(d, high, least=1) if exact and isinstance(d, int) else d


def reshape_target(codes: Sequence[Dim], shape: Sequence[Dim], allowzero: bool) -> tuple[Dim, ...]:
    """The shape that Reshape means: 0 copies a dimension (unless allowzero), -1 takes what is left. ValueError."""
    out: list[Dim] = []
    for k, d in enumerate(codes):
        if d == 0 and not allowzero:
            if k >= len(shape):
                raise ValueError(f"dimension {k} is copied from a tensor of rank {len(shape)}")
            d = shape[k]
        elif isinstance(d, int) and d < -1:
            raise ValueError(f"{d} is no dimension")
        out.append(d)
    free = [k for k, d in enumerate(out) if d == -1]
    if len(free) > 1:
        raise ValueError(f"several dimensions of {list(codes)} are -1")
    if free:
        out[free[0]] = _rest(list(shape), [d for k, d in enumerate(out) if k != free[0]])
    return tuple(out)


def _rest(shape: list[Dim], others: list[Dim]) -> Dim:
    """The quotient of two products, equal factors taken out first so that sums stay simple."""
    for d in list(others):
        if d in shape:
            shape.remove(d)
            others.remove(d)
    total, known = dims.product(shape), dims.product(others)
    if known == 0:
        raise ValueError("-1 cannot be resolved beside a dimension of size 0")
    if isinstance(total, int) and isinstance(known, int) and total % known:
        raise ValueError(f"{total} elements do not divide by {known}")
    return dims.floordiv(total, known)


# ---- contents ------------------------------------------------------------------------------------------------------
class Contents:
    """What is known of the numbers in the graph's values."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._known: dict[str, np.ndarray] = {}

    def of(self, value: str) -> np.ndarray | None:
        """An object array of Dims or truth values; None where the numbers are not known."""
        if (found := self._known.get(value)) is not None:
            return found
        constant = self.graph.constants.get(value)
        if constant is None or constant.size > LARGEST or self.graph.types[value].dtype not in _TRACKED:
            return None
        if constant.dtype.kind != "f":
            contents: np.ndarray | None = _objects(constant)
        else:
            contents = ratios_of(constant) if constant.size <= LARGEST_FLOAT else None
        if contents is not None:
            self._known[value] = contents
        return contents

    def rename(self, old: str, new: str) -> None:
        if old in self._known:
            self._known[new] = self._known.pop(old)

    def fix_defaults(self, value: str) -> None:
        """Make constants of the overridable initialisers that a value follows from, where it follows from nothing else.

        A shape may depend on such numbers; feeding others would then ask for another graph.
        """
        graph, nodes, stack, seen = self.graph, list[Node](), [value], {value}
        while stack:
            name = stack.pop()
            producer = graph.producer(name)
            if producer is None and name in graph.inputs and name not in graph.defaults:
                return
            if producer is not None:
                nodes.append(producer)
                new = [i for i in producer.reads if i not in seen]
                seen.update(new)
                stack += new
        for name in seen & set(graph.defaults):
            graph.inputs.remove(name)
            graph.constants[name] = graph.defaults.pop(name)
        ancestors = {n.name for n in nodes}
        for node in [n for n in graph.nodes.values() if n.name in ancestors]:
            self.record(node)

    def record(self, node: Node) -> None:
        """Note the contents of what a new node makes, where they follow from its inputs."""
        evaluate = _EVALUATORS.get(node.op)
        type_ = self.graph.types[node.output]
        if evaluate is None or type_.dtype not in _TRACKED or not _is_short(type_.shape):
            return
        if node.op not in _ON_FLOATS and any(self.graph.types[i].dtype.is_float for i in node.reads):
            return
        operands = [None if i is None else self.of(i) for i in node.inputs]
        if any(c is None and i is not None for c, i in zip(operands, node.inputs, strict=True)):
            return
        try:
            result = np.asarray(evaluate(node, operands), object)
        except (Unknown, ArithmeticError, IndexError, ValueError):
            return  # an index outside, for example: the operator's own rule speaks when numbers are needed
        if result.shape == type_.shape and _fits(result, type_.dtype):
            self._known[node.output] = result

    def array(self, value: str) -> np.ndarray | None:
        """The value as a plain array, where it follows from constants alone; None where it does not."""
        known = self.of(value)
        if known is not None and all(isinstance(d, (int, bool)) for d in known.flat):
            return known.astype(self.graph.types[value].dtype.numpy)
        if value in self.graph.constants:
            return self.graph.constants[value]
        producer = self.graph.producer(value)
        shape = self.graph.types[value].shape
        if producer is None or not _is_short(shape, LARGEST_ARRAY) or _is_symbolic(producer.attrs.values()):
            return None
        operands = [None if i is None else self.array(i) for i in producer.inputs]
        if any(a is None and i is not None for a, i in zip(operands, producer.inputs, strict=True)):
            return None
        result = get(producer.op).oracle(producer.attrs, operands)
        result = result if isinstance(result, tuple) else (result,)
        return np.asarray(result[producer.outputs.index(value)])

    def materialise(self) -> None:
        """Cut shape arithmetic out: whoever reads a value with known contents reads `dims` or a constant instead."""
        graph = self.graph
        # Contents of float values only help to find numbers: who reads such a value reads data.
        whole = {v for v in self._known if graph.producer(v) is not None and not graph.types[v].dtype.is_float}
        replaced = {}
        for value in [v for v in graph.types if v in whole]:
            if graph.is_output(value) or any(not set(n.outputs) <= whole for n in graph.consumers(value)):
                node = graph.producer(value)
                assert node is not None
                replaced[self._place(value, node.origin)] = value
        graph.remove_dead()
        for new, value in replaced.items():
            if new in graph.types and value not in graph.types:
                graph.rename(new, value)
        graph.sort()

    def _place(self, value: str, origin: tuple[str, ...]) -> str:
        """Build the known contents anew, let every reader take that, and return its name."""
        graph, known, type_ = self.graph, self._known[value], self.graph.types[value]
        if all(isinstance(d, (int, bool)) for d in known.flat):
            new = graph.add_constant(known.astype(type_.dtype.numpy))
        else:
            new = graph.emit("dims", [], {"values": tuple(known.flat)}, origin=origin)
            if known.ndim != 1:
                new = graph.emit("reshape", [new], {"shape": type_.shape}, origin=origin)
            if type_.dtype is not DType.I64:
                new = graph.emit("cast", [new], {"to": type_.dtype}, origin=origin)
        graph.redirect(value, new)
        return new


def _is_symbolic(attributes: Iterable[Any]) -> bool:
    return any(isinstance(a, dims.SymbolicDim) or (isinstance(a, tuple) and _is_symbolic(a)) for a in attributes)


def _objects(array: np.ndarray) -> np.ndarray:
    out = np.empty(array.shape, object)
    out.reshape(-1)[:] = array.reshape(-1).tolist()
    return out


def _is_short(shape: tuple[Dim, ...], most: int = LARGEST) -> bool:
    elements = dims.product(shape)
    return isinstance(elements, int) and elements <= most and all(isinstance(d, int) for d in shape)


def _fits(contents: np.ndarray, dtype: DType) -> bool:
    """Whether no number leaves the type: arithmetic that wraps around is data, not shapes."""
    if dtype.is_float:
        return all(isinstance(d, Ratio) for d in contents.flat)
    if dtype is DType.BOOL:
        return all(isinstance(d, bool) for d in contents.flat)
    limit = 2 ** (8 * dtype.bytes - 1)
    return all(not isinstance(d, int) or -limit <= d < limit for d in contents.flat)


# ---- evaluators: IR operator -> contents of its output -------------------------------------------------------------
Evaluator = Callable[[Node, Sequence[Any]], Any]


def _each(function: Callable[..., Any]) -> Evaluator:
    """Element by element, broadcasting."""
    lifted = np.frompyfunc(function, function.__code__.co_argcount, 1)
    return lambda node, operands: lifted(*operands)


def _compare(holds: Callable[[int], bool]) -> Evaluator:
    """A comparison; `holds` gets a number of the sign of the difference, and must agree on all that it may be."""

    def compare(a: Dim, b: Dim) -> bool:
        low, high = bounds(a - b)
        signs = [s for s in (-1, 0, 1) if (low is None or s >= min(low, 1)) and (high is None or s <= max(high, -1))]
        answers = {holds(s) for s in signs}
        if len(answers) != 1:
            raise Unknown(f"{a} against {b}")
        return answers.pop()

    return _each(compare)


def _logical(function: Callable[[bool, bool], bool]) -> Evaluator:
    return _each(lambda a, b: function(a, b))


def _modulo(a: Dim, b: Dim) -> Dim:
    if b == 0:
        raise Unknown("division by zero")
    return dims.mod(a, b)


def _absolute(a: Dim) -> Dim:
    low, high = bounds(a)
    if low is not None and low >= 0:
        return a
    if high is not None and high <= 0:
        return -a
    raise Unknown(f"the sign of {a}")


def _cast(node: Node, operands: Sequence[Any]) -> Any:
    to: DType = node.attrs["to"]
    if to is DType.BOOL:
        if any(isinstance(d, Ratio) for d in operands[0].flat):
            raise Unknown("the truth of a float")
        return _EVALUATORS["not_equal"](node, [operands[0], np.asarray(0, object)])

    def cast(d: Dim | Ratio) -> Dim | Ratio:
        if isinstance(d, Ratio):
            return d if to.is_float else truncated_quotient(d.numerator, d.denominator)
        number = int(d) if isinstance(d, bool) else d
        return Ratio(number, 1) if to.is_float else number

    return np.frompyfunc(cast, 1, 1)(operands[0])


def _divide(a: Dim | Ratio, b: Dim | Ratio) -> Dim | Ratio:
    if isinstance(a, Ratio) and isinstance(b, Ratio):
        return a / b
    assert not isinstance(a, Ratio) and not isinstance(b, Ratio), "one type of both operands"
    return truncated_quotient(a, b)


def _where(node: Node, operands: Sequence[Any]) -> Any:
    return np.frompyfunc(lambda c, a, b: a if c else b, 3, 1)(*operands)


def _gather(node: Node, operands: Sequence[Any]) -> Any:
    data, indices = operands
    return np.take(data, _numbers(indices), axis=node.attrs["axis"])


def _numbers(contents: np.ndarray) -> np.ndarray:
    if not all(isinstance(d, int) for d in contents.flat):
        raise Unknown("a symbolic index")
    return contents.astype(np.int64)


def _integers(values: Sequence[Dim]) -> tuple[int, ...]:
    if not all(isinstance(d, int) for d in values):
        raise Unknown("a symbolic bound")
    return tuple(int(d) for d in values)  # type: ignore[arg-type]


def _slice(node: Node, operands: Sequence[Any]) -> Any:
    bounds = zip(*(_integers(node.attrs[a]) for a in ("starts", "stops", "steps")), strict=True)
    return operands[0][tuple(slice(a, b if b >= 0 else None, s) for a, b, s in bounds)]


def _fill(node: Node, operands: Sequence[Any]) -> Any:
    value = node.attrs["value"]
    return np.full(_integers(node.attrs["shape"]), value if isinstance(value, bool) else int(value), object)


def _reduce(function: Callable[[Any, Any], Any], initial: Any) -> Evaluator:
    lifted = np.frompyfunc(function, 2, 1)

    def evaluate(node: Node, operands: Sequence[Any]) -> Any:
        out, keep = operands[0], node.attrs["keepdims"]
        for axis in sorted(node.attrs["axes"], reverse=True):
            if out.shape[axis] == 0 and initial is None:
                raise Unknown("the extreme of nothing")
            start = {} if initial is None else {"initial": initial}
            out = np.asarray(lifted.reduce(out, axis=axis, keepdims=keep, **start), object)
        return out

    return evaluate


_ON_FLOATS = frozenset(
    ("identity", "cast", "neg", "add", "sub", "mul", "div", "floor", "ceil")
    + ("where", "gather", "slice", "concat", "reshape", "transpose", "expand", "tile")
)
_EVALUATORS: dict[str, Evaluator] = {
    "floor": _each(lambda a: a.floor()), "ceil": _each(lambda a: a.ceil()),
    "dims": lambda node, operands: _objects_of(node.attrs["values"]),
    "identity": lambda node, operands: operands[0],
    "cast": _cast,
    "neg": _each(lambda a: -a), "abs": _each(_absolute),
    "add": _each(lambda a, b: a + b), "sub": _each(lambda a, b: a - b), "mul": _each(lambda a, b: a * b),
    "div": _each(_divide), "mod": _each(_modulo),
    "minimum": _each(lambda a, b: minimum(a, b)), "maximum": _each(lambda a, b: maximum(a, b)),
    "equal": _compare(lambda s: s == 0), "not_equal": _compare(lambda s: s != 0),
    "less": _compare(lambda s: s < 0), "less_equal": _compare(lambda s: s <= 0),
    "greater": _compare(lambda s: s > 0), "greater_equal": _compare(lambda s: s >= 0),
    "not": _each(lambda a: not a), "and": _logical(lambda a, b: a and b), "or": _logical(lambda a, b: a or b),
    "xor": _logical(lambda a, b: a != b), "where": _where,
    "gather": _gather, "slice": _slice, "fill": _fill,
    "concat": lambda node, operands: np.concatenate(operands, node.attrs["axis"]),
    "reshape": lambda node, operands: operands[0].reshape(_integers(node.attrs["shape"])),
    "transpose": lambda node, operands: operands[0].transpose(node.attrs["perm"]),
    "expand": lambda node, operands: np.broadcast_to(operands[0], _integers(node.attrs["shape"])),
    "tile": lambda node, operands: np.tile(operands[0], _integers(node.attrs["repeats"])),
    "iota": lambda node, operands: _objects(np.arange(_integers([node.attrs["extent"]])[0])),
    "reduce_sum": _reduce(lambda a, b: a + b, 0), "reduce_prod": _reduce(lambda a, b: a * b, 1),
    "reduce_min": _reduce(minimum, None), "reduce_max": _reduce(maximum, None),
}  # fmt: skip


def _objects_of(values: Sequence[Dim]) -> np.ndarray:
    out = np.empty(len(values), object)
    out[:] = values
    return out
