"""Long products in blocks: where a loop would add to one accumulator more often than a kernel may.

    for k_part in range(0, 100000, 1024):
        acc = tl.zeros(...)
        for k_0 in range(k_part, tl.minimum(k_part + 1024, 100000), 32): ...
        acc_total = acc_total + acc

A tensor core adds up to 16 products of 16-bit numbers at once, and its result is rounded to so few digits that a longer
chain counts less: such loops are cut from 16 times the length on. Reductions need nothing: a block holds a whole axis,
and its threads add up a part each.
"""

from __future__ import annotations

from opfuse.ir.types import DType
from opfuse.tile.program import Dot, Loop, read, statements
from opfuse.tile.summation import DOT_BLOCK, LONGEST_DOT

AT_ONCE = 16  # products of 16-bit numbers that a tensor core adds up at once


def span_of(s: Loop, block: int) -> int:
    """Positions of a block of a sum that is cut, whole blocks of the loop; 0 where the loop is not cut."""
    if len(s.carries) != 1 or s.start is not None or s.stop is not None or not isinstance(s.axis.extent, int):
        return 0
    (carry,) = s.carries
    dot = next((x for x in s.body if isinstance(x, Dot) and x.out == carry.next and x.acc == carry.tile), None)
    uses = sum(t == carry.tile for x in statements(s.body) for t in read(x))
    if dot is None or uses != 1 or not carry.tile.dtype.is_float:
        return 0
    exact = dot.a.dtype in (DType.F32, DType.F64) and dot.precision != "tf32"
    longest = LONGEST_DOT if exact else AT_ONCE * LONGEST_DOT
    return max(DOT_BLOCK // block, 1) * block if s.axis.extent > longest else 0
