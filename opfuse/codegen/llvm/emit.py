"""LLVM IR text with scopes: index arithmetic is put, once, into the outermost scope that has its operands.

A scope is a loop body, a branch, or a straight piece. `pure` therefore gives hoisting and common subexpressions by
construction, and no IR pass has to run over the text.

    e.add(e.mul(i, 4), 12)     # i64 arithmetic, folded where the operands are known
    e.loop(0, n, 4, [acc], lambda i, carried: [step(i, carried[0])])     # a counted loop with values in registers
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from opfuse.ir.types import DType


class Int(NamedTuple):
    """An i64 in SSA: its name, the depth of the scope from which it may be used, and a number that divides it."""

    text: str
    depth: int
    multiple: int = 1


class Handle(NamedTuple):
    """A pointer or a condition in SSA, with the depth of the scope from which it may be used."""

    text: str
    depth: int


Integer = int | Int

# How a value is held in a register. Half-precision floats are widened when they are loaded; booleans are single bits.
HELD = {
    DType.F64: "double", DType.F32: "float", DType.F16: "float", DType.BF16: "float", DType.BOOL: "i1",
    DType.I64: "i64", DType.I32: "i32", DType.I16: "i16", DType.I8: "i8",
    DType.U64: "i64", DType.U32: "i32", DType.U16: "i16", DType.U8: "i8",
    **{d: "i8" for d in DType if d.is_narrow},
}  # fmt: skip


@dataclass(frozen=True)
class Value:
    """A vector in SSA (or a constant one)."""

    text: str
    dtype: DType
    lanes: int

    @property
    def type(self) -> str:
        return f"<{self.lanes} x {HELD[self.dtype]}>"

    def __str__(self) -> str:
        return f"{self.type} {self.text}"


Lines = list["str | Lines"]


@dataclass
class Scope:
    head: Lines = field(default_factory=list)  # pure values, before anything in the body
    body: Lines = field(default_factory=list)
    memo: dict[str, str] = field(default_factory=dict)  # instruction -> its name
    values: dict[object, Value] = field(default_factory=dict)  # what a printer wants to find again in this scope


def depth(i: Integer) -> int:
    return i.depth if isinstance(i, Int) else 0


def text(i: Integer) -> str:
    return i.text if isinstance(i, Int) else str(i)


def multiple(i: Integer) -> int:
    """A number that divides `i`; 0 is divided by every number."""
    return i.multiple if isinstance(i, Int) else abs(i)


class Emit:
    """One function's text while it grows."""

    def __init__(self) -> None:
        self.scopes = [Scope()]
        self.globals: dict[str, str] = {}  # name -> definition
        self._count = 0
        self._block = "entry"

    # ---- text ------------------------------------------------------------------------------------------------------
    def name(self, prefix: str = "%v") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def line(self, instruction: str) -> None:
        self.scopes[-1].body.append("  " + instruction)

    def op(self, instruction: str) -> str:
        result = self.name()
        self.line(f"{result} = {instruction}")
        return result

    def value(self, instruction: str, dtype: DType, lanes: int) -> Value:
        return Value(self.op(instruction), dtype, lanes)

    @property
    def depth(self) -> int:
        return len(self.scopes) - 1

    def pure(self, at: int, instruction: str) -> str:
        """The name of an instruction without effects, at the head of scope `at`, or here where that is yet to come."""
        for scope in self.scopes[: at + 1]:
            if instruction in scope.memo:
                return scope.memo[instruction]
        result = self.name("%i")
        scope = self.scopes[min(at, self.depth)]
        (scope.head if at <= self.depth else scope.body).append(f"  {result} = {instruction}")
        scope.memo[instruction] = result
        return result

    def _label(self, label: str) -> None:
        self.scopes[-1].body.append(label + ":")
        self._block = label

    def push(self) -> None:
        inner = Scope()
        self.scopes[-1].body += [inner.head, inner.body]
        self.scopes.append(inner)

    def pop(self) -> None:
        self.scopes.pop()

    # ---- index arithmetic ------------------------------------------------------------------------------------------
    def _arith(self, op: str, a: Integer, b: Integer, divisor: int) -> Int:
        at = max(depth(a), depth(b))
        return Int(self.pure(at, f"{op} i64 {text(a)}, {text(b)}"), at, max(divisor, 1))

    def add(self, a: Integer, b: Integer) -> Integer:
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if a == 0 or b == 0:
            return b if a == 0 else a
        return self._arith("add nsw", a, b, math.gcd(multiple(a), multiple(b)))

    def sub(self, a: Integer, b: Integer) -> Integer:
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if b == 0 else self._arith("sub nsw", a, b, math.gcd(multiple(a), multiple(b)))

    def mul(self, a: Integer, b: Integer) -> Integer:
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if a == 0 or b == 0:
            return 0
        if a == 1 or b == 1:
            return b if a == 1 else a
        return self._arith("mul nsw", a, b, multiple(a) * multiple(b))

    def div(self, a: Integer, b: Integer) -> Integer:
        """a // b for a >= 0. A divisor may be 0 in code that is never reached, and is then taken as 1."""
        b = self._divisor(b)
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        if b == 1:
            return a
        exact = isinstance(b, int) and multiple(a) % b == 0
        return self._arith("udiv", a, b, multiple(a) // b if exact and isinstance(b, int) else 1)

    def rem(self, a: Integer, b: Integer) -> Integer:
        """a % b for a >= 0."""
        b = self._divisor(b)
        if isinstance(a, int) and isinstance(b, int):
            return a % b
        if isinstance(b, int) and multiple(a) % b == 0:
            return 0
        return self._arith("urem", a, b, math.gcd(multiple(a), multiple(b)))

    def floor_div(self, a: Integer, b: Integer) -> Integer:
        """a // b rounding down, for any a and for b > 0."""
        b = self._divisor(b)
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        quotient = self._arith("sdiv", a, b, 1)
        below = self.compare("slt", self.sub(a, self.mul(quotient, b)), 0)
        return self.choose(below, self.sub(quotient, 1), quotient)

    def _divisor(self, b: Integer) -> Integer:
        return self.most(b, 1)

    def ceil_div(self, a: Integer, b: int) -> Integer:
        return self.div(self.add(a, b - 1), b)

    def compare(self, condition: str, a: Integer, b: Integer) -> Handle:
        at = max(depth(a), depth(b))
        return Handle(self.pure(at, f"icmp {condition} i64 {text(a)}, {text(b)}"), at)

    def both(self, a: Handle, b: Handle, op: str = "and") -> Handle:
        at = max(a.depth, b.depth)
        return Handle(self.pure(at, f"{op} i1 {a.text}, {b.text}"), at)

    def choose(self, condition: Handle, a: Integer, b: Integer) -> Int:
        at = max(condition.depth, depth(a), depth(b))
        name = self.pure(at, f"select i1 {condition.text}, i64 {text(a)}, i64 {text(b)}")
        return Int(name, at, max(1, math.gcd(multiple(a), multiple(b))))

    def least(self, a: Integer, b: Integer) -> Integer:
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b)
        return self.choose(self.compare("slt", a, b), a, b)

    def most(self, a: Integer, b: Integer) -> Integer:
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b)
        return self.choose(self.compare("sgt", a, b), a, b)

    def offset(self, pointer: Handle, bytes_: Integer) -> Handle:
        if bytes_ == 0:
            return pointer
        at = max(pointer.depth, depth(bytes_))
        return Handle(self.pure(at, f"getelementptr i8, ptr {pointer.text}, i64 {text(bytes_)}"), at)

    # ---- control ---------------------------------------------------------------------------------------------------
    def loop(
        self, lo: Integer, hi: Integer, step: int, carried: Sequence[Value],
        body: Callable[[Integer, list[Value]], Sequence[Value]],
    ) -> list[Value]:  # fmt: skip
        """body(index, carried) -> carried, for index in range(lo, hi, step).

        One trip is no loop; a bound known only at run time gets a guard.
        """
        known = isinstance(lo, int) and isinstance(hi, int)
        if isinstance(lo, int) and isinstance(hi, int) and hi - lo <= step:
            if hi <= lo:
                return list(carried)
            self.push()
            out = list(body(lo, list(carried)))
            self.pop()
            return out
        head, leave, before, index = self.name("H"), self.name("X"), self._block, self.name("%k")
        if known:
            self.line(f"br label %{head}")
        else:
            guard = self.op(f"icmp slt i64 {text(lo)}, {text(hi)}")
            self.line(f"br i1 {guard}, label %{head}, label %{leave}")
        self._label(head)
        phis: Lines = []
        self.scopes[-1].body.append(phis)
        inside = [Value(self.name("%c"), v.dtype, v.lanes) for v in carried]
        self.push()
        out = list(body(Int(index, self.depth, max(1, math.gcd(multiple(lo), step))), list(inside)))
        following = self.op(f"add nuw nsw i64 {index}, {step}")
        again = self.op(f"icmp slt i64 {following}, {text(hi)}")
        self.line(f"br i1 {again}, label %{head}, label %{leave}")
        latch = self._block
        self.pop()
        phis.append(f"  {index} = phi i64 [{text(lo)}, %{before}], [{following}, %{latch}]")
        for name, first, last in zip(inside, carried, out, strict=True):
            phis.append(f"  {name.text} = phi {name.type} [{first.text}, %{before}], [{last.text}, %{latch}]")
        self._label(leave)
        if known:
            return out
        return [
            self.value(f"phi {a.type} [{a.text}, %{before}], [{b.text}, %{latch}]", a.dtype, a.lanes)
            for a, b in zip(carried, out, strict=True)
        ]

    def when(self, condition: Handle, body: Callable[[], None], otherwise: Callable[[], None] | None = None) -> None:
        """Run `body` where the condition holds; nothing that it makes is used after it."""
        yes, no, after = self.name("T"), self.name("F"), self.name("A")
        self.line(f"br i1 {condition.text}, label %{yes}, label %{no if otherwise else after}")
        for label, part in ((yes, body), (no, otherwise)):
            if part is not None:
                self._label(label)
                self.push()
                part()
                self.pop()
                self.line(f"br label %{after}")
        self._label(after)

    def function(self, name: str, arguments: Sequence[str]) -> str:
        """The text of the function, with the constants that it names before it."""
        top = self.scopes[0]
        lines: list[str] = []
        _flatten([top.head, top.body], lines)
        body = "\n".join(lines)
        constants = "".join(f"{n} = {d}\n" for n, d in self.globals.items())
        return f"{constants}define void @{name}({', '.join(arguments)}) #0 {{\nentry:\n{body}\n  ret void\n}}\n"


def _flatten(lines: Lines, out: list[str]) -> None:
    for x in lines:
        if isinstance(x, str):
            out.append(x)
        else:
            _flatten(x, out)
