"""The NumPy oracle as a provider: it can run every region, slowly, between the native kernels.

    ReferenceProvider().claim(graph, region, target)     # always a Claim, at a cost that any generated kernel undercuts

It stands last in the list of providers, so that a model with an operator that no generator prints still runs; the
report shows the step and why no native provider took it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from opfuse.decision import Refusal
from opfuse.fuse.provider import Claim, Cost, HostKernel
from opfuse.fuse.region import Region
from opfuse.ir.evaluate import evaluate
from opfuse.ir.graph import Graph
from opfuse.ir.ops import flops_of
from opfuse.target import Target

# NumPy from Python, one array operation at a time. Orders of magnitude, on the high side on purpose: a prediction here
# must lose against every generated kernel, and still rank two host regions by their size.
STEP_S = 1.0  # leaving the native segment for Python and coming back; really about 50 us
BYTES_PER_S = 1e9
FLOPS_PER_S = 1e8


class ReferenceProvider:
    name = "reference"

    def claim(self, graph: Graph, region: Region, target: Target) -> Claim | Refusal:
        moved = sum(_known(graph.types[v].bytes) for v in (*region.inputs, *region.outputs))
        flops = sum(_known(flops_of(graph, n)) for n in region.members(graph))
        seconds = STEP_S + moved / BYTES_PER_S + flops / FLOPS_PER_S
        facts = {"note": "an upper estimate: the oracle is the last resort"}
        return Claim(self.name, region, Cost(seconds, moved, flops, facts), native=False)

    def build(self, graph: Graph, claim: Claim) -> HostKernel:
        """A kernel that evaluates the region's nodes on arrays given in the order of `region.inputs`."""
        region = claim.region
        subgraph = region.subgraph(graph)
        operators = [n.op for n in region.members(graph)]
        name = "_".join(operators[:4]) + (f"_and_{len(operators) - 4}_more" if len(operators) > 4 else "")

        def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
            given = dict(zip(region.inputs, arrays, strict=True))
            made = evaluate(subgraph, {i: given[i] for i in subgraph.inputs}, values=region.outputs)
            return [made[v] for v in region.outputs]

        return HostKernel(name, region, run, claim.cost, self.name, region.origin(graph))


def _known(d: object) -> int:
    """A number, or 0 where it depends on a symbol that is not bound."""
    return d if isinstance(d, int) else 0
