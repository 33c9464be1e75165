"""Symbolic shape arithmetic: what models compute with Shape, Gather, Concat, Where, ... becomes dimensions."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest

from opfuse.errors import UnsupportedOperators
from opfuse.frontends.onnx import load
from opfuse.frontends.onnx.imports.resize import meant
from opfuse.frontends.onnx.shapes import bounds, maximum, minimum, reshape_target, slice_bounds, truncated_quotient
from opfuse.ir.dims import Dim, floordiv, symbol
from opfuse.ir.evaluate import evaluate
from opfuse.ir.graph import Graph
from tests.frontends.small_models import Arrays, small

S, B = symbol("S"), symbol("B")
X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
NUMBERS = {f"c{k}": np.array(k) for k in range(10)} | {f"v{k}": np.array([k]) for k in range(10)}


def ops(graph: Graph) -> list[str]:
    return sorted(node.op for node in graph.nodes.values())


def run(body: str, feeds: Arrays | None = None, opset: int = 13, **constants: np.ndarray) -> tuple[Graph, np.ndarray]:
    feeds = {"x": X} if feeds is None else feeds
    used = {k: v for k, v in {**NUMBERS, **constants}.items() if k in re.findall(r"\w+", body)}
    graph = load(small(opset, feeds, body, constants=used, symbolic=True))
    return graph, evaluate(graph, feeds)["y"]


# ---- dimension algebra ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("dim", "least", "expected"),
    [
        (S, 0, (0, None)), (S, 1, (1, None)), (-S, 1, (None, -1)), (S * B + 2, 1, (3, None)), (S - B, 0, (None, None)),
        (floordiv(S, 2), 1, (0, None)), (S % 4, 0, (0, None)), (minimum(S, 5) * 2, 1, (2, None)), (7, 0, (7, 7)),
    ],
)  # fmt: skip
def test_bounds(dim: Dim, least: int, expected: tuple[int | None, int | None]) -> None:
    assert bounds(dim, least) == expected


def test_choices_and_quotients() -> None:
    assert minimum(S, S + 1) == S and maximum(S, S + 1) == S + 1
    assert maximum(S, 0) == S and minimum(S, -2) == -2
    assert truncated_quotient(S * 6, 3) == S * 2
    assert truncated_quotient(-7, 2) == -3 and truncated_quotient(7, -2) == -3


@pytest.mark.parametrize(
    ("start", "stop", "step", "extent", "expected"),
    [
        (0, 2**31 - 1, 1, S, (0, S)), (1, -1, 1, S, (1, S - 1)), (-2, 10**9, 1, S, (S - 2, S)), (0, S, 1, 512, (0, S)),
        (0, 100, 1, 7, (0, 7)), (-9, 3, 1, 7, (0, 3)), (-1, -(2**31), -1, S, (S - 1, -1)), (9, 0, -2, 7, (6, 0)),
        (0, 1, 1, S, (0, 1)), (0, -(10**9), 1, S, (0, 0)),
    ],
)  # fmt: skip
def test_slice_bounds(start: Dim, stop: Dim, step: int, extent: Dim, expected: tuple[Dim, Dim]) -> None:
    assert slice_bounds(start, stop, step, extent) == expected


def test_a_stop_of_the_model_is_clamped_by_a_symbol() -> None:
    _, stop = slice_bounds(0, 100, 1, S)
    graph, y = run("y = Slice (x, b, e)", b=np.array([0]), e=np.array([100]))
    assert str(stop) == "min(100, S)" and y.shape == X.shape


@pytest.mark.parametrize(
    ("codes", "shape", "allowzero", "expected"),
    [
        ((0, -1), (B, S, 12), False, (B, S * 12)), ((-1, 6), (B, S, 12), False, (B * S * 2, 6)),
        ((B, S, 3, -1), (B, S, 12), False, (B, S, 3, 4)), ((0, 3), (3, 0), True, (0, 3)), ((-1,), (), False, (1,)),
        ((S, -1), (B * S, 12), False, (S, B * 12)),
    ],
)  # fmt: skip
def test_reshape_target(
    codes: tuple[Dim, ...], shape: tuple[Dim, ...], allowzero: bool, expected: tuple[Dim, ...]
) -> None:
    assert reshape_target(codes, shape, allowzero) == expected


@pytest.mark.parametrize("codes", [(-1, -1), (5, -1), (0, 0, 0, 0), (-2, 3)])
def test_reshape_targets_that_mean_nothing(codes: tuple[int, ...]) -> None:
    with pytest.raises(ValueError):
        reshape_target(codes, (2, 3), False)


# ---- whole models --------------------------------------------------------------------------------------------------
ONE_RESHAPE = """s = Shape (x) b = Gather (s, c0) c = Gather (s, c2) m = Mul (b, c) u = Unsqueeze (m, v0)
                 t = Concat <axis = 0> (u, minus) y = Reshape (x, t)"""


PERMUTED = "s = Shape (x) a, b, c = Split <axis = 0> (s) t = Concat <axis = 0> (c, a, b) y = Reshape (x, t)"
QUOTIENT = """s = Shape (x) d = Slice (s, v0, v1) e = ReduceProd <axes = [0]> (s) f = Div (e, d)
              t = Concat <axis = 0> (d, f) y = Reshape (x, t)"""
EXPAND_AS = """s = Shape (x) k = Shape (s) o = ConstantOfShape <value = int64[1] {1}> (k) m = Mul (o, minus)
               q = Equal (s, m) w = Where (q, o, s) y = Expand (x, w)"""
CUT = "s = Shape (x) g = Gather (s, c1) l = Sub (g, c1) u = Unsqueeze (l, v0) y = Slice (x, v1, u, v1)"
BOUNDS = "s = Shape (x) n = Neg (s) a = Abs (n) q = Max (a, s) r = Min (q, s) y = Reshape (x, r)"
POSITIVE = """s = Shape (x) f = Mod (s, c5) z = Greater (s, minus) c = Cast <to = 7> (z) t = Mul (s, c)
              y = Reshape (x, t)"""


@pytest.mark.parametrize(
    ("body", "expected_ops", "shape"),
    [
        (ONE_RESHAPE, ["reshape"], (8, 3)),
        (PERMUTED, ["reshape"], (4, 2, 3)),
        ("n = Size (x) t = Unsqueeze (n, v0) y = Reshape (x, t)", ["reshape"], (24,)),
        (QUOTIENT, ["reshape"], (2, 12)),
        ("s = Shape (x) c = Cast <to = 6> (s) d = Cast <to = 7> (c) y = Expand (x, d)", ["expand"], (2, 3, 4)),
        (EXPAND_AS, ["expand"], (2, 3, 4)),
        (CUT, ["slice"], (2, 1, 4)),
        (BOUNDS, ["reshape"], (2, 3, 4)),
        (POSITIVE, ["reshape"], (2, 3, 4)),
    ],
)
def test_shape_arithmetic_leaves_no_kernel(body: str, expected_ops: list[str], shape: tuple[int, ...]) -> None:
    graph, y = run(body, minus=np.array([-1]))
    assert ops(graph) == expected_ops
    assert y.shape == shape
    np.testing.assert_array_equal(y.ravel(), X.ravel() if y.size == X.size else X[:, 1:2].ravel())


def test_range_of_a_symbolic_length_is_an_iota() -> None:
    graph, y = run("s = Shape (x) n = Gather (s, c1) y = Range (c2, n, c1)")
    assert ops(graph) == ["add", "iota"]
    np.testing.assert_array_equal(y, [2])
    graph, y = run("s = Shape (x) n = Gather (s, c2) y = Range (c0, n, c3)")
    np.testing.assert_array_equal(y, [0, 3])


def test_shapes_that_flow_into_data_are_materialised_once() -> None:
    graph, y = run(
        "s = Shape (x) g = Gather (s, c1) h = Mul (g, c2) f = Cast <to = 1> (h) q = Div (x, f) y = Add (q, f)"
    )
    assert ops(graph) == ["add", "cast", "dims", "div", "reshape"]
    np.testing.assert_allclose(y, X / 6 + 6, rtol=1e-6)
    assert graph.types["h"].shape == ()
    graph, y = run("s = Shape (x) y = Add (s, v1)")
    assert ops(graph) == ["dims"]
    np.testing.assert_array_equal(y, [3, 4, 5])


def test_names_stay_the_models_own() -> None:
    graph, _ = run("s = Shape (x) t = Identity (s) r = Reshape (x, t) y = Relu (r)")
    assert [n.output for n in graph.nodes.values()] == ["r", "y"]
    assert [n.origin for n in graph.nodes.values()] == [("r",), ("y",)]


def test_constants_that_fold_where_numbers_are_needed() -> None:
    """Floats too: the scales of old exporters are computed, then cast to integers."""
    graph, y = run(
        "f = Mul (p, q) i = Cast <to = 7> (f) y = Reshape (x, i)", p=np.array([2.0, 3.0]), q=np.array([3.0, 4 / 3])
    )
    assert ops(graph) == ["reshape"] and y.shape == (6, 4)


@pytest.mark.parametrize(
    ("factor", "rounding", "expected"), [(2.0, "Floor", (2, 6, 4)), (0.5, "Floor", (2, 1, 4)), (0.5, "Ceil", (2, 2, 4))]
)
def test_extents_that_go_through_floats(factor: float, rounding: str, expected: tuple[int, ...]) -> None:
    body = f"""s = Shape (x) h = Gather (s, v1) f = Cast <to = 1> (h) m = Mul (f, k) r = {rounding} (m)
               i = Cast <to = 7> (r) a = Gather (s, v0) b = Gather (s, v2) n = Concat <axis = 0> (a, i, b)
               y = Resize <mode = "nearest"> (x, "", "", n)"""
    model = small(13, {"x": X}, body, symbolic=True, constants={**NUMBERS, "k": np.float32(factor)})
    graph = load(model, {} if factor == 2.0 else {"x": X.shape})
    assert "cast" not in ops(graph)
    assert evaluate(graph, {"x": X})["y"].shape == expected


def test_floats_that_may_round_either_way_are_not_followed() -> None:
    start, end = "s = Shape (x) f = Cast <to = 1> (s)", "i = Cast <to = 7> (m) y = ConstantOfShape (i)"
    constants = {"k": np.float32(0.7), "c": np.float32(3)}
    for middle in ("m = Mul (f, k)", "q = Div (f, c) m = Mul (q, c)", "q = Add (f, k) m = Floor (q)"):
        with pytest.raises(UnsupportedOperators, match="depend on data"):
            load(small(13, {"x": X}, f"{start} {middle} {end}", symbolic=True, constants=constants))
    thirds = small(13, {"x": X}, f"{start} q = Div (f, c) m = Floor (q) {end}", symbolic=True, constants=constants)
    assert evaluate(load(thirds), {"x": X})["y"].shape == (0, 1, 1)


def test_overridable_numbers_of_shapes_become_constants() -> None:
    feeds = {"x": X, "w": np.array([2.0], np.float32), "s": np.array([6, 4])}
    graph = load(small(13, feeds, "r = Reshape (x, s) y = Mul (r, w)", constants={"w": feeds["w"], "s": feeds["s"]}))
    assert graph.inputs == ["x", "w"] and list(graph.defaults) == ["w"]
    assert evaluate(graph, {"x": X})["y"].shape == (6, 4)


# ---- dimensions that must be equal ---------------------------------------------------------------------------------
def test_two_names_of_one_dimension() -> None:
    graph = load(small(13, {"x": X[0], "m": X[0]}, "y = Add (x, m)", symbolic=True))
    assert graph.symbols == ("x_0", "x_1")
    assert graph.types["m"].shape == graph.types["x"].shape


def test_a_symbol_that_must_be_a_number() -> None:
    graph = load(small(13, {"x": X}, "y = MatMul (x, w)", constants={"w": np.ones((4, 5), np.float32)}, symbolic=True))
    assert graph.types["x"].shape[2] == 4


def test_extents_that_must_divide() -> None:
    """Half of x doubled, added to x: right for even extents, refused for odd ones."""
    body = 'p = MaxPool <kernel_shape = [2], strides = [2]> (x) r = Resize <mode = "nearest"> (p, "", k) y = Add (x, r)'
    image = np.arange(8, dtype=np.float32).reshape(1, 1, 8)
    graph = load(small(13, {"x": image}, body, constants={"k": np.float32([1, 1, 2])}, symbolic=True))
    np.testing.assert_array_equal(evaluate(graph, {"x": image})["y"].ravel(), [1, 2, 5, 6, 9, 10, 13, 14])
    with pytest.raises(ValueError):
        graph.bind({"x_2": 7})


def test_squeeze_of_an_unknown_dimension() -> None:
    with pytest.raises(UnsupportedOperators, match="not known"):
        load(small(11, {"x": X}, "y = Squeeze (x)", symbolic=True))
    graph = load(small(11, {"x": X}, "y = Squeeze <axes = [1]> (x)", symbolic=True))
    assert graph.types["x"].shape[1] == 1


def test_anonymous_dimensions_are_each_their_own() -> None:
    model = small(13, {"x": X}, "y = Relu (x)")
    dims = model.graph.input[0].type.tensor_type.shape.dim
    dims[0].dim_value, dims[1].dim_param = -1, "?"
    dims[2].Clear()
    assert load(model).types["x"].shape == (symbol("x_0"), symbol("x_1"), symbol("x_2"))
    dims[2].dim_param = "x_0"
    assert load(model).symbols == ("x_0_", "x_1", "x_0")


def test_places_made_of_constants_are_known_however_many_they_are() -> None:
    """Exporters write `x[a:b] = v` with an index for every element, put together from parts."""
    rows, columns = (a.reshape(-1, 1) for a in np.meshgrid(np.arange(80), np.arange(60), indexing="ij"))
    x, v = np.zeros((80, 61), np.float32), np.arange(4800, dtype=np.float32)
    body, parts = "i = Concat <axis = 1> (r, k) y = ScatterND (x, i, v)", {"r": rows, "k": columns}
    graph = load(small(13, {"x": x, "v": v}, body, constants=parts))
    assert "scatter_nd" not in ops(graph)
    y = evaluate(graph, {"x": x, "v": v})["y"]
    np.testing.assert_array_equal(y, np.pad(v.reshape(80, 60), ((0, 0), (0, 1))))


def test_a_factor_of_float32_is_the_simple_fraction_that_it_was_rounded_from() -> None:
    """At 0.6 position 3 is element 5 and position 9 element 15, not those below; ONNX Runtime finds the first only."""
    assert meant(float(np.float32(0.6))) == Fraction(3, 5) and meant(float(np.float32(160 / 225))) == Fraction(32, 45)
    assert meant(0.1234567) == Fraction(0.1234567), "what no simple fraction rounds to stays as it is"
    x, scale = np.arange(20, dtype=np.float32).reshape(1, 20), np.array([1, 0.6], np.float32)
    body = 'y = Resize <coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (x, e, s)'
    y = evaluate(load(small(13, {"x": x}, body, constants={"s": scale, "e": np.zeros(0, np.float32)})), {"x": x})["y"]
    np.testing.assert_array_equal(y[0], [0, 1, 3, 5, 6, 8, 10, 11, 13, 15, 16, 18])
