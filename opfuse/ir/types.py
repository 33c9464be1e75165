"""Element types and tensor types.

    TensorType(DType.F32, (1, symbol("S"), 384)).bytes   -> 4 * 384 * S as a Dim
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from opfuse.ir.dims import Bindings, Dim, bind, dims_text, product


class DType(enum.Enum):
    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    U64 = "u64"
    U32 = "u32"
    U16 = "u16"
    U8 = "u8"
    BOOL = "bool"
    # Narrow: each number in a byte of its own; kept, moved and converted, never computed with.
    I4 = "i4"
    U4 = "u4"
    I2 = "i2"
    U2 = "u2"
    F8E4M3 = "f8e4m3"
    F8E4M3Z = "f8e4m3z"
    F8E5M2 = "f8e5m2"
    F8E5M2Z = "f8e5m2z"
    F8E8M0 = "f8e8m0"
    F4E2M1 = "f4e2m1"

    @property
    def numpy(self) -> np.dtype:
        return _NUMPY[self]

    @property
    def bytes(self) -> int:
        return _NUMPY[self].itemsize

    @property
    def is_float(self) -> bool:
        return self in _FLOATS

    @property
    def is_signed(self) -> bool:
        return self.is_float or self in (DType.I64, DType.I32, DType.I16, DType.I8)

    @property
    def is_integer(self) -> bool:
        return not self.is_float and self is not DType.BOOL and not self.is_narrow

    @property
    def is_narrow(self) -> bool:
        return self in _NARROW

    def __repr__(self) -> str:
        return self.value

    @staticmethod
    def of(dtype: np.dtype | type) -> DType:
        """The DType of a NumPy dtype; KeyError where there is none (strings, objects, complex numbers)."""
        return _FROM_NUMPY[np.dtype(dtype)]


_NUMPY: dict[DType, np.dtype] = {
    DType.F64: np.dtype(np.float64), DType.F32: np.dtype(np.float32), DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(ml_dtypes.bfloat16), DType.I64: np.dtype(np.int64), DType.I32: np.dtype(np.int32),
    DType.I16: np.dtype(np.int16), DType.I8: np.dtype(np.int8), DType.U64: np.dtype(np.uint64),
    DType.U32: np.dtype(np.uint32), DType.U16: np.dtype(np.uint16), DType.U8: np.dtype(np.uint8),
    DType.BOOL: np.dtype(np.bool_), DType.I4: np.dtype(ml_dtypes.int4), DType.U4: np.dtype(ml_dtypes.uint4),
    DType.I2: np.dtype(ml_dtypes.int2), DType.U2: np.dtype(ml_dtypes.uint2),
    DType.F8E4M3: np.dtype(ml_dtypes.float8_e4m3fn), DType.F8E4M3Z: np.dtype(ml_dtypes.float8_e4m3fnuz),
    DType.F8E5M2: np.dtype(ml_dtypes.float8_e5m2), DType.F8E5M2Z: np.dtype(ml_dtypes.float8_e5m2fnuz),
    DType.F8E8M0: np.dtype(ml_dtypes.float8_e8m0fnu), DType.F4E2M1: np.dtype(ml_dtypes.float4_e2m1fn),
}  # fmt: skip
_FROM_NUMPY = {n: d for d, n in _NUMPY.items()}
_NARROW = tuple(DType)[tuple(DType).index(DType.I4) :]
_FLOATS = (DType.F64, DType.F32, DType.F16, DType.BF16)


@dataclass(frozen=True)
class TensorType:
    dtype: DType
    shape: tuple[Dim, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def elements(self) -> Dim:
        return product(self.shape)

    @property
    def bytes(self) -> Dim:
        return self.elements * self.dtype.bytes

    def bind(self, values: Bindings) -> TensorType:
        return TensorType(self.dtype, tuple(bind(d, values) for d in self.shape))

    @property
    def static(self) -> bool:
        return all(isinstance(d, int) for d in self.shape)

    @property
    def static_shape(self) -> tuple[int, ...]:
        """The shape as integers; ValueError names the first dimension that is still symbolic."""
        for d in self.shape:
            if not isinstance(d, int):
                raise ValueError(f"dimension {d} is not bound to a number")
        return self.shape  # type: ignore[return-value]

    def __str__(self) -> str:
        return f"{self.dtype.value}[{dims_text(self.shape)}]"
