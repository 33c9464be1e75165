"""The standard interface of an ONNX backend on opfuse, so that tools that speak it (onnx.backend.test) can run models.

    import opfuse.onnx_backend as backend
    prepared = backend.prepare(model_proto, "CPU", threads=2)     # options of opfuse.compile may follow
    (y,) = prepared.run([x])
    (y,) = backend.run_node(node_proto, [x])
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import IR_VERSION, ModelProto, NodeProto, TensorShapeProto, ValueInfoProto, defs, helper, numpy_helper
from onnx.backend.base import Backend, BackendRep, Device, DeviceType, namedtupledict

from opfuse.errors import InputError, OpfuseError, OptionError, UnsupportedOperators
from opfuse.frontends.onnx.load import load
from opfuse.pipeline import compile
from opfuse.runtime.executable import Executable

__all__ = ["OpfuseBackend", "PreparedModel", "is_compatible", "prepare", "run_model", "run_node", "supports_device"]

LARGEST_FIXED = 64  # numbers in an input that is compiled in: shapes, axes and pads are short


class PreparedModel(BackendRep):
    """A compiled model. Inputs whose numbers decide shapes or axes are compiled in: once for each value they come with.

    `executable` is what `opfuse.compile` gave last; None before the first run of a model with such inputs.
    """

    def __init__(self, model: ModelProto, options: Mapping[str, Any]) -> None:
        self._model, self._options = model, options
        self._names = [i.name for i in model.graph.input]
        self._required = [n for n in self._names if n not in {t.name for t in model.graph.initializer}]
        self._fixed: tuple[str, ...] = ()
        self._made: dict[tuple[bytes, ...], Executable] = {}
        self.executable: Executable | None = None
        try:
            self.executable = self._made[()] = compile(model, **options)
        except UnsupportedOperators as error:
            self._fixed = _inputs_to_fix(error)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Outputs in order, readable by name too. Inputs are a sequence in order, a mapping, or one array."""
        feeds = dict(self._named(inputs))
        while True:
            try:
                self.executable = self._for(feeds)
                outputs = self.executable({n: a for n, a in feeds.items() if n not in self._fixed})
                return namedtupledict("Outputs", list(outputs))(*outputs.values())
            except UnsupportedOperators as error:  # with those numbers known, others turn out to be needed
                self._fixed += _inputs_to_fix(error)

    def _named(self, inputs: Any) -> Iterable[tuple[str, Any]]:
        if isinstance(inputs, Mapping):
            return inputs.items()
        arrays = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        names = self._required if len(arrays) == len(self._required) else self._names
        if len(arrays) != len(names):
            problem = f"{len(arrays)} arrays were given, the model takes {len(names)}: {', '.join(names)}"
            raise InputError(names[0] if names else "-", problem, code="input-count")
        return zip(names, arrays, strict=True)

    def _for(self, feeds: Mapping[str, Any]) -> Executable:
        """The executable for the numbers in the fixed inputs."""
        if missing := [n for n in self._fixed if n not in feeds]:
            raise InputError(missing[0], "is missing", "pass it", code="input-missing")
        values = {n: np.asarray(feeds[n]) for n in self._fixed}
        for name, array in values.items():
            if array.size > LARGEST_FIXED:
                problem = f"shapes depend on its {array.size} numbers; up to {LARGEST_FIXED} are compiled in"
                raise InputError(name, problem, code="input-shape")
        key = tuple(n.encode() + str(a.shape).encode() + a.tobytes() for n, a in values.items())
        if key not in self._made:
            self._made[key] = compile(_with_constants(self._model, values), **self._options)
        return self._made[key]


def _inputs_to_fix(error: UnsupportedOperators) -> tuple[str, ...]:
    """Inputs that decide shapes; the error itself where it has another reason too."""
    needed = tuple(dict.fromkeys(n for e in error.entries for n in e.needs))
    if not needed or not all(e.needs or e.by_shapes for e in error.entries):
        raise error
    return needed


def _with_constants(model: ModelProto, values: Mapping[str, np.ndarray]) -> ModelProto:
    made = ModelProto()
    made.CopyFrom(model)
    kept = [i for i in made.graph.input if i.name not in values]
    del made.graph.input[:]
    made.graph.input.extend(kept)
    made.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in values.items())
    return made


class OpfuseBackend(Backend):
    """All of it are class methods, as the interface has it; the module has them as functions too."""

    @classmethod
    def is_compatible(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model can be imported; `prepare` says why not."""
        try:
            load(model)
        except UnsupportedOperators as error:
            return cls.supports_device(device) and all(e.needs or e.by_shapes for e in error.entries)
        except OpfuseError:
            return False
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        """Compile a model; keyword arguments are those of `opfuse.compile`. Raises its errors."""
        if not cls.supports_device(device):
            raise OptionError("device", f"{device!r} is not supported", "use CPU")
        return PreparedModel(model, kwargs)

    @classmethod
    def run_model(cls, model: ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Any, device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None, **kwargs: Any,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Run one node on arrays for its inputs, those left out ("") without one. `opset_version` selects its meaning.

        `outputs_info` is not needed: element types and shapes follow from the inputs.
        """
        opset = int(kwargs.pop("opset_version", defs.onnx_opset_version()))
        names = [i for i in node.input if i]
        if isinstance(inputs, Mapping):
            inputs = [inputs[n] for n in names]
        arrays = [np.asarray(i) for i in (inputs if isinstance(inputs, (list, tuple)) else [inputs])]
        values = [_declared(name, array) for name, array in zip(names, arrays, strict=True)]
        results = [ValueInfoProto(name=o) for o in node.output if o]
        graph = helper.make_graph([node], node.name or node.op_type, values, results)
        imported = [helper.make_opsetid("", opset), *([helper.make_opsetid(node.domain, 1)] if node.domain else [])]
        model = helper.make_model(graph, opset_imports=imported, ir_version=IR_VERSION)
        return cls.prepare(model, device, **kwargs).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        try:
            return bool(Device(device).type == DeviceType.CPU)
        except (AttributeError, ValueError):
            return False


def _declared(name: str, array: np.ndarray) -> ValueInfoProto:
    value = helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
    value.type.tensor_type.shape.CopyFrom(
        TensorShapeProto(dim=[TensorShapeProto.Dimension(dim_value=d) for d in array.shape])
    )
    return value


is_compatible = OpfuseBackend.is_compatible
prepare = OpfuseBackend.prepare
run_model = OpfuseBackend.run_model
run_node = OpfuseBackend.run_node
supports_device = OpfuseBackend.supports_device
