"""Compiled models to and from a file: plans, ledgers, object code and weights as parts of a container.

    write_archive(path, interface, options, {variant: model}, graph)
    stored = read_archive(path);  stored.variants -> {variant: model}

Weights are mapped from the file, object code is copied and relocated. What the oracle runs between native segments is
stored as a graph and rebuilt; nothing is unpickled.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from opfuse.decision import Ledger
from opfuse.errors import ArtifactError
from opfuse.fuse.provider import Cost, HostKernel
from opfuse.fuse.region import Region
from opfuse.ir.evaluate import evaluate
from opfuse.ir.graph import Graph
from opfuse.options import Options
from opfuse.plan.plan import KernelInfo
from opfuse.plan.serialise import plan_from_json, plan_to_json
from opfuse.runtime.container import Container, digest, read_container, write_container
from opfuse.runtime.graph_data import graph_from_data, graph_to_data
from opfuse.runtime.interface import Interface
from opfuse.runtime.model import CompiledModel
from opfuse.runtime.pool import native_runtime, runtime_key
from opfuse.target import Rates, Target, host_features

Parts = dict[str, Any]
_OBJECT_HEAD = 20  # bytes that object files of one machine have in common (ELF: class, byte order, kind, machine)


@dataclass(frozen=True)
class Variant:
    """What a compiled model was made for: numbers of the symbols, and which inputs with a default are fed."""

    bindings: tuple[tuple[str, int], ...] = ()
    fed: tuple[str, ...] = ()

    def __str__(self) -> str:
        bound = ", ".join(f"{s} = {n}" for s, n in self.bindings) or "its fixed shapes"
        return bound + (f" with {', '.join(self.fed)} given" if self.fed else "")


@dataclass(frozen=True)
class Archive:
    interface: Interface
    options: Options
    variants: Mapping[Variant, CompiledModel]
    graph: Callable[[], Graph] | None = None  # the model that it was compiled from, made when it is asked for


def write_archive(
    path: Path, interface: Interface, options: Options, variants: Mapping[Variant, CompiledModel], graph: Graph | None
) -> None:
    """Write all variants into one file, and the model for `verify`; equal parts are stored once.

    ArtifactError where that cannot be done.
    """
    parts: Parts = {}
    entries = [_store(path, v, model, parts) for v, model in variants.items()]
    native = native_runtime()
    content = {
        "interface": interface.to_json(), "options": _options_json(options), "variants": entries,
        "runtime": {"key": runtime_key(), "part": _add(parts, native.object_code)},
        "model": None if graph is None else _store_graph(graph, parts),
    }  # fmt: skip
    write_container(path, {"content": _json_bytes(content), **parts}, {"machine": platform.machine()})


def read_archive(path: Path) -> Archive:
    """Open a file, check it and this machine, and load its models. ArtifactError says what is wrong and the way out."""
    container = read_container(path)
    made_on = container.facts.get("machine")
    if made_on != platform.machine():
        raise _foreign_machine(path, f"it was compiled on {made_on}, this is {platform.machine()}")
    content = container.json("content")
    try:
        present = frozenset(host_features())
        runtime = content["runtime"]
        same = runtime["key"] == runtime_key()
        native_runtime(container.part(runtime["part"]).tobytes() if same else None)
        variants = dict(_load(container, entry, present) for entry in content["variants"])
        options = _options_from(content["options"])
        model = content["model"]
        graph = None if model is None else lambda: _load_graph(container, model)
        return Archive(Interface.from_json(content["interface"]), options, variants, graph)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        problem = f"its content does not fit this opfuse: {type(error).__name__}: {error}"
        raise ArtifactError(str(path), problem, code="artifact-content") from error


# ---- one variant -----------------------------------------------------------------------------------------------------
def _store(path: Path, variant: Variant, model: CompiledModel, parts: Parts) -> dict[str, Any]:
    if model.target is None:
        raise ArtifactError(str(path), "the model does not say for which CPU it was compiled", code="artifact-content")
    return {
        "bindings": [list(b) for b in variant.bindings], "fed": list(variant.fed), "target": asdict(model.target),
        "plan": plan_to_json(model.plan), "ledger": model.ledger.to_json(),
        "object": _add(parts, model.object_code), "weights": _add(parts, model.weights),
        "hosts": [_store_host(path, k, model, parts) for k in model.plan.kernels if k.number in model.host_kernels],
    }  # fmt: skip


def _load(container: Container, entry: Mapping[str, Any], present: frozenset[str]) -> tuple[Variant, CompiledModel]:
    target = _target_from(entry["target"])
    if target.isa != "plain" and (missing := sorted(set(target.features) - present)):
        problem = f"it was compiled for a CPU with {', '.join(missing)}, which this one lacks"
        raise _foreign_machine(container.path, problem)
    plan = plan_from_json(entry["plan"])
    weights = container.part(entry["weights"])
    if weights.nbytes != plan.weights_bytes:
        problem = f"the weights have {weights.nbytes} bytes, the plan wants {plan.weights_bytes}"
        raise ArtifactError(str(container.path), problem, code="artifact-content")
    object_code = container.part(entry["object"]).tobytes()
    if object_code[:_OBJECT_HEAD] != native_runtime().object_code[:_OBJECT_HEAD]:
        # LLVM's loader crashes on what is no object file at all
        raise ArtifactError(str(container.path), "its object code is of another kind", code="artifact-content")
    by_number = {k.number: k for k in plan.kernels}
    hosts = {h["number"]: _load_host(container, h, by_number[h["number"]]) for h in entry["hosts"]}
    model = CompiledModel(
        plan, object_code, weights, Ledger.from_json(entry["ledger"]), target=target,
        host_kernels=hosts,
    )  # fmt: skip
    variant = Variant(tuple((s, n) for s, n in entry["bindings"]), tuple(entry["fed"]))
    return variant, model


# ---- host steps ------------------------------------------------------------------------------------------------------
def _store_host(path: Path, info: KernelInfo, model: CompiledModel, parts: Parts) -> dict[str, Any]:
    kernel = model.host_kernels[info.number]
    if model.graph is None or kernel.provider != "reference":
        nodes = ", ".join(info.nodes)
        raise ArtifactError(
            str(path), f"cannot be written: {nodes} run in Python ({kernel.provider}), which a file cannot hold",
            "compile the model anew in each process, or keep these nodes out of the model", code="artifact-host",
        )  # fmt: skip
    return {
        **_store_graph(kernel.region.subgraph(model.graph), parts), "number": info.number,
        "nodes": list(kernel.region.nodes), "inputs": list(kernel.region.inputs),
        "outputs": list(kernel.region.outputs),
    }  # fmt: skip


def _load_host(container: Container, data: Mapping[str, Any], info: KernelInfo) -> HostKernel:
    graph = _load_graph(container, data)
    region = Region(tuple(data["nodes"]), tuple(data["inputs"]), tuple(data["outputs"]))
    cost = Cost(info.predicted_s, info.bytes, info.flops)
    return HostKernel(info.name, region, _oracle(graph, region), cost, info.provider, info.nodes)


def _oracle(graph: Graph, region: Region) -> Any:
    """The region's function on arrays in the order of its inputs, as the reference provider makes it."""

    def run(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        given = dict(zip(region.inputs, arrays, strict=True))
        made = evaluate(graph, {i: given[i] for i in graph.inputs}, values=region.outputs)
        return [made[v] for v in region.outputs]

    return run


# ---- graphs ----------------------------------------------------------------------------------------------------------
def _store_graph(graph: Graph, parts: Parts) -> dict[str, Any]:
    data, constants = graph_to_data(graph)
    arrays = {name: _add(parts, np.ascontiguousarray(a).reshape(-1).view(np.uint8)) for name, a in constants.items()}
    return {"graph": data, "constants": arrays}


def _load_graph(container: Container, data: Mapping[str, Any]) -> Graph:
    return graph_from_data(data["graph"], {name: container.part(part) for name, part in data["constants"].items()})


# ---- pieces ----------------------------------------------------------------------------------------------------------
def _add(parts: Parts, data: Any) -> str:
    """The part's name, made of its content, so that what two variants share is stored once."""
    view = np.frombuffer(data, np.uint8) if not isinstance(data, np.ndarray) else data
    name = digest(view)[:32]
    parts[name] = view
    return name


def _json_bytes(content: Any) -> bytes:
    return json.dumps(content).encode()


def _options_json(options: Options) -> dict[str, Any]:
    data = asdict(options)
    for name in ("disabled_rules", "disabled_fusions"):
        data[name] = sorted(data[name])
    data["shapes"] = {k: list(v) for k, v in options.shapes.items()}
    return data


def _options_from(data: Mapping[str, Any]) -> Options:
    known = {k: v for k, v in data.items() if k in Options.__dataclass_fields__}
    options = Options(**known)
    return replace(
        options, shapes={k: tuple(v) for k, v in options.shapes.items()},
        disabled_rules=frozenset(options.disabled_rules), disabled_fusions=frozenset(options.disabled_fusions),
    )  # fmt: skip


def _target_from(data: Mapping[str, Any]) -> Target:
    return Target(**{**data, "rates": Rates(**data["rates"]), "features": tuple(data["features"])})


def _foreign_machine(path: Path, problem: str) -> ArtifactError:
    way_out = "compile the model again on this machine"
    return ArtifactError(str(path), problem, way_out, code="artifact-machine")
