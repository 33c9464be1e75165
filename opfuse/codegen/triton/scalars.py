"""Scalar expressions of a tile program as Triton text over blocks.

Positions are 32-bit in a kernel and 64-bit in the tile IR: integer arithmetic on positions whose range provably fits
32 bits is printed on them as they are, everything else is widened first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opfuse.codegen.triton.blocks import MAX_EXTENT, Places
from opfuse.codegen.triton.expressions import (
    INFIX,
    TYPES,
    apply_text,
    bits_text,
    cast_text,
    number_text,
    typed_number,
)
from opfuse.ir.scalar import Apply, Const, Position, Scalar, walk
from opfuse.ir.structure import Axis
from opfuse.ir.types import DType
from opfuse.tile.program import Dot, Reduce, Tile, statements

Range = tuple[int, int]
Shaped = Callable[[Tile, Sequence[Axis]], str]
POSITIONAL = ("lt", "le", "eq", "gt", "ge", "ne", "cast")  # roots under which 32-bit positions give the same result
SMALL_POWERS = {1.0: "{0}", 2.0: "({0} * {0})", 3.0: "({0} * {0} * {0})"}


class ScalarText:
    def __init__(self, places: Places, shaped: Shaped) -> None:
        self.places, self.shaped = places, shaped
        self.fast = any(isinstance(s, (Dot, Reduce)) for s in statements(places.blocks.phase.body))

    def reach(self, x: Scalar) -> set[str]:
        """Names of the axes along which the printed expression has a dimension."""
        names = {a.name for t in walk(x) if isinstance(t, Tile) for a in t.axes}
        names |= {p.axis for p in walk(x) if isinstance(p, Position)}
        return {n for n in names if self.places.blocks.size.get(n, 1) > 1}

    def text(self, x: Scalar, dims: Sequence[Axis]) -> str:
        match x:
            case Const():
                return number_text(x.value)
            case Tile():
                return self.shaped(x, dims)
            case Position(name, dtype):
                return f"{self.places.along(name, dims)}.to({TYPES[dtype]})"
            case Apply("cast", (Const(value, _),), dtype):
                folded = bool(value) if dtype is DType.BOOL else float(value) if dtype.is_float else int(value)
                return typed_number(Const(folded, dtype))
            case Apply(function, args, dtype) if function in POSITIONAL and self.narrow(args):
                parts = [self.positional(a, dims) for a in args]
                return (
                    cast_text(f"({parts[0]})", DType.I32, dtype)
                    if function == "cast"
                    else apply_text(function, parts, DType.I32)
                )
            case Apply("cast", (arg,), dtype):
                return cast_text(self.tensor(arg, dims), arg.dtype, dtype)
            case Apply("bits", (arg,), dtype):
                return bits_text(self.tensor(arg, dims), dtype)
            case Apply():
                return self.application(x, dims)
        raise TypeError(f"a tile program has no scalar {x}")

    def application(self, x: Apply, dims: Sequence[Axis]) -> str:
        dtype = x.args[-1].dtype
        power = x.args[1] if x.function == "pow" else None
        if isinstance(power, Const) and dtype.is_float and power.value in SMALL_POWERS and dtype is not DType.BF16:
            return SMALL_POWERS[float(power.value)].format(self.tensor(x.args[0], dims))
        if isinstance(power, Const) and dtype is DType.F32 and power.value == 0.5:
            return apply_text("sqrt", [self.tensor(x.args[0], dims)], dtype)  # differs at -inf and -0 only
        values = x.args[1:] if x.function == "select" else x.args
        bare = (x.function in INFIX or x.function in ("select", "max", "min")) and dtype is not DType.BF16
        loose = bare and not all(isinstance(a, Const) for a in values)
        parts = [self.text(a, dims) if loose and isinstance(a, Const) else self.tensor(a, dims) for a in x.args]
        return apply_text(x.function, parts, dtype, self.fast)

    def tensor(self, x: Scalar, dims: Sequence[Axis]) -> str:
        """The expression as a tensor, also where it is a number."""
        return typed_number(x) if isinstance(x, Const) else self.text(x, dims)

    # ---- positions --------------------------------------------------------------------------------------------------
    def narrow(self, args: Sequence[Scalar]) -> bool:
        has_position = any(isinstance(p, Position) for a in args for p in walk(a))
        return has_position and all(self.range(a) is not None for a in args)

    def range(self, x: Scalar) -> Range | None:
        """Bounds of an integer expression over positions, in 32 bits all the way; None where it is not that."""
        match x:
            case Const(value, dtype) if dtype.is_integer:
                made: Range | None = (int(value), int(value))
            case Position(name):
                axis = self.places.blocks.axes.get(name)
                known = axis.extent if axis is not None and isinstance(axis.extent, int) else MAX_EXTENT
                made = (0, max(0, known - 1))
            case Apply("add" | "sub" | "mul" | "min" | "max" | "floordiv" | "mod" as function, (a, b), dtype) if (
                dtype.is_integer
            ):
                made = _combine(function, self.range(a), self.range(b))
            case _:
                return None
        return made if made is not None and made[0] >= -(1 << 31) and made[1] < 1 << 31 else None

    def positional(self, x: Scalar, dims: Sequence[Axis]) -> str:
        match x:
            case Const():
                return number_text(x.value)
            case Position(name):
                return self.places.along(name, dims)
            case Apply("floordiv", (a, b)):
                return f"({self.positional(a, dims)} // {self.positional(b, dims)})"
            case Apply("mod", (a, b)):
                return f"({self.positional(a, dims)} % {self.positional(b, dims)})"
            case Apply(function, args):
                return apply_text(function, [self.positional(a, dims) for a in args], DType.I32)
        raise TypeError(f"no position in {x}")


def _combine(function: str, a: Range | None, b: Range | None) -> Range | None:
    if a is None or b is None:
        return None
    match function:
        case "add":
            return a[0] + b[0], a[1] + b[1]
        case "sub":
            return a[0] - b[1], a[1] - b[0]
        case "mul":
            products = [p * q for p in a for q in b]
            return min(products), max(products)
        case "min":
            return min(a[0], b[0]), min(a[1], b[1])
        case "max":
            return max(a[0], b[0]), max(a[1], b[1])
        case _ if a[0] < 0 or b[0] < 1:
            return None  # Triton's quotients truncate: only what is not negative agrees
        case "floordiv":
            return a[0] // b[1], a[1] // b[0]
        case _:
            return 0, b[1] - 1
