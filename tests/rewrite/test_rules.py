"""Every rule, on graphs made from its own pattern: it fires where it must, and the numbers stay.

The tolerance follows from the class and the type: an exact rule may only differ where the oracle of one operator sums
in another order than that of another; a reassociating one by a few roundings of the terms that are summed.
"""

from __future__ import annotations

import importlib
import pkgutil

import ml_dtypes
import numpy as np
import pytest

from opfuse.decision import Ledger
from opfuse.ir.evaluate import evaluate
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType
from opfuse.options import Options
from opfuse.rewrite import rules
from opfuse.rewrite.cases import feeds_of, graphs_of
from opfuse.rewrite.engine import rewrite
from opfuse.rewrite.rule import Case, Rule, declared
from opfuse.rewrite.rules import PASSES, Pass, arithmetic

RULES = list({r.name: r for p in PASSES for r in p.rules}.values())
CASES = [
    pytest.param(r, c, id=f"{r.name}-{k}-{'fires' if c.fires else 'stays'}")
    for r in RULES
    for k, c in enumerate(r.cases)
]


def alone(rule: Rule) -> list[Pass]:
    return [Pass(rule.name, (rule,))]


def largest_sum(graph: Graph, feeds: dict[str, np.ndarray]) -> float:
    """The size of the values that are added up, for the rounding of sums: the largest of any value times the terms."""
    values = evaluate(graph, feeds, "f64", list(graph.types))
    sizes = [
        float(np.max(np.abs(v[np.isfinite(v)].astype(np.float64)), initial=0))
        for v in values.values()
        if v.dtype.kind in "fiu"
    ]
    terms = max((v.shape[-1] if v.ndim else 1) for v in values.values())
    return max(1.0, *sizes) * np.sqrt(max(1, terms))


def assert_same(graph: Graph, after: Graph, feeds: dict[str, np.ndarray], rule: Rule) -> None:
    for precision in ("native", "f64"):
        before_values, after_values = evaluate(graph, feeds, precision), evaluate(after, feeds, precision)
        assert list(before_values) == list(after_values)
        for name, b in before_values.items():
            a = after_values[name]
            assert a.dtype == b.dtype and a.shape == b.shape, f"{name}: {a.dtype}{a.shape} for {b.dtype}{b.shape}"
            if not DType.of(b.dtype).is_float:
                np.testing.assert_array_equal(a, b)
                continue
            eps = float(ml_dtypes.finfo(b.dtype).eps)
            if precision == "f64":  # constants of the rewritten graph were rounded to its own type
                eps = max(float(ml_dtypes.finfo(graph.types[graph.outputs[name]].dtype.numpy).eps), eps)
            roundings = 8 if rule.rounding == "reassociating" else 2
            bits = (
                rule.rounding == "exact"
                and not _sums(graph)
                and (precision == "native" or set(after.constants) <= set(graph.constants))
            )
            tolerance = 0.0 if bits else roundings * eps * largest_sum(graph, feeds)
            np.testing.assert_allclose(a.astype(np.float64), b.astype(np.float64), rtol=0, atol=tolerance)


def _sums(graph: Graph) -> bool:
    """Does the oracle sum, in an order that depends on the layout?"""
    summing = ("conv", "matmul", "reduce", "avg", "instance", "softmax", "log_softmax", "layer", "rms", "batch")
    return any(n.op.startswith(summing) for n in graph.nodes.values())


@pytest.mark.parametrize(("rule", "case"), CASES)
def test_rule(rule: Rule, case: Case) -> None:
    tried = 0
    for graph in graphs_of(rule, case):
        ledger = Ledger()
        after = rewrite(graph, Options(), ledger, alone(rule))
        taken = [d for d in ledger if d.outcome == "taken" and d.rule == rule.name]
        undone = [d for d in ledger if d.outcome == "undone"]
        assert not undone, f"undone: {undone[0].reason}"
        assert bool(taken) == case.fires, "\n".join([f"fired {len(taken)} times on", *map(str, graph.nodes.values())])
        feeds = feeds_of(graph, case)
        assert_same(graph, after, feeds, rule)
        tried += 1
    assert tried


def test_every_rule_that_is_written_runs() -> None:
    modules = [importlib.import_module(f"{rules.__name__}.{m.name}") for m in pkgutil.iter_modules(rules.__path__)]
    written = {r.name for m in modules for r in vars(m).values() if isinstance(r, Rule)}
    assert written == {r.name for r in RULES}


def test_declared_rules_stand_in_the_order_of_the_text() -> None:
    class_of = {r.name: r for r in arithmetic.RULES}
    first, last = class_of["multiply_by_one"], class_of["divide_by_power_of_two"]
    module = {"__name__": arithmetic.__name__, "b": last, "a": first, "twice": last, "number": 1}
    assert declared(module) == (last, first) and declared(module, apart=(last,)) == (first,)
    assert declared({**module, "__name__": "another"}) == ()


SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-38, 3e38, 89.0)


@pytest.mark.parametrize(("rule", "case"), [p for p in CASES if p.values[0].rounding == "exact" and p.values[1].fires])  # type: ignore[union-attr]
def test_exact_rules_keep_what_is_no_number(rule: Rule, case: Case) -> None:
    """NaN, infinities and signed zeros come through an exact rule as they came before."""
    for graph in graphs_of(rule, case):
        after = rewrite(graph, Options(), Ledger(), alone(rule))
        feeds = feeds_of(graph, case)
        for name, array in feeds.items():
            if array.dtype.kind == "f" and array.size:
                feeds[name] = np.resize(np.array(SPECIAL, array.dtype), array.shape)
        with np.errstate(all="ignore"):
            before_values, after_values = evaluate(graph, feeds), evaluate(after, feeds)
        for name, b in before_values.items():
            a = after_values[name]
            np.testing.assert_allclose(a, b, rtol=1e-6, atol=0)
            if b.dtype.kind == "f" and not rule.either_zero and not _sums(graph):
                np.testing.assert_array_equal(np.signbit(a[~np.isnan(b)]), np.signbit(b[~np.isnan(b)]))


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.name)
def test_rule_is_complete(rule: Rule) -> None:
    """A docstring with before and after, and at least one case in which it fires."""
    assert "->" in rule.doc.splitlines()[0]
    assert any(c.fires for c in rule.cases)


@pytest.mark.parametrize(("rule", "case"), CASES)
def test_a_second_run_changes_nothing(rule: Rule, case: Case) -> None:
    for graph in list(graphs_of(rule, case))[:2]:
        once = rewrite(graph, Options(), Ledger())
        ledger = Ledger()
        twice = rewrite(once, Options(), ledger)
        assert [d for d in ledger if d.outcome != "refused"] == []
        assert list(map(str, twice.nodes.values())) == list(map(str, once.nodes.values()))


@pytest.mark.parametrize(("rule", "case"), CASES)
def test_all_rules_together_keep_the_numbers(rule: Rule, case: Case) -> None:
    """The graph of each case through every pass: rules must not hurt each other."""
    for graph in list(graphs_of(rule, case))[:4]:
        after = rewrite(graph, Options(), Ledger())
        feeds = feeds_of(graph, case)
        before_values, after_values = evaluate(graph, feeds, "f64"), evaluate(after, feeds, "f64")
        bound = 32 * float(ml_dtypes.finfo(case.dtype.numpy).eps) if case.dtype.is_float else 1e-6
        for name, b in before_values.items():
            np.testing.assert_allclose(after_values[name].astype(np.float64), b.astype(np.float64),
                                       rtol=0, atol=bound * largest_sum(graph, feeds))  # fmt: skip
