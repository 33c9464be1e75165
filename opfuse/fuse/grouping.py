"""Partition the graph into regions, each to become one kernel: greedy, by predicted seconds, every answer recorded.

    groups = group(graph, providers, target, options, ledger)      # list of (Region, Claim | None), in order

Nodes are visited in order; each tries to join the group of a producer, the latest first. A join is taken when it is
legal (`legality`), some provider claims the joined region, and the joined kernel is predicted faster than the two.
Reshapes that only rename bytes are joined together with what follows them, or stay views that cost nothing. Then groups
that read one value try to join as siblings.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace

from opfuse.decision import Decision, Ledger, Refusal
from opfuse.fuse.legality import Partition, join_refusal
from opfuse.fuse.provider import Claim, Cost, Provider, why_on_host
from opfuse.fuse.region import Region
from opfuse.ir.graph import Graph, Node, user_names
from opfuse.ir.index import Index, flatten
from opfuse.ir.ops import structure_of
from opfuse.options import Options
from opfuse.target import Target

MARGIN = 0.05  # a join must save this share of its smallest part: what the model does not see of it


@dataclass(frozen=True)
class Group:
    region: Region
    claim: Claim | None  # None: a view of its input's bytes


def is_view(graph: Graph, node: Node) -> bool:
    """The output holds the input's elements in the same row-major order."""
    structure = structure_of(graph, node)
    if structure is None or not structure.is_movement:
        return False
    operand = node.inputs[structure.reads[0].operand]
    if operand is None or graph.types[operand].elements != graph.types[node.output].elements:
        return False
    extents = {a.name: a.extent for a in structure.axes}
    still = {a.name: Index() for a in structure.axes if a.extent == 1}
    source = flatten([i.substitute(still) for i in structure.reads[0].index], graph.types[operand].shape, extents)
    place = [a.index.substitute(still) for a in structure.axes]
    return source == flatten(place, graph.types[node.output].shape, extents)


@dataclass(frozen=True)
class _Apart:
    seconds: float
    margin: float

    def allows(self, joined: float) -> bool:
        return joined <= self.seconds - self.margin


class Grouping:
    def __init__(self, graph: Graph, providers: Sequence[Provider], target: Target, options: Options) -> None:
        self.graph, self.providers, self.target, self.options = graph, providers, target, options
        self.partition = Partition(graph)
        self.views = {n.name for n in graph.nodes.values() if is_view(graph, n)}
        self.claims: dict[str, Claim | Refusal] = {}
        self.fusions: list[Decision] = []
        self.alone: frozenset[str] = frozenset()

    # ---- claims -----------------------------------------------------------------------------------------------------
    def claim(self, names: Sequence[str]) -> Claim | Refusal:
        """The cheapest claim for these nodes; the first provider's refusal where nobody claims them."""
        key = "\n".join(names)
        if key not in self.claims:
            region = Region.of(self.graph, names)
            answers = [p.claim(self.graph, region, self.target) for p in self.providers]
            claims = [a for a in answers if isinstance(a, Claim)]
            self.claims[key] = min(claims, key=lambda c: c.cost.seconds) if claims else answers[0]
        return self.claims[key]

    def is_view_group(self, group: int) -> bool:
        return all(name in self.views for name in self.partition.members[group])

    def cost(self, group: int) -> Cost | None:
        """What the group costs as a kernel of its own; None where nobody claims it."""
        answer = self.claim(self.partition.members[group])
        return answer.cost if isinstance(answer, Claim) else None

    # ---- joining ----------------------------------------------------------------------------------------------------
    def run(self, alone: frozenset[str]) -> None:
        """Join groups; nodes named in `alone` stay by themselves."""
        self.alone = alone
        if "all" in self.options.disabled_fusions:
            return
        for name in list(self.graph.nodes):
            if name not in alone and name not in self.views:
                self.grow(name, alone)
        for value in self.graph.types:
            if not self.graph.is_constant(value):
                self.join_siblings(value, alone)

    def join_siblings(self, value: str, alone: frozenset[str]) -> None:
        """Join groups that read one value and nothing of each other: Q, K and V of one input load its tile once."""
        readers = {self.partition.group_of[n.name] for n in self.graph.consumers(value) if n.name not in self.views}
        first, *others = [g for g in sorted(readers) if not alone & set(self.partition.members[g])] or [-1]
        for other in others:
            if not self.reads(first, other) and not self.reads(other, first):
                self.try_join(first, (), other, "siblings")

    def reads(self, consumer: int, producer: int) -> bool:
        return producer in self.partition.predecessors[consumer]

    def grow(self, name: str, alone: frozenset[str]) -> None:
        """Join the node's group with the groups that it reads, through views too, as long as one helps."""
        tried: set[int] = set()
        while True:
            group = self.partition.group_of[name]
            candidates = [c for c in self.producers(group) if c[0] not in tried]
            if not candidates:
                return
            producer, bridge = max(candidates)
            tried.add(producer)
            names = {n for g in (producer, *bridge) for n in self.partition.members[g]}
            if names & alone:
                continue
            self.try_join(producer, bridge, group)

    def producers(self, group: int) -> list[tuple[int, tuple[int, ...]]]:
        """(producer group, all the view groups between) for everything that the group reads."""
        bridges: dict[int, list[int]] = {}
        for p in self.partition.predecessors[group]:
            if not self.is_view_group(p):
                bridges.setdefault(p, [])
                continue
            for behind in self.partition.predecessors[p]:
                if not self.is_view_group(behind):
                    bridges.setdefault(behind, []).append(p)
        return [(producer, tuple(sorted(views))) for producer, views in bridges.items()]

    def try_join(self, producer: int, bridge: tuple[int, ...], consumer: int, rule: str = "join") -> None:
        """Join where it is legal, claimed and predicted faster; `boundary` says why not where it stays so."""
        parts = (producer, *bridge, consumer)
        if join_refusal(self.partition, parts) is not None:
            return
        names = self.ordered(parts)
        answer = self.claim(names)
        if isinstance(answer, Refusal) or not answer.native:
            return
        apart = self.apart(parts)
        if apart is not None and not apart.allows(answer.cost.seconds):
            return
        for g in (*bridge, consumer):
            self.partition.merge(producer, g)
        origin = user_names(self.graph.nodes[n] for n in names)
        facts = {"joined_s": answer.cost.seconds, "apart_s": apart.seconds if apart else None}
        self.fusions.append(Decision("fusion", rule, origin, "taken", "predicted faster in one kernel", facts=facts))

    def apart(self, parts: Sequence[int]) -> _Apart | None:
        """What the parts cost as kernels of their own; None where one of them has no kernel of its own."""
        costs = [self.cost(g) for g in parts if not self.is_view_group(g)]
        seconds = [c.seconds for c in costs if c is not None]
        return _Apart(sum(seconds), MARGIN * min(seconds)) if len(seconds) == len(costs) else None

    def ordered(self, groups: Sequence[int]) -> list[str]:
        names = [n for g in groups for n in self.partition.members[g]]
        return sorted(names, key=self.partition.position)

    # ---- results ----------------------------------------------------------------------------------------------------
    def order(self) -> list[int]:
        """Groups so that each comes after what it reads; earlier nodes first."""

        def place(g: int) -> tuple[int, int]:
            return self.partition.position(self.partition.members[g][0]), g

        missing = {g: len(p) for g, p in self.partition.predecessors.items()}
        ready, done = [place(g) for g, n in missing.items() if n == 0], []
        heapq.heapify(ready)
        while ready:
            _, g = heapq.heappop(ready)
            done.append(g)
            for following in self.partition.successors[g]:
                missing[following] -= 1
                if missing[following] == 0:
                    heapq.heappush(ready, place(following))
        return done

    def groups(self) -> list[Group]:
        out = []
        for g in self.order():
            names = self.partition.members[g]
            region = Region.of(self.graph, names)
            if self.is_view_group(g):
                out.append(Group(region, None))
                continue
            answer = self.claim(names)
            if isinstance(answer, Refusal):
                raise ValueError(f"no provider runs {names}: {answer.text}")
            out.append(Group(region, answer))
        return out

    def boundary(self, producer: int, bridge: tuple[int, ...], consumer: int) -> tuple[str, str, dict[str, object]]:
        """Why two neighbours are two kernels: code, reason and numbers, asked anew of the final groups."""
        parts = (producer, *bridge, consumer)
        disabled = "all" in self.options.disabled_fusions
        if disabled:
            return "disabled", "fusion is switched off (--no-fuse)", {}
        refusal = join_refusal(self.partition, parts)
        if refusal is not None:
            return refusal.code, refusal.text, dict(refusal.facts)
        answer = self.claim(self.ordered(parts))
        if isinstance(answer, Refusal):
            return answer.code, answer.text, dict(answer.facts)
        if not answer.native:
            return self.host_boundary(self.ordered(parts), answer)
        apart = self.apart(parts)
        facts: dict[str, object] = {"joined_s": answer.cost.seconds, "apart_s": apart.seconds if apart else None}
        if apart is not None and not apart.allows(answer.cost.seconds):
            return "no-gain", "one kernel is predicted no faster than two", facts
        if self.alone & set(self.ordered(parts)):
            return "switched-off", "joined it would be faster, but one of the nodes is kept apart (--no-fuse)", facts
        return "order", "joined it would be faster, but each had joined others before the two could be tried", facts

    def host_boundary(self, names: Sequence[str], chosen: Claim) -> tuple[str, str, dict[str, object]]:
        """Why no native provider takes the joined nodes."""
        refusal = why_on_host(self.providers[0].claim(self.graph, Region.of(self.graph, names), self.target), chosen)
        return refusal.code, refusal.text, dict(refusal.facts)


def group(graph: Graph, providers: Sequence[Provider], target: Target, options: Options, ledger: Ledger) -> list[Group]:
    """Partition the graph; appends fusion and boundary decisions to the ledger."""
    alone: frozenset[str] = frozenset()
    left_out: list[Decision] = []
    while True:
        grouping = Grouping(graph, providers, target, options)
        grouping.run(alone)
        found = [
            names for names in grouping.partition.members.values()
            if len(names) > 1 and kernel_decision(graph, names).id in options.disabled_fusions
        ]  # fmt: skip
        if not found:
            break
        left_out += [replace(kernel_decision(graph, n), outcome="disabled", reason="--no-fuse") for n in found]
        alone |= frozenset(n for names in found for n in names)
    for decision in (*left_out, *grouping.fusions):
        ledger.add(decision)
    for group_number in grouping.order():
        names = grouping.partition.members[group_number]
        if not grouping.is_view_group(group_number):
            ledger.add(kernel_decision(graph, names))
    record_boundaries(grouping, ledger)
    return grouping.groups()


def kernel_decision(graph: Graph, names: Sequence[str]) -> Decision:
    """The decision whose id names a kernel: in `explain`, and for `--no-fuse`."""
    return Decision("fusion", "kernel", user_names(graph.nodes[n] for n in names), "taken")


def record_boundaries(grouping: Grouping, ledger: Ledger) -> None:
    """One decision for each pair of neighbouring kernels: why they are two."""
    for consumer in grouping.order():
        if grouping.is_view_group(consumer):
            continue
        for producer, bridge in sorted(grouping.producers(consumer)):
            code, reason, facts = grouping.boundary(producer, bridge, consumer)
            first, second = (
                kernel_decision(grouping.graph, grouping.partition.members[g]) for g in (producer, consumer)
            )
            facts = {**facts, "between": [first.id, second.id]}
            ledger.add(
                Decision("boundary", code, (*first.nodes[-1:], *second.nodes[:1]), "refused", reason, code, facts)
            )
