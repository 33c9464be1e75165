"""A model whose nodes can be imported only when the dimensions of its inputs are numbers.

    graph = OpenModel(read("model.onnx"))      # inputs and outputs, no nodes
    graph.bind({"height": 33, "width": 40})    # the whole graph

Linear interpolation to a size that is not a multiple, `SAME` padding with strides, an `If` on a shape: what such nodes
mean in the IR differs from shape to shape. Each set of shapes is imported by itself, when it comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from opfuse.frontends.onnx.load import declared_inputs, load
from opfuse.frontends.onnx.model_file import SourceModel
from opfuse.ir.dims import Bindings
from opfuse.ir.graph import Graph


class OpenModel(Graph):
    """`shapes` fixes the shapes of some inputs."""

    is_open: ClassVar[bool] = True

    def __init__(self, source: SourceModel, shapes: Mapping[str, Sequence[int]] | None = None) -> None:
        super().__init__(source.proto.graph.name or "model")
        self._source = source
        for name, (type_, default) in declared_inputs(source, shapes or {}).items():
            self.add_input(name, type_, default)
        self.set_outputs({o.name: o.name for o in source.proto.graph.output})

    def bind(self, values: Bindings) -> Graph:
        """The graph for these numbers; UnsupportedOperators for what is not supported with them either."""
        bound = [(i, self.types[i].bind(values)) for i in self.inputs if i not in self.defaults]
        graph = load(self._source, {i: type_.static_shape for i, type_ in bound if type_.static})
        graph.name = self.name
        return graph
