"""Small texts of the command line: the outputs of a run, the table of supported operators.

    outputs_table([{"name": "y", "dtype": "float32", "shape": [1, 10], "min": 0.1, ...}], width=80)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType

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


def operators_table(rows: Sequence[Mapping[str, Any]], width: int) -> RenderableType:
    """Whatever the import table says of an operator, a column a field."""
    columns = list(dict.fromkeys(k for r in rows for k in r))
    cells = [[_cell(r.get(c, "")) for c in columns] for r in rows]
    return table(columns, cells, wrap=columns[-1:] if len(columns) > 1 else ())


def _cell(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
