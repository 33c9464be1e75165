"""Activations in native code keep their digits where they are small: near 0, in the negative tail, to the denormals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from opfuse.ir.graph import Graph
from opfuse.ir.ops import structure_of
from opfuse.ir.ops.activation import SELU_ALPHA, SELU_GAMMA
from opfuse.ir.scalar import Operand, Scalar, substitute
from opfuse.ir.types import DType, TensorType
from tests.codegen.test_llvm_math import (
    ISAS,
    WIDE,
    arguments,
    assert_half,
    evaluate_formula,
    normcdf,
    sigmoid,
    ulps,
)

F16, BF16, F32, F64 = DType.F16, DType.BF16, DType.F32, DType.F64


def softplus(x: Any) -> Any:
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def elu(x: Any) -> Any:
    return np.where(x < 0, np.expm1(np.minimum(x, 0)), x)


def selu(x: Any) -> Any:
    return WIDE(SELU_GAMMA) * np.where(x < 0, WIDE(SELU_ALPHA) * elu(x), x)


def mish(x: Any) -> Any:
    return x * np.tanh(softplus(x))


# operator -> (reference in wider arithmetic, ulps, from where on in f32 and f64: where its last denormals are)
OPERATORS: dict[str, tuple[Callable[[Any], Any], float, float, float]] = {
    "softplus": (softplus, 4.0, -104.0, -745.2),
    "elu": (elu, 3.0, -200.0, -800.0),
    "selu": (selu, 5.0, -200.0, -800.0),
    "silu": (lambda x: x * sigmoid(x), 6.0, -108.8, -752.0),
    "mish": (mish, 8.0, -108.8, -752.0),
    "gelu": (lambda x: x * normcdf(x), 5.0, -12.9, -37.4),  # below, normcdf is a denormal, and gelu a multiple of it
}


def formula_of(name: str, dtype: DType) -> Callable[[Scalar], Scalar]:
    """The operator's scalar formula, with its casts."""
    graph = Graph("one")
    graph.set_outputs({"y": graph.emit(name, [graph.add_input("x", TensorType(dtype, (1,)))])})
    structure = structure_of(graph, graph.producer(graph.outputs["y"]))  # type: ignore[arg-type]
    assert structure is not None
    return lambda x: substitute(structure.body, lambda s: x if isinstance(s, Operand) else None)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [F32, F64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", OPERATORS)
def test_errors_are_relative_over_all_binades(name: str, dtype: DType, isa: str) -> None:
    reference, bound, low32, low64 = OPERATORS[name]
    x = arguments((low32, 200.0) if dtype is F32 else (low64, 800.0), dtype)
    with np.errstate(all="ignore"):
        want = reference(x.astype(WIDE))
    got = evaluate_formula(isa, formula_of(name, dtype), x)
    assert ulps(got, want) <= bound
    zero = x == 0
    np.testing.assert_array_equal(np.signbit(got[zero]), np.signbit(want[zero]))


@pytest.mark.parametrize("dtype", [F16, BF16], ids=["f16", "bf16"])
@pytest.mark.parametrize("name", OPERATORS)
def test_every_number_of_half_precision(name: str, dtype: DType) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype.numpy)
    x = x[np.isfinite(x.astype(np.float32))]
    with np.errstate(all="ignore"):
        want = OPERATORS[name][0](x.astype(np.float64).astype(WIDE))
    assert_half(evaluate_formula("avx2", formula_of(name, dtype), x), want, dtype)


@pytest.mark.parametrize("isa", ISAS)
def test_the_tail_of_gelu_tanh_is_as_good_as_its_exponent(isa: str) -> None:
    """e^u of a u that was rounded four times: |u| times that."""
    x = arguments((-9.0, 20.0), F32)
    wide = x.astype(WIDE)
    u = 2 * np.sqrt(2 / (4 * np.arctan(WIDE(1)))) * wide * (1 + WIDE(0.044715) * wide**2)
    got, want = evaluate_formula(isa, formula_of("gelu_tanh", F32), x), wide * sigmoid(u)
    spacing = np.spacing(np.abs(want.astype(np.float32))).astype(WIDE)
    assert (np.abs(got.astype(WIDE) - want) <= (5 + 4 * np.abs(np.minimum(u, 0))) * spacing).all()


@pytest.mark.parametrize("isa", ISAS)
def test_known_values(isa: str) -> None:
    x = np.array([-6, -1e-20, 1e-20, np.inf, np.nan, -np.inf], np.float32)
    made = {n: evaluate_formula(isa, formula_of(n, F32), x) for n in (*OPERATORS, "gelu_tanh")}
    np.testing.assert_allclose(made["gelu"][0], -5.9195e-9, rtol=1e-4)
    np.testing.assert_allclose(made["softplus"][0], 2.4756852e-3, rtol=1e-6)
    np.testing.assert_array_equal(made["elu"][1], x[1])
    for name, y in made.items():
        assert np.isposinf(y[3]) and np.isnan(y[4]), name
    assert made["softplus"][5] == 0 and made["elu"][5] == -1
