"""Decisions and refusals: why the engine did what it did, as data.

Every stage returns its reasons as values: a matcher, a legality check or a provider that says no returns a
`Refusal(code, text, facts)`, and everything taken or not taken is appended to the `Ledger` as a `Decision`.
A decision's id is a hash of its content (kind, rule, nodes), so leaving one out renumbers nothing, and the same id
can be given to `--no-rule` / `--no-fuse`.

    ledger.add(Decision("fusion", "epilogue", ("conv1", "relu1"), "taken", reason="saves one write and one read"))
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["rewrite", "fusion", "boundary", "claim", "schedule", "host", "near-miss"]
Outcome = Literal["taken", "refused", "undone", "disabled"]
Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Refusal:
    """A no with its reason. `code` is a short stable slug, `text` one sentence, `facts` the numbers that decided."""

    code: str
    text: str
    facts: Facts = field(default_factory=dict)

    def __bool__(self) -> bool:
        raise TypeError("a Refusal is not a truth value; test with isinstance(x, Refusal)")


@dataclass(frozen=True)
class Decision:
    """One entry of the ledger. `nodes` are names in the user's model wherever such names exist."""

    kind: Kind
    rule: str
    nodes: tuple[str, ...]
    outcome: Outcome
    reason: str = ""
    code: str = ""
    facts: Facts = field(default_factory=dict)

    @property
    def id(self) -> str:
        content = "\x1f".join((self.kind, self.rule, *self.nodes))
        return hashlib.sha256(content.encode()).hexdigest()[:10]

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id, "kind": self.kind, "rule": self.rule, "nodes": list(self.nodes), "outcome": self.outcome,
            "reason": self.reason, "code": self.code, "facts": dict(self.facts),
        }  # fmt: skip

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Decision:
        return Decision(
            data["kind"], data["rule"], tuple(data["nodes"]), data["outcome"], data["reason"], data["code"],
            data["facts"],
        )  # fmt: skip


class Ledger:
    """Append-only list of decisions, stored with the artefact so that a warm start explains as well as a cold one."""

    def __init__(self, decisions: Iterable[Decision] = ()) -> None:
        self._decisions = list(decisions)

    def add(self, decision: Decision) -> Decision:
        self._decisions.append(decision)
        return decision

    def __iter__(self) -> Iterator[Decision]:
        return iter(self._decisions)

    def __len__(self) -> int:
        return len(self._decisions)

    def of(self, *kinds: Kind) -> list[Decision]:
        return [d for d in self._decisions if d.kind in kinds]

    def to_json(self) -> list[dict[str, Any]]:
        """Plain data; numbers of NumPy are turned into Python's own."""
        return json.loads(json.dumps([d.to_json() for d in self._decisions], default=_plain))  # type: ignore[no-any-return]

    @staticmethod
    def from_json(data: Iterable[Mapping[str, Any]]) -> Ledger:
        return Ledger(Decision.from_json(d) for d in data)


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item()
    return str(value)
