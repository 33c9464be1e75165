"""Makes table entries for operators that broadcast their inputs and apply one scalar formula to each point.

    pointwise("exp", lambda attrs, x: apply("exp", x), lambda attrs, x: np.exp(x))

Half precision (f16, bf16) is widened to float32 for the formula and rounded once at the end, in the structure and in
the oracle alike: for a single sum, product or quotient this is the correctly rounded result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from opfuse.ir.ops.broadcast import (
    access,
    accumulator,
    broadcast,
    output_axes,
    require_broadcast_to,
    require_kind,
    require_one_dtype,
)
from opfuse.ir.ops.definition import Call, Kind, Operator, Oracle, Sample
from opfuse.ir.scalar import Operand, Scalar, cast
from opfuse.ir.structure import Access, Structure
from opfuse.ir.types import DType, TensorType

Formula = Callable[..., Scalar]  # (attributes, one scalar or None for each input) -> scalar
ArrayFunction = Callable[..., Any]  # (attributes, one array or None for each input) -> array


def is_half(dtype: np.dtype) -> bool:
    return dtype in (DType.F16.numpy, DType.BF16.numpy)


def widen(a: Any) -> Any:
    """Half precision as float32; everything else as it is."""
    return a.astype(np.float32) if a is not None and is_half(a.dtype) else a


def array_oracle(function: ArrayFunction, *, typed: int = 0, result: DType | None = None) -> Oracle:
    """An oracle from a function of whole arrays: widens half precision, silences warnings, fixes the result's type.

    The result has the type of input number `typed`, or `result`.
    """

    def oracle(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> np.ndarray:
        dtype = result.numpy if result is not None else arrays[typed].dtype
        with np.errstate(all="ignore"):
            return np.asarray(function(attrs, *[widen(a) for a in arrays])).astype(dtype, copy=False)

    return oracle


def pointwise(
    name: str,
    formula: Formula,
    function: ArrayFunction,
    *,
    inputs: tuple[str, ...] = ("x",),
    kinds: str = "f",
    attrs: Mapping[str, Any] | None = None,
    result: DType | None = None,
    typed: int = 0,
    onto_first: bool = False,
    rounds: bool = True,
    samples: tuple[Sample, ...] = (),
) -> Operator:
    """An elementwise operator: one formula of a point of each input, and the same as a function of whole arrays.

    Inputs from number `typed` on share one type, of one of `kinds`, which is the result's too unless `result` names
    another; those before it are conditions (bool). `onto_first`: nothing may widen input 0. `rounds` False: the formula
    only chooses among its operands, so that half precision need not be widened.
    """
    count = len(inputs)

    def infer(call: Call) -> TensorType:
        for k in range(typed):
            require_kind(call.type(k), "b", f"input {inputs[k]!r}")
        require_kind(call.type(typed), kinds, f"input {inputs[typed]!r}")
        dtype = require_one_dtype(call, typed)
        shapes = [t.shape for t in call.inputs if t is not None]
        if onto_first:
            for k, shape in enumerate(shapes[1:], 1):
                require_broadcast_to(shape, shapes[0], f"input {inputs[k].rstrip('?')!r}")
        return TensorType(result or dtype, broadcast(*shapes))

    def structure(call: Call) -> Structure:
        axes, reads, operands = output_axes(call.output.shape), list[Access](), list[Scalar | None]()
        for k in range(count):
            if not call.has(k):
                operands.append(None)
                continue
            x: Scalar = Operand(len(reads), call.type(k).dtype)
            operands.append(cast(x, accumulator(x.dtype)) if rounds else x)
            reads.append(access(k, call.shape(k), axes))
        return Structure(axes, tuple(reads), cast(formula(call.attrs, *operands), call.output.dtype))

    def complete(attrs: Mapping[str, Any], *arrays: Any) -> Any:
        return function(attrs, *arrays, *[None] * (count - len(arrays)))

    oracle = array_oracle(complete, typed=typed, result=result)
    return Operator(
        name,
        Kind.STRUCTURED,
        inputs,
        infer,
        oracle,
        attrs or {},
        structure,
        samples=samples or samples_for(count, kinds),
    )


def samples_for(count: int, kinds: str) -> tuple[Sample, ...]:
    """Small calls for inputs of one type: odd shapes, broadcasting, rank 0, size 0, special values, integers, bools."""
    shapes: list[tuple[tuple[int, ...], ...]] = [((3, 5),), ((17,),), ((),), ((2, 0),)]
    if count == 2:
        shapes = [((3, 5), (3, 5)), ((2, 1, 7), (3, 1)), ((), (4,)), ((2, 0), (1,))]
    if count == 3:
        shapes = [((3, 5), (3, 5), (3, 5)), ((2, 1, 7), (3, 1), ())]
    out = [Sample(s) for s in shapes] if "f" in kinds else []
    if "f" in kinds:
        out.append(Sample(tuple(np.roll(_SPECIAL, 3 * k) for k in range(count))))
        out.append(Sample(tuple(np.linspace(-2.5 + k, 2.5, 9, dtype=np.float16) for k in range(count))))
    if "i" in kinds:
        whole = (np.array([[-7, 7, -1], [5, -8, 9]]), np.array([2, -2, 3]), np.array(4))
        out += [Sample(tuple(a.astype(t) for a in whole[:count])) for t in (np.int64, np.int32)]
        out.append(Sample(tuple(np.array(v, np.uint8) for v in ((200, 255, 3), (200, 255, 2), (7, 1, 2))[:count])))
    if "b" in kinds:
        truth = (np.array([[True], [False]]), np.array([True, False, True]), np.array(True))
        out += [Sample(truth[:count]), Sample(tuple(np.array(k % 2 == 0) for k in range(count)))]
        out.append(Sample(tuple(np.zeros((0, 2) if k == 0 else (1,), np.bool_) for k in range(count))))
    return tuple(out)


_SPECIAL = np.array([np.nan, -np.inf, np.inf, -0.0, 0.0, 1.0, -1.0, 0.5, 2.5, -2.5, 88.0], np.float32)
