"""What a caller may pass as an input: made an array that native code can read, or an error that says what to pass.

NumPy arrays of the right type and shape go through untouched; anything with `__dlpack__` (a tensor of a framework, on
the CPU) is read without a copy; arrays with gaps between their elements are copied. Nothing is cast.

    read_array("x", tensor, DType.F32) -> ndarray
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from opfuse.errors import InputError
from opfuse.ir.dims import Dim, dims_text
from opfuse.ir.types import DType


def read_array(name: str, value: Any, dtype: DType) -> np.ndarray:
    """The value as a contiguous, aligned array of the type; its shape is not looked at. InputError otherwise."""
    array = _as_array(name, value, dtype)
    if array.dtype != dtype.numpy:
        raise InputError(
            name, f"is {array.dtype}, the model wants {dtype.numpy}",
            f"pass {name}.astype({_spelled(dtype)})", code="input-dtype",
        )  # fmt: skip
    if not array.flags.c_contiguous or not array.flags.aligned:
        array = np.array(array, order="C", copy=True)
    return array


def check_shape(name: str, array: np.ndarray, shape: Sequence[Dim]) -> None:
    """InputError where the rank or an extent that is a number differs."""
    fits = array.ndim == len(shape) and all(
        not isinstance(want, int) or want == got for want, got in zip(shape, array.shape, strict=True)
    )
    if not fits:
        wanted = dims_text(shape)
        problem = f"has the shape [{dims_text(array.shape)}], the model wants [{wanted}]"
        raise InputError(name, problem, code="input-shape")


def check_range(name: str, array: np.ndarray, low: int, high: int, node: str) -> None:
    """InputError where an element is no index that the node can use."""
    if not array.size or (int(array.min()) >= low and int(array.max()) <= high):
        return
    wrong = int(array[(array < low) | (array > high)].flat[0])
    raise InputError(name, f"holds the index {wrong}, but {node!r} picks from {high + 1} elements",
                     f"pass numbers from {low} to {high}", code="input-range")  # fmt: skip


def _as_array(name: str, value: Any, dtype: DType) -> np.ndarray:
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    if isinstance(value, np.generic):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except Exception as error:  # whatever the other framework raises: on another device, needs a gradient, its type
            way_out = "pass a detached tensor in CPU memory, of a type that NumPy has"
            raise InputError(name, f"cannot be read through DLPack: {error}", way_out, code="input-dlpack") from error
    raise InputError(
        name, f"is a {type(value).__name__}, not an array",
        f"pass numpy.asarray({name}, {_spelled(dtype)})", code="input-type",
    )  # fmt: skip


def _spelled(dtype: DType) -> str:
    return f"ml_dtypes.{dtype.numpy}" if dtype is DType.BF16 else f"numpy.{dtype.numpy}"
