"""Patterns: a rule's `before`, written as the operators that it matches.

    x = Var("x")
    GELU = x * 0.5 * (1 + op("erf", x / 2**0.5))
    match(GELU, graph, node)        -> Match with ["x"], .nodes and .trail, or a Refusal with the value that did not fit

A number stands for a constant that holds it everywhere, within the rounding of its type. Operands of commutative
operators match in every order; `product` matches in every association, `AnyOf` any of several spellings, `Maybe` an
operand that may be left out. The search goes back over its choices, so one pattern covers all its spellings.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from opfuse.decision import Refusal
from opfuse.ir.graph import Graph, Node
from opfuse.ir.types import DType, TensorType
from opfuse.rewrite.precision import limits

COMMUTATIVE = frozenset(("add", "mul", "maximum", "minimum", "equal", "not_equal", "and", "or", "xor"))
Number = int | float


class Pattern:
    """What a value must be. Arithmetic on patterns builds the patterns of the operators."""

    def __add__(self, other: Pattern | Number) -> Op:
        return op("add", self, other)

    def __radd__(self, other: Number) -> Op:
        return op("add", other, self)

    def __sub__(self, other: Pattern | Number) -> Op:
        return op("sub", self, other)

    def __rsub__(self, other: Number) -> Op:
        return op("sub", other, self)

    def __mul__(self, other: Pattern | Number) -> Op:
        return op("mul", self, other)

    def __rmul__(self, other: Number) -> Op:
        return op("mul", other, self)

    def __truediv__(self, other: Pattern | Number) -> Op:
        return op("div", self, other)

    def __rtruediv__(self, other: Number) -> Op:
        return op("div", other, self)

    def __pow__(self, other: Pattern | Number) -> Op:
        return op("pow", self, other)


@dataclass(frozen=True)
class Var(Pattern):
    """Any value; the same name twice is the same value twice."""

    name: str


@dataclass(frozen=True)
class Constant(Pattern):
    """A constant: of one number everywhere where `value` is given, of a single element where `scalar` is true."""

    name: str | None = None
    value: Number | None = None
    scalar: bool = False


@dataclass(frozen=True)
class Op(Pattern):
    """A value made by one of some operators (any, where `ops` is empty); `inputs` None matches any operands.

    `attrs` are pairs of an attribute and the value that it must have, or a predicate on it.
    """

    ops: tuple[str, ...]
    inputs: tuple[Pattern, ...] | None
    name: str | None = None
    attrs: tuple[tuple[str, Any], ...] = ()
    reading: str = ""  # where there is no list of inputs: the operator that makes one of the operands

    def named(self, name: str) -> Op:
        """The same, captured as `match.nodes[name]`."""
        return replace(self, name=name)


@dataclass(frozen=True)
class AnyOf(Pattern):
    options: tuple[Pattern, ...]


@dataclass(frozen=True)
class Maybe(Pattern):
    """An operand that may be left out."""

    pattern: Pattern


def as_pattern(p: Pattern | Number) -> Pattern:
    return p if isinstance(p, Pattern) else Constant(value=p)


def op(ops: str | Sequence[str], *inputs: Pattern | Number, name: str | None = None, **attrs: Any) -> Op:
    """One of some operators on these operands."""
    names = (ops,) if isinstance(ops, str) else tuple(ops)
    return Op(names, tuple(as_pattern(i) for i in inputs), name, tuple(attrs.items()))


def any_node(ops: str | Sequence[str] = (), name: str = "node", reading: str = "") -> Op:
    """One of some operators (any, where none is named) on whatever operands, one of them made by `reading`."""
    return Op((ops,) if isinstance(ops, str) else tuple(ops), None, name, reading=reading)


def any_of(*options: Pattern | Number) -> AnyOf:
    return AnyOf(tuple(as_pattern(o) for o in options))


def product(*factors: Pattern | Number) -> Pattern:
    """The factors multiplied in every association (the order within each is free anyway)."""
    trees = dict.fromkeys(_associations(tuple(as_pattern(f) for f in factors)))
    return next(iter(trees)) if len(trees) == 1 else AnyOf(tuple(trees))


def _associations(factors: tuple[Pattern, ...]) -> Iterator[Pattern]:
    """Every binary tree over the factors, mirror images once."""
    if len(factors) == 1:
        yield factors[0]
        return
    rest = range(1, len(factors))
    for size in range(len(rest)):
        for chosen in itertools.combinations(rest, size):
            left = (factors[0], *(factors[k] for k in chosen))
            right = tuple(factors[k] for k in rest if k not in chosen)
            for a, b in itertools.product(_associations(left), _associations(right)):
                yield op("mul", a, b)


@dataclass(frozen=True)
class Match:
    """What a pattern found: values by name, nodes by name, and every matched node, root first."""

    graph: Graph
    root: Node
    values: dict[str, str]
    nodes: dict[str, Node]
    trail: tuple[Node, ...]

    def __getitem__(self, name: str) -> str:
        return self.values[name]

    def has(self, name: str) -> bool:
        return name in self.values

    def type(self, name: str) -> TensorType:
        """The type of a captured value."""
        return self.graph.types[self.values[name]]

    def array(self, name: str) -> np.ndarray:
        """The array of a captured constant."""
        return self.graph.constants[self.values[name]]

    @property
    def result(self) -> TensorType:
        return self.graph.types[self.root.output]


def match(pattern: Pattern, graph: Graph, node: Node) -> Match | Refusal:
    """The first way in which the node is the root of the pattern; else the reason of the attempt that came furthest.

    The facts of the refusal hold `matched` (operators that fitted) and the guilty value or attribute.
    """
    search = _Search(graph)
    for found in search.root(pattern, node):
        return Match(graph, node, found.values, found.nodes, tuple(dict.fromkeys(found.trail)))
    return search.refusal()


def near_match(pattern: Pattern, graph: Graph, node: Node) -> Refusal | None:
    """What is amiss where the node would be the root of the pattern but for one thing; None where more is.

    One thing is a number, a value, an attribute, or an operator in the place of another. An operator that takes as many
    operands stands for the one that is wanted; what another one is made of is not looked at. Of several readings that
    one counts in which the most operators match, and of these one in which all do.
    """
    search = _Search(graph, spare=True)
    best: tuple[int, bool, _Amiss] | None = None
    for found in itertools.islice(search.root(pattern, node), MOST_READINGS):
        if found.amiss is None or found.amiss.code == "no-operator":
            continue
        here = (len(found.trail), found.amiss.code != "other-operator", found.amiss)
        if best is None or here[:2] > best[:2]:
            best = here
    return None if best is None else best[2].refusal(best[0])


MOST_READINGS = 200
MOST_VISITS = 5_000  # of nodes in a search for near matches, which branches more than one for matches


@dataclass(frozen=True)
class _Amiss:
    code: str
    text: str
    args: tuple[Any, ...]

    def refusal(self, matched: int) -> Refusal:
        guilty = str(self.args[0]) if self.args else ""
        return Refusal(self.code, self.text.format(*self.args), {"matched": matched, "guilty": guilty})


@dataclass(frozen=True)
class _Bindings:
    values: dict[str, str] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    trail: tuple[Node, ...] = ()
    amiss: _Amiss | None = None


class _Search:
    """Depth first over the choices of a pattern; keeps the failure that matched the most operators.

    With something to `spare`, a way goes on behind its first failure.
    """

    def __init__(self, graph: Graph, spare: bool = False) -> None:
        self.graph, self.spare = graph, spare
        self._visits = 0
        self._furthest = -1
        self._failure = _Amiss("no-match", "nothing was tried", ())

    def refusal(self) -> Refusal:
        return self._failure.refusal(self._furthest)

    def _fail(self, b: _Bindings, code: str, text: str, *args: Any) -> Iterator[_Bindings]:
        amiss = _Amiss(code, text, args)
        if len(b.trail) > self._furthest:
            self._furthest, self._failure = len(b.trail), amiss
        if self.spare and b.amiss is None:
            yield replace(b, amiss=amiss)

    def root(self, p: Pattern, node: Node) -> Iterator[_Bindings]:
        if isinstance(p, AnyOf):
            for option in p.options:
                if not (isinstance(option, Op) and option.ops and node.op not in option.ops):
                    yield from self.root(option, node)
        elif isinstance(p, Op):
            if not p.ops or node.op in p.ops:
                yield from self._node(p, node, _Bindings())
            else:  # nothing is near where another operator stands at the root
                list(self._other_operator(p, node.output, node, _Bindings()))
        else:
            raise TypeError(f"the root of a pattern is an operator, not {p!r}")

    def value(self, p: Pattern, value: str | None, b: _Bindings) -> Iterator[_Bindings]:
        if isinstance(p, Maybe):
            yield from [b] if value is None else self.value(p.pattern, value, b)
        elif value is None:
            yield from self._fail(b, "operand-missing", "an operand is left out")
        elif isinstance(p, Var):
            yield from self._bind(p.name, value, b)
        elif isinstance(p, Constant):
            yield from self._constant(p, value, b)
        elif isinstance(p, AnyOf):
            for option in p.options:
                yield from self.value(option, value, b)
        elif isinstance(p, Op):
            node = self.graph.producer(value)
            if node is None:
                text = "{} is made by no operator; {} is wanted"
                yield from self._fail(b, "no-operator", text, value, _listed(p.ops))
            elif p.ops and node.op not in p.ops:
                for spared in self._other_operator(p, value, node, b):
                    like = p.inputs is not None and len(p.inputs) == len(node.inputs)
                    yield from self._node(p, node, spared) if like else [spared]
            else:
                yield from self._node(p, node, b)

    def _other_operator(self, p: Op, value: str, node: Node, b: _Bindings) -> Iterator[_Bindings]:
        return self._fail(b, "other-operator", "{} is made by {}, not by {}", value, node.op, _listed(p.ops))

    def _bind(self, name: str, value: str, b: _Bindings) -> Iterator[_Bindings]:
        known = b.values.get(name)
        if known is None:
            yield replace(b, values={**b.values, name: value})
        elif known == value or self._same_constant(known, value):
            yield b
        else:
            yield from self._fail(b, "other-value", "{} stands where {} is wanted once more", value, known)

    def _same_constant(self, a: str, b: str) -> bool:
        x, y = self.graph.constants.get(a), self.graph.constants.get(b)
        if x is None or y is None or x.dtype != y.dtype or x.shape != y.shape:
            return False
        return x.tobytes() == y.tobytes()

    def _constant(self, p: Constant, value: str, b: _Bindings) -> Iterator[_Bindings]:
        array = self.graph.constants.get(value)
        if array is None:
            yield from self._fail(b, "not-constant", "{} is not a constant", value)
        elif p.scalar and array.size != 1:
            yield from self._fail(b, "not-scalar", "{} has the shape {}, not one element", value, array.shape)
        elif p.value is not None and not holds(array, p.value):
            yield from self._fail(b, "other-number", "{} is {}, not {:.7g}", value, _shown(array), p.value)
        elif p.name is None:
            yield b
        else:
            yield from self._bind(p.name, value, b)

    def _node(self, p: Op, node: Node, b: _Bindings) -> Iterator[_Bindings]:
        self._visits += 1
        if self.spare and self._visits > MOST_VISITS:
            return
        for key, wanted in p.attrs:
            got = node.attrs.get(key)
            if not (wanted(got) if callable(wanted) else got == wanted):
                spared = next(self._fail(b, "other-attribute", "{} of {} is {}", key, node.name, got), None)
                if spared is None:
                    return
                b = spared
        if p.name is not None and b.nodes.get(p.name, node) is not node:
            yield from self._fail(b, "other-node", "{} is another node than {}", node.name, b.nodes[p.name].name)
            return
        nodes = b.nodes if p.name is None else {**b.nodes, p.name: node}
        inside = replace(b, nodes=nodes, trail=(*b.trail, node))
        if p.inputs is None:
            makers = [m.op for i in node.reads if (m := self.graph.producer(i)) is not None] if p.reading else []
            if p.reading and p.reading not in makers:
                yield from self._fail(inside, "other-operator", "no operand of {} is made by {}", node.name, p.reading)
            else:
                yield inside
            return
        operands = (*node.inputs, *(None,) * (len(p.inputs) - len(node.inputs)))
        while len(operands) > len(p.inputs) and operands[-1] is None:
            operands = operands[:-1]
        if len(operands) > len(p.inputs):
            yield from self._fail(inside, "operand-count", "{} has {} operands", node.name, len(operands))
            return
        yield from self._operands(p.inputs, operands, inside)
        if len(operands) == 2 and node.op in COMMUTATIVE and operands[0] != operands[1]:
            yield from self._operands(p.inputs, operands[::-1], inside)

    def _operands(self, ps: tuple[Pattern, ...], values: tuple[str | None, ...], b: _Bindings) -> Iterator[_Bindings]:
        if not ps:
            yield b
            return
        for found in self.value(ps[0], values[0], b):
            yield from self._operands(ps[1:], values[1:], found)


def holds(array: np.ndarray, number: Number) -> bool:
    """Does every element hold the number, within the rounding of the array's type? An empty array holds nothing."""
    if array.size == 0:
        return False
    if array.size > 1 and not bool(np.all(array == array.flat[0])):
        return False
    first = float(array.flat[0])
    if first == number:
        return True
    if not DType.of(array.dtype).is_float:
        return False
    return bool(abs(first - number) <= 1.5 * limits(DType.of(array.dtype)).eps * abs(number))


def _shown(array: np.ndarray) -> str:
    return str(array.flat[0]) if array.size == 1 else f"an array of shape {array.shape}"


def _listed(ops: Sequence[str]) -> str:
    return " or ".join(ops)


# ---- what the engine and the tests ask about a pattern ---------------------------------------------------------------
@dataclass(frozen=True)
class Need:
    """What can be seen of a match without a search: the root's operator, and who makes its operands."""

    root: frozenset[str]  # empty: any
    operands: tuple[frozenset[str], ...]  # for each, at least one operand is made by one of these operators

    def met(self, operator: str, makers: frozenset[str]) -> bool:
        return (not self.root or operator in self.root) and all(not makers.isdisjoint(o) for o in self.operands)


CONSTANT = "constant"  # stands among the makers for an operand that is a constant


def needs(p: Pattern) -> tuple[Need, ...]:
    """The needs of each option of a pattern's root; one of them must be met."""
    if isinstance(p, AnyOf):
        return tuple(dict.fromkeys(n for o in p.options for n in needs(o)))
    if not isinstance(p, Op):
        raise TypeError(f"the root of a pattern is an operator, not {p!r}")
    operands = [_makers(i) for i in p.inputs or ()] + [frozenset((p.reading,))] * bool(p.reading)
    return (Need(frozenset(p.ops), tuple(o for o in operands if o)),)


def _makers(p: Pattern) -> frozenset[str]:
    """Who may make an operand; empty where anything may."""
    if isinstance(p, Op):
        return frozenset(p.ops)
    if isinstance(p, Constant):
        return frozenset((CONSTANT,))
    if isinstance(p, AnyOf):
        parts = [_makers(o) for o in p.options]
        return frozenset().union(*parts) if all(parts) else frozenset()
    return frozenset()


def depth(p: Pattern) -> int:
    """The most operators on a path from the root to a leaf."""
    if isinstance(p, AnyOf):
        return max(depth(o) for o in p.options)
    if isinstance(p, Maybe):
        return depth(p.pattern)
    return 1 + max((depth(i) for i in p.inputs or ()), default=0) if isinstance(p, Op) else 0


def operators(p: Pattern) -> frozenset[str]:
    """Every operator that the pattern names."""
    if isinstance(p, AnyOf):
        return frozenset().union(*map(operators, p.options))
    if isinstance(p, Maybe):
        return operators(p.pattern)
    return frozenset(p.ops).union(*map(operators, p.inputs or ())) if isinstance(p, Op) else frozenset()


def least_operators(p: Pattern) -> int:
    """The fewest operators that a match goes through; one that the pattern names twice counts twice."""
    if isinstance(p, AnyOf):
        return min((least_operators(o) for o in p.options), default=0)
    return 1 + sum(least_operators(i) for i in p.inputs or ()) if isinstance(p, Op) else 0


def spellings(p: Pattern) -> Iterator[Pattern]:
    """Every graph that the pattern stands for: each option, each operator, each order of commutative operands.

    In what comes out an operator has one name and there is no `AnyOf`, but an empty one for a `Maybe` left out.
    """
    if isinstance(p, AnyOf):
        for option in p.options:
            yield from spellings(option)
    elif isinstance(p, Maybe):
        yield from spellings(p.pattern)
        yield AnyOf(())
    elif isinstance(p, Op) and p.inputs is not None:
        for name in p.ops or ("",):
            for operands in itertools.product(*(tuple(spellings(i)) for i in p.inputs)):
                yield replace(p, ops=(name,), inputs=operands)
                if name in COMMUTATIVE and operands[0] != operands[1]:
                    yield replace(p, ops=(name,), inputs=operands[::-1])
    else:
        yield p
