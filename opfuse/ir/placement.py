"""Values that lie inside another's bytes: a slice in what it is cut from, a part in what it is joined into.

    Placement("whole", 48, (96, 1))       element [r, c] lies at whole's element 48 + 96 r + c

`cut_of` and `joint_of` read from a structure, never from an operator's name, that a value is a box cut from another, or
its inputs side by side. All numbers are in elements; extents are known numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from opfuse.decision import Refusal
from opfuse.ir.index import AxisTerm, Index
from opfuse.ir.scalar import Apply, Const, Operand, Position, Scalar
from opfuse.ir.structure import Structure

Shape = tuple[int, ...]
Strides = tuple[int, ...]


@dataclass(frozen=True)
class Placement:
    """Where a value lies: the value that owns the bytes, its first element there, steps between neighbours."""

    root: str
    offset: int
    strides: Strides


def dense(shape: Sequence[int]) -> Strides:
    """Row-major strides without gaps."""
    out, step = [], 1
    for extent in reversed(shape):
        out.append(step)
        step *= extent
    return tuple(reversed(out))


def is_dense(shape: Sequence[int], strides: Strides) -> bool:
    return all(d == 1 or a == b for d, a, b in zip(shape, strides, dense(shape), strict=True))


def reshaped(shape: Sequence[int], strides: Strides, to: Sequence[int]) -> Strides | Refusal:
    """Strides of the same elements under another shape, in the same row-major order."""
    if 0 in to:
        return dense(to)
    old = [(d, s) for d, s in zip(shape, strides, strict=True) if d != 1]
    out: list[int] = []
    step = 1  # of the part of an old dimension that is walked next, from the innermost outwards
    left = 1  # how much of that part is left
    for extent in reversed(to):
        if extent == 1:
            out.append(step)
            continue
        if left == 1 and old:
            left, step = old.pop()
        while left % extent and old and old[-1][1] == step * left:  # the next one goes on where this one ends
            left *= old.pop()[0]
        if left % extent:
            return Refusal("gaps", "its elements do not lie at even steps under that shape",
                           {"shape": list(shape), "strides": list(strides), "to": list(to)})  # fmt: skip
        out.append(step)
        step, left = step * extent, left // extent
    return tuple(reversed(out))


# ---- cut from ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Cut:
    """Which box of its source a value is: the first index and the step along each of the source's dimensions."""

    starts: tuple[int, ...]
    steps: tuple[int, ...]

    def placed(self, source: Placement) -> Placement:
        offset = sum(s * at for s, at in zip(source.strides, self.starts, strict=True))
        strides = tuple(s * step for s, step in zip(source.strides, self.steps, strict=True))
        return Placement(source.root, source.offset + offset, strides)


def cut_of(s: Structure) -> Cut | Refusal:
    """The box, dimension for dimension, with neighbours along the innermost one side by side."""
    no = Refusal("not-a-box", "its elements are not a box of one input in the input's own order")
    if not s.is_movement or len(s.reads[0].index) != len(s.axes) or any(a.extent == 0 for a in s.axes):
        return no
    starts, steps = [], []
    for a, i in zip(s.axes, s.reads[0].index, strict=True):
        step = i.coefficient(a.name)
        if not isinstance(i.const, int) or not isinstance(step, int) or step < 0:
            return no
        if i.axes - {a.name} or not i.affine or (step == 0 and a.extent != 1):
            return no
        starts.append(i.const)
        steps.append(step or 1)
    wide = [step for a, step in zip(s.axes, steps, strict=True) if a.extent != 1]
    if wide and steps[-1] * (s.axes[-1].extent != 1) != 1:
        return Refusal("apart", "neighbours along its last dimension do not lie side by side in the input")
    return Cut(tuple(starts), tuple(steps))


# ---- joined into -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Joint:
    """The value is its reads side by side along a dimension: read k begins at `starts[k]`."""

    axis: int
    starts: tuple[int, ...]
    operands: tuple[int, ...]  # the node's input behind each read


def joint_of(s: Structure) -> Joint | Refusal:
    """How the value is put together, where it is nothing but its inputs side by side."""
    no = Refusal("not-a-joint", "it is not its inputs side by side")
    if s.reduce_axes or len(s.reads) < 2:
        return no
    moved = {d for r in s.reads for d, (a, i) in enumerate(zip(s.axes, r.index, strict=False)) if i != a.index}
    if len(moved) != 1 or any(len(r.index) != len(s.axes) for r in s.reads):
        return no
    axis = next(iter(moved))
    starts = [_start(r.index[axis], s.axes[axis].name) for r in s.reads]
    ends = _ends(s.body, s.axes[axis].name)
    if isinstance(ends, Refusal) or ends != starts[1:] or starts[0] != 0:
        return no
    return Joint(axis, tuple(x for x in starts if isinstance(x, int)), tuple(r.operand for r in s.reads))


def _start(i: Index, axis: str) -> int | Refusal:
    """How far before an axis' index a read stands."""
    if i.terms == ((AxisTerm(axis), 1),) and isinstance(i.const, int):
        return -i.const
    return Refusal("not-a-joint", "a read does not walk along with the output")


def _ends(body: Scalar, axis: str) -> list[int | Refusal] | Refusal:
    """Where the reads end, of the formula "below this end one of the first reads, else one of the others"."""
    no = Refusal("not-a-joint", "the formula does not pick its inputs one after another")
    ends: list[int | Refusal] = []
    reads = 0
    todo: list[Scalar | int] = [body]
    while todo:
        match todo.pop():
            case int(end):
                ends.append(end)
            case Operand(n) if n == reads:
                reads += 1
            case Apply("select", (Apply("lt", (Position(name), Const(int(end))), _), first, others), _) if name == axis:
                todo += [others, end, first]
            case _:
                return no
    return ends
