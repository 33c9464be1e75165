"""The plan: what runs in which order on which bytes. Plain data, serialisable, everything that the runtime needs.

A step runs one printed phase of a kernel on places; steps between two barriers form an epoch and run side by side on
the threads. `Native` segments hold steps; `Host` segments call Python between them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from opfuse.ir.types import DType

Area = Literal["arena", "weights", "input", "output", "host"]


@dataclass(frozen=True)
class Place:
    """Bytes: an offset into the arena or the weights, or into the model input / output / host buffer of a number."""

    area: Area
    offset: int
    index: int = 0  # which input, output or host buffer
    bytes: int = 0


@dataclass(frozen=True)
class Value:
    """A value of the graph that has a place: the arrays that go between kernels, inputs and outputs."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    place: Place
    strides: tuple[int, ...] = ()  # in elements; () where it is row-major without gaps
    holds: tuple[str, ...] = ()  # the values that kernels make in whose bytes it lies; () for itself


@dataclass(frozen=True)
class Step:
    """One printed function over tiles [0, tiles), claimed by threads `chunk` at a time; `barrier` after it.

    A step of one claim is `solo`: the calling thread runs it, so two of them in a row keep their order by themselves.
    """

    function: str
    kernel: int  # number of the kernel that it belongs to
    arguments: tuple[Place, ...]
    integers: tuple[int, ...]
    tiles: int
    chunk: int
    scratch_bytes: int  # a thread
    barrier: bool

    @property
    def solo(self) -> bool:
        return self.tiles <= self.chunk


@dataclass(frozen=True)
class Native:
    steps: tuple[Step, ...]
    symbol: str = ""  # name of the segment's native entry function


@dataclass(frozen=True)
class Host:
    """A Python function: `kernel` is its number; the values that it reads and makes, by name."""

    kernel: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


Segment = Native | Host


@dataclass(frozen=True)
class Port:
    """A model input or output as the user sees it. `value` says which value it shows.

    `range` is set where the elements of an input are indices: (smallest, largest, the user's node that takes them).
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    value: str
    range: tuple[int, int, str] | None = None


@dataclass(frozen=True)
class WeightPiece:
    """One constant in the weights area; `packing` says how it was packed, "" where it is as the model has it."""

    name: str
    offset: int
    bytes: int
    packing: str = ""


@dataclass(frozen=True)
class KernelInfo:
    """What is reported of a kernel; kept in the artefact."""

    id: str
    name: str
    nodes: tuple[str, ...]
    provider: str
    predicted_s: float
    bytes: int
    flops: int
    scratch_bytes: int
    program_text: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    reads: tuple[str, ...] = ()  # values that it reads, weights too (Region.inputs); neighbours are found from these
    writes: tuple[str, ...] = ()  # values that it makes (Region.outputs)
    number: int = -1  # its place in the list of kernels that the plan was made from


@dataclass(frozen=True)
class Plan:
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    values: tuple[Value, ...]
    segments: tuple[Segment, ...]
    kernels: tuple[KernelInfo, ...]
    weights: tuple[WeightPiece, ...]
    arena_bytes: int
    weights_bytes: int
    scratch_bytes: int  # a thread
    threads: int
    bytes_moved: dict[str, int] = field(default_factory=dict)  # fused, unfused
    peak_memory: dict[str, int] = field(default_factory=dict)  # fused, unfused
    facts: dict[str, Any] = field(default_factory=dict)  # "model": its name, "operators" before rewriting, "target"
