"""Partition the graph into regions, each to become one kernel.

    groups = group(graph, providers, target, options, ledger)      # list of (Region, Claim | None), in order

`joining` joins nodes while that is predicted faster, `views` says what needs no kernel, `boundaries` why neighbours
stay apart. All that was decided goes into the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from opfuse.decision import Decision, Ledger, Refusal
from opfuse.fuse.boundaries import record_boundaries
from opfuse.fuse.joining import Joining
from opfuse.fuse.provider import Claim, Provider
from opfuse.fuse.region import Region, kernel_decision
from opfuse.ir.graph import Graph
from opfuse.options import Options
from opfuse.target import Target


@dataclass(frozen=True)
class Group:
    region: Region
    claim: Claim | None  # None: a view of its input's bytes


def group(graph: Graph, providers: Sequence[Provider], target: Target, options: Options, ledger: Ledger) -> list[Group]:
    """Partition the graph; appends fusion and boundary decisions to the ledger."""
    alone: frozenset[str] = frozenset()
    left_out: list[Decision] = []
    while True:
        graph.placements = {}
        joining = Joining(graph, providers, target, options)
        joining.run(alone)
        found = [
            names for names in joining.partition.members.values()
            if len(names) > 1 and kernel_decision(graph, names).id in options.disabled_fusions
        ]  # fmt: skip
        if not found:
            break
        left_out += [replace(kernel_decision(graph, n), outcome="disabled", reason="--no-fuse") for n in found]
        alone |= frozenset(n for names in found for n in names)
    joining.views.settle()
    for decision in (*left_out, *joining.decisions, *joining.views.decisions):
        ledger.add(decision)
    for group_number in joining.order():
        names = joining.partition.members[group_number]
        if not joining.views.is_view(group_number):
            ledger.add(kernel_decision(graph, names))
    record_boundaries(joining, ledger)
    return groups_of(joining)


def groups_of(joining: Joining) -> list[Group]:
    out = []
    for g in joining.order():
        names = joining.partition.members[g]
        region = Region.of(joining.graph, names)
        if joining.views.is_view(g):
            out.append(Group(region, None))
            continue
        answer = joining.claims.of(names)
        if isinstance(answer, Refusal):
            raise ValueError(f"no provider runs {names}: {answer.text}")
        out.append(Group(region, answer))
    return out
