"""Contexts: the memory of one call. Base addresses, counters, the threads' scratch and the arena stand in one block.

    context = Context(plan, driver, weights_address, debug=False)
    context.words[context.base("input", 0)] = address;  entry(context.address)

A compiled model never changes; each call takes a context from the model's pool and gives it back, so calls from several
Python threads never share memory.
"""

from __future__ import annotations

import numpy as np

from opfuse.codegen.llvm import context as layout
from opfuse.codegen.llvm.entry import live_steps, slots_of
from opfuse.plan.memory import align
from opfuse.plan.plan import Native, Plan
from opfuse.plan.weights import aligned_bytes

PAGE = 4096
# Two threads' scratch lies this much further apart than it must: other sets of the cache, never the same line.
SCRATCH_GAP = 192
CACHE_LINE = 64
ALIGNED_FROM = 4096  # outputs of at least so many bytes begin at a cache line; aligning costs about a microsecond


class Context:
    """Memory and addresses of one call. `words` are the header's 8-byte fields."""

    __slots__ = ("address", "arena", "memory", "words", "_counters", "_counters_bytes")

    def __init__(self, plan: Plan, driver: int, weights: int, debug: bool = False) -> None:
        slots = slots_of(plan)
        steps = max((len(live_steps(s.steps)) for s in plan.segments if isinstance(s, Native)), default=0)
        stride = align(plan.scratch_bytes) + SCRATCH_GAP if plan.scratch_bytes else 0
        counters = align(slots.bytes)
        scratch = align(counters + layout.counter_bytes(steps, plan.threads))
        arena = align(scratch + stride * plan.threads, PAGE)
        self.memory = aligned_bytes(arena + plan.arena_bytes + CACHE_LINE, PAGE)
        self.memory[:scratch] = 0
        self.arena = self.memory[arena : arena + plan.arena_bytes]
        self.address: int = self.memory.__array_interface__["data"][0]
        self.words = self.memory[: slots.bytes].data.cast("Q")
        self._set(layout.DRIVER, driver)
        self._set(layout.THREADS, plan.threads)
        self._set(layout.SCRATCH, self.address + scratch)
        self._set(layout.SCRATCH_STRIDE, stride)
        self._set(layout.COUNTERS, self.address + counters)
        self._set(layout.COUNTERS_BYTES, layout.counter_bytes(steps, plan.threads))
        self._set(layout.DELAY, 0x9E3779B97F4A7C15 if debug else 0)
        self._set(slots.offset("arena"), self.address + arena)
        self._set(slots.offset("weights"), weights)

    def _set(self, offset: int, value: int) -> None:
        self.words[offset // 8] = value

    def set_profile(self, address: int) -> None:
        """Where the driver adds up the ticks of each step; 0 switches it off."""
        self._set(layout.PROFILE, address)

    def fill_arena(self) -> None:
        """All bits set: NaN in every float type, -1 in integers."""
        self.arena[:] = 0xFF


def empty_output(shape: tuple[int, ...], dtype: np.dtype, size: int) -> np.ndarray:
    """A fresh array, at a cache line where it is large enough for that to matter."""
    if size < ALIGNED_FROM:
        return np.empty(shape, dtype)
    raw = np.empty(size + CACHE_LINE, np.uint8)
    start = -raw.__array_interface__["data"][0] % CACHE_LINE
    return np.ndarray(shape, dtype, raw, start)
