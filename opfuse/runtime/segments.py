"""The segments of a plan as things to call, and the arrays of one call under the names of the plan's values.

    call = Call(plan, context, inputs, outputs, weights)
    for segment in segments: segment(call)
    call.array("x")         # a view of the bytes that the value has now
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opfuse.codegen.llvm.context import Slots
from opfuse.errors import OpfuseError
from opfuse.plan.plan import Host, Value
from opfuse.runtime.cpu import Context

HostFunction = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]


class Call:
    """State of one call: its context, its arrays, and what host functions made so far."""

    def __init__(
        self, values: dict[str, Value], context: Context, inputs: list[np.ndarray], outputs: list[np.ndarray],
        weights: np.ndarray, hosts: int,
    ) -> None:  # fmt: skip
        self.values, self.context, self.inputs, self.outputs, self.weights = values, context, inputs, outputs, weights
        self.hosts: list[np.ndarray | None] = [None] * hosts

    def array(self, name: str) -> np.ndarray:
        """The value's bytes as an array: a view, read-only where a function must not write."""
        value = self.values[name]
        place = value.place
        match place.area:
            case "arena" | "weights":
                block = self.context.arena if place.area == "arena" else self.weights
            case "input":
                block = self.inputs[place.index]
            case "output":
                block = self.outputs[place.index]
            case _:
                made = self.hosts[place.index]
                assert made is not None, f"{name!r} is read before it is made"
                if -1 in value.shape:
                    return made
                block = made
        strides = [s * value.dtype.bytes for s in value.strides] if value.strides else None
        array = np.ndarray(value.shape, value.dtype.numpy, block.reshape(-1).view(np.uint8), place.offset, strides)
        array.flags.writeable = False
        return array

    def shown(self, name: str) -> np.ndarray:
        """A copy of the value for the caller to keep."""
        return np.array(self.array(name), order="C", copy=True)


@dataclass(frozen=True)
class NativeSegment:
    """One native call."""

    function: Any  # ctypes function: address of a context -> None

    def __call__(self, call: Call) -> None:
        self.function(call.context.address)


@dataclass(frozen=True)
class HostSegment:
    """One call of a Python function on arrays; what it returns gets base addresses, so that kernels can read it."""

    name: str
    function: HostFunction
    step: Host
    slots: Slots

    def __call__(self, call: Call) -> None:
        given = [call.array(v) for v in self.step.inputs]
        made = list(self.function(given))
        if len(made) != len(self.step.outputs):
            problem = f"host step {self.name!r} made {len(made)} values, not {len(self.step.outputs)}"
            raise OpfuseError(problem, "host-step")
        for name, array in zip(self.step.outputs, made, strict=True):
            value = call.values[name]
            array = self._owned(np.asarray(array), given)
            if array.dtype != value.dtype.numpy or not _fits(array.shape, value.shape):
                wanted = f"{value.dtype.numpy}{list(value.shape)}"
                problem = f"host step {self.name!r}: {name!r} is {array.dtype}{list(array.shape)}, not {wanted}"
                raise OpfuseError(problem, "host-step")
            call.hosts[value.place.index] = array
            address = array.__array_interface__["data"][0]
            call.context.words[self.slots.offset("host", value.place.index) // 8] = address

    @staticmethod
    def _owned(array: np.ndarray, given: Sequence[np.ndarray]) -> np.ndarray:
        """The array itself, or a copy where it may lie on bytes that the plan reuses or on the caller's inputs."""
        if not array.flags.c_contiguous or not array.flags.aligned or any(np.may_share_memory(array, g) for g in given):
            return np.array(array, order="C", copy=True)
        return array


def _fits(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Extents that depend on the data are -1 in the plan."""
    return len(shape) == len(wanted) and all(w in (-1, got) for w, got in zip(wanted, shape, strict=True))
