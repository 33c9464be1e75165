"""Loop and Scan whose steps can be counted, written out step by step as plain nodes.

    steps_of(call)    -> (nodes of the first step, its condition), ..., (nodes that join what the steps have made, "")

Each step is a copy of the body: its inputs are the states that the step before has made, and for a Scan the slices of
its sequences. What every step adds to a result is joined at the end. After each step of a Loop its condition must be
known, and is sent back: a step follows where it is true.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import GraphProto, NodeProto, helper, numpy_helper

from opfuse.frontends.onnx.call import Call, InvalidNode
from opfuse.frontends.onnx.functions import Inlined, body_nodes
from opfuse.frontends.onnx.model_file import node_name
from opfuse.ir.dims import Dim

LONGEST = 128  # steps: each is a copy of the body
# Nodes of a step, and the name of the value that says whether another one follows; the answer is sent back.
Steps = Generator[tuple[Inlined, str], bool, None]


@dataclass(frozen=True)
class Direction:
    """How a Scan walks along a sequence, or writes one."""

    axis: int
    backward: bool


def steps_of(call: Call) -> Steps:
    """The steps of a Loop or a Scan; Unsupported where how many there are depends on data, or they are too many."""
    return _counted(_scan(call) if call.node.op_type == "Scan" else _loop(call), call)


def _counted(steps: Steps, call: Call) -> Steps:
    """The same; Unsupported in place of the step that is too many."""
    number, step = 0, next(steps)
    while True:
        if number > LONGEST:  # the last one joins the results
            call.unsupported(f"it has more than {LONGEST} steps")
        goes = yield step
        number += 1
        try:
            step = steps.send(goes)
        except StopIteration:
            return


def _body(node: NodeProto) -> GraphProto:
    body: GraphProto = next(a.g for a in node.attribute if a.name == "body")
    return body


# ---- Loop ------------------------------------------------------------------------------------------------------------
def _loop(call: Call) -> Steps:
    """Inputs are the number of steps, a condition, the first states; outputs the last states, then the results."""
    node, goes, most = call.node, call.truth(call.optional(1)) if call.has(1) else True, _most_steps(call)
    states, place = list(node.input[2:]), node_name(node)
    if (not goes or most <= 0) and any(node.output[len(states) :]):
        call.unsupported("it has no steps, and what they add up to has no known shape")
    made: list[list[str]] = [[] for _ in node.output[len(states) :]]
    step = 0
    while goes and step < most:
        numbers = [_constant(node, f"{place}/{step}/number", np.array(step)),
                   _constant(node, f"{place}/{step}/goes", np.array(True))]  # fmt: skip
        given = [n.output[0] for n in numbers]
        nodes, outputs = body_nodes(_body(node), place, f"{place}/{step}", [*given, *states])
        goes = yield Inlined((*numbers, *nodes.nodes), {}), outputs[0]
        for parts, part in zip(made, outputs[1 + len(states) :], strict=False):
            parts.append(part)
        states = list(outputs[1 : 1 + len(states)])
        step += 1
    forward = [Direction(0, backward=False)] * len(made)
    yield Inlined(tuple(_ends(call, states, made, forward)), {}), ""


def _most_steps(call: Call) -> int:
    if not call.has(0):
        return LONGEST + 1
    (most,) = call.dims(0)
    if not isinstance(most, int):
        call.needs_shapes("how many steps it has depends on input shapes")
    return most


# ---- Scan ------------------------------------------------------------------------------------------------------------
def _scan(call: Call) -> Steps:
    """Inputs are the first states, then the sequences; outputs the last states, then the joined results."""
    if call.version < 9:
        call.unsupported("control flow of this version is not supported")
    node, count, place = call.node, call.int_attribute("num_scan_inputs"), node_name(call.node)
    first = len(node.input) - count
    sequences = _directions(call, "scan_input", [call.rank(call.input(first + k)) for k in range(count)])
    results = _directions(call, "scan_output", [None] * (len(node.output) - first))
    states, made = list(node.input[:first]), [list[str]() for _ in results]
    length = _length(call, first, sequences)
    for step in range(length):
        taken, elements = _elements(node, step, length, sequences)
        nodes, outputs = body_nodes(_body(node), place, f"{place}/{step}", [*states, *elements])
        yield Inlined((*taken, *nodes.nodes), {}), ""
        states = list(outputs[:first])
        for parts, part in zip(made, outputs[first:], strict=True):
            parts.append(part)
    yield Inlined(tuple(_ends(call, states, made, results)), {}), ""


def _length(call: Call, first: int, sequences: Sequence[Direction]) -> int:
    found: Dim = call.shape(call.input(first))[sequences[0].axis]
    if not isinstance(found, int):
        call.needs_shapes(f"how many steps it has depends on {found}")
    if found == 0:
        call.unsupported("it has no steps, and what they add up to has no known shape")
    return found


def _directions(call: Call, kind: str, ranks: Sequence[int | None]) -> tuple[Direction, ...]:
    """An axis counts from the end only where the rank is known: that of a result is not, yet."""
    axes = call.ints_attribute(f"{kind}_axes") or (0,) * len(ranks)
    backward = call.ints_attribute(f"{kind}_directions") or (0,) * len(ranks)
    if len(axes) != len(ranks) or len(backward) != len(ranks):
        raise InvalidNode(f"it has {len(ranks)} of {kind}, and {len(axes)} axes and {len(backward)} directions")
    whole = (a if rank is None else call.axis(a, rank) for a, rank in zip(axes, ranks, strict=True))
    return tuple(Direction(a, bool(b)) for a, b in zip(whole, backward, strict=True))


def _elements(
    node: NodeProto, step: int, length: int, sequences: Sequence[Direction]
) -> tuple[list[NodeProto], list[str]]:
    """The nodes that take this step's element of each sequence, and the elements' names."""
    nodes, names = list[NodeProto](), list[str]()
    place, first = f"{node_name(node)}/{step}", len(node.input) - len(sequences)
    for k, way in enumerate(sequences):
        at = _constant(node, f"{place}/place_{k}", np.array(length - 1 - step if way.backward else step))
        names.append(f"{place}/element_{k}")
        nodes += [at, helper.make_node("Gather", [node.input[first + k], at.output[0]], [names[-1]], axis=way.axis,
                                       name=node_name(node))]  # fmt: skip
    return nodes, names


# ---- what is left ----------------------------------------------------------------------------------------------------
def _ends(call: Call, states: Sequence[str], made: Sequence[Sequence[str]],
          ways: Sequence[Direction]) -> list[NodeProto]:  # fmt: skip
    """The nodes that give the loop's own names to its last states and to its joined results."""
    node = call.node
    ends = [_copy(node, s, o) for s, o in zip(states, node.output, strict=False) if o]
    for parts, way, name in zip(made, ways, node.output[len(states) :], strict=False):
        if name:
            ends += _joined(node, call.opset, parts[::-1] if way.backward else parts, way.axis, name)
    return ends


def _joined(node: NodeProto, opset: int, parts: Sequence[str], axis: int, name: str) -> list[NodeProto]:
    """The parts along a new axis."""
    nodes, rows = list[NodeProto](), list[str]()
    axes = _constant(node, f"{name}/axis", np.array([axis]))
    for k, part in enumerate(parts):
        rows.append(f"{name}/part_{k}")
        if opset < 13:
            nodes.append(helper.make_node("Unsqueeze", [part], [rows[-1]], name=node_name(node), axes=[axis]))
        else:
            nodes.append(helper.make_node("Unsqueeze", [part, axes.output[0]], [rows[-1]], name=node_name(node)))
    return [axes, *nodes, helper.make_node("Concat", rows, [name], name=node_name(node), axis=axis)]


def _copy(node: NodeProto, value: str, name: str) -> NodeProto:
    return helper.make_node("Identity", [value], [name], name=node_name(node))


def _constant(node: NodeProto, name: str, value: np.ndarray) -> NodeProto:
    return helper.make_node("Constant", [], [name], name=node_name(node), value=numpy_helper.from_array(value))
