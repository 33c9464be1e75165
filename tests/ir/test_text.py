"""A graph printed and read back is the same graph; errors name the line."""

from __future__ import annotations

import numpy as np
import pytest

from opfuse.ir.check import check
from opfuse.ir.dims import floordiv, maximum, mod, symbol
from opfuse.ir.graph import Graph
from opfuse.ir.text import TextError, parse, print_graph
from opfuse.ir.types import DType, TensorType

S, ODD = symbol("S"), symbol("batch size")
F32 = DType.F32

GOLDEN = """\
graph "m" {
  input x: f32[S, 8]
  input "/in/put:0": i64[`batch size`] = i64[2] [1, -2]
  const w: f32[2, 2] = [0.1, -0.0, inf, nan]
  const mask: bool[2] = [true, false]
  const big: f32[5, 5]
  const one: bf16[] = [1]
  softmax_1.out = softmax(x) {axis=1}: f32[S, 8] @softmax_1 from ["Softmax 0", "Exp"]
  y = reshape(softmax_1.out) {shape=[2*S, 4]}: f32[2*S, 4] @reshape_2
  c = clip(x, -, one32): f32[S, 8] @clip_3
  z = cast(c) {to=bf16}: bf16[S, 8] @cast_4
  output "out" = y
  output "z" = z
}
"""


def made() -> Graph:
    g = Graph("m")
    g.add_input("x", TensorType(F32, (S, 8)))
    g.add_input("/in/put:0", TensorType(DType.I64, (ODD,)), np.array([1, -2]))
    g.add_constant(np.array([[0.1, -0.0], [np.inf, np.nan]], np.float32), "w")
    g.add_constant(np.array([True, False]), "mask")
    g.add_constant(np.arange(25, dtype=np.float32).reshape(5, 5), "big")
    g.add_constant(np.array(1, DType.BF16.numpy), "one")
    g.add_constant(np.array(6, np.float32), "one32")
    t = g.emit("softmax", ["x"], {"axis": 1}, name="softmax_1", outputs=["softmax_1.out"], origin=("Softmax 0", "Exp"))
    y = g.emit("reshape", [t], {"shape": (2 * S, 4)}, name="reshape_2", outputs=["y"])
    g.emit("clip", ["x", None, "one32"], name="clip_3", outputs=["c"])
    z = g.emit("cast", ["c"], {"to": DType.BF16}, name="cast_4", outputs=["z"])
    g.set_outputs({"out": y, "z": z})
    return g


def same(a: Graph, b: Graph) -> None:
    assert (a.name, a.inputs, a.outputs, a.types) == (b.name, b.inputs, b.outputs, b.types)
    assert [vars(n) for n in a.nodes.values()] == [vars(n) for n in b.nodes.values()]
    for arrays, others in ((a.constants, b.constants), (a.defaults, b.defaults)):
        assert list(arrays) == list(others)
        for k, array in arrays.items():
            assert array.dtype == others[k].dtype and array.tobytes() == others[k].tobytes()


def test_golden():
    assert print_graph(made()).replace("  const one32: f32[] = [6.0]\n", "") == GOLDEN


def test_round_trip():
    g = made()
    back = parse(print_graph(g), {"big": g.constants["big"]})
    check(back)
    same(g, back)
    assert print_graph(back) == print_graph(g)


@pytest.mark.parametrize(
    "d",
    [
        S,
        2 * S + 1,
        S * ODD - 3,
        floordiv(S - 1, 2) + 1,
        mod(S, 4) * 2,
        maximum(S - 1, 0),
        floordiv(S, ODD + 1),
        -S + 5,
        symbol("f32"),
        symbol("min"),
    ],
)
def test_dimensions_round_trip(d):
    g = Graph("dims")
    g.add_input("x", TensorType(F32, (d, 3)))
    g.set_outputs({"y": g.emit("dims", [], {"values": (d, 3)})})
    same(g, parse(print_graph(g)))


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-12, float("inf"), float("-inf"), float("nan"), 5, -3, True, 1e300])
def test_attribute_values_round_trip(value):
    dtype = DType.BOOL if isinstance(value, bool) else F32 if isinstance(value, float) else DType.I64
    g = Graph("fill")
    g.set_outputs({"y": g.emit("fill", [], {"shape": (), "value": value, "dtype": dtype})})
    (back,) = parse(print_graph(g)).nodes.values()
    assert repr(back.attrs["value"]) == repr(value)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("softmax(x)", "softmax(q)", "line 9.*'q'"),
        ("softmax(x) {axis=1}", "softmax(x) {axis=4}", "line 9.*axis 4"),
        ("softmax(x) {axis=1}: f32[S, 8]", "softmax(x) {axis=1}: f32[S, 9]", r"line 9.*f32\[S, 8\] by the shape rule"),
        ("softmax(x)", "sofmax(x)", "line 9.*no operator 'sofmax'"),
        ("[true, false]", "[true]", "line 5.*do not make"),
        ("const mask: bool", "const mask: complex", "line 5.*no element type"),
        ('output "z" = z', 'output "z" = zz', "line 1[45].*'zz'"),
        ("softmax(x)", "softmax(x", "line 9.*expected at"),
        ("input x", "input x ; y", "line 2.*not understood"),
        ("const w", "const x", "line 4.*value 'x'"),
    ],
)
def test_errors_name_the_line(old, new, text):
    g = made()
    with pytest.raises(TextError, match=text):
        parse(print_graph(g).replace(old, new, 1), {"big": g.constants["big"]})


def test_large_constants_must_be_given():
    with pytest.raises(TextError, match="'big'"):
        parse(print_graph(made()))
    with pytest.raises(TextError, match="'big' is given as"):
        parse(print_graph(made()), {"big": np.zeros((5, 5))})
