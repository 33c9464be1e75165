"""ONNX -> Graph: walk the nodes in order, import each, cut the shape arithmetic out.

    graph = load("model.onnx")                          # dimensions that are not numbers stay symbols
    graph = load("model.onnx", {"x": (1, 3, 32, 32)})   # shapes of inputs given

All that cannot be imported is reported in one `UnsupportedOperators`; a broken model is one `ModelError`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from onnx import ModelProto, NodeProto, defs

from opfuse.errors import InputError, ModelError, UnsupportedOperator, UnsupportedOperators
from opfuse.frontends.onnx import imports
from opfuse.frontends.onnx.call import GIVE_SHAPES, Call, InvalidNode, Unsupported, inputs_behind
from opfuse.frontends.onnx.equal_dims import EqualDims
from opfuse.frontends.onnx.functions import Inlined, branch, function_body, has_function
from opfuse.frontends.onnx.imports.definition import Import
from opfuse.frontends.onnx.loops import steps_of
from opfuse.frontends.onnx.model_file import EXPORT_AGAIN, SourceModel, node_name, read, subgraphs
from opfuse.frontends.onnx.shapes import Contents
from opfuse.frontends.onnx.types import (
    ElementTypeError,
    SymbolNames,
    TensorDataError,
    onnx_name,
    sparse_array,
    tensor_array,
)
from opfuse.ir.dims import Dim, SymbolicDim, bind, dims_text
from opfuse.ir.graph import Graph
from opfuse.ir.types import TensorType

_WAYS_OUT = {
    "no-folder": "load the model by its path",
    "external-data-missing": "put the file with the weights beside the model",
    "external-data-truncated": "export or download the file with the weights again",
}
_CONTROL_FLOW = ("If", "Loop", "Scan")


def load(model: str | os.PathLike[str] | bytes | ModelProto | SourceModel,
         shapes: Mapping[str, Sequence[int]] | None = None) -> Graph:  # fmt: skip
    """The model as a graph. `shapes` fixes the shapes of inputs; dimensions that are not fixed stay symbols.

    Initialisers that are inputs too become inputs with a default, unless a shape in the model depends on their numbers:
    those are constants. Raises ModelError, UnsupportedOperators, or InputError for `shapes` that do not fit.
    """
    source = model if isinstance(model, SourceModel) else read(model)
    missing = list[UnsupportedOperator]()
    inputs = _input_types(source, missing)
    initialisers = _initialisers(source)
    equal = _fixed_symbols(inputs, shapes or {})
    while True:
        try:
            return _Walk(source, _substituted(inputs, equal), initialisers, missing).run()
        except EqualDims as found:  # each turn removes one symbol
            equal = {name: _substitute(d, {found.symbol: found.value}) for name, d in equal.items()}
            equal[found.symbol] = found.value


def declared_inputs(
    source: SourceModel, shapes: Mapping[str, Sequence[int]]
) -> dict[str, tuple[TensorType, np.ndarray | None]]:
    """Inputs with their types and defaults, before any node is looked at; `shapes` as in `load`."""
    missing = list[UnsupportedOperator]()
    types = _input_types(source, missing)
    if missing:
        raise UnsupportedOperators(source.name, missing)
    defaults = _initialisers(source)
    types = _substituted(types, _fixed_symbols(types, shapes))
    return {n: (_with_default(t, defaults.get(n)), defaults.get(n)) for n, t in types.items()}


def _with_default(type_: TensorType, default: np.ndarray | None) -> TensorType:
    return type_ if default is None else TensorType(type_.dtype, default.shape)


# ---- what stands around the nodes ----------------------------------------------------------------------------------
def _input_types(source: SourceModel, missing: list[UnsupportedOperator]) -> dict[str, TensorType]:
    """Types of the graph's inputs, in order; those that the IR does not have are added to `missing`."""
    graph = source.proto.graph
    names, types = SymbolNames([*graph.input, *graph.output]), {}
    for value in graph.input:
        if value.name in types:
            raise ModelError(
                source.name, f"it has two inputs of the name {value.name!r}", EXPORT_AGAIN, code="duplicate-value"
            )
        try:
            types[value.name] = names.tensor_type(value)
        except ElementTypeError as error:
            missing.append(
                UnsupportedOperator(f"input {value.name!r}", value.type.WhichOneof("value") or "unknown", str(error))
            )
        except ValueError as error:
            raise ModelError(source.name, f"its input {value.name!r} cannot be used: {error}",
                             "export the model with the ranks of its inputs", code="no-rank") from error  # fmt: skip
    return types


def _initialisers(source: SourceModel) -> dict[str, np.ndarray]:
    """The model's tensors that some node or output needs."""
    graph, out = source.proto.graph, dict[str, np.ndarray]()
    needed = {i for n in source.nodes for i in _reads(n)} | {v.name for v in (*graph.output, *graph.input)}
    dense = [(t.name, t, tensor_array) for t in graph.initializer]
    sparse = [(s.values.name, s, sparse_array) for s in graph.sparse_initializer]
    for name, tensor, decode in [*dense, *sparse]:
        if name in out:
            raise ModelError(
                source.name, f"it has two initialisers of the name {name!r}", EXPORT_AGAIN, code="duplicate-value"
            )
        if name not in needed:
            continue
        try:
            out[name] = decode(tensor, source.folder)
        except TensorDataError as error:
            way_out = _WAYS_OUT.get(error.code, EXPORT_AGAIN)
            raise ModelError(source.name, f"initialiser {name!r}: {error}", way_out, code=error.code) from error
        except ElementTypeError as error:
            entry = UnsupportedOperator(f"initialiser {name!r}", "tensor", str(error))
            raise UnsupportedOperators(source.name, [entry]) from error
    return out


def _reads(node: NodeProto) -> Iterator[str]:
    yield from node.input
    for graph in subgraphs(node):
        for inner in graph.node:
            yield from _reads(inner)


def _fixed_symbols(inputs: Mapping[str, TensorType], shapes: Mapping[str, Sequence[int]]) -> dict[str, Dim]:
    """Symbol -> number, from shapes of inputs; InputError where a shape does not fit."""
    equal: dict[str, Dim] = {}
    for name, shape in shapes.items():
        declared = inputs.get(name)
        if declared is None:
            raise InputError(
                name, "the model has no such input", f"its inputs are {', '.join(map(repr, inputs))}", code="no-input"
            )
        text = f"shape [{dims_text(shape)}] does not fit [{dims_text(declared.shape)}]"
        if len(shape) != declared.rank:
            raise InputError(name, text, f"give {declared.rank} numbers", code="bad-shape")
        for d, number in zip(declared.shape, shape, strict=True):
            if isinstance(d, int) and d != number:
                raise InputError(name, f"{text}: {number} stands where the model has {d}", code="bad-shape")
            if equal.setdefault(str(d), int(number)) != number:
                raise InputError(name, f"{text}: {d} is {equal[str(d)]} already",
                                 "dimensions of one name must be equal", code="bad-shape")  # fmt: skip
    return equal


def _substitute(d: Dim, values: Mapping[str, Dim]) -> Dim:
    return bind(d, values)  # type: ignore[arg-type]  # a symbol may stand for another one, too


def _substituted(inputs: Mapping[str, TensorType], equal: Mapping[str, Dim]) -> dict[str, TensorType]:
    return {n: TensorType(t.dtype, tuple(_substitute(d, equal) for d in t.shape)) for n, t in inputs.items()}


# ---- which operators there are -------------------------------------------------------------------------------------
def _domain(node: NodeProto) -> str:
    return "" if node.domain == "ai.onnx" else str(node.domain)


def _row(opsets: Mapping[str, int], node: NodeProto) -> tuple[Import | None, int]:
    domain = _domain(node)
    version = imports.version_at(domain, node.op_type, opsets.get(domain, 1))
    return imports.find(domain, node.op_type, version), version


def _operator_text(opsets: Mapping[str, int], node: NodeProto) -> str:
    domain = _domain(node)
    return f"{domain + '::' if domain else ''}{node.op_type}-{_row(opsets, node)[1]}"


def _is_defined_by_others(opsets: Mapping[str, int], node: NodeProto) -> bool:
    return has_function(node.op_type, _domain(node), opsets.get(_domain(node), 1))


def _without_import(opsets: Mapping[str, int], node: NodeProto, place: str = "") -> Iterator[UnsupportedOperator]:
    """The node and those of its subgraphs, as far as nothing here knows them."""
    if _row(opsets, node)[0] is None and not _is_defined_by_others(opsets, node):
        known = any(row.op == node.op_type and row.domain == _domain(node) for row in imports.table().values())
        reason = "this version is not supported" if known else "this operator is not supported"
        if node.op_type in _CONTROL_FLOW:
            reason = "control flow is not supported"
        if node.op_type == "If":
            reason += ", and its condition is not known"
        yield UnsupportedOperator(place + node_name(node), _operator_text(opsets, node), reason)
    for graph in subgraphs(node):
        for inner in graph.node:
            yield from _without_import(opsets, inner, f"{place}{node_name(node)}/")


# ---- the walk ------------------------------------------------------------------------------------------------------
class _Walk:
    """One pass over the nodes. `values` maps the model's names to IR values; None stands for what could not be made."""

    def __init__(self, source: SourceModel, inputs: Mapping[str, TensorType], initialisers: Mapping[str, np.ndarray],
                 missing: Sequence[UnsupportedOperator]) -> None:  # fmt: skip
        self.source, self.inputs, self.initialisers = source, inputs, initialisers
        self.missing = list(missing)
        self.graph = Graph(source.proto.graph.name or "model")
        self.contents = Contents(self.graph)
        self.values: dict[str, str | None] = {}
        self.named: set[str] = set()  # IR values that bear a name of the model
        self.wanted = {o.name for o in source.proto.graph.output} | {i for n in source.nodes for i in _reads(n)}

    def run(self) -> Graph:
        self._place_inputs()
        for node in self.source.nodes:
            self._import(node, self.source.opsets)
        if self.missing:
            raise UnsupportedOperators(self.source.name, self.missing)
        self._place_outputs()
        self.contents.materialise()
        return self.graph

    def _fail(self, problem: str, code: str, node: NodeProto | None = None) -> ModelError:
        return ModelError(
            self.source.name, problem, EXPORT_AGAIN, node=node_name(node) if node is not None else "", code=code
        )

    def _place_inputs(self) -> None:
        for value in self.source.proto.graph.input:
            type_, default = self.inputs.get(value.name), self.initialisers.get(value.name)
            if type_ is None:
                self.values[value.name] = None
                continue
            if default is not None and default.dtype != type_.dtype.numpy:
                raise self._fail(
                    f"initialiser {value.name!r} is {default.dtype}, and is declared {type_.dtype.value}", "ill-typed"
                )
            self.graph.add_input(value.name, _with_default(type_, default), default)
            self._name(value.name, value.name)
        for name, array in self.initialisers.items():
            if name not in self.values:
                self._name(name, self.graph.add_constant(array, name))

    def _name(self, name: str, value: str) -> None:
        self.values[name] = value
        self.named.add(value)

    def _import(self, node: NodeProto, opsets: Mapping[str, int]) -> None:
        row, version = _row(opsets, node)
        inputs = [self.values[i] if i else None for i in node.input]
        is_known = all(v is not None or not i for v, i in zip(inputs, node.input, strict=True))
        if row is None:
            inlined = self._inlined(node, inputs, opsets) if is_known else None
            if inlined is not None:
                self._import_inlined(node, inlined, opsets)
                return
            if is_known and node.op_type in ("Loop", "Scan"):
                self._import_steps(node, inputs, opsets)
                return
            self.missing += self._why_none(node, opsets)
        if row is None or not is_known:
            self.values |= dict.fromkeys((o for o in node.output if o), None)
            return
        call = Call(
            self.graph, self.contents, node, version, opsets[""], tuple(inputs), node_name(node),
            self.source.folder, tuple(bool(o) and o in self.wanted for o in node.output),
        )  # fmt: skip
        try:
            self._check_types(node, inputs, opsets)
            results = row.function(call)
        except Unsupported as reason:
            self._decline(node, opsets, str(reason), reason.needs, reason.by_shapes)
        except InvalidNode as error:
            raise self._fail(str(error), error.code, node) from error
        except ValueError as error:  # the shape rule of an IR operator, or of a resolved attribute
            if not any(isinstance(d, SymbolicDim) for i in inputs if i for d in self.graph.types[i].shape):
                raise self._fail(_without_node(str(error)), "ill-typed", node) from error
            self._decline(node, opsets, f"{_without_node(str(error))}; {GIVE_SHAPES}", by_shapes=True)
        else:
            self._name_results(node, results if isinstance(results, tuple) else (results,))

    def _inlined(self, node: NodeProto, inputs: Sequence[str | None], opsets: Mapping[str, int]) -> Inlined | None:
        """Nodes that can be imported in place of this one; None where there are none."""
        if _is_defined_by_others(opsets, node):
            types = [None if i is None else self.graph.types[i] for i in inputs]
            return function_body(node, _domain(node), opsets.get(_domain(node), 1), types)
        condition = self.contents.array(inputs[0]) if node.op_type == "If" and inputs[0] is not None else None
        if condition is None or condition.size != 1:
            return None
        wanted = "then_branch" if condition.reshape(-1)[0] else "else_branch"
        return next((branch(node, a.g) for a in node.attribute if a.name == wanted), None)

    def _import_inlined(self, node: NodeProto, inlined: Inlined, opsets: Mapping[str, int]) -> None:
        self.wanted |= {i for n in inlined.nodes for i in _reads(n)}
        self.values |= dict.fromkeys((o for n in inlined.nodes for o in n.output if o), None)
        for inner in inlined.nodes:
            self._import(inner, {**opsets, **inlined.opsets})

    def _why_none(self, node: NodeProto, opsets: Mapping[str, int]) -> list[UnsupportedOperator]:
        """What stands in the way of a node without an import; of an `If` on shapes nothing but the open dimensions."""
        if node.op_type != "If" or not node.input:
            return list(_without_import(opsets, node))
        condition = self.values[node.input[0]]
        if condition is None:  # what it follows from was declined: nothing is known of the branches yet
            return []
        if (needs := inputs_behind(self.graph, condition)) or not self.graph.symbols:
            entry, *inner = _without_import(opsets, node)
            return [replace(entry, needs=needs), *inner]
        reason = f"its condition depends on input shapes; {GIVE_SHAPES}"
        return [UnsupportedOperator(node_name(node), _operator_text(opsets, node), reason, by_shapes=True)]

    def _import_steps(self, node: NodeProto, inputs: Sequence[str | None], opsets: Mapping[str, int]) -> None:
        """A loop written out, as many steps as there are known to be."""
        call = Call(self.graph, self.contents, node, _row(opsets, node)[1], opsets[""], tuple(inputs), node_name(node))
        known = len(self.missing)
        try:
            steps = steps_of(call)
            inlined, condition = next(steps)
            while True:
                self._import_inlined(node, inlined, opsets)
                if len(self.missing) > known:
                    break
                inlined, condition = steps.send(call.truth(self.values[condition]) if condition else True)
        except StopIteration:
            return
        except Unsupported as reason:
            self._decline(node, opsets, str(reason), reason.needs, reason.by_shapes)
        except InvalidNode as error:
            raise self._fail(str(error), error.code, node) from error
        self.values |= dict.fromkeys((o for o in node.output if o), None)

    def _decline(
        self, node: NodeProto, opsets: Mapping[str, int], reason: str, needs: Sequence[str] = (),
        by_shapes: bool = False,
    ) -> None:  # fmt: skip
        entry = UnsupportedOperator(node_name(node), _operator_text(opsets, node), reason, tuple(needs), by_shapes)
        self.missing.append(entry)
        self.values |= dict.fromkeys((o for o in node.output if o), None)

    def _name_results(self, node: NodeProto, results: Sequence[str | None]) -> None:
        for name, value in zip(node.output, results, strict=False):
            if not name or value is None:
                continue
            if value in self.named:  # one more name for a value that has one
                self.values[name] = value
                continue
            if name in self.graph.types and name != value:  # an intermediate value happens to have this name
                self.graph.rename(name, self.graph.fresh(name))
            if name != value:
                self.contents.rename(value, name)
                self.graph.rename(value, name)
            self._name(name, name)

    def _check_types(self, node: NodeProto, inputs: Sequence[str | None], opsets: Mapping[str, int]) -> None:
        """Element types against the operator's schema: allowed, and equal where one letter stands for both."""
        try:
            schema = defs.get_schema(node.op_type, opsets[""], _domain(node))
        except defs.SchemaError:
            return
        bound: dict[str, str] = {}
        for k, value in enumerate(inputs):
            if value is None or not schema.inputs:
                continue
            formal, text = schema.inputs[min(k, len(schema.inputs) - 1)], onnx_name(self.graph.types[value].dtype)
            if text not in formal.types:
                taker = _operator_text(opsets, node)
                raise InvalidNode(f"its input {node.input[k]!r} is {text}, which {taker} does not take", "ill-typed")
            if formal.is_homogeneous and bound.setdefault(formal.type_str, text) != text:
                other = bound[formal.type_str]
                raise InvalidNode(
                    f"its input {node.input[k]!r} is {text}, and must be {other} like others", "ill-typed"
                )

    def _place_outputs(self) -> None:
        outputs = {}
        for declared in self.source.proto.graph.output:
            value = self.values.get(declared.name)
            if value is None:
                raise self._fail(f"nothing makes its output {declared.name!r}", "undefined-value")
            outputs[declared.name] = value
            expected = declared.type.tensor_type.elem_type
            made = self.graph.types[value].dtype
            if expected and _type_name(expected) != onnx_name(made):
                raise self._fail(
                    f"its output {declared.name!r} is declared {_type_name(expected)}, and is {onnx_name(made)}",
                    "ill-typed",
                )
        self.graph.set_outputs(outputs)


def _type_name(element: int) -> str:
    from onnx import TensorProto

    known = element in TensorProto.DataType.values()
    return f"tensor({TensorProto.DataType.Name(element).lower()})" if known else f"tensor(number {element})"


def _without_node(text: str) -> str:
    """The message of an IR rule without the name of the node, which the error around it tells."""
    return text.split("): ", 1)[1] if text.startswith("node ") and "): " in text else text
