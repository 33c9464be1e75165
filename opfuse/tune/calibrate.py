"""The machine measured once, in about two seconds: the `Rates` that costs are predicted from.

    rates = rates_for(host(threads=2), default_directory(), progress=print)    # measured, or read back
    target = target.with_rates(rates)

Each rate is the best of several short runs of a small generated kernel, so that a foreign job on the machine does not
count as slowness of the machine. Rates are kept in the user's cache (`runtime.cache`) under the CPU's model, the
instruction set and the number of threads; an entry that is damaged or makes no sense is measured again.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from opfuse.codegen.llvm import jit
from opfuse.runtime.cache import Cache, key_of
from opfuse.target import Rates, Target
from opfuse.tune import probes

KIND = "rates"  # of cache entries
VERSION = 2  # of the probes: a change of what they measure makes old files stale
RUNS = 15  # short ones, of which the best counts: some fall between the time slices of other jobs
RUN_SECONDS = 0.01
DRAM_BYTES = 256 << 20  # at most: beyond every cache that a core may use, at 25 ms a pass of 20 GB/s

Progress = Callable[[str, float], None]  # what is measured now, and the share that is done


def rates_for(target: Target, cache_dir: Path, progress: Progress | None = None) -> Rates:
    """The machine's rates: read back where they were measured before, else measured and stored."""
    found = load_rates(target, cache_dir)
    return found if found is not None else measure_and_store(target, cache_dir, progress)


def measure_and_store(target: Target, cache_dir: Path, progress: Progress | None = None) -> Rates:
    """Measure now, whatever was measured before, and keep the result for the next time."""
    rates = calibrate(target, progress)
    store_rates(target, rates, cache_dir)
    return rates


# ---- measuring -------------------------------------------------------------------------------------------------------
def calibrate(target: Target, progress: Progress | None = None) -> Rates:
    """Measure this machine under the target's instruction set and number of threads. ValueError for a GPU target."""
    if target.kind != "cpu":
        raise ValueError(f"{target.name} is not a CPU: it cannot be measured by native code")
    say = progress or (lambda what, share: None)
    say("compiling the probes", 0.0)
    machine = Machine(target)
    say("memory bandwidth", 0.15)
    l2 = machine.bandwidth(target.l2_bytes // 2)
    l3 = machine.bandwidth(max(3 * target.l2_bytes, min(target.l3_bytes // 4, 32 << 20))) if target.l3_bytes else l2
    large = min(max(4 * target.l3_bytes, 64 << 20), DRAM_BYTES)
    dram = machine.bandwidth(large, min(target.units, available_cores()))
    ahead = machine.bandwidth(large, probe="probe_scale_ahead") / machine.bandwidth(large)
    say("multiply-add rate", 0.6)
    flops = machine.flops()
    say("vector rate", 0.75)
    vector = machine.vector_ops()
    say("cost of a barrier and of a call", 0.9)
    start, call = machine.start_seconds(), machine.call_seconds()
    say("done", 1.0)
    # A cache level is never slower than the one behind it: a noisy moment must not turn the order round.
    l3 = max(l3, dram)
    source = f"measured: {cpu_model()}, {target.isa}"
    return Rates(dram, l3, max(l2, l3), flops, vector, start, call, source, prefetch_gain=ahead)


class Machine:
    """The probes, compiled for one target, and the clocks around them."""

    def __init__(self, target: Target) -> None:
        self.target = target
        shape = probes.Shape(target.lanes(), target.registers, fused=target.isa != "plain")
        self.shape = shape
        functions = probes.functions(shape)
        self.library = jit.load_object(jit.compile_object(jit.assemble(functions, target), target))

    def _function(self, symbol: str, *types: Any) -> Callable[..., Any]:
        return ctypes.CFUNCTYPE(ctypes.c_int64, *types)(self.library.address(symbol))

    def bandwidth(self, size: int, threads: int = 1, probe: str = "probe_scale") -> float:
        """Bytes a second of threads that read and write `size` bytes in place (so nothing is write-allocated)."""
        step = probes.STREAM_VECTORS * self.target.vector_bytes
        count = max(1, size // threads // step)
        arrays = [aligned_zeros(count * step) for _ in range(threads)]
        scale = self._function(probe, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)

        def passes(repeats: int) -> None:  # the native call lets other Python threads run
            others = [threading.Thread(target=scale, args=(a.ctypes.data, count, repeats)) for a in arrays[1:]]
            for other in others:
                other.start()
            scale(arrays[0].ctypes.data, count, repeats)
            for other in others:
                other.join()

        return 2 * count * step * threads / best_seconds(passes)

    def flops(self) -> float:
        k, shape = 256, self.shape
        a = aligned_zeros(4 * k * shape.rows)
        b = aligned_zeros(4 * k * shape.columns)
        c = aligned_zeros(4 * shape.rows * shape.columns)
        pointers = (a.ctypes.data, b.ctypes.data, c.ctypes.data)
        gemm = self._function("probe_gemm", *[ctypes.c_void_p] * 3, ctypes.c_int64, ctypes.c_int64)
        seconds = best_seconds(lambda repeats: gemm(*pointers, k, repeats))
        return 2 * k * shape.rows * shape.columns / seconds

    def vector_ops(self) -> float:
        """Operations a second on elements that lie in the first-level cache."""
        step = probes.STREAM_VECTORS * self.target.vector_bytes
        count = max(1, self.target.l1_bytes // 4 // step)
        array = aligned_zeros(count * step)
        chain = self._function("probe_chain", ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        seconds = best_seconds(lambda passes: chain(array.ctypes.data, count, passes))
        return probes.CHAIN_OPERATIONS * count * step / 4 / seconds

    def start_seconds(self) -> float:
        """A barrier between the target's threads; a step's own bookkeeping (an indirect call) for one thread."""
        threads = min(self.target.units, available_cores())
        nothing = self._function("probe_steps", ctypes.c_int64)
        step = best_seconds(nothing)
        if threads < 2:
            return step
        barrier = self._function("probe_barrier", ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
        times = [t for t in (barrier_seconds(barrier, threads) for _ in range(RUNS)) if t is not None]
        return step + min(times) if times else self.target.rates.start_s

    def call_seconds(self) -> float:
        """A call from Python into native code with one pointer."""
        nothing = self._function("probe_call", ctypes.c_void_p)

        def calls(count: int) -> None:
            for _ in range(count):
                nothing(0)

        return best_seconds(calls)


def best_seconds(run: Callable[[int], object]) -> float:
    """Seconds of one repetition: `run(n)` makes n; the best of `RUNS` runs of about `RUN_SECONDS`."""
    run(1)
    count, seconds = 1, 0.0
    while seconds < RUN_SECONDS / 4:
        started = time.perf_counter()
        run(count)
        seconds = time.perf_counter() - started
        if seconds < RUN_SECONDS / 4:
            count *= 4
    count = max(1, round(count * RUN_SECONDS / seconds))
    best = math.inf
    for _ in range(RUNS):
        started = time.perf_counter()
        run(count)
        best = min(best, (time.perf_counter() - started) / count)
    return best


def barrier_seconds(barrier: Callable[..., Any], threads: int, rounds: int = 500) -> float | None:
    """Seconds of one barrier among `threads`; None where a thread was kept from running for too long."""
    counter = aligned_zeros(128)
    seconds: list[float] = []
    failed: list[int] = []

    def work() -> None:
        if barrier(counter.ctypes.data, threads, 10):  # until everybody is here
            failed.append(1)
            return
        started = time.perf_counter()
        if barrier(counter.ctypes.data, threads, rounds):
            failed.append(1)
        seconds.append((time.perf_counter() - started) / rounds)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return max(seconds) if seconds and not failed else None


def aligned_zeros(size: int) -> np.ndarray:
    """Bytes on a 64-byte boundary, every page touched."""
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    array = raw[start : start + size]
    array.fill(0)
    return array


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


# ---- keeping ---------------------------------------------------------------------------------------------------------
def load_rates(target: Target, cache_dir: Path) -> Rates | None:
    """Rates measured on this CPU before; None where there are none that can be trusted."""
    stored = Cache(cache_dir).get(KIND, rates_key(target))
    if stored is None:
        return None
    try:
        rates = Rates(**json.loads(stored))
    except (ValueError, TypeError):
        return None
    numbers = [getattr(rates, f.name) for f in fields(rates) if f.name != "source"]
    sound = all(isinstance(n, float) and math.isfinite(n) and n > 0 for n in numbers) and isinstance(rates.source, str)
    return rates if sound else None


def store_rates(target: Target, rates: Rates, cache_dir: Path) -> None:
    """Keep rates for the next time; nothing happens where the directory cannot be written."""
    Cache(cache_dir).put(KIND, rates_key(target), json.dumps(asdict(rates)).encode())


def rates_key(target: Target) -> str:
    return key_of((str(VERSION), cpu_model(), target.isa, str(target.units)))


def cpu_model() -> str:
    """The CPU's name with family, model and stepping (virtual machines hide the name), as the system tells it."""
    wanted = {"model name": "", "cpu family": "", "model": "", "stepping": ""}
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() in wanted and not wanted[name.strip()]:
                wanted[name.strip()] = value.strip()
    except OSError:
        pass
    numbers = "/".join(wanted[k] for k in ("cpu family", "model", "stepping") if wanted[k])
    name = wanted["model name"] or platform.processor() or platform.machine()
    return f"{name} ({numbers})" if numbers else name
