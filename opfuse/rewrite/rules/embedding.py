"""Tables of rows: one-hot products become gathers, and functions of a gathered table are computed on the table.

    matmul(cast(x == [0, 1, ... k-1]), W) -> gather(W with rows of zeros at both ends, clip(x, -1, k) + 1)
    gelu(gather(W, x) + b) -> gather(gelu(W + b), x)

An index outside the table has no 1 in its row, so its product is zero: hence the rows of zeros. Exact where W is
finite (0 * inf is NaN in the product).
"""

from __future__ import annotations

import numpy as np

from opfuse.decision import Refusal
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType
from opfuse.rewrite.draft import Draft
from opfuse.rewrite.pattern import Constant, Match, Var, any_node, op
from opfuse.rewrite.rule import Case, Input, Operand, Rule, declared, is_float, rule
from opfuse.rewrite.rules.broadcasting import ELEMENTWISE
from opfuse.rewrite.rules.constants import fold

LARGEST_TABLE = 4 << 20  # bytes of a table that is computed before the model runs

x, rows, classes, table = Var("x"), Constant("rows"), Constant("classes"), Constant("table")
_COUNT = np.arange(5, dtype=np.int32).reshape(1, 1, 5)
_ROWS = np.linspace(-1, 1, 20, dtype=np.float32).reshape(5, 4)


def _one_hot(dtype: DType = DType.I32, classes: np.ndarray = _COUNT, rows: np.ndarray = _ROWS, fires: bool = True,
             shape: tuple[int, ...] = (2, 7, 1)) -> Case:  # fmt: skip
    operands: dict[str, Operand] = {
        "x": Input(shape, dtype, -2 if dtype.is_signed else 0, 8),
        "classes": classes.astype(dtype.numpy),
        "rows": rows,
    }
    return Case(operands, {"cast": {"to": DType.F32}}, fires)


@rule("exact", op("matmul", op("cast", op("equal", x, classes), name="cast"), rows), when=(is_float,), cases=(
    _one_hot(), _one_hot(DType.I64), _one_hot(DType.U8), _one_hot(DType.I8),
    _one_hot(classes=_COUNT[..., ::-1], fires=False),
    _one_hot(rows=np.full((5, 4), np.inf, np.float32), fires=False),
    _one_hot(shape=(2, 7, 5), fires=False),
    _one_hot(DType.F32, fires=False),
))  # fmt: skip
def one_hot_to_gather(m: Match, to: Draft) -> str | Refusal:
    """matmul(cast(x == [0 ... k-1]), W) -> gather(W, x), zero where x is outside"""
    kind, shape, numbers, weights = m.type("x").dtype, m.type("x").shape, m.array("classes"), m.array("rows")
    count = numbers.size
    if not kind.is_integer or not shape or shape[-1] != 1 or m.type("x").rank < numbers.ndim:
        return Refusal("not-an-index", f"{m['x']} is {m.type('x')}, not one integer a row", {"type": str(m.type("x"))})
    if numbers.ndim == 0 or numbers.shape[-1] != count or not np.array_equal(numbers.ravel(), np.arange(count)):
        return Refusal("other-classes", f"{m['classes']} does not count 0 ... {count - 1} along its last axis")
    if weights.ndim != 2 or weights.shape[0] != count or not np.all(np.isfinite(weights.astype(np.float64))):
        return Refusal("not-a-table", f"{m['rows']} is not {count} rows of finite numbers")
    index = to.reshape(m["x"], shape[:-1])
    limits, zeros = np.iinfo(kind.numpy), np.zeros_like(weights[:1])
    padded = [weights, zeros] if not kind.is_signed else [zeros, weights, zeros]
    upper = to.scalar(count, kind) if limits.max >= count else None
    if not kind.is_signed:
        index = to.emit("clip", index, None, upper) if upper is not None else index
        return to.emit("gather", to.constant(np.concatenate(padded)), index, axis=0)
    index = to.emit("clip", index, to.scalar(-1, kind), upper)
    if kind.bytes < DType.I32.bytes:  # 1 may not fit on top of the largest index
        index = to.emit("cast", index, to=DType.I32)
    index = to.emit("add", index, to.scalar(1, to.type(index).dtype))
    return to.emit("gather", to.constant(np.concatenate(padded)), index, axis=0)


def _gathered(g: Graph, name: str, *others: np.ndarray, shape: tuple[int, ...] = (2, 7)) -> list[str]:
    index = g.add_input("x", TensorType(DType.I64, shape))
    g.defaults["x"] = np.arange(int(np.prod(shape))).reshape(shape) % 5
    rows = g.emit("gather", [g.add_constant(_ROWS), index], {"axis": 0})
    return [g.emit(name, [rows, *(g.add_constant(o) for o in others)])]


@rule("exact", any_node(ELEMENTWISE, "f", reading="gather"), cases=(
    Case(build=lambda g: _gathered(g, "gelu_tanh")),
    Case(build=lambda g: _gathered(g, "sub", np.arange(4, dtype=np.float32).reshape(1, 1, 4))),
    Case(build=lambda g: _gathered(g, "add", np.arange(7, dtype=np.float32).reshape(7, 1)), fires=False),
    Case(build=lambda g: _gathered(g, "exp", shape=(1, 2)), fires=False),
))  # fmt: skip
def compute_on_table(m: Match, to: Draft) -> str | Refusal:
    """f(gather(W, x), c) -> gather(f(W, c), x), where W has fewer elements than the result"""
    makers = [m.graph.producer(i) for i in m.root.reads if not m.graph.is_constant(i)]
    gather = makers[0] if len(makers) == 1 else None
    if (
        gather is None
        or gather.op != "gather"
        or gather.attrs["axis"] != 0
        or not m.graph.is_constant(gather.inputs[0])
    ):
        return Refusal("no-table", "the operand that varies is no row of a constant")
    if m.graph.is_output(gather.output) or len(m.graph.consumers(gather.output)) != 1:
        return Refusal("other-readers", f"{gather.output} is read by others too", {"value": gather.output})
    rows = m.graph.constants[str(gather.inputs[0])]
    elements = m.result.elements
    if not isinstance(elements, int) or rows.size > elements or rows.nbytes > LARGEST_TABLE or rows.ndim != 2:
        return Refusal(
            "large-table", f"the table has {rows.size} elements, the result {elements}", {"table": rows.size}
        )
    arrays: list[np.ndarray | None] = []
    for i in m.root.inputs:
        array = rows if i == gather.output else to.array(i)
        if i != gather.output and array is not None:
            if array.ndim and array.size != array.shape[-1]:
                return Refusal("varies", f"{i} differs from row to row", {"value": i})
            array = array.reshape(array.shape[-1:])
        arrays.append(array)
    shape = np.broadcast_shapes(*(a.shape for a in arrays if a is not None))
    folded = fold(m.root, arrays, TensorType(m.result.dtype, shape)) if shape == rows.shape else _widened(m)
    if isinstance(folded, Refusal):
        return folded
    return to.emit("gather", to.constant(folded), gather.inputs[1], axis=0, of=gather)


def _widened(m: Match) -> Refusal:
    return Refusal("widens", f"{m.root.name} widens the table")


TABLE_RULES: tuple[Rule, ...] = (compute_on_table,)
RULES: tuple[Rule, ...] = declared(globals(), apart=TABLE_RULES)
