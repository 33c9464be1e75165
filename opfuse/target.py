"""A machine, described: what a printer may emit and what the cost model may count on. No device is needed for one.

    host(threads=2)            # the CPU at hand
    described("h200")          # a GPU that is not there; everything up to planning runs on it
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path


@dataclass(frozen=True)
class Rates:
    """What seconds are predicted from. `source` says where the numbers come from: measured here, or read where."""

    dram_bytes_per_s: float
    l3_bytes_per_s: float
    l2_bytes_per_s: float
    flops_per_s: float  # fp32 fused multiply-adds count two, one thread, a good register tile
    vector_ops_per_s: float  # simple fp32 element operations, one thread
    start_s: float  # a kernel's start: a barrier (CPU) or a launch in a graph (GPU)
    call_s: float  # entering and leaving the native call
    source: str
    prefetch_gain: float = 1.0  # streaming speed from memory with software prefetch over the speed without


@dataclass(frozen=True)
class Target:
    name: str
    kind: str  # "cpu" | "gpu"
    isa: str  # "avx512" | "avx2" | "plain" | "sm_90" | "gfx942"
    vector_bytes: int
    registers: int  # vector registers
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    units: int  # threads used (CPU), or multiprocessors (GPU)
    rates: Rates
    features: tuple[str, ...] = ()
    triple: str = ""
    llvm_cpu: str = ""
    facts: dict[str, str] = field(default_factory=dict, compare=False)

    def lanes(self, element_bytes: int = 4) -> int:
        return max(1, self.vector_bytes // element_bytes)

    def with_rates(self, rates: Rates) -> Target:
        return replace(self, rates=rates)


# Defaults until the machine is measured: medians of what was measured on a 2-core AVX-512 server (2026).
DESCRIBED_CPU = Rates(20e9, 25e9, 80e9, 170e9, 20e9, 0.5e-6, 2e-6, "described: 2-core AVX-512 server, 2026", 1.35)
# H200: peak figures of the vendor's data sheet; start: 1.05 us a node of a CUDA graph, measured on one in 2026.
_H200_SOURCE = "described: H200 data sheet and graph replay, 2026"
DESCRIBED_H200 = Rates(4.0e12, 8.0e12, 8.0e12, 6.7e13, 6.7e13, 1.05e-6, 8e-6, _H200_SOURCE)

ISAS = ("avx512", "avx2", "plain")
_REQUIRED = {
    "avx512": ("avx512f", "avx512bw", "avx512dq", "avx512vl", "fma"),
    "avx2": ("avx2", "fma", "f16c"),
    "plain": (),
}
_VECTOR = {"avx512": (64, 32), "avx2": (32, 16), "plain": (16, 16)}


def host(threads: int = 1, isa: str | None = None) -> Target:
    """The CPU at hand, by the features that it reports. ValueError where it lacks the ISA asked for."""
    features = host_features()
    best = next(i for i in ISAS if set(_REQUIRED[i]) <= set(features))
    chosen = isa or best
    if chosen not in ISAS:
        raise ValueError(f"unknown isa {chosen!r}; choose one of {', '.join(ISAS)}")
    if ISAS.index(chosen) < ISAS.index(best):
        missing = sorted(set(_REQUIRED[chosen]) - set(features))
        raise ValueError(f"this CPU has no {chosen}: it lacks {', '.join(missing)}")
    vector_bytes, registers = _VECTOR[chosen]
    l1, l2, l3 = cache_sizes()
    return Target(
        name=f"{platform.machine()}-{chosen}", kind="cpu", isa=chosen, vector_bytes=vector_bytes, registers=registers,
        l1_bytes=l1, l2_bytes=l2, l3_bytes=l3, units=threads, rates=DESCRIBED_CPU,
        features=tuple(f for f in features if chosen == "avx512" or not f.startswith(("avx512", "amx"))),
        llvm_cpu=llvm_cpu(features, chosen),
    )  # fmt: skip


def described(name: str) -> Target:
    """A GPU by name: "h200". KeyError for others."""
    return {
        "h200": Target(name="h200", kind="gpu", isa="sm_90", vector_bytes=128, registers=255, l1_bytes=232448,
                       l2_bytes=50 << 20, l3_bytes=0, units=132, rates=DESCRIBED_H200),
    }[name]  # fmt: skip


def host_features() -> tuple[str, ...]:
    """Names of the CPU's features that are present, in LLVM's spelling, sorted."""
    from llvmlite import binding as llvm

    return tuple(sorted(name for name, present in llvm.get_host_cpu_features().items() if present))


def llvm_cpu(features: Iterable[str], isa: str) -> str:
    """The CPU name to give LLVM, from features: the host's own name may pick a scheduling model that spills.

    Measured: with `rocketlake` or `skylake-avx512` a GEMM kernel gets 48 stack references, with `sapphirerapids` none.
    """
    if isa == "avx512":
        return "sapphirerapids" if "avx512vnni" in features else "skylake-avx512"
    return "haswell" if isa == "avx2" else "x86-64" if platform.machine() in ("x86_64", "AMD64") else ""


def cache_sizes() -> tuple[int, int, int]:
    """L1 data, L2 and L3 bytes of core 0; common sizes where the system does not say."""
    found = [32 << 10, 1 << 20, 16 << 20]
    root = "/sys/devices/system/cpu/cpu0/cache"
    if os.path.isdir(root):
        for entry in sorted(os.listdir(root)):
            try:
                with open(f"{root}/{entry}/level") as f:
                    level = int(f.read())
                with open(f"{root}/{entry}/type") as f:
                    kind = f.read().strip()
                with open(f"{root}/{entry}/size") as f:
                    size = f.read().strip()
            except OSError:
                continue
            if kind != "Instruction" and 1 <= level <= 3:
                shift = {"K": 10, "M": 20, "G": 30}.get(size[-1])
                found[level - 1] = int(size) if shift is None else int(size[:-1]) << shift
    return found[0], found[1], found[2]


def physical_cores() -> int:
    """Cores that this process may use, threads of one core counted once; all of them where the system does not say."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = set()
    for cpu in usable:
        try:
            siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
        except OSError:
            siblings = str(cpu)
        cores.add(siblings)
    return max(1, len(cores))
