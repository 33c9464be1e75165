"""Small texts of the command line: the outputs of a run, the table of supported operators.

    outputs_table([{"name": "y", "dtype": "float32", "shape": [1, 10], "min": 0.1, ...}], width=80)
    operators_table(supported())
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType

from opfuse.frontends.onnx.imports import SupportedOperator
from opfuse.report.render import shorten, table


def outputs_table(outputs: Sequence[Mapping[str, Any]], width: int) -> RenderableType:
    """Name, type, shape, least, mean and greatest value of each output, and the file that it was written to."""
    files = any("file" in o for o in outputs)
    room = max(16, width - (64 if files else 44))
    rows = []
    for o in outputs:
        numbers = [f"{o[k]:.5g}" if k in o else "-" for k in ("min", "mean", "max")]
        shape = "x".join(map(str, o["shape"])) or "scalar"
        written = [str(o.get("file", ""))] if files else []
        rows.append([shorten(o["name"], room), o["dtype"], shape, *numbers, *written])
    columns = ["output", "type", "shape", "min", "mean", "max", *(["written to"] if files else [])]
    return table(columns, rows, right=("min", "mean", "max"), wrap=("written to",))


def operators_table(operators: Sequence[SupportedOperator]) -> RenderableType:
    """Domain, operator, opsets, and the IR operators that it becomes."""
    opsets = [", ".join(f"{a}" if a == b else f"{a}-{b}" for a, b in o.opsets) for o in operators]
    rows = [(o.domain or "ai.onnx", o.op, n, ", ".join(o.emits)) for o, n in zip(operators, opsets, strict=True)]
    return table(("domain", "operator", "opsets", "becomes"), rows, wrap=("becomes",))
