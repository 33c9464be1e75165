"""How long a chain of additions a kernel may make: what the printers keep, and error bounds count on.

A long sum is cut into blocks. Each is added up from zero in one chain; the blocks' sums are added up apart, on a CPU
with the rounding error of each addition kept (Ogita, Rump and Oishi, "Accurate sum and dot product", 2005, Sum2). A
term then meets the roundings of its block and a few more, however long the sum is:

    depth_of_sum(10_000_000)     1040, not 10,000,000
"""

from __future__ import annotations

SUM_BLOCK = 256  # additions to one accumulator, from where on a sum along a CPU's loops is cut
LONGEST_DOT = 4096  # products that are added up in one chain; a longer sum of products is cut
DOT_BLOCK = 1024
LONGEST_SUM = 1024  # a GPU's thread adds up no more of a block by itself
CLOSING = 16  # additions after the longest chain: accumulators, lanes, the blocks' sums


def depth_of_sum(terms: int) -> int:
    """Roundings that a term of a sum meets at most (Higham, section 4.2: the error is within so many of sum|x|)."""
    return min(terms, LONGEST_SUM + CLOSING)


def depth_of_dot(terms: int) -> int:
    """The same of a sum of products."""
    return min(terms, LONGEST_DOT + CLOSING)


def block_of(trips: int, most: int) -> int:
    """Trips of a block, at most `most`: a divisor of all trips where a good one is near, so that no rest is left."""
    return next((n for n in range(most, max(1, most // 4) - 1, -1) if trips % n == 0), most)
