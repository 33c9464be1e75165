"""THE pipeline: every stage named, in order.

model (path, bytes, ModelProto or Graph) -> Graph -> rewrite -> group -> kernels -> print -> plan -> CompiledModel
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from opfuse.codegen.llvm.entry import entry_functions
from opfuse.codegen.llvm.jit import assemble, compile_object
from opfuse.codegen.llvm.printer import PrintedPhase, print_program
from opfuse.decision import Decision, Ledger, Refusal
from opfuse.errors import ModelError, OpfuseError, OptionError, UnsupportedOperators
from opfuse.frontends.onnx.load import load as load_onnx
from opfuse.frontends.onnx.model_file import SourceModel, read
from opfuse.frontends.onnx.open_model import OpenModel
from opfuse.fuse.grouping import Group, group
from opfuse.fuse.provider import HostKernel, Kernel, Provider, TileKernel, ViewKernel, why_on_host
from opfuse.fuse.region import kernel_decision
from opfuse.ir.graph import Graph, user_names
from opfuse.options import Options
from opfuse.plan.build import build_plan
from opfuse.plan.index_ranges import IndexRange, index_ranges
from opfuse.providers.cpu import CpuProvider
from opfuse.providers.reference import ReferenceProvider
from opfuse.report.numerics import Run, Trace, TracedKernel
from opfuse.report.reports import Reports, plan_facts
from opfuse.rewrite.engine import rewrite
from opfuse.rewrite.rules import FOLDING
from opfuse.runtime.cache import Cache, default_directory, key_of
from opfuse.runtime.executable import Executable
from opfuse.runtime.interface import Interface
from opfuse.runtime.model import CompiledModel
from opfuse.target import Target, host, physical_cores
from opfuse.tile.text import program_text, schedule_text
from opfuse.tune.calibrate import rates_for


def compile(model: Any, *, threads: int | None = None, shapes: Mapping[str, Sequence[int]] | None = None,
            precision: str = "fp32", disable_rules: Iterable[str] = (), disable_fusions: Iterable[str] = (),
            strict: bool = False, isa: str | None = None, debug: bool = False, calibrate: bool = True,
            cache: str | Path | None = None) -> Executable:  # fmt: skip
    """Compile a model for the CPU at hand.

    Args:
        model: an ONNX file's path, its bytes, an `onnx.ModelProto`, or an `opfuse.ir.graph.Graph`.
        threads: worker threads of a call; all physical cores where None.
        shapes: input name -> shape, to bind symbolic dimensions now. Otherwise the first call binds them. A later call
            with other shapes compiles again, and both are kept.
        precision: "fp32", the only one so far.
        disable_rules: names of rewrite rules to switch off.
        disable_fusions: ids of kernels to keep apart (see `explain`), or "all".
        strict: exact rewrites only.
        isa: "avx512", "avx2" or "plain"; the best that the CPU has where None.
        debug: random thread delays and a NaN-filled arena.
        calibrate: predict with rates measured on this machine (two seconds, once); with described ones where False.
        cache: directory of measurements and object code; the platform's own (`~/.cache/opfuse`) where None.
    """
    options = Options(
        threads=physical_cores() if threads is None else threads, precision=precision,
        shapes={k: tuple(v) for k, v in (shapes or {}).items()}, disabled_rules=names(disable_rules),
        disabled_fusions=names(disable_fusions), strict=strict, isa=isa, debug=debug,
        calibrate=calibrate, cache=None if cache is None else str(cache),
    )  # fmt: skip
    graph = model if isinstance(model, Graph) else imported(model, options.shapes)
    if isinstance(model, (str, Path)):
        graph.name = Path(model).name  # reports and errors name the user's file
    return Executable(graph, options, lambda bound: build(bound, options), reports=Reports(Stages()))


def imported(model: Any, shapes: Mapping[str, Sequence[int]]) -> Graph:
    """The graph, its dimensions open even where `shapes` bind them all: a later call may bring others.

    They are fixed where `shapes` leave some open or do not fit (the error says how).
    """
    source = read(model)
    if not shapes:
        return open_where_needed(source)
    try:
        graph = open_where_needed(source)
        interface = Interface.of(graph)
        bound = interface.bindings(shapes)
    except OpfuseError:
        return load_onnx(source, shapes)
    return graph if all(s in bound for s in interface.symbols) else open_where_needed(source, shapes)


def open_where_needed(source: SourceModel, shapes: Mapping[str, Sequence[int]] | None = None) -> Graph:
    """The imported graph; where open dimensions alone forbid that, one that is imported for each set of shapes."""
    try:
        return load_onnx(source, shapes)
    except UnsupportedOperators as error:
        if not error.by_shapes:
            raise
        graph = OpenModel(source, shapes)
        if not graph.symbols:
            raise
        return graph


def names(given: Iterable[str]) -> frozenset[str]:
    """Some names, or one."""
    return frozenset((given,) if isinstance(given, str) else given)


@dataclass(frozen=True)
class Lowered:
    """Everything before planning: the rewritten graph, its kernels, and number -> their printed functions."""

    graph: Graph
    kernels: tuple[Kernel, ...]
    printed: Mapping[int, tuple[PrintedPhase, ...]]
    unfused: Graph  # what fusion is compared with: the model's own operators after constant folding
    target: Target
    options: Options
    ledger: Ledger
    facts: Mapping[str, Any]  # of the imported graph, for reports
    ranges: Mapping[str, IndexRange]  # of inputs that are used as indices


def build(graph: Graph, options: Options) -> CompiledModel:
    """Compile a graph whose dimensions are all bound."""
    return link(lower(graph, options))


def lower(graph: Graph, options: Options) -> Lowered:
    ledger = Ledger()
    target = machine(options)
    facts, ranges = plan_facts(graph, target.name), checked_ranges(graph)
    unfused = rewrite(graph, Options(), Ledger(), FOLDING)
    graph = rewrite(graph, options, ledger)
    asked = providers(options)
    groups = group(graph, asked, target, options, ledger)
    kernels = [kernel_of(graph, g, asked, target, ledger) for g in groups]
    return Lowered(graph, tuple(kernels), print_kernels(kernels, target), unfused, target, options, ledger, facts,
                   ranges)  # fmt: skip


def providers(options: Options) -> tuple[Provider, ...]:
    """Who is asked for kernels, the first on a tie. The oracle stands last: it can run everything, slowly."""
    return CpuProvider(reassociate=options.reassociate and not options.strict), ReferenceProvider()


def checked_ranges(graph: Graph) -> dict[str, IndexRange]:
    """Ranges of inputs that are indices. ModelError where a constant holds an index that there is not."""
    ranges = index_ranges(graph)
    for name, r in ranges.items():
        array = graph.constants.get(name)
        if array is not None and array.size and (array.min() < r.low or array.max() > r.high):
            wrong = array[(array < r.low) | (array > r.high)].flat[0]
            problem = f"the constant {name!r} holds the index {wrong}, where {r.low} to {r.high} can be picked"
            raise ModelError(graph.name, problem, "correct the model", node=r.node, code="index-range")
    return ranges


def machine(options: Options) -> Target:
    """The CPU at hand with the rates to count on: measured here before, measured now, or described."""
    try:
        target = host(options.threads, options.isa)
    except ValueError as error:
        raise OptionError("--isa", str(error)) from None
    return target.with_rates(rates_for(target, cache_of(options).directory)) if options.calibrate else target


def cache_of(options: Options) -> Cache:
    return Cache(Path(options.cache) if options.cache is not None else default_directory())


def link(lowered: Lowered, graph: Graph | None = None) -> CompiledModel:
    """Plan, assemble and compile; `graph` may show more outputs than the lowered one (for verify)."""
    graph, target, options = graph or lowered.graph, lowered.target, lowered.options
    plan, weights = build_plan(graph, lowered.kernels, lowered.printed, options, target, baseline=lowered.unfused)
    inputs = tuple(replace(p, range=astuple(r) if (r := lowered.ranges.get(p.name)) else None) for p in plan.inputs)
    plan = replace(plan, inputs=inputs, facts={**lowered.facts, **plan.facts})
    functions = dict.fromkeys(p.text for phases in lowered.printed.values() for p in phases)
    module = assemble([*functions, *entry_functions(plan, target, options)], target)
    code = cache_of(options).get_or_make("object", object_key(module, target), lambda: compile_object(module, target))
    host_kernels = {k: kernel for k, kernel in enumerate(lowered.kernels) if isinstance(kernel, HostKernel)}
    return CompiledModel(plan, code, weights, lowered.ledger, target=target, options=options,
                         host_kernels=host_kernels, graph=graph)  # fmt: skip


def kernel_of(
    graph: Graph, grouped: Group, asked: Sequence[Provider], target: Target, ledger: Ledger
) -> Kernel:
    if grouped.claim is None:
        return ViewKernel(grouped.region.nodes[0], grouped.region, grouped.region.origin(graph))
    provider = next(p for p in asked if p.name == grouped.claim.provider)
    kernel = provider.build(graph, grouped.claim)
    if isinstance(kernel, HostKernel):
        refusal = why_on_host(asked[0].claim(graph, grouped.region, target), grouped.claim)
        kernel = replace(kernel, reason=refusal)
        ledger.add(Decision("host", kernel.name, user_names(grouped.region.members(graph)), "taken", refusal.text,
                            refusal.code, refusal.facts))  # fmt: skip
    return kernel


def print_kernels(kernels: Sequence[Kernel], target: Target) -> dict[int, tuple[PrintedPhase, ...]]:
    """Print every tile kernel; number k of the result belongs to kernels[k]. Equal programs share one function."""
    printed: dict[int, tuple[PrintedPhase, ...]] = {}
    shared: dict[str, tuple[PrintedPhase, ...]] = {}
    for k, kernel in enumerate(kernels):
        if not isinstance(kernel, TileKernel):
            continue
        key = program_text(replace(kernel.program, name="")) + schedule_text(kernel.schedule)
        if key not in shared:
            phases = print_program(kernel.program, kernel.schedule, target, f"k{k}_{kernel.name}")
            if isinstance(phases, Refusal):
                raise AssertionError(f"kernel {kernel.name} was claimed but not printed: {phases.text}")
            shared[key] = phases
        printed[k] = shared[key]
    return printed


def object_key(module: str, target: Target) -> str:
    """Names object code by everything that it was made from."""
    return key_of([module, target.llvm_cpu, target.isa, *target.features, version("llvmlite")])


def load_model(path: str | Path) -> Executable:
    """Load an artefact that `Executable.save` wrote. ArtifactError says what is wrong with it."""
    from opfuse.runtime.artifact import load

    return load(path, Reports(Stages()))


# ---- for reports -----------------------------------------------------------------------------------------------------
class Stages:
    """The stages one by one, as `report.numerics` asks for them."""

    def rewritten(self, graph: Graph, options: Options) -> tuple[Graph, Ledger]:
        ledger = Ledger()
        return rewrite(graph, options, ledger), ledger

    def compiled(self, graph: Graph, options: Options) -> Run:
        return named(build(graph, options))

    def built(self, graph: Graph, options: Options) -> CompiledModel:
        return build(graph, options)

    def traced(self, graph: Graph, options: Options) -> Trace:
        """The same kernels, planned so that every value between them is an output and keeps memory of its own."""
        lowered = lower(graph, options)
        kept, made = lowered.graph.copy(), [v for k in lowered.kernels for v in k.region.outputs]
        kept.set_outputs({v: v for v in dict.fromkeys([*made, *lowered.graph.outputs.values()])})
        kernels = tuple(
            TracedKernel(kernel_decision(lowered.graph, k.region.nodes).id, k.name, k.region, k.origin)
            for k in lowered.kernels if not isinstance(k, ViewKernel)
        )  # fmt: skip
        return Trace(lowered.graph, kernels, named(link(lowered, kept)), lowered.ledger)


def named(model: CompiledModel) -> Run:
    """The model as a function of named arrays; the result holds the inputs too."""
    inputs, outputs = [p.name for p in model.plan.inputs], [p.name for p in model.plan.outputs]

    def run(feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        results = model.run([feeds[i] for i in inputs])
        return {**feeds, **dict(zip(outputs, results, strict=True))}

    return run
