"""Compiles printed kernels for a GPU that is not there, and reads what they take.

compile_for("sm_90", program, schedule, folder)   -> [Usage(registers=64, stack=0, shared=98304, unit="wgmma"), ...]
"""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opfuse.codegen.triton.launch import load
from opfuse.codegen.triton.printer import print_program
from opfuse.decision import Refusal
from opfuse.ir.types import DType
from opfuse.target import described
from opfuse.tile.program import Program
from opfuse.tile.schedule import Schedule

POINTER = {
    DType.F64: "*fp64",
    DType.F32: "*fp32",
    DType.F16: "*fp16",
    DType.BF16: "*bf16",
    DType.I64: "*i64",
    DType.I32: "*i32",
    DType.I16: "*i16",
    DType.I8: "*i8",
    DType.U64: "*u64",
    DType.U32: "*u32",
    DType.U16: "*u16",
    DType.U8: "*u8",
    DType.BOOL: "*i1",
}


@dataclass(frozen=True)
class Usage:
    entry: str
    registers: int
    stack: int  # bytes of a thread's local memory: spilled registers stand there
    shared: int
    unit: str  # which matrix instructions stand in the code
    warps: int


def compile_for(isa: str, program: Program, schedule: Schedule, folder: Path) -> list[Usage]:
    """One Usage a kernel of the program; AssertionError with the reason where it is refused."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    printed = print_program(program, schedule, described("h200"), program.name)
    assert not isinstance(printed, Refusal), printed.text
    kernel = load(program, printed, folder)
    target = GPUTarget("cuda", int(isa[3:]), 32) if isa.startswith("sm_") else GPUTarget("hip", isa, 64)
    found = []
    for stage in printed.stages:
        for entry in stage.entries:
            signature = {b.name: POINTER[b.dtype] for b in program.buffers} | dict.fromkeys(program.symbols, "i32")
            names = getattr(kernel.module, entry.name).arg_names
            signature = dict(zip(names, [*signature.values(), *(["i32"] if stage.repeat else [])], strict=True))
            aligned = {(k,): [["tt.divisibility", 16]] for k in range(len(program.buffers))}
            source = ASTSource(fn=getattr(kernel.module, entry.name), signature=signature, constexprs={}, attrs=aligned)
            options = {"num_warps": schedule.warps, "num_stages": schedule.stages}
            compiled = triton.compile(source, target=target, options=options)
            found.append(_usage(entry.name, compiled, schedule.warps, folder, isa))
    return found


def _usage(entry: str, compiled: Any, warps: int, folder: Path, isa: str) -> Usage:
    if not isa.startswith("sm_"):
        return _amd_usage(entry, compiled, warps)
    import triton

    image = folder / f"{entry}.cubin"
    image.write_bytes(compiled.asm["cubin"])
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    text = subprocess.run([tool, "--dump-resource-usage", image], capture_output=True, text=True, check=True).stdout
    registers, stack = (int(re.search(key + r":(\d+)", text)[1]) for key in ("REG", "STACK"))  # type: ignore[index]
    ptx = compiled.asm["ptx"]
    unit = "wgmma" if "wgmma" in ptx else "mma" if "mma.sync" in ptx else ""
    return Usage(entry, registers, stack, compiled.metadata.shared, unit, warps)


def _amd_usage(entry: str, compiled: Any, warps: int) -> Usage:
    text = compiled.asm["amdgcn"]
    registers, spilled = (int(re.search(key + r":\s*(\d+)", text)[1])  # type: ignore[index]
                          for key in (r"\.vgpr_count", r"\.vgpr_spill_count"))  # fmt: skip
    return Usage(entry, registers, spilled * 4, compiled.metadata.shared, "mfma" if "mfma" in text else "", warps)
