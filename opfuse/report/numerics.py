"""Is every fused region, and the whole model, as right as float64 says it can be?

    judgement = judge(pipeline, graph, options, feeds)      # a graph whose shapes are numbers
    judgement.report.passed; print(judgement.report.text())

Each region is judged alone, on the inputs that it had in a native run that keeps every value, against the bounds of
`error_bounds`. The whole model may lie three times as far from float64 as the unfused float32 oracle lies itself. The
run that keeps everything and the model's own run must agree bit for bit, so that reused memory is judged too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from opfuse.decision import Ledger
from opfuse.fuse.region import Region
from opfuse.ir.evaluate import evaluate
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType
from opfuse.options import Options
from opfuse.report.error_bounds import analyse, unrelated, worst_case
from opfuse.report.feeds import Arrays, Feed
from opfuse.report.scalar_errors import Bounded, unit
from opfuse.report.verify_report import Distribution, OutputCheck, RegionCheck, Report, worst_of

SAMPLES = 4  # runs to estimate the unfused oracle's own error from, where one run seems lucky
FACTOR = 3.0  # times the unfused oracle's own error
FLOOR = 4.0  # units in the last place of the output's largest element that are always allowed
Run = Callable[[Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class TracedKernel:
    """A kernel of the model: the id that `--no-fuse` takes, what it runs, the user's node names."""

    id: str
    name: str
    region: Region
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Trace:
    """A compiled model that keeps every value between kernels: `run` gives them all by their names in `graph`."""

    graph: Graph  # after rewriting
    kernels: tuple[TracedKernel, ...]
    run: Run
    ledger: Ledger


class Pipeline(Protocol):
    """What verify asks of the compiler, for a graph whose shapes are numbers."""

    def rewritten(self, graph: Graph, options: Options) -> tuple[Graph, Ledger]: ...

    def compiled(self, graph: Graph, options: Options) -> Run: ...

    def traced(self, graph: Graph, options: Options) -> Trace: ...


@dataclass(frozen=True)
class Oracle:
    """The imported graph, unfused, on one feed: in float64 and in its own types."""

    wide: Mapping[str, np.ndarray]
    native: Mapping[str, np.ndarray]
    typical: bool = True  # not adversarial
    sampled: Mapping[str, float] = field(default_factory=dict)  # error of the own types by output, where it was sampled

    def own_error(self, name: str) -> float:
        """How far the unfused model in its own types is from float64."""
        return max(error_of(self.native[name], self.wide[name]), self.sampled.get(name, 0.0))


@dataclass(frozen=True)
class Judgement:
    """A report without names of the guilty, and what they are looked for with."""

    report: Report
    oracles: Mapping[str, Oracle]
    trace: Trace


def judge(
    pipeline: Pipeline, graph: Graph, options: Options, feeds: Sequence[Feed], *, run: Run | None = None,
    model: str = "model", progress: Callable[[str], None] | None = None,
) -> Judgement:  # fmt: skip
    """Judge a model on feeds. `run` is the compiled model where there is one already; `graph` is as it was imported."""
    say = progress or (lambda text: None)
    compiled = run or pipeline.compiled(graph, options)
    trace = pipeline.traced(graph, options)
    oracles, regions, repeatable = {}, [], True
    answers: dict[str, Mapping[str, np.ndarray]] = {}
    for number, feed in enumerate(feeds):
        stage = f"feed {number + 1} of {len(feeds)} ({feed.name})"
        say(f"{stage}: float64 oracle")
        oracles[feed.name] = ask_oracle(graph, feed)
        answers[feed.name] = compiled(feed.arrays)
        values = trace.run(feed.arrays)
        repeatable &= _same_bits(graph, trace, answers[feed.name], values)
        for k, kernel in enumerate(trace.kernels):
            say(f"{stage}: region {k + 1} of {len(trace.kernels)}")
            regions += check_region(trace.graph, kernel, feed, values)
    outputs = check_outputs(oracles, answers)
    if unlucky := {c.feed for c in outputs if not c.errors.passed}:
        say("sampling the unfused model's own error")
        oracles |= {f.name: with_own_error(graph, f, oracles[f.name]) for f in feeds if f.name in unlucky}
        outputs = check_outputs(oracles, answers)
    report = Report(model, tuple(f.name for f in feeds), tuple(outputs), worst_of(regions), repeatable)
    return Judgement(report, oracles, trace)


def ask_oracle(graph: Graph, feed: Feed) -> Oracle:
    with np.errstate(all="ignore"):
        wide = evaluate(graph, feed.arrays, "f64", list(graph.outputs.values()))
        native = evaluate(graph, feed.arrays, "native", list(graph.outputs.values()))
    return Oracle(public(graph, wide), public(graph, native), feed.kind != "adversarial")


def with_own_error(graph: Graph, feed: Feed, oracle: Oracle) -> Oracle:
    """The oracle with its own error taken as the largest of a few runs on weights and inputs moved by one last place.

    One run may be lucky, above all where the output is a single number; the moved runs round differently.
    """
    sampled: dict[str, float] = {}
    for seed in range(SAMPLES):
        generator = np.random.default_rng(seed)
        moved = graph.copy()
        moved.constants = {k: _moved(a, generator) for k, a in graph.constants.items()}
        arrays = {k: _moved(np.asarray(a), generator) for k, a in feed.arrays.items()}
        with np.errstate(all="ignore"):
            values = public(moved, evaluate(moved, arrays, "native", list(moved.outputs.values())))
        for name, wide in oracle.wide.items():
            sampled[name] = max(sampled.get(name, 0.0), error_of(values[name], wide))
    return replace(oracle, sampled=sampled)


def _moved(array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Every other float element is its neighbour; zeros, whole numbers and what is not finite stay."""
    if array.dtype not in (np.float32, np.float64):
        return array
    with np.errstate(all="ignore"):
        moves = (generator.random(array.shape) < 0.5) & np.isfinite(array) & (array != np.rint(array))
        return np.where(moves, np.nextafter(array, array.dtype.type(np.inf)), array)


def public(graph: Graph, values: Mapping[str, np.ndarray]) -> Arrays:
    """Values under the names of the model's outputs."""
    return {name: np.asarray(values[value]) for name, value in graph.outputs.items()}


def _same_bits(graph: Graph, trace: Trace, answer: Mapping[str, np.ndarray], values: Mapping[str, np.ndarray]) -> bool:
    """The model's own outputs are those of the run that keeps everything (NaNs count as equal)."""
    kept = {name: values[trace.graph.outputs[name]] for name in graph.outputs if trace.graph.outputs[name] in values}
    return all(np.array_equal(np.asarray(answer[name]), kept[name], equal_nan=_holds_floats(kept[name]))
               for name in kept)  # fmt: skip


# ---- regions ---------------------------------------------------------------------------------------------------------
def check_region(graph: Graph, kernel: TracedKernel, feed: Feed, values: Mapping[str, np.ndarray]) -> list[RegionCheck]:
    """One check for each output of the region, on the inputs that it had in this run."""
    part = kernel.region.subgraph(graph)
    inputs = {i: np.asarray(values[i]) if i in values else np.asarray(feed.arrays[i]) for i in part.inputs}
    with np.errstate(all="ignore"):
        _, bounds = analyse(part, inputs, unrelated if feed.kind == "random" else worst_case)
    return [
        RegionCheck(kernel.id, kernel.name, kernel.nodes, feed.name, value,
                    against_bounds(np.asarray(values[value]), bounds[value]))
        for value in kernel.region.outputs if value in values
    ]  # fmt: skip


def against_bounds(answer: np.ndarray, bound: Bounded) -> Distribution:
    """Errors of an answer, and the largest of them in units of what is allowed there (more than 1: wrong)."""
    expected = np.asarray(bound.value, np.float64)
    got, allowed = np.asarray(answer, np.float64), bound.full()
    with np.errstate(all="ignore"):
        error = np.where(_same_class(got, expected), 0.0, np.abs(got - expected))
        error = np.where(np.isnan(error), np.inf, error)
        share = np.where(error == 0, 0.0, np.where(allowed > 0, error / allowed, np.inf))
    judged = np.isfinite(allowed)
    return distribution(error[judged], share[judged], error.size)


def _holds_floats(array: np.ndarray) -> bool:
    """Those too that NumPy itself does not know, as bfloat16, whose kind is that of raw bytes."""
    return DType.of(array.dtype).is_float


def _same_class(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Both NaN, or equal (the same infinity too)."""
    return np.asarray((a == b) | (np.isnan(a) & np.isnan(b)))


def distribution(error: np.ndarray, share: np.ndarray, elements: int) -> Distribution:
    """`error` and `share` (of what is allowed) of the elements that are judged, of `elements` in all."""
    if error.size == 0:
        return Distribution(0.0, 0.0, 0.0, 0.0, elements, elements)
    ranks = [min(error.size - 1, math.ceil(q * (error.size - 1))) for q in (0.5, 0.99)]
    p50, p99 = (float(np.partition(error, ranks)[r]) for r in ranks)
    return Distribution(float(error.max()), p50, p99, float(share.max()), elements, elements - error.size)


# ---- the whole model -------------------------------------------------------------------------------------------------
def check_outputs(oracles: Mapping[str, Oracle], answers: Mapping[str, Mapping[str, np.ndarray]]) -> list[OutputCheck]:
    """One check for each feed and output."""
    own = _own_errors(oracles)
    out = []
    for feed, oracle in oracles.items():
        for name, wide in oracle.wide.items():
            got, narrow = np.asarray(answers[feed][name]), oracle.native[name]
            error = max(oracle.own_error(name), own.get(name, 0.0) * scale_of(wide))
            allowed = allowed_error(wide, DType.of(narrow.dtype), error)
            errors = against_oracle(got, narrow, wide, allowed)
            out.append(OutputCheck(name, feed, errors, oracle.own_error(name), allowed))
    return out


def _own_errors(oracles: Mapping[str, Oracle]) -> dict[str, float]:
    """The unfused oracle's largest error relative to the output's size, over the feeds that are not adversarial.

    One feed alone may be lucky: a model with a single number as its output has one error a feed.
    """
    out: dict[str, float] = {}
    for oracle in oracles.values():
        if oracle.typical:
            for name, wide in oracle.wide.items():
                relative = oracle.own_error(name) / max(scale_of(wide), 1e-300)
                out[name] = max(out.get(name, 0.0), relative)
    return out


def allowed_error(wide: np.ndarray, dtype: DType, own_error: float) -> float:
    """Three times the unfused oracle's own error, and a few units in the last place of the largest element."""
    if not dtype.is_float:
        return 0.0
    return FACTOR * own_error + FLOOR * 2 * unit(dtype) * scale_of(wide) + 2.0**-126


def scale_of(wide: np.ndarray) -> float:
    finite = np.isfinite(wide) if _holds_floats(wide) else np.ones(wide.shape, bool)
    return float(np.max(np.abs(wide.astype(np.float64)), initial=0.0, where=finite))


def error_of(narrow: np.ndarray, wide: np.ndarray) -> float:
    """The largest distance where both are finite."""
    a, b = narrow.astype(np.float64), wide.astype(np.float64)
    finite = np.isfinite(a) & np.isfinite(b)
    return float(np.max(np.abs(np.where(finite, a, 0) - np.where(finite, b, 0)), initial=0.0))


def against_oracle(got: np.ndarray, narrow: np.ndarray, wide: np.ndarray, allowed: float) -> Distribution:
    """Errors of a model's output. Where float32 itself leaves the finite numbers, the answer may do as either oracle
    did; integers and booleans must be what either oracle says.
    """
    if got.shape != wide.shape:
        return Distribution(np.inf, np.inf, np.inf, np.inf, wide.size, 0)
    a, b, c = (x.astype(np.float64) for x in (got, wide, narrow))
    with np.errstate(all="ignore"):
        error = np.abs(a - b)
        either = _same_class(a, b) | (_same_class(a, c) & (~np.isfinite(c) | (not _holds_floats(narrow))))
        error = np.where(either, 0.0, np.where(np.isnan(error), np.inf, error))
        share = np.where(error == 0, 0.0, error / allowed if allowed else np.inf)
    return distribution(error.ravel(), share.ravel(), error.size)
