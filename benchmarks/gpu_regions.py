"""Tile programs as Triton kernels on a CUDA machine: right against float64, and how fast beside PyTorch.

    PYTHONPATH=. python benchmarks/gpu_regions.py --conformance          # every test region at ragged sizes, no times
    PYTHONPATH=. python benchmarks/gpu_regions.py --json out.json        # times (minutes: most of it is torch.compile)
    PYTHONPATH=. python benchmarks/gpu_regions.py --only attention --no-compile

Times: one CUDA graph that holds a call on each of several sets of inputs (together beyond the L2 cache), replayed;
median of nine replays, divided by the calls. torch.compile is captured the same way. Every schedule that the chooser
offers is tried; the best is reported beside the default. TF32 is on for PyTorch's float32 products where the entry says
tf32 and off otherwise.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
for package in ("tests", "benchmarks"):  # folders of this repository, also where a wheel has installed such a name
    module = sys.modules.setdefault(package, types.ModuleType(package))
    module.__path__ = [str(ROOT / package)]

import numpy as np  # noqa: E402
import torch  # noqa: E402

from benchmarks.gpu_peers import Entry, entries  # noqa: E402
from opfuse.codegen.triton.choose import candidates  # noqa: E402
from opfuse.codegen.triton.launch import TORCH, load  # noqa: E402
from opfuse.codegen.triton.printer import print_program  # noqa: E402
from opfuse.decision import Refusal  # noqa: E402
from opfuse.ir.dims import bind  # noqa: E402
from opfuse.ir.types import DType  # noqa: E402
from opfuse.target import described  # noqa: E402
from opfuse.tile.schedule import Schedule  # noqa: E402
from opfuse.tile.text import schedule_text  # noqa: E402
from tests.codegen.triton_runner import guarded  # noqa: E402
from tests.tile.case import Case  # noqa: E402
from tests.tile.regions import CASES, FUNCTION_CASES  # noqa: E402

TARGET = described("h200")
COLD_BYTES = 200 << 20  # input sets together: four times the L2 cache of an H200
REPLAYS = 9
SHARDS = 8


# ---- in several processes, since compilation takes the time ----------------------------------------------------------
def spread(*arguments: str) -> list[str]:
    """Run this script in SHARDS processes, each with its share of the work; the JSON strings that they print."""
    command = [sys.executable, __file__, *arguments, "--shard"]
    running = [subprocess.Popen([*command, f"{k}/{SHARDS}"], stdout=subprocess.PIPE, text=True) for k in range(SHARDS)]
    lines = []
    for process in running:
        out, _ = process.communicate()
        lines += [json.loads(line) for line in out.splitlines() if line.startswith('"')]
        if process.returncode != 0:
            lines.append(f"a process ended with {process.returncode}")
    return lines


def conformance(only: str) -> int:
    """Every test region and scalar function on the device. Returns the number of faults."""
    began = time.perf_counter()
    faults = spread("--conformance", "--only", only)
    count = sum(only in c.name for c in (*CASES, *FUNCTION_CASES))
    print(f"conformance: {count} cases, {len(faults)} faults, {time.perf_counter() - began:.0f} s", flush=True)
    for fault in faults:
        print("  FAULT", fault, flush=True)
    return len(faults)


def conformance_shard(first: int, step: int, only: str) -> None:
    np.seterr(all="ignore")
    cases = [c for c in (*CASES, *FUNCTION_CASES) if only in c.name]
    with tempfile.TemporaryDirectory() as folder:
        for case in cases[first::step]:
            for fault in guarded(case, Path(folder), "cuda", every_size=True):
                print(json.dumps(fault), flush=True)


def precompile_shard(first: int, step: int, only: str) -> None:
    """Fill Triton's cache with what the timing process is about to run."""
    work = [(e, s) for e in entries() if only in e.name for s in candidates(e.program, TARGET)]
    with tempfile.TemporaryDirectory() as folder:
        for entry, schedule in work[first::step]:
            printed = print_program(entry.program, schedule, TARGET, entry.program.name)
            assert not isinstance(printed, Refusal)
            try:
                load(entry.program, printed, Path(folder)).compile(entry.sizes)
            except Exception as e:
                print(json.dumps(f"{entry.name}, {schedule_text(schedule)}: {type(e).__name__}: {str(e)[:200]}"))


# ---- tensors ---------------------------------------------------------------------------------------------------------
def tensors_of(entry: Entry, seed: int) -> dict[str, Any]:
    """Random inputs on the device; outputs and scratch empty."""
    generator = torch.Generator("cuda").manual_seed(seed)
    made = {}
    for b in entry.program.buffers:
        shape = tuple(int(bind(d, entry.sizes)) for d in b.shape)  # type: ignore[arg-type]
        dtype = getattr(torch, TORCH[b.dtype])
        if b.role in ("out", "scratch"):
            made[b.name] = torch.empty(shape, dtype=dtype, device="cuda")
        elif b.dtype is DType.BOOL:
            made[b.name] = torch.rand(shape, generator=generator, device="cuda") < 0.5
        elif b.dtype.is_integer:
            low, high = (entry.ranges or {}).get(b.name, (-50, 50))
            made[b.name] = torch.randint(low, high, shape, generator=generator, device="cuda").to(dtype)
        else:
            x = torch.randn(shape, generator=generator, device="cuda")
            scale = 1 / math.sqrt(max(1, math.prod(shape[:-1]))) if b.role == "weight" else 1.0
            made[b.name] = (x * scale).to(dtype)
    return made


def poison(entry: Entry, tensors: dict[str, Any]) -> None:
    """What is not written must not look right."""
    for b in entry.program.buffers:
        if b.role in ("out", "scratch"):
            tensors[b.name].fill_(math.nan if b.dtype.is_float else 99 if b.dtype.is_integer else True)


def moved_bytes(entry: Entry) -> int:
    """Every input and output once."""
    total = 0
    for b in entry.program.buffers:
        if b.role != "scratch":
            total += b.dtype.bytes * math.prod(int(bind(d, entry.sizes)) for d in b.shape)  # type: ignore[arg-type]
    return total


def wide(tensors: dict[str, Any]) -> dict[str, Any]:
    """The tensors in float64; int8 matrices too, so that a reference may multiply them."""
    return {n: t.double() if t.is_floating_point() or t.dtype is torch.int8 else t for n, t in tensors.items()}


def inputs_of(entry: Entry, tensors: dict[str, Any]) -> dict[str, Any]:
    return {b.name: tensors[b.name] for b in entry.program.buffers if b.role in ("in", "weight")}


# ---- one entry -------------------------------------------------------------------------------------------------------
def case_of(entry: Entry) -> Case:
    return Case(entry.name, entry.program, lambda: {}, (entry.sizes,), rounded=entry.rounded)


def worst(entry: Entry, got: dict[str, Any], want: dict[str, Any]) -> tuple[float, float, bool]:
    """(largest error relative to the largest element, what is allowed, whether all is right)."""
    case = case_of(entry)
    error, right = 0.0, True
    for b in entry.program.buffers:
        if b.role != "out":
            continue
        g, w = got[b.name], want[b.name]
        if not b.dtype.is_float and b.name not in entry.rounded:
            right &= bool((g.double() == w.double()).all())
            continue
        half = 0.5 if b.name in entry.rounded else 0.0
        scale = float(w.double().abs().max())
        off = float((g.double() - w.double()).abs().max()) - half
        error = max(error, off / scale if scale else off)
        right &= off <= case.tolerance * scale and bool(
            (g.isnan() == w.isnan()).all() if g.is_floating_point() else True
        )
    return error, case.tolerance, right


def graph_time(calls: list[Callable[[], Any]]) -> float:
    """Seconds of one call: all of them in one graph, the median replay divided by their number."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    rounds = max(1, 12 // len(calls))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for call in calls:
                call()
    graph.replay()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return float(np.median(times)) * 1e-3 / (rounds * len(calls))


def run(entry: Entry, folder: Path, compile_too: bool) -> dict[str, Any]:
    """All numbers of one entry. Raises where the peer itself fails; a schedule that fails is a row of `tried`."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = "fp32" not in entry.name
    size = moved_bytes(entry)
    sets = [tensors_of(entry, seed) for seed in range(max(1, min(6, COLD_BYTES // max(size, 1) + 1)))]
    want = entry.peer(entry.prepare(inputs_of(entry, wide(sets[0]))))
    tried = [attempt(entry, schedule, sets, want, folder) for schedule in candidates(entry.program, TARGET)]
    row: dict[str, Any] = {"name": entry.name, "bytes": size, "flops": entry.flops, "sets": len(sets), "tried": tried}
    timed = [a for a in tried if "seconds" in a]
    if timed:
        best = min(timed, key=lambda a: float(a["seconds"]))
        row |= {key: best[key] for key in ("seconds", "schedule", "allowed")}
        row["default_seconds"] = timed[0]["seconds"]
        row["error"], row["right"] = max(a["error"] for a in timed), all(a["right"] for a in timed)
    prepared = [entry.prepare(inputs_of(entry, t)) for t in sets]
    row["eager_error"] = worst(entry, entry.peer(prepared[0]), want)[0]
    row["eager_seconds"] = graph_time([lambda t=t: entry.peer(t) for t in prepared])  # type: ignore[misc]
    if compile_too:
        row["compile_seconds"] = compiled_time(entry, prepared)
    return row


def attempt(entry: Entry, schedule: Schedule, sets: list[dict[str, Any]], want: Any, folder: Path) -> dict[str, Any]:
    """One schedule: checked on the first set of inputs, then timed on all of them."""
    found: dict[str, Any] = {"schedule": schedule_text(schedule)}
    printed = print_program(entry.program, schedule, TARGET, entry.program.name)
    if isinstance(printed, Refusal):
        return {**found, "failed": printed.text}
    try:
        kernel = load(entry.program, printed, folder)
        poison(entry, sets[0])
        kernel(sets[0], entry.sizes)
        torch.cuda.synchronize()
        found["error"], found["allowed"], found["right"] = worst(entry, sets[0], want)
        calls = [lambda t=t: kernel(t, entry.sizes) for t in sets]  # type: ignore[misc]
        found["seconds"] = graph_time(calls)
    except Exception as e:
        found["failed"] = f"{type(e).__name__}: {str(e)[:300]}"
        torch.cuda.synchronize()
    return found


def compiled_time(entry: Entry, prepared: list[Any]) -> float | str:
    torch._dynamo.reset()
    try:
        function = torch.compile(entry.peer, dynamic=False)
        return graph_time([lambda t=t: function(t) for t in prepared])  # type: ignore[misc]
    except Exception as e:
        return f"{type(e).__name__}: {str(e)[:200]}"


def report(row: dict[str, Any]) -> None:
    if "failed" in row or "seconds" not in row:
        reasons = [row["failed"]] if "failed" in row else [a.get("failed") for a in row["tried"]]
        print(f"{row['name']:52s} FAILED {reasons}", flush=True)
        return
    ours, eager, compiled = row["seconds"], row["eager_seconds"], row.get("compile_seconds")
    rate = f"{row['flops'] / ours / 1e12:7.1f} TFLOP/s" if row["flops"] else f"{row['bytes'] / ours / 1e9:7.0f} GB/s   "
    against = f"{compiled / ours:5.2f}x" if isinstance(compiled, float) else "    - "
    shown = f"{compiled * 1e6:9.1f}" if isinstance(compiled, float) else "        -"
    errors = f"error {row['error']:.1e} (allowed {row['allowed']:.1e}, eager {row['eager_error']:.1e})"
    print(
        f"{row['name']:52s} {ours * 1e6:9.1f} us {rate} | eager {eager * 1e6:9.1f} us {eager / ours:5.2f}x | "
        f"compile {shown} us {against} | {errors} {'ok' if row['right'] else 'WRONG'} | "
        f"default {row['default_seconds'] / ours:4.2f} | {row['schedule']}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run what has this text in its name")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--conformance", action="store_true", help="run every test region instead, and time nothing")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument("--limit", type=float, default=540.0, help="start no entry after so many seconds")
    parser.add_argument("--shard", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.shard:
        first, step = map(int, options.shard.split("/"))
        (conformance_shard if options.conformance else precompile_shard)(first, step, options.only)
        return 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    if options.conformance:
        return 1 if conformance(options.only) else 0
    return timings(options)


def timings(options: argparse.Namespace) -> int:
    began = time.perf_counter()
    failed = spread("--only", options.only)
    print(f"compiled in {time.perf_counter() - began:.0f} s; {len(failed)} failed", *failed, sep="\n  ", flush=True)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for entry in entries():
            if options.only not in entry.name:
                continue
            if time.perf_counter() - began > options.limit:
                print(f"{entry.name:52s} not started: the time limit is reached", flush=True)
                continue
            try:
                rows.append(run(entry, Path(folder), not options.no_compile))
            except Exception as e:
                rows.append({"name": entry.name, "failed": f"{type(e).__name__}: {str(e)[:400]}"})
            report(rows[-1])
            torch.cuda.empty_cache()
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1))
    wrong = [r["name"] for r in rows if not r.get("right", False)]
    print(f"{len(rows)} entries, {len(wrong)} wrong or failed, {time.perf_counter() - began:.0f} s", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
