"""Turning numbers and names into text that fits a terminal: units, shortened names, tables.

    seconds(1.23e-5) -> "12.3 µs"      size(4_800_000) -> "4.80 MB"      shorten("/model/layer.0/attention/MatMul", 20)
    print_text(plain([table]), width=80)    # the same text on a terminal and through a pipe, colours apart

Sizes are decimal (1 MB = 1e6 bytes), as bandwidths are. Names are cut in the middle, because ONNX node names differ at
their ends; where the start is a long common prefix, `common_prefix` finds it and the caller prints it once.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

WIDTH = 100  # columns of a text that is not printed to a terminal
NARROWEST, WIDEST = 60, 140


def _scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    """Three significant digits in the largest unit that the value fills (the smallest unit where it fills none)."""
    chosen = next((u for u in units if abs(value) >= u[0] * 0.9995), units[-1])
    number = value / chosen[0]
    if abs(number) >= 99.95:
        return f"{number:.0f} {chosen[1]}"
    return f"{number:.1f} {chosen[1]}" if abs(number) >= 9.995 else f"{number:.2f} {chosen[1]}"


def seconds(value: float | None) -> str:
    """A time with a unit; "-" where there is none yet."""
    if value is None:
        return "-"
    return "0 s" if value == 0 else _scaled(value, ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")))


def size(value: int) -> str:
    if abs(value) < 1000:
        return f"{value} B"
    return _scaled(value, ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")))


def count(value: int) -> str:
    """A number of operations: 231 M, 4.1 G."""
    if abs(value) < 1000:
        return str(value)
    return _scaled(value, ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")))


def ratio(larger: float, smaller: float) -> str:
    return f"{larger / smaller:.2f}x" if smaller else "-"


def plural(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def shorten(text: str, width: int) -> str:
    """The text, its middle cut out where it is longer than `width`; more of the end is kept than of the start."""
    if len(text) <= width:
        return text
    if width <= 3:
        return text[-width:] if width > 0 else ""
    start = (width - 1) // 3
    return f"{text[:start]}…{text[len(text) - (width - 1 - start):]}"


def common_prefix(names: Iterable[str], separators: str = "/.") -> str:
    """The longest start that all names share, up to and with a separator; "" where it is not worth a line."""
    listed = list(names)
    if len(listed) < 2:
        return ""
    low, high = min(listed), max(listed)
    length = next((k for k, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), min(len(low), len(high)))
    cut = max((low[:length].rfind(s) for s in separators), default=-1) + 1
    return low[:cut] if cut >= 8 else ""


def names_in(names: Sequence[str], width: int) -> str:
    """As many names as fit into `width`, each shortened where it must be, then how many are left: "conv1, relu1 +2"."""
    if not names:
        return "-"
    best = ""
    for shown in range(1, len(names) + 1):
        rest = f" +{len(names) - shown}" if shown < len(names) else ""
        text = ", ".join(names[:shown]) + rest
        if len(text) > width:
            break
        best = text
    if best:
        return best
    rest = f" +{len(names) - 1}" if len(names) > 1 else ""
    return shorten(names[0], max(4, width - len(rest))) + rest


def title(text: str) -> Text:
    return Text(text, style="bold")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = (),
          wrap: Sequence[str] = ()) -> Table:  # fmt: skip
    """A table without frames. Columns in `right` are right-aligned; only those in `wrap` may take several lines, the
    first of them twice as wide as the others.
    """
    out = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    shares = {name: 2 if k == 0 else 1 for k, name in enumerate(wrap)}
    for name in columns:
        wraps = name in wrap
        out.add_column(name, justify="right" if name in right else "left", no_wrap=not wraps,
                       overflow="fold" if wraps else "ellipsis", ratio=shares.get(name))  # fmt: skip
    for row in rows:
        out.add_row(*(Text(cell) for cell in row))
    return out


def clamp_width(width: int) -> int:
    return max(NARROWEST, min(WIDEST, width))


def plain(parts: Iterable[RenderableType], width: int = WIDTH) -> str:
    """The parts as text without colours, no line ending in blanks."""
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, force_terminal=False, legacy_windows=False, emoji=False,
                      highlight=False, markup=False)  # fmt: skip
    for part in parts:
        console.print(part)
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    return "\n".join(lines).strip("\n") + "\n"
