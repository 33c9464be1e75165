"""Random graphs compiled natively, fused and operator by operator, against float64 with a bound for every element.

Thousands of seeds were run to find faults (which stand in `test_found_faults`); the suite keeps some of each kind.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import opfuse
from opfuse.ir.evaluate import evaluate
from opfuse.ir.types import DType
from opfuse.report.error_bounds import analyse, worst_case
from opfuse.target import ISAS, host
from tests.native.random_graphs import SLACK, check_answers, random_feeds, random_graph

NARROWER = ISAS[ISAS.index(host().isa) + 1 :]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def check(seed: int, cache: Path, dtype: DType = DType.F32, isa: str | None = None, unfused: bool = True) -> None:
    graph = random_graph(seed, dtype=dtype)
    feeds = random_feeds(graph, seed)
    fused = opfuse.compile(graph.copy(), threads=1 + seed % 2, calibrate=False, cache=cache, isa=isa)
    answers = [fused(feeds)]
    if unfused:
        apart = opfuse.compile(graph.copy(), threads=1, calibrate=False, cache=cache, isa=isa, disable_fusions={"all"})
        answers.append(apart(feeds))
    assert not [d for d in fused.model.ledger if d.kind == "host" or d.outcome == "undone"]
    check_answers(graph, feeds, *answers)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(1000, 1050))
def test_random_graph(seed: int, cache: Path) -> None:
    check(seed, cache)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("dtype", [DType.F64, DType.F16, DType.BF16], ids=repr)
def test_other_types(seed: int, dtype: DType, cache: Path) -> None:
    check(seed + 2000, cache, dtype, unfused=False)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("isa", NARROWER)
@pytest.mark.parametrize("seed", range(3000, 3010))
def test_narrower_cpu(seed: int, isa: str, cache: Path) -> None:
    check(seed, cache, isa=isa, unfused=False)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(20))
def test_the_judge_sees_a_wrong_element(seed: int) -> None:
    """The oracle's own answer passes; one element beyond its bound does not."""
    graph = random_graph(seed + 500)
    feeds = random_feeds(graph, seed + 500)
    right = evaluate(graph, feeds)
    check_answers(graph, feeds, right)
    _, bounds = analyse(graph, feeds, worst_case)
    for name, value in graph.outputs.items():
        bound = bounds[value].full().ravel()
        judged = np.flatnonzero(np.isfinite(bound) & np.isfinite(right[name].ravel()) & (bound < 1e30))
        if right[name].dtype.kind == "f" and judged.size:
            at = int(judged[-1])
            wrong = right[name].copy()
            wrong.flat[at] += 2 * SLACK * bound[at] + 1e-5 * (1 + abs(wrong.flat[at]))
            with pytest.raises(AssertionError, match=f"{name}: 1 of .* elements are wrong"):
                check_answers(graph, feeds, {**right, name: wrong})
