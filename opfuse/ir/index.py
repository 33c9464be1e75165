"""Index expressions: where a point of an iteration space reads or writes a tensor.

An `Index` is an integer combination of axes, of quotients and remainders of other indices (reshapes), and of values
gathered from another tensor, plus a constant. Coefficients and constants are `Dim`s.

    axis("oh") * 2 + axis("kh") - 1        # a strided, padded window
    split(flat, (12, 32))                  # (flat // 32, flat % 32), simplified with the extents of the axes
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from opfuse.ir.dims import Bindings, Dim, bind, floordiv, mod, non_negative, product


@dataclass(frozen=True)
class AxisTerm:
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Quotient:
    """numerator // divisor, both non-negative."""

    numerator: Index
    divisor: Dim

    def __str__(self) -> str:
        return f"({self.numerator} // {self.divisor})"


@dataclass(frozen=True)
class Remainder:
    """numerator % divisor, both non-negative."""

    numerator: Index
    divisor: Dim

    def __str__(self) -> str:
        return f"({self.numerator} % {self.divisor})"


@dataclass(frozen=True)
class Gathered:
    """A value read from memory. In a structure `source` is the number of a read; in a tile program it is a tile's name.

    The value is an integer already checked or wrapped by the structure (negative indices count from the end).
    """

    source: int | str

    def __str__(self) -> str:
        return f"[{self.source}]"


Term = AxisTerm | Quotient | Remainder | Gathered


@dataclass(frozen=True)
class Index:
    terms: tuple[tuple[Term, Dim], ...] = ()
    const: Dim = 0

    def __add__(self, other: Index | Dim) -> Index:
        o = as_index(other)
        total = dict(self.terms)
        for t, c in o.terms:
            total[t] = total.get(t, 0) + c
        return Index(tuple((t, c) for t, c in total.items() if c != 0), self.const + o.const)

    def __sub__(self, other: Index | Dim) -> Index:
        return self + as_index(other) * -1

    def __mul__(self, factor: Dim) -> Index:
        if factor == 0:
            return Index()
        return Index(tuple((t, c * factor) for t, c in self.terms), self.const * factor)

    def coefficient(self, axis_name: str) -> Dim:
        """The factor of an axis where it stands plainly (not inside a quotient or remainder)."""
        return dict(self.terms).get(AxisTerm(axis_name), 0)

    @property
    def affine(self) -> bool:
        return all(isinstance(t, AxisTerm) for t, _ in self.terms)

    @property
    def axes(self) -> frozenset[str]:
        """Names of all the axes that it depends on, also inside quotients."""
        found: set[str] = set()
        for t, _ in self.terms:
            if isinstance(t, AxisTerm):
                found.add(t.name)
            elif isinstance(t, (Quotient, Remainder)):
                found |= t.numerator.axes
        return frozenset(found)

    def substitute(self, axes: Mapping[str, Index], gathered: Callable[[Gathered], Term] | None = None) -> Index:
        """Replace axes by index expressions (composition of index maps); simplify with `simplify` afterwards."""
        out = Index((), self.const)
        for t, c in self.terms:
            out = out + _substitute_term(t, axes, gathered) * c
        return out

    def bind(self, values: Bindings) -> Index:
        out = Index((), bind(self.const, values))
        for t, c in self.terms:
            if isinstance(t, (Quotient, Remainder)):
                t = type(t)(t.numerator.bind(values), bind(t.divisor, values))
            out = out + Index(((t, bind(c, values)),))
        return out

    def __str__(self) -> str:
        parts = [_term_text(t, c) for t, c in self.terms]
        if self.const != 0 or not parts:
            parts.append(str(self.const))
        return "+".join(parts).replace("+-", "-")


def _term_text(t: Term, c: Dim) -> str:
    if c == 1 or c == -1:
        return str(t) if c == 1 else f"-{t}"
    return f"({c})*{t}" if not isinstance(c, int) and len(c.terms) > 1 else f"{c}*{t}"


def _substitute_term(t: Term, axes: Mapping[str, Index], gathered: Callable[[Gathered], Term] | None) -> Index:
    match t:
        case AxisTerm(name):
            return axes.get(name, Index(((t, 1),)))
        case Quotient(n, d):
            return quotient(n.substitute(axes, gathered), d, {})
        case Remainder(n, d):
            return remainder(n.substitute(axes, gathered), d, {})
        case Gathered():
            return Index(((gathered(t) if gathered else t, 1),))


def axis(name: str) -> Index:
    return Index(((AxisTerm(name), 1),))


def as_index(x: Index | Dim) -> Index:
    return x if isinstance(x, Index) else Index((), x)


# ---- simplification ------------------------------------------------------------------------------------------------
Extents = Mapping[str, Dim]


def bounds(i: Index, extents: Extents) -> tuple[Dim | None, Dim | None]:
    """The smallest and largest value over the extents, as far as coefficients' signs are known; None where unknown."""
    low: Dim | None = i.const
    high: Dim | None = i.const
    for t, c in i.terms:
        most = _largest(t, extents)
        if non_negative(c):
            high = high + c * most if high is not None and most is not None else None
        elif non_negative(-c):
            low = low + c * most if low is not None and most is not None else None
        else:
            return None, None
    return low, high


def upper_bound(i: Index, extents: Extents) -> Dim | None:
    """The largest value over the extents; None where unknown."""
    return bounds(i, extents)[1]


def _largest(t: Term, extents: Extents) -> Dim | None:
    """The largest value of a term, which is never negative."""
    match t:
        case AxisTerm(name):
            return extents[name] - 1 if name in extents else None
        case Remainder(_, d):
            return d - 1
        case Quotient(n, d):
            inner = upper_bound(n, extents)
            return floordiv(inner, d) if inner is not None else None
        case Gathered():
            return None


def _from_zero(i: Index, extents: Extents) -> bool:
    """Proven 0 <= i."""
    low = bounds(i, extents)[0]
    return low is not None and non_negative(low)


def _below(i: Index, d: Dim, extents: Extents) -> bool:
    """Proven 0 <= i < d."""
    low, high = bounds(i, extents)
    return low is not None and high is not None and non_negative(low) and non_negative(d - high - 1)


def _divisible(c: Dim, d: Dim) -> bool:
    return mod(c, d) == 0


def _parted(n: Index, d: Dim, extents: Extents) -> tuple[Index, Index]:
    """(whole, rest) with n = whole * d + rest; rest holds the terms that d does not divide and is never negative."""
    known = isinstance(n.const, int) and isinstance(d, int)
    const = floordiv(n.const, d) if known or _divisible(n.const, d) else 0
    whole = Index(tuple((t, floordiv(c, d)) for t, c in n.terms if _divisible(c, d)), const)
    rest = n - whole * d
    if not _from_zero(rest, extents):  # 8 - i must not become 2 + (-i) // 4
        return Index(), n
    return whole, rest


def _coarser(n: Index, d: Dim, extents: Extents) -> tuple[Dim, Index, Index] | None:
    """(g, m, r) with n = g * m + r, g a divisor of d and 0 <= r < g; None where no coefficient of n is such a g."""
    for g in dict.fromkeys(c for _, c in n.terms):
        if g == 1 or not non_negative(g) or not _divisible(d, g):
            continue
        m, r = _parted(n, g, extents)
        if m.terms and _below(r, g, extents) and _from_zero(m, extents):
            return g, m, r
    return None


def _sole(i: Index) -> Term | None:
    """The term of an index that is nothing else."""
    return i.terms[0][0] if len(i.terms) == 1 and i.const == 0 and i.terms[0][1] == 1 else None


def quotient(n: Index, d: Dim, extents: Extents) -> Index:
    """n // d for non-negative n, simplified: multiples of d leave the quotient, what is proven below d goes."""
    if d == 1:
        return n
    whole, rest = _parted(n, d, extents)
    if _below(rest, d, extents):
        return whole
    match _sole(rest):
        case Quotient(inner, e):  # (x // e) // d
            return whole + quotient(inner, e * d, extents)
        case Remainder(inner, e) if _divisible(e, d):  # (x % (d * f)) // d = (x // d) % f
            return whole + remainder(quotient(inner, d, extents), floordiv(e, d), extents)
    if (parts := _coarser(rest, d, extents)) is not None:
        return whole + quotient(parts[1], floordiv(d, parts[0]), extents)
    return whole + Index(((Quotient(rest, d), 1),))


def remainder(n: Index, d: Dim, extents: Extents) -> Index:
    """n % d for non-negative n, simplified like `quotient`."""
    if d == 1:
        return Index()
    _, rest = _parted(n, d, extents)
    if _below(rest, d, extents):
        return rest
    match _sole(rest):
        case Remainder(inner, e) if _divisible(e, d):  # (x % (d * f)) % d
            return remainder(inner, d, extents)
    if (parts := _coarser(rest, d, extents)) is not None:
        g, m, r = parts
        return remainder(m, floordiv(d, g), extents) * g + r
    return Index(((Remainder(rest, d), 1),))


def simplify(i: Index, extents: Extents) -> Index:
    """Simplify quotients and remainders with known extents, and join d*(x//d) + x%d into x."""
    out = Index((), i.const)
    for t, c in i.terms:
        match t:
            case Quotient(n, d):
                out = out + quotient(simplify(n, extents), d, extents) * c
            case Remainder(n, d):
                out = out + remainder(simplify(n, extents), d, extents) * c
            case _:
                out = out + Index(((t, c),))
    return _join(out)


def _join(i: Index) -> Index:
    terms = dict(i.terms)
    for t, c in i.terms:
        if not isinstance(t, Remainder) or t not in terms:
            continue
        q = Quotient(t.numerator, t.divisor)
        if q in terms and terms[q] == c * t.divisor:
            del terms[q], terms[t]
            return _join(Index(tuple(terms.items()), i.const) + t.numerator * c)
        match t.numerator.terms:  # ((x // e) % d): its quotient may stand as x // (e * d)
            case ((Quotient(n, e), 1),) if t.numerator.const == 0:
                q = Quotient(n, e * t.divisor)
                if q in terms and terms[q] == c * t.divisor:
                    del terms[q], terms[t]
                    return _join(Index(tuple(terms.items()), i.const) + Index(((Quotient(n, e), c),)))
            case _:
                pass
    return i


def split(flat: Index, shape: Iterable[Dim], extents: Extents) -> tuple[Index, ...]:
    """The row-major coordinates of a flat position in a tensor of this shape."""
    dims = tuple(shape)
    out = []
    for d in range(len(dims)):
        inner = product(dims[d + 1 :])
        at = quotient(flat, inner, extents)
        out.append(at if d == 0 else remainder(at, dims[d], extents))
    return tuple(simplify(i, extents) for i in out)


def flatten(index: Iterable[Index], shape: Iterable[Dim], extents: Extents) -> Index:
    """The row-major flat position of coordinates, simplified."""
    total, dims = Index(), tuple(shape)
    for k, i in enumerate(index):
        total = total + i * product(dims[k + 1 :])
    return simplify(total, extents)
