"""R43, R50, R51: what a kernel library cannot run goes elsewhere by itself, and nothing is lost without a word.

R50: an odd count of channels, an older CPU, half precision, a norm with a tail, too little scratch: same numbers, and a
report of which nodes run where, and why. R51: as many fusions at every opset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import opfuse
from opfuse import pipeline
from opfuse.decision import Refusal
from opfuse.fuse.provider import Claim, Kernel
from opfuse.fuse.region import Region
from opfuse.ir.graph import Graph
from opfuse.plan.plan import Host, Native
from opfuse.providers.cpu import CpuProvider
from opfuse.providers.reference import ReferenceProvider
from opfuse.target import ISAS, Target, host
from tests.cases.agreement import answers_of, check, compile_here
from tests.cases.test_neighbours_linear import conv, norm, norm_numbers, norm_text, normal
from tests.frontends.small_models import assert_close, small

F32, F16 = np.float32, np.float16
MACHINES = ISAS[ISAS.index(host().isa) :]


# ---- R50: every unit has some plan -----------------------------------------------------------------------------------
@pytest.mark.parametrize("isa", MACHINES)
@pytest.mark.parametrize("channels", [1, 3, 35])
@pytest.mark.parametrize("dtype", [F32, F16])
def test_r50_odd_channels_on_every_cpu(channels: int, isa: str, dtype: Any) -> None:
    """Convolution, batch norm, ReLU; then a layer norm with a pointwise tail."""
    if dtype is F16 and isa == "plain":
        pytest.skip("half precision needs the CPU's conversions")
    x, w = normal(1, 2, 5, 6, 7, dtype=dtype), normal(2, channels, 5, 3, 3, dtype=dtype)
    g = normal(3, 5, dtype=dtype)
    c = {"w": w, "g": g, "two": np.array(2, dtype), **norm_numbers(4, channels, "p", dtype)}
    body = f"""t = Conv (x, w) {norm_text("t", "n", "p")} r = Relu (n) l = LayerNormalization <epsilon = 0.1> (r, g)
               s = Mul (l, two) y = Sigmoid (s)"""
    model = small(17, {"x": x}, body, ["r", "y"], constants=c)
    t = conv(x, w).astype(dtype)  # half precision rounds between operators
    r = np.maximum(norm(t.astype(float), c, "p", 1e-3), 0)
    d = r.astype(dtype).astype(float)
    d = (d - d.mean(-1, keepdims=True)) / np.sqrt(d.var(-1, keepdims=True) + 0.1)
    right = {"r": r, "y": 1 / (1 + np.exp(-2 * d * g.astype(float)))}
    for options in ({}, {"disable_fusions": {"all"}}):
        exe = compile_here(model, isa=isa, **options)
        assert [k.name for k in exe.explain().kernels if k.host] == []
        for name, got in exe(x=x).items():
            assert_close(got, right[name].astype(dtype), 64 if dtype is F32 else 8)


@dataclass(frozen=True)
class Picky:
    """The CPU generator, as if it had no plan for some operators, or for anything larger than one operator."""

    refused: frozenset[str] = frozenset()
    most: int = 10**9
    name: str = "cpu"
    inner: CpuProvider = field(default_factory=CpuProvider)

    def claim(self, graph: Graph, region: Region, target: Target) -> Claim | Refusal:
        members = region.members(graph)
        if wrong := [n.op for n in members if n.op in self.refused]:
            return Refusal("no-engine", f"there is no engine for {wrong[0]} here", {"operator": wrong[0]})
        if len(members) > self.most:
            return Refusal("workspace", "its workspace does not fit", {"operators": len(members)})
        return self.inner.claim(graph, region, target)

    def build(self, graph: Graph, claim: Claim) -> Kernel:
        return self.inner.build(graph, claim)


def layers() -> tuple[Any, dict[str, np.ndarray]]:
    x = normal(1, 2, 3, 8, 8)
    c = {"w": normal(2, 7, 3, 3, 3), "u": normal(3, 5, 7, 1, 1), "g": normal(4, 6), "b": normal(5, 5)}
    body = """t = Conv (x, w) r = Relu (t) s = Conv (r, u, b) n = LayerNormalization (s, g) e = Sigmoid (n)
              p = MaxPool <kernel_shape = [2, 2]> (e) y = Add (p, p)"""
    return small(17, {"x": x}, body, constants=c), {"x": x}


def picky(monkeypatch: pytest.MonkeyPatch, provider: Picky) -> opfuse.runtime.executable.Executable:
    monkeypatch.setattr(pipeline, "providers", lambda *_: (provider, ReferenceProvider()))
    return compile_here(layers()[0])


REFUSED: Sequence[tuple[str, Sequence[str]]] = [
    ("max_pool", ["p"]), ("relu", ["r"]), ("sigmoid", ["e"]), ("conv", ["t", "s"]), ("add", ["y"]),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "nodes"), REFUSED)
def test_r50_a_unit_without_a_plan_runs_elsewhere_alone(
    operator: str, nodes: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest stays native, the numbers stay, and the report names the nodes, the provider and the condition."""
    model, feeds = layers()
    right = answers_of(model, feeds)[1]["imported"]["y"]
    exe = picky(monkeypatch, Picky(frozenset({operator})))
    assert_close(exe(feeds)["y"], right, 64)
    explanation = exe.explain()
    hosts = {k.id: k for k in explanation.kernels if k.host}
    named = {n for k in hosts.values() for n in k.nodes}
    assert set(nodes) <= named | {"b"} and all(k.provider == "reference" for k in hosts.values())
    assert any(isinstance(s, Native) for s in exe.model.plan.segments)
    assert any(isinstance(s, Host) for s in exe.model.plan.segments)
    assert {h.kernel for h in explanation.host_steps} == set(hosts)
    for step in explanation.host_steps:
        assert step.code == "no-engine" and step.facts["operator"] == operator and operator in step.reason
    text = explanation.text(120)
    assert f"there is no engine for {operator} here" in text.replace("\n", " ")
    assert len(hosts) == len(nodes)  # each by itself: what can run natively is not drawn along


def test_r50_too_little_room_for_fused_units(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only single operators have a plan: everything is native, and each boundary says what did not fit."""
    model, feeds = layers()
    right = answers_of(model, feeds)[1]["imported"]["y"]
    exe = picky(monkeypatch, Picky(most=1))
    assert_close(exe(feeds)["y"], right, 64)
    explanation = exe.explain()
    assert not [k for k in explanation.kernels if k.host]
    assert {b.code for b in explanation.boundaries} == {"workspace"}
    assert all("workspace does not fit" in b.reason and b.facts["operators"] > 1 for b in explanation.boundaries)


def test_r50_nothing_is_native(monkeypatch: pytest.MonkeyPatch) -> None:
    model, feeds = layers()
    right = answers_of(model, feeds)[1]["imported"]["y"]
    exe = picky(monkeypatch, Picky(most=0))
    assert_close(exe(feeds)["y"], right, 64)
    assert all(k.host for k in exe.explain().kernels)


def test_r50_a_row_that_does_not_fit_into_the_cache() -> None:
    """A norm over a million elements, with a tail: no scratch of that size, the same numbers."""
    x = np.resize(normal(1, 9973), (2, 1_000_003)).astype(F32)
    wide = x.astype(float)
    y = np.tanh((wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 0.1))
    body = "n = LayerNormalization <epsilon = 0.1> (x, g) y = Tanh (n)"
    exe = compile_here(small(17, {"x": x}, body, constants={"g": np.ones(1_000_003, F32)}))
    assert not [k for k in exe.explain().kernels if k.host]
    np.testing.assert_allclose(exe(x=x)["y"], y, rtol=0, atol=1e-4)


# ---- R51: as many fusions at every opset -----------------------------------------------------------------------------
_RESIZE = {9: "Upsample (t, s)", 10: "Resize (t, s)", 11: "Resize (t, roi, s)"}
FUSED: dict[str, dict[int, tuple[str, int]]] = {  # name -> opset -> nodes, and how many kernels are left
    "norm": {n: (f"t = Conv (x, w) {norm_text('t', 'u', 'p')} y = Relu (u)", 1) for n in (7, 9, 14, 15, 17, 22)},
    "bounds": {n: (f"t = Conv (x, w) y = Clip {'<min = 0.0, max = 6.0> (t)' if n < 11 else '(t, zero, six)'}", 1)
               for n in (7, 10, 11, 12, 13, 21)},
    "mean": {n: ("t = Relu (x) y = ReduceMean " + ("<axes = [2, 3]> (t)" if n < 18 else "(t, two)"), 1)
             for n in (7, 11, 13, 18, 21)},
    "sum": {n: ("t = Relu (x) y = ReduceSum " + ("<axes = [2, 3]> (t)" if n < 13 else "(t, two)"), 1)
            for n in (7, 11, 13, 21)},
    "softmax": {n: ("t = Add (x, x) y = Softmax <axis = 3> (t)", 1) for n in (7, 11, 13, 22)},
    "slice": {n: ("t = Slice " + ("<starts = [1], ends = [3], axes = [2]> (x)" if n < 10 else "(x, b, e, a)")
                  + " y = Relu (t)", 1) for n in (7, 10, 11, 13)},
    "squeeze": {n: ("t = Relu (x) y = Unsqueeze " + ("<axes = [0]> (t)" if n < 13 else "(t, z)"), 1)
                for n in (7, 11, 13, 21)},
    "resize": {n: ("t = Relu (x) y = " + _RESIZE.get(n, 'Resize (t, "", s)'), 1)
               for n in (9, 10, 11, 13, 18)},
    "linear": {n: ("t = MatMul (x, m) u = Add (t, v) y = Relu (u)", 1) for n in (7, 9, 13, 14)},
}  # fmt: skip
NUMBERS = {
    "w": normal(2, 5, 4, 1, 1), "zero": F32(0), "six": F32(6), "two": np.array([2, 3]), "b": np.array([1]),
    "e": np.array([3]), "a": np.array([2]), "z": np.array([0]), "s": F32([1, 1, 2, 2]), "m": normal(3, 6, 7),
    "v": normal(4, 7), "roi": np.zeros(0, F32), **norm_numbers(5, 5, "p"),
}  # fmt: skip


@pytest.mark.parametrize("name", FUSED)
def test_r51_kernels_at_every_opset(name: str) -> None:
    """The same numbers from the same number of kernels, by the same rules."""
    x, first, rules = normal(1, 2, 4, 4, 6), None, None
    for opset, (body, kernels) in FUSED[name].items():
        used = {k: v for k, v in NUMBERS.items() if f" {k})" in body or f", {k}" in body}
        exe = compile_here(small(opset, {"x": x}, body, constants=used), threads=1)
        assert len(exe.explain().kernels) == kernels, (opset, [k.name for k in exe.explain().kernels])
        y = exe(x=x)["y"]
        taken = sorted(d.rule for d in exe.model.ledger if d.kind == "rewrite" and d.outcome == "taken")
        first, rules = (y, taken) if first is None else (first, rules)
        np.testing.assert_array_equal(y, first, err_msg=f"opset {opset}")
        if name in ("norm", "linear", "softmax"):
            assert taken == rules, opset


@pytest.mark.parametrize("bias", ["before", "after", "both", "none"])
@pytest.mark.parametrize("shape", [(1, 32, 10), (32, 10), (2, 3, 32, 10)], ids=str)
def test_r51_products_with_biases_of_every_rank(shape: tuple[int, ...], bias: str) -> None:
    x, w, b = normal(1, *shape), normal(2, 10, 16), normal(3, 16)
    t = x.astype(float) @ w
    body = {"before": "u = Add (b, t)", "after": "u = Add (t, b)", "both": "v = Add (t, b) u = Add (b, v)",
            "none": "u = Identity (t)"}[bias]  # fmt: skip
    u = t + {"none": 0, "both": 2}.get(bias, 1) * b
    exe = check(13, {"x": x}, f"t = MatMul (x, w) {body} y = Relu (u)", {"y": np.maximum(u, 0).astype(F32)}, terms=12,
                constants={"w": w} | ({} if bias == "none" else {"b": b}))  # fmt: skip
    assert len(exe.explain().kernels) == 1


# ---- R43: offsets beyond 32 bits -------------------------------------------------------------------------------------
def test_r43_offsets_are_wide() -> None:
    """A matrix of 2.8e9 elements that is never made: its last rows come from far beyond 2**31."""
    rows, columns = 70000, 40000
    x = (np.arange(columns) % 251 - 125).astype(np.int8)
    body = "e = Expand (x, s) a = Add (e, col) y = Slice (a, b, c, ax)"
    col = (np.arange(rows) % 7).astype(np.int8).reshape(-1, 1)
    whole = np.array([rows, columns])
    constants = {"s": whole, "b": whole - np.array([2, 16]), "c": whole, "ax": np.array([0, 1])}
    exe = compile_here(small(14, {"x": x, "col": col}, body, constants=constants))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(exe(x=x, col=col)["y"], x[-16:] + col[-2:])
    assert len(exe.explain().kernels) == 1
