"""What the user holds: a model that takes named arrays of any shape that it allows and compiles for each set of shapes.

    exe = Executable(graph, options, build)
    exe(x=array) -> {"y": array};   exe.run([array]) -> [array];   exe.variants -> {Variant: CompiledModel}

Shapes given in the options are compiled for at once; others when they first come. An input with a default (an
initialiser that is also an input) is a constant of the variant unless it is fed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from opfuse.errors import InputError, OpfuseError
from opfuse.ir.graph import Graph
from opfuse.ir.ops.definition import OperatorError
from opfuse.ir.types import DType, TensorType
from opfuse.options import Options
from opfuse.runtime.archive import Variant, write_archive
from opfuse.runtime.feeds import read_array
from opfuse.runtime.interface import InputSpec, Interface
from opfuse.runtime.model import CompiledModel

Build = Callable[[Graph], CompiledModel]
Arrays = Mapping[str, Any]


class Reports(Protocol):
    """What `explain` and `verify` of an executable call; passed in, since reports stand above this layer."""

    def explain(self, executable: Executable) -> Any: ...

    def measure(self, executable: Executable) -> None: ...

    def verify(self, executable: Executable, **options: Any) -> Any: ...

    def profile(self, executable: Executable, **options: Any) -> Any: ...


@dataclass(frozen=True)
class _Source:
    """What new variants are built from; an executable that was loaded from a file has none."""

    graph: Graph
    build: Build


class Executable:
    """Callable; see the module's text. Safe to call from several Python threads."""

    def __init__(self, graph: Graph, options: Options, build: Build, *, reports: Reports | None = None) -> None:
        self._start(Interface.of(graph), options, _Source(graph, build), {}, reports)
        bindings = self.interface.bindings(options.shapes)
        if all(s in bindings for s in self.interface.symbols):
            self._variant(Variant(tuple(sorted(bindings.items())), ()))

    @staticmethod
    def of_variants(
        interface: Interface, options: Options, variants: Mapping[Variant, CompiledModel],
        reports: Reports | None = None, stored_graph: Callable[[], Graph] | None = None,
    ) -> Executable:  # fmt: skip
        """An executable of compiled models alone, as a file holds it: it runs for their shapes and builds nothing.

        `stored_graph` makes the graph that they were compiled from, where the file holds it.
        """
        made = object.__new__(Executable)
        made._start(interface, options, None, dict(variants), reports)
        made._stored_graph = stored_graph
        return made

    def _start(
        self, interface: Interface, options: Options, source: _Source | None, variants: dict[Variant, CompiledModel],
        reports: Reports | None,
    ) -> None:  # fmt: skip
        self.interface, self.options = interface, options
        self._source, self._variants, self._reports = source, variants, reports
        self._stored_graph: Callable[[], Graph] | None = None
        self._names = [i.name for i in interface.inputs]
        self._required = [i.name for i in interface.inputs if not i.optional]
        self._by_shapes: dict[tuple[Any, ...], tuple[CompiledModel, list[str]]] = {}
        self._fixed = not interface.symbols and self._required == self._names
        self._only: CompiledModel | None = None
        self._lock = threading.Lock()
        for variant in variants:
            self._variant(variant)

    # ---- what it is -------------------------------------------------------------------------------------------------
    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        return self.interface.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.interface.outputs

    @property
    def graph(self) -> Graph | None:
        """The graph as imported, symbolic; None where the executable was loaded from a file."""
        return self._source.graph if self._source else None

    def reference_graph(self) -> Graph | None:
        """What to compare answers with: the graph as imported, or the one that a file keeps for this."""
        if self._source is None and self._stored_graph is not None:
            return self._stored_graph()
        return self.graph

    @property
    def variants(self) -> dict[Variant, CompiledModel]:
        """The compiled models so far, by what their symbols are bound to."""
        return dict(self._variants)

    @property
    def model(self) -> CompiledModel:
        """The compiled model, the newest where there are several; an error says what is needed where there is none."""
        if not self._variants:
            raise InputError(
                self._required[0] if self._required else "-",
                f"the dimensions {', '.join(self.interface.symbols)} are not bound, so nothing is compiled yet",
                "give shapes (--shape NAME=1x3x224x224, shapes={...}) or call the model once", code="unbound",
            )  # fmt: skip
        return next(reversed(self._variants.values()))

    # ---- calling ----------------------------------------------------------------------------------------------------
    def __call__(self, feeds: Arrays | None = None, /, **named: Any) -> dict[str, np.ndarray]:
        """Outputs by name. Inputs are keyword arguments, or a mapping where a name is no Python identifier."""
        given = named if feeds is None else {**self._mapping(feeds), **named}
        model = self._only
        if model is not None and len(given) == len(self._names):
            try:
                arrays = [given[n] for n in self._names]
            except KeyError:
                raise self._unknown(given) from None
            return dict(zip(self.interface.outputs, model.run(arrays), strict=True))
        model, order, arrays_by_name = self._prepare(given)
        return dict(zip(self.interface.outputs, model.run([arrays_by_name[n] for n in order]), strict=True))

    def _mapping(self, feeds: Any) -> Arrays:
        if isinstance(feeds, Mapping):
            return feeds
        name = self._names[0] if self._names else "-"
        problem = f"an object of type {type(feeds).__name__} is given where input names belong to the arrays"
        raise InputError(name, problem, f"call it with {name}=array, or use run([...])", code="input-type")

    def run(self, arrays: Sequence[Any]) -> list[np.ndarray]:
        """Outputs in order, for inputs in order; inputs with a default may be left out (all of them) or be None."""
        if not isinstance(arrays, Sequence):
            name = self._names[0] if self._names else "-"
            raise InputError(name, f"run takes a list of arrays, not {type(arrays).__name__}", code="input-type")
        if self._only is not None:
            return self._only.run(arrays)
        names = self._required if len(arrays) == len(self._required) else self._names
        if len(arrays) != len(names):
            problem = f"{len(arrays)} arrays were given, the model takes {len(self._names)}: {self.interface.listed()}"
            raise InputError(self._names[0] if self._names else "-", problem, code="input-count")
        given = {n: a for n, a in zip(names, arrays, strict=True) if a is not None}
        return list(self(given).values())

    def _prepare(self, given: Arrays) -> tuple[CompiledModel, list[str], dict[str, np.ndarray]]:
        """The model for these feeds, the order of its inputs, and the feeds as arrays."""
        arrays = {}
        for spec in self.interface.inputs:
            if spec.name in given:
                arrays[spec.name] = read_array(spec.name, given[spec.name], spec.dtype)
        if len(arrays) != len(given) or any(n not in arrays for n in self._required):
            raise self._unknown(given)
        key = tuple((n, a.shape) for n, a in arrays.items())
        found = self._by_shapes.get(key)
        if found is None:
            found = self._by_shapes[key] = self._model_for(arrays)
        return *found, arrays

    def _model_for(self, arrays: Mapping[str, np.ndarray]) -> tuple[CompiledModel, list[str]]:
        bindings = self.interface.bindings({n: a.shape for n, a in arrays.items()})
        fed = tuple(n for n in arrays if n not in self._required)
        model = self._variant(Variant(tuple(sorted(bindings.items())), fed))
        return model, [p.name for p in model.plan.inputs]

    def _unknown(self, given: Arrays) -> InputError:
        for name in given:
            if name not in self._names:
                return InputError(name, "the model has no such input", f"its inputs are {self.interface.listed()}",
                                  code="input-unknown")  # fmt: skip
        missing = next(n for n in self._required if n not in given)
        return InputError(missing, f"is missing: {self.interface.spec(missing)}", "pass it", code="input-missing")

    # ---- building ---------------------------------------------------------------------------------------------------
    def _variant(self, variant: Variant) -> CompiledModel:
        with self._lock:
            if variant not in self._variants:
                if self._source is None:
                    raise self._not_stored(variant)
                self._variants[variant] = self._source.build(self._specialised(self._source.graph, variant))
            model = self._variants[variant]
        if self._fixed and [p.name for p in model.plan.inputs] == self._names:
            self._only = model
        return model

    def _specialised(self, graph: Graph, variant: Variant) -> Graph:
        try:
            return specialise(graph, variant)
        except OperatorError as error:
            problem = f"these shapes do not fit the model ({variant}): {error}"
            raise InputError(self._names[0] if self._names else "-", problem, code="input-shape") from error

    def _not_stored(self, variant: Variant) -> InputError:
        stored = "; ".join(str(v) for v in self._variants)
        return InputError(
            self._names[0] if self._names else "-", f"this file was compiled for {stored}, not for {variant}",
            "compile the model for these shapes", code="not-compiled",
        )  # fmt: skip

    # ---- reports and files ------------------------------------------------------------------------------------------
    def explain(self) -> Any:
        """What was fused and why, for the newest variant."""
        return self._report().explain(self)

    def measure(self) -> None:
        """Time every kernel of the newest variant on random inputs; `explain` shows the times, `save` keeps them."""
        self._report().measure(self)

    def verify(self, **options: Any) -> Any:
        """The answers against the float64 oracle."""
        return self._report().verify(self, **options)

    def profile(self, **options: Any) -> Any:
        """Time and ceilings of every kernel of the newest variant, with and without fusion."""
        return self._report().profile(self, **options)

    def _report(self) -> Reports:
        if self._reports is None:
            message = "this executable was made without reports; use opfuse.compile or opfuse.load"
            raise OpfuseError(message, "no-reports")
        return self._reports

    def save(self, path: str | Path) -> None:
        """Write a compiled file (.opf) that `opfuse.load` reads. ArtifactError where it cannot be written."""
        _ = self.model  # says what is missing where nothing is compiled yet
        graph = self.reference_graph()
        if graph is not None and graph.is_open:  # a file keeps one graph: that of the one variant, where there is one
            graph = self._specialised(graph, *self._variants) if len(self._variants) == 1 else None
        write_archive(Path(path), self.interface, self.options, self._variants, graph)


def specialise(graph: Graph, variant: Variant) -> Graph:
    """The graph with the variant's symbols bound; inputs with a default become constants unless they are fed."""
    bound = graph.bind(dict(variant.bindings)) if variant.bindings else graph.copy()
    for name, array in list(bound.defaults.items()):
        del bound.defaults[name]
        if name not in variant.fed:
            bound.inputs.remove(name)
            array = np.array(array, order="C")
            bound.constants[name], bound.types[name] = array, TensorType(DType.of(array.dtype), array.shape)
    return bound
