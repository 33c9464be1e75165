"""A compiled model: plan, object code and weights, ready to run on arrays of the shapes that it was compiled for.

    model = CompiledModel(plan, object_code, weights, ledger)
    outputs = model.run([x, y])          # fresh arrays, in the order of plan.outputs

It is immutable: calls take contexts from a pool, so several Python threads may run one model. Native segments are one
call each; host segments call Python functions between them.
"""

from __future__ import annotations

import ctypes
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from opfuse.codegen.llvm.entry import live_steps, slots_of
from opfuse.codegen.llvm.jit import load_object
from opfuse.decision import Ledger
from opfuse.errors import InputError
from opfuse.fuse.provider import HostKernel
from opfuse.ir.graph import Graph
from opfuse.options import Options
from opfuse.plan.plan import Host, Native, Plan
from opfuse.runtime.cpu import Context, empty_output
from opfuse.runtime.feeds import check_range, check_shape, read_array
from opfuse.runtime.pool import native_runtime
from opfuse.runtime.segments import Call, HostSegment, NativeSegment
from opfuse.target import Target

Segment = NativeSegment | HostSegment
_COPIED_LATER = np.empty(0, np.uint8)  # stands for an output until its bytes are there to be copied


class _In(NamedTuple):
    dtype: np.dtype
    shape: tuple[int, ...]
    word: int  # where its address goes in the context
    itemsize: int


class _Out(NamedTuple):
    """`value` is "" where kernels write the array itself; otherwise the value whose bytes are copied afterwards."""

    dtype: np.dtype
    shape: tuple[int, ...]
    bytes: int
    word: int
    value: str


class CompiledModel:
    """`host_kernels` are keyed by `KernelInfo.number`; `graph` is the planned one, needed to save a model with them."""

    def __init__(
        self, plan: Plan, object_code: bytes, weights: np.ndarray, ledger: Ledger, *, target: Target | None = None,
        options: Options | None = None, host_kernels: Mapping[int, HostKernel] | None = None,
        graph: Graph | None = None,
    ) -> None:  # fmt: skip
        self.plan, self.object_code, self.weights, self.ledger = plan, object_code, weights, ledger
        self.target, self.options, self.graph = target, options, graph
        self.host_kernels = dict(host_kernels or {})
        self._debug = options is not None and options.debug
        self._slots = slots_of(plan)
        self._values = {v.name: v for v in plan.values}
        self._library = load_object(object_code)
        self._runtime = native_runtime()
        self._weights_address: int = weights.__array_interface__["data"][0]
        self._contexts: deque[Context] = deque()
        self._inputs = [self._input(k) for k in range(len(plan.inputs))]
        self._ranges = [(k, *p.range) for k, p in enumerate(plan.inputs) if p.range is not None]
        self._outputs = [self._output(k) for k in range(len(plan.outputs))]
        self._copied = [(k, out) for k, out in enumerate(self._outputs) if out.value]
        self._segments: tuple[Segment, ...] = self._link()

    def _input(self, k: int) -> _In:
        port = self.plan.inputs[k]
        return _In(port.dtype.numpy, port.shape, self._slots.offset("input", k) // 8, port.dtype.bytes)

    def _output(self, k: int) -> _Out:
        port = self.plan.outputs[k]
        place = self._values[port.value].place
        direct = place.area == "output" and place.index == k
        size = int(np.prod([max(d, 0) for d in port.shape], dtype=np.int64)) * port.dtype.bytes
        word = self._slots.offset("output", k) // 8
        return _Out(port.dtype.numpy, port.shape, size, word, "" if direct else port.value)

    def _link(self) -> tuple[Segment, ...]:
        prototype = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
        out: list[Segment] = []
        for segment in self.plan.segments:
            if isinstance(segment, Host):
                info = self.plan.kernels[segment.kernel]
                out.append(HostSegment(info.name, self.host_kernels[info.number].function, segment, self._slots))
            else:
                out.append(NativeSegment(prototype(self._library.address(segment.symbol))))
        return tuple(out)

    # ---- running ----------------------------------------------------------------------------------------------------
    def run(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """Outputs for inputs in the order of `plan.inputs`. InputError names the input that does not fit."""
        try:
            context = self._contexts.pop()
        except IndexError:
            context = self._new_context()
        try:
            return self._run(context, arrays, self._segments)
        finally:
            self._contexts.append(context)

    def _run(
        self, context: Context, arrays: Sequence[Any], segments: Sequence[Callable[[Call], None]]
    ) -> list[np.ndarray]:
        if len(arrays) != len(self._inputs):
            raise self._wrong_count(len(arrays))
        words = context.words
        held: list[np.ndarray] = []
        for (dtype, shape, word, itemsize), array in zip(self._inputs, arrays, strict=True):
            plain = type(array) is np.ndarray and array.dtype == dtype and array.shape == shape
            if not (plain and array.flags.c_contiguous):
                array = self._accept(len(held), array)
            address = array.__array_interface__["data"][0]
            if address % itemsize:
                array = array.copy()
                address = array.__array_interface__["data"][0]
            words[word] = address
            held.append(array)
        for number, low, high, node in self._ranges:
            check_range(self.plan.inputs[number].name, held[number], low, high, node)
        outputs: list[np.ndarray] = []
        for dtype, shape, size, word, value in self._outputs:
            out = _COPIED_LATER if value else empty_output(shape, dtype, size)
            words[word] = out.__array_interface__["data"][0]
            outputs.append(out)
        if self._debug:
            context.fill_arena()
        call = Call(self._values, context, held, outputs, self.weights, self._slots.hosts)
        for segment in segments:
            segment(call)
        for k, copied in self._copied:
            outputs[k] = call.shown(copied.value)
        return outputs

    def _new_context(self) -> Context:
        return Context(self.plan, self._runtime.driver, self._weights_address, self._debug)

    def _accept(self, number: int, value: Any) -> np.ndarray:
        port = self.plan.inputs[number]
        array = read_array(port.name, value, port.dtype)
        check_shape(port.name, array, port.shape)
        return array

    def _wrong_count(self, count: int) -> InputError:
        ports = self.plan.inputs
        name = ports[min(count, len(ports) - 1)].name if ports else "-"
        problem = f"{count} arrays were given, the model takes {len(ports)}: {', '.join(p.name for p in ports)}"
        return InputError(name, problem, code="input-count")

    # ---- measuring --------------------------------------------------------------------------------------------------
    def measure(self, arrays: Sequence[Any], seconds: float = 0.3) -> None:
        """Time every kernel and keep the times in the plan, where `explain` shows them and a saved file keeps them."""
        times = self.profile(arrays, seconds)
        kernels = tuple(
            replace(k, facts={**k.facts, "measured_s": t}) for k, t in zip(self.plan.kernels, times, strict=True)
        )
        self.plan = replace(self.plan, kernels=kernels)

    def profile(self, arrays: Sequence[Any], seconds: float = 0.2) -> tuple[float, ...]:
        """Median seconds of each kernel of the plan, measured for about the given time, a barrier after each step.

        The median, since a call that a foreign job interrupts takes a hundred times as long.
        """
        if not self.plan.kernels:  # every output is an input or a constant
            return ()
        context, rate = self._new_context(), self._runtime.ticks_per_second()
        ticks = [np.zeros(max(1, len(live_steps(s.steps))) if isinstance(s, Native) else 1, np.int64)
                 for s in self.plan.segments]  # fmt: skip
        clocks = [_Clock(s, t, self._runtime.clock) for s, t in zip(self._segments, ticks, strict=True)]
        self._run(context, arrays, clocks)
        runs, end = list[np.ndarray](), time.perf_counter() + seconds
        while len(runs) < 3 or time.perf_counter() < end:
            for t in ticks:
                t[:] = 0
            self._run(context, arrays, clocks)
            runs.append(np.concatenate(ticks))
        kernels, rows = self._rows_of_kernels(ticks), np.array(runs)
        return tuple(float(np.median(rows[:, numbers].sum(axis=1))) / rate for numbers in kernels)

    def _rows_of_kernels(self, ticks: Sequence[np.ndarray]) -> list[list[int]]:
        """For each kernel, where its steps' ticks stand in those of all segments together."""
        rows: list[list[int]] = [[] for _ in self.plan.kernels]
        first = 0
        for segment, counted in zip(self.plan.segments, ticks, strict=True):
            if isinstance(segment, Host):
                rows[segment.kernel].append(first)
            else:
                for row, number in enumerate(live_steps(segment.steps)):
                    rows[segment.steps[number].kernel].append(first + row)
            first += len(counted)
        return rows


class _Clock:
    """A segment with its ticks added up: a native one by the driver, step by step; a host one as a whole."""

    def __init__(self, segment: Segment, ticks: np.ndarray, clock: Callable[[], int]) -> None:
        self.segment, self.ticks, self.clock = segment, ticks, clock

    def __call__(self, call: Call) -> None:
        if isinstance(self.segment, HostSegment):
            start = self.clock()
            self.segment(call)
            self.ticks[0] += self.clock() - start
            return
        call.context.set_profile(self.ticks.__array_interface__["data"][0])
        try:
            self.segment(call)
        finally:
            call.context.set_profile(0)
