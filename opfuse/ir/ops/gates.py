"""Activations of recurrent gates: formulas for the steps, and arrays for the oracles.

    GATES["hard_sigmoid"].formula(x, 0.2, 0.5)     -> a scalar expression
    GATES["hard_sigmoid"].array(x, 0.2, 0.5)       -> the same of a NumPy array, by other means

An activation of a node is (name, alpha, beta), both numbers always there; ONNX names them in `rnn` (spec of LSTM, GRU).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from opfuse.ir.ops.activation import softplus
from opfuse.ir.ops.definition import OperatorError
from opfuse.ir.ops.elementwise import array_sigmoid
from opfuse.ir.scalar import Scalar, apply, const, relu

Activation = tuple[str, float, float]
SIGMOID: Activation = ("sigmoid", 0.0, 0.0)
TANH: Activation = ("tanh", 0.0, 0.0)


@dataclass(frozen=True)
class Gate:
    formula: Callable[[Scalar, float, float], Scalar]
    array: Callable[[Any, float, float], Any]


def _number(value: float, like: Scalar) -> Scalar:
    return const(value, like.dtype)


def _times(x: Scalar, factor: float) -> Scalar:
    return apply("mul", x, _number(factor, x))


def _plus(x: Scalar, term: float) -> Scalar:
    return apply("add", x, _number(term, x))


def _below(x: Scalar, bound: float, then: Scalar, otherwise: Scalar) -> Scalar:
    return apply("select", apply("lt", x, _number(bound, x)), then, otherwise)


def _line(x: Scalar, alpha: float, beta: float) -> Scalar:
    return _plus(_times(x, alpha), beta)


def _thresholded(x: Scalar, alpha: float) -> Scalar:
    return apply("select", apply("le", x, _number(alpha, x)), _number(0, x), x)


GATES: Mapping[str, Gate] = {
    "sigmoid": Gate(lambda x, a, b: apply("sigmoid", x), lambda x, a, b: array_sigmoid(x)),
    "tanh": Gate(lambda x, a, b: apply("tanh", x), lambda x, a, b: np.tanh(x)),
    "relu": Gate(lambda x, a, b: relu(x), lambda x, a, b: np.where(x < 0, np.zeros_like(x), x)),
    "affine": Gate(_line, lambda x, a, b: a * x + b),
    "leaky_relu": Gate(lambda x, a, b: _below(x, 0, _times(x, a), x), lambda x, a, b: np.where(x >= 0, x, a * x)),
    "thresholded_relu": Gate(lambda x, a, b: _thresholded(x, a), lambda x, a, b: np.where(x <= a, np.zeros_like(x), x)),
    "scaled_tanh": Gate(lambda x, a, b: _times(apply("tanh", _times(x, b)), a), lambda x, a, b: a * np.tanh(b * x)),
    "hard_sigmoid": Gate(
        lambda x, a, b: apply("max", _number(0, x), apply("min", _number(1, x), _line(x, a, b))),
        lambda x, a, b: np.clip(a * x + b, 0, 1),
    ),
    "elu": Gate(
        lambda x, a, b: _below(x, 0, _times(apply("expm1", x), a), x),
        lambda x, a, b: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x),
    ),
    "softsign": Gate(
        lambda x, a, b: apply("div", x, _plus(apply("abs", x), 1)), lambda x, a, b: x / (1 + np.abs(x))
    ),
    "softplus": Gate(lambda x, a, b: softplus(x), lambda x, a, b: np.logaddexp(x, x.dtype.type(0))),
}


def activated(activation: Activation, x: Scalar, clip: float | None) -> Scalar:
    """The activation of a formula; its input is bounded first where there is a clip."""
    name, alpha, beta = activation
    return GATES[name].formula(x if clip is None else clipped(x, clip), alpha, beta)


def clipped(x: Scalar, clip: float) -> Scalar:
    return apply("max", apply("min", x, _number(clip, x)), _number(-clip, x))


def activated_array(activation: Activation, x: Any, clip: float | None) -> Any:
    name, alpha, beta = activation
    bounded = x if clip is None else np.clip(x, -clip, clip)
    return np.asarray(GATES[name].array(bounded, alpha, beta)).astype(x.dtype)


def require_activations(given: Any, count: int) -> None:
    """OperatorError unless it is `count` triples of a known name and two numbers."""
    if not isinstance(given, tuple) or len(given) != count:
        raise OperatorError(f"needs {count} activations, got {given!r}")
    for name, alpha, beta in given:
        if name not in GATES or not all(isinstance(n, (int, float)) for n in (alpha, beta)):
            raise OperatorError(f"no activation {name!r}; there are {', '.join(GATES)}")
