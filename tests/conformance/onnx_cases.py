"""The cases of onnx.backend.test that need no download, and what becomes of one of them in this package's backend.

    outcome(case, cache) -> Outcome("", "")                                     the right answer
                            Outcome("unsupported-operators", "Bernoulli-22: ...") why not
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner, _normalize_tensor

from opfuse import onnx_backend
from opfuse.errors import OpfuseError, UnsupportedOperators

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
LISTED = Path(__file__).with_name("not_supported.txt")
Arrays = Sequence[Any]


@dataclass(frozen=True)
class Outcome:
    """`code` is empty for a right answer; else an error's code, "differs", "crash"; `reason` is one line."""

    code: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.code}  {self.reason}"


@cache
def cases() -> dict[str, TestCase]:
    """Every case by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the suite overflows on purpose while it makes its data
        return {case.name: case for kind in KINDS for case in load_model_tests(kind=kind)}


def listed() -> dict[str, Outcome]:
    """Case -> what is known to become of it, as `not_supported.txt` has it: name, code, reason, two spaces between."""
    lines = [line for line in LISTED.read_text().splitlines() if line and not line.startswith("#")]
    return {name: Outcome(code, reason) for name, code, reason in (line.split("  ", 2) for line in lines)}


def outcome(case: TestCase, cache_directory: Path) -> Outcome:
    model, data = content(case)
    try:
        prepared = onnx_backend.prepare(model, "CPU", threads=1, calibrate=False, cache=cache_directory)
        made = [prepared.run(inputs) for inputs, _ in data]
    except UnsupportedOperators as error:
        return Outcome(error.code, "; ".join(dict.fromkeys(f"{e.op}: {e.reason}" for e in error.entries)))
    except OpfuseError as error:
        return Outcome(error.code, error.message.splitlines()[0])
    except Exception as error:
        return Outcome("crash", f"{type(error).__name__}: {error}".splitlines()[0][:200])
    for results, (_, expected) in zip(made, data, strict=True):
        try:
            Runner.assert_similar_outputs(expected, results, case.rtol, case.atol)
        except (AssertionError, TypeError) as error:
            lines = [line for line in str(error).splitlines() if line.strip()]
            return Outcome("differs", "; ".join(lines[:3])[:200])
    return Outcome("")


def content(case: TestCase) -> tuple[onnx.ModelProto, list[tuple[Arrays, Arrays]]]:
    """The model, and for each of its data sets inputs and expected outputs."""
    if case.model_dir is None:
        plain = [([_normalize_tensor(i) for i in a], [_normalize_tensor(o) for o in b]) for a, b in case.data_sets]
        return case.model, plain
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    sets = sorted(folder.glob("test_data_set*"))
    return model, [(list(_stored(s, "input", model.graph.input)), list(_stored(s, "output", model.graph.output)))
                   for s in sets]  # fmt: skip


def _stored(folder: Path, kind: str, values: Sequence[onnx.ValueInfoProto]) -> Iterator[Any]:
    for k in range(len(list(folder.glob(f"{kind}_*.pb")))):
        found: list[np.ndarray | list[Any]] = []
        Runner._load_proto(None, str(folder / f"{kind}_{k}.pb"), found, values[k].type)  # type: ignore[arg-type]
        yield from found
