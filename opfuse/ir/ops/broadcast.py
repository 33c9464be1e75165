"""Shapes that broadcast, the axes of an output, and the index maps that read a smaller operand.

    broadcast((8, 1, 384), (S, 384))        -> (8, S, 384)
    axes = output_axes((8, S, 384))         -> i0<8>, i1<S>, i2<384>
    access(1, (384,), axes)                 -> Access(operand 1, [i2])

Two dimensions fit where they are equal or one of them is 1. Different symbols never fit: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Sequence

from opfuse.ir.dims import Dim, dims_text
from opfuse.ir.index import Index
from opfuse.ir.ops.definition import Call, OperatorError
from opfuse.ir.structure import Access, Axis
from opfuse.ir.types import DType, TensorType

Shape = tuple[Dim, ...]


def broadcast(*shapes: Sequence[Dim]) -> Shape:
    """The shape of such operands together, by NumPy's rule; OperatorError names two dimensions that do not fit."""
    rank = max((len(s) for s in shapes), default=0)
    out: list[Dim] = [1] * rank
    for shape in shapes:
        for k, d in enumerate(shape, rank - len(shape)):
            if d == 1 or d == out[k]:
                continue
            if out[k] != 1:
                texts = ", ".join(f"[{dims_text(s)}]" for s in shapes)
                raise OperatorError(f"shapes {texts} do not broadcast: {out[k]} and {d} in dimension {k} of the result")
            out[k] = d
    return tuple(out)


def require_broadcast_to(shape: Sequence[Dim], target: Shape, name: str) -> None:
    """OperatorError where an operand would widen the target."""
    if broadcast(shape, target) != target:
        raise OperatorError(f"{name} of shape [{dims_text(shape)}] does not broadcast to [{dims_text(target)}]")


def output_axes(shape: Sequence[Dim], prefix: str = "i") -> tuple[Axis, ...]:
    return tuple(Axis(f"{prefix}{k}", d) for k, d in enumerate(shape))


def extents_of(*axes: Axis) -> dict[str, Dim]:
    return {a.name: a.extent for a in axes}


def position(axis: Axis) -> Index:
    """The index of an axis; plain 0 along an axis of extent 1."""
    return Index() if axis.extent == 1 else axis.index


def access(operand: int, shape: Sequence[Dim], axes: Sequence[Axis]) -> Access:
    """Read an operand that broadcasts against the last axes: position 0 along its dimensions of extent 1."""
    aligned = axes[len(axes) - len(shape) :]
    return Access(operand, tuple(Index() if d == 1 else a.index for d, a in zip(shape, aligned, strict=True)))


# ---- element types ---------------------------------------------------------------------------------------------------
def kind_of(dtype: DType) -> str:
    """One letter, as in the table of scalar functions: f float, i integer, b bool; n narrow."""
    return "f" if dtype.is_float else "i" if dtype.is_integer else "b" if dtype is DType.BOOL else "n"


_KIND_NAMES = {"f": "float", "i": "integer", "b": "bool", "n": "a narrow type"}


def require_kind(t: TensorType, kinds: str, name: str) -> None:
    if kind_of(t.dtype) not in kinds:
        raise OperatorError(f"{name} is {t.dtype.value}, but must be {' or '.join(_KIND_NAMES[k] for k in kinds)}")


def require_one_dtype(call: Call, first: int = 0) -> DType:
    """The element type that all inputs from number `first` share; OperatorError names two that differ."""
    types = [t.dtype for t in call.inputs[first:] if t is not None]
    if other := [t for t in types if t is not types[0]]:
        raise OperatorError(f"inputs of different types {types[0].value} and {other[0].value}; cast first")
    return types[0]


def accumulator(dtype: DType) -> DType:
    """The type in which values are computed and summed: half precision goes through float32."""
    return DType.F32 if dtype in (DType.F16, DType.BF16) else dtype


def normal_axis(axis: int, rank: int) -> int:
    """The axis itself; OperatorError where it does not lie in [0, rank)."""
    if not 0 <= axis < rank:
        raise OperatorError(f"axis {axis} is outside a tensor of rank {rank}")
    return axis
