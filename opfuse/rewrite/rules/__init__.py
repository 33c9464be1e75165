"""The lists of rules, in the order in which they run.

    for one in PASSES:
        print(one.name, [r.name for r in one.rules])

Every pass cleans up after itself: the simplifications stand in each of them, so that a later rule sees canonical
forms.
"""

from __future__ import annotations

from dataclasses import dataclass

from opfuse.rewrite.rule import Rule
from opfuse.rewrite.rules import (
    activation,
    arithmetic,
    broadcasting,
    constants,
    conv_transpose,
    counting,
    embedding,
    joints,
    layout,
    linear,
    movement,
    normalisation,
    padding,
    recurrent,
    scales,
    transposes,
)


@dataclass(frozen=True)
class Pass:
    name: str
    rules: tuple[Rule, ...]


SIMPLIFY = (*constants.RULES, *movement.RULES, *joints.RULES, *arithmetic.RULES, *broadcasting.RULES)
CANONICAL = (*recurrent.RULES, *counting.RULES, *activation.RULES, *normalisation.RULES, *embedding.RULES)
LINEAR = (*arithmetic.SCALING, *linear.RULES, *scales.RULES, *padding.RULES)
LAYOUT = (*layout.RULES, *conv_transpose.RULES, *transposes.RULES)

PASSES = (
    Pass("simplify", SIMPLIFY),
    Pass("canonical", (*SIMPLIFY, *CANONICAL)),
    Pass("tables", (*SIMPLIFY, *embedding.TABLE_RULES)),
    Pass("linear", (*SIMPLIFY, *LINEAR)),
    Pass("layout", (*SIMPLIFY, *LAYOUT)),
)

# What any loader does: the model as its author wrote it, less what needs no input. Fusion's gain is counted from here.
FOLDING = (Pass("folding", (constants.fold_constants,)),)
