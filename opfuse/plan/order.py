"""Which kernel runs when: a topological order of the kernels that keeps few bytes alive and few segments apart.

Kernels come in any order; what they read and make is known by name. Two orders are tried, the given one made
topological and a greedy one that frees memory first, and the one with the lower peak is kept.

    execution_order([Footstep(("x",), ("a",)), Footstep(("a",), ("y",))], sizes) -> (0, 1)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Key = tuple[int, ...]


@dataclass(frozen=True)
class Footstep:
    """What one kernel reads and makes, as names of values that kernels make (a view stands for what it shows)."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    host: bool = False


def execution_order(kernels: Sequence[Footstep], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Numbers of the kernels in the order of execution.

    `sizes` are bytes of the storages that are freed after their last reader (no constants, model inputs or outputs).
    ValueError where kernels wait for each other.
    """
    given = _topological(kernels, lambda k, done: (k,))
    readers = _reader_counts(kernels)

    def growth(k: int, done: set[int]) -> Key:
        made = sum(sizes.get(w, 0) for w in kernels[k].writes)
        freed = sum(
            sizes.get(r, 0) for r in set(kernels[k].reads)
            if all(other == k or other in done for other in readers.get(r, ()))
        )  # fmt: skip
        return (made - freed, k)

    greedy = _topological(kernels, growth)
    return min((given, greedy), key=lambda order: peak_bytes(kernels, order, sizes))


def peak_bytes(kernels: Sequence[Footstep], order: Sequence[int], sizes: Mapping[str, int]) -> int:
    """The largest sum of storages alive during one kernel: from the kernel that makes it to the last that reads it."""
    last = {r: at for at, k in enumerate(order) for r in (*kernels[k].writes, *kernels[k].reads)}
    live, now, peak = set[str](), 0, 0
    for at, k in enumerate(order):
        for w in kernels[k].writes:
            if w not in live:
                live.add(w)
                now += sizes.get(w, 0)
        peak = max(peak, now)
        for r in {*kernels[k].reads, *kernels[k].writes} & live:
            if last[r] == at:
                live.discard(r)
                now -= sizes.get(r, 0)
    return peak


def _reader_counts(kernels: Sequence[Footstep]) -> dict[str, list[int]]:
    readers: dict[str, list[int]] = {}
    for k, kernel in enumerate(kernels):
        for r in set(kernel.reads):
            readers.setdefault(r, []).append(k)
    return readers


def _topological(kernels: Sequence[Footstep], key: Callable[[int, set[int]], Key]) -> tuple[int, ...]:
    """Of the kernels that are ready, the one of the kind that runs now (a switch costs a segment), then by `key`."""
    maker = {w: k for k, kernel in enumerate(kernels) for w in kernel.writes}
    waits = [{maker[r] for r in kernel.reads if r in maker} - {k} for k, kernel in enumerate(kernels)]
    unlocks: list[list[int]] = [[] for _ in kernels]
    for k, needs in enumerate(waits):
        for n in needs:
            unlocks[n].append(k)
    ready = [k for k, needs in enumerate(waits) if not needs]
    left = [len(needs) for needs in waits]
    order: list[int] = []
    done: set[int] = set()
    host = False
    while ready:
        k = min(ready, key=lambda k: (kernels[k].host != host, key(k, done)))
        ready.remove(k)
        order.append(k)
        done.add(k)
        host = kernels[k].host
        for n in unlocks[k]:
            left[n] -= 1
            if not left[n]:
                ready.append(n)
    if len(order) < len(kernels):
        stuck = sorted(set(range(len(kernels))) - done)
        raise ValueError(f"kernels {stuck} wait for each other")
    return tuple(order)


# ---- epochs ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Run:
    """One phase of a kernel, or one host call, at its place in the order; made values that it reads and writes."""

    kernel: int
    reads: frozenset[str]
    writes: frozenset[str]
    solo: bool = False  # run by the calling thread alone
    host: bool = False


def conflict(earlier: Run, later: Run) -> bool:
    """Whether `later` must wait for `earlier`: a read after write, write after read or write after write."""
    return bool(earlier.writes & (later.reads | later.writes) or earlier.reads & later.writes)


def epochs(runs: Sequence[Run], threads: int) -> tuple[int, ...]:
    """The epoch of each run; a barrier stands wherever the number rises.

    Runs of one epoch may run side by side. Solo runs keep their order among themselves. One thread runs one thing after
    another, so each run is an epoch of its own there and bytes are free as early as they can be.
    """
    if threads == 1:
        return tuple(range(len(runs)))
    out: list[int] = []
    members: list[Run] = []
    number = 0
    for k, run in enumerate(runs):
        border = k > 0 and (run.host or runs[k - 1].host)
        if border or any(conflict(m, run) and not (m.solo and run.solo) for m in members):
            number += 1
            members = []
        members.append(run)
        out.append(number)
    return tuple(out)
