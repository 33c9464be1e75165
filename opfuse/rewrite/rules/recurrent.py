"""Recurrences are parted: the product with all inputs at once, and the steps along time.

    lstm(x, w, r, b)  ->  lstm_steps(add(matmul(x, transpose(w)), b'), r')

What an operator of several grid-wide steps expands into stands in the operator table; this rule puts it into the graph,
so that each part becomes a kernel of its own and fuses with its neighbours.
"""

from __future__ import annotations

import numpy as np

from opfuse.decision import Refusal
from opfuse.ir.graph import Graph
from opfuse.ir.ops.gates import SIGMOID, TANH
from opfuse.ir.types import DType, TensorType
from opfuse.rewrite.draft import Draft
from opfuse.rewrite.pattern import Match, any_node
from opfuse.rewrite.rule import Case, Rule, declared, rule


def _recurrence(g: Graph, op: str, gates: int, functions: tuple[object, ...], direction: str) -> list[str]:
    directions = 2 if direction == "bidirectional" else 1
    rng = np.random.default_rng(0)
    x = g.add_input("x", TensorType(DType.F32, (4, 3, 5)))
    weights = [(directions, gates * 6, 5), (directions, gates * 6, 6), (directions, gates * 12)]
    constants = [g.add_constant(rng.standard_normal(s).astype(np.float32)) for s in weights]
    lengths = g.add_constant(np.array([4, 1, 3], np.int32))
    g.emit(op, [x, *constants, lengths], {"direction": direction, "activations": functions * directions}, name="r")
    return list(g.nodes["r"].outputs)


@rule("reassociating", any_node(("lstm", "gru", "rnn")), cases=(
    Case(build=lambda g: _recurrence(g, "lstm", 4, (SIGMOID, TANH, TANH), "forward")),
    Case(build=lambda g: _recurrence(g, "gru", 3, (SIGMOID, TANH), "bidirectional")),
    Case(build=lambda g: _recurrence(g, "rnn", 1, (TANH,), "reverse")),
))  # fmt: skip
def part_recurrence(m: Match, to: Draft) -> tuple[str, ...] | Refusal:
    """lstm(x, w, r, b) -> lstm_steps(matmul(x, w) + b, r), and so for every direction and every other recurrence"""
    return to.expansion(m.root)


RULES: tuple[Rule, ...] = declared(globals())
