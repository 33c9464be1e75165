"""Every import function, at every opset that spells it differently, against ONNX Runtime on small models.

Each case runs with numbers for shapes and again with a symbol for every dimension: both must agree with the runtime.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx import defs

from opfuse.errors import UnsupportedOperators
from opfuse.frontends.onnx import imports, load, supported
from opfuse.ir.evaluate import evaluate
from tests.frontends.import_cases import CASES, ImportCase
from tests.frontends.small_models import assert_close, runtime_answers, small

PAIRS = [(case, opset) for case in CASES for opset in case.opsets]
IDS = [f"{k}-{case.op}-{opset}" for k, case in enumerate(CASES) for opset in case.opsets]
NEEDS_SHAPES = re.compile(r"give the shapes of the inputs|not known|depend on input shapes")
# What the walk itself may add: dimensions held equal, shape arithmetic made values.
ALWAYS = {"reshape", "dims", "cast"}


def _answers(case: ImportCase, opset: int) -> dict[str, np.ndarray]:
    ir_version = 10 if opset >= 21 else 8
    model = small(opset, case.feeds, case.body, case.outputs, constants=case.constants, ir_version=ir_version)
    try:
        return runtime_answers(model, case.feeds)
    except Exception as error:  # the runtime's own exception types are not importable in a stable way
        if (
            "NOT_IMPLEMENTED" in str(error)
            or "NotImplemented" in type(error).__name__
            or "is under development" in str(error)
            or "is not a registered function/op" in str(error)
        ):
            pytest.skip(f"ONNX Runtime has no kernel: {str(error)[:100]}")
        raise


@pytest.mark.parametrize(("case", "opset"), PAIRS, ids=IDS)
def test_agrees_with_onnx_runtime(case: ImportCase, opset: int) -> None:
    expected = _answers(case, opset)
    model = small(opset, case.feeds, case.body, case.outputs, constants=case.constants)
    graph = load(model)
    allowed = {name for row in _rows(case) for name in row.emits} | ALWAYS
    assert {node.op for node in graph.nodes.values()} <= allowed
    actual = evaluate(graph, case.feeds)
    assert list(actual) == list(case.outputs)
    for name in case.outputs:
        assert graph.types[graph.outputs[name]].static_shape == expected[name].shape
        assert_close(actual[name], expected[name], case.terms)


@pytest.mark.parametrize(("case", "opset"), PAIRS, ids=IDS)
def test_symbolic_shapes_agree(case: ImportCase, opset: int) -> None:
    if not any(a.ndim for a in case.feeds.values()):
        pytest.skip("there are no dimensions")
    model = small(opset, case.feeds, case.body, case.outputs, constants=case.constants, symbolic=True)
    try:
        graph = load(model)
    except UnsupportedOperators as error:
        assert NEEDS_SHAPES.search(str(error)), error
        graph = load(model, {name: array.shape for name, array in case.feeds.items()})
    expected = _answers(case, opset)
    bound = graph.bind(_bindings(graph, case))
    for name in case.outputs:
        assert bound.types[bound.outputs[name]].static_shape == expected[name].shape
        assert_close(evaluate(graph, case.feeds)[name], expected[name], case.terms)


def _bindings(graph: object, case: ImportCase) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, array in case.feeds.items():
        for dim, number in zip(graph.types[name].shape, array.shape, strict=True):  # type: ignore[attr-defined]
            found[str(dim)] = number
    return found


def _rows(case: ImportCase) -> list[imports.definition.Import]:
    return [row for row in imports.table().values() if row.op == case.op or row.op in case.body]


def test_every_operator_has_a_case() -> None:
    tried = {case.op for case in CASES}
    assert {row.op for row in imports.table().values()} <= tried


def test_every_spelling_has_a_case() -> None:
    """Rows whose function differs between versions are each reached by some case."""
    reached = {(c.op, imports.version_at("", c.op, o)) for c, o in PAIRS}
    for (domain, op, _), row in imports.table().items():
        if not domain:
            assert any((op, v) in reached for v in row.since), f"{op} of versions {row.since}"


def test_versions_exist() -> None:
    """No row names a version that ONNX does not have; LayerNormalization-1 is ONNX Runtime's early spelling."""
    for domain, op, version in imports.table():
        if not domain and version <= defs.onnx_opset_version() and (op, version) != ("LayerNormalization", 1):
            assert version in imports.versions("", op), f"{op}-{version}"


def test_supported_lists_ranges() -> None:
    found = {(s.domain, s.op): s for s in supported()}
    newest = defs.onnx_opset_version()
    assert found["", "Slice"].opsets == ((7, newest),)
    assert found["", "LayerNormalization"].opsets == ((17, newest),)
    assert found["", "Upsample"].opsets == ((7, 9),)
    assert found["com.microsoft", "FastGelu"].emits == ("add", "gelu_tanh")
