"""LSTM, GRU and RNN, whole: kept for matching and for peers' kernels, expanded into a product and steps of time.

    y, y_h, y_c = lstm(x, w, r, b?, lengths?, h0?, c0?, p?; direction, activations, clip, input_forget)
    y, y_h      = gru(x, w, r, b?, lengths?, h0?; direction, activations, clip, linear_before_reset)
    y, y_h      = rnn(x, w, r, b?, lengths?, h0?; direction, activations, clip)

As in ONNX: x [T, B, I], w [D, G*H, I], r [D, G*H, H], b [D, 2*G*H], states [D, B, H], peepholes p [D, 3*H] and
y [T, D, B, H], with D directions and G gates in the order i o f c, or z r h. `activations` are (name, alpha, beta), one
for each gate function of each direction, in that order. The input's part of the gates does not wait for the state: it
is one matrix product for all steps, and `lstm_steps` and its like (`recurrent_steps`) do what is left. Half precision
is computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from opfuse.ir.dims import dims_text
from opfuse.ir.ops.broadcast import accumulator
from opfuse.ir.ops.definition import REQUIRED, Call, Kind, Operator, OperatorError, Sample
from opfuse.ir.ops.gates import SIGMOID, TANH, activated_array, require_activations
from opfuse.ir.types import TensorType

if TYPE_CHECKING:
    from opfuse.ir.graph import Graph

Names = tuple[str | None, ...]
DIRECTIONS: Mapping[str, tuple[bool, ...]] = {  # -> for each direction: does it run backwards?
    "forward": (False,), "reverse": (True,), "bidirectional": (False, True),
}  # fmt: skip
LENGTHS, STATES, PEEPHOLES = 4, 5, 7  # places of the optional inputs


@dataclass(frozen=True)
class Cell:
    """What tells the three apart: gates, activation functions, states, and the operator of their steps."""

    steps: str
    gates: int
    functions: int
    states: int


LSTM, GRU, RNN = Cell("lstm_steps", 4, 3, 2), Cell("gru_steps", 3, 2, 1), Cell("rnn_steps", 1, 1, 1)


# ---- shapes ----------------------------------------------------------------------------------------------------------
def _infer(cell: Cell, call: Call) -> tuple[TensorType, ...]:
    if call["direction"] not in DIRECTIONS:
        raise OperatorError(f"direction {call['direction']!r} is none of {', '.join(DIRECTIONS)}")
    directions = len(DIRECTIONS[call["direction"]])
    require_activations(call["activations"], cell.functions * directions)
    x, w, r = call.type(0), call.type(1), call.type(2)
    if not x.dtype.is_float or x.rank != 3 or w.rank != 3 or r.rank != 3:
        raise OperatorError(f"x, w and r must be floats of rank 3, got {x}, {w}, {r}")
    time, batch, width = x.shape
    hidden = r.shape[2]
    columns = cell.gates * hidden
    state = TensorType(x.dtype, (directions, batch, hidden))
    expected = {
        1: TensorType(x.dtype, (directions, columns, width)), 2: TensorType(x.dtype, (directions, columns, hidden)),
        3: TensorType(x.dtype, (directions, 2 * columns)), **{STATES + k: state for k in range(cell.states)},
        PEEPHOLES: TensorType(x.dtype, (directions, 3 * hidden)),
    }  # fmt: skip
    for k, type_ in expected.items():
        if call.has(k) and call.type(k) != type_:
            raise OperatorError(f"input {k} is {call.type(k)}, must be {type_}")
    if call.has(LENGTHS) and (call.shape(LENGTHS) != (batch,) or not call.type(LENGTHS).dtype.is_integer):
        raise OperatorError(f"the lengths are {call.type(LENGTHS)}, must be [{dims_text((batch,))}] of integers")
    return (TensorType(x.dtype, (time, directions, batch, hidden)), *(state for _ in range(cell.states)))


# ---- expansion -------------------------------------------------------------------------------------------------------
def _expand(cell: Cell, g: Graph, call: Call, inputs: Names) -> tuple[str, ...]:
    dtype = call.outputs[0].dtype
    wide = accumulator(dtype)
    floats = [k for k in range(len(inputs)) if k != LENGTHS and inputs[k] is not None]
    if wide is not dtype:
        inputs = tuple(g.emit("cast", [i], {"to": wide}) if k in floats else i for k, i in enumerate(inputs))
    directions = [_Direction(cell, g, call, inputs, d, back) for d, back in enumerate(_backwards(call))]
    gates = _gates(g, call, inputs, directions)
    parts = [d.emit(gates) for d in directions]
    joined = [_joined(g, [p[k] for p in parts], 1 if k == 0 else 0) for k in range(1 + cell.states)]
    return tuple(joined if wide is dtype else (g.emit("cast", [v], {"to": dtype}) for v in joined))


def _backwards(call: Call) -> tuple[bool, ...]:
    return DIRECTIONS[call["direction"]]


def _gates(g: Graph, call: Call, inputs: Names, directions: Sequence[_Direction]) -> str:
    """The input's part of the gates of all directions, side by side: x is read once, by one wide product."""
    x, w = inputs[0], inputs[1]
    assert w is not None
    count, columns, width = call.shape(1)
    rows = g.emit("reshape", [w], {"shape": (count * columns, width)})
    gates = g.emit("matmul", [x, g.emit("transpose", [rows], {"perm": (1, 0)})])
    biases = [bias for d in directions if (bias := d.bias()) is not None]
    if not biases:
        return gates
    return g.emit("add", [gates, biases[0] if len(biases) == 1 else g.emit("concat", biases, {"axis": 0})])


def _joined(g: Graph, parts: list[str], axis: int) -> str:
    """One result of all directions, along a new axis."""
    shape = g.types[parts[0]].shape
    parts = [g.emit("reshape", [p], {"shape": (*shape[:axis], 1, *shape[axis:])}) for p in parts]
    return parts[0] if len(parts) == 1 else g.emit("concat", parts, {"axis": axis})


@dataclass
class _Direction:
    """The nodes of one direction."""

    cell: Cell
    g: Graph
    call: Call
    inputs: Names
    number: int
    reverse: bool

    def emit(self, gates: str) -> tuple[str, ...]:
        """The results of the steps: y [T, B, H], and the states [B, H]."""
        g, cell, r = self.g, self.cell, self.mine(2)
        hidden = self.call.shape(2)[2]
        attrs: dict[str, Any] = {"reverse": self.reverse, "clip": self.call["clip"]}
        first = self.number * cell.functions
        attrs["activations"] = self.call["activations"][first : first + cell.functions]
        attrs |= {k: self.call[k] for k in ("input_forget", "linear_before_reset") if k in self.call.attrs}
        by_gate = g.emit("reshape", [r], {"shape": (cell.gates, hidden, hidden)})
        weights = g.emit("transpose", [by_gate], {"perm": (0, 2, 1)})
        extra: list[str | None] = []
        if cell is GRU:
            extra = [self.inner_bias()]
        states = [self.mine(STATES + k) if self.call.has(STATES + k) else None for k in range(cell.states)]
        lengths = self.inputs[LENGTHS] if self.call.has(LENGTHS) else None
        seen = [g.emit("reshape", [self.mine(PEEPHOLES)], {"shape": (3, hidden)})] if self.call.has(PEEPHOLES) else []
        names = [g.fresh(cell.steps) for _ in range(1 + cell.states)]
        g.emit(cell.steps, [self.of_gates(gates), weights, *extra, lengths, *states, *seen], attrs, outputs=names)
        return tuple(names)

    def mine(self, k: int) -> str:
        """This direction's part of an input, without the axis of directions."""
        value = self.inputs[k]
        assert value is not None
        shape = self.call.shape(k)
        if shape[0] != 1:
            starts, stops = (self.number, *(0 for _ in shape[1:])), (self.number + 1, *shape[1:])
            value = self.g.emit("slice", [value], {"starts": starts, "stops": stops, "steps": (1,) * len(shape)})
        return self.g.emit("reshape", [value], {"shape": shape[1:]})

    def of_gates(self, gates: str) -> str:
        """This direction's columns."""
        columns = self.cell.gates * self.call.shape(2)[2]
        shape = self.g.types[gates].shape
        if shape[2] == columns:
            return gates
        starts, stops = (0, 0, self.number * columns), (*shape[:2], (self.number + 1) * columns)
        return self.g.emit("slice", [gates], {"starts": starts, "stops": stops, "steps": (1, 1, 1)})

    def bias(self) -> str | None:
        """Both biases together; that of the reset gate's product stays behind, if it is inside of the gate."""
        if not self.call.has(3):
            return None
        columns = self.cell.gates * self.call.shape(2)[2]
        both = self.mine(3)
        for_input, for_state = self.part(both, 0, columns), self.part(both, columns, 2 * columns)
        if not self.inner:
            return self.g.emit("add", [for_input, for_state])
        hidden = self.call.shape(2)[2]
        outer = self.g.emit("add", [self.part(for_input, 0, 2 * hidden), self.part(for_state, 0, 2 * hidden)])
        return self.g.emit("concat", [outer, self.part(for_input, 2 * hidden, columns)], {"axis": 0})

    def inner_bias(self) -> str | None:
        hidden = self.call.shape(2)[2]
        return self.part(self.mine(3), 5 * hidden, 6 * hidden) if self.inner and self.call.has(3) else None

    @property
    def inner(self) -> bool:
        """The reset gate multiplies a product with its bias."""
        return bool(self.call.attrs.get("linear_before_reset"))

    def part(self, value: str, start: Any, stop: Any) -> str:
        return self.g.emit("slice", [value], {"starts": (start,), "stops": (stop,), "steps": (1,)})


# ---- oracles: the equations of the ONNX specification, a step and a row of the batch at a time -----------------------
def _oracle(cell: Cell, attrs: Any, arrays: Any) -> tuple[Any, ...]:
    given: tuple[Any, ...] = (*arrays, *(None,) * (PEEPHOLES + 1 - len(arrays)))
    x, w, r, b, lengths, *states = given[: STATES + cell.states]
    seen = [p] if (p := given[PEEPHOLES]) is not None else []
    dtype = x.dtype
    kind = np.float64 if dtype == np.float64 else np.float32
    time, batch, _ = x.shape
    backwards, hidden = DIRECTIONS[attrs["direction"]], r.shape[2]
    y = np.zeros((time, len(backwards), batch, hidden), kind)
    lasts = [np.zeros((len(backwards), batch, hidden), kind) if s is None else s.astype(kind) for s in states]
    for d, back in enumerate(backwards):
        weights = [a[d].astype(kind) for a in (w, r, *seen)]
        bias = np.zeros(2 * cell.gates * hidden, kind) if b is None else b[d].astype(kind)
        functions = attrs["activations"][d * cell.functions : (d + 1) * cell.functions]
        for row in range(batch):
            count = time if lengths is None else min(max(int(lengths[row]), 0), time)
            state = [s[d, row] if lengths is None or lengths[row] > 0 else np.zeros(hidden, kind) for s in lasts]
            for t in reversed(range(count)) if back else range(count):
                state = _EQUATIONS[cell.steps](attrs, functions, x[t, row].astype(kind), weights, bias, state)
                y[t, d, row] = state[0]
            for s, value in zip(lasts, state, strict=True):
                s[d, row] = value
    return tuple(a.astype(dtype) for a in (y, *lasts))


def _lstm_equations(attrs: Any, functions: Any, x: Any, weights: Any, bias: Any, state: Any) -> list[Any]:
    (w, r, *seen), (h, c), (f, g, last), clip = weights, state, functions, attrs["clip"]
    wb, rb = np.split(bias, 2)
    pi, po, pf = np.split(seen[0], 3) if seen else (0, 0, 0)
    i, o, forget, new = np.split(w @ x + r @ h + wb + rb, 4)
    it = activated_array(f, i + pi * c, clip)
    ft = 1 - it if attrs["input_forget"] else activated_array(f, forget + pf * c, clip)
    ct = ft * c + it * activated_array(g, new, clip)
    return [activated_array(f, o + po * ct, clip) * activated_array(last, ct, None), ct]


def _gru_equations(attrs: Any, functions: Any, x: Any, weights: Any, bias: Any, state: Any) -> list[Any]:
    (w, r), (h,), (f, g), clip = weights, state, functions, attrs["clip"]
    (xz, xr, xh), (rz, rr, rh) = np.split(w @ x, 3), np.split(r, 3)
    wbz, wbr, wbh, rbz, rbr, rbh = np.split(bias, 6)
    zt = activated_array(f, xz + rz @ h + wbz + rbz, clip)
    rt = activated_array(f, xr + rr @ h + wbr + rbr, clip)
    part = rt * (rh @ h + rbh) if attrs["linear_before_reset"] else rh @ (rt * h) + rbh
    return [(1 - zt) * activated_array(g, xh + part + wbh, clip) + zt * h]


def _rnn_equations(attrs: Any, functions: Any, x: Any, weights: Any, bias: Any, state: Any) -> list[Any]:
    (w, r), (h,), (f,) = weights, state, functions
    wb, rb = np.split(bias, 2)
    return [activated_array(f, w @ x + r @ h + wb + rb, attrs["clip"])]


_EQUATIONS: Mapping[str, Callable[..., list[Any]]] = {
    "lstm_steps": _lstm_equations, "gru_steps": _gru_equations, "rnn_steps": _rnn_equations,
}  # fmt: skip


# ---- samples ---------------------------------------------------------------------------------------------------------
def _samples(cell: Cell, *more: Sample) -> tuple[Sample, ...]:
    """All directions, with and without everything that may be left out; odd sizes."""
    g, default = cell.gates, ((SIGMOID, TANH, TANH) if cell is LSTM else (SIGMOID, TANH))[: cell.functions]
    default = (TANH,) if cell is RNN else default
    one, two = {"activations": default}, {"activations": default * 2, "direction": "bidirectional"}
    lengths = np.array([4, 0, 2], np.int32)

    def inputs(d: int, t: int = 4, b: int = 3, i: int = 5, h: int = 7) -> tuple[tuple[int, ...], ...]:
        return (t, b, i), (d, g * h, i), (d, g * h, h), (d, 2 * g * h)

    states = tuple((2, 3, 7) for _ in range(cell.states))
    return (
        Sample(inputs(1)[:3], one),
        Sample(inputs(1), {**one, "direction": "reverse"}),
        Sample((*inputs(2), None, *states), two),
        Sample((*inputs(2), lengths, *states), two),
        Sample((*inputs(1), lengths), {**one, "direction": "reverse", "clip": 0.3}),
        Sample(inputs(1, 1, 1, 3, 17), one),
        *more,
    )


_HALF = tuple(np.linspace(-1, 1, n, dtype=np.float16).reshape(s) for n, s in ((12, (2, 1, 6)), (72, (1, 12, 6))))
_HALF_STATE = np.linspace(-1, 1, 36, dtype=np.float16).reshape(1, 12, 3)
_LSTM_MORE = (
    Sample(((3, 2, 4), (1, 20, 4), (1, 20, 5)), {"activations": (SIGMOID, TANH, TANH), "input_forget": True}),
    Sample((*_HALF, _HALF_STATE), {"activations": (SIGMOID, TANH, TANH)}),
    Sample(((3, 2, 4), (2, 20, 4), (2, 20, 5), None, None, (2, 2, 5), (2, 2, 5), (2, 15)),
           {"activations": (SIGMOID, TANH, TANH) * 2, "direction": "bidirectional"}),
)
_GRU_INNER = {"activations": (SIGMOID, TANH), "linear_before_reset": True}
_GRU_MORE = (
    Sample(((4, 3, 5), (1, 21, 5), (1, 21, 7), (1, 42)), _GRU_INNER),
    Sample(((4, 3, 5), (1, 21, 5), (1, 21, 7)), {**_GRU_INNER, "direction": "reverse"}),
)


def _operator(name: str, cell: Cell, states: tuple[str, ...], attrs: Mapping[str, Any], more: Any = ()) -> Operator:
    return Operator(
        name, Kind.PHASED, ("x", "w", "r", "b?", "lengths?", *states), partial(_infer, cell), partial(_oracle, cell),
        {"direction": "forward", "activations": REQUIRED, "clip": None, **attrs}, expand=partial(_expand, cell),
        outputs=1 + cell.states, samples=_samples(cell, *more),
    )  # fmt: skip


OPERATORS: tuple[Operator, ...] = (
    _operator("lstm", LSTM, ("h0?", "c0?", "p?"), {"input_forget": False}, _LSTM_MORE),
    _operator("gru", GRU, ("h0?",), {"linear_before_reset": False}, _GRU_MORE),
    _operator("rnn", RNN, ("h0?",), {}),
)
