"""Graphs made from a rule's own pattern: what its numeric tests run on.

    for graph in graphs_of(rule, case):        # one for each spelling of `before`
        ...                                    # run the rule alone, compare the oracle before and after

A case gives the operands (shapes, or arrays for constants) and the attributes; the pattern gives the operators, in
every order of commutative operands and every option. Nothing of the rule's `after` is used here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from opfuse.ir.graph import Graph
from opfuse.ir.ops import get
from opfuse.ir.types import DType, TensorType
from opfuse.rewrite.pattern import AnyOf, Constant, Op, Pattern, Var, spellings
from opfuse.rewrite.rule import Case, Input, Operand, Rule


def graphs_of(rule: Rule, case: Case) -> Iterator[Graph]:
    """The graphs of a case, as many spellings as it asks for, spread over all of them."""
    if case.build is not None:
        graph = Graph(rule.name)
        shown = case.build(graph)
        graph.set_outputs({f"out{k}": v for k, v in enumerate(shown)})
        yield graph
        return
    every = list(itertools.islice(spellings(rule.before), 5000))
    step = max(1, len(every) // case.spellings)
    for spelling in every[::step][: case.spellings]:
        yield _Maker(rule.name, case).graph_of(spelling)


def feeds_of(graph: Graph, case: Case, seed: int = 0) -> dict[str, np.ndarray]:
    """Random feeds in the ranges that the case states; inputs with a default are fed it."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for name in graph.inputs:
        type_ = graph.types[name]
        operand = case.operands.get(name)
        given = operand if isinstance(operand, Input) else Input(type_.static_shape, type_.dtype)
        feeds[name] = graph.defaults.get(name, _random(rng, given))
    return feeds


def _random(rng: np.random.Generator, given: Input) -> np.ndarray:
    if given.dtype is DType.BOOL:
        return rng.random(given.shape) < 0.5
    values = rng.uniform(given.low, given.high, given.shape)
    if given.dtype.is_integer:
        values = np.floor(values)
        values = values if given.dtype.is_signed else np.abs(values)
    return np.asarray(values).astype(given.dtype.numpy)


class _Maker:
    """Emits one spelling; each named operator and each variable once."""

    def __init__(self, name: str, case: Case) -> None:
        self.graph = Graph(name)
        self.case = case
        self._values: dict[str, str] = {}
        self._nodes: dict[str, str] = {}

    def graph_of(self, spelling: Pattern) -> Graph:
        root = self._emit(spelling)
        assert root is not None
        shown = [root, *(self._nodes[n] for n in self.case.shown if n in self._nodes)]
        self.graph.set_outputs({f"out{k}": v for k, v in enumerate(shown)})
        return self.graph

    def _emit(self, p: Pattern) -> str | None:
        if isinstance(p, AnyOf) and not p.options:
            return None
        if isinstance(p, Var):
            return self._operand(p.name)
        if isinstance(p, Constant):
            return self._constant(p)
        assert isinstance(p, Op) and p.inputs is not None, f"{p!r} makes no graph: the case needs `build`"
        if p.name in self._nodes:
            return self._nodes[p.name]
        inputs = [self._emit(i) for i in p.inputs]
        value = self.graph.emit(
            p.ops[0], inputs, self._attributes(p), origin=(f"user_{p.ops[0]}_{len(self.graph.nodes)}",)
        )
        if p.name is not None:
            self._nodes[p.name] = value
        return value

    def _attributes(self, p: Op) -> dict[str, Any]:
        known = get(p.ops[0]).attrs
        fixed = {k: v for k, v in p.attrs if not callable(v)}
        given: Mapping[str, Any] = self.case.attrs.get(p.name or "", {})
        return {k: v for k, v in {**_DEFAULTS, **fixed, **given}.items() if k in known}

    def _operand(self, name: str) -> str | None:
        if name not in self._values:
            made = self._make(name, self.case.operands.get(name, (2, 3)))
            if made is None:
                return None
            self._values[name] = made
        return self._values[name]

    def _make(self, name: str, operand: Operand) -> str | None:
        if operand is None:
            return None
        if isinstance(operand, tuple):
            operand = Input(operand, self.case.dtype)
        if isinstance(operand, Input):
            return self.graph.add_input(name, TensorType(operand.dtype, operand.shape))
        array = operand if isinstance(operand, (np.ndarray, np.generic)) else np.asarray(operand, self.case.dtype.numpy)
        return self.graph.add_constant(np.asarray(array), name)

    def _constant(self, p: Constant) -> str | None:
        if p.name is not None:
            return self._operand(p.name)
        assert p.value is not None
        return self.graph.scalar(p.value, self.case.dtype)


_DEFAULTS = {"alpha": 1 / 6, "beta": 0.5}  # of hard_sigmoid, where a pattern states predicates
