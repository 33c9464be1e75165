"""Recurrences over gates that are projected already: what is left of LSTM, GRU and RNN in each step of time.

    y, y_h, y_c = lstm_steps(gates, r, lengths?, h0?, c0?, p?; ...)   gates [T, B, 4H] in ONNX's order i, o, f, c
    y, y_h      = gru_steps(gates, r, bias?, lengths?, h0?; ...)    gates [T, B, 3H]: z, r, h
    y, y_h      = rnn_steps(gates, r, lengths?, h0?; ...)           gates [T, B, H]

One direction each; `reverse` goes from the last step to the first and puts every result where its input stood. r is
[gates, H (of the state), H], p is [3, H] (peepholes: what the gates i, o, f see of the cell); y is [T, B, H], y_h and
y_c are [B, H]. A row of the batch stands still, and gives zeros, from its length on; one of length 0 ends in states of
zeros. A clip bounds what goes into the gates, and not the cell on its way out (so does ONNX Runtime; the specification
leaves it open). Types are float32 or float64: whoever has half precision widens first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from opfuse.ir.dims import Dim, dims_text
from opfuse.ir.index import Index
from opfuse.ir.ops.broadcast import position
from opfuse.ir.ops.definition import Call, Kind, Operator, OperatorError, Sample
from opfuse.ir.ops.gates import SIGMOID, TANH, activated, activated_array, require_activations
from opfuse.ir.scalar import Operand, Position, Scalar, apply, cast, const, extent
from opfuse.ir.scan import Result, Scan, ScanBuilder, summed_index
from opfuse.ir.structure import Access, Axis
from opfuse.ir.types import DType, TensorType


# ---- shapes ----------------------------------------------------------------------------------------------------------
def _infer(gates: int, states: int, lengths_at: int, call: Call) -> tuple[TensorType, ...]:
    """y and the last value of each state."""
    x, r = call.type(0), call.type(1)
    if x.dtype not in (DType.F32, DType.F64) or r.dtype is not x.dtype:
        raise OperatorError(f"gates are {x.dtype.value} and weights {r.dtype.value}: both must be f32, or both f64")
    if r.rank != 3 or x.rank != 3 or r.shape[0] != gates:
        raise OperatorError(f"weights must be [{gates}, H, H], got [{dims_text(r.shape)}]")
    (time, batch, columns), hidden = x.shape, r.shape[2]
    if r.shape[1] != hidden or columns != gates * hidden:
        raise OperatorError(f"gates [{dims_text(x.shape)}] do not fit weights [{dims_text(r.shape)}]")
    if call.has(lengths_at) and (call.shape(lengths_at) != (batch,) or not call.type(lengths_at).dtype.is_integer):
        raise OperatorError(f"lengths must be {batch} integers, got {call.type(lengths_at)}")
    for k in range(lengths_at + 1, lengths_at + 1 + states):
        if call.has(k) and call.type(k) != TensorType(x.dtype, (batch, hidden)):
            raise OperatorError(f"the first state is {call.type(k)}, not {TensorType(x.dtype, (batch, hidden))}")
    last = TensorType(x.dtype, (batch, hidden))
    return (TensorType(x.dtype, (time, batch, hidden)), *(last for _ in range(states)))


def _infer_lstm(call: Call) -> tuple[TensorType, ...]:
    require_activations(call["activations"], 3)
    types = _infer(4, 2, 2, call)
    expected = TensorType(types[0].dtype, (3, types[0].shape[2]))
    if call.has(5) and call.type(5) != expected:
        raise OperatorError(f"peepholes are {call.type(5)}, must be {expected}")
    return types


def _infer_gru(call: Call) -> tuple[TensorType, ...]:
    require_activations(call["activations"], 2)
    if call.has(2) and (not call["linear_before_reset"] or call.shape(2) != (call.shape(1)[2],)):
        raise OperatorError("a bias of the recurrence is for linear_before_reset, one number a column")
    return _infer(3, 1, 3, call)


def _infer_rnn(call: Call) -> tuple[TensorType, ...]:
    require_activations(call["activations"], 1)
    return _infer(1, 1, 2, call)


# ---- steps -----------------------------------------------------------------------------------------------------------
class _Steps:
    """The parts that the three recurrences share: gates, weights, states, lengths, results."""

    def __init__(self, call: Call, lengths_at: int) -> None:
        (time, batch, _), hidden = call.shape(0), call.shape(1)[2]
        self.call, self.lengths_at, self.dtype = call, lengths_at, call.type(0).dtype
        self.hidden: Dim = hidden
        self.time, self.row, self.column = Axis("t", time), Axis("b", batch), Axis("h", hidden)
        self.place = (position(self.row), self.column.index)
        self.at = Index(((self.time.index.terms[0][0], -1),), time - 1) if call["reverse"] else self.time.index
        self.b = ScanBuilder(self.time, (self.row, self.column))
        self.length: Scalar | None = None
        self.runs: Scalar | None = None  # does the row of the batch still run? None where all do, always
        if call.has(lengths_at):
            self.length = cast(self.b.read(lengths_at, self.place[:1], call.type(lengths_at).dtype), DType.I64)
            now: Scalar = Position(self.time.name)
            now = apply("sub", extent(time - 1), now) if call["reverse"] else now
            self.runs = self.b.value(apply("lt", now, self.length))

    def gate(self, number: int) -> Operand:
        """A projected gate at this step."""
        column = self.place[1] + self.hidden * number
        return self.b.read(0, (self.at, self.place[0], column), self.dtype)

    def state(self, k: int) -> Operand:
        if not self.call.has(k):
            return self.b.carry(const(0, self.dtype), self.dtype)
        if self.length is None:
            return self.b.carry(Access(k, self.place), self.dtype)
        given, zero = self.b.read(k, self.place, self.dtype), const(0, self.dtype)
        some = apply("lt", const(0, DType.I64), self.length)
        return self.b.carry(apply("select", some, given, zero), self.dtype)

    def product(self, value: Operand, number: int, start: Scalar) -> Operand:
        weight = Access(1, (Index((), number), summed_index(), self.place[1]))
        return self.b.product(value, weight, start)

    def seeing(self, gate: Scalar, number: int, cell: Scalar) -> Scalar:
        """The sum of a gate with what it sees of the cell through its peephole, where there are any."""
        if not self.call.has(5):
            return gate
        weight = self.b.read(5, (Index((), number), self.place[1]), self.dtype)
        return apply("add", gate, apply("mul", weight, cell))

    def kept(self, new: Scalar, old: Scalar) -> Scalar:
        """The new value where the row still runs."""
        return new if self.runs is None else apply("select", self.runs, new, old)

    def build(self, output: Scalar, states: Sequence[Operand]) -> Scan:
        shown = self.b.value(self.kept(output, const(0, self.dtype)))
        each = Result(shown.index, (self.at, *self.place))
        scan = self.b.build((each, *(Result(s.index, self.place, last=True) for s in states)))
        scan.check()
        return scan


def _one_minus(x: Scalar) -> Scalar:
    return apply("sub", const(1, x.dtype), x)


def _lstm(call: Call) -> Scan:
    s, clip = _Steps(call, 2), call["clip"]
    f, g, last = call["activations"]
    h, c = s.state(3), s.state(4)
    sums = [s.product(h, k, s.gate(k)) for k in range(4)]
    into = s.b.value(activated(f, s.seeing(sums[0], 0, c), clip))
    forget = _one_minus(into) if call["input_forget"] else activated(f, s.seeing(sums[2], 2, c), clip)
    new = apply("add", apply("mul", s.b.value(forget), c), apply("mul", into, activated(g, sums[3], clip)))
    cell = s.b.value(new)
    out = s.b.value(activated(f, s.seeing(sums[1], 1, cell), clip))
    state = s.b.value(apply("mul", out, activated(last, cell, None)))
    s.b.follow(c, s.kept(cell, c))
    s.b.follow(h, s.kept(state, h))
    return s.build(state, (h, c))


def _gru(call: Call) -> Scan:
    s, clip = _Steps(call, 3), call["clip"]
    f, g = call["activations"]
    h = s.state(4)
    update = s.b.value(activated(f, s.product(h, 0, s.gate(0)), clip))
    reset = s.b.value(activated(f, s.product(h, 1, s.gate(1)), clip))
    if call["linear_before_reset"]:
        start: Scalar = s.b.read(2, s.place[1:], s.dtype) if call.has(2) else const(0, s.dtype)
        inner: Scalar = apply("add", s.gate(2), apply("mul", reset, s.product(h, 2, start)))
    else:
        inner = s.product(s.b.value(apply("mul", reset, h)), 2, s.gate(2))
    new = activated(g, inner, clip)
    state = s.b.value(apply("add", apply("mul", _one_minus(update), new), apply("mul", update, h)))
    s.b.follow(h, s.kept(state, h))
    return s.build(state, (h,))


def _rnn(call: Call) -> Scan:
    s = _Steps(call, 2)
    h = s.state(3)
    (f,) = call["activations"]
    state = s.b.value(activated(f, s.product(h, 0, s.gate(0)), call["clip"]))
    s.b.follow(h, s.kept(state, h))
    return s.build(state, (h,))


# ---- oracles ---------------------------------------------------------------------------------------------------------
Step = Callable[[Any, tuple[Any, ...]], tuple[Any, tuple[Any, ...]]]  # (gates of a row, states) -> (output, states)


def _walk(gates: Any, lengths: Any, states: Sequence[Any], reverse: bool, hidden: int, step: Step) -> tuple[Any, ...]:
    """Each row of the batch by itself, over the steps that it has."""
    time, batch, _ = gates.shape
    y = np.zeros((time, batch, hidden), gates.dtype)
    lasts = [np.zeros((batch, hidden), gates.dtype) if s is None else s.copy() for s in states]
    for row in range(batch):
        count = time if lengths is None else int(np.clip(lengths[row], 0, time))
        state = tuple(s[row] if count or lengths is None else np.zeros_like(s[row]) for s in lasts)
        for t in reversed(range(count)) if reverse else range(count):
            y[t, row], state = step(gates[t, row], state)
        for s, value in zip(lasts, state, strict=True):
            s[row] = value
    return (y, *lasts)


def _lstm_array(
    attrs: Any, gates: Any, r: Any, lengths: Any = None, h0: Any = None, c0: Any = None, p: Any = None
) -> Any:
    f, g, last = attrs["activations"]
    clip, hidden = attrs["clip"], r.shape[2]
    pi, po, pf = np.zeros((3, hidden), gates.dtype) if p is None else p

    def step(x: Any, states: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        h, c = states
        i, o, forget, new = np.split(x + np.concatenate([h @ w for w in r]), 4)
        i = activated_array(f, i + pi * c, clip)
        forget = 1 - i if attrs["input_forget"] else activated_array(f, forget + pf * c, clip)
        c = forget * c + i * activated_array(g, new, clip)
        h = activated_array(f, o + po * c, clip) * activated_array(last, c, None)
        return h, (h, c)

    return _walk(gates, lengths, (h0, c0), attrs["reverse"], hidden, step)


def _gru_array(attrs: Any, gates: Any, r: Any, bias: Any = None, lengths: Any = None, h0: Any = None) -> Any:
    f, g = attrs["activations"]
    clip, hidden = attrs["clip"], r.shape[2]
    bias = np.zeros(hidden, gates.dtype) if bias is None else bias

    def step(x: Any, states: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        (h,) = states
        xz, xr, xh = np.split(x, 3)
        z, reset = activated_array(f, xz + h @ r[0], clip), activated_array(f, xr + h @ r[1], clip)
        mixed = reset * (h @ r[2] + bias) if attrs["linear_before_reset"] else (reset * h) @ r[2]
        h = z * h + (1 - z) * activated_array(g, xh + mixed, clip)
        return h, (h,)

    return _walk(gates, lengths, (h0,), attrs["reverse"], hidden, step)


def _rnn_array(attrs: Any, gates: Any, r: Any, lengths: Any = None, h0: Any = None) -> Any:
    def step(x: Any, states: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        h = activated_array(attrs["activations"][0], x + states[0] @ r[0], attrs["clip"])
        return h, (h,)

    return _walk(gates, lengths, (h0,), attrs["reverse"], r.shape[2], step)


def _oracle(array: Callable[..., Any]) -> Callable[..., Any]:
    return lambda attrs, arrays: array(attrs, *arrays)


def _flops(functions: int, call: Call) -> Dim:
    """Products and the formulas of the gates."""
    time, batch, columns = call.shape(0)
    return time * batch * columns * (2 * call.shape(1)[2] + functions)


_GATES = {"reverse": False, "clip": None}
_LENGTHS = np.array([3, 0, 5], np.int32)
_STEP = (5, 3, 28), (4, 7, 7)

OPERATORS: tuple[Operator, ...] = (
    Operator(
        "lstm_steps", Kind.PHASED, ("gates", "r", "lengths?", "h0?", "c0?", "p?"), _infer_lstm, _oracle(_lstm_array),
        {"activations": (SIGMOID, TANH, TANH), "input_forget": False, **_GATES}, scan=_lstm, outputs=3,
        flops=partial(_flops, 4),
        samples=(
            Sample(_STEP),
            Sample((*_STEP, None, (3, 7), (3, 7)), {"reverse": True}),
            Sample((*_STEP, _LENGTHS, (3, 7), (3, 7))),
            Sample((*_STEP, _LENGTHS, (3, 7), (3, 7)), {"reverse": True, "clip": 0.4}),
            Sample(((1, 1, 80), (4, 20, 20)), {"input_forget": True}),
            Sample((*_STEP, None, (3, 7), (3, 7), (3, 7))),
            Sample((*_STEP, _LENGTHS, None, None, (3, 7)), {"reverse": True, "clip": 0.4, "input_forget": True}),
            Sample(((3, 1, 132), (4, 33, 33)), {"activations": (("hard_sigmoid", 0.2, 0.5), TANH, ("relu", 0.0, 0.0))}),
        ),
    ),
    Operator(
        "gru_steps", Kind.PHASED, ("gates", "r", "bias?", "lengths?", "h0?"), _infer_gru, _oracle(_gru_array),
        {"activations": (SIGMOID, TANH), "linear_before_reset": False, **_GATES}, scan=_gru, outputs=2,
        flops=partial(_flops, 4),
        samples=(
            Sample(((5, 3, 21), (3, 7, 7))),
            Sample(((5, 3, 21), (3, 7, 7), None, None, (3, 7)), {"reverse": True}),
            Sample(((5, 3, 21), (3, 7, 7), (7,), None, (3, 7)), {"linear_before_reset": True}),
            Sample(((5, 3, 21), (3, 7, 7), None, _LENGTHS, (3, 7)), {"linear_before_reset": True, "reverse": True}),
            Sample(((5, 3, 21), (3, 7, 7), None, _LENGTHS), {"clip": 0.5}),
            Sample(((4, 1, 120), (3, 40, 40)), {"activations": (("softsign", 0.0, 0.0), ("elu", 1.0, 0.0))}),
        ),
    ),
    Operator(
        "rnn_steps", Kind.PHASED, ("gates", "r", "lengths?", "h0?"), _infer_rnn, _oracle(_rnn_array),
        {"activations": (TANH,), **_GATES}, scan=_rnn, outputs=2, flops=partial(_flops, 2),
        samples=(
            Sample(((5, 3, 7), (1, 7, 7))),
            Sample(((5, 3, 7), (1, 7, 7), _LENGTHS, (3, 7)), {"reverse": True}),
            *(
                Sample(((3, 2, 17), (1, 17, 17), None, (2, 17)), {"activations": ((name, 0.5, 0.25),)})
                for name in ("affine", "leaky_relu", "thresholded_relu", "scaled_tanh", "softplus", "sigmoid", "elu")
            ),
        ),
    ),
)  # fmt: skip
