"""Operators that ONNX defines by others, and branches whose condition is known, as plain nodes in their place.

    function_body(node, "", 13, types)  -> Inlined: Shrink-9 as Less, Add, Sub, Where
    branch(node, then_branch)           -> Inlined: the nodes of one branch of an If

The names inside get the node's name in front; its inputs and outputs keep the names that they have outside, so that the
nodes can be imported as if they stood in the model. A row of the import table goes before a function's body.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto, TypeProto, defs, helper

from opfuse.frontends.onnx import imports
from opfuse.frontends.onnx.imports import SupportedOperator
from opfuse.frontends.onnx.model_file import node_name
from opfuse.frontends.onnx.types import ELEMENT_TYPES
from opfuse.ir.types import DType, TensorType

_NUMBERS = {dtype: number for number, dtype in ELEMENT_TYPES.items()}


@dataclass(frozen=True)
class Inlined:
    """Nodes that stand for one. `opsets` are those that the nodes are written in: the model's where there is none."""

    nodes: tuple[NodeProto, ...]
    opsets: Mapping[str, int]


def has_function(op: str, domain: str, opset: int) -> bool:
    """Whether ONNX defines this version of an operator by others."""
    try:
        schema: Any = defs.get_schema(op, opset, domain)
        return bool(schema.all_function_opset_versions)
    except defs.SchemaError:
        return False


def function_body(node: NodeProto, domain: str, opset: int, types: Sequence[TensorType | None]) -> Inlined:
    """The body of an operator that has one, for inputs of these types (None for an input left out)."""
    schema: Any = defs.get_schema(node.op_type, opset, domain)  # its stubs lack the methods for functions
    versions = schema.all_function_opset_versions
    version = max((v for v in versions if v <= opset), default=min(versions))
    if version in schema.function_opset_versions:
        text = schema.get_function_with_opset_version(version)
    else:  # the body depends on types and attributes
        given = [_type_proto(t).SerializeToString() for t in types]
        text = schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), given)
    function = FunctionProto.FromString(text)
    attributes = {n: a.default_value for n, a in schema.attributes.items() if a.default_value.name}
    attributes |= {a.name: a for a in function.attribute_proto} | {a.name: a for a in node.attribute}
    outer = dict.fromkeys(function.input, "") | dict(zip(function.input, node.input, strict=False))
    outer |= {o: name for o, name in zip(function.output, node.output, strict=False) if name}
    nodes = _Renaming(node_name(node), outer, attributes).nodes(function.node)
    return Inlined(tuple(nodes), {"" if e.domain == "ai.onnx" else e.domain: e.version for e in function.opset_import})


def branch(node: NodeProto, graph: GraphProto) -> Inlined:
    """The nodes of one branch of an If: its tensors as constants, its results as copies with the If's names."""
    outer = {i: i for i in _free_names(graph)}
    constants = [helper.make_node("Constant", [], [t.name], value=t) for t in graph.initializer]
    renaming = _Renaming(node_name(node), outer, {})
    inner = list(renaming.nodes([*constants, *graph.node]))
    inner += [
        helper.make_node("Identity", [renaming.name(o.name)], [name], name=node_name(node))
        for o, name in zip(graph.output, node.output, strict=True) if name
    ]  # fmt: skip
    return Inlined(tuple(inner), {})


def body_nodes(graph: GraphProto, owner: str, place: str, inputs: Sequence[str]) -> tuple[Inlined, tuple[str, ...]]:
    """A copy of a loop's body for one step, its inputs under these names, and the names of its outputs."""
    outer = {i: i for i in _free_names(graph)}
    outer |= {v.name: name for v, name in zip(graph.input, inputs, strict=True)}
    constants = [helper.make_node("Constant", [], [t.name], value=t) for t in graph.initializer]
    renaming = _Renaming(place, outer, {}, owner)
    nodes = tuple(renaming.nodes([*constants, *graph.node]))
    return Inlined(nodes, {}), tuple(renaming.name(o.name) for o in graph.output)


def definitions() -> list[SupportedOperator]:
    """Operators without a row of their own whose definition is made of supported ones, sorted by domain and name.

    A body that depends on types and attributes is tried on float32 inputs of rank 4 and no attributes.
    """
    newest = int(defs.onnx_opset_version())
    found: dict[tuple[str, str], dict[int, tuple[str, ...]]] = {}
    for schema in defs.get_all_schemas_with_history():
        domain, op, since = schema.domain, schema.name, schema.since_version
        rows = [v for v in imports.versions(domain, op) if imports.find(domain, op, v) is not None]
        emits = () if rows else _made_of(schema, since)
        if emits:
            found.setdefault((domain, op), {})[since] = emits
    return [
        SupportedOperator(domain, op, ((min(made), max(made) if domain else newest),), made[max(made)])
        for (domain, op), made in sorted(found.items())
    ]


def _made_of(schema: defs.OpSchema, opset: int) -> tuple[str, ...]:
    """IR operators that the definition becomes; none where it needs what is not supported."""
    if not has_function(schema.name, schema.domain, opset):
        return ()
    names = [f"x{k}" for k in range(schema.min_input)]
    node = helper.make_node(schema.name, names, ["y"], domain=schema.domain)
    try:
        body = function_body(node, schema.domain, opset, [TensorType(DType.F32, (2, 2, 2, 2))] * len(names))
    except (ValueError, DecodeError):  # it needs an attribute
        return ()
    emits: dict[str, None] = {}
    for inner in body.nodes:
        domain = "" if inner.domain == "ai.onnx" else inner.domain
        version = imports.version_at(domain, inner.op_type, body.opsets.get(domain, 1))
        row = imports.find(domain, inner.op_type, version)
        found = row.emits if row is not None else _made_of(defs.get_schema(inner.op_type, version, domain), version)
        if row is None and not found:
            return ()
        emits |= dict.fromkeys(found)
    return tuple(emits)


def _type_proto(given: TensorType | None) -> TypeProto:
    if given is None:
        return TypeProto()
    shape = [d if isinstance(d, int) else str(d) for d in given.shape]
    return helper.make_tensor_type_proto(_NUMBERS.get(given.dtype, TensorProto.UNDEFINED), shape)


def _free_names(graph: GraphProto) -> Iterator[str]:
    inside = {v.name for v in (*graph.initializer, *graph.input)} | {o for n in graph.node for o in n.output}
    for node in graph.node:
        yield from (i for i in node.input if i not in inside)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from (i for i in _free_names(inner) if i not in inside)
    yield from (o.name for o in graph.output if o.name not in inside)


@dataclass(frozen=True)
class _Renaming:
    """Copies nodes: outer names for formal ones, a prefix for inner ones, values for references to attributes."""

    place: str
    outer: Mapping[str, str]
    attributes: Mapping[str, AttributeProto]
    owner: str = ""  # whose the nodes are; that place where it is left out

    def name(self, inner: str) -> str:
        return self.outer.get(inner, f"{self.place}/{inner}") if inner else ""

    def nodes(self, nodes: Sequence[NodeProto]) -> Iterator[NodeProto]:
        for node in nodes:
            made = NodeProto()
            made.CopyFrom(node)
            made.name = self.owner or self.place
            del made.input[:], made.output[:], made.attribute[:]
            made.input.extend(map(self.name, node.input))
            made.output.extend(map(self.name, node.output))
            made.attribute.extend(a for given in node.attribute for a in self._attribute(given))
            yield made

    def _attribute(self, given: AttributeProto) -> Iterator[AttributeProto]:
        """Nothing where it refers to an attribute that the node does not have."""
        made = AttributeProto()
        if given.ref_attr_name:
            if given.ref_attr_name not in self.attributes:
                return
            made.CopyFrom(self.attributes[given.ref_attr_name])
            made.name = given.name
        else:
            made.CopyFrom(given)
            for graph in (*([made.g] if made.type == AttributeProto.GRAPH else []), *made.graphs):
                self._rename_graph(graph)
        yield made

    def _rename_graph(self, graph: GraphProto) -> None:
        nodes = list(self.nodes(graph.node))
        for inner, node in zip(nodes, graph.node, strict=True):
            inner.name = node.name
        del graph.node[:]
        graph.node.extend(nodes)
        for value in (*graph.input, *graph.output, *graph.initializer):
            value.name = self.name(value.name)
