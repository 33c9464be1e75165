"""Who made the answer wrong: a region, a rewrite, or the plan's memory, by decision id.

    report = verify(pipeline, graph, options, feeds)
    report.passed; report.guilty -> (Guilty("rewrite", "3fa1...", "fold_batch_norm", ...),)

Regions are judged alone already, so a failing one is guilty; leaving it out says whether the model is right without it.
Rewrites are judged by the float64 oracle on the rewritten graph, without compiling anything: rules are switched on one
after another, and one whose coming makes the graph wrong is guilty; among its applications a bisection finds which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from opfuse.decision import Decision, Ledger
from opfuse.ir.evaluate import evaluate
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType
from opfuse.options import Options
from opfuse.report.feeds import Feed
from opfuse.report.numerics import Oracle, Pipeline, Run, Trace, against_oracle, allowed_error, judge, public
from opfuse.report.verify_report import Guilty, RegionCheck, Report

Say = Callable[[str], None]


def verify(
    pipeline: Pipeline, graph: Graph, options: Options, feeds: Sequence[Feed], *, run: Run | None = None,
    model: str = "model", progress: Say | None = None,
) -> Report:  # fmt: skip
    """Judge a model (`numerics.judge`), and where it is wrong name the guilty."""
    found = judge(pipeline, graph, options, feeds, run=run, model=model, progress=progress)
    if found.report.passed:
        return found.report
    say = progress or (lambda text: None)
    return found.report.with_guilty(
        find_guilty(pipeline, graph, options, feeds, found.report, found.oracles, found.trace, say)
    )


def find_guilty(
    pipeline: Pipeline, graph: Graph, options: Options, feeds: Sequence[Feed], report: Report,
    oracles: Mapping[str, Oracle], trace: Trace, say: Say,
) -> tuple[Guilty, ...]:  # fmt: skip
    """Never empty: where nothing can be named, the last entry says what was tried."""
    failing = {c.feed for c in report.failed_outputs} | {c.feed for c in report.failed_regions}
    chosen = [f for f in feeds if f.name in failing][:2] or list(feeds)[:1]
    judge = _Judge(pipeline, graph, options, chosen, oracles, trace, say)
    guilty = [judge.region(c) for c in _first_of_each(report.failed_regions)]
    guilty += judge.rewrites(trace.ledger)
    if not report.repeatable:
        text = "the same kernels give other results when every value keeps memory of its own"
        guilty.append(Guilty("memory", "", "plan", (), text, "run with debug=True: it fills the arena with NaN"))
    if guilty:
        return tuple(guilty)
    text = "every region is within its bound and the rewritten graph agrees with the model, but their roundings add up"
    return (Guilty("unknown", "", "accumulated rounding", (), text),)


def _first_of_each(checks: Sequence[RegionCheck]) -> list[RegionCheck]:
    return list({c.id: c for c in reversed(checks)}.values())[::-1]


class _Judge:
    """The model on the feeds that failed, under other options."""

    def __init__(self, pipeline: Pipeline, graph: Graph, options: Options, feeds: Sequence[Feed],
                 oracles: Mapping[str, Oracle], trace: Trace, say: Say) -> None:  # fmt: skip
        self.pipeline, self.graph, self.options, self.feeds, self.say = pipeline, graph, options, feeds, say
        self.oracles = oracles
        self.sizes = {k.id: len(k.region.nodes) for k in trace.kernels}

    def region(self, check: RegionCheck) -> Guilty:
        """A region that fails on its own; compiled again without it to see whether that helps."""
        text = (f"on {check.feed}, {check.value} is off by {check.errors.max:.1e}, {check.errors.share:.1f} times what "
                f"rounding can explain")  # fmt: skip
        if self.sizes.get(check.id, 2) < 2:
            way_out = "It is a kernel of one operator, so there is no fusion to leave out."
            return Guilty("region", check.id, check.name, check.nodes, text, way_out)
        self.say(f"leaving out region {check.name}")
        without = replace(self.options, disabled_fusions=self.options.disabled_fusions | {check.id})
        helps = judge(self.pipeline, self.graph, without, self.feeds).report.passed
        way_out = f"With --no-fuse {check.id} the model is right." if helps else "Leaving the fusion out does not help."
        return Guilty("region", check.id, check.name, check.nodes, text, way_out)

    def rewrites(self, ledger: Ledger) -> list[Guilty]:
        """Guilty rules, each with the application that does it."""
        if self._rewritten_is_right(frozenset()):
            return []
        taken = [d for d in ledger.of("rewrite") if d.outcome == "taken"]
        rules = list(dict.fromkeys(d.rule for d in taken))
        guilty: list[str] = []
        for k, rule in enumerate(rules):
            self.say(f"switching rule {k + 1} of {len(rules)} on: {rule}")
            if not self._rewritten_is_right(frozenset({*rules[k + 1 :], *guilty})):
                guilty.append(rule)
        return [self._application(rule, [d for d in taken if d.rule == rule], guilty) for rule in guilty]

    def _application(self, rule: str, applied: Sequence[Decision], guilty: Sequence[str]) -> Guilty:
        """The first application of the rule with which the graph is wrong, by bisection of the list of its ids."""
        others = frozenset(guilty) - {rule}
        low, high = 0, len(applied)  # right with the first `low`, wrong with the first `high`
        while high - low > 1:
            middle = (low + high) // 2
            self.say(f"bisecting {rule}: {high - low} applications left")
            if self._rewritten_is_right(others | {d.id for d in applied[middle:]}):
                low = middle
            else:
                high = middle
        one = applied[low]
        text = f"the graph after this rewrite differs from the model in float64 (nodes {', '.join(one.nodes[:4])})"
        return Guilty("rewrite", one.id, rule, one.nodes, text, f"Do without it: --no-rule {rule}")

    def _rewritten_is_right(self, disabled: frozenset[str]) -> bool:
        """The float64 oracle on the rewritten graph agrees with the one on the graph as it was imported."""
        options = replace(self.options, disabled_rules=self.options.disabled_rules | disabled)
        rewritten, _ = self.pipeline.rewritten(self.graph, options)
        for feed in self.feeds:
            with np.errstate(all="ignore"):
                found = public(rewritten, evaluate(rewritten, feed.arrays, "f64", list(rewritten.outputs.values())))
            oracle = self.oracles[feed.name]
            for name, wide in oracle.wide.items():
                narrow = oracle.native[name]
                allowed = allowed_error(wide, DType.of(narrow.dtype), oracle.own_error(name))
                if not against_oracle(found[name], narrow, wide, allowed).passed:
                    return False
        return True
