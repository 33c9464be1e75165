"""Runs printed kernels on torch tensors. Imports torch and triton on use, never before.

kernel = load(printed, folder)                # writes the source there: Triton reads functions back from their file
kernel({"A": a, "W": w, "Y": y})              # run-time extents come from the shapes; scratch is allocated
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from opfuse.codegen.triton.blocks import MAX_EXTENT
from opfuse.codegen.triton.printer import PrintedKernel
from opfuse.ir.dims import Bindings, Symbol, SymbolicDim, bind
from opfuse.ir.types import DType
from opfuse.tile.program import Program

TORCH = {
    DType.F64: "float64", DType.F32: "float32", DType.F16: "float16", DType.BF16: "bfloat16", DType.I64: "int64",
    DType.I32: "int32", DType.I16: "int16", DType.I8: "int8", DType.U64: "uint64", DType.U32: "uint32",
    DType.U16: "uint16", DType.U8: "uint8", DType.BOOL: "bool",
}  # fmt: skip


@dataclass(frozen=True)
class LoadedKernel:
    """A printed program whose kernels can be launched."""

    program: Program
    printed: PrintedKernel
    module: ModuleType

    def __call__(self, tensors: Mapping[str, Any], sizes: Bindings | None = None) -> None:
        """Launch on the current stream. `tensors` by buffer name (scratch may be left out); outputs are written.

        ValueError where a tensor has another type, shape or stride than the program's buffer says.
        """
        known = dict(sizes) if sizes is not None else sizes_of(self.program, tensors)
        for name, value in known.items():
            if not 0 <= value < MAX_EXTENT:
                raise ValueError(f"{self.program.name}: extent {name} = {value} is outside [0, {MAX_EXTENT})")
        arguments = [self.argument(name, tensors, known) for name in self.printed.arguments]
        integers = [known[name] for name in self.printed.integers]
        options = {"num_warps": self.printed.warps, "num_stages": self.printed.pipeline_stages}
        for stage in self.printed.stages:
            steps = [()] if stage.repeat is None else [(t,) for t in range(_number(bind(stage.repeat.extent, known)))]
            for step in steps:
                for entry in stage.entries:
                    if grid := _number(bind(entry.grid, known)):
                        getattr(self.module, entry.name)[(grid,)](*arguments, *integers, *step, **options)

    def compile(self, sizes: Bindings) -> None:
        """Compile all kernels for aligned tensors and these extents, into Triton's cache; nothing is launched."""
        import torch

        pointers = [getattr(torch, TORCH[self.program.buffer(name).dtype]) for name in self.printed.arguments]
        integers = [sizes[name] for name in self.printed.integers]
        options = {"num_warps": self.printed.warps, "num_stages": self.printed.pipeline_stages}
        for stage in self.printed.stages:
            step = [] if stage.repeat is None else [0]
            for entry in stage.entries:
                getattr(self.module, entry.name).warmup(*pointers, *integers, *step, grid=(1,), **options)

    def argument(self, name: str, tensors: Mapping[str, Any], sizes: Bindings) -> Any:
        import torch

        b = self.program.buffer(name)
        shape = tuple(_number(bind(d, sizes)) for d in b.shape)
        dtype = getattr(torch, TORCH[b.dtype])
        if name not in tensors and b.role == "scratch":
            device = next(iter(tensors.values())).device
            return torch.empty(shape, dtype=dtype, device=device)
        t = tensors[name]
        strides = tuple(_number(bind(s, sizes)) for s in b.element_strides)
        if t.dtype != dtype or tuple(t.shape) != shape:
            raise ValueError(f"{name}: wanted {dtype} {shape}, got {t.dtype} {tuple(t.shape)}")
        if any(n > 1 and s != w for n, s, w in zip(shape, t.stride(), strides, strict=True)):
            raise ValueError(f"{name}: wanted strides {strides}, got {t.stride()}")
        return t


def sizes_of(program: Program, tensors: Mapping[str, Any]) -> dict[str, int]:
    """Run-time extents from the dimensions that are one symbol alone. ValueError where two tensors disagree."""
    sizes: dict[str, int] = {}
    for b in program.buffers:
        if b.name not in tensors:
            continue
        for d, n in zip(b.shape, tensors[b.name].shape, strict=True):
            match d:
                case SymbolicDim(terms=(((Symbol(name),), 1),)):
                    if sizes.setdefault(name, int(n)) != n:
                        raise ValueError(f"{b.name}: extent {name} is {n} here and {sizes[name]} elsewhere")
                case _:
                    pass
    if missing := [s for s in program.symbols if s not in sizes]:
        raise ValueError(f"{program.name}: no tensor gives the extents {missing}; pass `sizes`")
    return sizes


def load(program: Program, printed: PrintedKernel, folder: Path) -> LoadedKernel:
    """Write the source under `folder` (named by its content, whole or not at all) and import it."""
    digest = hashlib.sha256(printed.source.encode()).hexdigest()[:16]
    path = folder / f"{printed.name}_{digest}.py"
    if not path.exists() or path.read_text() != printed.source:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".tmp", delete=False) as f:
            f.write(printed.source)
        os.replace(f.name, path)
    spec = importlib.util.spec_from_file_location(f"opfuse_triton_{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return LoadedKernel(program, printed, module)


def _number(d: Any) -> int:
    if not isinstance(d, int):
        raise ValueError(f"extent {d} is not bound to a number")
    return d
