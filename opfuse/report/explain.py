"""What was fused, what was not, and why: an explanation built from stored data alone.

    explanation = explain(model)          # a CompiledModel, fresh or loaded from an .opf file: the same text
    explanation.to_json()                 # the fields that programs may rely on, under `schema`
    explanation.text(width=100)           # for people

Everything comes from the plan and the ledger, which are kept in the artefact; nothing is measured or computed anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from opfuse.decision import Decision, Ledger
from opfuse.plan.plan import Host, KernelInfo, Plan

SCHEMA = 1


class Explainable(Protocol):
    """What is needed of a compiled model."""

    @property
    def plan(self) -> Plan: ...

    @property
    def ledger(self) -> Ledger: ...


@dataclass(frozen=True)
class KernelEntry:
    """One pass between materialised buffers. Times in seconds a call; `measured_s` is None until it was profiled."""

    id: str
    name: str
    nodes: tuple[str, ...]  # the user's node names
    provider: str
    predicted_s: float
    measured_s: float | None
    bytes: int
    flops: int
    host: bool = False


@dataclass(frozen=True)
class Boundary:
    """Why two neighbours (the second reads what the first makes) are two kernels."""

    between: tuple[str, str]  # kernel ids
    code: str
    reason: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class HostStep:
    """A kernel that runs in Python between native segments, and why no native provider took it."""

    kernel: str
    code: str
    reason: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Explanation:
    model: str
    target: str
    threads: int
    operators: int  # before rewriting
    kernels: tuple[KernelEntry, ...]
    boundaries: tuple[Boundary, ...]
    rewrites: tuple[tuple[str, int], ...]  # rule, how often it was taken
    host_steps: tuple[HostStep, ...]
    bytes_moved: Mapping[str, int]
    peak_memory: Mapping[str, int]
    decisions: tuple[Decision, ...]

    @property
    def predicted_s(self) -> float:
        return sum(k.predicted_s for k in self.kernels)

    @property
    def not_rewritten(self) -> tuple[Decision, ...]:
        """Rewrites that nearly happened: what stood in the way, or who switched them off."""
        return tuple(d for d in self.decisions if d.kind in ("rewrite", "near-miss") and d.outcome != "taken")

    @property
    def joints(self) -> tuple[Decision, ...]:
        """Values that are others side by side: written in place, or why not."""
        return tuple(d for d in self.decisions if d.kind == "fusion" and d.rule == "in-place")

    def to_json(self) -> dict[str, Any]:
        """Plain data; fields are added, never renamed, while `schema` stays the same."""
        return {
            "schema": SCHEMA,
            "model": self.model,
            "target": self.target,
            "threads": self.threads,
            "operators": self.operators,
            "predicted_s": self.predicted_s,
            "kernels": [_kernel_json(k) for k in self.kernels],
            "boundaries": [_reason_json("between", list(b.between), b) for b in self.boundaries],
            "rewrites": dict(self.rewrites),
            "host_steps": [_reason_json("kernel", h.kernel, h) for h in self.host_steps],
            "bytes_moved": dict(self.bytes_moved),
            "peak_memory": dict(self.peak_memory),
            "decisions": Ledger(self.decisions).to_json(),
        }

    def text(self, width: int = 100) -> str:
        from opfuse.report.explain_text import parts
        from opfuse.report.render import plain

        return plain(parts(self, width), width)

    def __str__(self) -> str:
        return self.text()


def _kernel_json(k: KernelEntry) -> dict[str, Any]:
    return {"id": k.id, "name": k.name, "nodes": list(k.nodes), "provider": k.provider, "predicted_s": k.predicted_s,
            "measured_s": k.measured_s, "bytes": k.bytes, "flops": k.flops, "host": k.host}  # fmt: skip


def _reason_json(key: str, value: Any, why: Boundary | HostStep) -> dict[str, Any]:
    return {key: value, "code": why.code, "reason": why.reason, "facts": dict(why.facts)}


def explain(model: Explainable) -> Explanation:
    """The explanation of a compiled model, from its plan and ledger."""
    plan = model.plan
    decisions = tuple(Ledger.from_json(model.ledger.to_json()))  # as a file gives them back
    hosts = {s.kernel for s in plan.segments if isinstance(s, Host)}
    ids = kernel_ids(plan.kernels)
    taken = Counter(d.rule for d in decisions if d.kind == "rewrite" and d.outcome == "taken")
    return Explanation(
        model=str(plan.facts.get("model", "model")),
        target=str(plan.facts.get("target", "")),
        threads=plan.threads,
        operators=int(plan.facts.get("operators", len({n for k in plan.kernels for n in k.nodes}))),
        kernels=tuple(_entry(k, i, n in hosts) for n, (k, i) in enumerate(zip(plan.kernels, ids, strict=True))),
        boundaries=_boundaries(plan, ids, decisions),
        rewrites=tuple(sorted(taken.items(), key=lambda item: (-item[1], item[0]))),
        host_steps=tuple(_host_step(plan.kernels[n], ids[n], decisions) for n in sorted(hosts)),
        bytes_moved=dict(plan.bytes_moved),
        peak_memory=dict(plan.peak_memory),
        decisions=decisions,
    )


def kernel_ids(kernels: Sequence[KernelInfo]) -> list[str]:
    """For each kernel the id of its fusion decision, which `--no-fuse` takes; the same nodes again get a suffix."""
    ids: list[str] = []
    seen: Counter[str] = Counter()
    for kernel in kernels:
        found = fusion_id(kernel)
        seen[found] += 1
        ids.append(found if seen[found] == 1 else f"{found}-{seen[found]}")
    return ids


def fusion_id(kernel: KernelInfo) -> str:
    return Decision("fusion", "kernel", kernel.nodes, "taken").id


def _entry(kernel: KernelInfo, identifier: str, host: bool) -> KernelEntry:
    measured = kernel.facts.get("measured_s")
    return KernelEntry(identifier, kernel.name, kernel.nodes, kernel.provider, kernel.predicted_s,
                       None if measured is None else float(measured), kernel.bytes, kernel.flops, host)  # fmt: skip


# ---- boundaries ------------------------------------------------------------------------------------------------------
def neighbours(plan: Plan) -> list[tuple[KernelInfo, KernelInfo]]:
    """Pairs (maker, reader) of kernels that a value joins, in the order of the readers, each pair once.

    A value that lies in others' bytes (a view, or parts joined in place) stands for the values that kernels made there.
    """
    holds = {v.name: v.holds or (v.name,) for v in plan.values}
    maker: dict[str, KernelInfo] = {}
    pairs: dict[tuple[str, str], tuple[KernelInfo, KernelInfo]] = {}
    for kernel in plan.kernels:
        for value in kernel.reads:
            for made in (maker[v] for v in holds.get(value, (value,)) if v in maker):
                pairs[made.id, kernel.id] = (made, kernel)
        for value in kernel.writes:
            maker[value] = kernel
    return list(pairs.values())


def _boundaries(plan: Plan, ids: Sequence[str], decisions: Sequence[Decision]) -> tuple[Boundary, ...]:
    """The last refusal recorded between two kernels decides; a pair without one is said to have none."""
    identifier = {k.id: i for k, i in zip(plan.kernels, ids, strict=True)}
    recorded = {tuple(d.facts["between"]): d for d in decisions if d.kind == "boundary" and "between" in d.facts}
    out = []
    for maker, reader in neighbours(plan):
        between = (identifier[maker.id], identifier[reader.id])
        decision = recorded.get((fusion_id(maker), fusion_id(reader)))
        if decision is None:
            out.append(Boundary(between, "unrecorded", "no reason was recorded"))
        else:
            facts = {k: v for k, v in decision.facts.items() if k != "between"}
            out.append(Boundary(between, decision.code, decision.reason, facts))
    return tuple(out)


def _host_step(kernel: KernelInfo, identifier: str, decisions: Sequence[Decision]) -> HostStep:
    why = [d for d in decisions if d.kind == "host" and d.nodes == kernel.nodes]
    if why:
        return HostStep(identifier, why[-1].code, why[-1].reason, dict(why[-1].facts))
    reason = str(kernel.facts.get("host_reason", "no reason was recorded"))
    return HostStep(identifier, str(kernel.facts.get("host_code", "unrecorded")), reason)
