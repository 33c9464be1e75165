"""What verify found, as data and as text.

    report.passed, report.guilty, report.to_json(), report.text(width=100)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from opfuse.report.render import common_prefix, names_in, plain, plural, shorten, table, title

SCHEMA = 1
MANY = 24  # outputs times feeds; a text shows fewer of them


@dataclass(frozen=True)
class Distribution:
    """Absolute errors over elements; `share` is the largest in units of what is allowed (more than 1: wrong).

    `unjudged` elements are those that rounding may change as far as it likes (`error_bounds`).
    """

    max: float
    p50: float
    p99: float
    share: float
    elements: int
    unjudged: int

    @property
    def passed(self) -> bool:
        return self.share <= 1.0


@dataclass(frozen=True)
class RegionCheck:
    """One output of one region on one feed, against the region in float64 on the run's own inputs."""

    id: str  # of the kernel
    name: str
    nodes: tuple[str, ...]
    feed: str
    value: str
    errors: Distribution


@dataclass(frozen=True)
class OutputCheck:
    """One output of the model on one feed, against the unfused model in float64."""

    output: str
    feed: str
    errors: Distribution
    oracle_error: float  # the unfused model in its own types
    allowed: float


def worst_of(checks: Iterable[RegionCheck]) -> tuple[RegionCheck, ...]:
    """The worst feed of each region's outputs, in the order of the regions."""
    worst: dict[tuple[str, str], RegionCheck] = {}
    for check in checks:
        key = (check.id, check.value)
        if key not in worst or check.errors.share > worst[key].errors.share:
            worst[key] = check
    return tuple(worst.values())


@dataclass(frozen=True)
class Guilty:
    """What makes the model wrong, and how to do without it."""

    kind: str  # "region" | "rewrite" | "memory" | "unknown"
    id: str  # decision id; "" where there is none
    name: str
    nodes: tuple[str, ...]
    text: str
    way_out: str = ""


@dataclass(frozen=True)
class Report:
    model: str
    feeds: tuple[str, ...]
    outputs: tuple[OutputCheck, ...]
    regions: tuple[RegionCheck, ...]  # the worst feed of each
    repeatable: bool  # the model's run and the one that keeps every value agree bit for bit
    guilty: tuple[Guilty, ...] = ()

    @property
    def passed(self) -> bool:
        return self.repeatable and not self.failed_outputs and not self.failed_regions

    @property
    def failed_outputs(self) -> tuple[OutputCheck, ...]:
        return tuple(c for c in self.outputs if not c.errors.passed)

    @property
    def failed_regions(self) -> tuple[RegionCheck, ...]:
        return tuple(c for c in self.regions if not c.errors.passed)

    def with_guilty(self, guilty: Sequence[Guilty]) -> Report:
        return replace(self, guilty=tuple(guilty))

    def joined(self, other: Report) -> Report:
        """Of the same model, on feeds of other shapes."""
        return Report(self.model, self.feeds + other.feeds, self.outputs + other.outputs,
                      worst_of(self.regions + other.regions),
                      self.repeatable and other.repeatable, self.guilty + other.guilty)  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Plain data; `passed` is the verdict. Infinite errors are infinite floats."""
        return {
            "schema": SCHEMA, "model": self.model, "passed": self.passed, "feeds": list(self.feeds),
            "outputs": [asdict(c) | {"passed": c.errors.passed} for c in self.outputs],
            "regions": [asdict(c) | {"nodes": list(c.nodes), "passed": c.errors.passed} for c in self.regions],
            "repeatable": self.repeatable,
            "guilty": [asdict(g) | {"nodes": list(g.nodes)} for g in self.guilty],
        }  # fmt: skip

    def text(self, width: int = 100) -> str:
        return plain(self.parts(width), width)

    def __str__(self) -> str:
        return self.text()

    def parts(self, width: int) -> list[RenderableType]:
        """What to print: the verdict, the outputs, the regions nearest to their bounds, and who is guilty."""
        out: list[RenderableType] = [self._verdict(), Text(), *self._outputs(width)]
        if self.regions:
            out += [Text(), *self._regions(width)]
        for g in self.guilty:
            out += [Text(), title(f"Guilty: {g.kind} {g.name}"), Text(g.text)]
            out += [Text(g.way_out)] if g.way_out else []
        return out

    def _verdict(self) -> Text:
        regions = len({c.id for c in self.regions})
        what = f"{plural(regions, 'region')} and {plural(len({c.output for c in self.outputs}), 'output')}"
        text = Text()
        text.append(f"{self.model}: ", style="bold")
        if self.passed:
            text.append("right", style="bold green")
            text.append(f"  ({what} on {plural(len(self.feeds), 'feed')}, against float64)")
            return text
        text.append("WRONG", style="bold red")
        failed = len({c.id for c in self.failed_regions})
        text.append(f"  ({failed} of {plural(regions, 'region')} and {len(self.failed_outputs)} of "
                    f"{plural(len(self.outputs), 'output')}, over {plural(len(self.feeds), 'feed')})")  # fmt: skip
        if not self.repeatable:
            text.append("\nthe model's own run differs from the run that keeps every value")
        return text

    def _outputs(self, width: int) -> list[RenderableType]:
        shown = self._shown_outputs()
        feed = min(18, max((len(c.feed) for c in shown), default=0))
        name = max(8, min(28, width - 50 - feed))
        rows = [
            (shorten(c.output, name), shorten(c.feed, feed), _error(c.errors.max), _error(c.errors.p99),
             _error(c.errors.p50), _error(c.oracle_error), _error(c.allowed), _mark(c.errors))
            for c in shown
        ]  # fmt: skip
        columns = ("output", "feed", "max", "p99", "p50", "unfused", "allowed", "")
        some = "" if len(rows) == len(self.outputs) else f": the worst {len(rows)} of {len(self.outputs)}"
        note = "Errors are absolute, against the unfused model in float64; unfused: in its own types."
        return [title(f"Outputs{some}"), table(columns, rows, right=columns[2:7]), Text(note, style="dim")]

    def _shown_outputs(self) -> tuple[OutputCheck, ...]:
        """All where they are few; else those that fail and those that come nearest to it."""
        if len(self.outputs) <= MANY:
            return self.outputs
        ordered = sorted(self.outputs, key=lambda c: -c.errors.share)
        return tuple(ordered[: max(MANY // 2, len(self.failed_outputs))])

    def _regions(self, width: int) -> list[RenderableType]:
        """All that fail; of the others the few that come nearest to their bound."""
        ordered = sorted(self.regions, key=lambda c: -c.errors.share)
        shown = ordered[: max(5, len(self.failed_regions))]
        name, feed = (28, 18) if width >= 100 else (16, 14)
        cells = [
            (shorten(c.name, name), shorten(c.feed, feed), _error(c.errors.max), _error(c.errors.p99), _share(c.errors),
             _mark(c.errors))
            for c in shown
        ]  # fmt: skip
        columns = ("region", "feed", "max", "p99", "of bound", "")
        prefix = common_prefix(n for c in self.regions for n in c.nodes)
        room = width - sum(2 + max(len(head), *(len(row[k]) for row in cells)) for k, head in enumerate(columns))
        nodes = [[n.removeprefix(prefix) for n in c.nodes] for c in shown]
        rows = [(*row, names_in(names, max(12, room))) for row, names in zip(cells, nodes, strict=True)]
        few = f": {len(shown)} of their {plural(len(ordered), 'output')}, nearest to their bounds"
        some = "" if len(shown) == len(ordered) else few
        return [title(f"Regions{some}"), table((*columns, "nodes"), rows, right=columns[2:5])]


def _error(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}"


def _share(errors: Distribution) -> str:
    if errors.unjudged == errors.elements and errors.elements:
        return "not judged"
    return f"{errors.share:.0%}" if errors.share < 100 else f"{errors.share:.0e}x"


def _mark(errors: Distribution) -> str:
    return "ok" if errors.passed else "WRONG"
