"""Counts of n-grams, and the two elementwise operators of classic machine learning on tensors.

TfIdfVectorizer(x [B, L])  -> for each n and skip: sum over places of (x at the n-gram's places == pool), then weights
Binarizer(x)               -> cast(x > threshold)
ArrayFeatureExtractor(x)   -> gather(x, places; last axis)
"""

from __future__ import annotations

import numpy as np
from onnx import AttributeProto, helper

from opfuse.frontends.onnx.call import Call, InvalidNode
from opfuse.frontends.onnx.imports.definition import Import
from opfuse.ir.dims import product
from opfuse.ir.types import DType

ML = "ai.onnx.ml"


def tfidf(call: Call) -> str:
    """Mode TF counts, IDF says whether it stands there at all, both times the weight, TFIDF is the weighted count."""
    x, mode = call.input(0), call.string_attribute("mode")
    if call.attribute("pool_int64s") is None:
        call.unsupported("a pool of strings is not supported")
    if mode not in ("TF", "IDF", "TFIDF"):
        raise InvalidNode(f"its mode {mode!r} is none of TF, IDF, TFIDF")
    rows = x if call.rank(x) == 2 else call.reshape(x, (1, *call.shape(x)))
    batch, length = call.shape(rows)
    if not isinstance(length, int):
        call.needs_shapes(f"how many places it has depends on {length}")
    pools, columns = _pools(call), np.array(call.ints_attribute("ngram_indexes"), np.int64)
    counts: list[str] = []
    for n, grams in pools.items():
        if len(grams):
            counts.append(_counted(call, rows, n, grams, length))
    total = call.emit("concat", counts, axis=1) if len(counts) > 1 else counts[0]
    width, kept = int(columns.max()) + 1, np.flatnonzero(_in_range(call, pools))
    source = np.zeros(width, np.int64)
    source[columns[kept]] = kept
    used = np.isin(np.arange(width), columns[kept])
    total = call.emit("gather", [total, call.graph.add_constant(source)], axis=1)
    total = _weighted(call, total, mode, np.where(used, _weights(call)[source], 0), used)
    return total if call.rank(x) == 2 else call.reshape(total, (width,))


def _pools(call: Call) -> dict[int, np.ndarray]:
    """n -> the n-grams of that length, in order; the pool holds all those of 1, then of 2, and so on."""
    pool = np.array(call.ints_attribute("pool_int64s"), np.int64)
    starts = [*(call.ints_attribute("ngram_counts") or ()), len(pool)]
    return {n + 1: pool[a:b].reshape(-1, n + 1) for n, (a, b) in enumerate(zip(starts, starts[1:], strict=False))}


def _in_range(call: Call, pools: dict[int, np.ndarray]) -> np.ndarray:
    """Which n-grams of the pool are counted."""
    low, high = call.int_attribute("min_gram_length"), call.int_attribute("max_gram_length")
    return np.array([low <= n <= high for n, grams in pools.items() for _ in grams], np.bool_)


def _counted(call: Call, rows: str, n: int, grams: np.ndarray, length: int) -> str:
    """[batch, grams]: how often each stands in a row, its numbers in a run or with up to the skips between them."""
    batch, kind = call.shape(rows)[0], call.dtype(rows)
    numbers = call.graph.add_constant(grams.reshape(1, len(grams), 1, n).astype(kind.numpy))
    total: str | None = None
    for skip in range(call.int_attribute("max_skip_count") + 1 if n > 1 else 1):
        places = length - (n - 1) * (skip + 1)
        if places <= 0:
            break
        index = np.arange(places)[:, None] + np.arange(n)[None] * (skip + 1)
        windows = call.emit("gather", [rows, call.graph.add_constant(index)], axis=1)
        same = call.emit("equal", [call.reshape(windows, (batch, 1, places, n)), numbers])
        whole = call.emit("reduce_min", [same], axes=(3,), keepdims=False)
        found = call.emit("reduce_sum", [call.cast(whole, DType.F32)], axes=(2,), keepdims=False)
        total = found if total is None else call.emit("add", [total, found])
    return total or call.emit("fill", [], shape=(batch, len(grams)), value=0.0, dtype=DType.F32)


def _weights(call: Call) -> np.ndarray:
    found = call.attribute("weights")
    if found is None:
        return np.ones(len(call.ints_attribute("ngram_indexes") or ()), np.float32)
    if found.type != AttributeProto.FLOATS:
        raise InvalidNode("its attribute 'weights' must be of type floats")
    return np.array(helper.get_attribute_value(found), np.float32)


def _weighted(call: Call, total: str, mode: str, weights: np.ndarray, used: np.ndarray) -> str:
    if mode != "TF":
        total = total if mode == "TFIDF" else call.cast(call.emit("greater", [total, call.scalar(0, total)]), DType.F32)
        return call.emit("mul", [total, call.graph.add_constant(weights.astype(np.float32))])
    return call.emit("where", [call.graph.add_constant(used), total, call.scalar(0, total)])


def binarizer(call: Call) -> str:
    x = call.input(0)
    above = call.emit("greater", [x, call.scalar(call.float_attribute("threshold", 0.0), x)])
    return call.cast(above, call.dtype(x))


def array_feature_extractor(call: Call) -> str:
    """A vector counts as one row."""
    x, places = call.input(0), call.input(1)
    rows = x if call.rank(x) > 1 else call.reshape(x, (1, *call.shape(x)))
    index = call.reshape(call.cast(places, DType.I64), (product(call.shape(places)),))
    return call.emit("gather", [rows, index], axis=call.rank(rows) - 1)


IMPORTS: tuple[Import, ...] = (
    Import("TfIdfVectorizer", (9,), tfidf,
           ("gather", "equal", "reduce_min", "reduce_sum", "cast", "add", "concat", "mul", "greater", "where", "fill",
            "reshape")),
    Import("Binarizer", (1,), binarizer, ("greater", "cast"), ML),
    Import("ArrayFeatureExtractor", (1,), array_feature_extractor, ("gather", "reshape", "cast"), ML),
)  # fmt: skip
