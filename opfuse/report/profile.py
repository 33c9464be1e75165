"""Where the time of a call goes: every kernel timed inside the native call, against what the machine allows.

    report = profile(fused, arrays, before=unfused, seconds=1.0)     # two compiled models of one graph
    report.text(width=100);  report.to_json()

A kernel has two floors: its bytes at the calibrated bandwidth of the cache level that holds them, and its operations
(as the cost model weighs them: an exponential is many) at the calibrated peak: of multiply-adds where it has matrix
products, of element operations otherwise. The higher one says what bounds it and, over the measured time, which share
of that ceiling it reaches. What lies above the floors is what there is to gain: kernels are ranked by it. A kernel that
is faster than a ceiling proves it too low (the machine was busy when it was calibrated): it is raised to what was
reached.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from opfuse.fuse.cost import LEAST_START_S
from opfuse.plan.plan import Host, KernelInfo, Plan
from opfuse.report.explain import kernel_ids
from opfuse.target import Rates, Target

SCHEMA = 1
_LEVELS = ("dram", "l3", "l2")
_CEILINGS = ("dram_bytes_per_s", "l3_bytes_per_s", "l2_bytes_per_s", "flops_per_s", "vector_ops_per_s")
LONG_ENOUGH_S = 5e-6  # a shorter time says little: the clock's own resolution is in it


class Profiled(Protocol):
    """What is needed of a compiled model."""

    @property
    def plan(self) -> Plan: ...

    @property
    def target(self) -> Target | None: ...

    def run(self, arrays: Sequence[Any]) -> list[np.ndarray]: ...

    def profile(self, arrays: Sequence[Any], seconds: float = 0.2) -> tuple[float, ...]: ...


@dataclass(frozen=True)
class KernelProfile:
    """One kernel. `bytes` are its inputs and outputs once each, `flops` its operations; rates go by `measured_s`.

    `memory_share` and `compute_share` are shares of the two calibrated ceilings; `gain_s` is the time above the floor
    that binds; `rank` 1 is to be mended first.
    """

    id: str
    number: int
    name: str
    nodes: tuple[str, ...]
    provider: str
    measured_s: float
    predicted_s: float
    bytes: int
    flops: int
    memory_share: float
    compute_share: float
    bound: str
    gain_s: float
    rank: int = 0

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.measured_s if self.measured_s > 0 else 0.0

    @property
    def flops_per_s(self) -> float:
        return self.flops / self.measured_s if self.measured_s > 0 else 0.0

    @property
    def share(self) -> float:
        """Of the ceiling that binds."""
        return max(self.memory_share, self.compute_share)


@dataclass(frozen=True)
class Side:
    """One compiled model: its kernels in the order of execution, the median time of a whole call, what it moves."""

    kernels: tuple[KernelProfile, ...]
    call_s: float
    bytes: int

    @property
    def kernels_s(self) -> float:
        return sum(k.measured_s for k in self.kernels)

    def bound_s(self, bound: str) -> float:
        return sum(k.measured_s for k in self.kernels if k.bound == bound)


@dataclass(frozen=True)
class ProfileReport:
    """`before` is the same model with every node a kernel of its own; None where there is no model to compile anew.

    `rates` are the ceilings that shares go by; `calibrated` are those of the machine, some of them lower at times.
    """

    model: str
    target: str
    threads: int
    rates: Rates
    calibrated: Rates
    after: Side
    before: Side | None

    @property
    def raised(self) -> dict[str, float]:
        """Ceilings that a kernel broke, with what was calibrated."""
        pairs = {n: getattr(self.calibrated, n) for n in _CEILINGS}
        return {n: rate for n, rate in pairs.items() if getattr(self.rates, n) != rate}

    def to_fix(self) -> list[KernelProfile]:
        """Kernels by what there is to gain, the most first."""
        return sorted(self.after.kernels, key=lambda k: k.rank)

    def to_json(self) -> dict[str, Any]:
        r = self.rates
        ceilings = {"dram_bytes_per_s": r.dram_bytes_per_s, "l3_bytes_per_s": r.l3_bytes_per_s,
                    "l2_bytes_per_s": r.l2_bytes_per_s, "flops_per_s": r.flops_per_s,
                    "vector_ops_per_s": r.vector_ops_per_s, "source": r.source, "raised_from": self.raised}  # fmt: skip
        return {
            "schema": SCHEMA, "model": self.model, "target": self.target, "threads": self.threads, "ceilings": ceilings,
            "after": _side_json(self.after), "before": None if self.before is None else _side_json(self.before),
        }  # fmt: skip

    def text(self, width: int = 100) -> str:
        from opfuse.report.profile_text import parts
        from opfuse.report.render import plain

        return plain(parts(self, width), width)

    def __str__(self) -> str:
        return self.text()


def _side_json(side: Side) -> dict[str, Any]:
    kernels = [
        {"id": k.id, "number": k.number, "name": k.name, "nodes": list(k.nodes), "provider": k.provider,
         "measured_s": k.measured_s, "predicted_s": k.predicted_s, "bytes": k.bytes, "flops": k.flops,
         "bytes_per_s": k.bytes_per_s, "flops_per_s": k.flops_per_s, "memory_share": k.memory_share,
         "compute_share": k.compute_share, "bound": k.bound, "gain_s": k.gain_s, "rank": k.rank}
        for k in side.kernels
    ]  # fmt: skip
    return {"call_s": side.call_s, "kernels_s": side.kernels_s, "bytes": side.bytes, "kernels": kernels}


# ---- measuring -------------------------------------------------------------------------------------------------------
def profile(
    model: Profiled, arrays: Sequence[Any], *, before: Profiled | None = None, seconds: float = 1.0
) -> ProfileReport:  # fmt: skip
    """Time a model on arrays for its inputs, about `seconds` for each side; `before` is the unfused one."""
    assert model.target is not None, "a compiled model knows its target"
    plan, calibrated = model.plan, model.target
    measured = [measure(m, arrays, seconds) for m in (before, model) if m is not None]
    target = calibrated
    for one in measured:
        target = with_reached(one.plan, one.times, target)
    *others, after = (Side(judged(o.plan, o.times, target), o.call_s, sum(k.bytes for k in o.plan.kernels))
                      for o in measured)  # fmt: skip
    return ProfileReport(str(plan.facts.get("model", "model")), target.name, plan.threads, target.rates,
                         calibrated.rates, after, others[0] if others else None)  # fmt: skip


@dataclass(frozen=True)
class Measured:
    plan: Plan
    times: tuple[float, ...]  # of the kernels
    call_s: float


def measure(model: Profiled, arrays: Sequence[Any], seconds: float) -> Measured:
    call = call_seconds(model, arrays, seconds / 2)
    return Measured(model.plan, tuple(model.profile(arrays, seconds / 2)), call)


def with_reached(plan: Plan, times: Sequence[float], target: Target) -> Target:
    """The target, its ceilings no lower than what kernels reached."""
    hosts = {s.kernel for s in plan.segments if isinstance(s, Host)}
    for n, (k, measured) in enumerate(zip(plan.kernels, times, strict=True)):
        if n in hosts or measured < LONG_ENOUGH_S:
            continue
        memory, compute = memory_floor(k, target), compute_floor(k, target)
        if compute > measured:
            target = _raised(target, compute_unit(k), compute / measured)
        if memory > measured:
            seconds = level_seconds(k, target)
            slowest = max(seconds, key=lambda name: seconds[name])
            rest = memory - seconds[slowest]  # of the other levels, which are taken to be right where that is possible
            factor = seconds[slowest] / (measured - rest) if rest < measured / 2 else memory / measured
            for name in (slowest,) if rest < measured / 2 else seconds:
                target = _raised(target, f"{name}_bytes_per_s", factor)
    return target


def _raised(target: Target, ceiling: str, factor: float) -> Target:
    return target.with_rates(replace(target.rates, **{ceiling: getattr(target.rates, ceiling) * factor}))


def call_seconds(model: Profiled, arrays: Sequence[Any], seconds: float) -> float:
    """Median time of a call, checks of inputs and allocation of outputs included."""
    model.run(arrays)
    times, end = list[float](), time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        model.run(arrays)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


# ---- judging ---------------------------------------------------------------------------------------------------------
def judged(plan: Plan, times: Sequence[float], target: Target) -> tuple[KernelProfile, ...]:
    """Kernels with their shares, bounds and ranks, from their measured times."""
    hosts = {s.kernel for s in plan.segments if isinstance(s, Host)}
    ids = kernel_ids(plan.kernels)
    found = [_judge(k, ids[n], n, times[n], target, n in hosts) for n, k in enumerate(plan.kernels)]
    order = sorted(range(len(found)), key=lambda n: (-found[n].gain_s, n))
    ranks = {n: r for r, n in enumerate(order, 1)}
    return tuple(replace(k, rank=ranks[n]) for n, k in enumerate(found))


def _judge(k: KernelInfo, identifier: str, number: int, measured: float, target: Target, host: bool) -> KernelProfile:
    memory, compute = memory_floor(k, target), compute_floor(k, target)
    start = max(target.rates.start_s, LEAST_START_S)
    floor = max(memory, compute)
    bound = "host" if host else "latency" if floor <= start else "memory" if memory >= compute else "compute"
    gain = max(0.0, measured - max(floor, 0.0 if host else start))
    memory_share, compute_share = (min(1.0, f / measured) if measured > 0 else 0.0 for f in (memory, compute))
    return KernelProfile(identifier, number, k.name, k.nodes, k.provider, measured, k.predicted_s, k.bytes, k.flops,
                         memory_share, compute_share, bound, gain)  # fmt: skip


def memory_floor(k: KernelInfo, target: Target) -> float:
    """Seconds that the kernel's bytes take: those of each cache level at its bandwidth, of all threads together."""
    return sum(level_seconds(k, target).values())


def level_seconds(k: KernelInfo, target: Target) -> dict[str, float]:
    """Cache level -> seconds that the bytes found there take."""
    rates, threads = target.rates, target.units
    bandwidth = {"dram": rates.dram_bytes_per_s, "l3": rates.l3_bytes_per_s * threads,
                 "l2": rates.l2_bytes_per_s * threads}  # fmt: skip
    levels: Mapping[str, float] = {n: float(k.facts[f"{n}_bytes"]) for n in _LEVELS if f"{n}_bytes" in k.facts}
    if not levels:  # a provider that says nothing of levels
        fits = [n for n, size in (("l2", target.l2_bytes), ("l3", target.l3_bytes)) if k.bytes <= size]
        levels = {(fits or ["dram"])[0]: float(k.bytes)}
    return {name: size / bandwidth[name] for name, size in levels.items()}


def compute_floor(k: KernelInfo, target: Target) -> float:
    """Seconds that its operations take at the peak of the unit that does most of them."""
    peak = float(getattr(target.rates, compute_unit(k)))
    return float(k.facts.get("operations", k.flops)) / (peak * target.units)


def compute_unit(k: KernelInfo) -> str:
    """The ceiling of its operations."""
    return "flops_per_s" if float(k.facts.get("dot_s", 0.0)) > 0 else "vector_ops_per_s"
