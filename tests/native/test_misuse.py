"""What users do to a compiled model: odd arrays, odd names, models of nothing, many threads, results fed back."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import opfuse
from opfuse.errors import InputError
from opfuse.ir.dims import symbol
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType
from opfuse.runtime.executable import Executable

F32 = DType.F32
X = np.arange(-6, 6, dtype=np.float32).reshape(3, 4)
Compile = Callable[..., Executable]


@pytest.fixture
def compiled(tmp_path: Path) -> Compile:
    return lambda graph, **options: opfuse.compile(
        graph, **{"threads": 2, "calibrate": False, "cache": tmp_path, **options}
    )


def one(op: str, *shapes: tuple[Any, ...], attrs: Mapping[str, Any] | None = None, name: str = "x") -> Graph:
    """One operator on inputs x0, x1, ... (`name` alone where there is one)."""
    g = Graph("one")
    names = [name if len(shapes) == 1 else f"{name}{k}" for k in range(len(shapes))]
    for n, shape in zip(names, shapes, strict=True):
        g.add_input(n, TensorType(F32, shape))
    g.set_outputs({"y": g.emit(op, names, dict(attrs or {}))})
    return g


# ---- arrays ----------------------------------------------------------------------------------------------------------
class Tensor:
    """Nothing but DLPack, as a framework's tensor."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class Own(np.ndarray):
    """A subclass."""


def read_only() -> np.ndarray:
    x = X.copy()
    x.flags.writeable = False
    return x


ARRAYS: dict[str, Callable[[], Any]] = {
    "Fortran order": lambda: np.asfortranarray(X),
    "negative strides": lambda: np.ascontiguousarray(X[::-1, ::-1])[::-1, ::-1],
    "every second": lambda: np.repeat(np.repeat(X, 2, 0), 2, 1)[::2, ::2],
    "broadcast": lambda: np.broadcast_to(X[:, :1], (3, 4)),
    "read-only": read_only,
    "subclass": lambda: X.view(Own),
    "misaligned": lambda: np.frombuffer(b"\0" + X.tobytes(), np.uint8)[1:].view(np.float32).reshape(3, 4),
    "DLPack": lambda: Tensor(X),
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_arrays_of_every_layout(kind: str, compiled: Compile) -> None:
    array = ARRAYS[kind]()
    exe = compiled(one("relu", (3, 4)))
    right = np.maximum(np.asarray(array.array if isinstance(array, Tensor) else array), 0)
    for answer in (exe(x=array)["y"], exe.run([array])[0]):
        np.testing.assert_array_equal(answer, right)
        assert type(answer) is np.ndarray and answer.flags.writeable and answer.flags.c_contiguous


@pytest.mark.parametrize(
    ("feed", "code"),
    [
        (X.astype(np.float64), "input-dtype"), (X.astype(">f4"), "input-dtype"), (X.astype(object), "input-dtype"),
        (Tensor(X.astype(np.float64)), "input-dtype"), (X[0], "input-shape"), (X[:2], "input-shape"),
        (X[None], "input-shape"), (X.tolist(), "input-type"), (None, "input-type"), ("x", "input-type"),
        (Tensor(X[0]), "input-shape"), (3.0, "input-type"),
    ],
)  # fmt: skip
def test_feeds_that_do_not_fit(feed: Any, code: str, compiled: Compile) -> None:
    with pytest.raises(InputError, match="input 'x'") as caught:
        compiled(one("relu", (3, 4)))(x=feed)
    assert caught.value.code == code


def test_calls_that_do_not_fit(compiled: Compile) -> None:
    exe = compiled(one("relu", (3, 4)))
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: exe(X), "input-type"), (lambda: exe(), "input-missing"), (lambda: exe(x=X, z=X), "input-unknown"),
        (lambda: exe({"z": X}), "input-unknown"), (lambda: exe.run(X), "input-type"),
        (lambda: exe.run([]), "input-count"), (lambda: exe.run([X, X]), "input-count"),
        (lambda: exe.run(None), "input-type"),  # type: ignore[arg-type]
    ]  # fmt: skip
    for call, code in calls:
        with pytest.raises(InputError) as caught:
            call()
        assert caught.value.code == code
    np.testing.assert_array_equal(exe(x=X)["y"], np.maximum(X, 0))  # and it still runs


def test_nan_and_infinity_are_values(compiled: Compile) -> None:
    x = np.array([[np.nan, np.inf, -np.inf, 0]] * 3, np.float32)
    np.testing.assert_array_equal(compiled(one("relu", (3, 4)))(x=x)["y"], np.maximum(x, 0))


def test_outputs_feed_inputs_and_stay_the_callers(compiled: Compile) -> None:
    exe = compiled(one("neg", (3, 4)))
    seen = [X]
    for _ in range(6):
        seen.append(exe(x=seen[-1])["y"])
    for k, y in enumerate(seen):
        np.testing.assert_array_equal(y, X if k % 2 == 0 else -X)


# ---- names -----------------------------------------------------------------------------------------------------------
NAMES = ("a/b:c.d e", "é漢字", "x" * 5000, "%", '"quote"', "new\nline", "\0nul", "\\", "@k", "{}", "x", "_3", "mul_1")


@pytest.mark.parametrize("name", NAMES)
def test_names_of_any_kind(name: str, compiled: Compile, tmp_path: Path) -> None:
    g = Graph(name)
    g.add_input(name, TensorType(F32, (3, 4)))
    made = g.emit("relu", [name], name=f"node {name}")
    g.set_outputs({name: g.emit("softmax", [made], {"axis": 1}, name=name)})
    exe = compiled(g)
    right = np.exp(np.maximum(X, 0))
    np.testing.assert_allclose(exe({name: X})[name], right / right.sum(1, keepdims=True), rtol=1e-6)
    exe.save(tmp_path / "m.opf")
    np.testing.assert_array_equal(opfuse.load(tmp_path / "m.opf")({name: X})[name], exe({name: X})[name])
    assert str(exe.explain())


# ---- models of nothing -----------------------------------------------------------------------------------------------
def test_outputs_without_a_node(compiled: Compile) -> None:
    g = Graph("nothing")
    g.add_input("x", TensorType(F32, (3, 4)))
    g.add_constant(X + 1, "c")
    g.set_outputs({"a": "x", "b": "x", "c": "c", "d": "c"})
    exe = compiled(g)
    for _ in range(2):  # what the caller does to one answer is in no other, and not in the next
        found = exe(x=X)
        for name, right in (("a", X), ("b", X), ("c", X + 1), ("d", X + 1)):
            np.testing.assert_array_equal(found[name], right)
            found[name][:] = -7
    assert X[0, 0] == -6


def test_one_value_under_several_names(compiled: Compile) -> None:
    g = Graph("names")
    g.add_input("x", TensorType(F32, (3, 4)))
    y = g.emit("relu", ["x"])
    flat = g.emit("reshape", [y], {"shape": (12,)})
    g.set_outputs({"a": y, "b": y, "c": flat, "d": g.emit("exp", [flat]), "e": "x"})
    found = compiled(g)(x=X)
    found["a"][:], found["c"][:] = -1, -2
    np.testing.assert_array_equal(found["b"], np.maximum(X, 0))
    np.testing.assert_array_equal(found["e"], X)
    np.testing.assert_allclose(found["d"], np.exp(np.maximum(X, 0)).ravel(), rtol=1e-6)


def test_no_inputs_and_no_outputs(compiled: Compile) -> None:
    g = Graph("constant")
    g.set_outputs({"y": g.emit("relu", [g.add_constant(X)])})
    np.testing.assert_array_equal(compiled(g)()["y"], np.maximum(X, 0))
    g = one("relu", (3, 4))
    g.set_outputs({})
    assert compiled(g)(x=X) == {}


# ---- sizes -----------------------------------------------------------------------------------------------------------
def test_seven_dimensions(compiled: Compile) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 2, 3, 2, 3, 2)).astype(np.float32)
    perm = (6, 4, 2, 0, 5, 3, 1)
    y = compiled(one("transpose", x.shape, attrs={"perm": perm}))(x=x)["y"]
    np.testing.assert_array_equal(y, x.transpose(perm))
    y = compiled(one("reduce_sum", x.shape, attrs={"axes": (0, 2, 4, 6), "keepdims": False}))(x=x)["y"]
    np.testing.assert_allclose(y, x.astype(float).sum((0, 2, 4, 6)), atol=16 * 6e-8 * 4)


@pytest.mark.parametrize("op", ["reduce_sum", "reduce_mean"])
def test_ten_million_terms(op: str, compiled: Compile) -> None:
    """Equal terms round the same way each time: half an ulp for each term of one of 16 or more partial sums."""
    n = 10_000_000
    y = compiled(one(op, (n,), attrs={"axes": (0,), "keepdims": False}))(x=np.full(n, 0.1, np.float32))["y"]
    right = float(np.float32(0.1)) * (n if op == "reduce_sum" else 1)
    assert abs(float(y) - right) <= n / 16 / 2 * 2.0**-24 * right


# ---- threads of the caller -------------------------------------------------------------------------------------------
def test_shapes_that_were_given_do_not_forbid_others(compiled: Compile, tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> open (float[N, 4] x, float[M, 4] w) => (float[N, 4] y) '
    model = onnx.parser.parse_model(text + "{ t = Relu(x) s = ReduceSum<keepdims = 0>(w) y = Add(t, s) }")
    w = np.ones((2, 4), np.float32)
    exe = compiled(model, shapes={"x": (3, 4), "w": (2, 4)})
    assert len(exe.variants) == 1 and exe.explain().kernels  # compiled at once
    for rows in (3, 5, 3):
        x = np.resize(X, (rows, 4))
        assert np.array_equal(exe(x=x, w=w)["y"], np.maximum(x, 0) + 8)
    assert len(exe.variants) == 2
    exe.save(tmp_path / "both.opf")
    assert len(opfuse.load(tmp_path / "both.opf").variants) == 2
    some = compiled(model, shapes={"x": (3, 4)})  # the other input's stay open, this one's are fixed
    assert not some.variants and some.run([X, w])[0].shape == (3, 4)
    with pytest.raises(InputError, match="wants \\[3, 4\\]"):
        some(x=X[:2], w=w)
    with pytest.raises(InputError, match="5 stands where the model has 4"):
        compiled(model, shapes={"x": (3, 5), "w": (2, 4)})


def test_four_threads_and_many_shapes(compiled: Compile) -> None:
    exe = compiled(one("softmax", (symbol("S"), 5), attrs={"axis": 1}))
    wrong: list[object] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(60):
            x = rng.standard_normal((int(rng.integers(0, 12)), 5)).astype(np.float32)
            try:
                y = exe(x=x)["y"]
                e = np.exp(x - x.max(-1, keepdims=True, initial=-9))
                if not np.allclose(y, e / e.sum(-1, keepdims=True), atol=1e-6):
                    wrong.append(x.shape)
            except Exception as error:
                wrong.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        sys.setswitchinterval(before)
    assert not wrong
    assert len(exe.variants) <= 12
