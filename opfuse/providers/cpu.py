"""The CPU generator as a provider: lowers a region to a tile program, picks its schedule, and says what it will cost.

claim = CpuProvider().claim(graph, region, target)     # Claim(program, schedule, seconds) or Refusal
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from opfuse.codegen.llvm.printer import legal
from opfuse.decision import Refusal
from opfuse.fuse.cost import predict
from opfuse.fuse.provider import Claim, Kernel, TileKernel
from opfuse.fuse.region import Region
from opfuse.ir.graph import Graph, Node
from opfuse.ir.ops import structure_of
from opfuse.target import Target
from opfuse.tile.beside import lower_beside, pieces
from opfuse.tile.choose import choose_cpu
from opfuse.tile.lower import LoweredRegion, lower, lower_online
from opfuse.tile.schedule import Schedule

Form = Callable[[Graph, str], LoweredRegion | Refusal]  # of a region and the kernel's name


@dataclass(frozen=True)
class CpuPayload:
    lowered: LoweredRegion
    schedule: Schedule


@dataclass(frozen=True)
class CpuProvider:
    """`reassociate` allows programs that sum in another order than the graph: the online form of softmax."""

    name = "cpu"
    reassociate: bool = True

    def claim(self, graph: Graph, region: Region, target: Target) -> Claim | Refusal:
        """The program that is predicted to be the fastest of those that a region has; the first one's refusal."""
        if target.kind != "cpu":
            return Refusal("other-target", f"the CPU generator does not print for {target.name}")
        first = self.claim_form(lower, graph, region, target)
        others = [self.claim_form(form, graph, region, target) for form in self.other_forms(graph, region)]
        claims = [c for c in (first, *others) if isinstance(c, Claim)]
        if isinstance(first, Claim) or claims:
            return min(claims, key=lambda c: c.cost.seconds)
        return replace(first, facts={**first.facts, "other_programs": self.why_no_other(graph, region, others)})

    def why_no_other(self, graph: Graph, region: Region, others: Sequence[Claim | Refusal]) -> list[str]:
        """Why the region's other programs do not help either."""
        texts = [o.text for o in others if isinstance(o, Refusal)]
        if not self.reassociate and products_after_reductions(graph, region):
            texts.append("sums in another order (online softmax) are switched off")
        return texts

    def other_forms(self, graph: Graph, region: Region) -> list[Form]:
        forms: list[Form] = [lower_beside] if falls_apart(graph, region) else []
        if self.reassociate and products_after_reductions(graph, region):
            forms.append(lower_online)
        return forms

    def claim_form(self, form: Form, graph: Graph, region: Region, target: Target) -> Claim | Refusal:
        lowered = form(region.subgraph(graph), kernel_name(graph, region))
        if isinstance(lowered, Refusal):
            return lowered
        schedule = choose_cpu(lowered.program, target)
        footprint = legal(lowered.program, schedule, target)
        if isinstance(footprint, Refusal):
            return footprint
        if footprint.scratch_bytes > target.l2_bytes // 2:
            return Refusal("scratch", "the values kept between its steps do not fit half of the L2 cache",
                           {"scratch_bytes": footprint.scratch_bytes, "l2_bytes": target.l2_bytes})  # fmt: skip
        cost = predict(lowered.program, schedule, target)
        return Claim(self.name, region, cost, CpuPayload(lowered, schedule), footprint)

    def build(self, graph: Graph, claim: Claim) -> Kernel:
        payload = claim.payload
        assert isinstance(payload, CpuPayload)
        lowered = payload.lowered
        return TileKernel(
            kernel_name(graph, claim.region), claim.region, lowered.program, payload.schedule, lowered.arguments,
            claim.cost, self.name, claim.region.origin(graph),
        )  # fmt: skip


def falls_apart(graph: Graph, region: Region) -> bool:
    """Are there nodes that read nothing of each other, so that each may have a phase of its own?"""
    return len(pieces(region.subgraph(graph))) > 1


def products_after_reductions(graph: Graph, region: Region) -> bool:
    """Does a product stand behind a reduction, so that the region may have more than one program? A quick look."""
    reduced = False
    for node in region.members(graph):
        s = structure_of(graph, node)
        if reduced and s is not None and s.is_contraction:
            return True
        reduced = reduced or s is None or s.combine == "max"
    return False


def attention(graph: Graph, members: Sequence[Node]) -> set[str]:
    """The nodes from a product of scores over their softmax to the product with its weights; none without these."""
    after: dict[str, set[str]] = {n.name: set() for n in members}  # in order, so that readers stand behind makers
    for node in reversed(members):
        for reader in (r.name for v in node.outputs for r in graph.consumers(v) if r.name in after):
            after[node.name] |= {reader, *after[reader]}
    products = [n.name for n in members if n.op == "matmul"]
    for softmax in (n.name for n in members if n.op == "softmax"):
        scores = [p for p in products if softmax in after[p]]
        weighted = [p for p in products if p in after[softmax]]
        if scores and weighted:
            return {scores[-1], weighted[0], *(n for n in after[scores[-1]] if weighted[0] in after[n])}
    return set()


def kernel_name(graph: Graph, region: Region) -> str:
    """The operators of the region in order, shortened: "conv_add_relu". Attention stands first, by its name."""
    members = region.members(graph)
    inside = attention(graph, members)
    operators = ["attention"] * bool(inside) + [n.op for n in members if n.name not in inside]
    text = "_".join(operators[:4]) + (f"_and_{len(operators) - 4}_more" if len(operators) > 4 else "")
    return text.replace("reduce_", "")
