"""Which bytes a value stands for: views share their source's storage, and each storage is of one kind.

A storage has the name of the value that roots it. Its kind is `input`, `weights` (a constant), `host` (made by a Python
function), `output` (made by a kernel and shown to the user: written straight into the output array) or `arena`.

    storages = Storages.of(graph, kernels)
    storages.root("reshaped") -> "x";  storages.kind("x") -> "input"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opfuse.fuse.provider import HostKernel, Kernel, TileKernel, ViewKernel
from opfuse.ir.dims import Dim, product
from opfuse.ir.graph import Graph
from opfuse.plan.plan import Area
from opfuse.tile.program import Buffer


@dataclass(frozen=True)
class Storages:
    """`numbers`: which input, output or host buffer a storage of that kind is; `bytes`: what one must hold."""

    roots: Mapping[str, str]
    kinds: Mapping[str, Area]
    numbers: Mapping[str, int]
    bytes: Mapping[str, int]

    @staticmethod
    def of(graph: Graph, kernels: Sequence[Kernel]) -> Storages:
        roots = _roots(graph, kernels)
        shown = {roots.get(v, v): number for number, v in reversed(list(enumerate(graph.outputs.values())))}
        kinds: dict[str, Area] = dict.fromkeys(graph.inputs, "input")
        kinds |= dict.fromkeys(graph.constants, "weights")
        numbers = {i: n for n, i in enumerate(graph.inputs)}
        made_by_host = [v for k in kernels if isinstance(k, HostKernel) for v in k.region.outputs]
        for number, v in enumerate(made_by_host):
            kinds[v], numbers[v] = "host", number
        for kernel in kernels:
            for v in kernel.region.outputs if isinstance(kernel, TileKernel) else ():
                kinds[v] = "output" if v in shown else "arena"
                if v in shown:
                    numbers[v] = shown[v]
        for name, value in graph.outputs.items():
            if roots.get(value, value) not in kinds:
                raise ValueError(f"no kernel makes {value!r}, shown as output {name!r}")
        return Storages(roots, kinds, numbers, _storage_bytes(graph, kernels, roots, kinds))

    def root(self, value: str) -> str:
        return self.roots.get(value, value)

    def kind(self, value: str) -> Area:
        """ValueError where nothing makes the value."""
        root = self.root(value)
        if root not in self.kinds:
            raise ValueError(f"no kernel makes {value!r}")
        return self.kinds[root]


def _roots(graph: Graph, kernels: Sequence[Kernel]) -> dict[str, str]:
    direct = {k.output: k.source for k in kernels if isinstance(k, ViewKernel)}
    out = {}
    for v in direct:
        root, seen = direct[v], {v}
        while root in direct:
            if root in seen:
                raise ValueError(f"views of {v!r} go in a circle")
            seen.add(root)
            root = direct[root]
        if static_bytes(graph, v) != static_bytes(graph, root):
            types = f"{graph.types[v]} and {graph.types[root]}"
            raise ValueError(f"{v!r} cannot be a view of {root!r}: {types} differ in bytes")
        out[v] = root
    return out


def static_bytes(graph: Graph, value: str) -> int:
    """Bytes of the value laid out densely; 0 where its shape is known only when it runs (host values)."""
    size = graph.types[value].bytes
    return size if isinstance(size, int) else 0


def buffer_bytes(buffer: Buffer) -> Dim:
    """Bytes from the first to behind the last element of a buffer, halo included."""
    shape = buffer.shape
    if buffer.halo is not None:
        shape = tuple(d + b + a for d, b, a in zip(shape, buffer.halo.before, buffer.halo.after, strict=True))
    if buffer.strides is None:
        return product(shape) * buffer.dtype.bytes
    if any(d == 0 for d in shape):
        return 0
    last: Dim = 0
    for extent, stride in zip(shape, buffer.strides, strict=True):
        last = last + (extent - 1) * stride
    return (last + 1) * buffer.dtype.bytes


def _storage_bytes(
    graph: Graph, kernels: Sequence[Kernel], roots: Mapping[str, str], kinds: Mapping[str, Area]
) -> dict[str, int]:
    out = {v: static_bytes(graph, v) for v in kinds}
    for kernel in kernels:
        if not isinstance(kernel, TileKernel):
            continue
        for buffer in kernel.program.buffers:
            value = kernel.arguments.get(buffer.name)
            size = buffer_bytes(buffer)
            if value is None or not isinstance(size, int):
                continue
            root = roots.get(value, value)
            if root not in kinds:
                raise ValueError(f"no kernel makes {value!r}, which kernel {kernel.name!r} reads")
            if size > out.get(root, 0) and kinds.get(root) != "arena":
                raise ValueError(f"kernel {kernel.name!r}: {value!r} has {out.get(root, 0)} bytes, its buffer {size}")
            out[root] = max(out.get(root, 0), size)
    return out
