"""Who takes a region, asked once: the cheapest claim of all providers, or the first one's refusal.

    claims = Claims(graph, providers, target)
    claims.of(["conv_3", "relu_4"])       # Claim(seconds) or Refusal
"""

from __future__ import annotations

from collections.abc import Sequence

from opfuse.decision import Refusal
from opfuse.fuse.provider import Claim, Provider
from opfuse.fuse.region import Region
from opfuse.ir.graph import Graph
from opfuse.target import Target


class Claims:
    def __init__(self, graph: Graph, providers: Sequence[Provider], target: Target) -> None:
        self.graph, self.providers, self.target = graph, providers, target
        self.known: dict[str, Claim | Refusal] = {}

    def of(self, names: Sequence[str]) -> Claim | Refusal:
        """The cheapest claim for these nodes; the first provider's refusal where nobody claims them."""
        key = "\n".join(names)
        if key not in self.known:
            region = Region.of(self.graph, names)
            answers = [p.claim(self.graph, region, self.target) for p in self.providers]
            claims = [a for a in answers if isinstance(a, Claim)]
            self.known[key] = min(claims, key=lambda c: c.cost.seconds) if claims else answers[0]
        return self.known[key]

    def forget(self, names: Sequence[str]) -> Claim | Refusal | None:
        """Ask anew next time; what was known, None where nobody had asked."""
        return self.known.pop("\n".join(names), None)

    def first(self, names: Sequence[str]) -> Claim | Refusal:
        """What the first provider says, whoever is cheaper."""
        return self.providers[0].claim(self.graph, Region.of(self.graph, names), self.target)
