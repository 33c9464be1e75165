"""The child program of `bench`: one runtime with one model, told what to do in lines of JSON and answering in the same.

    python contender.py onnxruntime      # or opfuse, openvino
    <- {"do": "open", "model": "m.onnx", "feeds": "f.npz", "outputs": "o.npz", "threads": 2, ...}
    -> {"version": "1.32.0", "import_s": 0.2, "compile_s": 0.1, "first_call_s": 0.01, "memory_bytes": 31457280, ...}
    <- {"do": "block", "seconds": 0.5, "warm_seconds": 0.05}
    -> {"median_s": 0.00123, "calls": 365}

It imports nothing of the package but its public API, and that only when it is told to run it: each runtime stands in a
process of its own, with nobody else's memory or threads. Whatever goes wrong is answered as {"error": "..."}.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

Run = Callable[[], Sequence[np.ndarray]]
# What importing a runtime gives: its version, and a function of (model, feeds, threads, folder for its files), timed as
# compilation, that returns the call to be timed.
Opened = tuple[str, Callable[[str, Mapping[str, np.ndarray], int, Path], Run]]


def import_opfuse() -> Opened:
    opfuse = importlib.import_module("opfuse")
    compile_model = opfuse.compile  # imports the pipeline, as the others' import does

    def open_model(model: str, feeds: Mapping[str, np.ndarray], threads: int, folder: Path) -> Run:
        shapes = {name: array.shape for name, array in feeds.items()}
        # A cache without code: compiling is timed, not the finding of what was compiled before.
        executable = compile_model(model, cache=folder, threads=threads, shapes=shapes, precision="fp32")
        values = dict(feeds)
        return lambda: list(executable(values).values())

    return str(getattr(opfuse, "__version__", "")), open_model


def import_onnxruntime() -> Opened:
    ort = importlib.import_module("onnxruntime")

    def open_model(model: str, feeds: Mapping[str, np.ndarray], threads: int, folder: Path) -> Run:
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        values = dict(feeds)
        return lambda: session.run(None, values)

    return str(ort.__version__), open_model


def import_openvino() -> Opened:
    ov = importlib.import_module("openvino")

    def open_model(model: str, feeds: Mapping[str, np.ndarray], threads: int, folder: Path) -> Run:
        core = ov.Core()
        read = core.read_model(model)
        ports = {name: port for port in read.inputs for name in port.get_names()}
        read.reshape({ports[name]: list(array.shape) for name, array in feeds.items()})
        compiled = core.compile_model(read, "CPU", {
            "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
        })  # fmt: skip
        request = compiled.create_infer_request()
        values = dict(feeds)

        def run() -> list[np.ndarray]:  # sharing: the runtime's fastest way in and out
            found = request.infer(values, share_inputs=True, share_outputs=True)
            return [found[port] for port in compiled.outputs]

        return run

    return str(ov.__version__).partition("-")[0], open_model


RUNTIMES: Mapping[str, Callable[[], Opened]] = {
    "opfuse": import_opfuse, "onnxruntime": import_onnxruntime, "openvino": import_openvino,
}  # fmt: skip


def serve(import_runtime: Callable[[], Opened], requests: TextIO, replies: TextIO) -> None:
    """Answer requests until the pipe closes. A request that fails is answered with its error and ends the service."""
    run: Run | None = None
    for line in requests:
        request = json.loads(line)
        try:
            if request["do"] == "open":
                run, reply = open_contender(import_runtime, request)
            elif run is None:
                raise RuntimeError("no model is open")
            else:
                reply = time_block(run, request["seconds"], request["warm_seconds"])
        except BaseException as error:  # whatever a runtime raises is a result of the benchmark, not an end of it
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
        if "error" in reply:
            return


def open_contender(import_runtime: Callable[[], Opened], request: Mapping[str, Any]) -> tuple[Run, dict[str, Any]]:
    """Import the runtime, compile the model, call it once and save what it answers; with seconds and bytes of each."""
    with np.load(request["feeds"], allow_pickle=False) as archive:
        feeds = {name: archive[key] for key, name in zip(archive.files, request["names"], strict=True)}
    started = time.perf_counter()
    version, open_model = import_runtime()
    imported = time.perf_counter()
    before = memory()
    run = open_model(request["model"], feeds, request["threads"], Path(request["folder"]))
    compiled = time.perf_counter()
    outputs = [np.asarray(o) for o in run()]
    called = time.perf_counter()
    after = memory()
    np.savez(request["outputs"], *outputs)
    return run, {
        "version": version, "import_s": imported - started, "compile_s": compiled - imported,
        "first_call_s": called - compiled, "memory_bytes": after["VmRSS"] - before["VmRSS"],
        "peak_bytes": after["VmHWM"] - before["VmRSS"],
    }  # fmt: skip


def time_block(run: Run, seconds: float, warm_seconds: float) -> dict[str, Any]:
    """Calls for `seconds` after untimed ones for `warm_seconds` (at least one): caches and threads were asleep."""
    end = time.perf_counter() + warm_seconds
    while True:
        run()
        if time.perf_counter() >= end:
            break
    times: list[float] = []
    now = time.perf_counter()
    end = now + seconds
    while now < end or len(times) < 3:
        run()
        then, now = now, time.perf_counter()
        times.append(now - then)
    return {"median_s": statistics.median(times), "calls": len(times)}


def memory() -> dict[str, int]:
    """Resident and peak resident bytes of this process; zeros where the system does not say."""
    found = {"VmRSS": 0, "VmHWM": 0}
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return found
    for line in status.splitlines():
        key, _, value = line.partition(":")
        if key in found:
            found[key] = int(value.split()[0]) << 10
    return found


def end_with_parent() -> None:
    """Ask Linux to end this process when its parent ends: a stopped child would otherwise sleep for ever."""
    if sys.platform == "linux":
        import ctypes
        import signal

        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG


def main(import_runtime: Callable[[], Opened]) -> None:
    """Serve on the standard streams; what the runtime itself prints goes to the error stream instead."""
    end_with_parent()
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    serve(import_runtime, sys.stdin, replies)
    replies.flush()
    os._exit(0)  # no farewell of a runtime may hang or crash the benchmark


if __name__ == "__main__":
    sys.path += sys.argv[2:]  # where the package lies, if it is not installed
    main(RUNTIMES[sys.argv[1]])
