"""Random graphs of values that lie in one another (`placing_graphs`), compiled and asked everything that may go wrong.

Each seed runs fused, in debug mode (bytes begin as NaN, threads come late), against float64; then, by its number, with
nothing fused, some fusions off, as a saved file, in calls at the same time, or profiled. Thousands by hand:

    python -m tests.fuse.test_placing_random 0 2000 f32
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

import opfuse
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType
from opfuse.runtime.executable import Executable
from tests.fuse.placing_graphs import placing_feeds, placing_graph
from tests.native.random_graphs import check_answers

Arrays = Mapping[str, np.ndarray]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def compiled(graph: Graph, cache: Path, threads: int, off: object = ()) -> Executable:
    return opfuse.compile(
        graph.copy(), threads=threads, calibrate=False, cache=cache, debug=True, disable_fusions=off,  # type: ignore[arg-type]
    )  # fmt: skip


def same_bits(right: Arrays, answer: Arrays) -> None:
    assert list(right) == list(answer)
    for name, array in right.items():
        got = answer[name]
        assert (got.dtype, got.shape, got.tobytes()) == (array.dtype, array.shape, array.tobytes()), name


def apart(arrays: list[np.ndarray]) -> bool:
    """No two of the arrays share a byte."""
    return not any(
        a.size and b.size and np.shares_memory(a, b) for k, a in enumerate(arrays) for b in arrays[:k]
    )


def check(seed: int, cache: Path, dtype: DType = DType.F32) -> None:
    graph = placing_graph(seed, dtype=dtype)
    feeds = placing_feeds(graph, seed)
    before = {name: array.tobytes() for name, array in feeds.items()}
    run = compiled(graph, cache, 1 + seed % 2)
    first, second = run(feeds), run(feeds)
    same_bits(first, second)
    assert apart([*first.values(), *second.values(), *feeds.values()])
    assert all(a.flags.writeable and a.flags.c_contiguous for a in first.values())
    assert {name: array.tobytes() for name, array in feeds.items()} == before
    assert "unrecorded" not in {b.code for b in run.explain().boundaries}
    more = MORE[seed % len(MORE)](run, graph, feeds, first, cache)
    check_answers(graph, feeds, first, *more)


# ---- one of these for each seed --------------------------------------------------------------------------------------
def nothing_fused(run: Executable, graph: Graph, feeds: Arrays, right: Arrays, cache: Path) -> list[Arrays]:
    return [compiled(graph, cache, 1, "all")(feeds)]


def some_fusions_off(run: Executable, graph: Graph, feeds: Arrays, right: Arrays, cache: Path) -> list[Arrays]:
    taken = [d for d in run.explain().decisions if d.kind == "fusion" and d.outcome == "taken"]
    ids = sorted({d.id for d in taken if d.rule in ("kernel", "in-place")})[::2]
    other = compiled(graph, cache, 2, ids)
    assert "unrecorded" not in {b.code for b in other.explain().boundaries}
    off = {d.id for d in other.explain().decisions if d.rule in ("kernel", "in-place") and d.outcome == "disabled"}
    assert off <= set(ids)
    return [other(feeds)]


def saved(run: Executable, graph: Graph, feeds: Arrays, right: Arrays, cache: Path) -> list[Arrays]:
    path = cache / "saved.opf"
    run.save(path)
    loaded = opfuse.load(path)
    same_bits(right, loaded(feeds))
    assert str(loaded.explain()) == str(run.explain())
    return []


def at_the_same_time(run: Executable, graph: Graph, feeds: Arrays, right: Arrays, cache: Path) -> list[Arrays]:
    answers: list[Arrays] = []
    threads = [threading.Thread(target=lambda: answers.extend(run(feeds) for _ in range(3))) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(answers) == 9
    for answer in answers:
        same_bits(right, answer)
    return []


def profiled(run: Executable, graph: Graph, feeds: Arrays, right: Arrays, cache: Path) -> list[Arrays]:
    times = run.model.profile([feeds[p.name] for p in run.model.plan.inputs], seconds=0.005)
    assert len(times) == len(run.model.plan.kernels) and all(t >= 0 for t in times)
    same_bits(right, run(feeds))
    return []


More = Callable[[Executable, Graph, Arrays, Arrays, Path], list[Arrays]]
MORE: tuple[More, ...] = (nothing_fused, saved, at_the_same_time, some_fusions_off, profiled)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(20))
def test_random_places(seed: int, cache: Path) -> None:
    check(seed, cache)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", [DType.F64, DType.F16], ids=repr)
def test_random_places_of_other_types(seed: int, dtype: DType, cache: Path) -> None:
    check(seed + 2000, cache, dtype)


def test_the_graphs_are_what_they_are_meant_to_be(cache: Path) -> None:
    """Of twelve, some have values between gaps, joints written in place, phases side by side, Python functions."""
    found = {"between gaps": 0, "in place": 0, "beside": 0, "empty": 0, "shown twice": 0, "Python": 0}
    for seed in range(12):
        graph = placing_graph(seed)
        model = compiled(graph, cache, 1).model
        found["between gaps"] += any(v.strides for v in model.plan.values)
        found["in place"] += any(d.rule == "in-place" and d.outcome == "taken" for d in model.ledger)
        found["beside"] += any("beside" in k.facts for k in model.plan.kernels)
        found["empty"] += any(0 in t.static_shape for t in graph.types.values())
        found["shown twice"] += len(set(graph.outputs.values())) < len(graph.outputs)
        found["Python"] += bool(model.host_kernels)
    assert all(found.values()), found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    begin, end, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "f32"
    for number in range(begin, end):
        try:
            check(number, Path(".placing_cache"), DType[name.upper()])
        except Exception as error:
            print(number, type(error).__name__, str(error)[:200].replace("\n", " "), flush=True)
