"""One row of the import table: which versions of an ONNX operator a function understands, and what it emits.

    Import("LeakyRelu", (6, 16), leaky_relu, emits=("leaky_relu",))

`since` are the operator's own version numbers (its `since_version` in the ONNX specification), not the model's opset: a
model of opset 12 uses LeakyRelu-6. A version that is not listed is reported as unsupported, so that a change of meaning
in a later opset is never met by old code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from opfuse.frontends.onnx.call import Call

ImportFunction = Callable[[Call], "str | tuple[str | None, ...]"]
MICROSOFT = "com.microsoft"  # ONNX Runtime's own operators, all of version 1


@dataclass(frozen=True)
class Import:
    op: str
    since: tuple[int, ...]
    function: ImportFunction
    emits: tuple[str, ...]  # IR operators that it may emit
    domain: str = ""
    plain: int = 0  # inputs of a row made by `direct`; 0 for all others


def direct(op: str, since: tuple[int, ...], ir: str, count: int = 1) -> Import:
    """An operator that is an IR operator of `count` required inputs and no attributes."""
    return Import(op, since, lambda call: call.emit(ir, [call.input(k) for k in range(count)]), (ir,), plain=count)
