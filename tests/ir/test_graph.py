"""Edits of a graph keep its tables right: redirect, remove, sort, copy, bind; `check` finds what is broken."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from opfuse.ir.check import GraphError, check
from opfuse.ir.dims import symbol
from opfuse.ir.graph import Graph, Node
from opfuse.ir.ops import OperatorError
from opfuse.ir.types import DType, TensorType

F32 = DType.F32
S = symbol("S")


def small() -> Graph:
    """y = relu(x + w), z = x + w."""
    g = Graph("small")
    g.add_input("x", TensorType(F32, (S, 4)))
    g.add_constant(np.arange(4, dtype=np.float32), "w")
    t = g.emit("add", ["x", "w"], outputs=["t"], name="add", origin=("Add_0",))
    y = g.emit("relu", [t], outputs=["y"], name="relu", origin=("Relu_1",))
    g.set_outputs({"out": y, "sum": t})
    return g


def test_a_built_graph_passes():
    g = small()
    check(g)
    assert g.types["y"] == TensorType(F32, (S, 4)) and g.symbols == ("S",)
    assert g.producer("t").name == "add" and [n.name for n in g.consumers("t")] == ["relu"]
    assert g.sole_consumer("t") is None, "t is also an output"
    assert g.sole_consumer("x").name == "add"


def test_redirect_moves_readers_and_outputs():
    g = small()
    n = g.emit("neg", ["x"], outputs=["n"])
    g.redirect("t", n)
    g.sort()
    check(g)
    assert g.outputs == {"out": "y", "sum": "n"} and g.nodes["relu"].inputs == ("n",)
    assert not g.consumers("t") and [c.name for c in g.consumers("n")] == ["relu"]
    assert [r.name for r in g.remove_dead()] == ["add"] and "w" not in g.constants
    check(g)


def test_redirect_of_a_value_read_twice_by_one_node():
    g = Graph()
    g.add_input("x", TensorType(F32, (2,)))
    t = g.emit("neg", ["x"])
    y = g.emit("mul", [t, t])
    g.set_outputs({"y": y})
    g.redirect(t, "x")
    check(g)
    assert g.producer(y).inputs == ("x", "x")


def test_remove_refuses_what_is_read():
    g = small()
    with pytest.raises(ValueError, match="'t' of node 'add' is still read"):
        g.remove(g.nodes["add"])


def test_copy_and_restore():
    g = small()
    saved = g.copy()
    g.redirect("t", "x")
    g.remove_dead()
    assert "add" not in g.nodes and "add" in saved.nodes and saved.nodes["relu"].inputs == ("t",)
    g.restore(saved)
    check(g)
    assert list(g.nodes) == ["add", "relu"]
    g.redirect("t", "x")
    assert saved.nodes["relu"].inputs == ("t",), "restoring shares nothing with the copy"


def test_sort_is_stable_and_finds_cycles():
    g = small()
    g.nodes = {k: g.nodes[k] for k in ("relu", "add")}
    with pytest.raises(GraphError, match="node 'Relu_1'.*reads 't'"):
        check(g)
    g.sort()
    assert list(g.nodes) == ["add", "relu"]
    g.nodes["add"] = replace(g.nodes["add"], inputs=("y", "w"))
    with pytest.raises(ValueError, match="cycle"):
        g.sort()


def test_sort_long_chains_without_recursion():
    g = Graph()
    g.add_input("x", TensorType(F32, ()))
    v = "x"
    for _ in range(3000):
        v = g.emit("neg", [v])
    g.set_outputs({"y": v})
    order = list(g.nodes)
    g.nodes = dict(reversed(g.nodes.items()))
    g.sort()
    assert list(g.nodes) == order


def test_names_are_unique():
    g = small()
    with pytest.raises(ValueError, match="value 'x'"):
        g.add_constant(np.zeros(1, np.float32), "x")
    assert g.emit("relu", ["x"], name="relu") not in ("y", "t")
    with pytest.raises(ValueError, match="reads 'nothing'"):
        g.insert(Node("bad", "cast", ("nothing",), ("b",), {"to": F32}))


def test_bind_replaces_symbols_in_types_and_attributes():
    g = Graph()
    g.add_input("x", TensorType(F32, (S, 2, 3)))
    y = g.emit("reshape", ["x"], {"shape": (S * 2, 3)}, outputs=["y"])
    g.set_outputs({"y": y})
    b = g.bind({"S": 5})
    check(b)
    assert b.types["y"].static_shape == (10, 3) and b.producer("y").attrs["shape"] == (10, 3) and b.symbols == ()
    assert g.types["y"].shape == (S * 2, 3)
    with pytest.raises(ValueError, match=r"2\*S"):
        assert g.types["y"].static_shape


def test_bind_refuses_what_does_not_fit():
    g = Graph()
    g.add_input("x", TensorType(F32, (S, 4)))
    g.set_outputs(
        {"y": g.emit("slice", ["x"], {"starts": (2, 0), "stops": (S, 4), "steps": (1, 1)}, origin=("Slice_7",))}
    )
    check(g.bind({"S": 3}))
    assert g.bind({"S": 2}).types[g.outputs["y"]].shape == (0, 4)


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "text"),
    [
        ("add", ["a", "b"], {}, "3 and 4"),
        ("add", ["s", "t"], {}, "S and T"),
        ("add", ["a", "i"], {}, "f32 and i64"),
        ("matmul", ["a", "b"], {}, "inner dimensions 3 and 2"),
        ("relu", [None], {}, "needs its input 'x'"),
        ("relu", ["a"], {"alpha": 1}, "no attribute 'alpha'"),
        ("softmax", ["a"], {"axis": 2}, "axis 2"),
        ("softmax", ["a"], {}, "needs the attribute 'axis'"),
        ("reshape", ["a"], {"shape": (7,)}, "6 elements"),
        ("transpose", ["a"], {"perm": (0, 0)}, "no permutation"),
        ("nothing", ["a"], {}, "no operator 'nothing'"),
        ("exp", ["i"], {}, "i64, but must be float"),
        ("concat", ["a", "b"], {"axis": 0}, "do not join"),
        ("slice", ["a"], {"starts": (0, 1), "stops": (2, 9), "steps": (1, 1)}, "leaves dimension 1"),
        ("layer_norm", ["a", "a2"], {"axis": 1}, "scale of shape"),
    ],
)
def test_shape_rules_refuse_with_the_guilty_values(op, inputs, attrs, text):
    g = Graph()
    for name, dtype, shape in (("a", F32, (2, 3)), ("b", F32, (2, 4)), ("i", DType.I64, (2, 3)), ("a2", F32, (5, 2, 3)),
                               ("s", F32, (S,)), ("t", F32, (symbol("T"),))):  # fmt: skip
        g.add_input(name, TensorType(dtype, shape))
    with pytest.raises(OperatorError, match=text):
        g.emit(op, inputs, attrs, origin=("User_1",))


def broken(change) -> Graph:
    g = small()
    change(g)
    return g


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda g: g.types.update(y=TensorType(F32, (4,))), "Relu_1.*the shape rule says f32\\[S, 4\\]"),
        (lambda g: g.outputs.update(more="gone"), "output 'more' shows 'gone'"),
        (lambda g: g.nodes.update(relu=replace(g.nodes["relu"], op="nothing")), "Relu_1"),
        (lambda g: g.nodes.update(relu=replace(g.nodes["relu"], outputs=("t",))), "makes 't', which node 'Add_0'"),
        (lambda g: g.nodes.update(add=replace(g.nodes["add"], inputs=("x", "q"))), "reads 'q'"),
        (lambda g: g.constants.update(w=np.zeros(3, np.float32)), "constant 'w'"),
        (lambda g: g.types.update(ghost=TensorType(F32, ())), "'ghost' has a type"),
        (lambda g: g.nodes.update(other=g.nodes.pop("relu")), "kept under the name 'other'"),
        (lambda g: g.nodes.update(relu=replace(g.nodes["relu"], inputs=("x",))), "producer|consumer"),
        (lambda g: g._producer.pop("y"), "Relu_1.*producer of 'y'"),
        (lambda g: g.defaults.update(x=np.zeros((2, 4))), "default of input 'x'"),
    ],
)
def test_check_names_the_fault(change, text):
    with pytest.raises(GraphError, match=text):
        check(broken(change))
