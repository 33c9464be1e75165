"""Times of one model under several runtimes, so measured that they can be compared.

    report = bench("model.onnx", feeds, threads=2, seconds=3)
    report.text()                                  # a table: time, spread, ratio, compile time, memory, difference
    report.comparison("onnxruntime").ratio         # 1.31: this engine is 1.31 times as fast

One process for each contender, and only one of them awake at a time: the others are stopped (SIGSTOP), because runtimes
spin after a call. Blocks of about half a second in rotated order; a contender's time is the median of its blocks'
medians, a ratio the median over the rounds. Threads, precision (fp32) and inputs are equal, and outputs are compared.
A contender that fails or crashes is reported with its reason; the others go on.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from opfuse.report.processes import Contender, ContenderFailed, Process
from opfuse.report.render import WIDEST, size
from opfuse.report.render import seconds as time_text
from opfuse.runtime.cache import default_directory
from opfuse.target import host
from opfuse.tune.calibrate import rates_for, store_rates

BLOCK_SECONDS = 0.5
WARM_SECONDS = 0.05  # untimed calls at the start of a block
OPEN_TIMEOUT, CALL_TIMEOUT = 900.0, 120.0


@dataclass(frozen=True)
class Timing:
    """What was measured of one contender. Seconds and bytes; `error` says why it has no times."""

    name: str
    version: str = ""
    error: str = ""
    median_s: float | None = None
    low_s: float | None = None  # the fastest and the slowest block
    high_s: float | None = None
    calls: int = 0
    blocks: tuple[float, ...] = ()
    import_s: float | None = None
    compile_s: float | None = None
    first_call_s: float | None = None
    memory_bytes: int | None = None  # growth of the resident set by opening the model and calling it once
    peak_bytes: int | None = None
    difference: float | None = None  # largest |a - b| / largest |b| over the outputs, b the reference's


@dataclass(frozen=True)
class Comparison:
    """How many times as fast as `against` the first contender is: median, least and greatest of the rounds."""

    against: str
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class BenchReport:
    model: str
    threads: int
    precision: str
    shapes: Mapping[str, tuple[int, ...]]
    seconds: float
    reference: str  # whose outputs the others are compared with
    timings: tuple[Timing, ...]
    comparisons: tuple[Comparison, ...]
    facts: Mapping[str, str] = field(default_factory=dict)

    def timing(self, name: str) -> Timing:
        return next(t for t in self.timings if t.name == name)

    def comparison(self, against: str) -> Comparison | None:
        """None where one of the two has no times."""
        return next((c for c in self.comparisons if c.against == against), None)

    def to_json(self) -> dict[str, Any]:
        return {"schema": 1, **asdict(self), "shapes": {k: list(v) for k, v in self.shapes.items()}}

    def text(self, width: int = WIDEST) -> str:
        return as_text(self, width)


def bench(
    model: str | Path,
    feeds: Mapping[str, np.ndarray],
    contenders: Sequence[str | Contender] = ("opfuse", "onnxruntime", "openvino"),
    *,
    threads: int = 1,
    seconds: float = 3.0,
    block_seconds: float = BLOCK_SECONDS,
    progress: Callable[[str], None] | None = None,
) -> BenchReport:
    """Time `model` on `feeds` under every contender for `seconds` each. ValueError for an unknown contender's name.

    The first contender is the one that the comparisons are about; outputs are compared with those of the first
    of the others that runs (its own where it is alone).
    """
    say = progress or (lambda _: None)
    known = [Contender.named(c) if isinstance(c, str) else c for c in contenders]
    processes: dict[str, Process] = {}
    with tempfile.TemporaryDirectory(prefix="opfuse-bench-") as folder:
        if any(c.name == "opfuse" for c in known):
            say("opfuse: rates of the machine")
            take_rates(Path(folder), threads)
        try:
            opened: dict[str, dict[str, Any]] = {}
            for contender in known:
                say(f"{contender.name}: opening {Path(model).name}")
                process = processes[contender.name] = Process(contender, Path(folder))
                request = open_request(Path(model), feeds, threads, Path(folder), contender.name)
                opened[contender.name] = process.ask(request, OPEN_TIMEOUT)
            rounds = run_rounds(list(processes.values()), seconds, block_seconds, say)
        finally:
            for process in processes.values():
                process.end()
        outputs = {n: load_outputs(Path(folder), n) for n, p in processes.items() if not p.error}
    reference = reference_of([c.name for c in known], outputs)
    timings = tuple(
        timing_of(p, opened[n], [r[n] for r in rounds if n in r], difference(outputs.get(n), outputs.get(reference)))
        for n, p in processes.items()
    )
    return BenchReport(
        Path(model).name, threads, "fp32", {k: tuple(v.shape) for k, v in feeds.items()}, seconds, reference, timings,
        compare([c.name for c in known], rounds),
    )  # fmt: skip


def take_rates(folder: Path, threads: int) -> None:
    """Bring the machine's rates into the fresh cache of a benchmark: measuring them is no part of compiling a model."""
    target = host(threads)
    store_rates(target, rates_for(target, default_directory()), folder)


def open_request(model: Path, feeds: Mapping[str, np.ndarray], threads: int, folder: Path, name: str) -> dict[str, Any]:
    """The files that a contender reads; input names go beside the archive, since they may hold any character."""
    path = folder / "feeds.npz"
    if not path.exists():
        np.savez(path, *(np.asarray(a) for a in feeds.values()))
    return {
        "do": "open", "model": str(model.resolve()), "feeds": str(path), "names": list(feeds), "threads": threads,
        "outputs": str(folder / f"outputs-{name}.npz"), "folder": str(folder),
    }  # fmt: skip


Round = dict[str, dict[str, Any]]  # contender -> its block in this round


def run_rounds(processes: Sequence[Process], seconds: float, block: float, say: Callable[[str], None]) -> list[Round]:
    """Blocks of every contender that lives, in an order that rotates from round to round."""
    count = max(3, round(seconds / block))
    rounds: list[Round] = []
    for k in range(count):
        start = k % max(1, len(processes))
        done: Round = {}
        for process in (*processes[start:], *processes[:start]):
            if not process.error:
                say(f"{process.name}: block {k + 1} of {count}")
                request = {"do": "block", "seconds": block, "warm_seconds": WARM_SECONDS}
                reply = process.ask(request, CALL_TIMEOUT + block)
                if not process.error:
                    done[process.name] = reply
        rounds.append(done)
    return rounds


def load_outputs(folder: Path, name: str) -> list[np.ndarray]:
    with np.load(folder / f"outputs-{name}.npz", allow_pickle=False) as archive:
        return [archive[k] for k in archive.files]


def reference_of(names: Sequence[str], outputs: Mapping[str, object]) -> str:
    """The first of the others that has outputs, or the first contender itself; empty where nobody ran."""
    return next((n for n in (*names[1:], *names[:1]) if n in outputs), "")


def difference(ours: list[np.ndarray] | None, theirs: list[np.ndarray] | None) -> float | None:
    """Largest |a - b| over the largest |b|, over all outputs; infinite where shapes, counts or places of NaN differ."""
    if ours is None or theirs is None:
        return None
    if len(ours) != len(theirs):
        return float("inf")
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if a.shape != b.shape:
            return float("inf")
        x, y = a.astype(np.float64), b.astype(np.float64)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        if not np.all(same | (np.isfinite(x) & np.isfinite(y))):
            return float("inf")
        apart = np.abs(np.subtract(x, y, where=~same, out=np.zeros_like(x)))
        scale = np.max(np.abs(y), initial=0.0, where=np.isfinite(y))
        if apart.size and apart.max() > 0:
            worst = max(worst, float(apart.max() / scale) if scale else float("inf"))
    return worst


def timing_of(process: Process, opened: Mapping[str, Any], blocks: list[dict[str, Any]], apart: float | None) -> Timing:
    if process.error:
        return Timing(process.name, error=process.error)
    medians = tuple(float(b["median_s"]) for b in blocks)
    return Timing(
        process.name, **opened, median_s=statistics.median(medians), low_s=min(medians), high_s=max(medians),
        calls=sum(int(b["calls"]) for b in blocks), blocks=medians, difference=apart,
    )  # fmt: skip


def compare(names: Sequence[str], rounds: Sequence[Round]) -> tuple[Comparison, ...]:
    """The first contender against each of the others, round by round, so that a slow minute weighs on both."""
    out = []
    for other in names[1:]:
        ratios = [r[other]["median_s"] / r[names[0]]["median_s"] for r in rounds if other in r and names[0] in r]
        if ratios:
            out.append(Comparison(other, statistics.median(ratios), min(ratios), max(ratios)))
    return tuple(out)


# ---- text ------------------------------------------------------------------------------------------------------------
def as_text(report: BenchReport, width: int) -> str:
    """A row for each runtime; a column for each where rows are too wide."""
    shapes = ", ".join(f"{k} {'x'.join(map(str, v)) or 'scalar'}" for k, v in report.shapes.items())
    threads = f"{report.threads} thread{'s' if report.threads != 1 else ''}"
    head = f"{report.model}: {threads}, {report.precision}, {shapes}"
    rows = [("", "time a call", "blocks", "against", "compile", "memory", "difference")]
    for t in report.timings:
        if t.error:
            continue
        c = report.comparison(t.name)
        rows.append((
            f"{t.name} {t.version}", time_text(t.median_s), f"{time_text(t.low_s)} .. {time_text(t.high_s)}",
            f"{c.ratio:.2f}x ({c.low:.2f} .. {c.high:.2f})" if c else "-",
            time_text(t.compile_s), size(t.memory_bytes or 0),
            "reference" if t.name == report.reference else f"{t.difference:.1e}" if t.difference is not None else "-",
        ))  # fmt: skip
    lines = _aligned(rows)
    if max(map(len, lines)) > width:
        lines = _aligned(list(zip(*rows, strict=True)))
    failed = [f"{t.name}: not measured: {t.error}" for t in report.timings if t.error]
    return "\n".join([head, *lines, *failed])


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(r[k]) for r in rows) for k in range(len(rows[0]))]
    return ["  ".join(cell.ljust(w) for cell, w in zip(r, widths, strict=True)).rstrip() for r in rows]


__all__ = ["BenchReport", "Comparison", "Contender", "ContenderFailed", "Timing", "bench"]
