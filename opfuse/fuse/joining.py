"""Join groups of nodes as long as one kernel is predicted faster than two: greedy, every answer recorded.

    joining = Joining(graph, providers, target, options)
    joining.run(alone=frozenset())          # joining.partition.members are the kernels and views

Nodes are visited in order; each tries to join the group of a producer, the latest first. A join is taken when it is
legal (`legality`), some provider claims the joined region, and the joined kernel is predicted faster than the two.
A node that stays alone becomes a view where it can (`views`). Then groups that read one value, or write parts of one,
try to join as siblings, and every pair of neighbours is tried once more.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from opfuse.decision import Decision, Refusal
from opfuse.fuse.chains import chains
from opfuse.fuse.claims import Claims
from opfuse.fuse.legality import Partition, join_refusal
from opfuse.fuse.provider import Claim, Provider
from opfuse.fuse.views import Views
from opfuse.ir.graph import Graph, Node, user_names
from opfuse.options import Options
from opfuse.target import Target

MOST_SIBLINGS = 8  # that a group is tried with: hundreds of kernels read one value in some models
MARGIN = 0.05  # a join must save this share of its smallest part: what the model does not see of it. Siblings stay the
# kernels that they were, in one launch: they need no margin (Q and K of a transformer on one thread: 195 us apart, 194
# joined; ultraface: 38 kernels or 27 in the same time).


@dataclass(frozen=True)
class _Apart:
    seconds: float
    margin: float

    def allows(self, joined: float) -> bool:
        return joined <= self.seconds - self.margin


class Joining:
    """A partition on its way from one group a node to one group a kernel."""

    def __init__(self, graph: Graph, providers: Sequence[Provider], target: Target, options: Options) -> None:
        self.graph, self.target, self.options = graph, target, options
        self.partition = Partition(graph)
        self.claims = Claims(graph, providers, target)
        self.views = Views(graph, self.partition, self.claims, options)
        self.decisions: list[Decision] = []
        self.alone: frozenset[str] = frozenset()

    def seconds(self, group: int) -> float | None:
        """What the group costs as a kernel of its own: nothing where it would be a view; None if nobody claims it."""
        names = self.partition.members[group]
        if len(names) == 1 and names[0] in self.views.free:
            return 0.0
        answer = self.claims.of(names)
        return answer.cost.seconds if isinstance(answer, Claim) else None

    # ---- joining ----------------------------------------------------------------------------------------------------
    def run(self, alone: frozenset[str]) -> None:
        """Join groups; nodes named in `alone` stay by themselves."""
        self.alone = alone
        if "all" in self.options.disabled_fusions:
            return
        for names in chains(self.graph, self.target.l2_bytes // 2):
            groups = sorted({self.partition.group_of[n] for n in names})
            if len(groups) > 1 and not alone & set(names):
                self.try_join(groups[0], tuple(groups[1:-1]), groups[-1])
        for name in list(self.graph.nodes):
            heavy = self.views.is_heavy_joint(name)
            if name in alone or name in self.views.names or heavy and self.views.join_in_place(name):
                continue
            self.grow(name, alone)
            if not heavy and len(self.partition.members[self.partition.group_of[name]]) == 1:
                self.views.become_view(name)
        for value in self.graph.types:
            if not self.graph.is_constant(value):
                self.join_siblings(self.graph.consumers(value), alone)
        for name in self.graph.nodes:
            if name in self.views.joints:
                self.join_siblings(self.views.part_makers(name), alone)
        while self.join_neighbours(alone):
            pass

    def join_siblings(self, nodes: Iterable[Node], alone: frozenset[str]) -> None:
        """Join the groups of nodes that read nothing of each other: Q, K and V of one input load its tile once."""
        groups = {self.partition.group_of[n.name] for n in nodes if n.name not in self.views.names}
        left = [g for g in sorted(groups) if not alone & set(self.partition.members[g])]
        while left:
            first, *left = left
            for other in left[:MOST_SIBLINGS]:
                if not self.reads(first, other) and not self.reads(other, first):
                    self.try_join(first, (), other, "siblings")
            left = [g for g in left if g in self.partition.members]

    def join_neighbours(self, alone: frozenset[str]) -> bool:
        """Try every pair of neighbours once more: each may have joined others since. Whether any pair joined."""
        before = len(self.partition.members)
        kernels = [g for g in self.order() if not self.views.is_view(g)]
        for parts in [(p, *bridge, c) for c in kernels for p, bridge in self.producers(c)]:
            if all(g in self.partition.members and not alone & set(self.partition.members[g]) for g in parts):
                self.try_join(parts[0], parts[1:-1], parts[-1])
        return len(self.partition.members) < before

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
        """(producer group, all view groups between) for everything that the group reads, but not through joints."""
        bridges: dict[int, set[int]] = {}
        stack: list[tuple[int, tuple[int, ...]]] = [(group, ())]
        while stack:
            at, bridge = stack.pop()
            for p in self.partition.predecessors[at]:
                if not self.views.is_view(p):
                    bridges.setdefault(p, set()).update(bridge)
                elif not self.views.is_joint(p):
                    stack.append((p, (*bridge, p)))
        return [(producer, tuple(sorted(views))) for producer, views in bridges.items()]

    def try_join(self, producer: int, bridge: tuple[int, ...], consumer: int, rule: str = "join") -> None:
        """Join where it is legal, claimed and predicted faster; `boundary` says why not where it stays so."""
        parts = (producer, *bridge, consumer)
        if join_refusal(self.partition, parts) is not None:
            return
        names = self.ordered(parts)
        answer = self.claims.of(names)
        if isinstance(answer, Refusal) or not answer.native:
            return
        apart = self.apart(parts, 0.0 if rule == "siblings" else MARGIN)
        if apart is not None and not apart.allows(answer.cost.seconds):
            return
        for g in (*bridge, consumer):
            self.partition.merge(producer, g)
        origin = user_names(self.graph.nodes[n] for n in names)
        facts = {"joined_s": answer.cost.seconds, "apart_s": apart.seconds if apart else None}
        self.decisions.append(Decision("fusion", rule, origin, "taken", "predicted faster in one kernel", facts=facts))

    def apart(self, parts: Sequence[int], margin: float = MARGIN) -> _Apart | None:
        """What the parts cost as kernels of their own; None where one of them has no kernel of its own."""
        asked = [self.seconds(g) for g in parts if not self.views.is_view(g)]
        seconds = [s for s in asked if s is not None]
        if len(seconds) < len(asked):
            return None
        return _Apart(sum(seconds), margin * min([s for s in seconds if s] or [0.0]))

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
