"""What a recurrence computes, step by step: the `Structure` of operators that go along a time axis, as data.

A `Scan` runs over `time` in order. Every value of a step lies over the same parallel `axes` (rows, then columns last)
and has a number, its place in `values`; formulas name earlier values as `Operand(number)`:

    Access     a read of an input at (time, axes): projected gates, lengths; weights stand in `Product`s only
    Carried    handed from step to step: `init` before the first one, then the value number `next` of the step before
    Product    start + sum over k of value[rows, k] * weight[.., k, column]: the state times the recurrent weights
    Scalar     a formula over earlier values, and `Position(time)`

    RNN    axes (b, h)   $0 = in0[t, b, h]   $1 = carried in2[b, h] -> $3   $2 = $0 + sum k<H> $1[b, k] * in1[k, h]
           $3 = tanh($2)   out0[t, b, h] = $3 each step, out1[b, h] = $3 of the last

Code generators print nothing else of a recurrent operator, so that another one is one entry in the operator table.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from opfuse.ir.index import Index
from opfuse.ir.scalar import Operand, Scalar, text, walk
from opfuse.ir.structure import Access, Axis
from opfuse.ir.types import DType


@dataclass(frozen=True)
class Carried:
    init: Access | Scalar  # formulas name reads that do not depend on time
    next: int  # number of the value that it has in the next step
    dtype: DType


@dataclass(frozen=True)
class Product:
    """The columns of an earlier value, a row of a matrix, times a weight: read at (over, last of the scan's axes)."""

    value: int
    weight: Access
    over: Axis
    start: Scalar


Value = Access | Carried | Product | Scalar


@dataclass(frozen=True)
class Result:
    """An output of the operator: a value stored in each step at `index` (over time too), or a carried one at last."""

    value: int
    index: tuple[Index, ...]
    last: bool = False


@dataclass(frozen=True)
class Scan:
    time: Axis
    axes: tuple[Axis, ...]
    values: tuple[Value, ...]
    results: tuple[Result, ...]  # one for each output of the operator

    def check(self) -> None:
        """ValueError where the parts do not fit together."""
        names = {a.name for a in (self.time, *self.axes)}
        for k, v in enumerate(self.values):
            for formula in formulas(v):
                if late := [x.index for x in walk(formula) if isinstance(x, Operand) and x.index >= k]:
                    raise ValueError(f"${k} reads ${late[0]}, which is made later")
            if isinstance(v, Product) and not (v.value < k and v.over.extent == self.axes[-1].extent):
                raise ValueError(f"${k} sums over {v.over}, and the columns of an earlier value are {self.axes[-1]}")
            if isinstance(v, Access) and (unknown := {n for i in v.index for n in i.axes} - names):
                raise ValueError(f"${k} is read along unknown axes {sorted(unknown)}")
        for r in self.results:
            if r.last and not isinstance(self.values[r.value], Carried):
                raise ValueError(f"${r.value} is left over after the last step, and is not carried")

    def __str__(self) -> str:
        lines = [f"${k} = {value_text(v)}" for k, v in enumerate(self.values)]
        places = [
            f"{'last' if r.last else 'each'} ${r.value} at [{', '.join(map(str, r.index))}]" for r in self.results
        ]
        return f"scan {self.time} of ({', '.join(map(str, self.axes))}): {'; '.join((*lines, *places))}"


def formulas(v: Value) -> tuple[Scalar, ...]:
    """The formulas that a value holds."""
    if isinstance(v, Carried):
        return formulas(v.init)
    if isinstance(v, Access):
        return ()
    return (v.start,) if isinstance(v, Product) else (v,)


def value_text(v: Value) -> str:
    match v:
        case Access():
            return f"in{v.operand}[{', '.join(map(str, v.index))}]"
        case Carried(init, following, _):
            return f"carried {value_text(init)} -> ${following}"
        case Product(value, weight, over, start):
            return f"{text(start)} + sum {over} ${value} * {value_text(weight)}"
        case _:
            return text(v)


@dataclass
class ScanBuilder:
    """Collects the values of a step in order; each call answers with the leaf that later formulas use."""

    time: Axis
    axes: tuple[Axis, ...]
    values: list[Value] = field(default_factory=list)

    def _add(self, v: Value, dtype: DType) -> Operand:
        self.values.append(v)
        return Operand(len(self.values) - 1, dtype)

    def read(self, operand: int, index: tuple[Index, ...], dtype: DType) -> Operand:
        return self._add(Access(operand, index), dtype)

    def carry(self, init: Access | Scalar, dtype: DType) -> Operand:
        """A carried value whose next one is named later, by `follow`."""
        return self._add(Carried(init, -1, dtype), dtype)

    def follow(self, carried: Operand, following: Scalar) -> None:
        """State what a carried value is after the step."""
        before = self.values[carried.index]
        assert isinstance(before, Carried)
        self.values[carried.index] = Carried(before.init, self.value(following).index, before.dtype)

    def product(self, value: Operand, weight: Access, start: Scalar) -> Operand:
        columns = self.axes[-1]
        return self._add(Product(value.index, weight, Axis("k", columns.extent), start), start.dtype)

    def value(self, formula: Scalar) -> Operand:
        return formula if isinstance(formula, Operand) else self._add(formula, formula.dtype)

    def build(self, results: tuple[Result, ...]) -> Scan:
        return Scan(self.time, self.axes, tuple(self.values), results)


def summed_index() -> Index:
    """The index of a product's summed axis in the access of its weight."""
    return Axis("k", 1).index
