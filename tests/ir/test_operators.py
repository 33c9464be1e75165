"""The whole operator table, sample by sample: shape rule, oracle, structure and expansion must tell one story.

The structure is run by a small interpreter in float64 that shares nothing with the oracles; tolerances follow from the
oracle's type and the length of its reductions.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from opfuse.ir import ops
from opfuse.ir.check import check
from opfuse.ir.dims import Dim, bind, symbol
from opfuse.ir.evaluate import evaluate
from opfuse.ir.graph import Graph, bind_attribute
from opfuse.ir.ops import Call, Kind, Operator, Sample, flops_of, get, operators, scan_of, structure_of
from opfuse.ir.scalar import Apply, walk
from opfuse.ir.structure import Structure
from opfuse.ir.text import parse, print_graph
from opfuse.ir.types import DType, TensorType
from tests.ir.structure_interpreter import interpret

EPSILON = {DType.F64: 2.0**-53, DType.F32: 2.0**-24, DType.F16: 2.0**-11, DType.BF16: 2.0**-8}
DATA_DEPENDENT = {"non_zero"}  # the shape is known at run time only


def arrays_of(operator: Operator, sample: Sample) -> list[np.ndarray | None]:
    rng = np.random.default_rng(zlib.crc32(f"{operator.name}{sample.attrs}".encode()))
    return [rng.standard_normal(i).astype(np.float32) if isinstance(i, tuple) else i for i in sample.inputs]  # type: ignore[misc]


def types_of(arrays: list[np.ndarray | None]) -> tuple[TensorType | None, ...]:
    return tuple(TensorType(DType.of(a.dtype), a.shape) if a is not None else None for a in arrays)


def graph_of(
    operator: Operator, sample: Sample, arrays: list[np.ndarray | None]
) -> tuple[Graph, dict[str, np.ndarray]]:
    """The sample as a graph of one node, and its feeds. The outputs are y, y1, y2, ..."""
    g, feeds = Graph(operator.name), {}
    inputs: list[str | None] = []
    for k, a in enumerate(arrays):
        if a is not None:
            g.add_input(f"in{k}", TensorType(DType.of(a.dtype), a.shape))
            feeds[f"in{k}"] = a
        inputs.append(f"in{k}" if a is not None else None)
    g.emit(operator.name, inputs, sample.attrs, name="node", origin=("User",))
    g.set_outputs(named(g.nodes["node"].outputs))
    return g, feeds


def named(values: Sequence[str]) -> dict[str, str]:
    return {f"y{k or ''}": v for k, v in enumerate(values)}


def call_of_sample(operator: Operator, sample: Sample) -> Call:
    arrays = arrays_of(operator, sample)
    g, _ = graph_of(operator, sample, arrays)
    return Call(g.nodes["node"].attrs, types_of(arrays), tuple(g.types[v] for v in g.outputs.values()))


def cases(wanted: Callable[[Operator, Sample], bool] = lambda operator, sample: True) -> list[Any]:
    rows = ((o, k, s) for o in operators().values() for k, s in enumerate(o.samples))
    return [pytest.param(o, s, id=f"{o.name}-{k}") for o, k, s in rows if wanted(o, s)]


def has_structure(operator: Operator, sample: Sample) -> bool:
    return operator.structure is not None and not operator.expands(call_of_sample(operator, sample))


def expands(operator: Operator, sample: Sample) -> bool:
    return operator.expands(call_of_sample(operator, sample))


def can_be_symbolic(operator: Operator, sample: Sample) -> bool:
    """Not where attributes or small inputs tie extents together (a reshape's target): only numbers make sense there.

    Recurrences tie the extents of their weights together; they have a test of their own.
    """
    if operator.kind is Kind.PHASED or operator.outputs != 1:
        return False
    numbers = {"shape", "starts", "values", "extent", "block"}
    if operator.name in ("one_hot", "gather_nd", "scatter_nd", "pad", "max_pool_places") or numbers & set(sample.attrs):
        return False
    return any(a is not None and max(a.shape, default=0) > 1 for a in arrays_of(operator, sample))


def assert_close(actual: np.ndarray, expected: np.ndarray, dtype: DType, steps: float) -> None:
    """Equal shape; integers and bools equal; floats within `steps` roundings, relative to the tensor's own size.

    NaN and infinities must stand in the same places.
    """
    assert actual.shape == expected.shape
    if dtype.is_narrow:
        actual, expected = actual.view(np.uint8), expected.view(np.uint8)
    if not dtype.is_float:
        np.testing.assert_array_equal(actual, expected)
        return
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.abs(expected[np.isfinite(expected)])
    scale = max(1.0, float(finite.max())) if finite.size else 1.0
    unit = EPSILON[dtype]
    np.testing.assert_allclose(actual, expected, rtol=steps * unit, atol=steps * unit * scale)


def steps_of(structure: Structure | None, arrays: list[np.ndarray | None]) -> float:
    """Roundings to allow: some tens for a formula, and two for each summed element (oracles sum in any order)."""
    longest = max((a.size for a in arrays if a is not None), default=1)
    length = math.prod(int(a.extent) for a in structure.reduce_axes) if structure is not None else longest  # type: ignore[arg-type]
    return 32.0 + 2 * length


# ---- every sample ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("operator", "sample"), cases())
def test_type_of_the_oracle_is_the_inferred_type(operator: Operator, sample: Sample) -> None:
    g, feeds = graph_of(operator, sample, arrays_of(operator, sample))
    check(g)
    for precision in ("native", "f64"):
        for name, y in evaluate(g, feeds, precision).items():
            expected = g.types[g.outputs[name]]
            dtype = DType.F64 if precision == "f64" and expected.dtype.is_float else expected.dtype
            assert DType.of(y.dtype) is dtype
            if operator.name not in DATA_DEPENDENT:
                assert y.shape == expected.shape


@pytest.mark.parametrize(("operator", "sample"), cases(has_structure))
def test_structure_agrees_with_the_oracle(operator: Operator, sample: Sample) -> None:
    arrays = arrays_of(operator, sample)
    g, feeds = graph_of(operator, sample, arrays)
    structure = structure_of(g, g.nodes["node"])
    assert structure is not None
    structure.check()
    output = g.types[g.outputs["y"]]
    assert tuple(a.extent for a in structure.axes) == output.shape
    assert (structure.finish or structure.body).dtype is output.dtype
    actual = interpret(structure, arrays)
    assert_close(actual, evaluate(g, feeds)["y"], output.dtype, steps_of(structure, arrays))
    if (
        not any(a is not None and DType.of(a.dtype) in (DType.F16, DType.BF16) for a in arrays)
        and operator.name != "cast"
    ):
        assert_close(
            actual, evaluate(g, feeds, "f64")["y"], DType.F64 if output.dtype.is_float else output.dtype, 2.0**10
        )


@pytest.mark.parametrize(("operator", "sample"), cases(expands))
def test_expansion_agrees_with_the_oracle(operator: Operator, sample: Sample) -> None:
    if "epsilon" in operator.attrs:  # a float32 in a model, so that the constant of an expansion holds it exactly
        epsilon = float(np.float32(operator.complete(sample.attrs)["epsilon"]))
        sample = Sample(sample.inputs, {**sample.attrs, "epsilon": epsilon})
    arrays = arrays_of(operator, sample)
    g, feeds = graph_of(operator, sample, arrays)
    node = g.nodes["node"]
    call = Call(node.attrs, types_of(arrays), tuple(g.types[v] for v in node.outputs))
    e = Graph("expansion")
    for name in g.inputs:
        e.add_input(name, g.types[name])
    assert operator.expand is not None
    e.set_outputs(named(operator.expand(e, call, node.inputs)))
    check(e)
    assert tuple(e.types[v] for v in e.outputs.values()) == call.outputs
    for inner in e.nodes.values():
        primitive = structure_of(e, inner) is not None or scan_of(e, inner) is not None
        assert primitive, f"{inner.op} is no primitive"
    dtype = call.output.dtype
    for y in g.outputs:
        if dtype in (DType.F32, DType.F64):
            assert_close(evaluate(e, feeds)[y], evaluate(g, feeds)[y], dtype, steps_of(None, arrays))
            assert_close(evaluate(e, feeds, "f64")[y], evaluate(g, feeds, "f64")[y], DType.F64, 2.0**10)
        else:
            assert_close(evaluate(e, feeds)[y], evaluate(g, feeds)[y], dtype, 2)


@pytest.mark.parametrize(("operator", "sample"), cases())
def test_text_round_trip_and_flops(operator: Operator, sample: Sample) -> None:
    g, _ = graph_of(operator, sample, arrays_of(operator, sample))
    back = parse(print_graph(g))
    assert print_graph(back) == print_graph(g) and repr(back.nodes["node"].attrs) == repr(g.nodes["node"].attrs)
    count = flops_of(g, g.nodes["node"])
    assert isinstance(count, int) and count >= 0


# ---- symbolic dimensions ---------------------------------------------------------------------------------------------
def symbolic(shape: tuple[int, ...], taken: dict[int, Dim]) -> tuple[Dim, ...]:
    """Every extent above 1 becomes a symbol, equal extents the same one."""
    return tuple(taken.setdefault(d, symbol(f"n{d}")) if d > 1 else d for d in shape)


@pytest.mark.parametrize(("operator", "sample"), cases(can_be_symbolic))
def test_symbolic_inference_agrees_after_binding(operator: Operator, sample: Sample) -> None:
    arrays = arrays_of(operator, sample)
    taken: dict[int, Dim] = {}
    attrs = operator.complete(sample.attrs)
    inputs = tuple(
        TensorType(DType.of(a.dtype), a.shape if _is_weight(operator, k, sample) else symbolic(a.shape, taken))
        if a is not None
        else None
        for k, a in enumerate(arrays)
    )
    if operator.name in ("conv", "conv_transpose"):  # channels must stay numbers that fit the weight
        channel = 1 if attrs.get("layout", "NCHW") == "NCHW" else arrays[0].ndim - 1
        x = inputs[0]
        inputs = (
            TensorType(x.dtype, tuple(arrays[0].shape[k] if k == channel else d for k, d in enumerate(x.shape))),
            *inputs[1:],
        )
    result = operator.infer(Call(attrs, inputs))
    assert isinstance(result, TensorType)
    values = {f"n{n}": n for n in taken}
    numeric = operator.infer(Call(attrs, types_of(arrays)))
    if operator.name not in DATA_DEPENDENT:
        assert result.bind(values) == numeric
    call = Call(attrs, inputs, (result,))
    if operator.structure is None or operator.expands(call):
        return
    structure = operator.structure(call)
    numbers = operator.structure(Call(attrs, types_of(arrays), (numeric,)))
    assert_close(
        interpret(structure, arrays, values),
        interpret(numbers, arrays),
        DType.F64 if numeric.dtype.is_float else numeric.dtype,
        4,
    )


def _is_weight(operator: Operator, k: int, sample: Sample) -> bool:
    return operator.name in ("conv", "conv_transpose", "resample") and k > 0


# ---- the table itself ------------------------------------------------------------------------------------------------
def test_the_table_holds_every_family() -> None:
    """Each module of the package that has OPERATORS is asked for them."""
    modules = [importlib.import_module(f"{ops.__name__}.{m.name}") for m in pkgutil.iter_modules(ops.__path__)]
    written = [o.name for m in modules for o in getattr(m, "OPERATORS", ())]
    assert sorted(operators()) == sorted(written)


@pytest.mark.parametrize("operator", operators().values(), ids=lambda o: o.name)
def test_each_row_is_well_formed(operator: Operator) -> None:
    assert len(operator.samples) >= 2
    assert re.fullmatch(r"[a-z][a-z0-9_]*", operator.name)
    assert (operator.structure is not None) == (operator.kind is Kind.STRUCTURED)
    assert operator.kind is not Kind.COMPOSITE or operator.expand is not None
    assert operator.needs_expansion is None or (operator.expand is not None and operator.structure is not None)


# ---- numbers from the list of public faults --------------------------------------------------------------------------
NAN, INF = np.nan, np.inf


def run(op: str, *arrays: Any, dtype: type = np.float32, **attrs: Any) -> np.ndarray:
    """The oracle's answer; where there is a structure (or an expansion), it must say the same, NaN places included."""
    given = [np.asarray(a, dtype) if isinstance(a, (list, float, int)) else a for a in arrays]
    operator = get(op)
    sample = Sample(tuple(given), attrs)
    g, feeds = graph_of(operator, sample, given)
    y = evaluate(g, feeds)["y"]
    structure = structure_of(g, g.nodes["node"])
    if structure is not None:
        assert_close(interpret(structure, given), y, DType.of(y.dtype), steps_of(structure, given))
    return y


def test_relu_max_and_min_keep_nan() -> None:
    for n in (1, 3, 8, 17):
        x = np.resize(np.array([NAN, 1, -2, 0, -0.0], np.float32), n)
        np.testing.assert_array_equal(run("relu", x), np.where(np.isnan(x), NAN, np.where(x > 0, x, 0)))
    a, b = [NAN, -5, NAN, 3], [6, NAN, NAN, 8]
    np.testing.assert_array_equal(run("maximum", a, b), [NAN, NAN, NAN, 8])
    np.testing.assert_array_equal(run("minimum", a, b), [NAN, NAN, NAN, 3])
    rows = [[NAN, 1, 2], [2, NAN, 1], [1, 2, NAN]]
    for op in ("reduce_max", "reduce_min"):
        assert np.isnan(run(op, rows, axes=(1,), keepdims=False)).all()
    np.testing.assert_array_equal(run("argmax", rows, axis=1, keepdims=False), [0, 1, 2])
    assert np.isnan(run("sign", [NAN])).all() and np.isnan(run("erf", [NAN])).all()


def test_clip_with_odd_bounds() -> None:
    """max wins over min; a NaN bound makes everything NaN (so do the structure and every kernel made from it)."""
    x = [0.25, -6, 2, 9, NAN]
    np.testing.assert_array_equal(run("clip", x, 3.0, 1.0), [1, 1, 1, 1, NAN])
    assert np.isnan(run("clip", x, 0.0, NAN)).all()
    np.testing.assert_array_equal(run("clip", x, 0.0), [0.25, 0, 2, 9, NAN])


def test_algebra_is_not_that_of_the_reals() -> None:
    e = get("exp").oracle({}, [np.array([89, 100, -110], np.float32)])
    assert (
        e.tolist()[:2] == [INF, INF]
        and e[2] == 0
        and np.isnan(run("mul", [e[1]], [e[2]])[0])
        and run("log", [0.0])[0] == -INF
    )
    assert np.isnan(run("mul", [INF, NAN], [0.0, 0])).all() and np.signbit(run("mul", [-1.0], [0.0]))[0]
    assert np.isnan(run("sub", [INF], [INF])[0]) and np.isnan(run("div", [0.0], [0.0])[0])
    assert not np.signbit(run("add", [-0.0], [0.0]))[0]
    assert run("rsqrt", [3.0], dtype=np.float64)[0] == pytest.approx(0.5773502691896258, rel=1e-15)


def test_casts_of_floats_that_do_not_fit() -> None:
    x = [300, -1.5, NAN, INF, -INF, 50.9, -50.9]
    low = -(2**31)
    assert run("cast", x, to=DType.I8).tolist() == [44, -1, 0, 0, 0, 50, -50]
    assert run("cast", x, to=DType.U8).tolist() == [44, 255, 0, 0, 0, 50, 206]
    assert run("cast", x, to=DType.I32).tolist() == [300, -1, low, low, low, 50, -50]
    assert run("cast", x, to=DType.BOOL).tolist() == [True] * 7 and run("cast", [0.0], to=DType.BOOL).tolist() == [
        False
    ]
    assert run("cast", [2.0**63, -1.0, 3e9], to=DType.U64).tolist() == [2**63, 2**64 - 1, 3 * 10**9]
    assert run("cast", [3e9, -1.0], to=DType.U32).tolist() == [3 * 10**9, 2**32 - 1]
    assert run("cast", [70000.0, 65519, 65520], to=DType.F16).tolist() == [INF, 65504, INF]


def test_integer_arithmetic() -> None:
    a, b = np.array([[-7, 7, -1], [5, -8, 9]]), np.array([2, -2, 3])
    assert run("mod", a, b).tolist() == [[1, -1, 2], [1, 0, 0]]
    assert run("div", a, b).tolist() == [[-3, -3, 0], [2, 4, 3]]
    assert run("fmod", a, b).tolist() == [[-1, 1, -1], [1, 0, 0]]
    small = np.array([200, 255], np.uint8)
    assert run("add", small, np.array([200, 0], np.uint8)).tolist() == [144, 255]
    assert run("mul", small, np.array([1, 255], np.uint8)).tolist() == [200, 1]
    assert run("pow", np.array([2, -1, 3, 0]), np.array([10, -3, -1, 0])).tolist() == [1024, -1, 0, 1]
    assert run("reduce_mean", np.array([[-7, 0]]), axes=(1,), keepdims=False).tolist() == [-3]


def test_empty_tensors_and_rank_zero() -> None:
    empty = np.zeros((2, 0), np.float32)
    over = {"axes": (1,), "keepdims": False}
    assert run("reduce_sum", empty, **over).tolist() == [0, 0] and run("reduce_prod", empty, **over).tolist() == [1, 1]
    assert (
        run("reduce_max", empty, **over).tolist() == [-INF, -INF] and np.isnan(run("reduce_mean", empty, **over)).all()
    )
    assert run("reduce_log_sum_exp", empty, **over).tolist() == [-INF, -INF]
    assert run("reduce_mean", np.array(3.0, np.float32), axes=(), keepdims=False) == 3
    x = [[1, 2], [3, 4]]
    assert run("reduce_sum", x, axes=(0, 1), keepdims=False) == 10 and run("reduce_sum", x, axes=()).tolist() == x
    assert run("matmul", empty, np.zeros((0, 3), np.float32)).tolist() == [[0] * 3] * 2
    assert run("concat", np.zeros((0, 2), np.float32), [[1, 2]], axis=0).tolist() == [[1, 2]]
    assert run("softmax", empty, axis=1).shape == (2, 0)
    assert run("gelu", 1.0).tolist() == pytest.approx(0.8413447, abs=1e-7)


def test_half_precision_statistics_do_not_overflow() -> None:
    half = np.float16
    assert run("reduce_mean", [60000.0] * 4, dtype=half, axes=(0,)).tolist() == [60000]
    assert run("reduce_mean", np.ones(70000, half), axes=(0,)).tolist() == [1]
    assert run("reduce_sum", np.ones(70000, half), axes=(0,)).tolist() == [INF]
    y = run("layer_norm", [[300.0, -300, 0, 0]], dtype=half, axis=1)
    np.testing.assert_allclose(y.astype(np.float64), [[2**0.5, -(2**0.5), 0, 0]], rtol=2e-3)
    assert run("softmax", [60000.0, 59968, -60000], dtype=half, axis=0).tolist() == [1, 0, 0]
    x, scale, zero = np.array([[[1e-3, 2e-3]]], half), np.array([20000], half), np.zeros(1, half)
    y = run("batch_norm", x * half(10), scale / half(10), zero, zero, zero, epsilon=1e-3)
    np.testing.assert_allclose(y.astype(np.float64), [[[632.5, 1265]]], rtol=2e-3)


def test_gelu_variants_are_told_apart() -> None:
    x = [-3, -1, 0, 1, 3]
    np.testing.assert_allclose(run("gelu", x), [-0.0040497, -0.1586553, 0, 0.8413447, 2.9959503], atol=2e-7)
    np.testing.assert_allclose(run("gelu_tanh", x), [-0.0036374, -0.158808, 0, 0.841192, 2.9963626], atol=5e-7)


def test_norms_by_hand() -> None:
    x, gamma, beta = [[1, 2, 4], [0, 5, 10]], [[1], [10]], [[0], [1]]
    y = run("layer_norm", x, gamma, beta, axis=1, epsilon=1e-5)
    np.testing.assert_allclose(y, [[-1.069041, -0.26726, 1.336302], [-11.247446, 1, 13.247446]], atol=2e-5)
    y = run("layer_norm", (np.array(x) + 1).tolist(), [1, 2, 3], [0, 0, 1], axis=1, epsilon=0.1)
    np.testing.assert_allclose(y, [[-1.036255, -0.518128, 4.885958], [-1.221087, 0, 4.663261]], atol=2e-6)
    assert run("batch_norm", [[3.0]], [2.0], [1.0], [1.0], [0.0], epsilon=1e-4).tolist() == [[pytest.approx(401)]]


def test_softmax_rows() -> None:
    x = np.log(np.arange(1, 9)).reshape(4, 2).tolist()
    np.testing.assert_allclose(run("softmax", x, axis=1)[:2], [[1 / 3, 2 / 3], [3 / 7, 4 / 7]], rtol=1e-6)
    assert np.isnan(run("softmax", [[-INF, -INF]], axis=1)).all()
    assert run("softmax", [[-INF, 0.0]], axis=1).tolist() == [[0, 1]]


def test_convolutions_and_pads_by_hand() -> None:
    w = [[[[1, 1]]]]
    line: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1)}
    x = [[[[1, 2, 3, 4]]]]
    assert run("pad", [1, 2, 3, 4], pads=(-1, 1)).tolist() == [2, 3, 4, 0]
    assert run("pad", [1, 2], pads=(1, 1), value=5.0).tolist() == [5, 1, 2, 5]
    assert run("pad", [1, 2, 3], pads=(2, 2), mode="reflect").tolist() == [3, 2, 1, 2, 3, 2, 1]
    assert run("pad", [1, 2], pads=(1, 2), mode="edge").tolist() == [1, 1, 2, 2, 2]
    assert run("conv", x, w, pads=(0, 0, 0, 0), **line).tolist() == [[[[3, 5, 7]]]]
    assert run("conv", x, w, pads=(0, 1, 0, 1), **line).tolist() == [[[[1, 3, 5, 7, 4]]]]
    grouped = run("conv", np.ones((1, 2, 1, 1)).tolist(), [[[[1]]], [[[2]]]], pads=(0,) * 4, group=2, **line)
    assert grouped.reshape(-1).tolist() == [1, 2]


def test_transposed_convolution_with_groups() -> None:
    w = (np.arange(1, 5)[:, None] * np.ones((4, 2)))[..., None, None].tolist()
    attrs: dict[str, Any] = {"strides": (1, 1), "dilations": (1, 1), "pads": (0,) * 4, "output_padding": (0, 0)}
    y = run("conv_transpose", np.ones((1, 4, 1, 1)).tolist(), w, group=2, **attrs)
    assert y.reshape(-1).tolist() == [3, 3, 7, 7]
    y = run("conv_transpose", [[[[1]], [[1]]]], [[[[1]], [[2]]], [[[3]], [[4]]]], **attrs)
    assert y.reshape(-1).tolist() == [4, 6]
    y = run(
        "conv_transpose", [[[1, 2]]], [[[1, 10, 100]]], strides=(2,), dilations=(1,), pads=(1, 0), output_padding=(1,)
    )
    assert y.reshape(-1).tolist() == [10, 102, 20, 200, 0]


def test_average_pool_counts() -> None:
    attrs: dict[str, Any] = {"kernel": (3,), "strides": (2,), "dilations": (1,), "pads": (1, 1)}
    x = [[[1, 2, 3, 4]]]
    assert run("avg_pool", x, **attrs).tolist() == [[[1.5, 3]]]
    assert run("avg_pool", x, count_include_pad=True, **attrs).tolist() == [[[1, 3]]]
    assert run("avg_pool", x, ceil_mode=True, **attrs).tolist() == [[[1.5, 3, 4]]]
    # the last window covers position 3, one pad and one place that only the rounding up adds
    np.testing.assert_allclose(run("avg_pool", x, ceil_mode=True, count_include_pad=True, **attrs), [[[1, 3, 2]]])
    # a window may not start beyond the input and its left border
    assert run(
        "max_pool", [[[1, 2, 3]]], kernel=(1,), strides=(2,), dilations=(1,), pads=(0, 1), ceil_mode=True
    ).tolist() == [[[1, 3]]]


def test_gather_wraps_and_refuses() -> None:
    assert run("gather", [10, 20, 30], np.array([-1, 0]), axis=0).tolist() == [30, 10]
    with pytest.raises(IndexError, match="index 3 is outside a dimension of extent 3"):
        get("gather").oracle({"axis": 0}, [np.zeros(3), np.array([0, 3])])
    with pytest.raises(IndexError, match="index -4"):
        get("gather_elements").oracle({"axis": 0}, [np.zeros(3), np.array([-4])])


def test_structures_read_no_further_than_they_must() -> None:
    """A window without a border has no pad (the interpreter checks that no read leaves); one with a border has one."""
    g = Graph()
    g.add_input("x", TensorType(DType.F32, (1, 2, 6, 6)))
    w = g.add_constant(np.zeros((3, 2, 3, 3), np.float32))
    for pads, expected in (((0, 0, 0, 0), False), ((1, 0, 0, 0), True), ((0, 0, 0, 1), True)):
        y = g.emit("conv", ["x", w], {"strides": (1, 1), "dilations": (1, 1), "pads": pads})
        structure = structure_of(g, g.producer(y))
        assert (structure.reads[0].pad is not None) is expected and structure.is_contraction
    # a stride that never reaches the border on the right needs no pad either
    y = g.emit("conv", ["x", w], {"strides": (3, 3), "dilations": (1, 1), "pads": (0, 0, 1, 1)})
    assert structure_of(g, g.producer(y)).reads[0].pad is None


def test_half_precision_contractions_stay_contractions() -> None:
    g = Graph()
    for name in "ab":
        g.add_input(name, TensorType(DType.BF16, (4, 4)))
    structure = structure_of(g, g.producer(g.emit("matmul", ["a", "b"])))
    assert structure.is_contraction and structure.body.dtype is DType.F32 and structure.finish.dtype is DType.BF16
    a = np.full((4, 4), 1.0078125, ml_dtypes.bfloat16)
    assert run("matmul", a, a).astype(np.float64)[0, 0] == float(
        np.asarray(4 * 1.0078125**2).astype(ml_dtypes.bfloat16)
    )


def computes_in_float(operator: Operator, sample: Sample) -> bool:
    if operator.name in ("where", "cast", "bit_cast") or not has_structure(operator, sample):
        return False
    return any(a is not None and DType.of(a.dtype).is_float for a in arrays_of(operator, sample))


@pytest.mark.parametrize("dtype", [DType.F16, DType.BF16])
@pytest.mark.parametrize(("operator", "sample"), cases(computes_in_float))
def test_half_precision_is_computed_in_float32(operator: Operator, sample: Sample, dtype: DType) -> None:
    """No arithmetic on halves in any formula (choosing and comparing is exact), and one rounding at the end."""
    given = arrays_of(operator, sample)
    with np.errstate(over="ignore"):
        floats = [a is not None and DType.of(a.dtype).is_float for a in given]
        arrays = [a.astype(dtype.numpy) if f else a for a, f in zip(given, floats, strict=True)]
    g, _ = graph_of(operator, sample, arrays)
    structure = structure_of(g, g.nodes["node"])
    exact = {"cast", "select", "max", "min", "lt", "le", "gt", "ge", "eq", "ne", "isnan"}
    for formula in (structure.body, *([structure.finish] if structure.finish is not None else [])):
        for x in walk(formula):
            if isinstance(x, Apply) and x.function not in exact:
                assert all(a.dtype is not dtype for a in x.args), str(structure)
    assert structure.combine not in ("sum", "prod") or structure.body.dtype is DType.F32


def test_movement_is_recognised() -> None:
    g = Graph()
    s = symbol("S")
    g.add_input("x", TensorType(DType.F32, (s, 12, 32)))
    views: Iterator[str] = iter(
        (
            g.emit("reshape", ["x"], {"shape": (s, 384)}),
            g.emit("transpose", ["x"], {"perm": (1, 0, 2)}),
            g.emit("slice", ["x"], {"starts": (0, 2, 0), "stops": (s, 9, 32), "steps": (1, 1, 2)}),
            g.emit("expand", ["x"], {"shape": (2, s, 12, 32)}),
        )
    )
    for y in views:
        structure = structure_of(g, g.producer(y))
        assert structure.is_movement and flops_of(g, g.producer(y)) == 0
    matmul = g.emit("matmul", ["x", g.add_constant(np.zeros((32, 5), np.float32))])
    assert flops_of(g, g.producer(matmul)) == 2 * s * 12 * 32 * 5


def test_attribute_binding_reaches_nested_tuples() -> None:
    s = symbol("S")
    assert bind_attribute((1, (s, "text"), 0.5, None, DType.F32, True), {"S": 4}) == (
        1,
        (4, "text"),
        0.5,
        None,
        DType.F32,
        True,
    )
    assert bind(s * 2, {"S": 3}) == 6
