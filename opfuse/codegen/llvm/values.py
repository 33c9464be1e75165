"""Values on demand: a tile at row r and vector j of the register tile, made from its definition or read from scratch.

What was made is remembered in the scope that made it, so that a value is computed once wherever it is needed again at
the same place.
"""

from __future__ import annotations

from opfuse.codegen.llvm.emit import Value, text
from opfuse.codegen.llvm.memory import Memory
from opfuse.codegen.llvm.scalar_functions import apply_function
from opfuse.ir.scalar import Apply, Const, Position, Scalar
from opfuse.ir.types import DType
from opfuse.tile.program import Dot, Load, Loop, Map, Reduce, Tile

Point = tuple[int, int]
Key = tuple[object, ...]


class Values(Memory):
    def key(self, t: Tile, r: int, j: int) -> Key:
        """Equal for points at which the tile has one value."""
        place = tuple(text(self.relative[a.name]) for a in t.axes if self.plan.tile[a.name] != 1)
        return (t.name, r if self.at.blocked in t.axes else 0, j if self.has_lane(t) else 0, place)

    def remember(self, t: Tile, values: dict[Point, Value]) -> None:
        for (r, j), value in values.items():
            self.e.scopes[-1].values[self.key(t, r, j)] = value

    def recall(self, key: Key) -> Value | None:
        for scope in reversed(self.e.scopes):
            if key in scope.values:
                return scope.values[key]
        return None

    def value(self, t: Tile, r: int, j: int) -> Value:
        key = self.key(t, r, j)
        known = self.recall(key)
        if known is not None:
            if known.lanes != self.v.lanes:  # a single element that an earlier pass, of another width, reduced to
                known = self.v.splat(self.v.first(known), t.dtype)
            return known
        definition = self.plan.definitions[t.name]
        if t.name in self.plan.scratch and t.name not in self.pending:
            made = self.read_local(t, self.shift(r, j))
        else:
            match definition:
                case Load():
                    made = self.read(definition, self.shift(r, j), self.mask(j))
                case Map():
                    made = self.map_value(definition, r, j)
                case Dot():
                    self.contraction(definition)
                    return self.value(t, r, j)
                case Reduce():
                    self.inner_reduction(definition)
                    return self.value(t, r, j)
                case Loop():
                    self.inner_loop(definition)
                    return self.value(t, r, j)
                case _:
                    raise AssertionError(f"nothing makes {t.name}")
        self.e.scopes[-1].values[key] = made
        return made

    def map_value(self, s: Map, r: int, j: int) -> Value:
        """The formula's value; one step of a sum of products, total + a * b -> the next total, is rounded once."""
        match s.value:
            case Apply("add", (Tile() as total, Apply("mul", (a, b)))) if self.follows(s.out, total):
                done: dict[int, Value] = {}
                return self.v.fma(*(self._expression(x, r, j, done) for x in (a, b, total)))
        return self.expression(s.value, r, j)

    def follows(self, out: Tile, total: Tile) -> bool:
        """A loop carries the total on as `out`."""
        loop = self.plan.definitions[total.name]
        carries = loop.carries if isinstance(loop, Loop) and total.dtype in (DType.F32, DType.F64) else ()
        return any(c.tile == total and c.next == out for c in carries)

    def expression(self, x: Scalar, r: int, j: int) -> Value:
        return self._expression(x, r, j, {})

    def _expression(self, x: Scalar, r: int, j: int, done: dict[int, Value]) -> Value:
        """`done` holds the nodes of this expression that were computed already: trees share parts."""
        if id(x) in done:
            return done[id(x)]
        match x:
            case Const():
                made = self.v.const(x.value, x.dtype)
            case Tile():
                made = self.value(x, r, j)
            case Position():
                made = self.along_axis(x, r, j)
            case Apply():
                made = apply_function(self.v, x, [self._expression(a, r, j, done) for a in x.args])
            case _:
                raise AssertionError(f"{x} has no place in a tile program")
        done[id(x)] = made
        return made

    def along_axis(self, x: Position, r: int, j: int) -> Value:
        start = self.e.add(self.position(x.axis), self.shift(r, j).get(x.axis, 0))
        whole = x.dtype if x.dtype.is_integer else DType.I64
        lanes = self.v.splat_int(start, whole)
        if self.at.lane and x.axis == self.at.lane.name:
            lanes = self.v.add(lanes, self.v.iota(whole))
        return self.v.convert(lanes, x.dtype)

    # ---- made by loops inside of a register tile -------------------------------------------------------------------
    def contraction(self, s: Dot) -> None:
        raise NotImplementedError

    def inner_reduction(self, s: Reduce) -> None:
        raise NotImplementedError

    def inner_loop(self, s: Loop) -> None:
        raise NotImplementedError
