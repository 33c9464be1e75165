"""Validates a graph: single assignment, order, types as the shape rules say, outputs that exist.

    check(graph)     # nothing, or GraphError: "node 'Add_3' (add): reads 't', which nothing makes before it"

Run after an import and after a rewrite: what passes here can be lowered without further questions about its form.
"""

from __future__ import annotations

from opfuse.ir.graph import Graph, Node
from opfuse.ir.ops import OperatorError, get, infer
from opfuse.ir.types import DType, TensorType


class GraphError(ValueError):
    """A graph that breaks a rule of its own form; the text names the node in the user's words."""


def check(graph: Graph) -> None:
    """GraphError for the first fault, in the order of the graph."""
    made = _sources(graph)
    for key, node in graph.nodes.items():
        if key != node.name:
            raise GraphError(f"{_who(node)}: is kept under the name {key!r}")
        for value in node.reads:
            if value not in made:
                raise GraphError(f"{_who(node)}: reads {value!r}, which nothing makes before it")
        for value in node.outputs:
            if value in made:
                raise GraphError(f"{_who(node)}: makes {value!r}, which {made[value]} makes already")
            made[value] = _who(node)
        _check_types(graph, node)
        _check_links(graph, node)
    for public, value in graph.outputs.items():
        if value not in made:
            raise GraphError(f"output {public!r} shows {value!r}, which nothing makes")
    if extra := [v for v in graph.types if v not in made]:
        raise GraphError(f"{extra[0]!r} has a type, but nothing makes it")


def _sources(graph: Graph) -> dict[str, str]:
    """Inputs and constants, each with a word for who makes it; their types must be those of their arrays."""
    made: dict[str, str] = {}
    for name in graph.inputs:
        if name in made:
            raise GraphError(f"two inputs are called {name!r}")
        made[name] = "an input"
    for name, array in graph.constants.items():
        if name in made:
            raise GraphError(f"constant {name!r} is also an input")
        made[name] = "a constant"
        actual = TensorType(DType.of(array.dtype), array.shape)
        if graph.types.get(name) != actual:
            raise GraphError(f"constant {name!r} is {actual}, but its type says {graph.types.get(name)}")
    for name in made:
        if name not in graph.types:
            raise GraphError(f"input {name!r} has no type")
    for name, array in graph.defaults.items():
        if name not in graph.inputs:
            raise GraphError(f"{name!r} has a default value, but is no input")
        if graph.types[name].dtype is not DType.of(array.dtype) or graph.types[name].rank != array.ndim:
            raise GraphError(
                f"the default of input {name!r} is {array.dtype}{list(array.shape)}, not {graph.types[name]}"
            )
    return made


def _check_types(graph: Graph, node: Node) -> None:
    try:
        operator = get(node.op)
        complete = operator.complete(node.attrs)
        expected = infer(node, graph.types)
    except OperatorError as error:
        text = str(error)
        raise GraphError(text if text.startswith("node ") else f"{_who(node)}: {text}") from error
    if missing := [k for k in complete if k not in node.attrs]:
        raise GraphError(f"{_who(node)}: the attribute {missing[0]!r} is not filled in")
    if len(expected) != len(node.outputs):
        raise GraphError(f"{_who(node)}: has {len(node.outputs)} outputs, must have {len(expected)}")
    for value, type_ in zip(node.outputs, expected, strict=True):
        if graph.types.get(value) != type_:
            raise GraphError(f"{_who(node)}: {value!r} is {graph.types.get(value)}, but the shape rule says {type_}")


def _check_links(graph: Graph, node: Node) -> None:
    """The graph's own tables of producers and consumers agree with the nodes."""
    for value in node.outputs:
        if graph.producer(value) is not node:
            raise GraphError(f"{_who(node)}: the graph does not know it as the producer of {value!r}")
    for value in node.reads:
        if node not in graph.consumers(value):
            raise GraphError(f"{_who(node)}: the graph does not know it as a consumer of {value!r}")


def _who(node: Node) -> str:
    return f"node {(node.origin or (node.name,))[0]!r} ({node.op})"
