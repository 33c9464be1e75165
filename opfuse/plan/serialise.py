"""Plans as plain data: what JSON can hold, and back again.

    plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from opfuse.ir.types import DType
from opfuse.plan.plan import Host, KernelInfo, Native, Place, Plan, Port, Segment, Step, Value, WeightPiece


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Nested lists and dicts of numbers and strings; dtypes by name, a place as [area, offset, index, bytes]."""
    data = {
        "inputs": [_port(p) for p in plan.inputs],
        "outputs": [_port(p) for p in plan.outputs],
        "values": [_value(v) for v in plan.values],
        "segments": [_segment(s) for s in plan.segments],
        "kernels": [asdict(k) for k in plan.kernels],
        "weights": [[w.name, w.offset, w.bytes, w.packing] for w in plan.weights],
    }
    for name in _PLAIN:
        data[name] = getattr(plan, name)
    return json.loads(json.dumps(data, default=_plain))  # type: ignore[no-any-return]


_PLAIN = ("arena_bytes", "weights_bytes", "scratch_bytes", "threads", "bytes_moved", "peak_memory", "facts")


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """The plan again; KeyError, TypeError or ValueError where the data is no plan."""
    return Plan(
        inputs=tuple(_port_from(p) for p in data["inputs"]),
        outputs=tuple(_port_from(p) for p in data["outputs"]),
        values=tuple(_value_from(*v) for v in data["values"]),
        segments=tuple(_segment_from(s) for s in data["segments"]),
        kernels=tuple(_kernel_from(k) for k in data["kernels"]),
        weights=tuple(WeightPiece(*w) for w in data["weights"]),
        **{name: data[name] for name in _PLAIN},
    )


def _value(v: Value) -> list[Any]:
    return [v.name, v.dtype.value, list(v.shape), _place(v.place), list(v.strides), list(v.holds)]


def _value_from(name: str, dtype: str, shape: Any, place: Any, strides: Any, holds: Any) -> Value:
    return Value(name, DType(dtype), tuple(shape), Place(*place), tuple(strides), tuple(holds))


def _place(p: Place) -> list[Any]:
    return [p.area, p.offset, p.index, p.bytes]


def _port(p: Port) -> list[Any]:
    return [p.name, p.dtype.value, list(p.shape), p.value, list(p.range) if p.range else None]


def _port_from(data: Any) -> Port:
    name, dtype, shape, value, *rest = data
    low_high_node = tuple(rest[0]) if rest and rest[0] else None
    return Port(name, DType(dtype), tuple(shape), value, low_high_node)


def _segment(segment: Segment) -> dict[str, Any]:
    if isinstance(segment, Host):
        return {"host": segment.kernel, "inputs": list(segment.inputs), "outputs": list(segment.outputs)}
    return {"native": segment.symbol, "steps": [_step(s) for s in segment.steps]}


def _step(s: Step) -> list[Any]:
    places = [_place(a) for a in s.arguments]
    return [s.function, s.kernel, places, list(s.integers), s.tiles, s.chunk, s.scratch_bytes, s.barrier]


def _segment_from(data: Mapping[str, Any]) -> Segment:
    if "host" in data:
        return Host(data["host"], tuple(data["inputs"]), tuple(data["outputs"]))
    steps = (
        Step(function, kernel, tuple(Place(*a) for a in arguments), tuple(integers), tiles, chunk, scratch, barrier)
        for function, kernel, arguments, integers, tiles, chunk, scratch, barrier in data["steps"]
    )
    return Native(tuple(steps), data["native"])


def _kernel_from(data: Mapping[str, Any]) -> KernelInfo:
    lists = {k: tuple(data[k]) for k in ("nodes", "reads", "writes")}
    return KernelInfo(**{**data, **lists})


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's own; anything else as its text."""
    return value.item() if hasattr(value, "item") else str(value)
