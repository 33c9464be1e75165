"""One row of the operator table, and the call that its functions see.

A row holds everything that the engine knows of an operator: attributes with defaults, the shape rule, the structure
(or, for composites, the expansion into structured operators), an oracle in NumPy that shares no code with the formula,
the count of operations, and samples from which the tests are made.

    Operator("relu", Kind.STRUCTURED, inputs=("x",), infer=..., oracle=..., structure=..., samples=...)
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from opfuse.ir.dims import Dim
from opfuse.ir.graph import Attributes, Node
from opfuse.ir.scan import Scan
from opfuse.ir.structure import Structure
from opfuse.ir.types import TensorType

if TYPE_CHECKING:
    from opfuse.ir.graph import Graph


class Kind(enum.Enum):
    STRUCTURED = "structured"  # one loop nest: has a Structure
    COMPOSITE = "composite"  # expands into structured operators; kept whole for matching and for peers' kernels
    PHASED = "phased"  # several grid-wide steps (scans, recurrences)
    HOST = "host"  # no single kernel: runs in the oracle, unless a rewrite `expand`s it into several


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = _Required()


class OperatorError(ValueError):
    """A node that its operator's rules do not allow (wrong rank, unknown attribute, shapes that do not fit)."""


@dataclass(frozen=True)
class Call:
    """What a row's functions see of a node: complete attributes, input types (None where an input is left out)."""

    attrs: Attributes
    inputs: tuple[TensorType | None, ...]
    outputs: tuple[TensorType, ...] = ()  # filled for structure, expansion and FLOPs; empty for `infer`

    def __getitem__(self, attribute: str) -> Any:
        return self.attrs[attribute]

    def type(self, k: int) -> TensorType:
        """The type of input k; OperatorError where it is missing."""
        t = self.inputs[k] if k < len(self.inputs) else None
        if t is None:
            raise OperatorError(f"input {k} is missing")
        return t

    def shape(self, k: int) -> tuple[Dim, ...]:
        return self.type(k).shape

    def has(self, k: int) -> bool:
        return k < len(self.inputs) and self.inputs[k] is not None

    @property
    def output(self) -> TensorType:
        return self.outputs[0]


@dataclass(frozen=True)
class Sample:
    """A small call that the tests run through oracle, structure and (where there is one) kernel.

    `inputs` are arrays, or shapes of float32 standard normal data. None is an input left out.
    """

    inputs: tuple[np.ndarray | tuple[int, ...] | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)


Oracle = Callable[[Attributes, Sequence[Any]], Any]  # (attrs, arrays) -> array or tuple of arrays


@dataclass(frozen=True)
class Operator:
    name: str
    kind: Kind
    inputs: tuple[str, ...]  # names; "x?" may be left out, a last "xs*" stands for any number
    infer: Callable[[Call], TensorType | tuple[TensorType, ...]]
    oracle: Oracle
    attrs: Mapping[str, Any] = field(default_factory=dict)  # name -> default or REQUIRED
    structure: Callable[[Call], Structure] | None = None
    expand: Callable[[Graph, Call, tuple[str | None, ...]], tuple[str, ...]] | None = None
    needs_expansion: Callable[[Call], bool] | None = (
        None  # where both stand: this call is `expand`ed, it has no structure
    )
    scan: Callable[[Call], Scan] | None = None  # of a recurrence: its steps along time, in place of a structure
    flops: Callable[[Call], Dim] | None = None  # None: one for each output element and scalar function
    outputs: int | Callable[[Attributes], int] = 1
    random: bool = False  # two calls differ: never merged, never folded
    samples: tuple[Sample, ...] = ()

    def expands(self, call: Call) -> bool:
        """This call stands for several loop nests: it must go through `expand`, and `structure` may not be asked.

        True for every composite; for an operator with both (`conv` with a bias, `pad` by reflection) as its
        `needs_expansion` says.
        """
        if self.expand is None:
            return False
        if self.scan is not None:
            return False
        return self.structure is None or (self.needs_expansion is not None and self.needs_expansion(call))

    def output_count(self, attrs: Attributes) -> int:
        return self.outputs if isinstance(self.outputs, int) else self.outputs(self.complete(attrs))

    def complete(self, attrs: Attributes) -> dict[str, Any]:
        """Attributes with defaults filled in; OperatorError names one that is unknown or missing."""
        if unknown := set(attrs) - set(self.attrs):
            raise OperatorError(f"{self.name} has no attribute {sorted(unknown)[0]!r}")
        out = {k: attrs.get(k, default) for k, default in self.attrs.items()}
        for k, v in out.items():
            if v is REQUIRED:
                raise OperatorError(f"{self.name} needs the attribute {k!r}")
        return out

    def check_arity(self, node: Node) -> None:
        variadic = bool(self.inputs) and self.inputs[-1].endswith("*")
        if len(node.inputs) > len(self.inputs) and not variadic:
            raise OperatorError(f"{self.name} takes at most {len(self.inputs)} inputs, got {len(node.inputs)}")
        for k, name in enumerate(self.inputs):
            if not name.endswith(("?", "*")) and (k >= len(node.inputs) or node.inputs[k] is None):
                raise OperatorError(f"{self.name} needs its input {name!r}")
