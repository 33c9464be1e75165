"""Which tiles are kept in scratch: what must be complete before it is used, and what is too dear to make again.

Kept are: operands that a dot cannot read as they lie in memory; results of loops needed by several passes, or at more
points than they have; dear maps needed again; inputs read after a store that may overwrite them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from opfuse.codegen.llvm.analysis import Analysis, may_alias
from opfuse.codegen.llvm.passes import (
    Keep,
    Once,
    Pass,
    Sequential,
    Step,
    keeps,
    made_by_sink,
    passes_of,
    reads_of_sink,
)
from opfuse.codegen.llvm.scalar_functions import is_costly
from opfuse.ir.structure import Axis
from opfuse.tile.program import (
    Dot,
    Load,
    Loop,
    Map,
    Reduce,
    Rename,
    Statement,
    Store,
    Tile,
    gathers,
    operands,
    statements,
)

KEEP_BYTES = 64 << 10  # a tile that could be made again is kept only where it stays in the nearest caches


@dataclass(frozen=True)
class Place:
    """Where a tile is evaluated: in which pass, over which axes, inside which loops."""

    within: Pass
    space: frozenset[Axis]
    around: tuple[Loop, ...]
    early: bool


class Keeping:
    """Looks through built passes for tiles that must, or had better, be kept."""

    def __init__(self, planner: Analysis, steps: tuple[Step, ...]) -> None:
        self.p, self.steps = planner, steps
        self.found: dict[str, tuple[Axis, ...]] = {}
        self.first: dict[str, Pass] = {}  # tile -> the pass that makes it first
        self.early: set[str] = set()  # tiles written by passes that run once for several grid tiles
        self.made_early = planner.made_early

    def wanted(self) -> Mapping[str, tuple[Axis, ...]]:
        self._scan(self.steps, (), False)
        self._stores_over_loads()
        return self.found

    def _keep(self, t: Tile, order: tuple[Axis, ...] = ()) -> None:
        if t.name not in self.p.keep:
            self.found.setdefault(t.name, order or self.p.order(t))
        elif order and self.p.keep[t.name] != order:
            self.found[t.name] = order

    def _scan(self, steps: tuple[Step, ...], around: tuple[Loop, ...], early: bool) -> None:
        for s in steps:
            match s:
                case Pass():
                    self._pass(s, around, early)
                case Sequential():
                    self._scan(s.body, (*around, s.loop), early)
                case Once():
                    self._scan(s.body, around, True)
                    self._crossing(s)

    def _crossing(self, once: Once) -> None:
        """What later passes need of the early ones stays in scratch."""
        self.early |= {name for p in passes_of(once.body) for s in p.sinks for name in made_by_sink(s)}
        for p in passes_of(tuple(s for s in self.steps if s is not once)):
            for s in p.sinks:
                for v in self.p.visits(s, p.space):
                    if v.tile.name in self.early:
                        self._keep(v.tile)

    def _pass(self, p: Pass, around: tuple[Loop, ...], early: bool) -> None:
        for s in p.sinks:
            for t in reads_of_sink(s):
                self._visit(t, Place(p, p.space, around, early), keeps(s))
            if isinstance(s, Keep) and isinstance(s.value, Tile) and not keeps(s):
                whole = any(v.tile.name == s.tile.name and v.space for v in self.p.visits(s, frozenset()))
                if whole:  # a carried tile may not change while its next value still reads it
                    self._keep(s.value)

    def _visit(self, t: Tile, at: Place, top: bool = False) -> None:
        """Top-down, so that the widest shared or narrow tile is kept and what is under it is not looked at."""
        planner = self.p
        s = planner.definitions[t.name]
        if isinstance(s, Rename):
            if not planner.stored(s.tile):
                self._keep(s.tile)
            return
        if (planner.stored(t) and not top) or any(s is loop for loop in at.around):
            return
        if not top and not isinstance(s, Load) and self._must_keep(t, s, at):
            return self._keep(t)
        match s:
            case Map():
                for x in operands(s.value):
                    self._visit(x, at)
            case Load():
                for g in gathers(s.index):
                    self._visit(planner.tiles[g], at)
            case Dot():
                self._visit(s.acc, at)
                self._operands(s, at)
            case Reduce() if not planner.streamed(s):
                over = frozenset(a for a in s.over if planner.tile[a.name] != 1)
                self._visit(s.tile, replace(at, space=at.space | over))
            case Loop() if planner.inner(s):
                for c in s.carries:
                    for x in operands(c.init):
                        self._visit(x, at)
                    self._visit(c.next, replace(at, around=(*at.around, s)))
            case _:
                pass

    def _must_keep(self, t: Tile, s: Statement, at: Place) -> bool:
        """A loop's result is made once, at its own space; a map is kept where that is worth a store."""
        planner = self.p
        live = frozenset(planner.live(t))
        outside = len(planner.owner[t.name]) < len(at.around) or (t.name in self.made_early and not at.early)
        again = outside or self.first.setdefault(t.name, at.within) is not at.within
        if planner.heavy(t):
            return live != at.space or again
        return isinstance(s, Map) and self._worth_keeping(t, live, at, again)

    def _operands(self, s: Dot, at: Place) -> None:
        planner = self.p
        lane = planner.lane(frozenset(planner.live(s.out)))
        for t in (s.a, s.b):
            if planner.stored(t):
                self._visit(t, at)
                continue
            if planner.direct(t, s):
                self._visit(t, at, True)
                continue
            live = planner.live(t)
            innermost = lane if lane in live else planner.lane(frozenset(live))  # a broadcast may lie in any order
            self._keep(t, tuple(a for a in live if a != innermost) + ((innermost,) if innermost else ()))

    def _worth_keeping(self, t: Tile, live: frozenset[Axis], at: Place, again: bool) -> bool:
        """A map that could be made again: kept where it is dear, or where it saves reading two large arrays."""
        planner = self.p
        bytes_ = planner.scratch_bytes(t, planner.order(t))
        if not isinstance(bytes_, int) or bytes_ > KEEP_BYTES or not live:
            return False
        under = [
            planner.definitions[v.tile.name]
            for v in planner.walk(t, at.space, False, set())
            if not planner.stored(v.tile)
        ]
        lane = at.within.lane
        if any(isinstance(d, Map) and is_costly(d.value) for d in under):
            return again or (lane in live and bool(at.space - live))
        wide = [d for d in under if isinstance(d, Load) and frozenset(planner.live(d.out)) == live]
        return again and len(wide) > 1

    def _stores_over_loads(self) -> None:
        """An output may be the memory of an input with the same index map: what is read after the store is kept."""
        written: list[Store] = []
        order = {id(s): k for k, s in enumerate(statements(self.p.phase.body))}
        for p in passes_of(self.steps):
            for s in p.sinks:
                for v in self.p.visits(s, p.space):
                    d = self.p.definitions[v.tile.name]
                    if not isinstance(d, Load) or self.p.stored(v.tile):
                        continue
                    if any(may_alias(d, w) and order[id(d)] < order[id(w)] for w in written):
                        self._keep(v.tile)
            written += [s for s in p.sinks if isinstance(s, Store)]
