"""Integer products by floats: parted so that every sum is a whole number that float32 holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import opfuse
from opfuse.frontends.onnx import load
from opfuse.frontends.onnx.imports.quantisation import EXACT, exact_parts
from tests.frontends.small_models import small

RNG = np.random.default_rng(17)


@pytest.mark.parametrize("terms", [1, 257, 258, 259, 1000, 3000])
@pytest.mark.parametrize("size", [0, 1, 7, 255])
def test_no_part_can_round(terms: int, size: int) -> None:
    sizes = RNG.integers(0, size + 1, (terms, 5))
    sizes[:, 2] = size
    parts = exact_parts(sizes, 255)
    assert [p[0] for p in parts[1:]] == [p[1] for p in parts[:-1]]
    assert parts[0][0] == 0 and parts[-1][1] == terms
    assert all(sizes[a:b].sum(0).max() * 255 < EXACT for a, b in parts)
    assert len(parts) <= -(-terms // 257)


def test_a_row_that_is_too_large_has_no_parts() -> None:
    assert exact_parts(np.full((3, 2), EXACT // 255 + 1), 255) == []


def _check(body: str, feeds: dict[str, np.ndarray], constants: dict[str, np.ndarray], right: np.ndarray,
           products: int, op: str, cache: Path) -> None:  # fmt: skip
    model = small(13, feeds, body, constants=constants)
    graph = load(model)
    assert [graph.types[n.inputs[0]].dtype.value for n in graph.nodes.values() if n.op == op] == ["f32"] * products
    (made,) = opfuse.compile(model, threads=1, calibrate=False, cache=cache)(feeds).values()
    np.testing.assert_array_equal(made, right)


@pytest.mark.parametrize(("terms", "products"), [(256, 1), (700, 3)])
def test_the_largest_numbers_there_are(terms: int, products: int, tmp_path: Path) -> None:
    """255 * 255 summed up: the last digit is right."""
    a, b = np.full((3, terms), 255, np.uint8), np.full((terms, 4), 255, np.uint8)
    a[1], b[0, 1] = RNG.integers(0, 256, terms), 254
    right = a.astype(np.int64) @ b.astype(np.int64)
    _check("y = MatMulInteger (a, b)", {"a": a}, {"b": b}, right, products, "matmul", tmp_path)


def test_zero_points_are_in_the_bound(tmp_path: Path) -> None:
    a, b = np.zeros((1, 600), np.uint8), np.full((600, 2), -128, np.int8)
    right = (a.astype(np.int64) - 255) @ (b.astype(np.int64) - 127)
    constants = {"b": b, "z": np.uint8(255), "w": np.int8(127)}
    _check("y = MatMulInteger (a, b, z, w)", {"a": a}, constants, right, 3, "matmul", tmp_path)


def test_a_convolution_is_parted_by_its_channels(tmp_path: Path) -> None:
    x, w = np.full((1, 100, 4, 3), 255, np.uint8), np.full((2, 100, 3, 3), 127, np.int8)
    x[0, :, 1] = RNG.integers(0, 256, (100, 3))
    windows = np.stack([x[0, :, k : k + 3].astype(np.int64).sum((0, 1, 2)) for k in range(2)])
    right = np.broadcast_to(windows.reshape(1, 1, 2, 1) * 127, (1, 2, 2, 1))
    _check("y = ConvInteger (x, w)", {"x": x}, {"w": w}, right, 2, "conv", tmp_path)
