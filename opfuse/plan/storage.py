"""Which bytes a value stands for: views and parts share a root's storage, and each storage is of one kind.

A storage has the name of the value that roots it. Its kind is `input`, `weights` (a constant), `host` (made by a Python
function), `output` (made by kernels and shown to the user: written straight into the output array) or `arena`.

    storages = Storages.of(graph, kernels)
    storages.root("reshaped") -> "x";  storages.kind("x") -> "input";  storages.holds("joined") -> {"left", "right"}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from opfuse.fuse.provider import HostKernel, Kernel, TileKernel
from opfuse.ir.dims import Dim, product
from opfuse.ir.graph import Graph
from opfuse.ir.placement import Placement, is_dense
from opfuse.plan.plan import Area
from opfuse.tile.program import Buffer


@dataclass(frozen=True)
class Storages:
    """`numbers`: which input, output or host buffer a storage of that kind is; `bytes`: what one must hold."""

    graph: Graph
    made: frozenset[str]  # values that kernels make
    kinds: Mapping[str, Area]
    numbers: Mapping[str, int]
    bytes: Mapping[str, int]
    held: Mapping[str, frozenset[str]] = field(default_factory=dict)  # of values that no kernel makes

    @staticmethod
    def of(graph: Graph, kernels: Sequence[Kernel]) -> Storages:
        by_tiles = [v for k in kernels if isinstance(k, TileKernel) for v in k.region.outputs]
        by_host = [v for k in kernels if isinstance(k, HostKernel) for v in k.region.outputs]
        kinds: dict[str, Area] = dict.fromkeys(graph.inputs, "input")
        kinds |= dict.fromkeys(graph.constants, "weights")
        numbers = {i: n for n, i in enumerate(graph.inputs)}
        for number, v in enumerate(by_host):
            kinds[v], numbers[v] = "host", number
        shown = {_root(graph, v): n for n, v in reversed(list(enumerate(graph.outputs.values()))) if _is_all(graph, v)}
        for v in (_root(graph, made) for made in by_tiles):
            kinds[v] = "output" if v in shown else "arena"
            if v in shown:
                numbers[v] = shown[v]
        for name, value in graph.outputs.items():
            if _root(graph, value) not in kinds:
                raise ValueError(f"no kernel makes {value!r}, shown as output {name!r}")
        made = frozenset((*by_tiles, *by_host))
        return Storages(graph, made, kinds, numbers, _storage_bytes(graph, kernels, kinds), _held(graph, made))

    def root(self, value: str) -> str:
        return _root(self.graph, value)

    def kind(self, value: str) -> Area:
        """ValueError where nothing makes the value."""
        root = self.root(value)
        if root not in self.kinds:
            raise ValueError(f"no kernel makes {value!r}")
        return self.kinds[root]

    def is_all(self, value: str) -> bool:
        """It is all of its storage, from the first byte on and without gaps."""
        return _is_all(self.graph, value)

    def offset(self, value: str) -> int:
        """Bytes from the beginning of its storage."""
        return _offset(self.graph, value)

    def strides(self, value: str) -> tuple[int, ...]:
        """In elements; () where the value is row-major without gaps."""
        place = self.graph.placements.get(value)
        return () if place is None or is_dense(self.graph.types[value].static_shape, place.strides) else place.strides

    def holds(self, value: str) -> frozenset[str]:
        """The values that kernels make, or that are given, in whose bytes the value lies: what its reader waits for."""
        return self.held.get(value) or frozenset((value,))


def _held(graph: Graph, made: frozenset[str]) -> dict[str, frozenset[str]]:
    """What each view and each joint holds, in the graph's order: views stand on views, joints in joints."""
    held: dict[str, frozenset[str]] = {}
    lying = graph.placements.keys() | {place.root for place in graph.placements.values()}
    for node in graph.nodes.values():
        for value in node.outputs:
            if value in lying and value not in made:
                held[value] = frozenset().union(*(held.get(v) or (v,) for v in node.reads))
    return held


def _offset(graph: Graph, value: str) -> int:
    """Of an empty value 0, wherever it stands: its storage may be as empty."""
    place = graph.placements.get(value)
    return place.offset * graph.types[value].dtype.bytes if place is not None and static_bytes(graph, value) else 0


def _root(graph: Graph, value: str) -> str:
    place = graph.placements.get(value)
    return place.root if place is not None else value


def _is_all(graph: Graph, value: str) -> bool:
    place: Placement | None = graph.placements.get(value)
    if place is None:
        return True
    whole = static_bytes(graph, place.root) == static_bytes(graph, value)
    return whole and place.offset == 0 and is_dense(graph.types[value].static_shape, place.strides)


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


def _storage_bytes(graph: Graph, kernels: Sequence[Kernel], kinds: Mapping[str, Area]) -> dict[str, int]:
    out = {v: static_bytes(graph, v) for v in kinds}
    for kernel in kernels:
        if not isinstance(kernel, TileKernel):
            continue
        for buffer in kernel.program.buffers:
            value = kernel.arguments.get(buffer.name)
            size = buffer_bytes(buffer)
            if value is None or not isinstance(size, int):
                continue
            root = _root(graph, value)
            if root not in kinds:
                raise ValueError(f"no kernel makes {value!r}, which kernel {kernel.name!r} reads")
            size += _offset(graph, value)
            if size > out.get(root, 0) and kinds.get(root) != "arena":
                raise ValueError(f"kernel {kernel.name!r}: {value!r} has {out.get(root, 0)} bytes, its buffer {size}")
            out[root] = max(out.get(root, 0), size)
    return out
