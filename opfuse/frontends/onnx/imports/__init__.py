"""THE import table: (domain, operator, since-version) -> the function that emits IR operators. A file a family.

    find("", "Softmax", 11)      -> the row whose function knows Softmax of opsets 11 and 12
    supported()                  -> what `opfuse ops` prints

A version's opset range reaches up to the next version of the operator that ONNX has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from onnx import defs

from opfuse.frontends.onnx.imports.definition import Import

OLDEST_OPSET = 7


@cache
def table() -> Mapping[tuple[str, str, int], Import]:
    """Every row by (domain, operator, since-version). ValueError where two rows claim one version."""
    from opfuse.frontends.onnx.imports import (
        contraction,
        einsum,
        elementwise,
        indexing,
        movement,
        normalisation,
        packed_weights,
        quantisation,
        recurrent,
        reduction,
        regions,
        resize,
        sampling,
        scatter,
        selection,
        signal,
        training,
        vectorizer,
        window,
    )

    rows: dict[tuple[str, str, int], Import] = {}
    for family in (elementwise, reduction, contraction, einsum, window, movement, indexing, normalisation, resize,
                   recurrent, quantisation, scatter, signal, sampling, selection, regions,
                   vectorizer, packed_weights, training):  # fmt: skip
        for entry in family.IMPORTS:
            for version in entry.since:
                if rows.setdefault((entry.domain, entry.op, version), entry) is not entry:
                    raise ValueError(f"{entry.op}-{version} stands twice in the import table")
    return rows


def find(domain: str, op: str, version: int) -> Import | None:
    """The row of an operator's version; None where the table has none."""
    return table().get((domain, op, version))


@cache
def versions(domain: str, op: str) -> tuple[int, ...]:
    """Every since-version that ONNX has for an operator, ascending; (1,) for the operators of ONNX Runtime."""
    if domain:
        return (1,)
    found = {s.since_version for s in _history() if s.name == op}
    return tuple(sorted(found))


@cache
def _history() -> tuple[defs.OpSchema, ...]:
    return tuple(s for s in defs.get_all_schemas_with_history() if s.domain == "")


def version_at(domain: str, op: str, opset: int) -> int:
    """The since-version that an opset selects. Operators that ONNX does not have, or has later, count as version 1."""
    return max((v for v in versions(domain, op) if v <= opset), default=1)


@dataclass(frozen=True)
class SupportedOperator:
    """One operator that can be imported: opset ranges (first, last) and the IR operators that it becomes."""

    domain: str
    op: str
    opsets: tuple[tuple[int, int], ...]
    emits: tuple[str, ...]


def supported() -> list[SupportedOperator]:
    """Every operator that can be imported, sorted by domain and name; ranges that touch are joined."""
    newest = int(defs.onnx_opset_version())
    found: dict[tuple[str, str], list[tuple[int, Import]]] = {}
    for (domain, op, version), entry in table().items():
        found.setdefault((domain, op), []).append((version, entry))
    out = []
    for (domain, op), rows in sorted(found.items()):
        known = versions(domain, op)
        ranges: list[tuple[int, int]] = []
        for version in sorted(v for v, _ in rows if v in known):
            last = 1 if domain else min([v - 1 for v in known if v > version], default=newest)
            first = version if domain else max(version, OLDEST_OPSET)
            if first > last:
                continue
            if ranges and ranges[-1][1] + 1 == first:
                ranges[-1] = (ranges[-1][0], last)
            else:
                ranges.append((first, last))
        emits = dict.fromkeys(name for _, entry in rows for name in entry.emits)
        out.append(SupportedOperator(domain, op, tuple(ranges), tuple(emits)))
    return out
