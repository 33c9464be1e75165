"""Errors go from process to process and are copied: the same text, code and facts."""

from __future__ import annotations

import copy
import pickle

import pytest

from opfuse import errors
from opfuse.ir.evaluate import EvaluationError

RAISED = [
    errors.OpfuseError("something", "some-code"),
    errors.ModelError("m.onnx", "is empty", "export it again", node="n", code="empty"),
    errors.UnsupportedOperators("m.onnx", [errors.UnsupportedOperator("n", "ai.onnx::Foo-1", "unknown", ("x",))]),
    errors.InputError("x", "has rank 2", "pass rank 3"),
    errors.ArtifactError("m.opf", "is truncated", code="artifact-truncated"),
    errors.OptionError("--threads", "0 is no number of threads"),
]


@pytest.mark.parametrize("error", RAISED, ids=lambda e: type(e).__name__)
def test_errors_are_pickled_and_copied_whole(error: errors.OpfuseError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error) and str(again) == str(error)
        assert again.__dict__ == error.__dict__ and again.args == error.args


def test_every_error_is_tried() -> None:
    kinds = {errors.OpfuseError, *errors.OpfuseError.__subclasses__()} - {EvaluationError}
    assert {type(e) for e in RAISED} == kinds
    assert EvaluationError.__init__ is errors.OpfuseError.__init__
