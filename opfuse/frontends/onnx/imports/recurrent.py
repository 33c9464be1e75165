"""LSTM, GRU and RNN of every version.

    LSTM(X, W, R, B, , h, c, direction="bidirectional")  -> lstm(x, w, r, b, -, h0, c0)

Resolved here: names of activations with the numbers that ONNX hands out to them in order, their defaults, the layout
with the batch first, a clip of zero (none), the flags. A state fed for one row holds the batch to one row.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from onnx import AttributeProto, helper

from opfuse.frontends.onnx.call import Call, InvalidNode
from opfuse.frontends.onnx.equal_dims import require_equal
from opfuse.frontends.onnx.imports.definition import Import
from opfuse.ir.dims import Dim
from opfuse.ir.ops.gates import Activation
from opfuse.ir.ops.recurrent import DIRECTIONS, GRU, LENGTHS, LSTM, PEEPHOLES, RNN, STATES, Cell

# ONNX's name in lower case -> ours, and the defaults of the numbers that it takes (those of the operator of that name).
_ACTIVATIONS: Mapping[str, tuple[str, tuple[float, ...]]] = {
    "relu": ("relu", ()), "tanh": ("tanh", ()), "sigmoid": ("sigmoid", ()), "softsign": ("softsign", ()),
    "softplus": ("softplus", ()), "affine": ("affine", (1.0, 0.0)), "leakyrelu": ("leaky_relu", (0.01,)),
    "thresholdedrelu": ("thresholded_relu", (1.0,)), "scaledtanh": ("scaled_tanh", (1.0, 1.0)),
    "hardsigmoid": ("hard_sigmoid", (0.2, 0.5)), "elu": ("elu", (1.0,)),
}  # fmt: skip
_DEFAULTS: Mapping[str, tuple[str, ...]] = {
    "lstm_steps": ("sigmoid", "tanh", "tanh"), "gru_steps": ("sigmoid", "tanh"), "rnn_steps": ("tanh",),
}  # fmt: skip


def recurrence(call: Call, op: str, cell: Cell) -> tuple[str | None, ...]:
    """Y, Y_h and, for an LSTM, Y_c."""
    direction = call.string_attribute("direction", "forward")
    if direction not in DIRECTIONS:
        raise InvalidNode(f"its direction {direction!r} is none of {', '.join(DIRECTIONS)}")
    batch_first = bool(call.int_attribute("layout", 0)) if call.version >= 14 else False
    inputs = [call.optional(k) for k in range(STATES + cell.states)]
    if batch_first:
        inputs = [_swapped(call, v, (1, 0, 2)) if k in (0, *range(STATES, 7)) else v for k, v in enumerate(inputs)]
    inputs = _fitted(call, inputs, len(DIRECTIONS[direction]))
    if cell is LSTM and call.has(PEEPHOLES):
        inputs.append(call.input(PEEPHOLES))
    attrs: dict[str, Any] = {
        "direction": direction, "activations": _activations(call, cell, len(DIRECTIONS[direction])),
        "clip": call.float_attribute("clip", 0.0) or None,
    }  # fmt: skip
    if cell is LSTM:
        attrs["input_forget"] = bool(call.int_attribute("input_forget", 0))
    if cell is GRU:
        attrs["linear_before_reset"] = bool(call.int_attribute("linear_before_reset", 0))
    hidden = call.shape(call.input(2))[-1]
    if call.attribute("hidden_size") is not None and call.int_attribute("hidden_size") != hidden:
        raise InvalidNode(f"its hidden_size is {call.int_attribute('hidden_size')}, its weights are for {hidden}")
    made = call.graph.producer(call.emit(op, inputs, **attrs))
    assert made is not None
    results = list(made.outputs)
    if batch_first:
        results = [call.transpose(results[0], (2, 0, 1, 3)), *(call.transpose(r, (1, 0, 2)) for r in results[1:])]
    return tuple(results[: len(call.node.output)])


def _swapped(call: Call, value: str | None, perm: tuple[int, ...]) -> str | None:
    return None if value is None else call.transpose(value, perm)


def _fitted(call: Call, inputs: list[str | None], directions: int) -> list[str | None]:
    """The inputs, each dimension held to what the others say it must be: states and lengths follow x and r."""
    x, r = call.input(0), call.input(2)
    if call.rank(x) != 3 or call.rank(r) != 3:
        raise InvalidNode(f"its inputs X and R have rank {call.rank(x)} and {call.rank(r)}, and must have rank 3")
    given = inputs[0]
    assert given is not None
    _, batch, width = call.shape(given)
    require_equal(width, call.shape(call.input(1))[-1])
    expected: list[tuple[int, tuple[Dim, ...]]] = [(LENGTHS, (batch,))]
    expected += [(k, (directions, batch, call.shape(r)[-1])) for k in range(STATES, len(inputs))]
    for k, shape in expected:
        value = inputs[k]
        if value is None:
            continue
        if call.rank(value) != len(shape):
            raise InvalidNode(f"its input {k} has rank {call.rank(value)}, and must have rank {len(shape)}")
        for have, want in zip(call.shape(value), shape, strict=True):
            require_equal(have, want)
        inputs[k] = call.reshape(value, shape) if _open(call.shape(value), shape) else value
    return inputs


def _open(have: tuple[Dim, ...], want: tuple[Dim, ...]) -> bool:
    """Do they differ by dimensions that are not both numbers, so that a reshape must hold one to the other?"""
    return any(a != b and not (isinstance(a, int) and isinstance(b, int)) for a, b in zip(have, want, strict=True))


def _activations(call: Call, cell: Cell, directions: int) -> tuple[Activation, ...]:
    """Each with its two numbers, taken from the lists in order by those that have such a number."""
    names = _list(call, "activations", AttributeProto.STRINGS) or _DEFAULTS[cell.steps] * directions
    alphas, betas = (list(_list(call, k, AttributeProto.FLOATS)) for k in ("activation_alpha", "activation_beta"))
    if len(names) != cell.functions * directions:
        raise InvalidNode(f"it has {len(names)} activations, and must have {cell.functions * directions}")
    found: list[Activation] = []
    for name in names:
        if name.lower() not in _ACTIVATIONS:
            call.unsupported(f"the activation {name!r} is not supported")
        ours, numbers = _ACTIVATIONS[name.lower()]
        mine = [*numbers, 0.0, 0.0][:2]
        for k, given in enumerate((alphas, betas)):
            if k < len(numbers) and given:
                mine[k] = float(given.pop(0))
        found.append((ours, mine[0], mine[1]))
    return tuple(found)


def _list(call: Call, name: str, kind: int) -> tuple[Any, ...]:
    """An attribute that is a list, empty where it is left out."""
    found = call.attribute(name)
    if found is None:
        return ()
    if found.type != kind:
        raise InvalidNode(f"its attribute {name!r} must be of type {AttributeProto.AttributeType.Name(kind).lower()}")
    return tuple(v.decode() if isinstance(v, bytes) else v for v in helper.get_attribute_value(found))


_PARTS = ("transpose", "reshape")
IMPORTS: tuple[Import, ...] = (
    Import("LSTM", (7, 14, 22), partial(recurrence, op="lstm", cell=LSTM), ("lstm", *_PARTS)),
    Import("GRU", (7, 14, 22), partial(recurrence, op="gru", cell=GRU), ("gru", *_PARTS)),
    Import("RNN", (7, 14, 22), partial(recurrence, op="rnn", cell=RNN), ("rnn", *_PARTS)),
)
