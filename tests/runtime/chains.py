"""Small models of hand-written kernels: they exercise plan and runtime without a lowering or a printer.

Every kernel computes out[i] = 0.5 * x[i] + 0.25 * y[n-1-i], in tiles of 16 elements: the second operand is read from
the other end, so a missing barrier or an early reuse of bytes gives wrong numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from opfuse.codegen.llvm.entry import entry_functions
from opfuse.codegen.llvm.jit import assemble, compile_object
from opfuse.decision import Ledger
from opfuse.fuse.provider import Cost, HostKernel, Kernel, TileKernel, ViewKernel
from opfuse.fuse.region import Region
from opfuse.ir.graph import Graph
from opfuse.ir.index import axis
from opfuse.ir.placement import Placement, dense
from opfuse.ir.scalar import apply
from opfuse.ir.structure import Axis
from opfuse.ir.types import DType, TensorType
from opfuse.options import Options
from opfuse.plan.build import build_plan
from opfuse.plan.plan import Plan
from opfuse.runtime.model import CompiledModel
from opfuse.target import Target, host
from opfuse.tile.program import Buffer, Load, Map, Phase, Program, Store, Tile
from opfuse.tile.schedule import Schedule

TILE = 16
F32 = DType.F32


@dataclass(frozen=True)
class Printed:
    symbol: str
    arguments: tuple[str, ...]
    integers: tuple[str, ...]
    tiles: int
    scratch_bytes: int
    text: str


@dataclass
class Chain:
    """A graph of mixes, grown step by step; `kernels` in the order in which they were added."""

    graph: Graph = field(default_factory=lambda: Graph("chain"))
    kernels: list[Kernel] = field(default_factory=list)
    printed: dict[int, tuple[Printed, ...]] = field(default_factory=dict)
    host_kernels: dict[int, HostKernel] = field(default_factory=dict)

    def input(self, name: str, n: int) -> str:
        return self.graph.add_input(name, TensorType(F32, (n,)))

    def constant(self, array: np.ndarray) -> str:
        return self.graph.add_constant(array.astype(np.float32))

    def mix(self, x: str, y: str, seconds: float = 1e-3) -> str:
        out = self.graph.emit("add", [x, y])
        (n,) = self.graph.types[out].static_shape
        region = Region.of(self.graph, [self._maker(out)])
        number = len(self.kernels)
        program, text = mix_program(n), mix_text(f"mix_{number}", n)
        arguments = {"x": x, "y": y, "out": out}
        cost = Cost(seconds, 12 * n, 3 * n)
        origin = region.origin(self.graph)
        self.kernels.append(TileKernel("mix", region, program, Schedule(), arguments, cost, "hand", origin))
        self.printed[number] = (Printed(f"mix_{number}", ("x", "y", "out"), (), n // TILE, 64, text),)
        return out

    def view(self, x: str, shape: tuple[int, ...]) -> str:
        out = self.graph.emit("reshape", [x], {"shape": shape})
        region = Region.of(self.graph, [self._maker(out)])
        self.graph.placements[out] = Placement(self.root(x), 0, dense(shape))
        self.kernels.append(ViewKernel("view", region, region.origin(self.graph)))
        return out

    def root(self, value: str) -> str:
        place = self.graph.placements.get(value)
        return place.root if place is not None else value

    def on_host(self, x: str, y: str, provider: str = "reference") -> str:
        """The graph's own add, in Python."""
        out = self.graph.emit("add", [x, y])
        region = Region.of(self.graph, [self._maker(out)])
        number = len(self.kernels)
        places = [region.inputs.index(v) for v in (x, y)]
        kernel = HostKernel(
            "host_add", region, lambda arrays: [arrays[places[0]] + arrays[places[1]]], Cost(1.0, 0, 0), provider,
            region.origin(self.graph),
        )  # fmt: skip
        self.kernels.append(kernel)
        self.host_kernels[number] = kernel
        return out

    def show(self, *values: str) -> None:
        self.graph.set_outputs({f"out{k}": v for k, v in enumerate(values)})

    def _maker(self, value: str) -> str:
        node = self.graph.producer(value)
        assert node is not None
        return node.name

    def regions(self) -> None:
        """Regions know their readers only when the graph is whole: make them anew."""
        for k, kernel in enumerate(self.kernels):
            names = kernel.region.nodes
            made = tuple(v for n in names for v in self.graph.nodes[n].outputs)
            region = Region(names, kernel.region.inputs, made)
            self.kernels[k] = replace(kernel, region=region)
            if k in self.host_kernels:
                self.host_kernels[k] = self.kernels[k]  # type: ignore[assignment]

    # ---- building ---------------------------------------------------------------------------------------------------
    def plan(self, threads: int = 1, debug: bool = False) -> tuple[Plan, np.ndarray]:
        self.regions()
        options = Options(threads=threads, debug=debug)
        return build_plan(self.graph, self.kernels, self.printed, options, target(threads))

    def compile(self, threads: int = 1, debug: bool = False, **more: object) -> CompiledModel:
        plan, weights = self.plan(threads, debug)
        texts = [p.text for phases in self.printed.values() for p in phases]
        module = assemble([*texts, *entry_functions(plan)], target(threads))
        return CompiledModel(
            plan, compile_object(module, target(threads)), weights, Ledger(), target=target(threads),
            options=Options(threads=threads, debug=debug), host_kernels=self.host_kernels, **more,  # type: ignore[arg-type]
        )  # fmt: skip

    def expected(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """What the kernels must give, in NumPy."""
        values: dict[str, np.ndarray] = {**feeds, **self.graph.constants}
        for kernel in self.kernels:
            if isinstance(kernel, TileKernel):
                x, y = (values[kernel.arguments[b]] for b in ("x", "y"))
                values[kernel.arguments["out"]] = mixed(x, y)
            elif isinstance(kernel, ViewKernel):
                node = self.graph.nodes[kernel.region.nodes[0]]
                out = node.output
                values[out] = values[node.reads[0]].reshape(self.graph.types[out].static_shape)
            else:
                (out,) = kernel.region.outputs
                x, y = (values[i] for i in self.graph.nodes[kernel.region.nodes[0]].inputs if i is not None)
                values[out] = x + y
        return [values[v] for v in self.graph.outputs.values()]


def target(threads: int) -> Target:
    return host(threads, "plain")


def mixed(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Powers of two as factors: one rounding, the same in any order of evaluation."""
    return np.float32(0.5) * x + np.float32(0.25) * y.reshape(-1)[::-1].reshape(x.shape)


def mix_program(n: int) -> Program:
    r = Axis("r", n)
    x, y, out = Buffer("x", F32, (n,)), Buffer("y", F32, (n,)), Buffer("out", F32, (n,), "out")
    a, b, c = Tile("a", (r,)), Tile("b", (r,)), Tile("c", (r,))
    body = (
        Load(a, x, (axis("r"),)), Load(b, y, (axis("r") * -1 + (n - 1),)), Map(c, apply("add", a, b)),
        Store(c, out, (axis("r"),)),
    )  # fmt: skip
    return Program("mix", (x, y, out), (Phase((r,), body),))


def mix_text(symbol: str, n: int) -> str:
    return f"""
define void @{symbol}(ptr %x, ptr %y, ptr %out, ptr %scratch, i64 %begin, i64 %end) {{
entry:
  %i0 = mul i64 %begin, {TILE}
  %i9 = mul i64 %end, {TILE}
  %some = icmp ult i64 %i0, %i9
  br i1 %some, label %loop, label %done
loop:
  %i = phi i64 [%i0, %entry], [%i1, %loop]
  %xp = getelementptr float, ptr %x, i64 %i
  %j = sub i64 {n - 1}, %i
  %yp = getelementptr float, ptr %y, i64 %j
  %op = getelementptr float, ptr %out, i64 %i
  %a = load float, ptr %xp
  %b = load float, ptr %yp
  %a2 = fmul float %a, 0.5
  %b2 = fmul float %b, 0.25
  %s = fadd float %a2, %b2
  store float %s, ptr %op
  store volatile float %s, ptr %scratch
  %i1 = add i64 %i, 1
  %more = icmp ult i64 %i1, %i9
  br i1 %more, label %loop, label %done
done:
  ret void
}}"""


def random_chain(rng: np.random.Generator, steps: int, n: int = 256, host: bool = False) -> Chain:
    """A random graph of mixes, views and, where asked for, host steps; some values are shown, some twice."""
    chain = Chain()
    values = [chain.input("a", n), chain.input("b", n), chain.constant(rng.standard_normal(n))]
    for k in range(steps):
        recent = values[-4:]
        x, y = (str(rng.choice(recent)) for _ in range(2))
        kind = rng.random()
        if kind < 0.15 and k != 3:
            folded = chain.view(x, (n // 8, 8))
            values.append(chain.view(folded, (n,)))
        elif host and (kind < 0.3 or k == 3):
            values.append(chain.on_host(x, y))
        else:
            values.append(chain.mix(x, y, seconds=float(rng.choice([1e-7, 1e-3]))))
    shown = [values[-1], str(rng.choice(values)), str(rng.choice(values))]
    chain.show(*shown)
    return chain


def feeds_of(chain: Chain, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {i: rng.standard_normal(chain.graph.types[i].static_shape).astype(np.float32) for i in chain.graph.inputs}


def run_in_order(model: CompiledModel, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
    return model.run([feeds[p.name] for p in model.plan.inputs])
