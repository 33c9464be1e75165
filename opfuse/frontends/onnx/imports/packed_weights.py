"""Products with weights of a few bits, several in a byte.

MatMulNBits(a [M, K], b [N, blocks, bytes], scales, zero points)   -> matmul(a, constant floats [K, N])

The weights are unpacked once, at import: they stand in memory as floats, and the product is any other.
"""

from __future__ import annotations

import numpy as np

from opfuse.frontends.onnx.call import Call, InvalidNode
from opfuse.frontends.onnx.imports.definition import MICROSOFT, Import


def unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """Numbers of 2, 4 or 8 bits, the lowest bits of a byte first; the last axis grows."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(parts.reshape(*packed.shape[:-1], -1))


def matmul_n_bits(call: Call) -> str:
    a, (k, n) = call.input(0), (call.int_attribute("K"), call.int_attribute("N"))
    bits, block = call.int_attribute("bits", 4), call.int_attribute("block_size")
    if bits not in (2, 4, 8) or block < 1:
        raise InvalidNode(f"it has weights of {bits} bits in blocks of {block}")
    if call.has(4):
        call.unsupported("an order of its own for the rows (its input g_idx) is not supported")
    blocks = -(-k // block)
    scales, numbers = call.constant(2).reshape(n, blocks, 1), unpacked(call.constant(1).reshape(n, blocks, -1), bits)
    if numbers.shape[2] != block:
        raise InvalidNode(f"its blocks hold {numbers.shape[2]} numbers, not {block}")
    centred = numbers.astype(np.float32) - _zero_points(call, n, blocks, bits)
    weight = (centred * scales.astype(np.float32)).reshape(n, blocks * block)[:, :k].T
    constant = call.graph.add_constant(np.ascontiguousarray(weight).astype(call.dtype(a).numpy))
    made = call.emit("matmul", [a, constant])
    return call.emit("add", [made, call.input(5)]) if call.has(5) else made


def _zero_points(call: Call, n: int, blocks: int, bits: int) -> np.ndarray:
    """[n, blocks, 1]: packed like the weights, row by row, or plain numbers; the middle of the range where left out."""
    if not call.has(3):
        return np.full((n, blocks, 1), 1 << bits - 1, np.float32)
    given = call.constant(3)
    rows = unpacked(given.reshape(n, -1), bits)[:, :blocks] if given.dtype == np.uint8 else given.reshape(n, blocks)
    return rows.reshape(n, blocks, 1).astype(np.float32)


IMPORTS: tuple[Import, ...] = (Import("MatMulNBits", (1,), matmul_n_bits, ("matmul", "add"), MICROSOFT),)
