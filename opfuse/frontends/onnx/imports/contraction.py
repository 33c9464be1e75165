"""Matrix products.

Gemm(A, B, C, alpha=.5, transB=1)  -> add(mul(matmul(A, transpose(B)), .5), C)
FusedMatMul(A, B, transA=1)        -> matmul(transpose(A), B)
"""

from __future__ import annotations

from opfuse.frontends.onnx.call import Call, InvalidNode
from opfuse.frontends.onnx.imports.definition import MICROSOFT, Import, direct
from opfuse.frontends.onnx.imports.window import ACTIVATIONS, activate


def _transposed(call: Call, value: str, flag: str) -> str:
    """The value with its last two axes exchanged where the attribute asks for it."""
    if not call.int_attribute(flag, 0):
        return value
    rank = call.rank(value)
    return call.transpose(value, (*range(rank - 2), rank - 1, rank - 2)) if rank >= 2 else value


def _scaled(call: Call, value: str, attribute: str) -> str:
    factor = call.float_attribute(attribute, 1.0)
    return value if factor == 1.0 else call.emit("mul", [value, call.scalar(factor, value)])


def gemm(call: Call) -> str:
    a, b = call.input(0), call.input(1)
    for name, value in (("A", a), ("B", b)):
        if call.rank(value) != 2:
            raise InvalidNode(f"its input {name} has rank {call.rank(value)}, and must have rank 2")
    y = call.emit("matmul", [_transposed(call, a, "transA"), _transposed(call, b, "transB")])
    y = _scaled(call, y, "alpha")
    return call.emit("add", [y, _scaled(call, call.input(2), "beta")]) if call.has(2) else y


def fused_gemm(call: Call) -> str:
    return activate(call, gemm(call))


def fused_matmul(call: Call) -> str:
    if call.int_attribute("transBatchA", 0) or call.int_attribute("transBatchB", 0):
        call.unsupported("its attributes transBatchA and transBatchB are not supported")
    a, b = _transposed(call, call.input(0), "transA"), _transposed(call, call.input(1), "transB")
    return _scaled(call, call.emit("matmul", [a, b]), "alpha")


_GEMM = ("matmul", "transpose", "mul", "add")
IMPORTS: tuple[Import, ...] = (
    direct("MatMul", (1, 9, 13), "matmul", 2),
    Import("Gemm", (7, 9, 11, 13), gemm, _GEMM),
    Import("FusedGemm", (1,), fused_gemm, (*_GEMM, *ACTIVATIONS), MICROSOFT),
    Import("FusedMatMul", (1,), fused_matmul, ("matmul", "transpose", "mul"), MICROSOFT),
)  # fmt: skip
