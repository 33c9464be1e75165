"""Launching: what tensors are taken, what is refused, and what the GPU path may import."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from opfuse.codegen.triton.launch import LoadedKernel, load
from opfuse.codegen.triton.printer import print_program
from opfuse.decision import Refusal
from opfuse.target import described
from tests.tile.regions import named

ROOT = Path(__file__).resolve().parents[2]
MISSING = [m for m in ("torch", "triton") if importlib.util.find_spec(m) is None]
needs_triton = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")


def loaded(name: str, folder: Path) -> LoadedKernel:
    case = named(name)
    printed = print_program(case.program, case.gpu[0], described("h200"), "k")
    assert not isinstance(printed, Refusal)
    return load(case.program, printed, folder)


@needs_triton
def test_tensors_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    import torch

    kernel = loaded("row sum f32 N=17", tmp_path)
    x, y = torch.zeros(5, 17), torch.zeros(5)
    with pytest.raises(ValueError, match="X: wanted torch.float32"):
        kernel({"X": x.double(), "Y": y})
    with pytest.raises(ValueError, match="extent R is 4 here and 5 elsewhere"):
        kernel({"X": x, "Y": torch.zeros(4)})
    with pytest.raises(ValueError, match=r"X: wanted torch.float32 \(5, 17\)"):
        kernel({"X": torch.zeros(5, 16), "Y": y})
    with pytest.raises(ValueError, match=r"X: wanted strides \(17, 1\)"):
        kernel({"X": torch.zeros(17, 5).T, "Y": y})
    with pytest.raises(ValueError, match="no tensor gives the extents"):
        kernel({})
    with pytest.raises(ValueError, match="outside"):
        kernel({"X": x, "Y": y}, {"R": 1 << 30})


@needs_triton
def test_the_source_file_is_named_by_its_content_and_repaired(tmp_path: Path) -> None:
    loaded("row sum f32 N=17", tmp_path)
    (path,) = tmp_path.glob("k_*.py")
    text = path.read_text()
    path.write_text("raise SystemExit")
    loaded("row sum f32 N=17", tmp_path)
    assert path.read_text() == text
    assert [p.suffix for p in tmp_path.iterdir() if p.is_file()] == [".py"]


def test_printing_needs_no_llvm_no_onnx_and_no_torch() -> None:
    """A GPU machine has its own stack: nothing of this path may ask for the CPU generator's."""
    code = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("llvmlite", "onnx", "onnx_ir", "torch", "triton", "safetensors", "rich", "typer"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
from opfuse.codegen.triton import choose, launch, printer
from opfuse.target import described
from tests.tile.regions import CASES
h200 = described("h200")
print(len([printer.print_program(c.program, choose.choose_gpu(c.program, h200), h200, "k") for c in CASES]))
"""
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert int(ran.stdout) > 100
