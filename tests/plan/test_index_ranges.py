"""Inputs that are indices are found through whatever copies them, and a feed outside of the range is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import opfuse
from opfuse.errors import InputError, ModelError
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType
from opfuse.plan.index_ranges import IndexRange, index_ranges


def picking(extent: int, steps: Sequence[tuple[str, dict[str, object]]], dtype: DType = DType.I64) -> Graph:
    """x[i] where `steps` stand between the input i and the gather."""
    g = Graph("picking")
    g.add_input("x", TensorType(DType.F32, (extent, 2)))
    value = g.add_input("i", TensorType(dtype, (2, 3)))
    for op, attrs in steps:
        value = g.emit(op, [value], attrs)
    g.set_outputs({"y": g.emit("gather", ["x", value], {"axis": 0}, name="Pick")})
    return g


COPIES: dict[str, list[tuple[str, dict[str, object]]]] = {
    "itself": [],
    "reshape": [("reshape", {"shape": (6,)})],
    "transpose and expand": [("transpose", {"perm": (1, 0)}), ("expand", {"shape": (4, 3, 2)})],
    "wider": [("cast", {"to": DType.I64}), ("reshape", {"shape": (3, 2)})],
    "turned round": [("slice", {"starts": (1, 0), "stops": (-1, 3), "steps": (-1, 1)})],
}
NOT_COPIES: dict[str, list[tuple[str, dict[str, object]]]] = {
    "a part": [("slice", {"starts": (0, 0), "stops": (1, 3), "steps": (1, 1)})],
    "computed": [("neg", {})],
    "padded": [("pad", {"pads": (0, 1, 0, 0), "value": 0})],
}


@pytest.mark.parametrize("name", COPIES)
def test_found_through_copies(name: str) -> None:
    dtype = DType.I32 if name == "wider" else DType.I64
    assert index_ranges(picking(5, COPIES[name], dtype)) == {"i": IndexRange(-5, 4, "Pick")}


@pytest.mark.parametrize("name", NOT_COPIES)
def test_what_is_computed_is_the_models_own(name: str) -> None:
    assert index_ranges(picking(5, NOT_COPIES[name])) == {}


def test_the_narrowest_use_counts() -> None:
    g = picking(5, [])
    g.add_input("z", TensorType(DType.F32, (3,)))
    g.set_outputs({**g.outputs, "z_": g.emit("gather", ["z", "i"], {"axis": 0}, name="Narrow")})
    assert index_ranges(g) == {"i": IndexRange(-3, 2, "Narrow")}


def test_a_feed_out_of_range_is_an_error_and_a_saved_model_knows_it(tmp_path: Path) -> None:
    exe = opfuse.compile(picking(5, []), calibrate=False, cache=tmp_path, threads=1)
    exe.save(tmp_path / "m.opf")
    x, good = np.arange(10, dtype=np.float32).reshape(5, 2), np.array([[-5, 4, 0], [1, 2, 3]])
    for model in (exe, opfuse.load(tmp_path / "m.opf")):
        np.testing.assert_array_equal(model(x=x, i=good)["y"], x[good])
        for wrong in (5, -6, 2**62, -(2**63)):
            bad = good.copy()
            bad[1, 1] = wrong
            with pytest.raises(InputError, match=f"holds the index {wrong}, but 'Pick' picks from 5") as caught:
                model(x=x, i=bad)
            assert caught.value.code == "input-range"


def test_computed_indices_stay_inside(tmp_path: Path) -> None:
    exe = opfuse.compile(picking(5, [("neg", {})]), calibrate=False, cache=tmp_path, threads=1)
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    y = exe(x=x, i=np.array([[-9, 9, 0], [2**40, -(2**40), 1]]))["y"]
    assert np.isin(y, x).all()


def test_a_constant_out_of_range_is_a_fault_of_the_model(tmp_path: Path) -> None:
    g = Graph("wrong")
    g.add_input("x", TensorType(DType.F32, (5,)))
    g.set_outputs({"y": g.emit("gather", ["x", g.add_constant(np.array([1, 5]), "c")], {"axis": 0}, name="Pick")})
    with pytest.raises(ModelError, match="node 'Pick': the constant 'c' holds the index 5, where -5 to 4") as caught:
        opfuse.compile(g, calibrate=False, cache=tmp_path, threads=1)
    assert caught.value.code == "index-range"


@pytest.mark.parametrize("dtype", [DType.I8, DType.U8, DType.I32])
def test_narrow_indices_of_a_long_dimension(dtype: DType, tmp_path: Path) -> None:
    exe = opfuse.compile(picking(300, [], dtype), calibrate=False, cache=tmp_path, threads=1)
    x = np.arange(600, dtype=np.float32).reshape(300, 2)
    i = np.array([[-1, 100, 0], [-128, 127, 1]]).astype(dtype.numpy)
    np.testing.assert_array_equal(exe(x=x, i=i)["y"], x[i])
