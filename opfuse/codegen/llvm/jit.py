"""From printed functions to machine code in the process, through llvmlite; no compiler and no linker is needed.

    text = assemble([f.text for f in functions], target)      # one module
    code = compile_object(text, target)                       # an object file: bytes that can be stored
    address = load_object(code).address("k0_linear")          # copied, relocated, ready to call

No IR pass is run: the text is already explicit (vectors, phis, unrolled loops), and the passes cost half of the compile
time and gain nothing. Position-independent code with the small model keeps constants as operands of instructions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from llvmlite import binding as llvm

from opfuse.target import Target, host_features

OBJECT_MAGIC = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\x64\x86", b"\x64\xaa")  # ELF, Mach-O, COFF for x86-64 and ARM64


class CompileError(Exception):
    """LLVM refused the text: a fault of the code generator, never of the model."""


class Library:
    """Machine code in memory. It must outlive every address that was taken from it."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def address(self, symbol: str) -> int:
        """KeyError where the object defines no such function."""
        found = self._engine.get_function_address(symbol)
        if not found:
            raise KeyError(symbol)
        return int(found)


@functools.cache
def _initialise() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def _machine(cpu: str, features: str) -> Any:
    _initialise()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(cpu=cpu, features=features, opt=2, reloc="pic", codemodel="small", jit=True)


def feature_text(target: Target) -> str:
    """What LLVM may use: of the features that it knows, those of the target. Plain code uses the CPU's baseline."""
    if target.isa == "plain":
        return ""
    known = sorted(set(llvm.get_host_cpu_features()) | set(target.features))
    return ",".join(("+" if f in target.features else "-") + f for f in known)


def assemble(functions: Iterable[str], target: Target) -> str:
    """One module of the functions' texts. What they declare in common is declared once."""
    bodies: list[str] = []
    declared: dict[str, None] = {}
    for text in functions:
        lines = text.splitlines()
        declared.update(dict.fromkeys(line for line in lines if line.startswith("declare ")))
        bodies.append("\n".join(line for line in lines if not line.startswith("declare ")))
    width = f'"min-legal-vector-width"="{target.vector_bytes * 8}" "prefer-vector-width"="{target.vector_bytes * 8}"'
    attributes = f'attributes #0 = {{ nounwind "no-trapping-math"="true" {width} }}'
    triple = f'target triple = "{llvm.get_process_triple()}"'
    return "\n".join([triple, *declared, *bodies, attributes, ""])


def _compiled(text: str, target: Target) -> tuple[Any, Any]:
    machine = _machine(target.llvm_cpu, feature_text(target))
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise CompileError(str(error)) from error
    return machine, module


def compile_object(text: str, target: Target) -> bytes:
    """The module's machine code as an object file. CompileError with LLVM's message for text that is not IR."""
    machine, module = _compiled(text, target)
    return bytes(machine.emit_object(module))


def assembly(text: str, target: Target) -> str:
    """The module's machine code as assembler text, for people and for tests that look for spills."""
    machine, module = _compiled(text, target)
    return str(machine.emit_assembly(module))


def load_object(code: bytes) -> Library:
    """Copy an object file into executable memory. ValueError where it is none (LLVM itself would crash)."""
    if not code.startswith(OBJECT_MAGIC):
        raise ValueError(f"not an object file: it begins with {code[:4]!r}")
    features = ",".join("+" + f for f in host_features())
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine("", features))
    try:
        engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    except RuntimeError as error:
        raise ValueError(f"not an object file: {error}") from error
    engine.finalize_object()
    return Library(engine)
