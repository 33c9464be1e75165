"""Broadcasts written out, and reductions that lose the axes which they reduced.

    x * expand(y) -> x * y              reshape(reduce_max(x, keepdims=False)) -> reduce_max(x, keepdims=True)

An `expand` that feeds an elementwise operator is dropped where the result keeps its shape without it, and moves
behind the operator where it does not. Reshapes that only give a reduction its lost axes back move up to the
reduction.
"""

from __future__ import annotations

from functools import partial

from opfuse.decision import Refusal
from opfuse.ir.dims import Dim
from opfuse.ir.graph import Graph, Node
from opfuse.ir.ops import OperatorError, activation, elementwise
from opfuse.ir.types import DType, TensorType
from opfuse.rewrite.draft import Draft
from opfuse.rewrite.pattern import Match, Var, any_node, op
from opfuse.rewrite.rule import Case, Input, Rule, declared, rule, used_once

ELEMENTWISE = tuple(o.name for o in (*elementwise.OPERATORS, *activation.OPERATORS))
REDUCTIONS = (
    "reduce_sum",
    "reduce_mean",
    "reduce_max",
    "reduce_min",
    "reduce_prod",
    "reduce_l1",
    "reduce_l2",
    "reduce_sum_square",
    "reduce_log_sum_exp",
)
MOST_STEPS_UP = 8

x, i = Var("x"), Var("i")


# ---- expand ----------------------------------------------------------------------------------------------------------
def _x(g: Graph, name: str, *shape: Dim) -> str:
    return g.add_input(name, TensorType(DType.F32, shape))


def _expanded_operand(g: Graph) -> list[str]:
    wide = g.emit("expand", [_x(g, "b", 3, 1)], {"shape": (2, 3, 4)})
    return [g.emit("add", [_x(g, "a", 2, 3, 4), wide])]


def _two_expanded(g: Graph) -> list[str]:
    wide = [g.emit("expand", [_x(g, n, *s)], {"shape": (2, 3)}) for n, s in (("a", (2, 1)), ("b", (1, 3)))]
    return [g.emit("sub", wide)]


def _widening_expand(g: Graph) -> list[str]:
    return [g.emit("exp", [g.emit("expand", [_x(g, "a", 1, 3)], {"shape": (2, 3)})])]


def _plain(g: Graph) -> list[str]:
    return [g.emit("add", [_x(g, "a", 3), _x(g, "b", 2, 1)])]


@rule(
    "exact",
    any_node(ELEMENTWISE, reading="expand"),
    cases=(
        Case(build=_expanded_operand),
        Case(build=_two_expanded),
        Case(build=_widening_expand),
        Case(build=_plain, fires=False),
    ),
)
def drop_expand(m: Match, to: Draft) -> str | Refusal:
    """f(expand(x), y) -> f(x, y), expanded afterwards where the result would be smaller"""
    inputs = list(m.root.inputs)
    for k, value in enumerate(inputs):
        maker = m.graph.producer(value) if value is not None else None
        if maker is not None and maker.op == "expand":
            inputs[k] = maker.inputs[0]
    if inputs == list(m.root.inputs):
        return Refusal("no-expand", "no operand is expanded")
    try:
        out = to.emit(m.root.op, *inputs, of=m.root, **m.root.attrs)
    except OperatorError as error:
        return Refusal("does-not-fit", str(error))
    if to.shape(out) == m.result.shape:
        return out
    return to.emit("expand", out, shape=m.result.shape)


@rule("exact", op("gather", x, op("expand", i, name="expand"), name="gather"), cases=(
    Case({"x": (5, 4), "i": Input((1, 3), DType.I64, 0, 5)}, {"gather": {"axis": 0}, "expand": {"shape": (2, 3)}}),
    Case({"x": (2, 5, 4), "i": Input((1,), DType.I64, 0, 5)}, {"gather": {"axis": 1}, "expand": {"shape": (3,)}}),
    Case({"x": (5, 4), "i": Input((3,), DType.I64, 0, 5)}, {"gather": {"axis": 0}, "expand": {"shape": (2, 3)}}),
))  # fmt: skip
def gather_of_expand(m: Match, to: Draft) -> str:
    """gather(x, expand(i)) -> expand(gather(x, i))"""
    axis, shape, rank = m.root.attrs["axis"], m.type("i").shape, m.graph.types[m.nodes["expand"].output].rank
    index = to.reshape(m["i"], (*(1,) * (rank - len(shape)), *shape))
    return to.emit("expand", to.emit("gather", m["x"], index, axis=axis), shape=m.result.shape)


# ---- axes given back to reductions -----------------------------------------------------------------------------------
def kept_shape(graph: Graph, node: Node) -> tuple[Dim, ...]:
    """The result of a reduction had it kept its axes."""
    shape = graph.types[str(node.inputs[0])].shape
    return tuple(1 if k in node.attrs["axes"] else d for k, d in enumerate(shape))


def _reduced(g: Graph, name: str, shape: tuple[int, ...], keepdims: bool = False) -> str:
    return g.emit(
        "reshape", [g.emit(name, [_x(g, "x", 2, 3, 4)], {"axes": (1,), "keepdims": keepdims})], {"shape": shape}
    )


def _reduced_alone(g: Graph, name: str) -> list[str]:
    return [_reduced(g, name, (2, 1, 4))]


@rule("exact", op("reshape", any_node(REDUCTIONS, "reduce"), name="reshape"), cases=(
    *(Case(build=partial(_reduced_alone, name=o)) for o in REDUCTIONS),
    Case(build=lambda g: [_reduced(g, "reduce_sum", (2, 4, 1))], fires=False),
    Case(build=lambda g: [_reduced(g, "reduce_sum", (1, 2, 1, 4))], fires=False),
))  # fmt: skip
def keep_reduced_axes(m: Match, to: Draft) -> str | Refusal:
    """reshape(reduce(x, keepdims=False)) -> reduce(x, keepdims=True), where the reshape gives the axes back"""
    reduce = m.nodes["reduce"]
    kept = kept_shape(m.graph, reduce)
    if reduce.attrs["keepdims"] or kept != m.result.shape:
        return Refusal("other-shape", f"the reduction would keep {kept}, the reshape makes {m.result.shape}")
    return to.emit(reduce.op, reduce.inputs[0], of=reduce, **{**reduce.attrs, "keepdims": True})


@rule(
    "exact",
    op("reshape", any_node(REDUCTIONS, "reduce"), name="reshape"),
    when=(used_once("reduce"),),
    cases=(
        Case(build=lambda g: [_reduced(g, "reduce_max", (2, 4), True)]),
        Case(build=lambda g: [_reduced(g, "reduce_max", (8,), True)], fires=False),
    ),
)
def drop_reduced_axes(m: Match, to: Draft) -> str | Refusal:
    """reshape(reduce(x, keepdims=True)) -> reduce(x, keepdims=False), where the reshape drops the axes"""
    reduce = m.nodes["reduce"]
    shape = m.graph.types[str(reduce.inputs[0])].shape
    dropped = tuple(d for k, d in enumerate(shape) if k not in reduce.attrs["axes"])
    if not reduce.attrs["keepdims"] or dropped != m.result.shape:
        return Refusal(
            "other-shape", f"without its axes the reduction would be {dropped}, the reshape makes {m.result.shape}"
        )
    return to.emit(reduce.op, reduce.inputs[0], of=reduce, **{**reduce.attrs, "keepdims": False})


def _leads_to_reductions(
    graph: Graph, value: str, shape: tuple[Dim, ...], steps: int = MOST_STEPS_UP
) -> Refusal | None:
    """Is a value computed elementwise from reductions that would have this shape, had they kept their axes?"""
    node = graph.producer(value)
    if node is None or steps == 0 or graph.is_output(value):
        return Refusal("no-reduction", f"{value} does not come from reductions alone", {"value": value})
    if node.op in REDUCTIONS:
        fits = not node.attrs["keepdims"] and kept_shape(graph, node) == shape
        return None if fits else Refusal("other-axes", f"{node.name} reduces other axes", {"node": node.name})
    if node.op not in ELEMENTWISE:
        return Refusal("no-reduction", f"{value} is made by {node.op}", {"value": value})
    wide = [v for v in node.reads if not _is_number(graph, v)]
    for v in wide:
        if graph.types[v].shape != graph.types[value].shape:
            return Refusal("broadcast", f"{v} is broadcast", {"value": v})
        no = _leads_to_reductions(graph, v, shape, steps - 1)
        if no is not None:
            return no
    return None if wide else Refusal("no-reduction", f"{value} is made of numbers")


def _is_number(graph: Graph, value: str) -> bool:
    """A constant of one element, which broadcasts to any shape."""
    return graph.is_constant(value) and graph.types[value].elements == 1


@rule("exact", op("reshape", any_node(ELEMENTWISE, "f"), name="reshape"), cases=(
    Case(build=lambda g: [_reshaped_statistic(g, (2, 1))]),
    Case(build=lambda g: [_reshaped_statistic(g, (1, 2))], fires=False),
))  # fmt: skip
def hoist_reshape(m: Match, to: Draft) -> str | Refusal:
    """reshape(f(a, b)) -> f(reshape(a), reshape(b)), where a and b are reductions whose axes the reshape gives back"""
    f, shape = m.nodes["f"], m.result.shape
    no = _leads_to_reductions(m.graph, f.output, shape)
    if no is not None:
        return no
    if any(m.graph.types[v].rank > len(shape) for v in f.reads if _is_number(m.graph, v)):
        return Refusal("rank", "a number of a higher rank would widen the result")
    inputs = [v if v is None or _is_number(m.graph, v) else to.reshape(v, shape, of=m.root) for v in f.inputs]
    return to.emit(f.op, *inputs, of=f, **f.attrs)


def _reshaped_statistic(g: Graph, shape: tuple[int, ...]) -> str:
    total, most = (
        g.emit(o, [v], {"axes": (1,), "keepdims": False})
        for v in [_x(g, "x", 2, 3)] for o in ("reduce_sum", "reduce_max")
    )  # fmt: skip
    statistic = g.emit("sub", [g.emit("mul", [total, g.scalar(0.25, DType.F32)]), most])
    return g.emit("reshape", [statistic], {"shape": shape})


RULES: tuple[Rule, ...] = declared(globals())
