"""What benchmarks/gpu_regions.py runs: tile programs at real sizes, and the same computation in PyTorch.

A peer takes the program's inputs by name, as `prepare` has laid them out (that is not timed), and returns the outputs
by name; given float64 tensors it is the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from opfuse.ir.types import DType
from opfuse.tile.program import Program
from tests.tile import regions_matrix as matrix
from tests.tile import regions_points as points
from tests.tile import regions_rows as rows
from tests.tile import regions_windows as windows
from tests.tile.variants import with_precision, with_storage

Tensors = Mapping[str, Any]
Outputs = dict[str, Any]
Peer = Callable[[Tensors], Outputs]
BF16 = DType.BF16


@dataclass(frozen=True)
class Entry:
    name: str
    program: Program
    sizes: Mapping[str, int]
    peer: Peer
    flops: int = 0  # of the matrix products; 0: the kernel is bound by memory
    ranges: Mapping[str, tuple[int, int]] | None = None  # of integer inputs; others in [-50, 50)
    prepare: Callable[[Tensors], Tensors] = dict
    rounded: tuple[str, ...] = ()  # outputs that the peer gives before rounding when it runs in float64


# ---- rows ------------------------------------------------------------------------------------------------------------
def norm(x: Any, weight: Any = None, bias: Any = None) -> Any:
    return F.layer_norm(x, x.shape[-1:], weight, bias, rows.EPSILON)


def layernorm_gelu(t: Tensors) -> Outputs:
    return {"Y": F.gelu(norm(t["A"] + t["B"], t["G"], t["H"]))}


def softmax(t: Tensors) -> Outputs:
    return {"Y": torch.softmax(t["X"], 1)}


def embedding(t: Tensors) -> Outputs:
    ids = torch.where(t["Ids"] < 0, t["Ids"] + t["Words"].shape[0], t["Ids"])
    return {"Y": norm(F.embedding(ids, t["Words"]) + F.embedding(t["Kind"].long(), t["Places"]))}


def row_max(t: Tensors) -> Outputs:
    return {"Y": t["X"].amax(1)}


def column_sum(t: Tensors) -> Outputs:
    return {"Y": t["X"].sum(0)}


def pixel_mean(t: Tensors) -> Outputs:
    return {"Y": t["X"].mean((1, 2))}


# ---- matrices --------------------------------------------------------------------------------------------------------
def linear_gelu(t: Tensors) -> Outputs:
    return {"Y": F.gelu(torch.addmm(t["Bias"], t["A"], t["W"]))}


def linear(t: Tensors) -> Outputs:
    return {"Y": torch.addmm(t["Bias"], t["A"], t["W"])}


def product(t: Tensors) -> Outputs:
    return {"Y": t["A"] @ t["W"]}


def matrix_vector(t: Tensors) -> Outputs:
    return {"Y": t["A"] @ t["V"]}


def norm_linear(t: Tensors) -> Outputs:
    return {"Y": torch.addmm(t["Bias"], norm(t["A"]), t["W"])}


def linear_norm(t: Tensors) -> Outputs:
    return {"Y": norm(t["A"] @ t["W"] + t["R"])}


def mlp(t: Tensors) -> Outputs:
    return {"Y": F.gelu(torch.addmm(t["B1"], t["A"], t["W1"])) @ t["W2"]}


def qkv(t: Tensors) -> Outputs:
    k = torch.clamp(t["A"] @ t["Wk"] * 20.0, -128, 127)
    quantised = k if k.dtype is torch.float64 else torch.round(k).to(torch.int8)
    return {"Yq": t["A"] @ t["Wq"], "Yk": quantised, "Yv": t["A"] @ t["Wv"]}


def int8_linear(t: Tensors) -> Outputs:
    if t["A"].dtype is torch.float64:
        return {"Y": t["A"] @ t["W"]}
    return {"Y": torch._int_mm(t["A"], t["W"])}


def attention(t: Tensors) -> Outputs:
    q, k, v = (t[n].unsqueeze(0) for n in "QKV")
    return {"Y": F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(0)}


def attention_mask(t: Tensors) -> Outputs:
    q, k, v = (t[n].unsqueeze(0) for n in "QKV")
    mask = t["Mask"][None, None, None, :].expand(1, q.shape[1], q.shape[2], -1)
    return {"Y": F.scaled_dot_product_attention(q, k, v, attn_mask=mask).squeeze(0)}


# ---- windows: NHWC in memory is channels_last in torch ---------------------------------------------------------------
def images(t: Tensors) -> dict[str, Any]:
    """Views of the images, and filters as torch wants them: made once, not timed."""
    w = t.get("Wt")
    made = {name: x.permute(0, 3, 1, 2) if x.dim() == 4 and name != "Wt" else x for name, x in t.items()}
    if w is not None:
        w = w.permute(2, 0, 1).unsqueeze(1) if w.dim() == 3 else w.permute(3, 2, 0, 1)
        made["Wt"] = w.contiguous(memory_format=torch.channels_last)
    return made


def conv(t: Tensors) -> Outputs:
    return {"Y": torch.relu(F.conv2d(t["X"], t["Wt"], t["Bias"], padding=1) + t["R"]).permute(0, 2, 3, 1)}


def depthwise(t: Tensors) -> Outputs:
    return {"Y": torch.relu(F.conv2d(t["X"], t["Wt"], padding=1, groups=t["X"].shape[1])).permute(0, 2, 3, 1)}


def max_pool(t: Tensors) -> Outputs:
    return {"Y": F.max_pool2d(t["X"], 3, 2, 1).permute(0, 2, 3, 1)}


def conv_pool(t: Tensors) -> Outputs:
    x = torch.relu(F.conv2d(t["X"], t["Wt"], t["Bias"], padding=1))
    return {"Y": F.max_pool2d(x, 3, 2, 1).permute(0, 2, 3, 1)}


# ---- points ----------------------------------------------------------------------------------------------------------
def chain(t: Tensors) -> Outputs:
    a, b, i, m = t["A"], t["B"], t["I"], t["M"]
    x = a * b + i.to(a.dtype)
    big = (x > 0.5) & ~m
    small = i.to(torch.int8)
    return {
        "X": torch.where(big, x, 0.0),
        "Z": big | (i % 3 == 0),
        "J": torch.div(i - 7, 2, rounding_mode="trunc"),
        "K": small + torch.where(m, torch.ones_like(small), small),
        "P": torch.arange(len(a), device=a.device).to(a.dtype) * 0.5,
    }


def two_outputs(t: Tensors) -> Outputs:
    x = torch.relu(t["X"])
    return {"S": x.sum(1), "Y": x * 2}


def transposed_add(t: Tensors) -> Outputs:
    return {"Y": torch.relu(t["X"].T) + t["A"]}


def reshaped(t: Tensors) -> Outputs:
    depth = t["T"].shape[2]
    return {"Y": t["X"] * t["Scale"].repeat_interleave(depth) + t["T"].transpose(0, 1).reshape(t["X"].shape)}


def gather_columns(t: Tensors) -> Outputs:
    return {"Y": t["X"][:, t["Ids"]] + torch.gather(t["Table"], 0, t["Ids"][None, :])}


def shuffle(t: Tensors) -> Outputs:
    return {"Y": torch.relu(t["X"].view(-1, 8, t["X"].shape[1] // 8).transpose(1, 2).reshape(t["X"].shape))}


def bf16(program: Program) -> Program:
    return with_storage(program, BF16)


# ---- the entries -----------------------------------------------------------------------------------------------------
def entries() -> list[Entry]:
    return [*row_entries(), *point_entries(), *matrix_entries(), *attention_entries(), *window_entries()]


def row_entries() -> list[Entry]:
    r = {"R": 16384}
    ids = {"Ids": (-30522, 30522), "Kind": (0, 2)}
    pixels = bf16(rows.two_axes_mean(7, 7, 2048))
    return [
        Entry("add + LayerNorm + GELU, 16384x1024 f32", rows.layernorm_gelu(1024), r, layernorm_gelu),
        Entry("add + LayerNorm + GELU, 16384x1000 f32", rows.layernorm_gelu(1000), r, layernorm_gelu),
        Entry("add + LayerNorm + GELU, 16384x4096 bf16", bf16(rows.layernorm_gelu(4096)), r, layernorm_gelu),
        Entry("softmax, whole row 16384x1024 f32", rows.softmax_row(1024), r, softmax),
        Entry("softmax, two loops 2048x50257 f32", rows.softmax_loops(50257), {"R": 2048}, softmax),
        Entry("row max 16384x1000 f32", rows.row_reduction("max", 1000), r, row_max),
        Entry("column sum 4096x16384 f32", rows.column_sum(4096), {"N": 16384}, column_sum),
        Entry("mean over 7x7, 256x7x7x2048 bf16", pixels, {"B": 256}, pixel_mean),
        Entry("embedding + LayerNorm 16384x768 f32", rows.embedding_layernorm(30522, 768), r, embedding, ranges=ids),
    ]


def point_entries() -> list[Entry]:
    r, gathered = {"R": 16384}, points.gather_columns(1024, 256)
    return [
        Entry("integer and bool chain, 2^24 elements", points.chain(), {"N": 1 << 24}, chain),
        Entry("two outputs, 16384x1024 f32", points.two_outputs(1024), r, two_outputs),
        Entry("transpose + ReLU + add, 8192x4096 f32", points.transposed_add(8192, 4096), {}, transposed_add),
        Entry("split heads, 16384x(16x64) f32", points.reshaped(16, 64), {"S": 16384}, reshaped),
        Entry("channel shuffle, 65536x(8x64) f32", points.shuffled(8, 64), {"R": 65536}, shuffle),
        Entry("gather along lanes, 16384x1024 f32", gathered, r, gather_columns, ranges={"Ids": (0, 256)}),
    ]


def matrix_entries() -> list[Entry]:
    def gelu(m: int, n: int, k: int, kind: str) -> Entry:
        programs = {
            "bf16": lambda: matrix.linear_gelu(n, k, dtype=BF16),
            "tf32": lambda: with_precision(matrix.linear_gelu(n, k), "tf32"),
            "fp32": lambda: matrix.linear_gelu(n, k),
        }
        name = f"linear + bias + GELU {m}x{n}x{k} {kind}"
        return Entry(name, programs[kind](), {"M": m}, linear_gelu, 2 * m * n * k)

    def other(name: str, program: Program, sizes: Mapping[str, int], peer: Peer, flops: int, **more: Any) -> Entry:
        return Entry(f"{name} bf16", bf16(program), sizes, peer, flops, **more)

    small = {"A": (-8, 8), "W": (-8, 8)}
    integers = matrix.integer_linear(4096, 4096)
    vector = matrix.matrix_vector(4096)
    m = {"M": 65536}
    return [
        gelu(4096, 4096, 4096, "bf16"),
        *(gelu(8192, 3072, 768, kind) for kind in ("bf16", "tf32", "fp32")),
        gelu(128, 3072, 768, "bf16"),
        Entry("int8 linear 4096x4096x4096", integers, {"M": 4096}, int8_linear, 2 * 4096**3, small),
        Entry("matrix times vector 32768x4096 f32", vector, {"M": 32768}, matrix_vector),
        other(
            "Q/K/V, int8 K, 8192x768x768", matrix.qkv(768, 768), {"M": 8192}, qkv, 6 * 8192 * 768**2, rounded=("Yk",)
        ),
        other("split K 16x4096x16384 in 8", matrix.split_k(4096, 16384, 8), {"M": 16}, linear, 2 * 16 * 4096 * 16384),
        other("batched product 256x512x64x64", matrix.batched(64, 64), {"B": 256, "M": 512}, product, 2**30),
        other("LayerNorm -> linear 65536x256x256", matrix.layernorm_linear(256, 256), m, norm_linear, 2**33),
        other("linear -> GELU -> linear 65536x64x256x64", matrix.mlp(64, 256, 64), m, mlp, 4 * 65536 * 64 * 256),
        other("linear + LayerNorm 65536x256x1024", matrix.linear_layernorm(256, 1024), m, linear_norm, 2**35),
    ]


def attention_entries() -> list[Entry]:
    made = []
    for heads, s, d in ((96, 512, 64), (64, 2048, 64), (32, 4096, 128)):
        program = matrix.attention(s, d, dtype=BF16)
        flops = 2 * heads * s * s * d  # two products over half of the square
        made.append(Entry(f"causal attention {heads}x{s}x{d} bf16", program, {"H": heads}, attention, flops))
    program, sizes = bf16(matrix.attention_row(256, 64)), {"H": 192, "S": 256}
    flops = 4 * 192 * 256 * 256 * 64
    return [*made, Entry("attention, whole row 192x256x64 bf16", program, sizes, attention_mask, flops)]


def window_entries() -> list[Entry]:
    made = []
    for h, c in ((56, 64), (28, 128), (14, 256)):
        name, program = f"conv + bias + residual + ReLU 32x{h}x{h}x{c} bf16", bf16(windows.conv(h, h, c, c))
        made.append(Entry(name, program, {"B": 32}, conv, 2 * 32 * h * h * 9 * c * c, prepare=images))
    pooled, flops = bf16(windows.conv_relu_max_pool(112, 112, 16, 32)), 2 * 8 * 112 * 112 * 9 * 16 * 32
    deep = bf16(windows.depthwise(56, 56, 128))
    pool = bf16(windows.max_pool(112, 112, 64, windows.Window(3, 2)))
    return [
        *made,
        Entry("conv + ReLU + max-pool 8x112x112 16->32 bf16", pooled, {"B": 8}, conv_pool, flops, prepare=images),
        Entry("depthwise + ReLU 64x56x56x128 bf16", deep, {"B": 64}, depthwise, prepare=images),
        Entry("max-pool 3x3 stride 2 64x112x112x64 bf16", pool, {"B": 64}, max_pool, prepare=images),
    ]
