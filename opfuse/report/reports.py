"""What an executable's `explain()`, `verify()` and `profile()` call; the pipeline makes one and passes it in.

    Executable(graph, options, build, reports=Reports(pipeline))
    executable.verify(inputs=3)             # three random feeds and the adversarial ones
    executable.verify(data="feeds/")        # the user's own

Also the feeds of a model: from the imported graph, or (where only a compiled file is there) from what its plan keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from opfuse.errors import OptionError
from opfuse.ir.graph import Graph
from opfuse.options import Options
from opfuse.plan.plan import Plan
from opfuse.report.bisect import verify
from opfuse.report.explain import Explanation, explain
from opfuse.report.feeds import Feed, FeedSpec, Span, adversarial_feeds, feed_specs, folder_feeds, random_feed
from opfuse.report.numerics import Pipeline
from opfuse.report.profile import Profiled, ProfileReport, profile
from opfuse.report.verify_report import Report
from opfuse.runtime.archive import Variant
from opfuse.runtime.executable import Executable, specialise

RANDOM_FEEDS = 2


class Stages(Pipeline, Protocol):
    """What all reports together ask of the compiler."""

    def built(self, graph: Graph, options: Options) -> Profiled: ...


class Reports:
    def __init__(self, pipeline: Stages) -> None:
        self._pipeline = pipeline

    def explain(self, executable: Executable) -> Explanation:
        """Of the newest variant."""
        return explain(executable.model)

    def measure(self, executable: Executable) -> None:
        """Time the kernels of the newest variant on a random feed."""
        feed = random_feed(specs_of(executable), 0)
        executable.model.measure([feed[p.name] for p in executable.model.plan.inputs])

    def verify(self, executable: Executable, **options: Any) -> Report:
        """See `verify_executable`."""
        return verify_executable(self._pipeline, executable, **options)


    def profile(self, executable: Executable, **options: Any) -> ProfileReport:
        """See `profile_executable`."""
        return profile_executable(self._pipeline, executable, **options)


def profile_executable(
    stages: Stages, executable: Executable, *, feeds: Mapping[str, np.ndarray] | None = None, seconds: float = 1.0
) -> ProfileReport:  # fmt: skip
    """On `feeds`, or the newest variant on random numbers; beside the same graph with nothing fused."""
    given = random_feed(specs_of(executable), 0) if feeds is None else feeds
    executable(given)  # compiles for these shapes where nothing is yet, and says what is wrong with the feeds
    (variant,) = by_variant(executable, [Feed("profile", given)])
    model, unfused = executable.variants[variant], None
    if executable.graph is not None:
        options = replace(executable.options, disabled_fusions=frozenset({"all"}))
        unfused = stages.built(specialise(executable.graph, variant), options)
    return profile(model, [given[p.name] for p in model.plan.inputs], before=unfused, seconds=seconds)


def verify_executable(
    pipeline: Pipeline, executable: Executable, *, inputs: int | None = None, data: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> Report:  # fmt: skip
    """Judge the model on `inputs` random feeds and the adversarial ones, or on a folder of the user's feeds."""
    graph, name = executable.reference_graph(), executable.interface.name
    if graph is None:
        raise OptionError(name, "a compiled file holds no model to compare with", "verify the ONNX file")
    if data is not None and inputs is not None:
        raise OptionError("--inputs", "the folder of --data says how many inputs there are", "leave one of them out")
    feeds = chosen_feeds(executable, inputs or RANDOM_FEEDS, None if data is None else Path(data))
    parts = [
        verify(pipeline, specialise(graph, variant), executable.options, group, run=executable, model=name,
               progress=progress)
        for variant, group in by_variant(executable, feeds).items()
    ]  # fmt: skip
    return reduce(Report.joined, parts)


def chosen_feeds(executable: Executable, count: int, folder: Path | None) -> list[Feed]:
    if folder is not None:
        optional = [i.name for i in executable.inputs if i.optional]
        return folder_feeds([i.name for i in executable.inputs], folder, optional)
    specs = specs_of(executable)
    return [*(Feed(f"random {k}", random_feed(specs, k), "random") for k in range(count)), *adversarial_feeds(specs)]


def by_variant(executable: Executable, feeds: Iterable[Feed]) -> dict[Variant, list[Feed]]:
    """Feeds that one compiled model serves."""
    out: dict[Variant, list[Feed]] = {}
    optional = {i.name for i in executable.inputs if i.optional}
    for feed in feeds:
        bindings = executable.interface.bindings({n: np.shape(a) for n, a in feed.arrays.items()})
        fed = tuple(i.name for i in executable.inputs if i.name in optional and i.name in feed.arrays)
        out.setdefault(Variant(tuple(sorted(bindings.items())), fed), []).append(feed)
    return out


def specs_of(executable: Executable) -> tuple[FeedSpec, ...]:
    """What the inputs of the newest variant may hold; InputError says which shapes are needed where there is none."""
    plan = executable.model.plan
    graph = executable.graph
    if graph is None:
        return specs_of_plan(plan)
    return feed_specs(specialise(graph, next(reversed(executable.variants))))


def plan_facts(graph: Graph, target: str) -> dict[str, Any]:
    """What reports want to know of the imported graph (its shapes are numbers), to be kept in the plan."""
    spans = {s.name: [s.span.low, s.span.high, s.span.why] for s in feed_specs(graph) if not s.dtype.is_float}
    return {"model": graph.name, "operators": len(graph.nodes), "target": target, "spans": spans}


def specs_of_plan(plan: Plan) -> tuple[FeedSpec, ...]:
    spans: Mapping[str, Any] = plan.facts.get("spans", {})
    return tuple(
        FeedSpec(p.name, p.dtype, p.shape, Span(*spans[p.name]) if p.name in spans else Span(0, 1, "unknown"))
        for p in plan.inputs
    )
