"""Random graphs compiled natively, fused and operator by operator, against float64 with a bound for every element.

Thousands of seeds were run to find faults (which stand in `test_found_faults`); the suite keeps some of each kind.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import opfuse
from opfuse.ir.types import DType
from opfuse.target import ISAS, host
from tests.native.random_graphs import check_answers, random_feeds, random_graph

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
@pytest.mark.parametrize("seed", range(1000, 1060))
def test_random_graph(seed: int, cache: Path) -> None:
    check(seed, cache)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("seed", range(15))
@pytest.mark.parametrize("dtype", [DType.F64, DType.F16, DType.BF16], ids=repr)
def test_other_types(seed: int, dtype: DType, cache: Path) -> None:
    check(seed + 2000, cache, dtype, unfused=False)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("isa", NARROWER)
@pytest.mark.parametrize("seed", range(3000, 3015))
def test_narrower_cpu(seed: int, isa: str, cache: Path) -> None:
    check(seed, cache, isa=isa, unfused=False)


@pytest.mark.parametrize("seed", range(20))
def test_the_judge_sees_a_wrong_element(seed: int) -> None:
    """A value a thousandth of the largest off is no rounding."""
    from opfuse.ir.evaluate import evaluate

    graph = random_graph(seed + 500)
    feeds = random_feeds(graph, seed + 500)
    right = evaluate(graph, feeds)
    name = next((n for n, a in right.items() if a.dtype.kind == "f" and a.size and np.isfinite(a).all()), None)
    if name is None:
        pytest.skip("no finite output")
    check_answers(graph, feeds, right)
    wrong = right[name].copy()
    wrong.flat[-1] += 1e-3 * max(1.0, float(np.abs(wrong).max()))
    with pytest.raises(AssertionError, match="elements are wrong"):
        check_answers(graph, feeds, {**right, name: wrong})
