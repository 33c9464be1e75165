"""Runs a graph in the operators' NumPy oracles, node by node: the truth that everything else is compared with.

    evaluate(graph, {"x": array})                     -> {output name: array}, in the graph's own types
    evaluate(graph, feeds, "f64")                     every float input, constant and cast widened to float64
    evaluate(graph, feeds, "f64", values=["add_3"])   -> {value: array} of inner values

Symbolic dimensions are bound by the shapes of the feeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from opfuse.errors import InputError, OpfuseError
from opfuse.ir.dims import Dim, Symbol, SymbolicDim, bind, symbols
from opfuse.ir.graph import Graph, Node, bind_attribute
from opfuse.ir.ops import get
from opfuse.ir.types import DType, TensorType

Precision = Literal["native", "f64"]


class EvaluationError(OpfuseError):
    """A node whose oracle fails on these values (an index outside its dimension); the text names the user's node."""

    default_code = "evaluation"


def evaluate(graph: Graph, feeds: Mapping[str, np.ndarray], dtype: Precision = "native",
             values: Iterable[str] | None = None) -> dict[str, np.ndarray]:  # fmt: skip
    """Values of a graph for some feeds.

    Args:
        feeds: input name -> array of the input's type; an input with a default may be left out.
        dtype: "native" computes in the graph's own types; "f64" turns every float type into float64, in casts too
            (integers and bools stay what they are).
        values: names of values to return; the graph's outputs, by their public names, where None.

    InputError for feeds that do not fit; EvaluationError where a node cannot be computed.
    """
    if dtype not in ("native", "f64"):
        raise ValueError(f"dtype {dtype!r} is neither 'native' nor 'f64'")
    wide = dtype == "f64"
    state = {name: _widened(a) if wide else a for name, a in bound_feeds(graph, feeds).items()}
    bindings = bind_symbols(graph, state)
    wanted = list(values) if values is not None else list(graph.outputs.values())
    if unknown := [v for v in wanted if v not in graph.types]:
        raise KeyError(f"the graph has no value {unknown[0]!r}")
    needed = _needed(graph, wanted)
    last_use = {value: node.name for node in needed for value in node.reads}
    for name in dict.fromkeys([*last_use, *wanted]):
        if name in graph.constants:
            state[name] = _widened(graph.constants[name]) if wide else graph.constants[name]
    keep = set(wanted)
    for node in needed:
        for value, array in zip(node.outputs, run_node(node, state, bindings, wide), strict=True):
            state[value] = array
        for value in node.reads:
            if last_use[value] == node.name and value not in keep:
                del state[value]
    if values is not None:
        return {v: state[v] for v in wanted}
    return {public: state[v] for public, v in graph.outputs.items()}


def run_node(
    node: Node, state: Mapping[str, np.ndarray], bindings: Mapping[str, int], wide: bool
) -> tuple[np.ndarray, ...]:
    """The outputs of one node; its inputs are in `state`."""
    attrs = {k: _attribute(v, bindings, wide) for k, v in node.attrs.items()}
    arrays = [state[i] if i is not None else None for i in node.inputs]
    try:
        result = get(node.op).oracle(attrs, arrays)
    except (ArithmeticError, IndexError, TypeError, ValueError) as error:
        raise EvaluationError(f"node {(node.origin or (node.name,))[0]!r} ({node.op}): {error}") from error
    results = tuple(map(np.asarray, result if isinstance(result, tuple) else (result,)))
    return tuple(map(_widened, results)) if wide else results


def _needed(graph: Graph, wanted: Iterable[str]) -> list[Node]:
    """The nodes that the wanted values depend on, in the graph's order."""
    open_values, found = list(wanted), set[str]()
    while open_values:
        producer = graph.producer(open_values.pop())
        if producer is not None and producer.name not in found:
            found.add(producer.name)
            open_values += producer.reads
    return [n for n in graph.nodes.values() if n.name in found]


def _widened(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64, copy=False) if DType.of(array.dtype).is_float else array


def _attribute(value: Any, bindings: Mapping[str, int], wide: bool) -> Any:
    if isinstance(value, DType):
        return DType.F64 if wide and value.is_float else value
    return bind_attribute(value, bindings)


# ---- feeds -----------------------------------------------------------------------------------------------------------
def bound_feeds(graph: Graph, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The feeds with defaults filled in; InputError where one is unknown, missing or of another type or rank."""
    if unknown := [name for name in feeds if name not in graph.inputs]:
        raise InputError(unknown[0], "the model has no such input", f"its inputs are {', '.join(graph.inputs)}")
    out = {}
    for name in graph.inputs:
        array = feeds.get(name, graph.defaults.get(name))
        if array is None:
            raise InputError(name, "nothing is fed", f"feed an array of type {graph.types[name]}")
        array = np.asarray(array)
        expected = graph.types[name]
        if array.dtype != expected.dtype.numpy or array.ndim != expected.rank:
            raise InputError(name, f"{array.dtype}{list(array.shape)} is fed, but the model takes {expected}")
        out[name] = array
    return out


def bind_symbols(graph: Graph, arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Numbers for the symbols of the inputs' shapes; InputError where two inputs disagree or an extent does not fit."""
    found: dict[str, int] = {}
    for name in graph.inputs:
        for d, n in zip(graph.types[name].shape, arrays[name].shape, strict=True):
            symbol_name = _plain_symbol(d)
            if symbol_name is not None:
                found.setdefault(symbol_name, n)
    for name in graph.inputs:
        _check_shape(name, graph.types[name], arrays[name].shape, found)
    return found


def _plain_symbol(d: Dim) -> str | None:
    match d:
        case SymbolicDim((((Symbol(name),), 1),)):
            return name
        case _:
            return None


def _check_shape(name: str, expected: TensorType, shape: tuple[int, ...], found: Mapping[str, int]) -> None:
    for d, n in zip(expected.shape, shape, strict=True):
        value = bind(d, found)
        if isinstance(value, int) and value != n:
            shown = f"{d} = {value}" if symbols(d) else str(value)
            raise InputError(name, f"shape {list(shape)} does not fit {expected}: {n} where {shown} is expected")
