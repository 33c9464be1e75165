"""The scalar functions in NumPy, for every interpreter of the tests: a column that shares nothing with the engine's.

`div`, `pow`, `cast` and `bits` are each interpreter's own, since they depend on the types that it carries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np


def _sigmoid(x: Any) -> Any:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def _shift(a: Any, b: Any, shift: Callable[[int, int], int]) -> Any:
    """By Python's integers, which have no width: a count outside of it is one that is larger than any."""
    a, b = np.asarray(a), np.asarray(b)
    width = 8 * a.dtype.itemsize
    made = [shift(int(n), int(k) if 0 <= k < width else width) % 2**width for n, k in np.broadcast(a, b)]
    return np.array(made, f"u{a.dtype.itemsize}").astype(a.dtype).reshape(np.broadcast(a, b).shape)


REFERENCE: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": np.floor_divide, "mod": np.mod, "fmod": np.fmod,
    "max": np.maximum, "min": np.minimum, "neg": np.negative, "abs": np.abs, "sign": np.sign,
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": np.vectorize(math.erf, otypes=[np.float64]), "tanh": np.tanh, "sigmoid": _sigmoid,
    "expm1": np.expm1, "log1p": np.log1p,
    "normcdf": np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)), otypes=[np.float64]),
    "sin": np.sin, "cos": np.cos, "floor": np.floor, "ceil": np.ceil, "rint": np.rint,
    "lt": np.less, "le": np.less_equal, "eq": np.equal, "gt": np.greater, "ge": np.greater_equal, "ne": np.not_equal,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.bitwise_not,
    "shl": lambda a, b: _shift(a, b, lambda n, k: n << k), "shr": lambda a, b: _shift(a, b, lambda n, k: n >> k),
    "isnan": np.isnan, "isinf": np.isinf, "select": np.where,
}  # fmt: skip
OWN = {"div", "pow", "cast", "bits"}


def reinterpret(x: Any, source: Any, to: Any) -> Any:
    """The bits of x, a number of NumPy type `source`, as type `to`; floats come and go as float64."""
    flat = np.frombuffer(np.asarray(x).astype(source).tobytes(), to).reshape(np.shape(x))
    return flat.astype(np.float64) if flat.dtype.name in ("float64", "float32", "float16", "bfloat16") else flat
