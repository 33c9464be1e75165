"""Inputs for runs: integers stay within what the graph allows, edges are reached, files are read or refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from opfuse.errors import OptionError
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType
from opfuse.report.feeds import (
    adversarial_feeds,
    feed_specs,
    file_stem,
    folder_feeds,
    integer_span,
    load_npy,
    random_feed,
)


def embedding(rows: int = 11, positions: int = 5) -> Graph:
    """ids gather from `rows`, places (shifted by 2) from `positions`; mask becomes a float; x is a float."""
    g = Graph("embedding")
    g.add_input("ids", TensorType(DType.I64, (2, 6)))
    g.add_input("places", TensorType(DType.I32, (2, 6)))
    g.add_input("mask", TensorType(DType.I64, (2, 6)))
    g.add_input("x", TensorType(DType.F32, (2, 6)))
    words = g.add_constant(np.ones((rows, 4), np.float32), "words")
    table = g.add_constant(np.ones((positions, 4), np.float32), "table")
    flat = g.emit("reshape", ["ids"], {"shape": (12,)})
    a = g.emit("gather", [words, flat], {"axis": 0})
    wide = g.emit("cast", ["places"], {"to": DType.I64})
    shifted = g.emit("add", [wide, g.scalar(2, DType.I64)])
    b = g.emit("gather", [table, shifted], {"axis": 0})
    m = g.emit("cast", ["mask"], {"to": DType.F32})
    g.set_outputs({"a": a, "b": b, "m": g.emit("mul", [m, "x"])})
    return g


def test_token_ids_stay_below_the_rows_of_their_embedding() -> None:
    specs = {s.name: s for s in feed_specs(embedding())}
    assert (specs["ids"].span.low, specs["ids"].span.high) == (0, 10)
    assert (specs["places"].span.low, specs["places"].span.high) == (-2, 2), "two is added before the gather"
    assert (specs["mask"].span.low, specs["mask"].span.high) == (0, 1)
    assert "gathers from 11 rows" in specs["ids"].span.why


def test_the_smallest_gather_binds() -> None:
    g = Graph("two")
    g.add_input("ids", TensorType(DType.I64, (3,)))
    outs = [g.emit("gather", [g.add_constant(np.ones((n, 2), np.float32)), "ids"], {"axis": 0}) for n in (9, 4, 7)]
    g.set_outputs({f"y{k}": v for k, v in enumerate(outs)})
    assert feed_specs(g)[0].span.high == 3


def test_what_is_compared_with_an_iota_is_a_class() -> None:
    """One-hot by comparison: the classes that are compared with are what the input may be."""
    g = Graph("one_hot")
    g.add_input("bytes", TensorType(DType.I32, (2, 8)))
    column = g.emit("reshape", ["bytes"], {"shape": (2, 8, 1)})
    classes = g.add_constant(np.arange(257, dtype=np.int32).reshape(1, 1, 257))
    g.set_outputs({"y": g.emit("equal", [column, classes])})
    span = feed_specs(g)[0].span
    assert (span.low, span.high) == (0, 256)


def test_an_unsigned_type_bounds_its_span() -> None:
    g = Graph("small")
    g.add_input("ids", TensorType(DType.U8, (3,)))
    wide = g.emit("cast", ["ids"], {"to": DType.I64})
    g.set_outputs({"y": g.emit("gather", [g.add_constant(np.ones((1000, 2), np.float32)), wide], {"axis": 0})})
    assert (feed_specs(g)[0].span.low, feed_specs(g)[0].span.high) == (0, 255)


def test_random_feeds_have_types_and_shapes_and_are_repeatable() -> None:
    specs = feed_specs(embedding())
    feed, again, other = random_feed(specs, 0), random_feed(specs, 0), random_feed(specs, 1)
    assert {k: (v.dtype, v.shape) for k, v in feed.items()} == {s.name: (s.dtype.numpy, s.shape) for s in specs}
    assert all(np.array_equal(feed[k], again[k]) for k in feed)
    assert not np.array_equal(feed["x"], other["x"])
    assert feed["ids"].min() >= 0 and feed["ids"].max() <= 10 and len(set(feed["ids"].ravel())) > 3
    assert 0 < feed["mask"].mean() < 1


def test_adversarial_feeds_reach_the_edges() -> None:
    feeds = {f.name: f.arrays for f in adversarial_feeds(feed_specs(embedding()))}
    assert np.all(feeds["greatest integers"]["ids"] == 10) and np.all(feeds["least integers"]["places"] == -2)
    assert np.isnan(feeds["NaN"]["x"]).sum() == 1 and np.isinf(feeds["infinity"]["x"]).sum() == 1
    assert not feeds["zeros"]["x"].any() and 0 < np.signbit(feeds["zeros"]["x"]).mean() < 1
    assert np.all(feeds["constant rows"]["x"] == feeds["constant rows"]["x"][:, :1])
    assert np.abs(feeds["large"]["x"]).max() > 500 and np.abs(feeds["tiny"]["x"]).max() < 1e-28
    assert all(a["x"].dtype == np.float32 for a in feeds.values())


def test_a_model_without_floats_gets_integer_edges_only() -> None:
    g = Graph("ids")
    g.add_input("ids", TensorType(DType.I64, (3,)))
    g.set_outputs({"y": g.emit("gather", [g.add_constant(np.ones((5, 2), np.float32)), "ids"], {"axis": 0})})
    assert [f.name for f in adversarial_feeds(feed_specs(g))] == ["least integers", "greatest integers"]


# ---- files -----------------------------------------------------------------------------------------------------------
def test_every_npz_of_a_folder_is_a_feed(tmp_path: Path) -> None:
    for k in range(2):
        np.savez(tmp_path / f"{k}.npz", x=np.full(3, k), y=np.zeros(2))
    feeds = folder_feeds(["x", "y"], tmp_path)
    assert [f.name for f in feeds] == ["0.npz", "1.npz"] and feeds[1].arrays["x"][0] == 1


def test_npy_files_named_after_the_inputs_are_one_feed(tmp_path: Path) -> None:
    np.save(tmp_path / "a_b_0.npy", np.zeros(2))
    np.save(tmp_path / "y.npy", np.ones(2))
    (feed,) = folder_feeds(["a/b:0", "y"], tmp_path)
    assert set(feed.arrays) == {"a/b:0", "y"}


def test_with_one_input_every_npy_is_a_feed(tmp_path: Path) -> None:
    for k in range(3):
        np.save(tmp_path / f"image{k}.npy", np.full(2, k))
    assert [f.arrays["x"][0] for f in folder_feeds(["x"], tmp_path)] == [0, 1, 2]


def test_missing_and_unknown_arrays_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", x=np.zeros(1), z=np.zeros(1))
    with pytest.raises(OptionError, match=r"bad\.npz: it lacks y and it holds z"):
        folder_feeds(["x", "y"], tmp_path)


@pytest.mark.parametrize("content", [b"", b"not an array", b"PK\x03\x04broken"])
def test_broken_files_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    (tmp_path / "x.npz").write_bytes(content)
    with pytest.raises(OptionError, match=r"x\.npz"):
        folder_feeds(["x"], tmp_path)
    with pytest.raises(OptionError, match=r"x\.npy"):
        load_npy(tmp_path / "x.npy")


def test_pickles_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(OptionError, match=r"x\.npy"):
        load_npy(tmp_path / "x.npy")


def test_empty_and_missing_folders(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no .npz or .npy"):
        folder_feeds(["x"], tmp_path)
    with pytest.raises(OptionError, match="not a folder"):
        folder_feeds(["x"], tmp_path / "none")


@pytest.mark.parametrize(("name", "stem"), [("x", "x"), ("a/b:0", "a_b_0"), ("", "_"), ("..", "_"), ("é.1", "é.1")])
def test_file_names_of_inputs(name: str, stem: str) -> None:
    assert file_stem(name) == stem


def test_an_index_is_followed_through_any_number_of_moves() -> None:
    g = Graph("deep")
    here = g.add_input("i", TensorType(DType.I64, (4,)))
    for _ in range(1500):
        here = g.emit("reshape", [here], {"shape": (2, 2) if len(g.types[here].shape) == 1 else (4,)})
    rows = g.add_constant(np.zeros((9, 2), np.float32))
    g.set_outputs({"y": g.emit("gather", [rows, here], {"axis": 0})})
    span = integer_span(g, "i")
    assert (span.low, span.high) == (0, 8)
