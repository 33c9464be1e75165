"""Options that make no sense are told at once, by the name that the command line gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opfuse
from opfuse.errors import OptionError
from opfuse.ir.dims import symbol
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType
from opfuse.options import Options


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"threads": 0}, "--threads"), ({"threads": -1}, "--threads"), ({"threads": "two"}, "--threads"),
        ({"threads": True}, "--threads"), ({"threads": 1.0}, "--threads"), ({"threads": 10**9}, "--threads"),
        ({"precision": "int3"}, "--precision"), ({"isa": "neon"}, "--isa"),
        ({"shapes": {"x": (-3, 5)}}, "--shape"), ({"shapes": {"x": (3.5,)}}, "--shape"),
        ({"shapes": {"x": "ab"}}, "--shape"), ({"disabled_fusions": frozenset({"relu"})}, "--no-fuse"),
    ],
)  # fmt: skip
def test_nonsense_is_told(options: dict[str, Any], option: str) -> None:
    with pytest.raises(OptionError) as caught:
        Options(**options)
    assert caught.value.option == option


def test_numbers_of_numpy_and_ids_are_sense() -> None:
    Options(threads=np.int64(2), shapes={"x": (np.int32(0), 5)}, disabled_fusions=frozenset({"all", "0123456789"}))  # type: ignore[arg-type]


def graph_of(shape: tuple[Any, ...]) -> Graph:
    g = Graph("one")
    g.add_input("x", TensorType(DType.F32, shape))
    g.set_outputs({"y": g.emit("relu", ["x"])})
    return g


def test_one_name_may_stand_without_a_list(tmp_path: Path) -> None:
    exe = opfuse.compile(graph_of((2,)), disable_rules="fold_batch_norm", disable_fusions="all", cache=tmp_path,
                         calibrate=False)  # fmt: skip
    assert exe.options.disabled_rules == {"fold_batch_norm"} and exe.options.disabled_fusions == {"all"}


WRONG: list[dict[str, Any]] = [{"threads": 0}, {"isa": "neon"}, {"shapes": {"x": (-3,)}}, {"disable_rules": ["no"]}]


@pytest.mark.parametrize("options", WRONG)
def test_compile_tells_too(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(OptionError):
        opfuse.compile(graph_of((symbol("S"),)), cache=tmp_path, calibrate=False, **options)(x=np.zeros(1, np.float32))
