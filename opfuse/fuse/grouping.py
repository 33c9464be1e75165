"""Partition the graph into regions, each to become one kernel: greedy, by predicted seconds, every answer recorded.

    groups = group(graph, providers, target, options, ledger)      # list of (Region, Claim | None), in order

Nodes are visited in order; each tries to join the group of a producer, the latest first. A join is taken when it is
legal (`legality`), some provider claims the joined region, and the joined kernel is predicted faster than the two.
Reshapes, and slices that no kernel took in, are views that cost nothing, or are joined together with what follows them;
the parts of a joint are written where it lies (`placing`). Then groups that read one value, or write parts of one, try
to join as siblings.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from opfuse.decision import Decision, Ledger, Refusal
from opfuse.fuse.chains import chains
from opfuse.fuse.legality import Partition, join_refusal
from opfuse.fuse.placing import Placing, is_reshape
from opfuse.fuse.provider import Claim, Provider, why_on_host
from opfuse.fuse.region import Region
from opfuse.ir.graph import Graph, Node, user_names
from opfuse.ir.ops import structure_of
from opfuse.ir.placement import Placement, is_dense
from opfuse.options import Options
from opfuse.target import Target

MOST_SIBLINGS = 8  # that a group is tried with: hundreds of kernels read one value in some models
MARGIN = 0.05  # a join must save this share of its smallest part: what the model does not see of it. Siblings stay the
# kernels that they were, in one launch: they need no margin (Q and K of a transformer on one thread: 195 us apart, 194
# joined; ultraface: 38 kernels or 27 in the same time).

IN_PLACE: tuple[str, str, dict[str, object]] = (
    "in-place", "its parts are written where the joined value lies, and read there as a whole", {}
)  # fmt: skip


@dataclass(frozen=True)
class Group:
    region: Region
    claim: Claim | None  # None: a view of its input's bytes


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
        self.placing = Placing(graph)
        self.views = {n.name for n in graph.nodes.values() if is_reshape(graph, n) and self.placing.see(n) is None}
        self.joints: set[str] = set()  # views whose parts are written in place
        self.free = {n.name for n in graph.nodes.values() if n.name not in self.views and Placing(graph).see(n) is None}
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

    def seconds(self, group: int) -> float | None:
        """What the group costs as a kernel of its own: nothing where it would be a view; None if nobody claims it."""
        names = self.partition.members[group]
        if len(names) == 1 and names[0] in self.free:
            return 0.0
        answer = self.claim(names)
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
            heavy = self.is_heavy_joint(name)
            if name in alone or name in self.views or heavy and self.join_in_place(name):
                continue
            self.grow(name, alone)
            if not heavy and len(self.partition.members[self.partition.group_of[name]]) == 1:
                self.become_view(name)
        for value in self.graph.types:
            if not self.graph.is_constant(value):
                self.join_siblings(self.graph.consumers(value), alone)
        for name in self.graph.nodes:
            if name in self.joints:
                self.join_siblings(self.part_makers(name), alone)
        while self.join_neighbours(alone):
            pass

    def join_siblings(self, nodes: Iterable[Node], alone: frozenset[str]) -> None:
        """Join the groups of nodes that read nothing of each other: Q, K and V of one input load its tile once."""
        groups = {self.partition.group_of[n.name] for n in nodes if n.name not in self.views}
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
        kernels = [g for g in self.order() if not self.is_view_group(g)]
        for parts in [(p, *bridge, c) for c in kernels for p, bridge in self.producers(c)]:
            if all(g in self.partition.members and not alone & set(self.partition.members[g]) for g in parts):
                self.try_join(parts[0], parts[1:-1], parts[-1])
        return len(self.partition.members) < before

    def part_makers(self, joint: str) -> list[Node]:
        """Who writes the parts of a value that is joined in place."""
        found = (self.graph.producer(self.placing.root(v)) for v in self.graph.nodes[joint].reads)
        return [n for n in found if n is not None]

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
                if not self.is_view_group(p):
                    bridges.setdefault(p, set()).update(bridge)
                elif not self.is_joint_group(p):
                    stack.append((p, (*bridge, p)))
        return [(producer, tuple(sorted(views))) for producer, views in bridges.items()]

    def part_producers(self, group: int) -> set[int]:
        """The groups that made what this one reads through joints."""
        found, seen = set[int](), set[int]()
        stack = [(group, False)]
        while stack:
            at, joined = stack.pop()
            for p in self.partition.predecessors[at]:
                if not self.is_view_group(p):
                    found |= {p} if joined else set()
                elif p not in seen:
                    seen.add(p)
                    stack.append((p, joined or self.is_joint_group(p)))
        return found

    # ---- without a kernel -------------------------------------------------------------------------------------------
    def is_joint_group(self, group: int) -> bool:
        return any(name in self.joints for name in self.partition.members[group])

    def is_heavy_joint(self, name: str) -> bool:
        """Some part comes out of a reduction or more, which no kernel of the joint would make again."""
        if isinstance(self.placing.joint(self.graph.nodes[name]), Refusal):
            return False
        makers = [self.graph.producer(self.placing.root(v)) for v in self.graph.nodes[name].reads]
        return any(m is not None and self.is_heavy(self.partition.group_of[m.name]) for m in makers)

    def is_heavy(self, group: int) -> bool:
        structures = [structure_of(self.graph, self.graph.nodes[n]) for n in self.partition.members[group]]
        return any(s is None or s.reduce_axes for s in structures)

    def become_view(self, name: str) -> None:
        """A slice that no kernel took in looks into its source; a joint's parts are written where it lies."""
        if name in self.free and self.placing.see(self.graph.nodes[name]) is None:
            self.views.add(name)
        elif not self.join_in_place(name):
            self.free.discard(name)

    def join_in_place(self, name: str) -> bool:
        node = self.graph.nodes[name]
        if isinstance(self.placing.joint(node), Refusal):
            return False
        decision = joint_decision(self.graph, node)
        if decision.id in self.options.disabled_fusions:
            self.fusions.append(replace(decision, outcome="disabled", reason="--no-fuse"))
            return False
        refusal = self.made_on_host(node)
        if refusal is None:
            refusal = self.placing.join(node)
        if refusal is not None:
            self.fusions.append(replace(decision, outcome="refused", reason=refusal.text, code=refusal.code))
            return False
        self.views.add(name)
        self.joints.add(name)
        self.fusions.append(decision)
        return True

    def made_on_host(self, node: Node) -> Refusal | None:
        """Python functions bring arrays of their own."""
        for value in node.reads:
            maker = self.graph.producer(self.placing.root(value))
            names = self.partition.members[self.partition.group_of[maker.name]] if maker is not None else []
            answer = self.claim(names) if maker is not None and maker.name not in self.views else None
            if answer is not None and not (isinstance(answer, Claim) and answer.native):
                return Refusal("part-on-host", f"{value} is made by a Python function, in an array of its own")
        return None

    def settle(self) -> None:
        """Views and parts get their places, and the kernels that read or write between gaps are claimed once more."""
        asked = dict(self.claims)  # without places: what some round claims between gaps may have none in the next
        settled = False
        while not settled:
            self.claims = dict(asked)
            self.graph.placements = self.places()
            strided = {v for v, p in self.graph.placements.items() if not is_dense(known(self.graph, v), p.strides)}
            settled = all([self.stays_native(g, strided) for g in self.partition.members if not self.is_view_group(g)])

    def places(self) -> dict[str, Placement]:
        """Of the views that are left: some became part of a kernel. One that does not fit any more gets a kernel."""
        fits = False
        while not fits:
            self.placing, fits = Placing(self.graph), True
            for name, node in self.graph.nodes.items():
                if name in self.views and self.is_view_group(self.partition.group_of[name]):
                    refusal = self.placing.join(node) if name in self.joints else self.placing.see(node)
                    if refusal is not None:
                        self.stand_alone(name, refusal)
                        fits = False
        return self.placing.placements()

    def stand_alone(self, name: str, why: Refusal) -> None:
        """What was to have no kernel gets one after all."""
        self.views.discard(name)
        if name in self.joints:
            self.joints.discard(name)
            taken = joint_decision(self.graph, self.graph.nodes[name])
            refused = replace(taken, outcome="refused", reason=why.text, code=why.code, facts=why.facts)
            self.fusions = [refused if d.id == taken.id and d.rule == taken.rule else d for d in self.fusions]

    def stays_native(self, group: int, strided: set[str]) -> bool:
        """False where the kernel cannot be had that way: then what lies so stands by itself."""
        names = self.partition.members[group]
        region = Region.of(self.graph, names)
        between = [v for v in (*region.inputs, *region.outputs) if v in strided]
        before = self.claims.pop("\n".join(names), None) if between else None
        answer = self.claim(names)
        if isinstance(answer, Claim) and answer.native:
            return True
        misplaced = [v for v in region.outputs if v in self.placing.parts]  # Python functions write no parts
        if isinstance(before, Claim) and before.native:
            misplaced = between
        why = Refusal("between-gaps", "no kernel reads and writes it where it would lie", {"kernel": names[:8]})
        for name in [name for name in self.views for v in misplaced if self.lays(name, v)]:
            self.stand_alone(name, why)
        return not misplaced

    def lays(self, name: str, value: str) -> bool:
        """The view is the value, or the joint in which it lies."""
        part = self.placing.parts.get(value)
        outer = self.placing.graph.producer(part.whole) if part is not None else self.graph.producer(value)
        return outer is not None and outer.name == name

    def try_join(self, producer: int, bridge: tuple[int, ...], consumer: int, rule: str = "join") -> None:
        """Join where it is legal, claimed and predicted faster; `boundary` says why not where it stays so."""
        parts = (producer, *bridge, consumer)
        if join_refusal(self.partition, parts) is not None:
            return
        names = self.ordered(parts)
        answer = self.claim(names)
        if isinstance(answer, Refusal) or not answer.native:
            return
        apart = self.apart(parts, 0.0 if rule == "siblings" else MARGIN)
        if apart is not None and not apart.allows(answer.cost.seconds):
            return
        for g in (*bridge, consumer):
            self.partition.merge(producer, g)
        origin = user_names(self.graph.nodes[n] for n in names)
        facts = {"joined_s": answer.cost.seconds, "apart_s": apart.seconds if apart else None}
        self.fusions.append(Decision("fusion", rule, origin, "taken", "predicted faster in one kernel", facts=facts))

    def apart(self, parts: Sequence[int], margin: float = MARGIN) -> _Apart | None:
        """What the parts cost as kernels of their own; None where one of them has no kernel of its own."""
        asked = [self.seconds(g) for g in parts if not self.is_view_group(g)]
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
        graph.placements = {}
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
    grouping.settle()
    for decision in (*left_out, *grouping.fusions):
        ledger.add(decision)
    for group_number in grouping.order():
        names = grouping.partition.members[group_number]
        if not grouping.is_view_group(group_number):
            ledger.add(kernel_decision(graph, names))
    record_boundaries(grouping, ledger)
    return grouping.groups()


def known(graph: Graph, value: str) -> tuple[int, ...]:
    return tuple(d for d in graph.types[value].shape if isinstance(d, int))


def kernel_decision(graph: Graph, names: Sequence[str]) -> Decision:
    """The decision whose id names a kernel: in `explain`, and for `--no-fuse`."""
    return Decision("fusion", "kernel", user_names(graph.nodes[n] for n in names), "taken")


def joint_decision(graph: Graph, node: Node) -> Decision:
    """The decision to write the parts of a joint in place; its id switches that off."""
    moved = graph.types[node.output].bytes
    facts = {"bytes_not_copied": 2 * moved} if isinstance(moved, int) else {}
    reason = "each part is written where it lies"
    return Decision("fusion", "in-place", user_names([node]), "taken", reason, facts=facts)


def record_boundaries(grouping: Grouping, ledger: Ledger) -> None:
    """One decision for each pair of neighbouring kernels: why they are two."""
    for consumer in grouping.order():
        if grouping.is_view_group(consumer):
            continue
        through = dict.fromkeys(grouping.part_producers(consumer), IN_PLACE)
        plain = {p: grouping.boundary(p, bridge, consumer) for p, bridge in grouping.producers(consumer)}
        for producer, (code, reason, facts) in sorted((plain | through).items()):
            first, second = (
                kernel_decision(grouping.graph, grouping.partition.members[g]) for g in (producer, consumer)
            )
            facts = {**facts, "between": [first.id, second.id]}
            ledger.add(
                Decision("boundary", code, (*first.nodes[-1:], *second.nodes[:1]), "refused", reason, code, facts)
            )
