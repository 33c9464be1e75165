"""A plan as text: steps with the bytes that they read and write, epochs parted by lines, for golden tests and for eyes.

    print(plan_text(model.plan))
"""

from __future__ import annotations

from collections.abc import Iterator

from opfuse.plan.plan import Host, Place, Plan, Step


def plan_text(plan: Plan) -> str:
    lines = [
        f"plan: {plan.threads} threads, arena {plan.arena_bytes}, weights {plan.weights_bytes}, "
        f"scratch {plan.scratch_bytes}",
        *(f"  input {p.name}: {p.dtype.value}{list(p.shape)}" for p in plan.inputs),
        *(f"  output {p.name}: {p.dtype.value}{list(p.shape)} shows {p.value}" for p in plan.outputs),
    ]
    for segment in plan.segments:
        if isinstance(segment, Host):
            name = plan.kernels[segment.kernel].name
            lines.append(f"  host {name}({', '.join(segment.inputs)}) -> {', '.join(segment.outputs)}")
            continue
        lines.append(f"  native {segment.symbol}")
        for step in segment.steps:
            lines += step_lines(step)
    return "\n".join(lines) + "\n"


def step_lines(step: Step) -> Iterator[str]:
    places = ", ".join(place_text(p) for p in step.arguments)
    how = "one thread" if step.solo else f"tiles {step.tiles} by {step.chunk}"
    yield f"    {step.function}({places}) {how}"
    if step.barrier:
        yield "    ---- barrier"


def place_text(place: Place) -> str:
    if place.area in ("arena", "weights"):
        return f"{place.area}+{place.offset}:{place.bytes}"
    return f"{place.area}{place.index}" + (f"+{place.offset}" if place.offset else "")
