"""Rules: `before -> after, when`, as data.

    @rule("exact", before=x * 1, when=(same_type("x"),), cases=(Case({"x": (2, 3)}), Case({"x": (3,)}, fires=False)))
    def multiply_by_one(m: Match, to: Draft) -> str:
        '''x * 1 -> x'''
        return m["x"]

The function makes the value that stands for the root (a tuple of them for a root of several outputs), or returns a
Refusal; `when` holds the conditions that other rules have too. `rounding` is the class: "exact", "reassociating" (other
rounding, a bound of the same order as the original's) or "approximate". `cases` describe graphs in which the rule must
fire, and neighbours in which it must not; the tests make the graphs from `before`, so that a rule is tested from its
own definition.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from opfuse.decision import Refusal
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType
from opfuse.rewrite.draft import Draft
from opfuse.rewrite.pattern import Match, Pattern

Rounding = Literal["exact", "reassociating", "approximate"]
Build = Callable[[Match, Draft], str | tuple[str, ...] | Refusal]
Condition = Callable[[Match], Refusal | None]


@dataclass(frozen=True)
class Input:
    """A run-time operand of a case: its shape, type, and the range of its random values."""

    shape: tuple[int, ...]
    dtype: DType = DType.F32
    low: float = -3.0
    high: float = 3.0


# A shape is an Input; arrays and numbers are constants; None is left out.
Operand = Input | tuple[int, ...] | np.ndarray | np.generic | float | int | None


@dataclass(frozen=True, eq=False)
class Case:
    """A graph that tries a rule: operands by the names of the pattern, attributes by the names of its nodes.

    `shown` names pattern nodes whose values are graph outputs as well (the root always is). `build` makes the graph
    where no pattern can: it gets a Graph and returns the values to be shown. `spellings` bounds how many are tried.
    """

    operands: Mapping[str, Operand] = field(default_factory=dict)
    attrs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    fires: bool = True
    shown: tuple[str, ...] = ()
    dtype: DType = DType.F32
    build: Callable[[Graph], Sequence[str]] | None = None
    spellings: int = 24


@dataclass(frozen=True, eq=False)
class Rule:
    name: str
    rounding: Rounding
    before: Pattern
    build: Build
    when: tuple[Condition, ...] = ()
    cases: tuple[Case, ...] = ()
    tell: bool = False  # a refusal after a match is worth a line to the user
    doc: str = ""
    either_zero: bool = False  # -0.0 may become 0.0, or the other way round, as ONNX allows


def rule(rounding: Rounding, before: Pattern, *, when: Sequence[Condition] = (), cases: Sequence[Case] = (),
         tell: bool = False, either_zero: bool = False) -> Callable[[Build], Rule]:  # fmt: skip
    """Make a Rule of the function that builds its `after`; name and docstring are the function's."""

    def declare(build: Build) -> Rule:
        doc = inspect.getdoc(build) or ""
        return Rule(build.__name__, rounding, before, build, tuple(when), tuple(cases), tell, doc, either_zero)

    return declare


def declared(module: Mapping[str, Any], apart: Sequence[Rule] = ()) -> tuple[Rule, ...]:
    """The rules that a module (its `globals()`) defines, in the order of its text, less those `apart`."""
    found = dict.fromkeys(r for r in module.values() if isinstance(r, Rule))
    return tuple(r for r in found if r.build.__module__ == module["__name__"] and r not in apart)


def objection(rule_: Rule, m: Match) -> Refusal | None:
    """The first condition that does not hold."""
    return next((no for condition in rule_.when if (no := condition(m)) is not None), None)


# ---- conditions that many rules share --------------------------------------------------------------------------------
def same_type(name: str) -> Condition:
    """The result has the type of a captured value: nothing was widened by broadcasting or changed by a cast."""

    def condition(m: Match) -> Refusal | None:
        if m.result != m.type(name):
            facts = {"result": str(m.result), "value": m[name], "type": str(m.type(name))}
            return Refusal("other-type", f"the result is {m.result}, {m[name]} is {m.type(name)}", facts)
        return None

    return condition


def is_float(m: Match) -> Refusal | None:
    """The result is a float."""
    return (
        None if m.result.dtype.is_float else Refusal("not-float", f"the result is {m.result}", {"type": str(m.result)})
    )


def used_once(*names: str) -> Condition:
    """The values of captured nodes are read by one node and are no graph outputs, so they vanish with the rewrite."""

    def condition(m: Match) -> Refusal | None:
        for node in (m.nodes[n] for n in names if n in m.nodes):
            if m.graph.is_output(node.output):
                return Refusal("graph-output", f"{node.output} is a graph output as well", {"value": node.output})
            readers = m.graph.consumers(node.output)
            if len(readers) != 1:
                facts = {"value": node.output, "readers": [r.name for r in readers]}
                return Refusal("other-readers", f"{node.output} is read by {len(readers)} nodes", facts)
        return None

    return condition
