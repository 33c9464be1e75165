"""The arena of a plan: which storages live in it, how long, and which lie on another's bytes.

Lifetimes are counted in barrier epochs: all runs of an epoch may be at work at once, so a storage is free only when
the epoch of its last reader has ended. An output takes over a dying input's bytes where `inplace.may_reuse` allows it
and no other run of the same epoch touches either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from opfuse.fuse.provider import Kernel, TileKernel
from opfuse.plan.inplace import InPlace, may_reuse
from opfuse.plan.memory import Lifetime, allocate, merge
from opfuse.plan.phases import PlannedRun
from opfuse.plan.storage import Storages


@dataclass(frozen=True)
class Arena:
    """Offsets of storages; `owner` says on whose bytes a storage lies that has none of its own."""

    offsets: Mapping[str, int]
    owner: Mapping[str, str]
    sizes: Mapping[str, int]
    bytes: int

    def offset(self, name: str) -> int:
        return self.offsets[self.owner.get(name, name)]


def plan_arena(
    kernels: Sequence[Kernel], runs: Sequence[PlannedRun], number_of: Sequence[int], storages: Storages
) -> Arena:
    sizes = {v: n for v, n in storages.bytes.items() if storages.kinds[v] == "arena"}
    for r in runs:
        sizes |= r.scratch_sizes
    lifetimes = _lifetimes(runs, number_of, sizes, storages)
    joined, owner = merge(lifetimes, _reuse(kernels, runs, number_of, storages, lifetimes))
    offsets, total = allocate(joined)
    return Arena(offsets, owner, sizes, total)


def _touched(r: PlannedRun, storages: Storages) -> frozenset[str]:
    """The storages that a run reads or writes."""
    return frozenset(storages.root(v) for v in r.run.reads | r.run.writes)


def _lifetimes(
    runs: Sequence[PlannedRun], number_of: Sequence[int], sizes: Mapping[str, int], storages: Storages
) -> dict[str, Lifetime]:
    out: dict[str, Lifetime] = {}
    for r, epoch in zip(runs, number_of, strict=True):
        for name in _touched(r, storages) & sizes.keys():
            first = out[name].first if name in out else epoch
            out[name] = Lifetime(name, sizes[name], first, epoch)
    # an output of the model that lies in an arena storage (a view with gaps) is copied from there behind the last run
    for name in {storages.root(v) for v in storages.graph.outputs.values()} & out.keys():
        out[name] = replace(out[name], last=max(number_of))
    return out


def _reuse(
    kernels: Sequence[Kernel], runs: Sequence[PlannedRun], number_of: Sequence[int], storages: Storages,
    lifetimes: Mapping[str, Lifetime],
) -> dict[str, str]:  # fmt: skip
    """New storage -> the storage whose bytes it takes over. Each storage is taken over once."""
    reuse: dict[str, str] = {}
    touched: dict[int, list[frozenset[str]]] = {}
    for r, epoch in zip(runs, number_of, strict=True):
        touched.setdefault(epoch, []).append(_touched(r, storages))
    for r, epoch in zip(runs, number_of, strict=True):
        kernel = kernels[r.run.kernel]
        if not isinstance(kernel, TileKernel):
            continue
        for old, new in _candidates(kernel, storages, lifetimes):
            a, b = lifetimes[old], lifetimes[new]
            dies = a.last == epoch and b.first == epoch and a.bytes == b.bytes
            alone = sum(bool({old, new} & names) for names in touched[epoch]) == 1
            if dies and alone and old not in reuse.values() and new not in reuse:
                reuse[new] = old
    return reuse


def _candidates(kernel: TileKernel, storages: Storages, lifetimes: Mapping[str, Lifetime]) -> list[tuple[str, str]]:
    """(input storage, output storage) pairs of a kernel that may share bytes, largest first."""
    found = []
    buffers = [b for b in kernel.program.buffers if b.name in kernel.arguments]
    arguments = [(b, storages.root(v), storages.is_all(v)) for b in buffers for v in [kernel.arguments[b.name]]]
    for out, new, all_of_new in arguments:
        for _, old, _ in arguments:
            if out.role != "out" or new not in lifetimes or old not in lifetimes or old == new:
                continue
            if not all_of_new or not all(all_of_old for _, root, all_of_old in arguments if root == old):
                continue
            # the same storage under two buffers (x read plainly and through a view) must be judged at each of them
            verdicts = [may_reuse(kernel.program, b, out) for b, root, _ in arguments if root == old]
            if all(isinstance(v, InPlace) for v in verdicts):
                found.append((old, new))
    return sorted(dict.fromkeys(found), key=lambda pair: -lifetimes[pair[1]].bytes)
