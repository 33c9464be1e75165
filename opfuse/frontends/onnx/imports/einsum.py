"""Einsum: products of two operands at a time, as transposes and one `matmul`; what only one has is summed first.

    Einsum("bhqd,bhkd->bhqk", q, k)   -> matmul of [bh, q, d] and [bh, d, k], reshaped
    Einsum("bij,bj->bij", a, b)       -> mul(a, b as [b, 1, j])
    Einsum("ii->i", x)                -> every n+1st element of x as one row

A label stands for one dimension; "..." for any number of them, which are given labels of their own from the right.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from opfuse.frontends.onnx.call import Call, InvalidNode
from opfuse.frontends.onnx.equal_dims import require_equal
from opfuse.frontends.onnx.imports.definition import Import
from opfuse.ir.dims import Dim, product

Labels = tuple[str, ...]


@dataclass(frozen=True)
class Term:
    """A value whose axes have labels, each once."""

    value: str
    labels: Labels


def einsum(call: Call) -> str:
    equation = call.string_attribute("equation").replace(" ", "")
    values = call.present()
    terms, output = _parsed(equation, [call.rank(v) for v in values])
    extents = _extents(call, values, terms)
    operands = [_without_repeats(call, v, labels, extents) for v, labels in zip(values, terms, strict=True)]
    result = operands[0]
    for k, other in enumerate(operands[1:], 2):
        needed = {*output, *(label for rest in operands[k:] for label in rest.labels)}
        result = _product(call, result, other, needed, extents)
    result = _summed(call, result, set(output))
    if missing := [label for label in output if label not in result.labels]:  # all operands have 1 there
        shape = tuple(call.shape(result.value)) + (1,) * len(missing)
        result = Term(call.reshape(result.value, shape), (*result.labels, *missing))
    made = call.transpose(result.value, [result.labels.index(label) for label in output])
    return call.emit("identity", [made]) if made in values else made


# ---- the equation ----------------------------------------------------------------------------------------------------
def _parsed(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """Labels of each operand and of the result; those of "..." are numbers, "0" for the last of its dimensions."""
    left, arrow, right = equation.partition("->")
    parts = left.split(",")
    if not re.fullmatch(r"[A-Za-z.,]*(->[A-Za-z.]*)?", equation) or len(parts) != len(ranks):
        raise InvalidNode(f"its equation {equation!r} does not fit its {len(ranks)} inputs")
    terms = [_labels(part, rank, equation) for part, rank in zip(parts, ranks, strict=True)]
    dots = sorted({label for t in terms for label in t if label.isdecimal()}, key=int, reverse=True)
    if not arrow:
        seen = [label for t in terms for label in t if not label.isdecimal()]
        return terms, (*dots, *sorted(label for label in set(seen) if seen.count(label) == 1))
    before, has_dots, after = right.partition("...")
    output = (*before, *(dots if has_dots else ()), *after)
    if "." in output or len(set(output)) != len(output) or not set(output) <= {label for t in terms for label in t}:
        raise InvalidNode(f"its equation {equation!r} has a result that its inputs do not give")
    return terms, output


def _labels(part: str, rank: int, equation: str) -> Labels:
    before, has_dots, after = part.partition("...")
    count = rank - len(before) - len(after)
    if "." in before + after or count < 0 or (count and not has_dots):
        raise InvalidNode(f"its equation {equation!r} has {part!r} for an input of rank {rank}")
    return (*before, *(str(k) for k in reversed(range(count))), *after)


def _extents(call: Call, values: Sequence[str], terms: Sequence[Labels]) -> dict[str, Dim]:
    """The dimension of each label; a 1 gives way to another number."""
    extents: dict[str, Dim] = {}
    for value, labels in zip(values, terms, strict=True):
        for d, label in zip(call.shape(value), labels, strict=True):
            known = extents.setdefault(label, d)
            if known == 1:
                extents[label] = d
            elif d != 1:
                require_equal(known, d)
                if isinstance(known, int) and isinstance(d, int) and known != d:
                    raise InvalidNode(f"its label {label!r} stands for {known} and for {d}")
    return extents


# ---- operands --------------------------------------------------------------------------------------------------------
def _without_repeats(call: Call, value: str, labels: Labels, extents: dict[str, Dim]) -> Term:
    """Diagonals where a label stands twice; axes of size 1 that other operands have longer are dropped."""
    shape = call.shape(value)
    kept = [k for k, label in enumerate(labels) if shape[k] == extents[label]]
    value = call.reshape(value, [shape[k] for k in kept])
    labels = tuple(labels[k] for k in kept)
    while repeated := next((label for label in labels if labels.count(label) > 1), None):
        first = labels.index(repeated)
        value, labels = _diagonal(call, value, labels, first, labels.index(repeated, first + 1))
    return Term(value, labels)


def _diagonal(call: Call, value: str, labels: Labels, first: int, second: int) -> tuple[str, Labels]:
    """Both axes last and as one: every element at a distance of n + 1 is on the diagonal."""
    rest = [k for k in range(len(labels)) if k not in (first, second)]
    extent = call.shape(value)[first]
    if not isinstance(extent, int):
        call.needs_shapes(f"its diagonal of extent {extent} is not known")
    head = [call.shape(value)[k] for k in rest]
    flat = call.reshape(call.transpose(value, [*rest, first, second]), [*head, extent * extent])
    starts, steps = (0,) * (len(head) + 1), (*(1,) * len(head), extent + 1)
    line = call.emit("slice", [flat], starts=starts, stops=(*head, extent * extent), steps=steps)
    return line, (*(labels[k] for k in rest), labels[first])


def _summed(call: Call, term: Term, needed: set[str]) -> Term:
    """Without the labels that nobody else needs."""
    axes = tuple(k for k, label in enumerate(term.labels) if label not in needed)
    if not axes:
        return term
    value = call.emit("reduce_sum", [term.value], axes=axes, keepdims=False)
    return Term(value, tuple(label for label in term.labels if label in needed))


def _product(call: Call, a: Term, b: Term, needed: set[str], extents: dict[str, Dim]) -> Term:
    """Both labels of batches first, then those of a, then those of b; labels of both that nobody needs are summed."""
    a, b = _summed(call, a, needed | set(b.labels)), _summed(call, b, needed | set(a.labels))
    both = [label for label in a.labels if label in b.labels]
    batch, inner = [x for x in both if x in needed], [x for x in both if x not in needed]
    of_a, of_b = ([x for x in t.labels if x not in both] for t in (a, b))

    def shaped(term: Term, *groups: Sequence[str]) -> str:
        order = [label for group in groups for label in group if label in term.labels]
        moved = call.transpose(term.value, [term.labels.index(label) for label in order])
        if not inner:  # ones for the labels of the other operand: they broadcast
            shape = [extents[x] if x in term.labels else 1 for group in groups for x in group]
        else:
            shape = [*(extents[x] for x in groups[0]), *(product([extents[x] for x in group]) for group in groups[1:])]
        return call.reshape(moved, shape)

    labels = (*batch, *of_a, *of_b)
    if not inner:
        return Term(call.emit("mul", [shaped(a, batch, of_a, of_b), shaped(b, batch, of_a, of_b)]), labels)
    made = call.emit("matmul", [shaped(a, batch, of_a, inner), shaped(b, batch, inner, of_b)])
    return Term(call.reshape(made, [extents[x] for x in labels]), labels)


IMPORTS: tuple[Import, ...] = (
    Import("Einsum", (12, 28), einsum, ("reshape", "transpose", "slice", "reduce_sum", "mul", "matmul", "identity")),
)  # fmt: skip
