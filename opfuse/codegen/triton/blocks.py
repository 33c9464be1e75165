"""Geometry of a phase on a GPU: how many elements of each axis a block holds, names, masks, addresses.

Blocks are powers of two, so an axis that its block does not divide gets a mask; an axis of block 1 is a scalar and no
dimension; what a dot sums over is at least as long as a tensor core wants.

    Blocks(phase, schedule).block(axis)                # 64
    address(X, (b, 2 * oh + kh - 1, c))                # "X + kh * 896 + -896 + oh[:, None] * 1792 + c[None, :]"
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping, Sequence

from opfuse.decision import Refusal
from opfuse.ir.dims import Dim, Operation, Symbol, product
from opfuse.ir.index import AxisTerm, Gathered, Index, Quotient, Remainder, Term
from opfuse.ir.structure import Axis
from opfuse.ir.types import DType
from opfuse.tile.check import affine_range
from opfuse.tile.program import (
    Buffer,
    Dot,
    Phase,
    Program,
    Rename,
    Tile,
    phase_axes,
    shape_axes,
    statements,
    whole_axes,
)
from opfuse.tile.schedule import Schedule

MAX_ELEMENTS = 1 << 20  # of a block: triton.language.TRITON_MAX_TENSOR_NUMEL
MAX_OFFSET = (1 << 31) - 1
MAX_EXTENT = 1 << 30  # of a run-time extent: positions, also doubled, stay inside 32 bits (checked at the launch)
RESERVED = frozenset(("tl", "triton", "pid", "min", "max", "range", "float", "other", "mask"))


class Names:
    """Valid and distinct Python names for what a program calls freely."""

    def __init__(self, program: Program) -> None:
        self.taken: set[str] = set(RESERVED)
        self.of: dict[tuple[str, str], str] = {}
        for b in program.buffers:
            self("buffer", b.name)
        for s in program.symbols:
            self("symbol", s)

    def __call__(self, kind: str, name: str) -> str:
        key = (kind, name)
        if key not in self.of:
            clean = "".join(c if c.isascii() and (c.isalnum() or c == "_") else "_" for c in name) or "_"
            clean = f"v{clean}" if clean[0].isdigit() or clean[0] == "_" or keyword.iskeyword(clean) else clean
            made, n = clean, 1
            while made in self.taken:
                n += 1
                made = f"{clean}_{n}"
            self.taken.add(made)
            self.of[key] = made
        return self.of[key]


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below n (1 for 0)."""
    return 1 << max(0, n - 1).bit_length()


def matrix_shaped(s: Dot, blocks: Mapping[str, int] | None = None) -> bool:
    """Whether the matrix unit can take a dot: rows and columns are there, and it knows the types."""
    rows, columns = set(s.a.axes) - set(s.b.axes), set(s.b.axes) - set(s.a.axes)
    if blocks is not None:
        rows, columns = ({a for a in axes if blocks[a.name] > 1} for axes in (rows, columns))
    same = s.a.dtype is s.b.dtype
    integers = same and s.a.dtype is DType.I8 and s.acc.dtype is DType.I32
    floats = s.acc.dtype.is_float and s.acc.dtype is not DType.F64
    return bool(rows) and bool(columns) and (integers or floats)


class Blocks:
    """Block sizes of one phase under a schedule. `refusal` says why there are none, where there are none."""

    def __init__(self, phase: Phase, schedule: Schedule) -> None:
        self.phase = phase
        self.axes = {a.name: a for a in phase_axes(phase)}
        self.refusal: Refusal | None = None
        listed = {a.name for a in shape_axes(phase.body)}
        self.size = {name: self._size(a, schedule) if name in listed else 1 for name, a in self.axes.items()}
        for s in statements(phase.body):
            if isinstance(s, Dot) and matrix_shaped(s):
                least = 32 if s.a.dtype.bytes == 1 else 16
                self.size[s.over.name] = max(self.size[s.over.name], least)
        for s in statements(phase.body):
            if isinstance(s, Rename):  # the same block, read along another axis
                shared = max(self.size[s.old.name], self.size[s.new.name])
                self.size |= {s.old.name: shared, s.new.name: shared}

    def _size(self, a: Axis, schedule: Schedule) -> int:
        asked = schedule.tile.get(a.name)
        if asked is None:
            if not isinstance(a.extent, int):
                self._refuse("symbolic-whole", f"axis {a.name} has a run-time extent and no tile size", axis=a.name)
                return 1
            return power_of_two(a.extent)
        if asked < 1 or asked & (asked - 1):
            self._refuse(
                "not-a-power-of-two",
                f"the tile of axis {a.name} is {asked}; blocks are powers of two",
                axis=a.name,
                tile=asked,
            )
            return 1
        if self._whole(a) and (not isinstance(a.extent, int) or asked < a.extent):
            self._refuse(
                "whole-axis-cut",
                f"axis {a.name} must be whole in a tile, and its tile is {asked}",
                axis=a.name,
                tile=asked,
            )
        return min(asked, power_of_two(a.extent)) if isinstance(a.extent, int) else asked

    def _whole(self, a: Axis) -> bool:
        return a in whole_axes(self.phase)

    def _refuse(self, code: str, text: str, **facts: object) -> None:
        self.refusal = self.refusal or Refusal(code, text, facts)

    def block(self, a: Axis) -> int:
        return self.size[a.name]

    def dims(self, t: Tile) -> tuple[Axis, ...]:
        """The axes of a tile that are dimensions of its block."""
        return tuple(a for a in t.axes if self.block(a) > 1)

    def shape(self, axes: Iterable[Axis]) -> tuple[int, ...]:
        return tuple(self.block(a) for a in axes)

    def elements(self, t: Tile) -> int:
        total = 1
        for a in t.axes:
            total *= self.block(a)
        return total

    def ragged(self, a: Axis) -> bool:
        """Some block of the axis reaches beyond its extent."""
        return not isinstance(a.extent, int) or a.extent == 0 or a.extent % self.block(a) != 0


# ---- text ------------------------------------------------------------------------------------------------------------
class Places:
    """Text of extents, positions and addresses, in a block with given dimensions."""

    def __init__(self, names: Names, blocks: Blocks) -> None:
        self.names, self.blocks = names, blocks

    def dim(self, d: Dim) -> str:
        if isinstance(d, int):
            return str(d)
        parts = []
        for monomial, c in d.terms:
            factors = [str(c)] if c != 1 or not monomial else []
            parts.append(" * ".join([*factors, *(self._atom(a) for a in monomial)]))
        return f"({' + '.join(parts)})" if len(parts) > 1 or "*" in parts[0] else parts[0]

    def _atom(self, a: Symbol | Operation) -> str:
        if isinstance(a, Symbol):
            return self.names("symbol", a.name)
        left, right = self.dim(a.left), self.dim(a.right)
        if a.op in ("min", "max"):
            return f"tl.{a.op}imum({left}, {right})"
        if _never_negative(a.left):
            return f"({left} {'//' if a.op == 'floordiv' else '%'} {right})"
        rest = f"(({left} % {right} + {right}) % {right})"  # Triton's quotients truncate; these round down
        return rest if a.op == "mod" else f"(({left} - {rest}) // {right})"

    def along(self, axis_name: str, dims: Sequence[Axis], wide: bool = False) -> str:
        """The axis' positions, shaped to broadcast in a block of these dimensions."""
        text = self.names("axis", axis_name)
        if wide:
            text += ".to(tl.int64)"
        if len(dims) < 2 or axis_name not in {a.name for a in dims}:
            return text
        return f"{text}[{', '.join(':' if a.name == axis_name else 'None' for a in dims)}]"

    def index(self, i: Index, dims: Sequence[Axis], wide: bool = False) -> str:
        """Scalars first: they are added once, not once an element."""
        scalars: list[str] = []
        vectors: list[str] = []
        names = {a.name for a in dims}
        for term, c in i.terms:
            text = self._term(term, dims, wide)
            text = text if c == 1 else f"{text} * {self.dim(c)}" if c != -1 else f"-{text}"
            (vectors if _depends(term, names) else scalars).append(text)
        if i.const != 0 or not (scalars or vectors):
            scalars.append(self.dim(i.const))
        return _sum(scalars + vectors)

    def _term(self, term: Term, dims: Sequence[Axis], wide: bool) -> str:
        match term:
            case AxisTerm(name):
                return self.along(name, dims, wide)
            case Quotient(n, d):
                return f"(({self.index(n, dims, wide)}) // {self.dim(d)})"
            case Remainder(n, d):
                return f"(({self.index(n, dims, wide)}) % {self.dim(d)})"
            case Gathered(source):
                return self.gathered(str(source), dims, wide)

    def gathered(self, tile: str, dims: Sequence[Axis], wide: bool) -> str:
        raise NotImplementedError  # the printer knows the tiles

    def address(self, b: Buffer, index: tuple[Index, ...], dims: Sequence[Axis]) -> str:
        """Pointer arithmetic; in a large buffer terms that together fit 32 bits stay there, others are 64-bit."""
        flat = Index()
        for i, stride in zip(index, b.element_strides, strict=True):
            flat = flat + i * stride
        near, far = (flat, Index()) if not is_wide(b) else self.split(flat)
        parts = [self.names("buffer", b.name)]
        if far.terms or far.const != 0:
            parts.append(self.index(far, dims, wide=True))
            near_text = f"({self.index(near, dims)})" if len(near.terms) > 1 else self.index(near, dims)
            return _sum([*parts, near_text] if near.terms else parts)
        return _sum([*parts, self.index(near, dims)])

    def split(self, flat: Index) -> tuple[Index, Index]:
        """(terms of constant reach that add up to less than 2^31, the rest)."""
        near, far, reach = Index(), Index((), flat.const), 0
        for term, c in flat.terms:
            known = self.blocks.axes.get(term.name) if isinstance(term, AxisTerm) else None
            extent = known.extent if known is not None else None
            if isinstance(c, int) and isinstance(extent, int) and reach + abs(c) * extent <= MAX_OFFSET:
                near, reach = near + Index(((term, c),)), reach + abs(c) * extent
            else:
                far = far + Index(((term, c),))
        return near, far

    def inside(self, b: Buffer, index: tuple[Index, ...], dims: Sequence[Axis]) -> list[str]:
        """Conditions under which a padded read stays in its buffer, without those that always hold."""
        guards = []
        extents = {n: a.extent for n, a in self.blocks.axes.items()}
        for i, extent in zip(index, b.shape, strict=True):
            if _plain(i, extent, extents):
                continue
            reach = affine_range(i, extents)
            text = self.index(i, dims)
            if reach is None or reach[0] < 0:
                guards.append(f"(({text}) >= 0)")
            if reach is None or not isinstance(extent, int) or reach[1] >= extent:
                guards.append(f"(({text}) < {self.dim(extent)})")
        return guards


def _sum(parts: Sequence[str]) -> str:
    return " + ".join(parts).replace(" + -", " - ")


def _never_negative(d: Dim) -> bool:
    """Proven from the signs of its terms: symbols are extents."""
    if isinstance(d, int):
        return d >= 0
    return all(c > 0 for _, c in d.terms) and all(isinstance(a, Symbol) for monomial, _ in d.terms for a in monomial)


def is_wide(b: Buffer) -> bool:
    """Offsets into the buffer may not fit 32 bits: it is larger, or its size is known only at run time."""
    span = 1
    for n, stride in zip(b.shape, b.element_strides, strict=True):
        if not isinstance(n, int) or not isinstance(stride, int):
            return True
        span += abs(stride) * max(0, n - 1)
    return span > MAX_OFFSET


def _plain(i: Index, extent: Dim, extents: Mapping[str, Dim]) -> bool:
    """The index is an axis of just this extent: it cannot leave."""
    return (
        len(i.terms) == 1
        and i.const == 0
        and i.terms[0][1] == 1
        and any(i == a and extents[n] == extent for n, a in ((n, Index(((AxisTerm(n), 1),))) for n in i.axes))
    )


def _depends(term: Term, names: set[str]) -> bool:
    match term:
        case AxisTerm(name):
            return name in names
        case Quotient(n, _) | Remainder(n, _):
            return any(_depends(t, names) for t, _ in n.terms)
        case Gathered():
            return True


def grid_size(phase: Phase, blocks: Blocks) -> Dim:
    """How many programs a phase is: blocks of its grid axes, all together."""
    return product(-((-1 * a.extent) // blocks.block(a)) for a in phase.grid)
