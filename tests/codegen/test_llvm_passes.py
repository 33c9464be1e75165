"""Pass plans as text: where passes end, what is kept, which loops carry values in registers."""

from __future__ import annotations

from dataclasses import replace

from opfuse.codegen.llvm.passes import PassPlan
from opfuse.codegen.llvm.printer import plan_passes
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType
from opfuse.target import Target, described, host
from opfuse.tile.choose import choose_cpu
from opfuse.tile.lower import LoweredRegion, lower
from opfuse.tile.program import Program
from opfuse.tile.schedule import Packing, Schedule
from tests.tile.notation import axes, buffer, exp, fn, kernel, out, weight
from tests.tile.regions_matrix import attention, layernorm_linear, linear_gelu, linear_layernorm, mlp
from tests.tile.regions_rows import column_sum, layernorm_gelu, softmax_loops, softmax_row
from tests.tile.regions_windows import conv

# Sixteen lanes and 32 registers, whatever machine runs the test.
WIDE: Target = replace(described("h200"), name="wide", kind="cpu", isa="avx512", vector_bytes=64, registers=32)
GEMM = Schedule({"m": 192, "n": 64, "k": 4}, pack={"W": Packing(1, 64)})


def text(program: Program, schedule: Schedule, target: Target = WIDE) -> str:
    plans = plan_passes(program, schedule, target)
    assert isinstance(plans, tuple), plans
    return "".join(p.text() for p in plans)


def passes(program: Program, schedule: Schedule) -> list[str]:
    """The lines of the passes alone."""
    return [line.strip() for line in text(program, schedule).splitlines() if "scratch " not in line]


def test_a_product_and_its_epilogue_are_one_pass() -> None:
    assert text(linear_gelu(768, 768), GEMM) == (
        "phase linear_gelu: grid m/192, n/64; scratch 0 bytes\n"
        "  pass m, lane n, 6x4 of 16: store y -> Y[m, n]\n"
    )  # fmt: skip


def test_a_window_stays_in_registers() -> None:
    schedule = Schedule({"b": 1, "oh": 1, "ow": 56, "c": 4, "oc": 64}, pack={"Wt": Packing(3, 64)})
    assert passes(conv(56, 56, 64, 64), schedule) == ["pass ow, lane oc, 6x4 of 16: store y -> Y[b, oh, ow, oc]"]


def test_layer_norm_reads_its_inputs_once() -> None:
    assert passes(layernorm_gelu(1024), Schedule({"r": 1})) == [
        "pass lane n, 1x4 of 16: keep x; sum = sum of x over n",
        "pass lane n, 1x4 of 16: keep d; sum1 = sum of v over n",
        "pass lane n, 1x4 of 16: store y -> Y[r, n]",
    ]


def test_a_whole_row_softmax_keeps_its_exponentials() -> None:
    assert passes(softmax_row(1000), Schedule({"r": 1})) == [
        "pass lane n, 1x4 of 16: max = max of x over n",
        "pass lane n, 1x4 of 16: keep e; sum = sum of e over n",
        "pass lane n, 1x4 of 16: store y -> Y[r, n]",
    ]


def test_online_softmax_carries_in_scratch() -> None:
    assert passes(softmax_loops(1000), Schedule({"r": 1, "n": 256})) == [
        "pass point, 1x1 of 16: acc := -inf; acc1 := 0.0",
        "loop n carrying acc, acc1 in scratch",
        "pass lane n, 1x4 of 16: max = max of x over n",
        "pass lane n, 1x4 of 16: sum = sum of v over n",
        "pass point, 1x1 of 16: acc1 := next; acc := m",
        "loop n",
        "pass lane n, 1x4 of 16: store y -> Y[r, n]",
    ]


def test_a_sum_over_rows_is_a_loop_inside_of_a_pass() -> None:
    assert passes(column_sum(33), Schedule()) == ["pass lane n, 1x4 of 16: store sum -> Y[n]"]


def test_a_normalisation_before_a_product_runs_once_for_all_columns() -> None:
    lines = passes(layernorm_linear(768, 768), Schedule({"m": 24, "n": 64}, pack={"W": Packing(1, 64)}))
    assert lines[0] == "once for each m"
    assert lines[-1] == "pass m, lane n, 6x4 of 16: store dot -> Y[m, n]"
    columns_first = Schedule({"m": 24, "n": 64}, order=("n", "m"), pack={"W": Packing(1, 64)})
    assert not any("once" in line for line in passes(layernorm_linear(768, 768), columns_first))


def test_a_reduction_of_a_product_takes_it_from_the_registers() -> None:
    lines = passes(linear_layernorm(128, 64), Schedule({"m": 24, "k": 4}, pack={"W": Packing(1, 64)}))
    assert lines[0].startswith("pass m, lane n, 6x4 of 16: keep x; ")


def test_the_operand_of_a_second_product_is_kept_whole() -> None:
    schedule = Schedule({"m": 24, "f": 64}, pack={"W1": Packing(1, 64), "W2": Packing(1, 64)})
    lines = passes(mlp(128, 256, 64), schedule)
    assert "loop f carrying acc in scratch" in lines
    assert any(line.startswith("pass m, lane f, 6x4 of 16: keep h") for line in lines)


def test_attention_turns_the_keys_once_a_tile() -> None:
    plans = plan_passes(attention(512, 64, 0, True), Schedule({"h": 1, "q": 32, "j": 64}), WIDE)
    assert isinstance(plans, tuple)
    (plan,) = plans
    assert isinstance(plan, PassPlan)
    keys = next(s for name, s in plan.scratch.items() if name.startswith("k"))
    assert [a.name for a in keys.order] == ["d", "j"]
    assert any("6x4 of 16: acc := " in line for line in plan.text().splitlines())


def test_the_plan_is_the_same_each_time() -> None:
    program = attention(512, 64, 0, True)
    assert text(program, Schedule({"h": 1, "q": 32, "j": 64})) == text(program, Schedule({"h": 1, "q": 32, "j": 64}))
    assert host().kind == "cpu"


def test_lanes_follow_what_a_pass_reads() -> None:
    """The products behind a mean read along k with a stride, but they are no part of the pass that makes the mean."""
    h, w, k, n = every = axes(h=9, w=7, k=128, n=64)
    made = kernel("mean_products", every, ())
    total = made.reduce("sum", made.load(buffer("X", 9, 7, 128), h, w, k), h, w)
    for name in ("P", "Q", "R"):
        product = made.dot(made.zeros(n), total, made.load(weight("W" + name, 128, 64), k, n), k)
        made.store(product, out(name, 64), n)
    assert "lane k, 1x4 of 16: keep sum" in text(made.program(), Schedule())


def test_short_rows_of_dear_formulas_put_lanes_across_rows() -> None:
    """Two exponentials would fill two of sixteen lanes; a copy of two elements does not pay for a gather."""
    r, n = every = axes(r=64, n=2)
    made = kernel("pairs", every, (r,))
    e = made.map(exp(made.load(buffer("X", 64, 2), r, n)))
    made.store(fn("div", e, made.reduce("sum", e, n)), out("Y", 64, 2), r, n)
    assert "lane r" in text(made.program(), Schedule({"r": 64}))
    made = kernel("copy", every, (r,))
    made.store(made.load(buffer("X", 64, 2), r, n), out("Y", 64, 2), r, n)
    assert "lane n" in text(made.program(), Schedule({"r": 64}))


def test_large_weights_are_read_once_for_all_rows() -> None:
    """Lanes come before rows where the columns are in one tile and their weights are larger than what the rows read."""
    m, n, k = every = axes(m=24, n=256, k=256)
    made = kernel("linear", every, (m,))
    a, w = made.load(buffer("A", 24, 256), m, k), made.load(weight("W", 256, 256), k, n)
    product = made.dot(made.zeros(m, n), a, w, k)
    made.store(product, out("Y", 24, 256), m, n)
    lines = passes(made.program(), Schedule({"m": 24}, pack={"W": Packing(1, 64)}))
    assert lines == ["pass m, lane n first, 6x4 of 16: store dot -> Y[m, n]"]
    assert not any("first" in line for line in passes(mlp(24, 32, 16), Schedule({"m": 24})))


def test_register_tiles_take_the_row_axis_that_fills_them() -> None:
    """Two rows of an inner axis would leave two thirds of the accumulators unused."""
    s, b, n, k = every = axes(s=30, b=2, n=64, k=32)
    made = kernel("linear", every, (s, b, n))
    a, w = made.load(buffer("A", 2, 30, 32), b, s, k), made.load(weight("W", 32, 64), k, n)
    made.store(made.dot(made.zeros(s, b, n), a, w, k), out("Y", 30, 2, 64), s, b, n)
    program = made.program()
    assert passes(program, Schedule({"s": 30})) == ["pass b, s, lane n, 6x4 of 16: store dot -> Y[s, b, n]"]
    assert passes(program, Schedule({"s": 1})) == ["pass b, lane n, 6x4 of 16: store dot -> Y[s, b, n]"]


def test_columns_whose_rows_lie_pages_apart_are_copied_where_many_rows_read_them() -> None:
    def planned(width: int, rows: int) -> list[str]:
        g = Graph()
        a, b = (g.add_input(n, TensorType(DType.F32, s)) for n, s in (("a", (2, rows, 64)), ("b", (2, 64, width))))
        g.set_outputs({"y": g.emit("matmul", [a, b])})
        region = lower(g, "product")
        assert isinstance(region, LoweredRegion)
        return passes(region.program, choose_cpu(region.program, replace(WIDE, units=1, l2_bytes=1 << 20)))

    assert any("keep" in line for line in planned(1024, 96))
    assert not any("keep" in line for line in planned(1040, 96)), "rows of other lengths spread over all sets"
    assert not any("keep" in line for line in planned(1024, 8)), "few rows do not pay for a copy"


def test_rows_of_register_tiles_share_the_weights() -> None:
    """Heads are parts of the columns: as rows they would read other weights each."""
    s, h, d, k = every = axes(s=20, h=12, d=32, k=64)
    made = kernel("heads", every, (s,))
    x, w = made.load(buffer("X", 20, 64), s, k), made.load(weight("W", 64, 12, 32), k, h, d)
    made.store(made.dot(made.zeros(h, s, d), x, w, k), out("Y", 12, 20, 32), h, s, d)
    lines = passes(made.program(), Schedule({"s": 20}, register=(14, 2)))
    assert lines == ["pass h, s, lane d, 14x2 of 16: store dot -> Y[h, s, d]"]
