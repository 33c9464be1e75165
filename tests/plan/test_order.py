"""Execution order and epochs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opfuse.plan.order import Footstep, Run, conflict, epochs, execution_order, peak_bytes


@st.composite
def footsteps(draw: st.DrawFn) -> list[Footstep]:
    """A random graph of kernels, shuffled."""
    count = draw(st.integers(1, 12))
    made: list[str] = ["in"]
    steps = []
    for k in range(count):
        reads = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3))
        writes = tuple(f"v{k}.{j}" for j in range(draw(st.integers(1, 2))))
        steps.append(Footstep(tuple(reads), writes, draw(st.booleans())))
        made += writes
    return draw(st.permutations(steps))


@given(footsteps(), st.data())
def test_every_kernel_runs_once_and_after_what_it_reads(steps: list[Footstep], data: st.DataObject) -> None:
    sizes = {w: data.draw(st.integers(0, 100)) for s in steps for w in s.writes}
    order = execution_order(steps, sizes)
    assert sorted(order) == list(range(len(steps)))
    made = {"in"}
    for k in order:
        assert set(steps[k].reads) <= made
        made |= set(steps[k].writes)


def test_the_order_with_the_lower_peak_is_taken() -> None:
    """Two large values that are each reduced at once must not be alive together."""
    steps = [
        Footstep(("x",), ("big1",)), Footstep(("x",), ("big2",)), Footstep(("big1",), ("small1",)),
        Footstep(("big2",), ("small2",)), Footstep(("small1", "small2"), ("y",)),
    ]  # fmt: skip
    sizes = {"big1": 1000, "big2": 1000, "small1": 1, "small2": 1, "y": 1}
    assert peak_bytes(steps, range(5), sizes) == 2001
    order = execution_order(steps, sizes)
    assert peak_bytes(steps, order, sizes) == 1002


def test_the_given_order_stays_where_nothing_is_gained() -> None:
    steps = [Footstep(("x",), (f"v{k}",)) for k in range(5)]
    assert execution_order(steps, {f"v{k}": 8 for k in range(5)}) == (0, 1, 2, 3, 4)


def test_host_steps_are_not_scattered() -> None:
    steps = [Footstep(("x",), (f"v{k}",), host=k % 2 == 1) for k in range(6)]
    hosts = [steps[k].host for k in execution_order(steps, {})]
    assert hosts == [False, False, False, True, True, True]


def test_a_circle_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"kernels \[1, 2\] wait for each other"):
        execution_order([Footstep(("x",), ("a",)), Footstep(("c",), ("b",)), Footstep(("b",), ("c",))], {})


# ---- epochs ----------------------------------------------------------------------------------------------------------
def run(reads: str, writes: str, solo: bool = False, host: bool = False) -> Run:
    return Run(0, frozenset(reads), frozenset(writes), solo, host)


def test_epochs_by_hand() -> None:
    assert epochs([run("x", "a"), run("x", "b"), run("ab", "c")], 2) == (0, 0, 1)  # independent, then a read
    assert epochs([run("a", "b"), run("x", "a")], 2) == (0, 1)  # a write after a read
    assert epochs([run("x", "a"), run("y", "a")], 2) == (0, 1)  # a write after a write
    assert epochs([run("x", "a"), run("x", "b")], 1) == (0, 1)  # one thread: each an epoch of its own
    assert epochs([run("x", "a", solo=True), run("a", "b", solo=True), run("b", "c")], 2) == (0, 0, 1)
    assert epochs([run("x", "a"), run("y", "b", host=True), run("z", "c")], 2) == (0, 1, 2)


runs = st.lists(
    st.builds(run, st.text("abcdef", max_size=3), st.text("abcdef", min_size=1, max_size=2), st.booleans()), max_size=14
)


@given(runs, st.integers(1, 4))
def test_runs_of_one_epoch_do_not_depend_on_each_other(steps: list[Run], threads: int) -> None:
    numbers = epochs(steps, threads)
    assert list(numbers) == sorted(numbers)
    for j, later in enumerate(steps):
        for i, earlier in enumerate(steps[:j]):
            if numbers[i] == numbers[j]:
                assert (later.solo and earlier.solo) or not conflict(earlier, later)
