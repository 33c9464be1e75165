"""Where things lie: offsets in one arena for storages that live from epoch to epoch.

Two storages may share bytes only if no epoch sees both alive. Largest first, each into the smallest gap that holds it
(greedy by size; Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020).

    allocate([Lifetime("a", 256, 0, 1), Lifetime("b", 64, 2, 3)]) -> ({"a": 0, "b": 0}, 256)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

ALIGNMENT = 64  # bytes: a cache line, and the widest vector


@dataclass(frozen=True)
class Lifetime:
    """A storage: its bytes, and the first and the last epoch in which someone writes or reads it."""

    name: str
    bytes: int
    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


def align(n: int, to: int = ALIGNMENT) -> int:
    return -(-n // to) * to


def allocate(lifetimes: Iterable[Lifetime]) -> tuple[dict[str, int], int]:
    """Offsets by name, all multiples of 64, and the bytes of the arena."""
    placed: list[tuple[int, Lifetime]] = []
    offsets: dict[str, int] = {}
    total = 0
    for life in sorted(lifetimes, key=lambda x: (-x.bytes, x.first, x.name)):
        at = _best_gap(life, [(o, p.bytes) for o, p in placed if p.meets(life)])
        placed.append((at, life))
        offsets[life.name] = at
        total = max(total, at + align(life.bytes))
    return offsets, total


def _best_gap(life: Lifetime, taken: Sequence[tuple[int, int]]) -> int:
    """The smallest hole between the taken ranges that holds the storage, or the place behind all of them."""
    best, best_size, end = -1, 0, 0
    for offset, size in sorted(taken):
        hole = offset - end
        if hole >= align(life.bytes) and (best < 0 or hole < best_size):
            best, best_size = end, hole
        end = max(end, offset + align(size))
    return best if best >= 0 else end


def merge(lifetimes: Mapping[str, Lifetime], reuse: Mapping[str, str]) -> tuple[list[Lifetime], dict[str, str]]:
    """Join storages that take over another's bytes (`reuse`: new name -> old name) into the oldest one's lifetime.

    Returns the joined lifetimes and, for each name that went up in another, the name that it lies in.
    """
    joined = dict(lifetimes)
    owner: dict[str, str] = {}
    for new in sorted(reuse, key=lambda n: (lifetimes[n].first, n)):
        old = reuse[new]
        old = owner.get(old, old)
        a, b = joined[old], joined.pop(new)
        joined[old] = Lifetime(old, max(a.bytes, b.bytes), min(a.first, b.first), max(a.last, b.last))
        owner[new] = old
    return list(joined.values()), owner
