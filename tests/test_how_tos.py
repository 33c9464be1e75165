"""The three how-tos, followed to their end: what a page tells to write is put where it tells to put it, and used.

`test_docs` runs the pages' examples; here the operator, the rule and the provider that they make stand in the tables of
the engine for the length of a test: they import, fuse, compile and run, and pass the tests that the pages promise.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import opfuse
from opfuse import pipeline
from opfuse.decision import Ledger
from opfuse.frontends.onnx import imports
from opfuse.frontends.onnx.imports import elementwise as elementwise_imports
from opfuse.fuse.provider import Claim, Cost
from opfuse.ir import ops
from opfuse.ir.graph import Graph
from opfuse.ir.ops import activation
from opfuse.ir.ops.definition import Operator
from opfuse.options import Options
from opfuse.plan.plan import Host
from opfuse.providers.cpu import CpuProvider
from opfuse.providers.reference import ReferenceProvider
from opfuse.rewrite.engine import rewrite
from opfuse.rewrite.rule import Rule
from opfuse.rewrite.rules import CANONICAL, PASSES, Pass
from tests.ir import test_operators
from tests.native import test_operator_samples
from tests.rewrite import test_rules
from tests.test_docs import ROOT, blocks

X = np.random.default_rng(5).standard_normal((4, 33)).astype(np.float32)
EPS = 2.0**-24


def made_by(page: str) -> dict[str, Any]:
    """What the page's examples define."""
    namespace: dict[str, Any] = {"__name__": page}
    for text in blocks(ROOT / "docs" / page, "python"):
        exec(compile(text, page, "exec"), namespace)
    return namespace


def model(*nodes: tuple[str, str], domain: str = "") -> ModelProto:
    """A chain of (operator, domain) from x to y."""
    values = ["x", *(f"t{k}" for k in range(1, len(nodes))), "y"]
    made = [
        helper.make_node(op, [a], [b], name=f"{op}_{k}", domain=own)
        for k, ((op, own), a, b) in enumerate(zip(nodes, values[:-1], values[1:], strict=True))
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, X.shape) for n in ("x", "y"))
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(helper.make_graph(made, "g", [x], [y]), opset_imports=opsets, ir_version=8)


def compiled(given: ModelProto, cache: Path, **options: Any) -> Any:
    return opfuse.compile(given, threads=1, calibrate=False, cache=cache, **options)


# ---- an operator -----------------------------------------------------------------------------------------------------
@pytest.fixture
def tanh_shrink(monkeypatch: pytest.MonkeyPatch) -> Iterator[Operator]:
    """The page's row in its family's table, and its line in the import table."""
    page = made_by("add_an_op.md")
    row = page["tanh_shrink"]
    monkeypatch.setattr(activation, "OPERATORS", (*activation.OPERATORS, row))
    monkeypatch.setattr(elementwise_imports, "IMPORTS", (*elementwise_imports.IMPORTS, page["entry"]))
    ops.operators.cache_clear()
    imports.table.cache_clear()
    yield row
    monkeypatch.undo()
    ops.operators.cache_clear()
    imports.table.cache_clear()


def test_the_operator_imports_fuses_and_runs_natively(tanh_shrink: Operator, tmp_path: Path) -> None:
    exe = compiled(model(("Neg", ""), ("TanhShrink", "my.domain"), ("Exp", ""), domain="my.domain"), tmp_path)
    (kernel,) = exe.model.plan.kernels
    assert kernel.provider == "cpu" and kernel.nodes == ("Neg_0", "TanhShrink_1", "Exp_2")
    wide = -X.astype(np.float64)
    np.testing.assert_allclose(exe(x=X)["y"], np.exp(wide - np.tanh(wide)), rtol=16 * EPS)
    assert exe.verify(inputs=1).passed
    assert "TanhShrink" in {o.op for o in imports.supported()}


def test_the_operator_passes_the_tests_that_its_row_gives_it(tanh_shrink: Operator, tmp_path: Path) -> None:
    test_operators.test_each_row_is_well_formed(tanh_shrink)
    for sample in tanh_shrink.samples:
        test_operators.test_type_of_the_oracle_is_the_inferred_type(tanh_shrink, sample)
        test_operators.test_structure_agrees_with_the_oracle(tanh_shrink, sample)
        test_operators.test_text_round_trip_and_flops(tanh_shrink, sample)
        test_operator_samples.check_sample(tanh_shrink, sample, tmp_path, threads=1)


def test_the_tables_are_as_they_were() -> None:
    assert "tanh_shrink" not in ops.operators() and imports.find("my.domain", "TanhShrink", 1) is None


# ---- a rule ----------------------------------------------------------------------------------------------------------
@pytest.fixture
def relu_of_abs(monkeypatch: pytest.MonkeyPatch) -> Rule:
    """The page's rule at the end of the canonical pass."""
    found = made_by("add_a_rule.md")["relu_of_abs"]
    assert isinstance(found, Rule)
    passes = tuple(Pass(p.name, (*p.rules, found)) if set(CANONICAL) <= set(p.rules) else p for p in PASSES)
    assert passes != PASSES

    def extended(graph: Graph, options: Options, ledger: Ledger, given: Any = passes) -> Graph:
        return rewrite(graph, options, ledger, given)

    monkeypatch.setattr(pipeline, "rewrite", extended)
    return found


def test_the_rule_fires_in_the_pipeline_and_can_be_switched_off(relu_of_abs: Rule, tmp_path: Path) -> None:
    given = model(("Abs", ""), ("Relu", ""), ("Exp", ""))
    exe, without = compiled(given, tmp_path), compiled(given, tmp_path, disable_rules=["relu_of_abs"])
    assert ("relu_of_abs", 1) in exe.explain().rewrites
    assert exe.model.plan.kernels[0].flops < without.model.plan.kernels[0].flops
    assert "relu_of_abs" not in dict(without.explain().rewrites)
    np.testing.assert_array_equal(exe(x=X)["y"], without(x=X)["y"])
    np.testing.assert_allclose(exe(x=X)["y"], np.exp(np.abs(X.astype(np.float64))), rtol=8 * EPS)


def test_the_rule_passes_the_tests_that_its_cases_give_it(relu_of_abs: Rule) -> None:
    test_rules.test_rule_is_complete(relu_of_abs)
    for case in relu_of_abs.cases:
        test_rules.test_rule(relu_of_abs, case)
        test_rules.test_exact_rules_keep_what_is_no_number(relu_of_abs, case)


# ---- a provider ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seconds", [None, 0.0])
def test_the_provider_gets_what_it_runs_in_the_least_time(
    seconds: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the page has it, it stands back behind generated code; were it quicker, the region would be its own."""
    page = made_by("add_a_provider.md")["NumpyRelu"]

    class Relu(page):  # type: ignore[misc, valid-type]
        def claim(self, graph: Graph, *given: Any) -> Any:
            answer = super().claim(graph, *given)
            if isinstance(answer, Claim) and seconds is not None:
                cost = Cost(seconds, answer.cost.bytes, answer.cost.flops)
                return Claim(answer.provider, answer.region, cost, native=False)
            return answer

    monkeypatch.setattr(pipeline, "providers", lambda options: (CpuProvider(), Relu(), ReferenceProvider()))
    exe = compiled(model(("Relu", "")), tmp_path)
    (kernel,) = exe.explain().kernels
    assert kernel.provider == ("cpu" if seconds is None else "numpy-relu")
    assert kernel.host == (seconds is not None)
    assert any(isinstance(s, Host) for s in exe.model.plan.segments) == kernel.host
    x = np.where(X > 1, np.float32(np.nan), X)
    np.testing.assert_array_equal(exe(x=x)["y"], np.maximum(x, 0))
    assert exe.verify(inputs=1).passed
