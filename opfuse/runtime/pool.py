"""The process's native runtime: thread pool and step driver, loaded once, on first use, and never unloaded.

This is the one piece of state that a process shares. At exit its workers are ended and waited for, before any memory
that they run in goes away; after a fork the child's pool begins empty (the native code looks at the process id).

    native_runtime().driver    # the address that contexts hold
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import platform
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from opfuse.codegen.llvm.jit import Library, compile_object, load_object
from opfuse.codegen.llvm.threads import runtime_text
from opfuse.target import host


@dataclass(frozen=True)
class NativeRuntime:
    """Addresses of the runtime's functions. `library` is held so that they stay valid."""

    driver: int
    library: Library = field(repr=False)
    object_code: bytes = field(repr=False)
    stop: Any = field(repr=False)
    workers: Any = field(repr=False)
    clock: Any = field(repr=False)

    def ticks_per_second(self, seconds: float = 0.002) -> float:
        """How fast the clock of profiles runs, measured against the system's."""
        start, ticks = time.perf_counter(), self.clock()
        while (passed := time.perf_counter() - start) < seconds:
            pass
        return float(self.clock() - ticks) / passed


@dataclass
class _Process:
    lock: Any = field(default_factory=threading.Lock)
    native: NativeRuntime | None = None


@functools.cache
def _process() -> _Process:
    return _Process()


def native_runtime(object_code: bytes | None = None) -> NativeRuntime:
    """The runtime of this process. `object_code` is what a compiled file brought along: it saves compiling it here."""
    process = _process()
    if process.native is None:
        with process.lock:
            if process.native is None:
                process.native = _load(object_code or compile_object(runtime_module(), host(1, "plain")))
                atexit.register(process.native.stop)
    return process.native


def runtime_module() -> str:
    """The text of the runtime for this machine."""
    machine = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    return runtime_text(machine, sys.platform.startswith("linux"))


def runtime_key() -> str:
    """Changes whenever the runtime's text does: object code from another version is not used."""
    return hashlib.sha256(runtime_module().encode()).hexdigest()


def _load(object_code: bytes) -> NativeRuntime:
    library = load_object(object_code)
    stop = ctypes.CFUNCTYPE(None)(library.address("opfuse_stop"))
    workers = ctypes.CFUNCTYPE(ctypes.c_int32)(library.address("opfuse_workers"))
    clock = ctypes.PYFUNCTYPE(ctypes.c_int64)(library.address("opfuse_clock"))
    return NativeRuntime(library.address("opfuse_drive"), library, object_code, stop, workers, clock)
