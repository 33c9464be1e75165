"""Kernels compiled for GPUs that are not there: they fit, spill nothing, and use the matrix units.

sm_90 (NVIDIA H200) and gfx942 (AMD MI300); Triton brings the assembler and the disassembler.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from opfuse.codegen.triton.printer import legal
from opfuse.ir.types import DType
from opfuse.target import described
from opfuse.tile.program import Program
from opfuse.tile.schedule import Footprint, Schedule
from tests.codegen.triton_compiler import compile_for
from tests.tile import regions_matrix as matrix
from tests.tile import regions_points as points
from tests.tile import regions_rows as rows
from tests.tile import regions_windows as windows
from tests.tile.regions import CASES
from tests.tile.variants import with_precision, with_storage

MISSING = [m for m in ("torch", "triton") if importlib.util.find_spec(m) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
BF16, F16, F32 = DType.BF16, DType.F16, DType.F32


def gemm(m: int, n: int, k: int, warps: int = 8, stages: int = 3) -> Schedule:
    return Schedule({"m": m, "n": n, "k": k}, warps=warps, stages=stages)


# name -> (program, schedule, matrix unit on sm_90)
KERNELS: dict[str, tuple[Program, Schedule, str]] = {
    "LayerNorm 1024": (rows.layernorm_gelu(1024), Schedule({"r": 1}), ""),
    "LayerNorm 1000, 4 rows": (rows.layernorm_gelu(1000), Schedule({"r": 4}), ""),
    "softmax 100000": (rows.softmax_loops(100_000), Schedule({"r": 1, "n": 4096}, warps=8), ""),
    "embedding + LayerNorm": (rows.embedding_layernorm(30_000, 768), Schedule({"r": 1}), ""),
    "linear tf32": (with_precision(matrix.linear_gelu(3072, 768), "tf32"), gemm(128, 128, 32), "wgmma"),
    "linear bf16": (matrix.linear_gelu(3072, 768, dtype=BF16), gemm(128, 128, 64), "wgmma"),
    "linear f16, ragged": (matrix.linear_gelu(1000, 700, dtype=F16), gemm(128, 128, 64), "wgmma"),
    "linear ieee": (matrix.linear_gelu(3072, 768), gemm(64, 64, 32, stages=2), ""),
    "linear ieee, sum in parts": (matrix.linear_gelu(3072, 100_000), gemm(64, 64, 32, stages=2), ""),
    "linear bf16, sum in parts": (matrix.linear_gelu(3072, 100_000, dtype=BF16), gemm(128, 128, 64), "wgmma"),
    "linear int8": (matrix.integer_linear(1024, 1024), gemm(128, 128, 64), "wgmma"),
    "Q/K/V tf32": (with_precision(matrix.qkv(768, 768), "tf32"), gemm(64, 64, 32, warps=4), "wgmma"),
    "split K tf32": (with_precision(matrix.split_k(768, 3072, 4), "tf32"), gemm(64, 64, 32, warps=4), "wgmma"),
    "linear + LayerNorm": (with_storage(matrix.linear_layernorm(256, 768), BF16),
                           Schedule({"m": 64, "k": 32}, warps=8), "wgmma"),
    "attention tf32": (with_precision(matrix.attention(1024, 64), "tf32"),
                       Schedule({"h": 1, "q": 64, "j": 64}), "wgmma"),
    "attention f16": (matrix.attention(1024, 64, dtype=F16), Schedule({"h": 1, "q": 128, "j": 64}, warps=8), "wgmma"),
    "matrix times vector": (matrix.matrix_vector(4096), Schedule({"m": 4, "k": 512}), ""),
    "conv tf32": (with_precision(windows.conv(56, 56, 64, 64), "tf32"),
                  Schedule({"b": 1, "oh": 8, "ow": 8, "c": 32, "oc": 64}, stages=3), "wgmma"),
    "depthwise": (windows.depthwise(56, 56, 64), Schedule({"b": 1, "oh": 1, "ow": 8, "c": 64}), ""),
    "max-pool": (windows.max_pool(112, 112, 64, windows.Window(3, 2)),
                 Schedule({"b": 1, "oh": 1, "ow": 8, "c": 64}, unroll=("kh", "kw")), ""),
}  # fmt: skip
ON_AMD = ("LayerNorm 1024", "softmax 100000", "linear bf16", "linear int8", "conv tf32", "max-pool")


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path) -> Iterator[None]:
    """What is compiled here is compiled now: Triton's cache in the user's folder is neither read nor written."""
    import triton

    before = triton.knobs.cache.dir
    triton.knobs.cache.dir = str(tmp_path / "cache")
    yield
    triton.knobs.cache.dir = before


@pytest.mark.parametrize("name", KERNELS)
def test_fits_and_spills_nothing(name: str, tmp_path: Path) -> None:
    program, schedule, unit = KERNELS[name]
    footprint = legal(program, schedule, described("h200"))
    assert isinstance(footprint, Footprint)
    used = compile_for("sm_90", program, schedule, tmp_path)
    assert [u.stack for u in used] == [0] * len(used)
    assert unit in {u.unit for u in used}
    assert max(u.shared for u in used) <= footprint.scratch_bytes + 4096  # reductions across warps are not counted
    assert max(u.registers for u in used) <= 255


@pytest.mark.parametrize("name", ON_AMD)
def test_compiles_for_amd(name: str, tmp_path: Path) -> None:
    program, schedule, unit = KERNELS[name]
    used = compile_for("gfx942", program, schedule, tmp_path)
    assert [u.stack for u in used] == [0] * len(used)
    assert not unit or "mfma" in {u.unit for u in used}


ONE_OF_EACH = {case.program.name: case for case in reversed(CASES)}


@pytest.mark.parametrize("name", sorted(ONE_OF_EACH))
def test_every_kind_of_region_compiles(name: str, tmp_path: Path) -> None:
    assert compile_for("sm_90", ONE_OF_EACH[name].program, ONE_OF_EACH[name].gpu[0], tmp_path)


@pytest.mark.parametrize("dtype", [F32, F16, BF16, DType.F64, DType.I64, DType.I32, DType.I8, DType.U8, DType.BOOL])
def test_every_scalar_function_compiles(dtype: DType, tmp_path: Path) -> None:
    """The interpreter runs what a compiler may refuse: types of constants, functions that a type has not."""
    assert compile_for("sm_90", points.every_function(dtype), Schedule({"n": 128}), tmp_path)
