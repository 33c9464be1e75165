"""Small models of one LSTM, GRU or RNN each: directions, states, lengths, activations, clip, layout, odd sizes.

recurrent_cases()   -> cases for the import's tests, and for those of the compiled models
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
OUTPUTS = {"LSTM": "y, yh, yc", "GRU": "y, yh", "RNN": "y, yh"}


@dataclass(frozen=True)
class Recurrence:
    """A node: what is fed, what is constant, and its text."""

    op: str
    opsets: tuple[int, ...]
    feeds: Mapping[str, np.ndarray]
    constants: Mapping[str, np.ndarray]
    body: str
    terms: int

    @property
    def outputs(self) -> str:
        return OUTPUTS[self.op].replace(",", "")


def recurrence(
    op: str, attrs: str = "", *, opsets: tuple[int, ...] = (14,), sizes: tuple[int, int, int, int] = (5, 3, 4, 6),
    direction: str = "forward", lengths: tuple[int, ...] | None = None, bias: bool = True, states: bool = True,
    batch_first: bool = False, peepholes: bool = False,
) -> Recurrence:  # fmt: skip
    """`sizes` are time, batch, width of the input, width of the state."""
    time, batch, width, hidden = sizes
    directions, columns = 2 if direction == "bidirectional" else 1, GATES[op] * hidden
    rng = np.random.default_rng(sum(sizes) + len(attrs))

    def normal(*shape: int) -> np.ndarray:
        return (0.5 * rng.standard_normal(shape)).astype(np.float32)

    def first(*shape: int) -> tuple[int, ...]:
        return (shape[1], shape[0], shape[2]) if batch_first else shape

    feeds = {"x": normal(*first(time, batch, width))}
    constants = {"w": normal(directions, columns, width), "r": normal(directions, columns, hidden)}
    operands = ["x", "w", "r", '""', '""']
    if bias:
        constants["b"] = normal(directions, 2 * columns)
        operands[3] = "b"
    if lengths is not None:
        feeds["n"] = np.array(lengths, np.int32)
        operands[4] = "n"
    for name in ("h", "c")[: 2 if op == "LSTM" else 1] if states else ():
        feeds[name] = normal(*first(directions, batch, hidden))
        operands.append(name)
    if peepholes:
        operands += ['""'] * (7 - len(operands)) + ["p"]
        constants["p"] = normal(directions, 3 * hidden)
    while operands[-1] == '""':
        operands.pop()
    given = [f"hidden_size = {hidden}", f'direction = "{direction}"', *([attrs] if attrs else [])]
    given += ["layout = 1"] if batch_first else []
    body = f"{OUTPUTS[op]} = {op} <{', '.join(given)}> ({', '.join(operands)})"
    return Recurrence(op, opsets, feeds, constants, body, (width + hidden) * time)


def recurrent_cases() -> list[Recurrence]:
    out = []
    for op in GATES:
        out += [
            recurrence(op, opsets=(7, 14, 22)),
            recurrence(op, direction="reverse", bias=False),
            recurrence(op, direction="bidirectional", lengths=(5, 2, 4), opsets=(9, 14)),
            recurrence(op, direction="reverse", lengths=(0, 5, 3)),
            recurrence(op, "clip = 0.3", direction="bidirectional", states=False),
            recurrence(op, sizes=(9, 1, 7, 33), direction="bidirectional"),
            recurrence(op, sizes=(3, 5, 9, 17), states=False, bias=False),
            recurrence(op, sizes=(1, 1, 7, 64)),
            recurrence(op, sizes=(4, 2, 3, 1)),
            recurrence(op, sizes=(2, 9, 3, 20), lengths=(2, 1, 2, 2, 1, 0, 2, 2, 1)),
        ]
    for direction, times in (("forward", 1), ("bidirectional", 2)):
        named = ", ".join(['"HardSigmoid", "Relu", "Softsign"'] * times)
        numbers = f"activation_alpha = [{', '.join(['0.3'] * times)}], activation_beta = [{', '.join(['0.4'] * times)}]"
        out += [
            recurrence("GRU", "linear_before_reset = 1", direction=direction),
            recurrence("GRU", "linear_before_reset = 1", direction=direction, lengths=(5, 2, 4), bias=False),
            recurrence("LSTM", "input_forget = 1", direction=direction),
            recurrence("LSTM", direction=direction, peepholes=True, states=direction == "forward"),
            recurrence("LSTM", "clip = 0.4", direction=direction, peepholes=True, lengths=(5, 2, 4)),
            recurrence("LSTM", f"activations = [{named}], {numbers}", direction=direction),
        ]
    for name in ("Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "Elu", "Softplus", "Sigmoid", "Relu"):
        numbers = "activation_alpha = [0.7], activation_beta = [0.2]"
        out.append(recurrence("RNN", f'activations = ["{name}"], {numbers}'))
    return out


def batch_first_cases() -> list[Recurrence]:
    """The layout that ONNX Runtime does not run."""
    return [
        recurrence("LSTM", direction="bidirectional", batch_first=True),
        recurrence("GRU", direction="reverse", batch_first=True, lengths=(5, 2, 4)),
        recurrence("RNN", batch_first=True),
    ]
