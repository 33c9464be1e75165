"""A real trained model on real files: Magika's file-type classifier, compiled by opfuse (run it with `make demo`).

What it shows: what each file is, by opfuse and by Magika itself; what was fused and what that saves; that the answers
are those of ONNX Runtime; and the time of both, measured in the same run. It ends with code 1 where an answer differs.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from magika import Magika
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import opfuse
from opfuse.report.bench import bench

ROOT = Path(__file__).resolve().parent.parent
# Scores are softmax values of logits (up to about 20) that end sums of up to 2048 float32 products: two right
# programs differ by about logit * sqrt(length) * eps.
TOLERANCE = 20 * math.sqrt(2048) * float(np.finfo(np.float32).eps)


def model_folder() -> Path:
    spec = importlib.util.find_spec("magika")
    assert spec is not None and spec.origin is not None
    return next(iter(sorted((Path(spec.origin).parent / "models").glob("standard_*/model.onnx")))).parent


def files() -> list[Path]:
    """Files that are here anyway: text and code of this repository, a program, and the model itself."""
    here = ["README.md", "LICENSE", "Makefile", "pyproject.toml", "opfuse/pipeline.py", ".ci/run"]
    candidates = [*(ROOT / name for name in here), Path(sys.executable).resolve(), model_folder() / "model.onnx",
                  model_folder() / "config.min.json"]  # fmt: skip
    return [path for path in candidates if path.is_file()]


def features(content: bytes, config: dict[str, Any]) -> np.ndarray:
    """What the model reads of a file: int32[1, 2048], the bytes of its two ends, without blanks, padded with 256.

    As Magika builds it: 1024 bytes after leading blanks from the first 4096, and 1024 before trailing blanks from the
    last 4096.
    """
    block, padding = config["block_size"], config["padding_token"]
    head = content[:block].lstrip()[: config["beg_size"]]
    tail = content[-block:].rstrip()[-config["end_size"] :]
    out = np.full(config["beg_size"] + config["end_size"], padding, np.int32)
    out[: len(head)] = np.frombuffer(head, np.uint8)
    out[len(out) - len(tail) :] = np.frombuffer(tail, np.uint8)
    return out.reshape(1, -1)


def main() -> int:
    console = Console(highlight=False)
    path = model_folder() / "model.onnx"
    config = json.loads((path.parent / "config.min.json").read_text(encoding="utf-8"))
    threads = min(2, os.cpu_count() or 1)
    inputs = {f: features(f.read_bytes(), config) for f in files()}

    console.rule("Compile")
    with console.status(f"compiling {path.name} of Magika for this CPU"):
        started = time.perf_counter()
        exe = opfuse.compile(path, threads=threads, shapes={"bytes": (1, 2048)})
        answers = {f: exe(bytes=x)["target_label"][0] for f, x in inputs.items()}
        seconds = time.perf_counter() - started
    console.print(f"{path.parent.name}/{path.name}: native code for {threads} threads, made in {seconds:.1f} s")

    console.rule("What the files are")
    agreed = show_labels(console, answers, config["target_labels_space"])

    console.rule("What was fused")
    show_fusion(console, exe.explain())

    console.rule("The same answers as ONNX Runtime")
    worst = difference_to_onnxruntime(path, inputs, answers)
    same = worst <= TOLERANCE
    verdict = "[green]the same[/green]" if same else "[red]different[/red]"
    console.print(f"{len(inputs)} files, largest difference of a score {worst:.1e} (bound {TOLERANCE:.1e}): {verdict}")

    console.rule("Time of a call, in the same run")
    feed = {"bytes": inputs[next(iter(inputs))]}
    with console.status("") as status:
        report = bench(path, feed, ("opfuse", "onnxruntime"), threads=threads, seconds=4, progress=status.update)
    console.print(escape(report.text(console.width)), soft_wrap=True)
    return 0 if agreed and same else 1


def show_labels(console: Console, answers: dict[Path, np.ndarray], labels: list[str]) -> bool:
    """A table of files; False where opfuse and Magika name different types."""
    magika, agreed = Magika(), True
    table = Table("file", "opfuse", "score", "magika", "score")
    for file, scores in answers.items():
        found = magika.identify_path(file)
        ours, theirs = labels[int(scores.argmax())], str(found.dl.label)
        equal = ours == theirs
        agreed &= equal
        in_repository = file.is_relative_to(ROOT) and ".venv" not in file.parts
        name = str(file.relative_to(ROOT)) if in_repository else file.name
        colour = "green" if equal else "red"
        shown = f"[{colour}]{ours}[/{colour}]"
        table.add_row(escape(name), shown, f"{scores.max():.4f}", theirs, f"{found.score:.4f}")
    console.print(table)
    return agreed


def show_fusion(console: Console, explanation: Any) -> None:
    data = explanation.to_json()
    kernels, moved, peak = data["kernels"], data["bytes_moved"], data["peak_memory"]
    console.print(
        f"{data['operators']} operators run as {len(kernels)} kernels in one native call.\n"
        f"Memory traffic of a call: {moved['unfused'] / 1e6:.2f} MB one by one, {moved['fused'] / 1e6:.2f} MB fused: "
        f"{moved['unfused'] / max(1, moved['fused']):.1f}x less.\n"
        f"Peak memory, weights included: {peak['unfused'] / 1e3:.0f} kB one by one, {peak['fused'] / 1e3:.0f} kB fused."
    )
    table = Table("kernel", "predicted", "the nodes in it")
    for kernel in kernels:
        table.add_row(escape(kernel["name"]), f"{kernel['predicted_s'] * 1e6:.1f} us", escape(short(kernel["nodes"])))
    console.print(table)
    console.print("Why they are not fewer: `opfuse explain MODEL` gives the reason at every boundary.")


def short(names: list[str], most: int = 4) -> str:
    shown = [name.rstrip("/").rpartition("/")[2] or name for name in names[:most]]
    return ", ".join(shown) + (f" and {len(names) - most} more" if len(names) > most else "")


def difference_to_onnxruntime(path: Path, inputs: dict[Path, np.ndarray], answers: dict[Path, np.ndarray]) -> float:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for file, x in inputs.items():
        expected = session.run(["target_label"], {"bytes": x})[0][0]
        worst = max(worst, float(np.abs(expected.astype(np.float64) - answers[file]).max()))
    return worst


if __name__ == "__main__":
    sys.exit(main())
