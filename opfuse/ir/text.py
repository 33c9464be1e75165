"""A graph as text, and text as a graph: for reading, for differences between stages, and for golden tests.

    graph "m" {
      input x: f32[S, 8]
      const w: f32[2] = [1.0, 2.0]                                  small constants show their values
      y = softmax(x) {axis=1}: f32[S, 8] @softmax_1 from ["Softmax_0"]
      output "out" = y
    }

Attributes that equal their default are left out. `parse` infers types anew and refuses text whose types differ.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from opfuse.ir.dims import Dim, Operation, Symbol, SymbolicDim, floordiv, maximum, minimum, mod, symbol
from opfuse.ir.graph import Graph, Node
from opfuse.ir.ops import OperatorError, get
from opfuse.ir.types import DType, TensorType

INLINE_ELEMENTS = 16  # constants of up to this many elements are printed with their values
_WORD = re.compile(r"[A-Za-z_]\w*(\.\w+)*\Z")
_SYMBOL = re.compile(r"[A-Za-z_]\w*\Z")
_RESERVED = {"true", "false", "none", "inf", "nan", "min", "max", *(d.value for d in DType)}


class TextError(ValueError):
    """Text that is no graph; the message names the line."""


# ---- printing --------------------------------------------------------------------------------------------------------
def print_graph(graph: Graph, inline: int = INLINE_ELEMENTS) -> str:
    """The graph, one line a node. Constants of more than `inline` elements are given by name and type only."""
    lines = [f"graph {json.dumps(graph.name)} {{"]
    for i in graph.inputs:
        default = f" = {_default_text(graph.defaults[i], inline)}" if i in graph.defaults else ""
        lines.append(f"  input {_name(i)}: {type_text(graph.types[i])}{default}")
    for c, array in graph.constants.items():
        value = f" = {_array_text(array)}" if array.size <= inline else ""
        lines.append(f"  const {_name(c)}: {type_text(graph.types[c])}{value}")
    lines += [f"  {node_text(graph, n)}" for n in graph.nodes.values()]
    lines += [f"  output {json.dumps(public)} = {_name(value)}" for public, value in graph.outputs.items()]
    return "\n".join([*lines, "}", ""])


def node_text(graph: Graph, node: Node) -> str:
    defaults = get(node.op).attrs
    attrs = {k: v for k, v in node.attrs.items() if not _same(v, defaults.get(k))}
    shown = f" {{{', '.join(f'{k}={_value(v)}' for k, v in attrs.items())}}}" if attrs else ""
    args = ", ".join(_name(i) if i is not None else "-" for i in node.inputs)
    types = ", ".join(type_text(graph.types[o]) for o in node.outputs)
    origin = f" from [{', '.join(json.dumps(o) for o in node.origin)}]" if node.origin else ""
    return f"{', '.join(map(_name, node.outputs))} = {node.op}({args}){shown}: {types} @{_name(node.name)}{origin}"


def type_text(t: TensorType) -> str:
    return f"{t.dtype.value}[{', '.join(map(dim_text, t.shape))}]"


def dim_text(d: Dim) -> str:
    """Like `str`, but symbols that are no plain words stand in back quotes, so that it can be read back."""
    if isinstance(d, int):
        return str(d)
    parts = []
    for monomial, c in d.terms:
        factors = [_atom_text(a) for a in monomial]
        if abs(c) != 1 or not factors:
            factors.insert(0, str(abs(c)))
        parts.append(("-" if c < 0 else "") + "*".join(factors))
    return "+".join(parts).replace("+-", "-")


def _atom_text(a: Symbol | Operation) -> str:
    if isinstance(a, Symbol):
        return a.name if _SYMBOL.match(a.name) and a.name not in _RESERVED else f"`{a.name}`"
    sign = {"floordiv": "//", "mod": "%"}.get(a.op)
    left, right = dim_text(a.left), dim_text(a.right)
    return f"(({left}){sign}({right}))" if sign else f"{a.op}({left}, {right})"


def _name(value: str) -> str:
    return value if _WORD.match(value) else json.dumps(value)


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and (a == b or (isinstance(a, float) and math.isnan(a) and math.isnan(b)))


def _value(v: Any) -> str:
    match v:
        case None | bool():
            return {None: "none", True: "true", False: "false"}[v]
        case DType():
            return v.value
        case str():
            return json.dumps(v)
        case int() | SymbolicDim():
            return dim_text(v)
        case float():
            return repr(v)
        case tuple():
            return f"[{', '.join(map(_value, v))}]"
    raise TypeError(f"attribute {v!r} of type {type(v).__name__} cannot be printed")


def _default_text(array: np.ndarray, inline: int) -> str:
    """A default has its own shape, where the input's may be symbolic."""
    values = _array_text(array) if array.size <= inline else "..."
    return f"{type_text(TensorType(DType.of(array.dtype), array.shape))} {values}"


def _array_text(array: np.ndarray) -> str:
    return f"[{', '.join(_element(x) for x in array.reshape(-1))}]"


def _element(x: Any) -> str:
    if x.dtype == np.bool_:
        return "true" if x else "false"
    return str(x)


# ---- parsing ---------------------------------------------------------------------------------------------------------
def parse(text: str, constants: Mapping[str, np.ndarray] | None = None) -> Graph:
    """The graph of a text. `constants` gives the arrays (of constants and defaults) that are too large to stand in it.

    TextError names the line where the text is no graph, and OperatorError's text where a node is not allowed.
    """
    return _Parser(text, constants or {}).graph()


_TOKEN = re.compile(
    r"""\s+|(?P<string>"(?:\\.|[^"\\])*")|(?P<quoted>`[^`]*`)|(?P<float>\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
    |(?P<int>\d+)|(?P<word>[A-Za-z_]\w*(?:\.\w+)*)|(?P<sign>\.\.\.|//|[][(){}=,:@+*%-])""",
    re.VERBOSE,
)


class _Parser:
    def __init__(self, text: str, constants: Mapping[str, np.ndarray]) -> None:
        self.tokens: list[tuple[str, str, int]] = []  # kind, text, line
        self.constants, self.at = constants, 0
        for number, line in enumerate(text.splitlines(), 1):
            place = 0
            while place < len(line):
                found = _TOKEN.match(line, place)
                if found is None:
                    raise TextError(f"line {number}: {line[place : place + 20]!r} is not understood")
                if found.lastgroup is not None:
                    self.tokens.append((found.lastgroup, found.group(), number))
                place = found.end()
        self.tokens.append(("end", "the end", text.count("\n") + 1))

    # ---- tokens
    def peek(self, *texts: str) -> bool:
        kind, text, _ = self.tokens[self.at]
        return kind in ("word", "sign") and text in texts

    def take(self, *texts: str) -> bool:
        if self.peek(*texts):
            self.at += 1
            return True
        return False

    def need(self, text: str) -> None:
        if not self.take(text):
            raise self.error(f"{text!r} is expected")

    def kind(self, *kinds: str) -> str:
        kind, text, _ = self.tokens[self.at]
        if kind not in kinds:
            raise self.error(f"a {' or '.join(kinds)} is expected")
        self.at += 1
        return text

    def error(self, problem: str, at: int | None = None) -> TextError:
        _, text, line = self.tokens[self.at if at is None else at]
        return TextError(f"line {line}: {problem} at {text!r}")

    def name(self) -> str:
        text = self.kind("word", "string")
        return str(json.loads(text)) if text.startswith('"') else text

    def list(self, item: Any, close: str) -> list[Any]:
        out: list[Any] = []
        while not self.take(close):
            if out:
                self.need(",")
            out.append(item())
        return out

    # ---- graph
    def graph(self) -> Graph:
        self.need("graph")
        out, outputs = Graph(str(json.loads(self.kind("string")))), dict[str, str]()
        self.need("{")
        while not self.take("}"):
            kind = self.tokens[self.at + 1][0]
            if self.peek("input", "const") and kind in ("word", "string"):
                self.source(out)
            elif self.peek("output") and kind == "string":
                self.at += 1
                public = self.name()
                self.need("=")
                outputs[public] = self.name()
                if outputs[public] not in out.types:
                    raise self.error(f"output {public!r} shows {outputs[public]!r}, which nothing makes", self.at - 1)
            else:
                self.node(out)
        out.set_outputs(outputs)
        return out

    def source(self, g: Graph) -> None:
        start = self.at
        is_input = self.take("input") or not self.take("const")
        name = self.name()
        self.need(":")
        t = self.type()
        array = None
        if self.take("="):
            array = self.array(name, self.type() if is_input else t, start)
        try:
            if is_input:
                g.add_input(name, t, array)
            else:
                g.add_constant(array if array is not None else self.given(name, t, start), name)
        except TextError:
            raise
        except ValueError as error:
            raise self.error(str(error), start) from error

    def given(self, name: str, t: TensorType, start: int) -> np.ndarray:
        array = self.constants.get(name)
        if array is None:
            raise self.error(f"the values of {name!r} are neither in the text nor given", start)
        if TensorType(DType.of(array.dtype), array.shape) != t:
            raise self.error(f"{name!r} is given as {array.dtype}{list(array.shape)}, but the text says {t}", start)
        return array

    def array(self, name: str, t: TensorType, start: int) -> np.ndarray:
        if self.take("..."):
            return self.given(name, t, start)
        self.need("[")
        values = self.list(self.value, "]")
        try:
            return np.array(values, t.dtype.numpy).reshape(t.static_shape)
        except (TypeError, ValueError, OverflowError) as error:
            raise self.error(f"the values of {name!r} do not make {t}: {error}", start) from error

    def node(self, g: Graph) -> None:
        start, outputs = self.at, [self.name()]
        while self.take(","):
            outputs.append(self.name())
        self.need("=")
        op = self.kind("word")
        self.need("(")
        inputs = self.list(lambda: None if self.take("-") else self.name(), ")")
        attrs = dict(self.list(self.attribute, "}")) if self.take("{") else {}
        self.need(":")
        types = [self.type()]
        while self.take(","):
            types.append(self.type())
        if len(types) != len(outputs):
            raise self.error(f"{len(outputs)} outputs, but {len(types)} types", start)
        self.need("@")
        name = self.name()
        origin: tuple[str, ...] = ()
        if self.take("from"):
            self.need("[")
            origin = tuple(self.list(self.name, "]"))
        try:
            node = Node(name, op, tuple(inputs), tuple(outputs), get(op).complete(attrs), origin)
            g.insert(node)
        except (OperatorError, ValueError) as error:
            raise self.error(str(error), start) from error
        for value, t in zip(outputs, types, strict=True):
            if g.types[value] != t:
                raise self.error(f"{value!r} is {g.types[value]} by the shape rule, but the text says {t}", start)

    def attribute(self) -> tuple[str, Any]:
        key = self.kind("word")
        self.need("=")
        return key, self.value()

    # ---- values
    def type(self) -> TensorType:
        word = self.kind("word")
        if word not in _DTYPES:
            raise self.error(f"{word!r} is no element type", self.at - 1)
        self.need("[")
        return TensorType(_DTYPES[word], tuple(self.list(self.dim, "]")))

    def value(self) -> Any:
        kind, text, _ = self.tokens[self.at]
        if kind == "string":
            return self.name()
        if self.take("["):
            return tuple(self.list(self.value, "]"))
        if kind == "word" and text in _WORDS:
            self.at += 1
            return _WORDS[text]
        following = self.tokens[self.at + 1]
        if self.peek("-") and (following[0] == "float" or following[1] in ("inf", "nan")):
            self.at += 1
            return -self.value()
        return float(self.kind("float")) if kind == "float" else self.dim()

    def dim(self) -> Dim:
        total = self.product()
        while self.peek("+", "-"):
            total = total + self.product() if self.take("+") else total - self.negated()
        return total

    def negated(self) -> Dim:
        self.need("-")
        return self.product()

    def product(self) -> Dim:
        total: Dim = -1 if self.take("-") else 1
        total = total * self.factor()
        while self.take("*"):
            total = total * self.factor()
        return total

    def factor(self) -> Dim:
        kind, text, _ = self.tokens[self.at]
        if kind == "int":
            return int(self.kind("int"))
        if kind == "quoted":
            return symbol(self.kind("quoted")[1:-1])
        if self.take("("):
            left = self.dim()
            for sign, make in (("//", floordiv), ("%", mod)):
                if self.take(sign):
                    left = make(left, self.dim())
            self.need(")")
            return left
        if self.peek("min", "max"):
            make = minimum if self.take("min") else maximum
            self.at += text == "max"
            self.need("(")
            left = self.dim()
            self.need(",")
            right = self.dim()
            self.need(")")
            return make(left, right)
        return symbol(self.kind("word"))


_DTYPES = {d.value: d for d in DType}
_WORDS: dict[str, Any] = {"true": True, "false": False, "none": None, "inf": math.inf, "nan": math.nan, **_DTYPES}
