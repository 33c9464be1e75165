"""Every sample of the operator table as a compiled model: right values, natively unless the operator is the host's.

The oracle computes in float64; tolerances follow from the result's type and the length of the reductions. The narrower
instruction sets run a part of the table each.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opfuse
from opfuse.ir.evaluate import evaluate
from opfuse.ir.ops import Kind, Operator, Sample
from opfuse.ir.types import DType
from opfuse.target import ISAS, host
from tests.ir.test_operators import arrays_of, assert_close, cases, graph_of, steps_of

BEST = host().isa


def check_sample(operator: Operator, sample: Sample, cache: Path, **options: Any) -> None:
    arrays = arrays_of(operator, sample)
    graph, feeds = graph_of(operator, sample, arrays)
    exe = opfuse.compile(graph.copy(), calibrate=False, cache=cache, **options)
    on_host = [d.reason for d in exe.model.ledger if d.kind == "host"]
    assert not on_host or operator.kind is Kind.HOST
    with np.errstate(all="ignore"):
        native, wide = evaluate(graph, feeds), evaluate(graph, feeds, "f64")
    for name, answer in exe(feeds).items():
        dtype = native[name].dtype
        right = wide[name].astype(dtype) if DType.of(dtype).is_float else native[name]
        assert answer.dtype == dtype
        assert_close(answer, right, DType.of(dtype), steps_of(None, arrays))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("operator", "sample"), cases())
def test_sample(operator: Operator, sample: Sample, cache: Path) -> None:
    check_sample(operator, sample, cache, threads=1 + len(sample.attrs) % 2)


def narrower() -> list[Any]:
    """(operator, sample, isa): a quarter of the table for each instruction set below the machine's best."""
    chosen = []
    for isa in ISAS[ISAS.index(BEST) + 1 :]:
        for case in cases():
            if zlib.crc32(f"{isa} {case.id}".encode()) % 4 == 0:
                chosen.append(pytest.param(*case.values, isa, id=f"{isa}-{case.id}"))
    return chosen


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("operator", "sample", "isa"), narrower())
def test_sample_on_a_narrower_cpu(operator: Operator, sample: Sample, isa: str, cache: Path) -> None:
    halves = any(getattr(a, "dtype", None) == np.float16 for a in sample.inputs)
    if isa == "plain" and (halves or sample.attrs.get("to") in (DType.F16, DType.F16.value)):
        pytest.skip("half precision needs the conversions of a newer CPU")
    check_sample(operator, sample, cache, threads=2, isa=isa)
