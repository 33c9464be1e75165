"""ONNX element types, tensors and declared shapes in the terms of the IR.

    tensor_array(initializer, folder)             -> NumPy array, from any storage form, external data mapped not copied
    SymbolNames(model).tensor_type(value_info)    -> f32[batch, 3, x_2, x_3]

A dimension with a name becomes the symbol of that name. One without ("", "?", -1, or nothing at all) becomes a symbol
of its own, named after the input and the axis.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, ValueInfoProto, numpy_helper

from opfuse.ir.dims import Dim, symbol
from opfuse.ir.types import DType, TensorType

ELEMENT_TYPES: dict[int, DType] = {
    TensorProto.DOUBLE: DType.F64, TensorProto.FLOAT: DType.F32, TensorProto.FLOAT16: DType.F16,
    TensorProto.BFLOAT16: DType.BF16, TensorProto.INT64: DType.I64, TensorProto.INT32: DType.I32,
    TensorProto.INT16: DType.I16, TensorProto.INT8: DType.I8, TensorProto.UINT64: DType.U64,
    TensorProto.UINT32: DType.U32, TensorProto.UINT16: DType.U16, TensorProto.UINT8: DType.U8,
    TensorProto.BOOL: DType.BOOL, TensorProto.INT4: DType.I4, TensorProto.UINT4: DType.U4, TensorProto.INT2: DType.I2,
    TensorProto.UINT2: DType.U2, TensorProto.FLOAT8E4M3FN: DType.F8E4M3, TensorProto.FLOAT8E4M3FNUZ: DType.F8E4M3Z,
    TensorProto.FLOAT8E5M2: DType.F8E5M2, TensorProto.FLOAT8E5M2FNUZ: DType.F8E5M2Z,
    TensorProto.FLOAT8E8M0: DType.F8E8M0, TensorProto.FLOAT4E2M1: DType.F4E2M1,
}  # fmt: skip
_ONNX_NAMES = {d: f"tensor({TensorProto.DataType.Name(e).lower()})" for e, d in ELEMENT_TYPES.items()}
_PACKED = tuple(d.numpy for d in (DType.I4, DType.U4, DType.I2, DType.U2, DType.F4E2M1))
ANONYMOUS = ("", "?")  # spellings of "some number, related to no other": Paddle writes "?" for all of them


class TensorDataError(ValueError):
    """A tensor of the model whose data are missing or do not fit its shape; `code` is a slug."""

    def __init__(self, text: str, code: str = "bad-tensor") -> None:
        self.code = code
        super().__init__(text)


class ElementTypeError(ValueError):
    """An element type (string, complex) or a kind of value that the IR does not have."""


def element_type(number: int) -> DType:
    """The DType of an ONNX element type; ElementTypeError where there is none."""
    found = ELEMENT_TYPES.get(number)
    if found is None:
        known = number in TensorProto.DataType.values()
        name = TensorProto.DataType.Name(number).lower() if known else f"number {number}"
        raise ElementTypeError(f"element type {name} is not supported")
    return found


def onnx_name(dtype: DType) -> str:
    """The type as operator schemas spell it: "tensor(float)"."""
    return _ONNX_NAMES[dtype]


class SymbolNames:
    """Turns declared types into IR types; keeps the made-up names apart from the model's own."""

    def __init__(self, values: Iterable[ValueInfoProto]) -> None:
        self._taken = {d.dim_param for v in values for d in v.type.tensor_type.shape.dim if d.dim_param}

    def tensor_type(self, value: ValueInfoProto) -> TensorType:
        """The declared type; ElementTypeError where the IR has none such, ValueError where it has no rank."""
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            raise ElementTypeError(f"a value of kind {(kind or 'unknown').removesuffix('_type')} is not supported")
        tensor = value.type.tensor_type
        dtype = element_type(tensor.elem_type)
        if not tensor.HasField("shape"):
            raise ValueError("it has no declared rank")
        return TensorType(dtype, tuple(self._dim(d, f"{value.name}_{k}") for k, d in enumerate(tensor.shape.dim)))

    def _dim(self, dim: Any, fresh: str) -> Dim:
        if dim.WhichOneof("value") == "dim_value" and dim.dim_value >= 0:
            return int(dim.dim_value)
        if dim.dim_param not in ANONYMOUS:
            return symbol(dim.dim_param)
        while fresh in self._taken:
            fresh += "_"
        self._taken.add(fresh)
        return symbol(fresh)


def tensor_array(tensor: TensorProto, folder: Path | None) -> np.ndarray:
    """The tensor as an array. `folder` is where external data lie; None where the model came without a place.

    External data are mapped, not read. ElementTypeError and TensorDataError say what is wrong.
    """
    dtype = element_type(tensor.data_type).numpy
    shape = tuple(tensor.dims)
    if any(d < 0 for d in shape):
        raise TensorDataError(f"it has the negative dimension {min(shape)}")
    if tensor.data_location == TensorProto.EXTERNAL:
        return _external(tensor, folder, dtype, shape)
    try:
        array = np.asarray(numpy_helper.to_array(tensor))
    except (ValueError, TypeError) as error:
        raise TensorDataError(f"its data do not fill its shape {list(shape)}: {error}") from error
    if array.shape != shape:
        raise TensorDataError(f"it holds shape {list(array.shape)} and declares {list(shape)}")
    return array.astype(dtype, copy=False)


def _external(tensor: TensorProto, folder: Path | None, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """Map a tensor that lies in a file of its own (key-value pairs: location, offset, length)."""
    entries = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise TensorDataError(f"its data lie in the file {location!r}, and the model came without a path", "no-folder")
    path = (folder / location).resolve()
    if not location or Path(location).is_absolute() or not path.is_relative_to(folder.resolve()):
        raise TensorDataError(f"its data lie in {location!r}, outside the folder of the model", "external-data-outside")
    if not path.is_file():
        raise TensorDataError(
            f"its data should lie in {str(path)!r}, and there is no such file", "external-data-missing"
        )
    if dtype in _PACKED:
        raise ElementTypeError(f"external data of {dtype}, several numbers in a byte, are not supported")
    count = int(np.prod(shape, dtype=np.int64))
    try:
        offset = int(entries.get("offset") or 0)
        length = int(entries.get("length") or count * dtype.itemsize)
    except ValueError as error:
        raise TensorDataError(f"the place of its external data is malformed: {error}") from error
    if length != count * dtype.itemsize:
        raise TensorDataError(
            f"its external data have {length} bytes, shape {list(shape)} needs {count * dtype.itemsize}"
        )
    if offset < 0 or offset + length > path.stat().st_size:
        end = f"needs bytes {offset} to {offset + length} of {str(path)!r}"
        raise TensorDataError(f"it {end}, which has {path.stat().st_size}", "external-data-truncated")
    if count == 0:
        return np.zeros(shape, dtype)
    raw = np.asarray(np.memmap(path, np.uint8, "r", offset, (length,)))
    if sys.byteorder == "big":
        raw = raw.reshape(-1, dtype.itemsize)[:, ::-1].reshape(-1)
    return raw.view(dtype).reshape(shape)


def sparse_array(sparse: onnx.SparseTensorProto, folder: Path | None) -> np.ndarray:
    """A sparse tensor made dense: values at linear positions, or at rows of coordinates."""
    values, indices = tensor_array(sparse.values, folder), tensor_array(sparse.indices, folder)
    out = np.zeros(tuple(sparse.dims), values.dtype)
    positions = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), out.shape)
    if positions.size != values.size or (positions.size and not 0 <= positions.min() <= positions.max() < out.size):
        raise TensorDataError(f"its indices do not fit its shape {list(out.shape)}")
    out.reshape(-1)[positions] = values
    return out
