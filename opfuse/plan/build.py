"""Kernels in, plan out: order, epochs, lifetimes, offsets, weights.

    plan, weights = build_plan(graph, kernels, printed, options, target)

`printed[k]` are the printed phases of `kernels[k]` (tile kernels only). The graph's shapes are numbers; a kernel that
was printed with run-time extents gets them from `bindings`. The stages: storages (views share bytes) -> execution
order -> runs and epochs -> lifetimes, in-place reuse, arena -> steps on places.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from opfuse.fuse.provider import HostKernel, Kernel, TileKernel, ViewKernel
from opfuse.ir.dims import Bindings
from opfuse.ir.graph import Graph
from opfuse.options import Options
from opfuse.plan import account
from opfuse.plan.arena import Arena, plan_arena
from opfuse.plan.order import Footstep, epochs, execution_order
from opfuse.plan.phases import PlannedRun, Printed, plan_runs
from opfuse.plan.plan import Host, KernelInfo, Native, Place, Plan, Port, Segment, Step, Value
from opfuse.plan.storage import Storages, static_bytes
from opfuse.plan.weights import Pack, WeightsLayout
from opfuse.target import Target
from opfuse.tile.packing import pack as pack_panels
from opfuse.tile.schedule import Packing


def build_plan(
    graph: Graph, kernels: Sequence[Kernel], printed: Mapping[int, Sequence[Printed]], options: Options, target: Target,
    *, bindings: Bindings | None = None, baseline: Graph | None = None, pack: Pack = pack_panels,
) -> tuple[Plan, np.ndarray]:  # fmt: skip
    """The plan and its weights blob. `baseline` is the graph to count as unfused (this one where None).

    ValueError where a value that someone reads is made by nobody, or a buffer does not fit its value.
    """
    storages = Storages.of(graph, kernels)
    numbers = _order(kernels, storages)
    ordered = [kernels[n] for n in numbers]
    runs = plan_runs(ordered, [printed.get(n, ()) for n in numbers], storages, options.threads, bindings or {})
    number_of = epochs([r.run for r in runs], options.threads)
    arena = plan_arena(ordered, runs, number_of, storages)
    places = _Places(graph, storages, arena, WeightsLayout(pack))
    segments = _segments(ordered, runs, number_of, places)
    values, outputs = _values(graph, ordered, places), _outputs(graph, places)
    pieces, blob = places.weights.build()
    kernel_infos = tuple(_info(graph, k, n, printed.get(n, ())) for n, k in zip(numbers, ordered, strict=True))
    scratch = max((r.scratch_bytes for r in runs), default=0)
    made_by_host = [v for k in ordered if isinstance(k, HostKernel) for v in k.region.outputs]
    unfused = baseline or graph
    plan = Plan(
        inputs=tuple(_port(graph, i, i) for i in graph.inputs), outputs=outputs, values=values, segments=segments,
        kernels=kernel_infos, weights=pieces, arena_bytes=arena.bytes, weights_bytes=blob.nbytes, scratch_bytes=scratch,
        threads=options.threads,
        bytes_moved={"fused": sum(k.bytes for k in kernel_infos), "unfused": account.unfused_bytes(unfused)},
        peak_memory={
            "fused": account.fused_peak(graph, arena.bytes, scratch, options.threads, made_by_host),
            "unfused": account.unfused_peak(unfused),
        },
    )  # fmt: skip
    return plan, blob


def _order(kernels: Sequence[Kernel], storages: Storages) -> list[int]:
    """Numbers of the kernels that do work, in execution order."""
    working = [n for n, k in enumerate(kernels) if not isinstance(k, ViewKernel)]
    steps = []
    for n in working:
        reads = {made: None for v in kernels[n].region.inputs for made in sorted(storages.holds(v))}
        steps.append(Footstep(tuple(reads), kernels[n].region.outputs, isinstance(kernels[n], HostKernel)))
    sizes = {v: storages.bytes.get(v, static_bytes(storages.graph, v))
             for v in storages.made if storages.kind(v) == "arena"}  # fmt: skip
    return [working[k] for k in execution_order(steps, sizes)]


class _Places:
    """Where each value lies; constants get their place when they are first asked for, in execution order."""

    def __init__(self, graph: Graph, storages: Storages, arena: Arena, weights: WeightsLayout) -> None:
        self.graph, self.storages, self.arena, self.weights = graph, storages, arena, weights

    def of(self, value: str, packed: Packed | None = None) -> Place:
        root, kind = self.storages.root(value), self.storages.kind(value)
        if kind == "weights":
            array = self.graph.constants[root]
            if packed is None:
                return self.weights.add(root, array)
            return self.weights.add(root, array.reshape(packed.shape), packed.packing)
        at = self.storages.offset(value)
        size = self.storages.bytes[root] - at
        if kind == "arena":
            return Place("arena", self.arena.offset(root) + at, 0, size)
        return Place(kind, at, self.storages.numbers[root], size)

    def scratch(self, name: str) -> Place:
        return Place("arena", self.arena.offset(name), 0, self.arena.sizes[name])


def _segments(
    kernels: Sequence[Kernel], runs: Sequence[PlannedRun], number_of: Sequence[int], places: _Places
) -> tuple[Segment, ...]:
    out: list[Segment] = []
    steps: list[Step] = []

    def close() -> None:
        if steps:
            out.append(Native(tuple(steps), f"opfuse_run_{sum(isinstance(s, Native) for s in out)}"))
            steps.clear()

    for k, run in enumerate(runs):
        kernel = kernels[run.run.kernel]
        if isinstance(kernel, HostKernel):
            close()
            for v in kernel.region.inputs:
                places.of(v)
            out.append(Host(run.run.kernel, kernel.region.inputs, kernel.region.outputs))
            continue
        assert isinstance(kernel, TileKernel)
        barrier = k + 1 == len(runs) or number_of[k + 1] != number_of[k]
        arguments = tuple(_argument(kernel, run, name, places) for name in run.buffers)
        integers, scratch = run.integers, run.scratch_bytes
        steps.append(Step(run.function, run.run.kernel, arguments, integers, run.tiles, run.chunk, scratch, barrier))
    close()
    return tuple(out)


def _argument(kernel: TileKernel, run: PlannedRun, buffer: str, places: _Places) -> Place:
    value = kernel.arguments.get(buffer)
    if value is None:
        return places.scratch(run.scratch_names[buffer])
    return places.of(value, _packed(kernel, buffer))


@dataclass(frozen=True)
class Packed:
    """How a kernel wants a constant: its buffer's shape (the kernel's own view of the constant) and the panels."""

    shape: tuple[int, ...]
    packing: Packing


def _packed(kernel: TileKernel, buffer: str) -> Packed | None:
    packing = kernel.packing.get(buffer)
    if packing is None:
        return None
    found = kernel.program.buffer(buffer)
    shape = tuple(d for d in found.shape if isinstance(d, int))
    if found.strides is not None or len(shape) != len(found.shape):
        raise ValueError(f"kernel {kernel.name!r}: {buffer!r} cannot be packed: its layout is not plain or not known")
    return Packed(shape, packing)


def _values(graph: Graph, kernels: Sequence[Kernel], places: _Places) -> tuple[Value, ...]:
    """Every value that a kernel reads or makes, and every model input and output, with its place."""
    names = dict.fromkeys(graph.inputs)
    for k in kernels:
        names |= dict.fromkeys((*k.region.inputs, *k.region.outputs))
    names |= dict.fromkeys(graph.outputs.values())
    tile_kernels = [k for k in kernels if isinstance(k, TileKernel)]
    packed = {k.arguments[b]: _packed(k, b) for k in tile_kernels for b in k.packing if b in k.arguments}
    plain = set(graph.outputs.values()) | {v for k in kernels if isinstance(k, HostKernel) for v in k.region.inputs}
    out = []
    for v in names:
        port = _port(graph, v, v)
        place = places.of(v, None if v in plain else packed.get(v))
        holds = tuple(sorted(places.storages.holds(v) - {v}))
        out.append(Value(v, port.dtype, port.shape, place, places.storages.strides(v), holds))
    return tuple(out)


def _outputs(graph: Graph, places: _Places) -> tuple[Port, ...]:
    return tuple(_port(graph, name, value) for name, value in graph.outputs.items())


def _port(graph: Graph, name: str, value: str) -> Port:
    type_ = graph.types[value]
    return Port(name, type_.dtype, tuple(d if isinstance(d, int) else -1 for d in type_.shape), value)


def _info(graph: Graph, kernel: Kernel, number: int, printed: Sequence[Printed]) -> KernelInfo:
    assert isinstance(kernel, (TileKernel, HostKernel))
    reads, writes = kernel.region.inputs, kernel.region.outputs
    text = hashlib.sha256("\x1f".join(("kernel", *kernel.region.nodes)).encode()).hexdigest()[:10]
    facts = {**kernel.cost.facts, "operations": kernel.cost.flops}  # as the cost model weighs them
    if isinstance(kernel, HostKernel) and kernel.reason is not None:
        facts |= {"host_reason": kernel.reason.text, "host_code": kernel.reason.code}
    return KernelInfo(
        id=text, name=kernel.name, nodes=kernel.origin, provider=kernel.provider, predicted_s=kernel.cost.seconds,
        bytes=account.region_bytes(graph, reads, writes), flops=account.region_flops(graph, kernel.region.nodes),
        scratch_bytes=max((p.scratch_bytes for p in printed), default=0), facts=facts, reads=reads, writes=writes,
        number=number,
    )  # fmt: skip
