"""What a kernel library must answer: can you run this region, at what cost, and then: give me the kernel.

A provider never says a bare no: `claim` returns a `Claim` with seconds or a `Refusal` with its reason. The generators
are providers like any other, and the NumPy oracle is the last one, which can run everything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from opfuse.decision import Refusal
from opfuse.fuse.region import Region
from opfuse.ir.graph import Graph
from opfuse.target import Target
from opfuse.tile.program import Program
from opfuse.tile.schedule import Footprint, Packing, Schedule


@dataclass(frozen=True)
class Cost:
    """Predicted seconds of one run, and what they were computed from."""

    seconds: float
    bytes: int  # inputs and outputs of the kernel, weights too
    flops: int
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    provider: str
    region: Region
    cost: Cost
    payload: Any = None  # what the provider needs to build: a program and its schedule, a library's plan, ...
    footprint: Footprint = Footprint()
    native: bool = True  # False: Python between native segments; such kernels are never grown


def why_on_host(first: Claim | Refusal, chosen: Claim) -> Refusal:
    """Why a region runs in Python: the generator's own words, or that it was predicted to be slower."""
    if isinstance(first, Refusal):
        return first
    facts = {"chosen_s": chosen.cost.seconds, "generated_s": first.cost.seconds}
    return Refusal("slower", f"{first.provider} is predicted to be slower than {chosen.provider}", facts)


@dataclass(frozen=True)
class TileKernel:
    """A generated kernel: tile program and schedule, printed by the target's code generator.

    `arguments` maps each buffer of the program to the graph value that it holds.
    """

    name: str
    region: Region
    program: Program
    schedule: Schedule
    arguments: Mapping[str, str]
    cost: Cost
    provider: str
    origin: tuple[str, ...]

    @property
    def packing(self) -> Mapping[str, Packing]:
        return self.schedule.pack


@dataclass(frozen=True)
class HostKernel:
    """A Python function over arrays, run between native segments: what no generator can do (yet)."""

    name: str
    region: Region
    function: Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]  # region inputs -> region outputs, in their order
    cost: Cost
    provider: str
    origin: tuple[str, ...]
    reason: Refusal | None = None  # why no native provider took it


@dataclass(frozen=True)
class ViewKernel:
    """No work at all: the output lies in other values' bytes (a reshape, a slice, parts joined where they are made)."""

    name: str
    region: Region
    origin: tuple[str, ...]


Kernel = TileKernel | HostKernel | ViewKernel


class Provider(Protocol):
    name: str

    def claim(self, graph: Graph, region: Region, target: Target) -> Claim | Refusal: ...

    def build(self, graph: Graph, claim: Claim) -> Kernel: ...
