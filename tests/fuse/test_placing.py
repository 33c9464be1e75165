"""Values without a kernel: slices look into their source, the parts of a joint are written where it lies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

import opfuse
from opfuse.decision import Ledger, Refusal
from opfuse.fuse.grouping import Group, group
from opfuse.fuse.legality import MOST_NODES
from opfuse.fuse.placing import Placing
from opfuse.fuse.provider import Claim
from opfuse.fuse.region import Region
from opfuse.ir.dims import symbol
from opfuse.ir.evaluate import evaluate
from opfuse.ir.graph import Graph
from opfuse.ir.placement import Placement
from opfuse.ir.types import DType, TensorType
from opfuse.options import Options
from opfuse.pipeline import lower as lowered
from opfuse.providers.cpu import CpuPayload, CpuProvider
from opfuse.providers.reference import ReferenceProvider
from opfuse.target import DESCRIBED_CPU, Target
from opfuse.tile.program import Buffer

RNG = np.random.default_rng(7)
TARGET = Target("described", "cpu", "avx512", 64, 32, 48 << 10, 2 << 20, 32 << 20, 1, DESCRIBED_CPU)


def graph(*shapes: tuple[int, ...]) -> tuple[Graph, list[str]]:
    g = Graph("g")
    return g, [g.add_input(f"x{k}", TensorType(DType.F32, s)) for k, s in enumerate(shapes)]


def weight(g: Graph, *shape: int) -> str:
    return g.add_constant((RNG.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32))


def linear(g: Graph, x: str, columns: int, name: str | None = None) -> str:
    return g.emit("matmul", [x, weight(g, int(g.types[x].shape[-1]), columns)], name=name)  # type: ignore[arg-type]


def cut(g: Graph, x: str, *box: tuple[int, int], steps: tuple[int, ...] | None = None) -> str:
    starts, stops = tuple(a for a, _ in box), tuple(b for _, b in box)
    return g.emit("slice", [x], {"starts": starts, "stops": stops, "steps": steps or (1,) * len(box)})


def kernels(g: Graph, threads: int = 1) -> list[str]:
    made = lowered(g, Options(threads=threads, calibrate=False)).kernels
    return [k.name for k in made if type(k).__name__ != "ViewKernel"]


def agree(g: Graph, threads: int = 1) -> None:
    """Fused, unfused and the float64 oracle give the same."""
    feeds = {i: RNG.standard_normal(g.types[i].static_shape).astype(g.types[i].dtype.numpy) for i in g.inputs}
    want = evaluate(g, feeds, "f64", g.outputs.values())
    for fusions in ((), "all"):
        run = opfuse.compile(g.copy(), threads=threads, calibrate=False, disable_fusions=fusions)
        got = run(feeds)
        for public, value in g.outputs.items():
            np.testing.assert_allclose(got[public], want[value], rtol=1e-5, atol=1e-5, err_msg=f"{public} {fusions}")


# ---- joints ----------------------------------------------------------------------------------------------------------
def two_branches(axis: int) -> Graph:
    """concat(relu(x a), x b) along an axis, read by a product and by a sum."""
    g, (x,) = graph((4, 6, 16))
    a, b = g.emit("relu", [linear(g, x, 24)]), linear(g, x, 24 if axis < 2 else 40)
    joined = g.emit("concat", [a, b], {"axis": axis}, name="joint")
    g.set_outputs({"y": linear(g, joined, 8), "z": g.emit("reduce_sum", [joined], {"axes": (2,), "keepdims": False})})
    return g


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_the_parts_of_a_joint_are_written_in_place(axis: int, threads: int) -> None:
    g = two_branches(axis)
    assert not any("concat" in name for name in kernels(g, threads))
    agree(g, threads)


def test_a_joint_that_is_an_output_is_written_straight_into_the_caller_s_array() -> None:
    g, (x,) = graph((5, 16))
    g.set_outputs({"y": g.emit("concat", [linear(g, x, 7), linear(g, x, 9), linear(g, x, 1)], {"axis": 1})})
    made = opfuse.compile(g, threads=1, calibrate=False)
    assert not any("concat" in k.name for k in made.explain().kernels)
    agree(g)


def test_joints_lie_in_joints() -> None:
    """The growing concatenation of a dense block: every layer reads all before it, nothing is copied."""
    g, (x,) = graph((1, 6, 6, 8))
    here = linear(g, x, 8)
    for _ in range(4):
        here = g.emit("concat", [here, linear(g, g.emit("relu", [here]), 4)], {"axis": 3})
    g.set_outputs({"y": here})
    assert not any("concat" in name for name in kernels(g))
    agree(g)
    agree(g, threads=2)


def test_a_dense_block_as_exporters_write_it() -> None:
    """Every layer joins all that is there anew: each joined value lies in the next."""
    g, (x,) = graph((1, 6, 6, 8))
    features = [linear(g, x, 8)]
    for _ in range(3):
        here = g.emit("concat", features, {"axis": 3}) if len(features) > 1 else features[0]
        features.append(linear(g, g.emit("relu", [here]), 4))
    g.set_outputs({"y": linear(g, g.emit("concat", features, {"axis": 3}), 5)})
    assert not any("concat" in name for name in kernels(g))
    agree(g)


def test_split_branch_and_join() -> None:
    """The two halves of a value and what is made of the second one, side by side: the halves stay where they are."""
    g, (x,) = graph((1, 6, 6, 8))
    wide = g.emit("relu", [linear(g, x, 16)])
    left, right = (cut(g, wide, (0, 1), (0, 6), (0, 6), box) for box in ((0, 8), (8, 16)))
    made = linear(g, g.emit("tanh", [linear(g, right, 8)]), 8)
    g.set_outputs({"y": linear(g, g.emit("concat", [left, right, made], {"axis": 3}), 5)})
    assert not any("concat" in name for name in kernels(g))
    agree(g)


def test_a_part_is_written_through_the_reshape_between() -> None:
    """Heads of a detector: [1, h, w, 2 a] -> [1, h w a, 2], joined along the boxes."""
    g, (x, y) = graph((1, 6, 5, 16), (1, 3, 2, 16))
    parts = [g.emit("reshape", [linear(g, v, 6)], {"shape": (1, n * 3, 2)}) for v, n in ((x, 30), (y, 6))]
    g.set_outputs({"y": g.emit("softmax", [g.emit("concat", parts, {"axis": 1})], {"axis": 2})})
    assert not any("concat" in name for name in kernels(g))
    agree(g)


def test_a_reader_of_a_part_reads_it_between_the_others() -> None:
    g, (x,) = graph((4, 16))
    a, b = linear(g, x, 24), linear(g, x, 40)
    g.set_outputs({
        "y": g.emit("concat", [a, b], {"axis": 1}), "left": linear(g, a, 8), "right": g.emit("exp", [linear(g, b, 3)]),
    })  # fmt: skip
    assert not any("concat" in name for name in kernels(g))
    agree(g)


@pytest.mark.parametrize(
    ("code", "build"),
    [
        ("part-given", lambda g, x: [x, linear(g, x, 16)]),
        ("part-twice", lambda g, x: [p := linear(g, x, 16), p]),
        ("part-shown", lambda g, x: [cut(g, linear(g, x, 32, "wide"), (0, 4), (0, 16)), linear(g, x, 16)]),
    ],
)
def test_a_joint_that_needs_a_copy_says_why(code: str, build: Callable[[Graph, str], list[str]]) -> None:
    g, (x,) = graph((4, 16))
    g.set_outputs({"y": g.emit("concat", build(g, x), {"axis": 1}, name="joint")})
    placing = Placing(g)
    for node in g.nodes.values():
        if node.op == "slice":
            assert placing.see(node) is None
    refusal = placing.join(g.nodes["joint"])
    assert isinstance(refusal, Refusal) and refusal.code == code
    agree(g)


def test_a_part_that_is_an_output_of_the_model_keeps_its_own_bytes() -> None:
    g, (x,) = graph((4, 16))
    a, b = linear(g, x, 24), linear(g, x, 40)
    g.set_outputs({"y": g.emit("concat", [a, b], {"axis": 1}, name="joint"), "a": a})
    refusal = Placing(g).join(g.nodes["joint"])
    assert isinstance(refusal, Refusal) and refusal.code == "part-shown"
    agree(g)


def test_in_place_can_be_switched_off_by_its_id() -> None:
    g = two_branches(2)
    ledger = Ledger()
    group(g, (CpuProvider(), ReferenceProvider()), TARGET, Options(), ledger)
    (decision,) = [d for d in ledger.of("fusion") if d.rule == "in-place"]
    assert decision.outcome == "taken" and decision.facts["bytes_not_copied"] == 2 * 4 * 4 * 6 * 64
    off, options = Ledger(), Options(disabled_fusions=frozenset({decision.id}))
    groups = group(g, (CpuProvider(), ReferenceProvider()), TARGET, options, off)
    assert any("joint" in part.region.nodes and part.claim is not None for part in groups)
    assert [d.outcome for d in off.of("fusion") if d.rule == "in-place"] == ["disabled"]
    assert g.placements == {}


def test_neighbours_through_a_joint_have_a_reason() -> None:
    made = opfuse.compile(two_branches(2), threads=1, calibrate=False).explain()
    codes = {b.code for b in made.boundaries}
    assert "in-place" in codes and "unrecorded" not in codes


# ---- slices ----------------------------------------------------------------------------------------------------------
def test_a_slice_that_two_kernels_read_is_a_view() -> None:
    g, (x,) = graph((6, 32))
    left, right = cut(g, x, (0, 6), (0, 16)), cut(g, x, (0, 6), (16, 32))
    g.set_outputs({"a": linear(g, left, 8), "b": linear(g, right, 8), "c": linear(g, g.emit("neg", [left]), 5)})
    groups = group(g, (CpuProvider(), ReferenceProvider()), TARGET, Options(), Ledger())
    assert sum(part.claim is None for part in groups) == 2
    assert g.placements[right] == Placement(x, 16, (32, 1))
    agree(g)


def test_a_slice_that_saves_work_joins_what_it_cuts() -> None:
    """Only the last step of each sequence is wanted: the product is made for it alone."""
    g, (x,) = graph((4, 50, 64))
    g.set_outputs({"y": g.emit("relu", [cut(g, linear(g, x, 64), (0, 4), (49, 50), (0, 64))])})
    (kernel,) = lowered(g, Options(threads=1, calibrate=False)).kernels
    assert kernel.cost.flops < 4 * 2 * 64 * 64 * 2  # type: ignore[union-attr]
    agree(g)


@pytest.mark.parametrize("steps", [(1, 2, 1), (2, 1, 1), (1, 1, 2)])
def test_slices_with_steps(steps: tuple[int, ...]) -> None:
    g, (x,) = graph((4, 6, 8))
    made = cut(g, x, (0, 4), (1, 5), (2, 8), steps=steps)
    g.set_outputs({"a": linear(g, made, 8), "b": g.emit("reduce_max", [made], {"axes": (1,), "keepdims": True})})
    agree(g)


def test_a_reshape_of_a_slice_with_gaps_is_copied_once() -> None:
    """[4, 0:16] of [4, 32] has gaps between its rows: no single step walks [64]."""
    g, (x,) = graph((4, 32))
    flat = g.emit("reshape", [cut(g, x, (0, 4), (0, 16))], {"shape": (1, 64)})
    g.set_outputs({"a": linear(g, flat, 8), "b": linear(g, flat, 3)})
    agree(g)


def test_a_slice_of_an_output_and_of_an_empty_value() -> None:
    g, (x, e) = graph((4, 32), (0, 32))
    y = linear(g, x, 16)
    g.set_outputs({"y": y, "cut": cut(g, y, (1, 3), (0, 16)), "none": linear(g, cut(g, e, (0, 0), (4, 8)), 2)})
    agree(g)


def test_views_of_views() -> None:
    g, (x,) = graph((2, 8, 12))
    inner = cut(g, cut(g, x, (0, 2), (2, 8), (0, 12)), (0, 2), (1, 4), (3, 11))
    again = g.emit("reshape", [inner], {"shape": (2, 3, 2, 4)})
    g.set_outputs({"a": linear(g, inner, 5), "b": linear(g, again, 7)})
    placing = Placing(g)
    for node in g.nodes.values():
        if node.op in ("slice", "reshape"):
            assert placing.see(node) is None
    assert placing.placement(inner) == Placement(x, 3 * 12 + 3, (96, 12, 1))
    assert placing.placement(again) == Placement(x, 3 * 12 + 3, (96, 12, 4, 1))
    agree(g)


# ---- outputs of the model that lie in another's bytes ----------------------------------------------------------------
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("inside", ["slice", "part"])
def test_an_output_that_is_a_view_with_gaps_keeps_its_bytes_to_the_end(inside: str, threads: int) -> None:
    """It is copied behind the last kernel: what it lies in may not be given to the kernels between."""
    g, (x,) = graph((8, 16))
    wide = linear(g, x, 64)
    if inside == "slice":
        shown = g.emit("reshape", [cut(g, wide, (0, 8), (0, 32))], {"shape": (8, 4, 8)})
    else:
        shown = g.emit("reshape", [wide], {"shape": (8, 8, 8)})
        wide = g.emit("concat", [wide, linear(g, x, 64)], {"axis": 1})
    for _ in range(4):
        wide = linear(g, g.emit("relu", [wide]), int(g.types[wide].shape[-1]))  # type: ignore[arg-type]
    g.set_outputs({"shown": shown, "y": wide})
    agree(g, threads)


# ---- side by side ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_siblings_of_no_rows_stand_side_by_side_too(rows: int, threads: int) -> None:
    g, (x,) = graph((rows, 16))
    g.set_outputs({f"y{k}": linear(g, x, 8 * k + 4) for k in range(3)})
    agree(g, threads)


@pytest.mark.parametrize("threads", [1, 2])
def test_empty_values_lie_nowhere_in_particular(threads: int) -> None:
    """Parts without rows, of which the second begins at column 5 of a whole without bytes; and one without columns."""
    g, (x, e) = graph((3, 16), (0, 16))
    empty = g.emit("concat", [linear(g, e, 5), linear(g, e, 3)], {"axis": 1})
    parts = [linear(g, x, 8), linear(g, cut(g, x, (0, 3), (0, 8)), 0), linear(g, x, 5)]
    g.set_outputs({
        "rows": in_python(g, empty), "again": linear(g, empty, 3),
        "columns": linear(g, g.emit("concat", parts, {"axis": 1}), 4),
    })  # fmt: skip
    agree(g, threads)


def in_python(g: Graph, x: str) -> str:
    """Scattered where an input of the model says: there are no loops for that."""
    rows, columns = g.types[x].static_shape
    where = g.add_input(g.fresh("where"), TensorType(DType.I64, (min(rows, 2), columns)))
    attrs = {"axis": 1, "reduction": "add"}
    return g.emit("scatter_elements", [x, where, cut(g, x, (0, min(rows, 2)), (0, columns))], attrs)


# ---- Python functions between ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("threads", [1, 2])
def test_a_python_function_makes_a_part(threads: int) -> None:
    g, (x,) = graph((4, 16))
    a, b = linear(g, x, 24), in_python(g, linear(g, x, 8))
    g.set_outputs({"y": linear(g, g.emit("concat", [a, b], {"axis": 1}), 5), "b": g.emit("neg", [b])})
    agree(g, threads)
    codes = [d.code for d in opfuse.compile(g, threads=threads, calibrate=False).explain().decisions]
    assert "part-on-host" in codes


@pytest.mark.parametrize("threads", [1, 2])
def test_a_python_function_reads_between_gaps(threads: int) -> None:
    g, (x,) = graph((4, 16))
    a, b = linear(g, x, 24), linear(g, x, 8)
    joined = g.emit("concat", [a, b], {"axis": 1})
    between = (a, b, joined, cut(g, joined, (1, 4), (3, 29)))
    g.set_outputs({f"y{k}": in_python(g, v) for k, v in enumerate(between)})
    agree(g, threads)


# ---- a kernel that cannot be had between gaps ------------------------------------------------------------------------
@dataclass(frozen=True)
class Picky(CpuProvider):
    """Refuses kernels of one operator where they read or write between gaps."""

    operator: str = "exp"

    def claim(self, graph: Graph, region: Region, target: Target) -> Claim | Refusal:
        places = [graph.placements.get(v) for v in (*region.inputs, *region.outputs)]
        if any(p is not None for p in places) and any(n.op == self.operator for n in region.members(graph)):
            return Refusal("picky", "not between gaps")
        return super().claim(graph, region, target)


@pytest.mark.parametrize("operator", ["softmax", "exp"])
def test_what_no_kernel_writes_between_gaps_is_copied_and_all_others_are_claimed_anew(operator: str) -> None:
    """The other part's maker was claimed for a place in the joint before the joint was given up."""
    g, (x,) = graph((4, 16))
    a, b = linear(g, x, 24), g.emit(operator, [linear(g, x, 8)], {"axis": 1} if operator == "softmax" else {})
    joint = g.emit("concat", [a, b], {"axis": 1}, name="joint")
    g.set_outputs({"y": linear(g, joint, 5), "a": linear(g, a, 3)})
    ledger = Ledger()
    groups = group(g, (Picky(operator=operator), ReferenceProvider()), TARGET, Options(), ledger)
    assert not g.placements
    assert all(part.claim is not None and part.claim.native for part in groups)
    assert all(b.strides is None for part in groups for b in programs_of(part))
    assert [d.outcome for d in ledger.of("fusion") if d.rule == "in-place"] == ["refused"]


def programs_of(part: Group) -> tuple[Buffer, ...]:
    payload = part.claim.payload if part.claim is not None else None
    assert isinstance(payload, CpuPayload)
    return payload.lowered.program.buffers


# ---- large graphs ----------------------------------------------------------------------------------------------------
def test_joints_and_slices_a_thousand_deep() -> None:
    """No recursion over what lies in what, and no time that grows with the cube of it."""
    g, (x,) = graph((2, 1200))
    slices, joints = Placing(g), Placing(g)
    here = linear(g, x, 1200)
    for k in range(1100):
        here = cut(g, here, (0, 2), (0, 1199 - k))
        assert slices.see(g.nodes[g.producer(here).name]) is None  # type: ignore[union-attr]
    assert slices.placement(here) == Placement(slices.root(here), 0, (1200, 1))
    one = weight(g, 1200, 1)
    here = first = linear(g, x, 1)
    for _ in range(1100):
        here = g.emit("concat", [here, g.emit("matmul", [x, one])], {"axis": 1})
        assert joints.join(g.nodes[g.producer(here).name]) is None  # type: ignore[union-attr]
    assert joints.placement(first) == Placement(here, 0, (1101, 1))
    assert len(joints.placements()) == 2200


@pytest.mark.parametrize(("shape", "fits"), [((2, 3, 4), True), ((24,), False)])
def test_a_reshape_is_asked_again_when_what_it_lies_in_moves(shape: tuple[int, ...], fits: bool) -> None:
    """[2, 12] in [2, 20] shows as [2, 3, 4] and not as [24]."""
    g, (x,) = graph((2, 16))
    part = linear(g, x, 12)
    view = g.emit("reshape", [part], {"shape": shape}, name="view")
    joint = g.emit("concat", [part, linear(g, x, 8)], {"axis": 1}, name="joint")
    placing = Placing(g)
    assert placing.see(g.nodes["view"]) is None
    assert (placing.join(g.nodes["joint"]) is None) == fits
    place = placing.placement(view)
    assert place == (Placement(joint, 0, (20, 4, 1)) if fits else Placement(part, 0, (1,)))


def test_many_readers_of_one_value_are_joined_in_small_groups() -> None:
    g, (x,) = graph((4, 60))
    parts = [linear(g, cut(g, x, (0, 4), (k, k + 3)), 1 + k % 5) for k in range(40)]
    g.set_outputs({f"y{k}": g.emit("relu", [v]) for k, v in enumerate(parts)})
    groups = group(g, (CpuProvider(), ReferenceProvider()), TARGET, Options(), Ledger())
    assert all(len(part.region.nodes) <= MOST_NODES for part in groups)


def test_a_kernel_has_so_many_operators_at_most_and_says_so() -> None:
    g, (x,) = graph((4, 16))
    here = x
    for k in range(100):
        here = g.emit(("exp", "tanh")[k % 2], [here])
    g.set_outputs({"y": here})
    ledger = Ledger()
    groups = group(g, (CpuProvider(), ReferenceProvider()), TARGET, Options(), ledger)
    assert max(len(part.region.nodes) for part in groups) <= MOST_NODES < 100
    assert {d.code for d in ledger.of("boundary")} == {"large"}


@pytest.mark.parametrize("count", [17, 40, 400])
@pytest.mark.parametrize("given", [True, False])
def test_a_joint_of_many(given: bool, count: int) -> None:
    """Of inputs of the model it is one kernel; of what kernels make, each writes its part."""
    g, xs = graph(*((3, 1 + k % 3) for k in range(count if given else min(count, 60))))
    parts = xs if given else [g.emit("softmax", [x], {"axis": 1}) for x in xs]
    g.set_outputs({"y": g.emit("concat", parts, {"axis": 1})})
    if count < 100:
        agree(g)
    else:
        assert kernels(g) == ["concat"] if given else "concat" not in " ".join(kernels(g))


# ---- shapes that change ----------------------------------------------------------------------------------------------
def open_graph() -> Graph:
    """x [n, t, 16]: q and k cut from a product, a cache of keys in front, joined heads, a rotated half."""
    n, t, past = symbol("n"), symbol("t"), symbol("past")
    g = Graph("open")
    x = g.add_input("x", TensorType(DType.F32, (n, t, 16)))
    cache = g.add_input("cache", TensorType(DType.F32, (n, past, 8)))
    both = linear(g, x, 16)
    left, right = (
        g.emit("slice", [both], {"starts": (0, 0, 8 * k), "stops": (n, t, 8 * k + 8), "steps": (1, 1, 1)})
        for k in range(2)
    )
    turned = g.emit("concat", [g.emit("neg", [right]), left], {"axis": 2})
    keys = g.emit("concat", [cache, g.emit("softmax", [left], {"axis": 2})], {"axis": 1})
    scores = g.emit("matmul", [right, g.emit("transpose", [keys], {"perm": (0, 2, 1)})])
    rows = g.emit("concat", [linear(g, left, 5), linear(g, turned, 3)], {"axis": 2})
    flat = g.emit("reshape", [rows], {"shape": (n * t, 8)})
    g.set_outputs({"keys": keys, "scores": scores, "rows": rows, "flat": flat})
    return g


def test_shapes_that_change_from_call_to_call() -> None:
    g = open_graph()
    run = opfuse.compile(g.copy(), threads=2, calibrate=False, debug=True)
    for n, t, past in ((1, 7, 3), (2, 1, 0), (1, 7, 3), (3, 0, 4), (0, 5, 1), (1, 33, 16), (2, 1, 0)):
        bound = g.bind({"n": n, "t": t, "past": past})
        feeds = {i: RNG.standard_normal(bound.types[i].static_shape).astype(np.float32) for i in g.inputs}
        want, got = evaluate(bound, feeds, "f64", bound.outputs.values()), run(feeds)
        for public, value in bound.outputs.items():
            np.testing.assert_allclose(got[public], want[value], rtol=1e-5, atol=1e-5, err_msg=f"{public} {n, t, past}")


def test_what_reads_nothing_is_no_view() -> None:
    """Numbers along an axis and a filled value, too large to be folded into constants."""
    g, (x,) = graph((600, 700))
    filled = g.emit("fill", [], {"shape": (600, 700), "value": 3.0, "dtype": DType.F32}, name="filled")
    counted = g.emit("cast", [g.emit("iota", [], {"extent": 700, "dtype": DType.I64}, name="counted")],
                     {"to": DType.F32}, name="cast")  # fmt: skip
    g.set_outputs({"y": g.emit("add", [g.emit("add", [filled, counted]), x])})
    refusals = [Placing(g).see(g.nodes[n]) for n in ("filled", "counted", "cast")]
    assert [r.code for r in refusals if r is not None] == ["not-a-view"] * 3
    agree(g)
