"""Dimensions: integers, or polynomials over named symbols, bound to numbers when code is printed.

    S = symbol("S")
    (S + 2) * 4 - 8         -> Dim "4*S", equal to 4 * S
    floordiv(S * 6, 3)      -> 2*S (exact quotients simplify)
    bind((S - 1) * 2, {"S": 5}) -> 8

A `Dim` is an `int` or a `SymbolicDim`: a sum of integer multiples of products of atoms, in canonical order, so that
equal polynomials compare equal. Atoms are symbols, or a quotient / remainder / minimum / maximum that does not
simplify.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Bindings = Mapping[str, int]


@dataclass(frozen=True)
class Symbol:
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Operation:
    """An atom that is not a polynomial: `op` is floordiv, mod, min or max."""

    op: str
    left: Dim
    right: Dim

    def __str__(self) -> str:
        sign = {"floordiv": "//", "mod": "%"}.get(self.op)
        if sign:
            return f"({_factor_text(self.left)}{sign}{_factor_text(self.right)})"
        return f"{self.op}({self.left}, {self.right})"


Atom = Symbol | Operation
Monomial = tuple[Atom, ...]


@dataclass(frozen=True)
class SymbolicDim:
    """Sum of coefficient * monomial; the constant term has the empty monomial. Never equal to a plain integer."""

    terms: tuple[tuple[Monomial, int], ...]

    def __add__(self, other: Dim) -> Dim:
        return _from(_merge(_terms(self), _terms(other), 1))

    __radd__ = __add__

    def __sub__(self, other: Dim) -> Dim:
        return _from(_merge(_terms(self), _terms(other), -1))

    def __rsub__(self, other: Dim) -> Dim:
        return _from(_merge(_terms(other), _terms(self), -1))

    def __mul__(self, other: Dim) -> Dim:
        out: dict[Monomial, int] = {}
        for m, c in _terms(self).items():
            for n, d in _terms(other).items():
                key = tuple(sorted((*m, *n), key=str))
                out[key] = out.get(key, 0) + c * d
        return _from(out)

    __rmul__ = __mul__

    def __neg__(self) -> Dim:
        return self * -1

    def __floordiv__(self, other: Dim) -> Dim:
        return floordiv(self, other)

    def __mod__(self, other: Dim) -> Dim:
        return mod(self, other)

    def __str__(self) -> str:
        parts = []
        for monomial, c in self.terms:
            factors = [str(a) for a in monomial]
            if abs(c) != 1 or not factors:
                factors.insert(0, str(abs(c)))
            parts.append(("-" if c < 0 else "") + "*".join(factors))
        return "+".join(parts).replace("+-", "-")

    __repr__ = __str__


Dim = int | SymbolicDim


def _factor_text(d: Dim) -> str:
    """In parentheses where it is a sum or a product."""
    simple = isinstance(d, int) or (len(d.terms) == 1 and d.terms[0][1] == 1 and len(d.terms[0][0]) == 1)
    return str(d) if simple else f"({d})"


def symbol(name: str) -> Dim:
    return SymbolicDim((((Symbol(name),), 1),))


def _terms(d: Dim) -> dict[Monomial, int]:
    return dict(d.terms) if isinstance(d, SymbolicDim) else ({(): int(d)} if d else {})


def _merge(a: dict[Monomial, int], b: dict[Monomial, int], sign: int) -> dict[Monomial, int]:
    out = dict(a)
    for m, c in b.items():
        out[m] = out.get(m, 0) + sign * c
    return out


def _from(terms: dict[Monomial, int]) -> Dim:
    kept = {m: c for m, c in terms.items() if c}
    if not kept:
        return 0
    if len(kept) == 1 and () in kept:
        return kept[()]
    return SymbolicDim(tuple(sorted(kept.items(), key=lambda t: (not t[0], [str(a) for a in t[0]]))))


def product(dims: Iterable[Dim]) -> Dim:
    total: Dim = 1
    for d in dims:
        total = total * d
    return total


def total(dims: Iterable[Dim]) -> Dim:
    out: Dim = 0
    for d in dims:
        out = out + d
    return out


def floordiv(a: Dim, b: Dim) -> Dim:
    """a // b rounding down; ZeroDivisionError where b is 0."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if b == 1:
        return a
    if isinstance(b, int) and b and all(c % b == 0 for c in _terms(a).values()):
        return _from({m: c // b for m, c in _terms(a).items()})
    if a == b:
        return 1
    quotient = _exact_quotient(a, b)
    return quotient if quotient is not None else SymbolicDim((((Operation("floordiv", a, b),), 1),))


def _exact_quotient(a: Dim, b: Dim) -> Dim | None:
    """a / b where b is a single monomial that divides every term of a; None where the quotient is no polynomial."""
    divisor = list(_terms(b).items())
    if len(divisor) != 1:
        return None
    (monomial, c), out = divisor[0], {}
    for m, k in _terms(a).items():
        rest = list(m)
        for atom in monomial:
            if atom not in rest:
                return None
            rest.remove(atom)
        if k % c:
            return None
        out[tuple(rest)] = k // c
    return _from(out)


def mod(a: Dim, b: Dim) -> Dim:
    """a - b * (a // b), with the sign of b."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if b == 1 or a == b:
        return 0
    if isinstance(b, int) and all(c % b == 0 for c in _terms(a).values()):
        return 0
    return SymbolicDim((((Operation("mod", a, b),), 1),))


def ceildiv(a: Dim, b: Dim) -> Dim:
    return -floordiv(-a, b)


def minimum(a: Dim, b: Dim) -> Dim:
    return _choose("min", a, b)


def maximum(a: Dim, b: Dim) -> Dim:
    return _choose("max", a, b)


def _choose(op: str, a: Dim, b: Dim) -> Dim:
    if non_negative(b - a):
        return a if op == "min" else b
    if non_negative(a - b):
        return b if op == "min" else a
    return SymbolicDim((((Operation(op, a, b),), 1),))


def non_negative(d: Dim) -> bool:
    """Proven d >= 0 for every binding of its symbols to extents (integers from 0); False where it is not known."""
    if isinstance(d, int):
        return d >= 0
    return all(c >= 0 and all(_atom_non_negative(a) for a in monomial) for monomial, c in d.terms)


def _atom_non_negative(a: Atom) -> bool:
    if isinstance(a, Symbol):
        return True
    if a.op == "max":
        return non_negative(a.left) or non_negative(a.right)
    if a.op == "mod":
        return non_negative(a.right)
    return non_negative(a.left) and non_negative(a.right)


def bind(d: Dim, values: Bindings) -> Dim:
    """The dimension with the given symbols replaced by numbers; the others stay."""
    if isinstance(d, int):
        return d
    total: Dim = 0
    for monomial, c in d.terms:
        total = total + product(_bind_atom(a, values) for a in monomial) * c
    return total


_EVALUATE = {"floordiv": floordiv, "mod": mod, "min": minimum, "max": maximum}


def _bind_atom(a: Atom, values: Bindings) -> Dim:
    if isinstance(a, Symbol):
        return values[a.name] if a.name in values else symbol(a.name)
    return _EVALUATE[a.op](bind(a.left, values), bind(a.right, values))


def symbols(d: Dim) -> frozenset[str]:
    if isinstance(d, int):
        return frozenset()
    found: set[str] = set()
    for monomial, _ in d.terms:
        for a in monomial:
            found |= {a.name} if isinstance(a, Symbol) else symbols(a.left) | symbols(a.right)
    return frozenset(found)


def dims_text(shape: Iterable[Dim]) -> str:
    return ", ".join(str(d) for d in shape)
