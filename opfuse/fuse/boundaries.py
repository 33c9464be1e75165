"""Why two neighbouring kernels are two: one decision for each pair, from the final groups.

    record_boundaries(joining, ledger)
"""

from __future__ import annotations

from collections.abc import Sequence

from opfuse.decision import Decision, Ledger, Refusal
from opfuse.fuse.joining import Joining
from opfuse.fuse.legality import join_refusal
from opfuse.fuse.provider import Claim, why_on_host
from opfuse.fuse.region import kernel_decision

Reason = tuple[str, str, dict[str, object]]  # code, sentence, numbers

IN_PLACE: Reason = (
    "in-place", "its parts are written where the joined value lies, and read there as a whole", {}
)  # fmt: skip


def record_boundaries(joining: Joining, ledger: Ledger) -> None:
    """One decision for each pair of neighbouring kernels: why they are two."""
    for consumer in joining.order():
        if joining.views.is_view(consumer):
            continue
        through = dict.fromkeys(joining.views.part_producers(consumer), IN_PLACE)
        plain = {p: boundary(joining, p, bridge, consumer) for p, bridge in joining.producers(consumer)}
        for producer, (code, reason, facts) in sorted((plain | through).items()):
            first, second = (
                kernel_decision(joining.graph, joining.partition.members[g]) for g in (producer, consumer)
            )
            facts = {**facts, "between": [first.id, second.id]}
            ledger.add(
                Decision("boundary", code, (*first.nodes[-1:], *second.nodes[:1]), "refused", reason, code, facts)
            )


def boundary(joining: Joining, producer: int, bridge: tuple[int, ...], consumer: int) -> Reason:
    """Why two neighbours are two kernels: code, reason and numbers, asked anew of the final groups."""
    parts = (producer, *bridge, consumer)
    disabled = "all" in joining.options.disabled_fusions
    if disabled:
        return "disabled", "fusion is switched off (--no-fuse)", {}
    refusal = join_refusal(joining.partition, parts)
    if refusal is not None:
        return refusal.code, refusal.text, dict(refusal.facts)
    answer = joining.claims.of(joining.ordered(parts))
    if isinstance(answer, Refusal):
        return answer.code, answer.text, dict(answer.facts)
    if not answer.native:
        return host_boundary(joining, joining.ordered(parts), answer)
    apart = joining.apart(parts)
    facts: dict[str, object] = {"joined_s": answer.cost.seconds, "apart_s": apart.seconds if apart else None}
    if apart is not None and not apart.allows(answer.cost.seconds):
        return "no-gain", "one kernel is predicted no faster than two", facts
    if joining.alone & set(joining.ordered(parts)):
        return "switched-off", "joined it would be faster, but one of the nodes is kept apart (--no-fuse)", facts
    return "order", "joined it would be faster, but each had joined others before the two could be tried", facts


def host_boundary(joining: Joining, names: Sequence[str], chosen: Claim) -> Reason:
    """Why no native provider takes the joined nodes."""
    refusal = why_on_host(joining.claims.first(names), chosen)
    return refusal.code, refusal.text, dict(refusal.facts)
