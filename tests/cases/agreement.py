"""One model, run in every way that there is, against answers that are known: how cases and their neighbours are tried.

    check(13, {"x": x}, "y = Softmax (x)", {"y": right})

The ways: the imported graph and what all rules and the exact rules make of it, by the oracle; compiled, fused for two
threads; compiled, every operator alone for one thread.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

import opfuse
from opfuse.decision import Ledger
from opfuse.frontends.onnx import load
from opfuse.ir.evaluate import evaluate
from opfuse.options import Options
from opfuse.rewrite.engine import rewrite
from opfuse.runtime.executable import Executable
from tests.frontends.small_models import Arrays, assert_close, small


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="opfuse-cases-")


def compile_here(model: Any, **options: Any) -> Executable:
    return opfuse.compile(model, calibrate=False, cache=_folder().name, **{"threads": 2, **options})


def answers_of(model: onnx.ModelProto, feeds: Arrays, native: bool = True) -> tuple[Executable, dict[str, Arrays]]:
    """The fused executable, and the answers of every way."""
    source, ledger = load(model), Ledger()
    rewritten = rewrite(source, Options(), ledger)
    assert not [d for d in ledger if d.outcome == "undone"]
    fused = compile_here(model)
    alone = compile_here(model, threads=1, disable_fusions={"all"})
    found = {
        "imported": evaluate(source, feeds), "rewritten": evaluate(rewritten, feeds),
        "exactly rewritten": evaluate(rewrite(source, Options(strict=True), Ledger()), feeds),
        "fused": fused(dict(feeds)), "alone": alone(dict(feeds)),
    }  # fmt: skip
    if native:
        assert [d.reason for d in fused.model.ledger if d.kind == "host"] == []
    return fused, found


def check(opset: int, feeds: Arrays, body: str, right: Mapping[str, Any], *, constants: Arrays | None = None,
          terms: int = 1, exact: bool = False, native: bool = True, ir_version: int = 8) -> Executable:  # fmt: skip
    """Every way gives what is right: bit by bit but for payloads of NaN, or within the rounding of so many terms."""
    model = small(opset, feeds, body, list(right), constants=constants, ir_version=ir_version)
    return check_model(model, feeds, right, terms=terms, exact=exact, native=native)


def check_model(model: onnx.ModelProto, feeds: Arrays, right: Mapping[str, Any], *, terms: int = 1,
                exact: bool = False, native: bool = True) -> Executable:  # fmt: skip
    fused, found = answers_of(model, feeds, native)
    for way, answers in found.items():
        assert list(answers) == list(right)
        for name, want in right.items():
            got, want = answers[name], np.asarray(want)
            try:
                if exact:
                    assert_same(got, want)
                else:
                    assert_close(got, want, terms)
            except AssertionError as error:
                raise AssertionError(f"{way}: {name}: {error}") from None
    return fused


def assert_same(got: np.ndarray, want: np.ndarray) -> None:
    """Equal, signs of zeros too."""
    assert got.dtype == want.dtype and got.shape == want.shape, (got.dtype, got.shape)
    np.testing.assert_array_equal(got, want)
    if np.issubdtype(want.dtype, np.floating):
        number = ~np.isnan(want)
        np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])
