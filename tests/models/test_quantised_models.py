"""Models with 8-bit numbers in three spellings, run natively: weights under casts, QDQ, integer products.

Dynamic quantisation makes a jump of every rounding, so two of them are compared by what they mean, and by a distance
that ONNX Runtime's own optimisations (smart_turn) or a relative change of the input by 1e-6 (ddddocr) cause as well.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import opfuse
from opfuse.plan.plan import Native
from opfuse.runtime.executable import Executable
from tests.frontends.small_models import Arrays, real_feeds, real_model, runtime_answers

# name -> largest distance from the runtime's answer, as a share of its largest value
DISTANCES = {"minilm_l6_int8": 64 * 2.0**-24, "smart_turn_v3_2": 2e-2 / 5e-2, "ddddocr_old": 0.5 / 29}


@cache
def compiled(name: str) -> Executable:
    return opfuse.compile(real_model(name), threads=2, calibrate=False)


def pairs(name: str) -> list[tuple[Arrays, Arrays]]:
    path, exe = real_model(name), compiled(name)
    return [(runtime_answers(path, feeds), exe(feeds)) for feeds in real_feeds(name)]


@pytest.mark.parametrize("name", DISTANCES)
def test_native_and_near_on_both_feeds(name: str) -> None:
    for expected, actual in pairs(name):
        assert list(actual) == list(expected)
        for output, right in expected.items():
            got = actual[output]
            assert got.shape == right.shape and got.dtype == right.dtype
            error = float(np.abs(got.astype(np.float64) - right).max()) / float(np.abs(right).max())
            assert error <= DISTANCES[name], f"{output}: {error:.2e}"
    for model in compiled(name).variants.values():
        assert all(isinstance(s, Native) for s in model.plan.segments)


def test_the_same_characters_are_read() -> None:
    for expected, actual in pairs("ddddocr_old"):
        for output, right in expected.items():
            np.testing.assert_array_equal(actual[output].argmax(-1), right.argmax(-1))
