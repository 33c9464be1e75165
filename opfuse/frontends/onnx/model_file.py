"""From a path, bytes or a ModelProto to a model that is known to be well-formed, with functions inlined.

    read("model.onnx")  -> SourceModel(proto, name="model.onnx", folder=Path("."), opsets={"": 17})

Checked here: that it is ONNX at all, its versions, that every name is made once and before it is read (nodes may stand
in any order; a cycle is named), and each node against its operator's schema. Only nodes that some output needs stay.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    checker,
    defs,
    helper,
    inliner,
    shape_inference,
    version_converter,
)

from opfuse.errors import ModelError
from opfuse.frontends.onnx.imports import OLDEST_OPSET

EXPORT_AGAIN = "export the model again, or check it with `python -m onnx.checker`"


@dataclass(frozen=True)
class SourceModel:
    proto: ModelProto
    name: str  # how to call it in messages: the path, or "the model"
    folder: Path | None  # where its external data lie; None where it came without a path
    opsets: dict[str, int]  # "" is ONNX itself
    nodes: tuple[NodeProto, ...]  # those that outputs need, in topological order


def read(model: str | os.PathLike[str] | bytes | ModelProto) -> SourceModel:
    """The model, checked; ModelError says what is wrong with it. A ModelProto that is passed in is not changed."""
    proto, name, folder = _parse(model)
    if not proto.HasField("graph"):
        raise ModelError(name, "it is not an ONNX model: it holds no graph", "pass an .onnx file", code="not-onnx")
    if damaged := next((t for t in _texts(proto.graph) if not isinstance(t, str)), None):
        raise ModelError(
            name, f"it is damaged: a name in it is {damaged!r}", "export or download the model again", code="not-onnx"
        )
    opsets = _opsets(proto, name)
    if opsets[""] < OLDEST_OPSET:
        proto, opsets = _upgraded(proto, opsets, name), {**opsets, "": OLDEST_OPSET}
    if proto.functions:
        try:
            proto = inliner.inline_local_functions(proto)
        except Exception as error:  # the inliner raises plain exceptions of its C++ side
            raise ModelError(
                name, f"its functions cannot be inlined: {_line(error)}", EXPORT_AGAIN, code="bad-function"
            ) from error
    if not proto.graph.output:
        raise ModelError(name, "its graph has no outputs", EXPORT_AGAIN, code="no-outputs")
    nodes = _sorted(proto.graph, name)
    _check_nodes(nodes, proto, opsets, name)
    return SourceModel(proto, name, folder, opsets, nodes)


def node_name(node: NodeProto) -> str:
    """The user's name of a node; its first output where it has none."""
    return node.name or next((o for o in node.output if o), f"a {node.op_type} without outputs")


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


# ---- reading -------------------------------------------------------------------------------------------------------
def _parse(model: str | os.PathLike[str] | bytes | ModelProto) -> tuple[ModelProto, str, Path | None]:
    if isinstance(model, ModelProto):
        return model, "the model", None
    if isinstance(model, (bytes, bytearray, memoryview)):
        return _decode(bytes(model), "the model"), "the model", None
    if not isinstance(model, (str, os.PathLike)):
        raise TypeError(f"a model is a path, bytes or an onnx.ModelProto, not {type(model).__name__}")
    path = Path(model)
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise ModelError(str(path), "there is no such file", "check the path", code="no-file") from error
    except OSError as error:
        raise ModelError(
            str(path), f"it cannot be read: {error.strerror}", "check the path", code="unreadable"
        ) from error
    return _decode(data, str(path)), str(path), path.parent


def _decode(data: bytes, name: str) -> ModelProto:
    if not data:
        raise ModelError(name, "the file is empty", "export or download the model again", code="empty-file")
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        text = "it is not an ONNX model, or it is truncated"
        raise ModelError(name, text, "export or download the model again", code="not-onnx") from error
    return proto


def _opsets(proto: ModelProto, name: str) -> dict[str, int]:
    if proto.ir_version > onnx.IR_VERSION:
        text = f"it has IR version {proto.ir_version}, and the onnx package here knows versions up to {onnx.IR_VERSION}"
        raise ModelError(name, text, "install a newer onnx package", code="too-new")
    opsets: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if opsets.setdefault(domain, entry.version) != entry.version:
            raise ModelError(
                name, f"it imports two versions of the domain {domain or 'ai.onnx'!r}", EXPORT_AGAIN, code="bad-opset"
            )
    opset = opsets.get("", 1 if proto.ir_version < 3 else OLDEST_OPSET)  # IR versions 1 and 2 mean opset 1
    newest = int(defs.onnx_opset_version())
    if opset > newest:
        text = f"it has opset {opset}, and the onnx package here knows opsets up to {newest}"
        raise ModelError(name, text, "install a newer onnx package, or export with an older opset", code="too-new")
    return {**opsets, "": opset}


def _upgraded(proto: ModelProto, opsets: dict[str, int], name: str) -> ModelProto:
    """A model of an opset before the import table's first one, by ONNX's own converter."""
    stamped = ModelProto()
    stamped.CopyFrom(proto)
    if not any(e.domain in ("", "ai.onnx") for e in stamped.opset_import):
        stamped.opset_import.append(helper.make_opsetid("", opsets[""]))
    try:
        _spread_slopes(stamped)
        return version_converter.convert_version(stamped, OLDEST_OPSET)
    except Exception as error:  # the converter raises plain exceptions of its C++ side
        reason = _line(error).rpartition("failed: ")[2]
        text = f"it has opset {opsets['']}, and ONNX's converter does not bring it to {OLDEST_OPSET}: {reason}"
        raise ModelError(name, text, "export the model again with a newer opset", code="too-old") from error


def _spread_slopes(proto: ModelProto) -> None:
    """Slopes of PRelu were one for each channel before opset 7, and align with the last axis since: ONNX's converter
    leaves them as they are. ValueError where the rank of an input is not known."""
    graph = shape_inference.infer_shapes(proto).graph
    shapes = {v.name: v.type.tensor_type.shape for v in (*graph.input, *graph.value_info, *graph.output)}
    ranks = {name: len(shape.dim) for name, shape in shapes.items()} | {t.name: len(t.dims) for t in graph.initializer}
    nodes = []
    for node in proto.graph.node:
        if node.op_type == "PRelu":
            if not {node.input[0], node.input[1]} <= set(ranks):
                raise ValueError(f"the rank of an input of {node_name(node)!r} is not known")
            axes = range(1, ranks[node.input[0]] - 1)
            if ranks[node.input[1]] == 1 and axes:
                spread = f"{node.output[0]}/slope"
                nodes.append(helper.make_node("Unsqueeze", [node.input[1]], [spread], node_name(node), axes=list(axes)))
                node.input[1] = spread
        nodes.append(node)
    if len(nodes) > len(proto.graph.node):
        copies = [NodeProto.FromString(n.SerializeToString()) for n in nodes]
        del proto.graph.node[:]
        proto.graph.node.extend(copies)


def _texts(graph: GraphProto) -> Iterator[object]:
    """Names that the import reads: protobuf hands out bytes for text that is not UTF-8."""
    yield graph.name
    for value in (*graph.input, *graph.output):
        yield value.name
        yield from (d.dim_param for d in value.type.tensor_type.shape.dim)
    for tensor in (*graph.initializer, *(s.values for s in graph.sparse_initializer)):
        yield tensor.name
        yield from (text for e in tensor.external_data for text in (e.key, e.value))
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (a.name for a in node.attribute)
        for inner in subgraphs(node):
            yield from _texts(inner)


# ---- order ---------------------------------------------------------------------------------------------------------
def _reads(node: NodeProto) -> list[str]:
    """Names that the node reads, its subgraphs' outer names among them."""
    found = dict.fromkeys(i for i in node.input if i)
    for graph in subgraphs(node):
        found |= dict.fromkeys(_free_names(graph))
    return list(found)


def _free_names(graph: GraphProto) -> list[str]:
    inside = {i.name for i in graph.input} | {i.name for i in graph.initializer}
    inside |= {s.values.name for s in graph.sparse_initializer} | {o for n in graph.node for o in n.output}
    read = [i for n in graph.node for i in _reads(n)] + [o.name for o in graph.output]
    return [i for i in dict.fromkeys(read) if i not in inside]


def _sorted(graph: GraphProto, model: str) -> tuple[NodeProto, ...]:
    """The nodes that outputs need, each after all that it reads; in the order of the file where that is possible."""
    given = [*(i.name for i in graph.input), *(i.name for i in graph.initializer)]
    given += [s.values.name for s in graph.sparse_initializer]
    known = set(given)
    makers: dict[str, int] = {}
    for k, node in enumerate(graph.node):
        for output in (o for o in node.output if o):
            if output in makers and not _both_constants(graph.node[makers[output]], node):
                text = f"it makes the value {output!r}, which {node_name(graph.node[makers[output]])!r} makes too"
                raise ModelError(model, text, EXPORT_AGAIN, node=node_name(node), code="duplicate-value")
            if output in known:
                text = f"it makes the value {output!r}, which is an input or initialiser already"
                raise ModelError(model, text, EXPORT_AGAIN, node=node_name(node), code="duplicate-value")
            makers[output] = k
    for output in graph.output:
        if output.name not in known and output.name not in makers:
            raise ModelError(model, f"nothing makes its output {output.name!r}", EXPORT_AGAIN, code="undefined-value")
    order = _depth_first(graph, [makers[o.name] for o in graph.output if o.name in makers], makers, known, model)
    return tuple(graph.node[k] for k in order)


def _both_constants(one: NodeProto, other: NodeProto) -> bool:
    """Tools that edit a model append a constant of an old name; of two, the later counts (as in ONNX Runtime)."""
    return one.op_type == other.op_type == "Constant"


def _depth_first(
    graph: GraphProto, roots: Sequence[int], makers: dict[str, int], known: set[str], model: str
) -> list[int]:
    needs: dict[int, list[int]] = {}
    done: set[int] = set()
    path: dict[int, None] = {}  # nodes on the way from a root, in order
    order: list[int] = []
    stack = list(roots)
    while stack:
        k = stack[-1]
        if k in done:
            stack.pop()
            continue
        if k not in needs:
            needs[k] = _makers_of(graph.node[k], makers, known, model)
        path[k] = None
        waiting = [m for m in needs[k] if m not in done]
        if waiting and waiting[0] in path:
            _raise_cycle(graph, list(path), waiting[0], model)
        if waiting:
            stack.append(waiting[0])
            continue
        done.add(k)
        del path[k]
        order.append(k)
        stack.pop()
    return sorted(order) if _is_ordered(sorted(order), needs) else order


def _is_ordered(order: list[int], needs: dict[int, list[int]]) -> bool:
    """Whether the file's own order is a topological one."""
    return all(m < k for k in order for m in needs[k])


def _makers_of(node: NodeProto, makers: dict[str, int], known: set[str], model: str) -> list[int]:
    found = []
    for name in _reads(node):
        if name in makers:
            found.append(makers[name])
        elif name not in known:
            raise ModelError(
                model,
                f"it reads {name!r}, which nothing makes",
                EXPORT_AGAIN,
                node=node_name(node),
                code="undefined-value",
            )
    return found


def _raise_cycle(graph: GraphProto, path: list[int], first: int, model: str) -> None:
    names = [node_name(graph.node[k]) for k in path[path.index(first) :]]
    text = f"its result is needed to compute it: {' -> '.join([*names, names[0]][:6])}"
    raise ModelError(model, text, EXPORT_AGAIN, node=names[0], code="cycle")


# ---- nodes ---------------------------------------------------------------------------------------------------------
def _check_nodes(nodes: Sequence[NodeProto], proto: ModelProto, opsets: dict[str, int], model: str) -> None:
    """Number of inputs and outputs, names and kinds of attributes, by ONNX's own checker.

    Left out are constants, which it would copy; other domains, whose schemas it does not have; and operators that are
    deprecated or unknown to it, which the import table answers for.
    """
    context = checker.C.CheckerContext()
    context.ir_version = proto.ir_version or onnx.IR_VERSION
    context.opset_imports = {"": opsets[""]}
    for node in nodes:
        if node.domain not in ("", "ai.onnx") or node.op_type == "Constant" or any(True for _ in subgraphs(node)):
            continue
        if not defs.has(node.op_type) or _schema_is_missing(node.op_type, opsets[""]):
            continue
        try:
            checker.check_node(node, context)
        except checker.ValidationError as error:
            raise ModelError(model, _line(error), EXPORT_AGAIN, node=node_name(node), code="bad-node") from error


def _schema_is_missing(op: str, opset: int) -> bool:
    try:
        return bool(defs.get_schema(op, opset, "").deprecated)
    except defs.SchemaError:
        return True


def _line(error: Exception) -> str:
    """The first line of an error of ONNX's C++ side, without its place in the source."""
    return str(error).strip().splitlines()[0].split("==>")[0].strip().rstrip(".")
