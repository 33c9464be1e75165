"""Offsets in the arena: no two storages that meet share a byte, and the arena is not larger than it must be by much."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opfuse.plan.memory import ALIGNMENT, Lifetime, align, allocate, merge

spans = st.tuples(st.integers(0, 9), st.integers(0, 9)).map(sorted)
lifetimes = st.lists(st.tuples(st.integers(0, 1000), spans), max_size=14).map(
    lambda rows: [Lifetime(f"s{k}", size, first, last) for k, (size, (first, last)) in enumerate(rows)]
)


@given(lifetimes)
def test_storages_alive_together_lie_apart(lives: list[Lifetime]) -> None:
    offsets, total = allocate(lives)
    for a in lives:
        assert offsets[a.name] % ALIGNMENT == 0 and offsets[a.name] + a.bytes <= total
        for b in lives:
            together = any(a.first <= e <= a.last and b.first <= e <= b.last for e in range(10))
            if a.name < b.name and together and a.bytes and b.bytes:
                apart_before = offsets[a.name] + a.bytes <= offsets[b.name]
                apart_after = offsets[b.name] + b.bytes <= offsets[a.name]
                assert apart_before or apart_after


@given(lifetimes)
def test_the_arena_is_between_the_live_peak_and_the_sum(lives: list[Lifetime]) -> None:
    _, total = allocate(lives)
    live = [sum(align(x.bytes) for x in lives if x.first <= e <= x.last) for e in range(10)]
    assert max(live) <= total <= sum(align(x.bytes) for x in lives)


def test_a_chain_needs_two_places() -> None:
    chain = [Lifetime(f"s{k}", 640, k, k + 1) for k in range(10)]
    assert allocate(chain)[1] == 2 * 640


def test_the_smallest_hole_is_taken() -> None:
    """Holes of 512 and 256 bytes under long-lived neighbours: 100 bytes go into the second."""
    lives = [Lifetime("a", 2048, 0, 9), Lifetime("early", 512, 0, 1), Lifetime("b", 448, 0, 9),
             Lifetime("gap", 256, 0, 1), Lifetime("c", 192, 0, 9), Lifetime("late", 100, 5, 6)]  # fmt: skip
    offsets, total = allocate(lives)
    assert offsets["late"] == offsets["gap"] and total == 2048 + 512 + 448 + 256 + 192


def test_merged_storages_live_as_long_as_all_of_them() -> None:
    lives = {n: Lifetime(n, 64, first, last) for n, first, last in (("a", 0, 1), ("b", 1, 2), ("c", 2, 5))}
    joined, owner = merge(lives, {"c": "b", "b": "a"})
    assert joined == [Lifetime("a", 64, 0, 5)] and owner == {"b": "a", "c": "a"}
