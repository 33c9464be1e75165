"""What an operator computes, as loops: iteration space, index maps, scalar formula. What MLIR calls a structured op.

Fusion decides legality from this and never from operator names, and code generators print nothing else.

A `Structure` describes one output. `axes` are its parallel axes, one for each output dimension, in order: the output
point is the identity map. `reduce_axes` are summed (or maximised, ...) over. Reads are index maps with an optional pad
value: what the *model* says stands outside the tensor (a window's border); None says that no read leaves it.

    MatMul    axes (m, n)  reduce (k)   reads a[m, k], b[k, n]     body $0 * $1   combine sum
    Relu      axes (i, j)               reads x[i, j]              body relu($0)
    Transpose axes (i, j)               reads x[j, i]              body $0
    MaxPool   axes (n, y, x, c) reduce (p, q)  reads x[n, 2y+p-1, 2x+q-1, c] pad -inf   body $0   combine max
    Mean      axes (i) reduce (j)       reads x[i, j]              body $0   combine sum   finish $0 * (1/N)
"""

from __future__ import annotations

from dataclasses import dataclass

from opfuse.ir.dims import Dim
from opfuse.ir.index import Gathered, Index, axis
from opfuse.ir.scalar import Apply, Const, Operand, Scalar, text, walk


@dataclass(frozen=True)
class Axis:
    """A named loop. Names are unique inside a structure or a tile program."""

    name: str
    extent: Dim

    @property
    def index(self) -> Index:
        return axis(self.name)

    def __str__(self) -> str:
        return f"{self.name}<{self.extent}>"


@dataclass(frozen=True)
class Access:
    """One read of the node's input number `operand` at `index` (one `Index` a dimension)."""

    operand: int
    index: tuple[Index, ...]
    pad: Const | None = None

    @property
    def gathers(self) -> tuple[int, ...]:
        """Numbers of the reads whose values stand in the index."""
        return tuple(
            t.source for i in self.index for t, _ in i.terms if isinstance(t, Gathered) and isinstance(t.source, int)
        )


COMBINERS = ("sum", "max", "min", "prod", "and", "or")


@dataclass(frozen=True)
class Structure:
    axes: tuple[Axis, ...]
    reads: tuple[Access, ...]
    body: Scalar  # leaves: Operand(read number), Position(axis), Const
    reduce_axes: tuple[Axis, ...] = ()
    combine: str | None = None  # one of COMBINERS where there are reduce axes
    finish: Scalar | None = None  # after the reduction: leaf Operand(0) is the reduced value

    @property
    def is_contraction(self) -> bool:
        """A sum of products of two reads, perhaps widened first: what a matrix unit can do."""
        if self.combine != "sum" or len(self.reads) != 2:
            return False
        match self.body:
            case Apply("mul", (a, b), _):
                return _widened_operand(a) == 0 and _widened_operand(b) == 1
            case _:
                return False

    @property
    def is_movement(self) -> bool:
        """Nothing is computed and nothing is padded or gathered: the output is a view of one input."""
        copies = isinstance(self.body, Operand) and not self.reduce_axes
        return copies and len(self.reads) == 1 and self.reads[0].pad is None

    def check(self) -> None:
        """ValueError where the parts do not fit together."""
        names = [a.name for a in (*self.axes, *self.reduce_axes)]
        if len(set(names)) != len(names):
            raise ValueError(f"axis names repeat: {names}")
        if bool(self.reduce_axes) != (self.combine is not None):
            raise ValueError("a reduction needs both reduce axes and a combiner")
        if self.combine is not None and self.combine not in COMBINERS:
            raise ValueError(f"no combiner {self.combine!r}")
        for read in self.reads:
            for i in read.index:
                if unknown := i.axes - set(names):
                    raise ValueError(f"index {i} uses unknown axes {sorted(unknown)}")
        for leaf in walk(self.body):
            if isinstance(leaf, Operand) and not 0 <= leaf.index < len(self.reads):
                raise ValueError(f"body reads operand {leaf.index} of {len(self.reads)}")
        if self.finish is not None and any(isinstance(leaf, Operand) and leaf.index for leaf in walk(self.finish)):
            raise ValueError("finish reads more than the reduced value")

    def __str__(self) -> str:
        places = [f"${k}=in{r.operand}[{', '.join(map(str, r.index))}]" for k, r in enumerate(self.reads)]
        reads = ", ".join(p + (f" pad {r.pad.value}" if r.pad else "") for p, r in zip(places, self.reads, strict=True))
        over = f" {self.combine} over ({', '.join(map(str, self.reduce_axes))})" if self.reduce_axes else ""
        finish = f" then {text(self.finish)}" if self.finish is not None else ""
        return f"({', '.join(map(str, self.axes))}){over}: {text(self.body)}{finish} where {reads}"


def _widened_operand(x: Scalar) -> int | None:
    """k for Operand(k), or for a cast of it to a float type (half precision is summed in float32)."""
    match x:
        case Operand(k):
            return k
        case Apply("cast", (Operand(k),), dtype) if dtype.is_float:
            return k
        case _:
            return None
