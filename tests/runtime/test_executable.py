"""The public object: names, symbolic shapes, variants, inputs with defaults."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from opfuse.errors import InputError, OpfuseError
from opfuse.ir.dims import symbol
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType
from opfuse.options import Options
from opfuse.runtime.executable import Executable
from opfuse.runtime.interface import InputSpec, Interface, dim_from_json, dim_json
from opfuse.runtime.model import CompiledModel
from tests.runtime.chains import Chain, mixed

F32 = DType.F32
S, B = symbol("S"), symbol("B")


def chain_of(graph: Graph) -> Chain:
    """Every add of the graph as a mix."""
    chain = Chain()
    chain.graph = Graph(graph.name)
    for i in graph.inputs:
        chain.graph.add_input(i, graph.types[i])
    names = {i: i for i in graph.inputs}
    for c, array in graph.constants.items():
        names[c] = chain.graph.add_constant(array, c)
    for node in graph.nodes.values():
        x, y = (names[i] for i in node.inputs if i is not None)
        names[node.output] = chain.mix(x, y)
    chain.graph.set_outputs({public: names[v] for public, v in graph.outputs.items()})
    return chain


def builder(built: list[Graph], threads: int = 1) -> Callable[[Graph], CompiledModel]:
    def build(graph: Graph) -> CompiledModel:
        assert not graph.symbols and not graph.defaults
        built.append(graph)
        return chain_of(graph).compile(threads)

    return build


def two_inputs(shape_x: tuple[object, ...], shape_y: tuple[object, ...], **defaults: np.ndarray) -> Graph:
    graph = Graph("two")
    for name, shape in (("x", shape_x), ("y", shape_y)):
        graph.add_input(name, TensorType(F32, shape), defaults.get(name))  # type: ignore[arg-type]
    graph.set_outputs({"sum": graph.emit("add", ["x", "y"])})
    return graph


def ramp(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float32)


# ---- fixed shapes ----------------------------------------------------------------------------------------------------
def test_a_model_of_fixed_shapes_is_compiled_at_once_and_called_in_three_ways() -> None:
    built: list[Graph] = []
    exe = Executable(two_inputs((64,), (64,)), Options(), builder(built))
    assert len(built) == 1 and len(exe.variants) == 1
    x, y = ramp(64), ramp(64) * 2
    want = mixed(x, y)
    np.testing.assert_array_equal(exe(x=x, y=y)["sum"], want)
    np.testing.assert_array_equal(exe({"y": y, "x": x})["sum"], want)
    np.testing.assert_array_equal(exe({"x": x}, y=y)["sum"], want)
    np.testing.assert_array_equal(exe.run([x, y])[0], want)
    assert len(built) == 1 and exe.outputs == ("sum",) and [i.name for i in exe.inputs] == ["x", "y"]


def test_outputs_are_fresh_each_call() -> None:
    exe = Executable(two_inputs((64,), (64,)), Options(), builder([]))
    first = exe(x=ramp(64), y=ramp(64))["sum"]
    kept = first.copy()
    exe(x=ramp(64) + 1, y=ramp(64))
    np.testing.assert_array_equal(first, kept)


@pytest.mark.parametrize(
    ("feeds", "names", "code"),
    [
        ({"x": ramp(64)}, "y", "input-missing"),
        ({"x": ramp(64), "z": ramp(64)}, "z", "input-unknown"),
        ({"x": ramp(64), "y": ramp(64), "z": ramp(64)}, "z", "input-unknown"),
        ({"x": ramp(64), "y": ramp(32)}, "y", "input-shape"),
        ({"x": ramp(64), "y": 3.0}, "y", "input-type"),
        ({"x": ramp(64).astype(np.float64), "y": ramp(64)}, "x", "input-dtype"),
    ],
)
def test_feeds_that_do_not_fit(feeds: dict[str, object], names: str, code: str) -> None:
    exe = Executable(two_inputs((64,), (64,)), Options(), builder([]))
    with pytest.raises(InputError) as caught:
        exe(feeds)
    assert caught.value.input == names and caught.value.code == code


def test_a_list_of_the_wrong_length() -> None:
    fixed = Executable(two_inputs((64,), (64,)), Options(), builder([]))
    free = Executable(two_inputs((S,), (S,)), Options(), builder([]))
    for exe in (fixed, free):
        with pytest.raises(InputError, match="3 arrays were given"):
            exe.run([ramp(64)] * 3)


# ---- symbolic shapes -------------------------------------------------------------------------------------------------
def test_the_first_call_binds_and_other_shapes_build_again() -> None:
    built: list[Graph] = []
    exe = Executable(two_inputs((S,), (S,)), Options(), builder(built))
    assert built == []
    with pytest.raises(InputError, match="S are not bound.*--shape") as caught:
        _ = exe.model
    assert caught.value.code == "unbound"
    for n in (64, 32, 64, 64, 32):
        np.testing.assert_array_equal(exe(x=ramp(n), y=ramp(n) + 1)["sum"], mixed(ramp(n), ramp(n) + 1))
        np.testing.assert_array_equal(exe.run([ramp(n), ramp(n)])[0], mixed(ramp(n), ramp(n)))
    assert [g.types["x"].shape for g in built] == [(64,), (32,)]
    assert [str(v) for v in exe.variants] == ["S = 64", "S = 32"]


def test_shapes_in_the_options_are_compiled_for_at_once() -> None:
    built: list[Graph] = []
    exe = Executable(two_inputs((S,), (S,)), Options(shapes={"x": (64,)}), builder(built))
    assert len(built) == 1
    exe(x=ramp(64), y=ramp(64))
    assert len(built) == 1
    exe(x=ramp(32), y=ramp(32))
    assert len(built) == 2


@pytest.mark.parametrize(
    ("shapes", "names", "says"),
    [
        ({"x": (64, 1)}, "x", r"\[64, 1\], the model wants \[S\]"),
        ({"z": (64,)}, "z", "no such input.*x: float32"),
        ({"x": (64,), "y": (32,)}, "y", "dimension 0 .S. is 32, but 'x' makes S 64"),
    ],
)
def test_shapes_that_do_not_fit(shapes: dict[str, tuple[int, ...]], names: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        Executable(two_inputs((S,), (S,)), Options(shapes=shapes), builder([]))
    assert caught.value.input == names
    with pytest.raises(InputError, match=says):
        feeds = {"x": ramp(64), "y": ramp(64)} if "z" in shapes else {"y": ramp(64)}
        feeds |= {n: np.zeros(s, np.float32) for n, s in shapes.items()}
        Executable(two_inputs((S,), (S,)), Options(), builder([]))(feeds)


def test_compound_dimensions_are_checked() -> None:
    interface = Interface("two", (InputSpec("x", F32, (S,)), InputSpec("y", F32, (S * 2,))), ("z",))
    assert interface.bindings({"x": (5,), "y": (10,)}) == {"S": 5}
    with pytest.raises(InputError, match=r"a dimension is 11, the model wants 2\*S = 10 \(S = 5\)"):
        interface.bindings({"x": (5,), "y": (11,)})


def test_shapes_that_the_operators_refuse_are_an_input_error() -> None:
    graph = Graph("folded")
    graph.add_input("x", TensorType(F32, (S,)))
    graph.set_outputs({"y": graph.emit("reshape", ["x"], {"shape": (4, 16)}, name="fold")})
    exe = Executable(graph, Options(), builder([]))
    with pytest.raises(InputError, match=r"these shapes do not fit the model \(S = 32\).*'fold'") as caught:
        exe(x=ramp(32))
    assert caught.value.code == "input-shape" and not exe.variants


def test_two_symbols_of_one_input() -> None:
    interface = Interface.of(two_inputs((B, S), (B, S)))
    assert interface.symbols == ("B", "S") and interface.bindings({"x": (2, 3)}) == {"B": 2, "S": 3}


@pytest.mark.parametrize("dim", [3, S, S * 2 + 1, S * B - 4, (S + 1) // 2, ((S + B) % 3) * 2])
def test_dimensions_survive_json(dim: object) -> None:
    assert dim_from_json(dim_json(dim)) == dim  # type: ignore[arg-type]


def test_python_threads_build_a_variant_once() -> None:
    built: list[Graph] = []
    exe = Executable(two_inputs((S,), (S,)), Options(), builder(built))
    wrong: list[int] = []

    def work() -> None:
        for n in (64, 32, 16):
            if not np.array_equal(exe(x=ramp(n), y=ramp(n))["sum"], mixed(ramp(n), ramp(n))):
                wrong.append(n)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and len(built) == 3


# ---- inputs with defaults --------------------------------------------------------------------------------------------
def test_an_input_with_a_default_is_a_constant_until_it_is_fed() -> None:
    built: list[Graph] = []
    default = ramp(64) * 3
    exe = Executable(two_inputs((64,), (64,), y=default), Options(), builder(built))
    assert "y" in built[0].constants and built[0].inputs == ["x"]
    x, y = ramp(64), ramp(64) - 5
    np.testing.assert_array_equal(exe(x=x)["sum"], mixed(x, default))
    np.testing.assert_array_equal(exe(x=x, y=y)["sum"], mixed(x, y))
    np.testing.assert_array_equal(exe.run([x])[0], mixed(x, default))
    np.testing.assert_array_equal(exe.run([x, y])[0], mixed(x, y))
    np.testing.assert_array_equal(exe.run([x, None])[0], mixed(x, default))
    assert [g.inputs for g in built] == [["x"], ["x", "y"]]
    assert [str(v) for v in exe.variants] == ["its fixed shapes", "its fixed shapes with y given"]


def test_the_caller_may_change_a_default_afterwards() -> None:
    default = ramp(64)
    exe = Executable(two_inputs((64,), (64,), y=default), Options(), builder([]))
    default[:] = 0
    np.testing.assert_array_equal(exe(x=ramp(64))["sum"], mixed(ramp(64), ramp(64)))


def test_reports_are_passed_in() -> None:
    class Reports:
        def explain(self, executable: Executable) -> str:
            return f"explains {executable.interface.name}"

        def verify(self, executable: Executable, **options: object) -> object:
            return options

    graph = two_inputs((64,), (64,))
    exe = Executable(graph, Options(), builder([]), reports=Reports())
    assert exe.explain() == "explains two" and exe.verify(inputs=3) == {"inputs": 3}
    with pytest.raises(OpfuseError, match="without reports"):
        Executable(graph, Options(), builder([])).explain()
