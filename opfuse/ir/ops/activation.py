"""Activations: one scalar formula each, so that they fuse as any other elementwise operator.

    relu leaky_relu(alpha) elu(alpha) selu(alpha, gamma) prelu(x, slope) softplus softsign hard_sigmoid(alpha, beta)
    hard_swish silu gelu gelu_tanh mish

Where a formula multiplies x by a factor that vanishes (silu, gelu, mish), x = -inf gives NaN, as in ONNX and PyTorch.
The formulas keep a relative error of a few ulp where their values are small, near 0 and in the negative tail: no
digits are lost to a 1 that is added and taken away again. gelu(-6) is -5.92e-9, where 1 + erf(x / sqrt 2) in float32
is 0. The tail of gelu_tanh is e^u of a rounded u, and keeps |u| ulp.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from opfuse.ir.ops.definition import Operator, Sample
from opfuse.ir.ops.elementwise import array_sigmoid
from opfuse.ir.ops.pointwise import pointwise
from opfuse.ir.scalar import Scalar, apply, const, relu

SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875  # the defaults of ONNX Selu
GELU_TANH_CUBIC = 0.044715  # Hendrycks and Gimpel, "Gaussian Error Linear Units", section 2


def _where_negative(x: Scalar, negative: Scalar, otherwise: Scalar) -> Scalar:
    return apply("select", apply("lt", x, const(0, x.dtype)), negative, otherwise)


def _elu(x: Scalar, alpha: float) -> Scalar:
    return _where_negative(x, apply("mul", const(alpha, x.dtype), apply("expm1", x)), x)


def _elu_array(x: Any, alpha: float) -> Any:
    return np.where(x < 0, x.dtype.type(alpha) * np.expm1(x), x)


def softplus(x: Scalar) -> Scalar:
    """max(x, 0) + log(1 + exp(-|x|)): no overflow."""
    tail = apply("log1p", apply("exp", apply("neg", apply("abs", x))))
    return apply("add", apply("max", x, const(0, x.dtype)), tail)


def _silu(x: Scalar) -> Scalar:
    """x / (1 + e^-x); for x < 0 it is x e^x / (1 + e^x), with e^x as a square, of which no half is a denormal."""
    half = apply("exp", apply("mul", apply("abs", x), const(-0.5, x.dtype)))
    factor = _where_negative(x, half, const(1, x.dtype))
    below = apply("add", const(1, x.dtype), apply("mul", half, half))
    return apply("mul", apply("mul", x, factor), apply("div", factor, below))


def _mish(x: Scalar) -> Scalar:
    """x tanh(log(1 + e^x)) = x n / (n + 2) with n = e^x (e^x + 2), both divided by e^2x for x > 0."""
    one, two = const(1, x.dtype), const(2, x.dtype)
    half = apply("exp", apply("mul", apply("abs", x), const(-0.5, x.dtype)))
    e = apply("mul", half, half)
    factor = _where_negative(x, half, one)
    n = _where_negative(x, apply("add", e, two), apply("add", one, apply("mul", two, e)))
    rest = apply("mul", two, _where_negative(x, one, apply("mul", e, e)))
    whole = apply("add", apply("mul", n, _where_negative(x, e, one)), rest)
    return apply("mul", apply("mul", x, factor), apply("mul", factor, apply("div", n, whole)))


def _hard_sigmoid(x: Scalar, alpha: float, beta: float) -> Scalar:
    line = apply("add", apply("mul", x, const(alpha, x.dtype)), const(beta, x.dtype))
    return apply("max", const(0, x.dtype), apply("min", const(1, x.dtype), line))


def _hard_sigmoid_array(x: Any, alpha: float, beta: float) -> Any:
    return np.clip(x * x.dtype.type(alpha) + x.dtype.type(beta), 0, 1)


def _gelu(attrs: Any, x: Scalar) -> Scalar:
    """x (1 + erf(x / sqrt 2)) / 2."""
    return apply("mul", x, apply("normcdf", x))


def _gelu_tanh(attrs: Any, x: Scalar) -> Scalar:
    """x (1 + tanh u) / 2 = x / (1 + e^-2u), u = sqrt(2 / pi) x (1 + 0.044715 x^2)."""
    square = apply("add", apply("mul", apply("mul", x, x), const(GELU_TANH_CUBIC, x.dtype)), const(1, x.dtype))
    double = apply("mul", apply("mul", x, const(2 * math.sqrt(2 / math.pi), x.dtype)), square)
    return apply("mul", x, apply("sigmoid", double))


def _gelu_array(attrs: Any, x: Any) -> Any:
    """Through the C library's erfc, in float64."""
    wide = x.astype(np.float64)
    tail = np.vectorize(math.erfc, otypes=[np.float64])(wide * -math.sqrt(0.5))
    return (0.5 * wide * tail).astype(x.dtype)


def _gelu_tanh_array(attrs: Any, x: Any) -> Any:
    t = x.dtype.type
    return x * array_sigmoid(t(2 * math.sqrt(2 / math.pi)) * (x + t(GELU_TANH_CUBIC) * x**3))


_SLOPES = (Sample(((2, 3, 5), (3, 1))), Sample(((4,), (4,))), Sample((np.array([-7, 7, 0]), np.array(2))))

OPERATORS: tuple[Operator, ...] = (
    pointwise("relu", lambda attrs, x: relu(x), lambda attrs, x: np.where(x < 0, np.zeros_like(x), x), kinds="fi"),
    pointwise(
        "leaky_relu",
        lambda attrs, x: _where_negative(x, apply("mul", x, const(attrs["alpha"], x.dtype)), x),
        lambda attrs, x: np.where(x >= 0, x, x * x.dtype.type(attrs["alpha"])),
        attrs={"alpha": 0.01},
    ),
    pointwise(
        "prelu",
        lambda attrs, x, slope: _where_negative(x, apply("mul", x, slope), x),
        lambda attrs, x, slope: np.where(x < 0, x * slope, x),
        inputs=("x", "slope"),
        kinds="fi",
        onto_first=True,
        samples=_SLOPES,
    ),
    pointwise(
        "elu",
        lambda attrs, x: _elu(x, attrs["alpha"]),
        lambda attrs, x: _elu_array(x, attrs["alpha"]),
        attrs={"alpha": 1.0},
    ),
    pointwise(
        "selu",
        lambda attrs, x: apply("mul", const(attrs["gamma"], x.dtype), _elu(x, attrs["alpha"])),
        lambda attrs, x: x.dtype.type(attrs["gamma"]) * _elu_array(x, attrs["alpha"]),
        attrs={"alpha": SELU_ALPHA, "gamma": SELU_GAMMA},
    ),
    pointwise("softplus", lambda attrs, x: softplus(x), lambda attrs, x: np.logaddexp(x, x.dtype.type(0))),
    pointwise(
        "softsign",
        lambda attrs, x: apply("div", x, apply("add", const(1, x.dtype), apply("abs", x))),
        lambda attrs, x: x / (1 + np.abs(x)),
    ),
    pointwise(
        "hard_sigmoid",
        lambda attrs, x: _hard_sigmoid(x, attrs["alpha"], attrs["beta"]),
        lambda attrs, x: _hard_sigmoid_array(x, attrs["alpha"], attrs["beta"]),
        attrs={"alpha": 0.2, "beta": 0.5},
    ),
    pointwise(
        "hard_swish",
        lambda attrs, x: apply("mul", x, _hard_sigmoid(x, 1 / 6, 0.5)),
        lambda attrs, x: x * _hard_sigmoid_array(x, 1 / 6, 0.5),
    ),
    pointwise("silu", lambda attrs, x: _silu(x), lambda attrs, x: x * array_sigmoid(x)),
    pointwise("gelu", _gelu, _gelu_array),
    pointwise("gelu_tanh", _gelu_tanh, _gelu_tanh_array),
    pointwise(
        "mish",
        lambda attrs, x: _mish(x),
        lambda attrs, x: x * np.tanh(np.logaddexp(x, x.dtype.type(0))),
    ),
)
