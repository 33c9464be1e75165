"""A model as its caller sees it: inputs with symbolic shapes, names of outputs; and how shapes bind the symbols.

    interface = Interface.of(graph)
    interface.bindings({"tokens": (2, 128)}) -> {"batch": 2, "sequence": 128}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opfuse.errors import InputError
from opfuse.ir.dims import Atom, Dim, Operation, Symbol, SymbolicDim, bind, dims_text, symbols
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType


@dataclass(frozen=True)
class InputSpec:
    """`optional` inputs have a default in the model (initialisers that are also inputs)."""

    name: str
    dtype: DType
    shape: tuple[Dim, ...]
    optional: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype.numpy}[{dims_text(self.shape)}]" + (" (optional)" if self.optional else "")


@dataclass(frozen=True)
class Interface:
    name: str
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]

    @staticmethod
    def of(graph: Graph) -> Interface:
        specs = (InputSpec(i, graph.types[i].dtype, graph.types[i].shape, i in graph.defaults) for i in graph.inputs)
        return Interface(graph.name, tuple(specs), tuple(graph.outputs))

    @property
    def symbols(self) -> tuple[str, ...]:
        """Dimensions that the shapes of required inputs must bind, in the order of the inputs."""
        required = (s for i in self.inputs if not i.optional for d in i.shape for s in sorted(symbols(d)))
        return tuple(dict.fromkeys(required))

    def spec(self, name: str) -> InputSpec:
        """InputError for a name that is no input."""
        for spec in self.inputs:
            if spec.name == name:
                return spec
        raise InputError(name, "the model has no such input", f"its inputs are {self.listed()}", code="input-unknown")

    def listed(self) -> str:
        return ", ".join(map(str, self.inputs)) or "none"

    def bindings(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Numbers for the symbols that the shapes determine. InputError where they do not fit together or the model."""
        found: dict[str, int] = {}
        source: dict[str, str] = {}
        for name, shape in shapes.items():
            spec = self.spec(name)
            if len(shape) != len(spec.shape):
                raise self._mismatch(spec, shape)
            for axis, (want, got) in enumerate(zip(spec.shape, shape, strict=True)):
                symbol = _plain_symbol(want)
                if isinstance(want, int) and want != got:
                    raise self._mismatch(spec, shape)
                if symbol is None:
                    continue
                if found.setdefault(symbol, int(got)) != got:
                    other = f"{source[symbol]!r} makes {symbol} {found[symbol]}"
                    problem = f"dimension {axis} ({symbol}) is {got}, but {other}"
                    raise InputError(name, problem, "pass inputs whose shapes agree", code="input-symbol")
                source.setdefault(symbol, name)
        self._check_compound(shapes, found)
        return found

    def _check_compound(self, shapes: Mapping[str, Sequence[int]], found: Mapping[str, int]) -> None:
        """Dimensions like 2*S hold once their symbols are known."""
        for name, shape in shapes.items():
            for want, got in zip(self.spec(name).shape, shape, strict=True):
                value = bind(want, found)
                if isinstance(value, int) and value != got:
                    known = ", ".join(f"{s} = {found[s]}" for s in sorted(symbols(want)))
                    problem = f"a dimension is {got}, the model wants {want} = {value} ({known})"
                    raise InputError(name, problem, code="input-symbol")

    def _mismatch(self, spec: InputSpec, shape: Sequence[int]) -> InputError:
        wanted = dims_text(spec.shape)
        problem = f"has the shape [{dims_text(shape)}], the model wants [{wanted}]"
        return InputError(spec.name, problem, code="input-shape")

    # ---- as plain data ----------------------------------------------------------------------------------------------
    def to_json(self) -> dict[str, Any]:
        inputs = [
            {"name": i.name, "dtype": i.dtype.value, "shape": [dim_json(d) for d in i.shape], "optional": i.optional}
            for i in self.inputs
        ]
        return {"name": self.name, "inputs": inputs, "outputs": list(self.outputs)}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Interface:
        specs = (
            InputSpec(i["name"], DType(i["dtype"]), tuple(dim_from_json(d) for d in i["shape"]), i["optional"])
            for i in data["inputs"]
        )
        return Interface(data["name"], tuple(specs), tuple(data["outputs"]))


def _plain_symbol(d: Dim) -> str | None:
    """The symbol that a dimension is, where it is nothing but one."""
    if isinstance(d, SymbolicDim) and len(d.terms) == 1:
        (monomial, factor), *_ = d.terms
        if factor == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return monomial[0].name
    return None


def dim_json(d: Dim) -> Any:
    """A number, or a list of [factor, atoms]; an atom is a name or [operation, left, right]."""
    if isinstance(d, int):
        return d
    return [[factor, [_atom_json(a) for a in monomial]] for monomial, factor in d.terms]


def _atom_json(a: Atom) -> Any:
    return a.name if isinstance(a, Symbol) else [a.op, dim_json(a.left), dim_json(a.right)]


def dim_from_json(data: Any) -> Dim:
    if isinstance(data, int):
        return data
    terms = []
    for factor, atoms in data:
        terms.append((tuple(_atom_from_json(a) for a in atoms), factor))
    return SymbolicDim(tuple(terms))


def _atom_from_json(data: Any) -> Atom:
    if isinstance(data, str):
        return Symbol(data)
    operation, left, right = data
    return Operation(operation, dim_from_json(left), dim_from_json(right))
