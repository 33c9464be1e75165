"""A graph as plain data: the model that a compiled file was made from, or a step of it that the oracle runs.

    data, arrays = graph_to_data(graph);  graph_from_data(data, arrays)      # arrays: constant name -> array
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from opfuse.ir.dims import SymbolicDim
from opfuse.ir.graph import Graph, Node
from opfuse.ir.types import DType, TensorType
from opfuse.runtime.interface import dim_from_json, dim_json


def graph_to_data(graph: Graph) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What JSON can hold, and the constants."""
    data = {
        "name": graph.name,
        "inputs": [[i, graph.types[i].dtype.value, [dim_json(d) for d in graph.types[i].shape]] for i in graph.inputs],
        "constants": [[c, DType.of(a.dtype).value, list(a.shape)] for c, a in graph.constants.items()],
        "defaults": list(graph.defaults),
        "nodes": [_node(n) for n in graph.nodes.values()],
        "outputs": graph.outputs,
    }
    return data, {**graph.constants, **graph.defaults}


def graph_from_data(data: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Graph:
    """The graph again. `arrays` may hold bytes: they are viewed in the constant's type and shape."""
    graph = Graph(data["name"])
    for name, dtype, shape in data["inputs"]:
        type_ = TensorType(DType(dtype), tuple(dim_from_json(d) for d in shape))
        default = None
        if name in data.get("defaults", ()):
            default = arrays[name].reshape(-1).view(type_.dtype.numpy).reshape(type_.static_shape)
        graph.add_input(name, type_, default)
    for name, dtype, shape in data["constants"]:
        graph.add_constant(arrays[name].reshape(-1).view(DType(dtype).numpy).reshape(shape), name)
    for name, op, inputs, outputs, attrs, origin in data["nodes"]:
        values = {k: _attribute_from(v) for k, v in attrs.items()}
        graph.insert(Node(name, op, tuple(inputs), tuple(outputs), values, tuple(origin)))
    graph.set_outputs(data["outputs"])
    return graph


def _node(n: Node) -> list[Any]:
    attrs = {k: _attribute(v) for k, v in n.attrs.items()}
    return [n.name, n.op, list(n.inputs), list(n.outputs), attrs, list(n.origin)]


def _attribute(value: Any) -> Any:
    """Lists stand for tuples; a dtype or a symbolic dimension is an object of one key."""
    if isinstance(value, tuple):
        return [_attribute(v) for v in value]
    if isinstance(value, DType):
        return {"dtype": value.value}
    if isinstance(value, SymbolicDim):
        return {"dim": dim_json(value)}
    return value


def _attribute_from(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(_attribute_from(d) for d in data)
    if isinstance(data, dict):
        return DType(data["dtype"]) if "dtype" in data else dim_from_json(data["dim"])
    return data
