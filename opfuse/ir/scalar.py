"""Scalar expressions: the formula of one point of an operator, shared by structures and tile programs.

An expression is a typed tree over leaves. In a `Structure` the leaves are `Operand(i)` (the i-th read) and
`Position(axis)`; in a tile program they are tiles. Functions stand in one table, `FUNCTIONS`; each code generator adds
a column of its own, checked to be complete by the tests.

    apply("select", apply("lt", x, const(0.0, F32)), const(0.0, F32), x)        # ReLU that keeps NaN

NaN rule: every function propagates NaN, `max` and `min` too (IEEE maximum, not maxNum); comparisons with NaN are false,
`ne` is true; `select` evaluates to the chosen operand alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from opfuse.ir.dims import Dim
from opfuse.ir.types import DType


@dataclass(frozen=True)
class Const:
    """A number of the given type. Integers are exact; floats are Python floats (float64)."""

    value: float | int | bool
    dtype: DType


@dataclass(frozen=True)
class Operand:
    """The value of the structure's read number `index` at this point (or, in `Structure.finish`, the reduced value)."""

    index: int
    dtype: DType


@dataclass(frozen=True)
class Position:
    """The integer position along an axis (causal masks, iota); `axis` is the axis' name."""

    axis: str
    dtype: DType = DType.I64


@dataclass(frozen=True)
class Apply:
    function: str
    args: tuple[Scalar, ...]
    dtype: DType


class Leaf:
    """Base of leaves that other modules add (a tile program's tiles). They carry a `dtype`."""

    dtype: DType


@dataclass(frozen=True)
class Extent(Leaf):
    """The value of a dimension: the count of a mean, the offset of a concatenation. Perhaps known at run time only."""

    dim: Dim
    dtype: DType = DType.I64

    def __str__(self) -> str:
        return f"#({self.dim})" if self.dtype is DType.I64 else f"#({self.dim}):{self.dtype.value}"


Scalar = Const | Operand | Position | Apply | Leaf

# Result type of each function: "same" as its last argument, "bool", or given by the caller ("cast", "bits").
SAME, BOOL, GIVEN = "same", "bool", "given"


@dataclass(frozen=True)
class Function:
    """One row of the table. `kinds` says which element types it is defined for: f float, i integer, b bool.

    `cost` is its price on a CPU in vector multiplies. `ulps` is the largest rounding of a float result, in units in the
    last place (with `absolute`, of 1 where the result is smaller); 0 where it is exact. It is what was measured on
    every instruction set (tests/codegen/test_llvm_math.py), rounded up; without multiply-add erf and tanh come near it.
    """

    name: str
    arity: int
    result: str = SAME
    kinds: str = "f"
    cost: float = 1
    ulps: float = 0
    absolute: bool = False


FUNCTIONS: Mapping[str, Function] = {
    f.name: f
    for f in (
        Function("add", 2, kinds="fi", ulps=1), Function("sub", 2, kinds="fi", ulps=1),
        Function("mul", 2, kinds="fi", ulps=1),
        Function("div", 2, kinds="fi", cost=3, ulps=1),       # integers: truncating towards zero, as ONNX Div
        Function("floordiv", 2, kinds="fi", cost=20, ulps=1),
        Function("mod", 2, kinds="fi", cost=20, ulps=2),      # sign of the divisor (Python)
        Function("fmod", 2, kinds="fi", cost=20, ulps=2),     # sign of the dividend (C)
        Function("max", 2, kinds="fib"), Function("min", 2, kinds="fib"),
        Function("pow", 2, kinds="fi", cost=24, ulps=4),
        Function("neg", 1, kinds="fi"), Function("abs", 1, kinds="fi"), Function("sign", 1, kinds="fi"),
        Function("exp", 1, cost=9, ulps=3), Function("log", 1, cost=12, ulps=2),
        Function("sqrt", 1, cost=4, ulps=1), Function("rsqrt", 1, cost=6, ulps=2),
        Function("erf", 1, cost=14, ulps=6), Function("tanh", 1, cost=14, ulps=6),
        Function("sigmoid", 1, cost=12, ulps=4),
        Function("expm1", 1, cost=11, ulps=2),                # exp(x) - 1 with the digits of a small x
        Function("log1p", 1, cost=16, ulps=2),                # log(1 + x), likewise
        Function("normcdf", 1, cost=28, ulps=5),              # (1 + erf(x / sqrt 2)) / 2, with the digits of its tail
        Function("sin", 1, cost=16, ulps=2, absolute=True), Function("cos", 1, cost=16, ulps=2, absolute=True),
        Function("floor", 1), Function("ceil", 1), Function("rint", 1),        # rint: half to even
        Function("lt", 2, BOOL, "fi"), Function("le", 2, BOOL, "fi"), Function("eq", 2, BOOL, "fib"),
        Function("gt", 2, BOOL, "fi"), Function("ge", 2, BOOL, "fi"), Function("ne", 2, BOOL, "fib"),
        Function("and", 2, kinds="ib"), Function("or", 2, kinds="ib"), Function("xor", 2, kinds="ib"),
        Function("not", 1, kinds="ib"),                       # of integers: bit by bit
        Function("shl", 2, kinds="i", cost=2),                # by 0 to width - 1 bits; by any other number gives 0
        Function("shr", 2, kinds="i", cost=2),                # the sign comes in; by any other number only it does
        Function("isnan", 1, BOOL), Function("isinf", 1, BOOL),
        Function("select", 3, kinds="fib"),                   # (condition, if true, if false)
        Function("cast", 1, GIVEN, "fib", ulps=1),            # float to integer truncates; to bool is != 0
        Function("bits", 1, GIVEN, "fi"),                     # the same bits as another type of that size
    )
}  # fmt: skip


def apply(function: str, *args: Scalar, dtype: DType | None = None) -> Apply:
    """Build a typed application; ValueError for an unknown function, a wrong arity or mixed operand types."""
    row = FUNCTIONS.get(function)
    if row is None:
        raise ValueError(f"no scalar function {function!r}")
    if len(args) != row.arity:
        raise ValueError(f"{function} takes {row.arity} arguments, got {len(args)}")
    values = args[1:] if function == "select" else args
    if function != "cast" and len({a.dtype for a in values}) > 1:
        raise ValueError(f"{function} of mixed types {[a.dtype for a in args]}; cast first")
    if row.result == GIVEN:
        if dtype is None:
            raise ValueError(f"{function} needs a dtype")
        if function == "bits" and dtype.bytes != args[0].dtype.bytes:
            raise ValueError(f"{args[0].dtype} and {dtype} differ in size: no bits in common")
        return Apply(function, args, dtype)
    return Apply(function, args, DType.BOOL if row.result == BOOL else values[-1].dtype)


def const(value: float | int | bool, dtype: DType) -> Const:
    if dtype.is_float:
        return Const(float(value), dtype)
    if dtype.is_narrow:  # its byte
        return Const(int(np.asarray(value).astype(dtype.numpy).view(np.uint8)), dtype)
    return Const(bool(value) if dtype is DType.BOOL else int(value), dtype)


def extent(dim: Dim, dtype: DType = DType.I64) -> Scalar:
    """A dimension as a number of the given type: a constant where it is known."""
    return const(dim, dtype) if isinstance(dim, int) else Extent(dim, dtype)


def cast(x: Scalar, dtype: DType) -> Scalar:
    return x if x.dtype is dtype else apply("cast", x, dtype=dtype)


def relu(x: Scalar) -> Scalar:
    zero = const(0, x.dtype)
    return apply("select", apply("lt", x, zero), zero, x)


def walk(x: Scalar) -> Iterator[Scalar]:
    """The expression and everything below it, parents first."""
    yield x
    if isinstance(x, Apply):
        for a in x.args:
            yield from walk(a)


def substitute(x: Scalar, replace: Callable[[Scalar], Scalar | None]) -> Scalar:
    """A copy with every node for which `replace` gives a value exchanged for that value."""
    new = replace(x)
    if new is not None:
        return new
    if isinstance(x, Apply):
        return Apply(x.function, tuple(substitute(a, replace) for a in x.args), x.dtype)
    return x


def text(x: Scalar) -> str:
    match x:
        case Const():
            return f"{x.value!r}" if x.dtype is DType.F32 else f"{x.value!r}:{x.dtype.value}"
        case Operand():
            return f"${x.index}"
        case Position():
            return f"@{x.axis}"
        case Apply("cast" | "bits" as function, args, dtype):
            return f"{function}<{dtype.value}>({text(args[0])})"
        case Apply():
            return f"{x.function}({', '.join(text(a) for a in x.args)})"
        case _:
            return str(x)
