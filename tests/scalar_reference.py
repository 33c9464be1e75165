"""The scalar functions in NumPy, for every interpreter of the tests: a column that shares nothing with the engine's.

`div`, `pow` and `cast` are each interpreter's own, since they depend on the types that it carries.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np


def _sigmoid(x: Any) -> Any:
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


REFERENCE: dict[str, Callable[..., Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "floordiv": np.floor_divide, "mod": np.mod, "fmod": np.fmod,
    "max": np.maximum, "min": np.minimum, "neg": np.negative, "abs": np.abs, "sign": np.sign,
    "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": np.vectorize(math.erf, otypes=[np.float64]), "tanh": np.tanh, "sigmoid": _sigmoid,
    "sin": np.sin, "cos": np.cos, "floor": np.floor, "ceil": np.ceil, "rint": np.rint,
    "lt": np.less, "le": np.less_equal, "eq": np.equal, "gt": np.greater, "ge": np.greater_equal, "ne": np.not_equal,
    "and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor, "not": np.logical_not,
    "isnan": np.isnan, "isinf": np.isinf, "select": np.where,
}  # fmt: skip
OWN = {"div", "pow", "cast"}
