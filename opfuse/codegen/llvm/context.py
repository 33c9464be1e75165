"""The layout of a context: the block of memory through which Python, the step driver and the generated steps talk.

All fields are 8 bytes. Behind the fields stands one base address for each area and number that a place may name: the
arena, the weights, the model inputs, the outputs, the host buffers, in this order.

    slots = Slots(inputs=2, outputs=1, hosts=0);  slots.offset("output", 0) -> byte offset of its base address
"""

from __future__ import annotations

from dataclasses import dataclass

LINE = 64  # bytes of a counter: a cache line, so that two threads' counters never share one

# Byte offsets of the fields.
DRIVER = 0  # address of opfuse_drive
THREADS = 8  # threads asked for
ACTIVE = 16  # threads that take part in this run
SCRATCH = 24  # address of thread 0's scratch; the others' follow at SCRATCH_STRIDE bytes each
SCRATCH_STRIDE = 32
COUNTERS = 40  # address of the steps' counters, and their bytes
COUNTERS_BYTES = 48
PROFILE = 56  # address of one cycle count a step, or 0
DELAY = 64  # seed of random delays (debug), or 0
TABLE = 72  # the table of the segment that runs, and its steps
STEPS = 80
BASES = 128

# A row of the step table: function, tiles, chunk, solo, barrier.
STEP_TILES, STEP_CHUNK, STEP_SOLO, STEP_BARRIER, STEP_BYTES = 8, 16, 24, 32, 40


@dataclass(frozen=True)
class Slots:
    """Where base addresses stand in a context."""

    inputs: int
    outputs: int
    hosts: int

    @property
    def count(self) -> int:
        return 2 + self.inputs + self.outputs + self.hosts

    def number(self, area: str, index: int = 0) -> int:
        """The number of the base among all bases."""
        first = {
            "arena": 0, "weights": 1, "input": 2, "output": 2 + self.inputs, "host": 2 + self.inputs + self.outputs,
        }[area]  # fmt: skip
        return first + index

    def offset(self, area: str, index: int = 0) -> int:
        return BASES + 8 * self.number(area, index)

    @property
    def bytes(self) -> int:
        return BASES + 8 * self.count


def counter_bytes(steps: int, threads: int) -> int:
    """Bytes of the counters of a segment: for each step one line a thread, and one for the finished tiles."""
    return steps * (threads + 1) * LINE if threads > 1 else 0
