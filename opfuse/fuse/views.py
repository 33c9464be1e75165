"""Which nodes of a grouping have no kernel: reshapes, slices that no kernel took in, joints made in place.

    views.become_view(name)        # a node that stayed alone, if its value can lie in another's bytes
    views.settle()                 # all kernels are known: everything gets its place

What can lie where is the business of `placing`; here it is decided, and undone where a kernel cannot be had that way.
"""

from __future__ import annotations

from dataclasses import replace

from opfuse.decision import Decision, Refusal
from opfuse.fuse.claims import Claims
from opfuse.fuse.legality import Partition
from opfuse.fuse.placing import Placing, is_reshape
from opfuse.fuse.provider import Claim
from opfuse.fuse.region import Region
from opfuse.ir.graph import Graph, Node, user_names
from opfuse.ir.ops import structure_of
from opfuse.ir.placement import Placement, is_dense
from opfuse.options import Options


class Views:
    """`names` are views now, `joints` those whose parts are written in place; what is `free` would cost no kernel."""

    def __init__(self, graph: Graph, partition: Partition, claims: Claims, options: Options) -> None:
        self.graph, self.partition, self.claims, self.options = graph, partition, claims, options
        self.placing = Placing(graph)
        self.names = {n.name for n in graph.nodes.values() if is_reshape(graph, n) and self.placing.see(n) is None}
        self.joints: set[str] = set()
        self.free = {n.name for n in graph.nodes.values() if n.name not in self.names and Placing(graph).see(n) is None}
        self.decisions: list[Decision] = []

    def is_view(self, group: int) -> bool:
        return all(name in self.names for name in self.partition.members[group])

    def is_joint(self, group: int) -> bool:
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
            self.names.add(name)
        elif not self.join_in_place(name):
            self.free.discard(name)

    def join_in_place(self, name: str) -> bool:
        node = self.graph.nodes[name]
        if isinstance(self.placing.joint(node), Refusal):
            return False
        decision = joint_decision(self.graph, node)
        if decision.id in self.options.disabled_fusions:
            self.decisions.append(replace(decision, outcome="disabled", reason="--no-fuse"))
            return False
        refusal = self.made_on_host(node)
        if refusal is None:
            refusal = self.placing.join(node)
        if refusal is not None:
            self.decisions.append(replace(decision, outcome="refused", reason=refusal.text, code=refusal.code))
            return False
        self.names.add(name)
        self.joints.add(name)
        self.decisions.append(decision)
        return True

    def made_on_host(self, node: Node) -> Refusal | None:
        """Python functions bring arrays of their own."""
        for value in node.reads:
            maker = self.graph.producer(self.placing.root(value))
            names = self.partition.members[self.partition.group_of[maker.name]] if maker is not None else []
            answer = self.claims.of(names) if maker is not None and maker.name not in self.names else None
            if answer is not None and not (isinstance(answer, Claim) and answer.native):
                return Refusal("part-on-host", f"{value} is made by a Python function, in an array of its own")
        return None

    def settle(self) -> None:
        """Views and parts get their places, and the kernels that read or write between gaps are claimed once more."""
        asked = dict(self.claims.known)  # without places: what some round claims between gaps may have none in the next
        settled = False
        while not settled:
            self.claims.known = dict(asked)
            self.graph.placements = self.places()
            types, placements = self.graph.types, self.graph.placements
            strided = {v for v, p in placements.items() if not is_dense(types[v].static_shape, p.strides)}
            settled = all([self.stays_native(g, strided) for g in self.partition.members if not self.is_view(g)])

    def places(self) -> dict[str, Placement]:
        """Of the views that are left: some became part of a kernel. One that does not fit any more gets a kernel."""
        fits = False
        while not fits:
            self.placing, fits = Placing(self.graph), True
            for name, node in self.graph.nodes.items():
                if name in self.names and self.is_view(self.partition.group_of[name]):
                    refusal = self.placing.join(node) if name in self.joints else self.placing.see(node)
                    if refusal is not None:
                        self.stand_alone(name, refusal)
                        fits = False
        return self.placing.placements()

    def stand_alone(self, name: str, why: Refusal) -> None:
        """What was to have no kernel gets one after all."""
        self.names.discard(name)
        if name in self.joints:
            self.joints.discard(name)
            taken = joint_decision(self.graph, self.graph.nodes[name])
            refused = replace(taken, outcome="refused", reason=why.text, code=why.code, facts=why.facts)
            self.decisions = [refused if d.id == taken.id and d.rule == taken.rule else d for d in self.decisions]

    def stays_native(self, group: int, strided: set[str]) -> bool:
        """False where the kernel cannot be had that way: then what lies so stands by itself."""
        names = self.partition.members[group]
        region = Region.of(self.graph, names)
        between = [v for v in (*region.inputs, *region.outputs) if v in strided]
        before = self.claims.forget(names) if between else None
        answer = self.claims.of(names)
        if isinstance(answer, Claim) and answer.native:
            return True
        misplaced = [v for v in region.outputs if v in self.placing.parts]  # Python functions write no parts
        if isinstance(before, Claim) and before.native:
            misplaced = between
        why = Refusal("between-gaps", "no kernel reads and writes it where it would lie", {"kernel": names[:8]})
        for name in [name for name in self.names for v in misplaced if self.lays(name, v)]:
            self.stand_alone(name, why)
        return not misplaced

    def lays(self, name: str, value: str) -> bool:
        """The view is the value, or the joint in which it lies."""
        part = self.placing.parts.get(value)
        outer = self.placing.graph.producer(part.whole) if part is not None else self.graph.producer(value)
        return outer is not None and outer.name == name

    def part_makers(self, joint: str) -> list[Node]:
        """Who writes the parts of a value that is joined in place."""
        found = (self.graph.producer(self.placing.root(v)) for v in self.graph.nodes[joint].reads)
        return [n for n in found if n is not None]

    def part_producers(self, group: int) -> set[int]:
        """The groups that made what this one reads through joints."""
        found, seen = set[int](), set[int]()
        stack = [(group, False)]
        while stack:
            at, joined = stack.pop()
            for p in self.partition.predecessors[at]:
                if not self.is_view(p):
                    found |= {p} if joined else set()
                elif p not in seen:
                    seen.add(p)
                    stack.append((p, joined or self.is_joint(p)))
        return found


def joint_decision(graph: Graph, node: Node) -> Decision:
    """The decision to write the parts of a joint in place; its id switches that off."""
    moved = graph.types[node.output].bytes
    facts = {"bytes_not_copied": 2 * moved} if isinstance(moved, int) else {}
    reason = "each part is written where it lies"
    return Decision("fusion", "in-place", user_names([node]), "taken", reason, facts=facts)
