"""May a kernel's output take over the bytes of one of its inputs?

Yes where the tile program reads exactly the points that it writes: one store, one phase, every load of the input at the
store's own index map, all of them before it, no other tile and no later turn of a loop reading the same point again.
Layouts and element sizes must agree. What the rest of the plan asks (the input dies here, nobody else reads it in this
epoch) is decided by the builder.

    out[r, n] = relu(x[r, n])            may lie on x
    out[r, n] = x[r, n] - x[r, 0]        may not: the point [r, 0] is read for every n
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from opfuse.decision import Refusal
from opfuse.ir.index import AxisTerm, Index
from opfuse.tile.program import Buffer, Load, Loop, Phase, Program, Statement, Store


@dataclass(frozen=True)
class InPlace:
    """The output buffer `output` may lie on the input buffer `input`."""

    input: str
    output: str


@dataclass(frozen=True)
class _Site:
    """A statement, its number in program order and the axes of the loops around it."""

    number: int
    statement: Statement
    loops: tuple[str, ...]


def may_reuse(program: Program, input: Buffer, output: Buffer) -> InPlace | Refusal:
    """Whether `output` may be written over `input` while the program runs; the reason where not."""
    if input.role != "in" or output.role != "out":
        return Refusal("role", "only an output may take over an input's bytes", {"roles": [input.role, output.role]})
    if len(program.phases) != 1 or not isinstance(program.phases[0], Phase):
        return Refusal("phases", "another phase may read the input again", {"phases": len(program.phases)})
    if input.halo or output.halo or input.shape != output.shape or input.element_strides != output.element_strides:
        return Refusal("layout", "the two buffers are laid out differently")
    if input.dtype.bytes != output.dtype.bytes:
        return Refusal("element-size", "elements differ in size", {"bytes": [input.dtype.bytes, output.dtype.bytes]})
    phase = program.phases[0]
    sites = list(_sites(phase.body))
    stores = [s for s in sites if isinstance(s.statement, Store)]
    if len(stores) != 1:
        return Refusal("stores", "a second pass over the tile may read the input again", {"stores": len(stores)})
    return _same_points(phase, sites, stores[0], input, output)


def _same_points(phase: Phase, sites: list[_Site], store: _Site, input: Buffer, output: Buffer) -> InPlace | Refusal:
    assert isinstance(store.statement, Store)
    index = store.statement.index
    if store.statement.buffer.name != output.name:
        return Refusal("stores", "the program does not store the output")
    if not all(i.affine for i in index):
        return Refusal("scattered", "the output's index map is not affine: points may repeat")
    written = _plain_axes(index)
    for needed in (*(a.name for a in phase.grid if a.extent != 1), *store.loops):
        if needed not in written:
            return Refusal("revisited", f"steps along {needed} come back to the same point", {"axis": needed})
    for site in sites:
        if not (isinstance(site.statement, Load) and site.statement.buffer.name == input.name):
            continue
        if site.statement.index != index or site.statement.pad is not None:
            read = ", ".join(map(str, site.statement.index))
            return Refusal("other-points", f"the input is read at other points than are written: [{read}]")
        if site.number > store.number:
            return Refusal("read-later", "the input is read again after the store")
    return InPlace(input.name, output.name)


def _plain_axes(index: tuple[Index, ...]) -> frozenset[str]:
    """Axes that stand alone, with factor 1, in a dimension of the index: different points for different positions."""
    found = set()
    for i in index:
        if len(i.terms) == 1 and isinstance(i.terms[0][0], AxisTerm) and i.terms[0][1] == 1:
            found.add(i.terms[0][0].name)
    return frozenset(found)


def _sites(body: tuple[Statement, ...], loops: tuple[str, ...] = ()) -> Iterator[_Site]:
    number = 0

    def walk(inner: tuple[Statement, ...], around: tuple[str, ...]) -> Iterator[_Site]:
        nonlocal number
        for s in inner:
            number += 1
            yield _Site(number, s, around)
            if isinstance(s, Loop):
                yield from walk(s.body, (*around, s.axis.name))

    yield from walk(body, loops)
