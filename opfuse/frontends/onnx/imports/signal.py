"""Fourier transforms as matrix products, their windows as strided convolutions, and patches put back into an image.

DFT(x [B, n, 1])                     -> matmul(x [B, n], constant [n, 2 n])                      -> [B, n, 2]
STFT(x [B, L], step, window [n])     -> conv(x [B, 1, L], window * constant [2 K, 1, n], step)   -> [B, frames, K, 2]
MelWeightMatrix(constants)           -> a constant
Col2Im(x [N, C k, L])                -> conv_transpose(x [N, C k, L0, L1], ones and zeros [C k, 1, k0, k1])
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from opfuse.frontends.onnx.call import Call, InvalidNode
from opfuse.frontends.onnx.imports.definition import Import
from opfuse.frontends.onnx.types import element_type

LONGEST = 4096  # points of a transform: its matrix has the square of that


# ---- Fourier transforms ----------------------------------------------------------------------------------------------
def _turns(rows: int, columns: int, n: int) -> Any:
    """The angles 2 pi j k / n, j k taken modulo n first so that large products keep their digits."""
    return 2 * np.pi / n * (np.outer(np.arange(rows), np.arange(columns)) % n)


def transform(n: int, rows: int, columns: int, parts: int, inverse: bool) -> Any:
    """[parts * rows, 2 * columns]: from the input's real and imaginary parts to those of the output."""
    angle = _turns(rows, columns, n)
    cosine, sine = np.cos(angle), np.sin(angle)
    if inverse:
        cosine, sine = cosine / n, -sine / n
    of_real, of_imaginary = np.hstack([cosine, -sine]), np.hstack([sine, cosine])
    return of_real if parts == 1 else np.vstack([of_real, of_imaginary])


def real_inverse(n: int, rows: int) -> Any:
    """[2 * rows, n]: the first half of a spectrum to real numbers; every pair of conjugates counts twice."""
    twice = np.full((rows, 1), 2.0)
    twice[0] = 1
    if n % 2 == 0 and rows > n // 2:
        twice[n // 2] = 1
    angle = _turns(rows, n, n)
    return np.vstack([twice * np.cos(angle), -twice * np.sin(angle)]) / n


def dft(call: Call) -> str:
    x, rank = call.input(0), call.rank(call.input(0))
    axis = call.int_attribute("axis", 1) if call.version < 20 else int(call.item(2)) if call.has(2) else -2
    axis = call.axis(axis, rank)
    inverse, onesided = bool(call.int_attribute("inverse", 0)), bool(call.int_attribute("onesided", 0))
    parts, given = call.shape(x)[-1], call.shape(x)[axis]
    if not isinstance(given, int) or not isinstance(parts, int):
        call.needs_shapes(f"its length depends on {given}, whether it is complex on {parts}")
    if axis == rank - 1 or parts not in (1, 2):
        raise InvalidNode(f"axis {axis} of an input [..., {parts}]: its last axis holds 1 or 2 parts")
    backwards = inverse and onesided
    length = int(call.item(1)) if call.has(1) else 2 * (given - 1) if backwards else given
    if not 0 < length <= LONGEST:
        call.unsupported(f"it has {length} points; up to {LONGEST} are computed")
    rows = min(given, length // 2 + 1 if backwards else length)
    columns = length if backwards else length // 2 + 1 if onesided else length
    if backwards and parts != 2:
        raise InvalidNode("the half of a spectrum has real and imaginary parts")
    matrix = real_inverse(length, rows) if backwards else transform(length, rows, columns, parts, inverse)
    return _transformed(call, x, axis, rows, matrix, 1 if backwards else 2)


def _transformed(call: Call, x: str, axis: int, rows: int, matrix: Any, parts: int) -> str:
    """The product along an axis; the matrix's rows are parts of rows, its columns parts of columns."""
    rank, shape = call.rank(x), call.shape(x)
    if rows != shape[axis]:
        stops = tuple(rows if k == axis else d for k, d in enumerate(shape))
        x = call.emit("slice", [x], starts=(0,) * rank, stops=stops, steps=(1,) * rank)
    others = [k for k in range(rank) if k not in (axis, rank - 1)]
    x = call.transpose(x, (*others, rank - 1, axis))
    outer = tuple(shape[k] for k in others)
    flat = call.reshape(x, (*outer, matrix.shape[0]))
    constant = call.graph.add_constant(matrix.astype(call.dtype(x).numpy))
    made = call.reshape(call.emit("matmul", [flat, constant]), (*outer, parts, matrix.shape[1] // parts))
    back = sorted(range(rank), key=lambda k: [*others, rank - 1, axis][k])
    return call.transpose(made, back)


def stft(call: Call) -> str:
    """Frames and their transform at once: one filter for each part of each frequency, the window in it."""
    x, step = call.input(0), int(call.item(1))
    window, shape = call.optional(2), call.shape(x)
    parts = shape[2] if len(shape) == 3 else 1
    if not isinstance(parts, int):
        call.needs_shapes(f"whether its signal is complex depends on {parts}")
    if len(shape) not in (2, 3) or parts not in (1, 2):
        raise InvalidNode(f"its signal has rank {len(shape)}")
    length = call.shape(window)[0] if window is not None else int(call.item(3)) if call.has(3) else None
    if not isinstance(length, int) or not 0 < length <= LONGEST:
        call.unsupported(f"its frames have {length} points; up to {LONGEST} are computed")
    if call.has(3) and int(call.item(3)) != length:
        raise InvalidNode(f"its window has {length} numbers, its frames {int(call.item(3))}")
    onesided = bool(call.int_attribute("onesided", 1))
    bins = length // 2 + 1 if onesided else length
    matrix = transform(length, length, bins, parts, inverse=False).reshape(parts, length, 2 * bins).transpose(2, 0, 1)
    filters = call.graph.add_constant(np.ascontiguousarray(matrix).astype(call.dtype(x).numpy))
    if window is not None:
        filters = call.emit("mul", [filters, call.reshape(window, (1, 1, length))])
    signal = call.reshape(x, (shape[0], 1, shape[1])) if parts == 1 else call.transpose(x, (0, 2, 1))
    made = call.emit("conv", [signal, filters], strides=(step,), dilations=(1,), pads=(0, 0), group=1)
    frames = call.shape(made)[2]
    return call.transpose(call.reshape(made, (shape[0], 2, bins, frames)), (0, 3, 2, 1))


# ---- mel scale -------------------------------------------------------------------------------------------------------
def mel_weight_matrix(call: Call) -> str:
    """Triangles over the bins of a spectrum, even on the mel scale (O'Shaughnessy: 2595 log10(1 + f / 700))."""
    bands, length, rate, low, high = (call.item(k) for k in range(5))
    number = call.int_attribute("output_datatype", 1)
    mel_low, mel_high = (2595 * math.log10(1 + f / 700) for f in (low, high))
    mels = mel_low + np.arange(bands + 2) * (mel_high - mel_low) / (bands + 2)
    places = ((length + 1) * (700 * (10 ** (mels / 2595) - 1)) // rate).astype(np.int64)
    bins = np.arange(length // 2 + 1)[:, None]
    left, centre, right = places[:-2], places[1:-1], places[2:]
    with np.errstate(all="ignore"):
        rising = np.where((bins >= left) & (bins <= centre), (bins - left) / (centre - left), 0)
        falling = np.where((bins >= centre) & (bins < right), (right - bins) / (right - centre), 0)
    made = np.where(bins == centre, 1, np.where(bins < centre, rising, falling))
    return call.graph.add_constant(np.nan_to_num(made).astype(element_type(number).numpy))


# ---- patches ---------------------------------------------------------------------------------------------------------
def _numbers(call: Call, name: str, default: int, count: int) -> tuple[int, ...]:
    found = call.ints_attribute(name) or (default,) * count
    if len(found) != count:
        raise InvalidNode(f"its attribute {name!r} has {len(found)} numbers, and needs {count}")
    return found


def col2im(call: Call) -> str:
    """Each column is the weights of one position: a transposed convolution whose filters pick one tap each."""
    x, image, block = call.input(0), call.integers(1), call.integers(2)
    count, taps = len(block), math.prod(block)
    dilations, strides = _numbers(call, "dilations", 1, count), _numbers(call, "strides", 1, count)
    pads = _numbers(call, "pads", 0, 2 * count)
    spans = [(k - 1) * d + 1 for k, d in zip(block, dilations, strict=True)]
    room = [e + pads[k] + pads[count + k] - spans[k] for k, e in enumerate(image)]
    columns = call.shape(x)[1]
    if not isinstance(columns, int):
        call.needs_shapes(f"how many channels it has depends on {columns}")
    if len(image) != count or columns % taps or min(room) < 0:
        raise InvalidNode(f"{columns} columns for blocks {list(block)} of an image {list(image)}")
    places = tuple(r // s + 1 for r, s in zip(room, strides, strict=True))
    filters = np.tile(np.eye(taps).reshape(taps, 1, *block), (columns // taps, *(1,) * (count + 1)))
    weight = call.graph.add_constant(filters.astype(call.dtype(x).numpy))
    grid = call.reshape(x, (call.shape(x)[0], columns, *places))
    return call.emit(
        "conv_transpose", [grid, weight], strides=strides, dilations=dilations, pads=pads, group=columns // taps,
        output_padding=tuple(r % s for r, s in zip(room, strides, strict=True)),
    )  # fmt: skip


_PRODUCT = ("matmul", "slice", "transpose", "reshape")
IMPORTS: tuple[Import, ...] = (
    Import("DFT", (17, 20), dft, _PRODUCT),
    Import("STFT", (17,), stft, ("conv", "mul", "transpose", "reshape")),
    Import("MelWeightMatrix", (17,), mel_weight_matrix, ()),
    Import("Col2Im", (18,), col2im, ("conv_transpose", "reshape")),
)
