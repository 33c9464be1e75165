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
        return not self.is_float and self is not DType.BOOL

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
    DType.BOOL: np.dtype(np.bool_),
}  # fmt: skip
_FROM_NUMPY = {n: d for d, n in _NUMPY.items()}
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
