"""The rewrite engine: lists of rules over a graph, to a fixpoint.

    rewritten = rewrite(graph, options, ledger)     # the graph that came in is left alone

Passes run in the order of their list, each until none of its rules fires, and all of them until a whole round changes
nothing. A rule writes into a draft (`draft`), so one that raises, or whose value has another type, is undone by
dropping the draft; a pass that leaves an ill-formed graph is undone and repeated one checked step at a time. The
value that is replaced keeps its name, and the nodes that come in carry the user's names of those that went.
"""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opfuse.decision import Decision, Ledger, Refusal
from opfuse.errors import OptionError
from opfuse.ir.check import check
from opfuse.ir.graph import Graph, Node, user_names
from opfuse.options import Options
from opfuse.rewrite.draft import Draft
from opfuse.rewrite.pattern import CONSTANT, Match, Need, depth, least_operators, match, near_match, needs, operators
from opfuse.rewrite.rule import Rule, objection
from opfuse.rewrite.rules import PASSES, Pass

MAX_ROUNDS = 12
STEPS_PER_NODE = 40  # a bound no sound list of rules comes near
IDENTIFIER_LENGTH = 10  # of Decision.id
NEAR = 4  # operators that must fit for a near miss: fewer stand in any model
ANYWHERE = frozenset(("add", "sub", "mul", "div", "pow", "neg", "reciprocal"))  # they are no mark of any pattern


def rewrite(graph: Graph, options: Options, ledger: Ledger, passes: Sequence[Pass] = PASSES) -> Graph:
    """A rewritten copy of the graph. OptionError where a disabled rule does not exist."""
    check_names(options.disabled_rules, passes)
    work = _Rewriter(graph.copy(), options, ledger, passes)
    work.remove_dead()
    for turn in range(MAX_ROUNDS):
        before = work.steps
        work.forget()
        for one in passes:
            work.run(one)
            if turn == 0:
                work.listen(one)
        if work.steps == before:
            break
    work.tell()
    return work.graph


def rule_names(passes: Sequence[Pass] = PASSES) -> tuple[str, ...]:
    return tuple(dict.fromkeys(r.name for p in passes for r in p.rules))


def check_names(disabled: Iterable[str], passes: Sequence[Pass] = PASSES) -> None:
    """OptionError for a name that no rule has and that is no decision's id; it lists the closest names."""
    names = rule_names(passes)
    for name in sorted(disabled):
        if name in names or _is_identifier(name):
            continue
        close = difflib.get_close_matches(name, names, 3, 0.4)
        way_out = f"did you mean {' or '.join(close)}?" if close else f"the rules are {', '.join(sorted(names))}"
        raise OptionError("--no-rule", f"no rule is called {name!r}", way_out, code="unknown-rule")


def _is_identifier(name: str) -> bool:
    return len(name) == IDENTIFIER_LENGTH and set(name) <= set("0123456789abcdef")


@dataclass(frozen=True)
class _Plan:
    """What a rule would do to a node."""

    rule: Rule
    match: Match
    draft: Draft
    results: tuple[str, ...]  # for each output of the root

    def decision(self, outcome: Any, reason: str, code: str = "") -> Decision:
        nodes, _ = self.draft.needed(*self.results)
        facts = {
            "class": self.rule.rounding,
            "before": [n.op for n in self.match.trail],
            "after": [n.op for n in nodes],
        }
        return Decision("rewrite", self.rule.name, user_names(self.match.trail), outcome, reason, code, facts)


class _Index:
    """The rules of a pass by the operator of their root, in the order of the list."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self._needs: dict[str, tuple[Need, ...]] = {r.name: needs(r.before) for r in self.rules}
        self._by_operator: dict[str, list[Rule]] = {}

    def __getitem__(self, operator: str) -> list[Rule]:
        found = self._by_operator.get(operator)
        if found is None:
            found = [r for r in self.rules if any(not n.root or operator in n.root for n in self._needs[r.name])]
            self._by_operator[operator] = found
        return found

    def may_match(self, rule: Rule, operator: str, makers: frozenset[str]) -> bool:
        """A quick look before the search: no where the operands of the pattern's root are made by other operators."""
        return any(n.met(operator, makers) for n in self._needs[rule.name])


class _Rewriter:
    """One run over one graph: the graph, what was done, and what may not be tried again."""

    def __init__(self, graph: Graph, options: Options, ledger: Ledger, passes: Sequence[Pass]) -> None:
        self.graph = graph
        self.options = options
        self.ledger = ledger
        self.steps = 0
        self.bound = STEPS_PER_NODE * (len(graph.nodes) + 50)
        self.reach = max((depth(r.before) for p in passes for r in p.rules), default=1)
        self._clock = 0
        self._touched_at: dict[str, int] = {}  # node -> clock of the last change that it could see
        self._settled_at: dict[str, int] = {}  # rule -> clock at which it fired nowhere
        self._said: list[Decision] = []  # decisions of the pass that runs, for the ledger once the pass stands
        self._refused: dict[tuple[str, str], Decision] = {}  # (rule, value of the root): what the user may want to know
        self._blocked: set[tuple[str, str]] = set()  # (rule, value of the root): undone or switched off there

    # ---- passes ------------------------------------------------------------------------------------------------------
    def run(self, one: Pass) -> None:
        index = _Index(r for r in one.rules if self._admitted(r))
        saved, blocked, steps = self.graph.copy(), set(self._blocked), self.steps
        if self._broken_by(index, steps):
            self.graph.restore(saved)
            self._said.clear()
            self._blocked, self.steps = blocked, steps
            self.forget()
            self._sweep(index, careful=True)
            self._settle()
        self._settled_at.update(dict.fromkeys((r.name for r in index.rules), self._clock))
        for decision in self._said:
            self.ledger.add(decision)
        self._said.clear()

    def _broken_by(self, index: _Index, steps: int) -> str:
        """Run the rules unchecked, then check the graph once; the problem where there is one."""
        try:
            self._sweep(index, careful=False)
        except Exception as error:  # a rule that wrote into the graph itself may leave anything behind
            return f"{type(error).__name__}: {error}"
        undone = any(d.outcome == "undone" for d in self._said)
        return self._settle() if undone or self.steps != steps else ""

    def forget(self) -> None:
        """Try every rule on every node again: what a rule reads besides its match may have changed too."""
        self._settled_at.clear()

    def _admitted(self, rule: Rule) -> bool:
        if rule.rounding == "exact":
            return True
        return rule.rounding == "reassociating" and self.options.reassociate and not self.options.strict

    def _settle(self) -> str:
        """Sort, drop what is unused, check; the problem where there is one."""
        try:
            self.graph.sort()
            self.graph.remove_dead()
            check(self.graph)
        except Exception as error:  # whatever a broken graph makes the checks say
            return f"{type(error).__name__}: {error}"
        return ""

    def _sweep(self, index: _Index, careful: bool) -> None:
        queue = deque(n for n, node in self.graph.nodes.items() if index[node.op])
        queued = set(queue)
        while queue and self.steps < self.bound:
            name = queue.popleft()
            queued.discard(name)
            node = self.graph.nodes.get(name)
            if node is None:
                continue
            seen, makers = self._touched_at.get(name, 0), self._makers(node)
            for rule in index[node.op]:
                if seen <= self._settled_at.get(rule.name, -1) or not index.may_match(rule, node.op, makers):
                    continue
                plan = self._propose_carefully(rule, node) if careful else self._propose(rule, node)
                if isinstance(plan, _Plan) and self._take(plan, careful):
                    again = self._touched(plan)
                    queue += (n for n in again if n not in queued)
                    queued.update(again)
                    break

    def _makers(self, node: Node) -> frozenset[str]:
        """The operators that make the node's operands."""
        g = self.graph
        made = (CONSTANT if i in g.constants else p.op if (p := g.producer(i)) is not None else "" for i in node.reads)
        return frozenset(made)

    def _touched(self, plan: _Plan) -> dict[str, None]:
        """Nodes that may match now: what came in, and what follows operands and results, as far as patterns see."""
        values = {i for n in plan.match.trail for i in n.reads if i in self.graph.types}
        values.update(o for n in plan.match.trail for o in n.outputs if o in self.graph.types)
        values.update(plan.results)
        new = [n.name for n in plan.draft.nodes if n.name in self.graph.nodes]
        values.update(o for n in new for o in self.graph.nodes[n].outputs)
        found = dict.fromkeys(new)
        front = values
        for _ in range(self.reach):
            nodes = [n for v in front for n in self.graph.consumers(v) if n.name not in found]
            found.update(dict.fromkeys(n.name for n in nodes))
            front = {o for n in nodes for o in n.outputs}
        self._clock += 1
        self._touched_at.update(dict.fromkeys(found, self._clock))
        return found

    # ---- one step ----------------------------------------------------------------------------------------------------
    def _propose(self, rule: Rule, node: Node) -> _Plan | Refusal:
        """What the rule would do here. A rule that raises is recorded as undone, and not asked again."""
        if (rule.name, node.output) in self._blocked:
            return Refusal("blocked", "undone or switched off here before")
        here = Match(self.graph, node, {}, {}, (node,))
        try:
            m = match(rule.before, self.graph, node)
            if isinstance(m, Refusal):
                return m
            here = m
            draft = Draft(self.graph, m.trail)
            no = objection(rule, m)
            result = no if no is not None else rule.build(m, draft)
            if isinstance(result, Refusal):
                return result
            return self._judge(_Plan(rule, m, draft, result if isinstance(result, tuple) else (result,)))
        except Exception as error:  # a rule's fault must not be the user's
            return self._undo(
                _Plan(rule, here, Draft(self.graph), node.outputs), "raised", f"{type(error).__name__}: {error}"
            )

    def _propose_carefully(self, rule: Rule, node: Node) -> _Plan | Refusal:
        """The same for rules among which one writes into the graph itself: what it wrote is taken back."""
        saved, size = self.graph.copy(), self._size()
        plan = self._propose(rule, node)
        if self._size() == size:
            return plan
        self.graph.restore(saved)
        if (rule.name, node.output) in self._blocked:
            return Refusal("undone", "it wrote into the graph and failed")
        m = Match(self.graph, node, {}, {}, (node,))
        return self._undo(_Plan(rule, m, Draft(self.graph), node.outputs), "wrote", "it wrote into the graph itself")

    def _size(self) -> tuple[int, ...]:
        g = self.graph
        return len(g.nodes), len(g.types), len(g.constants), len(g.outputs), len(g.inputs)

    def _judge(self, plan: _Plan) -> _Plan | Refusal:
        """What no rule may do: make a value of another type, change nothing, let an output be an input."""
        node, g = plan.match.root, self.graph
        if set(plan.results) & set(node.outputs):
            return Refusal("unchanged", "the rule returns the value that it replaces")
        if len(node.outputs) != len(plan.results):
            return Refusal("several-outputs", f"{node.name} has {len(node.outputs)} outputs")
        if g.is_output(node.output) and node.op == "identity" and not self._is_made(plan):
            return Refusal("boundary", f"the graph output {node.output} must not be an input or a constant itself")
        for old, new in zip(node.outputs, plan.results, strict=True):
            if plan.draft.type(new) != g.types[old]:
                text = f"the new value is {plan.draft.type(new)}, the old one is {g.types[old]}"
                return self._undo(plan, "other-type", text)
        ids = self.options.disabled_rules
        if plan.rule.name in ids or plan.decision("disabled", "").id in ids:
            self._blocked.add((plan.rule.name, node.output))
            self._said.append(plan.decision("disabled", "switched off by the user", "switched-off"))
            return Refusal("switched-off", "switched off by the user")
        return plan

    def _is_made(self, plan: _Plan) -> bool:
        return all(plan.draft.makes(r) or self.graph.producer(r) is not None for r in plan.results)

    def _undo(self, plan: _Plan, code: str, text: str) -> Refusal:
        self._blocked.add((plan.rule.name, plan.match.root.output))
        self._said.append(plan.decision("undone", text, code))
        return Refusal(code, text)

    def _take(self, plan: _Plan, careful: bool) -> bool:
        if not careful:
            self._commit(plan)
            return True
        saved = self.graph.copy()
        try:
            self._commit(plan)
            problem = self._settle()
        except Exception as error:  # the same fault as one that the checks find
            problem = f"{type(error).__name__}: {error}"
        if problem:
            self.graph.restore(saved)
            self._said.pop()
            self.steps -= 1
            self._undo(plan, "ill-formed", problem)
        return not problem

    def _commit(self, plan: _Plan) -> None:
        """Put the draft in the place of the root; what nobody reads any more goes."""
        g, root = self.graph, plan.match.root
        self._refused.pop((plan.rule.name, root.output), None)
        self._said.append(plan.decision("taken", plan.rule.doc.splitlines()[0] if plan.rule.doc else ""))
        self.steps += 1
        nodes, constants = plan.draft.needed(*plan.results)
        for name, array in constants.items():
            g.add_constant(array, name)
        for node in nodes:
            g.insert(node)
        renamed = []
        for old, result in zip(root.outputs, plan.results, strict=True):
            keep_apart = g.is_output(old) and g.producer(result) is None
            if keep_apart:
                result = g.emit("identity", [result], origin=user_names(plan.match.trail))
            g.redirect(old, result)
            if keep_apart or plan.draft.makes(result):
                renamed.append((result, old))
        g.remove(root)
        for result, old in renamed:
            g.rename(result, old)
        self._drop_unused(plan.match.trail[1:])

    def _drop_unused(self, nodes: Iterable[Node]) -> None:
        stack = [n.name for n in nodes]
        while stack:
            node = self.graph.nodes.get(stack.pop())
            if node is None or any(self.graph.consumers(o) or self.graph.is_output(o) for o in node.outputs):
                continue
            stack += [p.name for i in node.reads if (p := self.graph.producer(i)) is not None]
            self.graph.remove(node)

    # ---- what is said besides ----------------------------------------------------------------------------------------
    def remove_dead(self) -> None:
        removed = self.graph.remove_dead()
        if removed:
            nodes = user_names(reversed(removed))
            reason = f"no graph output needs {len(removed)} nodes"
            self.ledger.add(Decision("rewrite", "remove_dead", nodes, "taken", reason, facts={"class": "exact"}))

    def listen(self, one: Pass) -> None:
        """Keep why rules that the user would expect did not fire: the first reason, in the user's own graph."""
        off = self.options.disabled_rules
        told = _Index(r for r in one.rules if r.tell and self._admitted(r) and r.name not in off)
        for node in self.graph.nodes.values():
            for rule in told[node.op]:
                key = (rule.name, node.output)
                if key not in self._blocked and key not in self._refused:
                    said = self._why_not(rule, node)
                    if said is not None:
                        self._refused[key] = said

    def _why_not(self, rule: Rule, node: Node) -> Decision | None:
        m = match(rule.before, self.graph, node)
        if isinstance(m, Refusal):
            near = self._near_miss(rule, node)
            if near is None:
                return None
            return Decision("near-miss", rule.name, user_names((node,)), "refused", near.text, near.code, near.facts)
        no = objection(rule, m)
        result = no if no is not None else rule.build(m, Draft(self.graph))
        if not isinstance(result, Refusal):
            return None
        facts: Mapping[str, Any] = {"class": rule.rounding, **result.facts}
        return Decision("rewrite", rule.name, user_names(m.trail), "refused", result.text, result.code, facts)

    def _near_miss(self, rule: Rule, node: Node) -> Refusal | None:
        """What is amiss where the node is all but the root of a rule's pattern."""
        marks = operators(rule.before) - ANYWHERE
        if marks.isdisjoint(_operators_above(self.graph, node, depth(rule.before))):
            return None
        near = near_match(rule.before, self.graph, node)
        enough = max(NEAR, least_operators(rule.before) - 2)
        return near if near is not None and near.facts["matched"] >= enough else None

    def tell(self) -> None:
        """Record the refusals that still stand: neither the rule nor another has replaced the operator since."""
        for (_, value), said in self._refused.items():
            if value in self.graph.types:
                self.ledger.add(said)


def _operators_above(graph: Graph, node: Node, steps: int) -> set[str]:
    """The operators of a node and of what it is made of, up to some steps away."""
    found, seen, front = {node.op}, {node.name}, [node]
    for _ in range(steps - 1):
        makers = [m for n in front for i in n.reads if (m := graph.producer(i)) is not None and m.name not in seen]
        seen.update(m.name for m in makers)
        found.update(m.op for m in makers)
        front = makers
    return found
