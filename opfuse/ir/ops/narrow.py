"""Numbers that are kept in a byte and never computed with: integers of 2 and 4 bits, floats of 4 and 8.

    from_narrow(x; to)     to_narrow(x; to, saturate, rounding)

Both are formulas of a byte's bits, so that they fuse with whatever makes or reads the wide number. An integer that does
not fit keeps its low bits; a float is rounded half to even, and where it is too large becomes the largest (`saturate`)
or what its format has beyond: infinity, else NaN, else the largest after all. `f8e8m0` is a power of two: `rounding`
says which ("up", "down", "nearest"). Formats: OCP 8-bit floating point and microscaling (2023); "z" is of Graphcore.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from opfuse.ir.ops.broadcast import access, output_axes, require_kind
from opfuse.ir.ops.definition import REQUIRED, Call, Kind, Operator, OperatorError, Sample
from opfuse.ir.ops.elementwise import cast_array
from opfuse.ir.scalar import Operand, Scalar, apply, cast, const
from opfuse.ir.structure import Structure
from opfuse.ir.types import DType, TensorType

ROUNDINGS = ("up", "down", "nearest")
_U8, _U32, _I32, _F32 = DType.U8, DType.U32, DType.I32, DType.F32
INTEGER_BITS = {DType.I4: 4, DType.U4: 4, DType.I2: 2, DType.U2: 2}


class Beyond(enum.Enum):
    """What a format has beyond its largest number."""

    INFINITY = "infinity, then NaN"
    NAN = "NaN at the last code"
    NEGATIVE_ZERO = "NaN in place of -0"
    NOTHING = "nothing"


@dataclass(frozen=True)
class Format:
    """A float of a sign, an exponent and a mantissa."""

    exponent: int
    mantissa: int
    bias: int
    beyond: Beyond

    @property
    def width(self) -> int:
        """Bits without the sign."""
        return self.exponent + self.mantissa

    @property
    def largest(self) -> int:
        """The code of the largest number."""
        codes = (1 << self.width) - 1
        return codes - {Beyond.INFINITY: 1 << self.mantissa, Beyond.NAN: 1}.get(self.beyond, 0)

    @property
    def nan(self) -> int:
        """The code of NaN, without the sign; -0 where there is none."""
        match self.beyond:
            case Beyond.INFINITY:
                return self.largest + 1 + (1 << self.mantissa - 1)
            case Beyond.NAN:
                return self.largest + 1
            case _:
                return 1 << self.width


FORMATS: Mapping[DType, Format] = {
    DType.F8E4M3: Format(4, 3, 7, Beyond.NAN), DType.F8E4M3Z: Format(4, 3, 8, Beyond.NEGATIVE_ZERO),
    DType.F8E5M2: Format(5, 2, 15, Beyond.INFINITY), DType.F8E5M2Z: Format(5, 2, 16, Beyond.NEGATIVE_ZERO),
    DType.F4E2M1: Format(2, 1, 1, Beyond.NOTHING),
}  # fmt: skip


def _u32(number: int) -> Scalar:
    return const(number, _U32)


def _select(condition: Scalar, a: Scalar, b: Scalar) -> Scalar:
    return apply("select", condition, a, b)


# ---- decoding --------------------------------------------------------------------------------------------------------
def decoded(x: Scalar) -> Scalar:
    """The number that a narrow one stands for: int32 of integers, float32 of floats."""
    byte = apply("bits", x, dtype=_U8)
    if x.dtype in INTEGER_BITS:
        return _decoded_integer(cast(byte, _I32), x.dtype)
    code = cast(byte, _U32)
    if x.dtype is DType.F8E8M0:
        power = _select(apply("eq", code, _u32(0)), _u32(1 << 22), apply("shl", code, _u32(23)))  # 2^-127 is denormal
        return apply("bits", _select(apply("eq", code, _u32(255)), _u32(0x7FC00000), power), dtype=_F32)
    return _decoded_float(code, FORMATS[x.dtype])


def _decoded_integer(byte: Scalar, dtype: DType) -> Scalar:
    bits = INTEGER_BITS[dtype]
    low = apply("and", byte, const((1 << bits) - 1, _I32))
    sign = const(1 << bits - 1, _I32)
    return apply("sub", apply("xor", low, sign), sign) if dtype in (DType.I4, DType.I2) else low


def _decoded_float(code: Scalar, f: Format) -> Scalar:
    """By its bits: exponent and mantissa move up, what is below the normal numbers is a multiple of the smallest."""
    size = apply("and", code, _u32((1 << f.width) - 1))
    normal = apply("add", apply("shl", size, _u32(23 - f.mantissa)), _u32((127 - f.bias) << 23))
    multiple = apply("mul", cast(size, _F32), const(2.0 ** (1 - f.bias - f.mantissa), _F32))
    small = apply("lt", size, _u32(1 << f.mantissa))
    value: Scalar = _select(small, apply("bits", multiple, dtype=_U32), normal)
    if f.beyond in (Beyond.INFINITY, Beyond.NAN):
        value = _select(apply("gt", size, _u32(f.largest)), _u32(0x7FC00000), value)
    if f.beyond is Beyond.INFINITY:
        value = _select(apply("eq", size, _u32(f.largest + 1)), _u32(0x7F800000), value)
    sign = apply("and", apply("shl", code, _u32(31 - f.width)), _u32(1 << 31))
    signed: Scalar = apply("or", value, sign)
    if f.beyond is Beyond.NEGATIVE_ZERO:
        signed = _select(apply("eq", code, _u32(f.nan)), _u32(0x7FC00000), signed)
    return apply("bits", signed, dtype=_F32)


# ---- encoding --------------------------------------------------------------------------------------------------------
def encoded(x: Scalar, dtype: DType, saturate: bool = True, rounding: str = "up") -> Scalar:
    """The narrow number for a wide one."""
    if dtype in INTEGER_BITS:
        whole = x if x.dtype is DType.I64 else cast(x, _I32)
        code: Scalar = apply("and", cast(whole, _U32), _u32((1 << INTEGER_BITS[dtype]) - 1))
    elif dtype is DType.F8E8M0:
        code = _encoded_power(apply("bits", cast(x, _F32), dtype=_U32), saturate, rounding)
    else:
        code = _encoded_float(apply("bits", cast(x, _F32), dtype=_U32), FORMATS[dtype], saturate)
    return apply("bits", cast(code, _U8), dtype=dtype)


def _encoded_float(bits: Scalar, f: Format, saturate: bool) -> Scalar:
    """Normal numbers are rounded by their bits, half to even; smaller ones as multiples of the smallest."""
    size = apply("and", bits, _u32(0x7FFFFFFF))
    shift = 23 - f.mantissa
    odd = apply("and", apply("shr", size, _u32(shift)), _u32(1))
    rounded = apply("shr", apply("add", size, apply("add", odd, _u32((1 << shift - 1) - 1))), _u32(shift))
    normal = apply("sub", rounded, _u32((127 - f.bias) << f.mantissa))
    multiple = apply("mul", apply("bits", size, dtype=_F32), const(2.0 ** (f.bias - 1 + f.mantissa), _F32))
    small = apply("lt", size, _u32((128 - f.bias) << 23))
    within = apply("min", apply("rint", multiple), const(2.0**f.mantissa, _F32))
    code = _select(small, cast(cast(within, _I32), _U32), normal)
    beyond = f.largest if saturate or f.beyond is Beyond.NOTHING else f.largest + 1
    if f.beyond is Beyond.NEGATIVE_ZERO and not saturate:
        beyond = f.nan
    code = _select(apply("gt", code, _u32(f.largest)), _u32(beyond), code)
    is_nan = apply("gt", size, _u32(0x7F800000))
    sign = apply("shl", apply("shr", bits, _u32(31)), _u32(f.width))
    if f.beyond is Beyond.NEGATIVE_ZERO:  # there is one zero and one NaN
        unsigned = apply("or", apply("eq", code, _u32(0)), apply("eq", code, _u32(f.nan)))
        code = _select(is_nan, _u32(f.nan), _select(unsigned, code, apply("or", code, sign)))
        return code
    if f.beyond is Beyond.NOTHING:
        return _select(is_nan, _u32(f.nan), apply("or", code, sign))
    return apply("or", _select(is_nan, _u32(f.nan), code), sign)


def _encoded_power(bits: Scalar, saturate: bool, rounding: str) -> Scalar:
    """The exponent's bits, one more where the fraction is rounded up; infinity and NaN are code 255."""
    exponent = apply("and", apply("shr", bits, _u32(23)), _u32(255))
    fraction = apply("and", bits, _u32(0x7FFFFF))
    if rounding == "up":
        up = apply("gt", fraction, _u32(0))
    elif rounding == "nearest":  # a half goes up, but for what is below the normal numbers
        up = apply("or", apply("gt", fraction, _u32(0x400000)),
                   apply("and", apply("eq", fraction, _u32(0x400000)), apply("gt", exponent, _u32(0))))  # fmt: skip
    else:
        return exponent
    last = 254 if saturate else 255
    return _select(apply("and", up, apply("lt", exponent, _u32(last))), apply("add", exponent, _u32(1)), exponent)


# ---- rows ------------------------------------------------------------------------------------------------------------
def _infer_from(call: Call) -> TensorType:
    require_kind(call.type(0), "n", "the input")
    if call["to"].is_narrow:
        raise OperatorError(f"{call['to'].value} is narrow itself")
    return TensorType(call["to"], call.shape(0))


def _infer_to(call: Call) -> TensorType:
    require_kind(call.type(0), "fib", "the input")
    to = call["to"]
    if not to.is_narrow:
        raise OperatorError(f"{to.value} is not narrow")
    if call["rounding"] not in ROUNDINGS:
        raise OperatorError(f"rounding {call['rounding']!r} is none of {', '.join(ROUNDINGS)}")
    return TensorType(to, call.shape(0))


def _from_structure(call: Call) -> Structure:
    axes = output_axes(call.output.shape)
    body = cast(decoded(Operand(0, call.type(0).dtype)), call["to"])
    return Structure(axes, (access(0, call.shape(0), axes),), body)


def _to_structure(call: Call) -> Structure:
    axes = output_axes(call.output.shape)
    body = encoded(Operand(0, call.type(0).dtype), call["to"], call["saturate"], call["rounding"])
    return Structure(axes, (access(0, call.shape(0), axes),), body)


def array_to_narrow(x: Any, to: DType, saturate: bool = True, rounding: str = "up") -> Any:
    """Through `ml_dtypes`; powers of two by logarithms of the exact fraction."""
    with np.errstate(all="ignore"):
        if to in INTEGER_BITS:
            whole = x if x.dtype.kind in "iub" else cast_array(x, np.dtype(np.int32))
            return whole.astype(to.numpy)
        x = x.astype(np.float32)
        if to is DType.F8E8M0:
            return _powers(x, saturate, rounding)
        if saturate:
            largest = float(ml_dtypes.finfo(to.numpy).max)  # type: ignore[no-untyped-call]
            x = np.clip(x, -largest, largest)
        return x.astype(to.numpy)


def _powers(x: Any, saturate: bool, rounding: str) -> Any:
    fraction, exponent = np.frexp(np.abs(x).astype(np.float64))  # in [1/2, 1)
    code = np.maximum(exponent - 1 + 127, 0)
    rest = np.where(np.abs(x) < 2.0**-126, np.abs(x) * 2.0**126, np.where(x == 0, 0, fraction * 2 - 1))
    code = np.where(np.abs(x) < 2.0**-126, 0, code)
    up = {"up": rest > 0, "down": np.zeros_like(rest, bool),
          "nearest": (rest > 0.5) | ((rest == 0.5) & (code > 0))}[rounding]  # fmt: skip
    code = np.minimum(code + up, 254 if saturate else 255)
    return np.where(np.isfinite(x), code, 255).astype(np.uint8).view(ml_dtypes.float8_e8m0fnu)


def _from_oracle(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> np.ndarray:
    (x,), to = arrays, attrs["to"].numpy
    whole = x.dtype in {d.numpy for d in INTEGER_BITS}
    return np.asarray(cast_array(x.astype(np.int32 if whole else np.float32), to))


def _to_oracle(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> np.ndarray:
    return np.asarray(array_to_narrow(arrays[0], attrs["to"], attrs["saturate"], attrs["rounding"]))


# ---- samples ---------------------------------------------------------------------------------------------------------
NARROW = (*INTEGER_BITS, *FORMATS, DType.F8E8M0)
_EDGES = np.array(
    [0, -0.0, 1, -1, 0.3, -0.3, 2.75, 7, 8, -8.5, 13, 239, 247.9, 248, 448, 463.9, 464, 480, -57344, 61439, 61440, 1e6,
     -1e6, 1e-3, 2.0**-6, 2.0**-7, 2.0**-9, 2.0**-10, 1.5 * 2.0**-10, 2.0**-16, 3 * 2.0**-18, 2.0**-17, 2.0**-18, 1e-30,
     1e-39, 3e38, 5, 6, 0.25, 0.75, 1.25, np.inf, -np.inf, np.nan], np.float32,
)  # fmt: skip


def _every_code(dtype: DType) -> np.ndarray:
    bits = INTEGER_BITS.get(dtype, 4 if dtype is DType.F4E2M1 else 8)
    return np.arange(1 << bits, dtype=np.uint8).view(dtype.numpy)


def _to_samples() -> tuple[Sample, ...]:
    out = [Sample((_EDGES,), {"to": d, "saturate": s}) for d in FORMATS for s in (True, False)]
    out += [Sample((np.arange(-20, 30, dtype=np.int32),), {"to": d}) for d in INTEGER_BITS]
    out += [Sample((np.array([[-8.5, 7.9, 100], [3, -0.5, 17]], np.float32),), {"to": d}) for d in INTEGER_BITS]
    out += [Sample((_EDGES,), {"to": DType.F8E8M0, "saturate": s, "rounding": r}) for s in (True, False)
            for r in ROUNDINGS]  # fmt: skip
    return (*out, Sample((np.linspace(-9, 9, 15).astype(np.float16),), {"to": DType.F8E4M3}))


OPERATORS: tuple[Operator, ...] = (
    Operator("from_narrow", Kind.STRUCTURED, ("x",), _infer_from, _from_oracle, {"to": REQUIRED}, _from_structure,
             samples=(*(Sample((_every_code(d),), {"to": DType.F32}) for d in NARROW),
                      Sample((_every_code(DType.I4),), {"to": DType.I8}),
                      Sample((_every_code(DType.F8E5M2),), {"to": DType.F16}))),
    Operator("to_narrow", Kind.STRUCTURED, ("x",), _infer_to, _to_oracle,
             {"to": REQUIRED, "saturate": True, "rounding": "up"}, _to_structure, samples=_to_samples()),
)  # fmt: skip
