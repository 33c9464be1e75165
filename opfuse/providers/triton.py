"""The Triton generator as a provider: lowers a region to a tile program and picks a schedule for the GPU described.

    claim = TritonProvider().claim(graph, region, described("h200"))     # Claim(program, schedule, seconds) or Refusal

Not part of the CPU pipeline. Its cost is a plain roofline over every buffer once: bytes over bandwidth or products over
the multiply-add rate, whichever takes longer, and a launch for each phase.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from opfuse.codegen.triton.choose import choose_gpu
from opfuse.codegen.triton.printer import legal
from opfuse.decision import Refusal
from opfuse.fuse.provider import Claim, Cost, Kernel, TileKernel
from opfuse.fuse.region import Region
from opfuse.ir.dims import Dim
from opfuse.ir.graph import Graph
from opfuse.ir.structure import Axis
from opfuse.target import Target
from opfuse.tile.beside import lower_beside
from opfuse.tile.lower import LoweredRegion, lower, lower_online
from opfuse.tile.program import Dot, Loop, Program, Repeat, Statement
from opfuse.tile.schedule import Schedule

NOMINAL = 64  # of a run-time extent


@dataclass(frozen=True)
class TritonPayload:
    lowered: LoweredRegion
    schedule: Schedule


@dataclass(frozen=True)
class TritonProvider:
    """`reassociate` allows the online form of softmax, which goes first: a block holds few rows of scores."""

    name = "triton"
    reassociate: bool = True

    def claim(self, graph: Graph, region: Region, target: Target) -> Claim | Refusal:
        """The first program of the region that can be printed; the plain one's refusal where there is none."""
        subgraph, name = region.subgraph(graph), kernel_name(graph, region)
        online = self.claim_program(lower_online(subgraph, name), region, target) if self.reassociate else None
        if isinstance(online, Claim):
            return online
        plain = self.claim_program(lower(subgraph, name), region, target)
        if isinstance(plain, Claim):
            return plain
        apart = self.claim_program(lower_beside(subgraph, name), region, target)
        return apart if isinstance(apart, Claim) else plain

    def claim_program(self, lowered: LoweredRegion | Refusal, region: Region, target: Target) -> Claim | Refusal:
        if isinstance(lowered, Refusal):
            return lowered
        schedule = choose_gpu(lowered.program, target)
        if isinstance(schedule, Refusal):
            return schedule
        footprint = legal(lowered.program, schedule, target)
        if isinstance(footprint, Refusal):
            return footprint
        return Claim(self.name, region, cost(lowered.program, target), TritonPayload(lowered, schedule), footprint)

    def build(self, graph: Graph, claim: Claim) -> Kernel:
        payload = claim.payload
        assert isinstance(payload, TritonPayload)
        lowered, origin = payload.lowered, claim.region.origin(graph)
        name = kernel_name(graph, claim.region)
        return TileKernel(name, claim.region, lowered.program, payload.schedule, lowered.arguments, claim.cost,
                          self.name, origin)  # fmt: skip


def cost(program: Program, target: Target) -> Cost:
    """Seconds of one run by a roofline; intermediates in scratch count as one write and one read."""
    moved = sum(
        math.prod(map(_size, b.shape)) * b.dtype.bytes * (2 if b.role == "scratch" else 1) for b in program.buffers
    )
    phases = list(program.flat_phases())
    flops = sum(multiply_adds(p.body, math.prod(_size(a.extent) for a in p.grid), frozenset(p.grid)) for p in phases)
    rates = target.rates
    launches = sum(len(p.phases) if isinstance(p, Repeat) else 1 for p in program.phases)
    seconds = launches * rates.start_s + max(moved / rates.dram_bytes_per_s, flops / rates.flops_per_s)
    return Cost(seconds, moved, flops, {"rates": rates.source})


def multiply_adds(body: tuple[Statement, ...], points: int, outer: frozenset[Axis]) -> int:
    """Of the dots in a body that runs at `points` places, counted as two each."""
    total = 0
    for s in body:
        if isinstance(s, Loop):
            total += multiply_adds(s.body, points * _size(s.axis.extent), outer | {s.axis})
        elif isinstance(s, Dot):
            inner = {*s.a.axes, *s.b.axes} - outer
            total += 2 * points * math.prod(_size(a.extent) for a in inner)
    return total


def kernel_name(graph: Graph, region: Region) -> str:
    """The first operators of the region, as a name that a Python function may have."""
    return "_".join([n.op for n in region.members(graph)][:4]) or "kernel"


def _size(d: Dim) -> int:
    return d if isinstance(d, int) else NOMINAL
