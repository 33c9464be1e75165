"""Runs regions in Triton's interpreter, in a process of its own: the interpreter is chosen when triton is imported.

python -m tests.codegen.triton_runner regions 0 4      # every fourth case from the first on; one JSON line a fault
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from opfuse.decision import Refusal
from opfuse.target import described
from tests.tile.case import Arrays, Case
from tests.tile.regions import CASES, FUNCTION_CASES


def interpretable(case: Case) -> bool:
    """Triton 3.6's interpreter multiplies bfloat16 matrices by their bits; everything else it can."""
    return not (case.name.startswith("linear") and "bf16" in case.name)


def tensors_of(arrays: Arrays, device: str) -> dict[str, Any]:
    """Tensors with the arrays' values, types and strides; on the CPU they share memory."""
    import ml_dtypes
    import torch

    made = {}
    for name, a in arrays.items():
        bits = a.dtype == ml_dtypes.bfloat16
        tensor = torch.from_numpy(a.view(np.int16)).view(torch.bfloat16) if bits else torch.from_numpy(a)
        if device != "cpu":
            own = torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device=device)
            tensor = own.copy_(tensor)
        made[name] = tensor
    return made


def fetch(tensors: dict[str, Any], arrays: Arrays) -> None:
    """What a device has written, back into the arrays."""
    import torch

    for name, a in arrays.items():
        host = tensors[name].cpu()
        a[...] = host.view(torch.int16).numpy().view(a.dtype) if host.dtype is torch.bfloat16 else host.numpy()


def faults(case: Case, folder: Path, device: str = "cpu", every_size: bool = False) -> list[str]:
    """What comes out wrong under any of the case's GPU schedules; they share out the sizes unless each runs all."""
    from opfuse.codegen.triton.launch import load
    from opfuse.codegen.triton.printer import print_program

    found = []
    for number, schedule in enumerate(case.gpu):
        printed = print_program(case.program, schedule, described("h200"), case.program.name)
        if isinstance(printed, Refusal):
            found.append(f"{case.name}, schedule {number}: refused: {printed.text}")
            continue
        kernel = load(case.program, printed, folder)
        for sizes in case.sizes if every_size else case.sizes[::-1][number :: len(case.gpu)] or case.sizes[-1:]:
            arrays = case.arrays(sizes)
            want = case.want(arrays)
            tensors = tensors_of(arrays, device)
            kernel(tensors, sizes)
            if device != "cpu":
                fetch(tensors, arrays)
            found += [f"schedule {number}, {dict(sizes)}: {fault}" for fault in case.faults(arrays, want)]
    return found


def guarded(case: Case, folder: Path, device: str = "cpu", every_size: bool = False) -> list[str]:
    """`faults`, with an exception as one more fault: whoever runs many cases wants to hear of all of them."""
    try:
        return faults(case, folder, device, every_size)
    except Exception as e:
        return [f"{case.name}: {type(e).__name__}: {str(e)[-600:]}"]


def main(which: str, first: int, step: int, only: str = "") -> int:
    warnings.filterwarnings("ignore")
    np.seterr(all="ignore")
    cases = [c for c in (CASES if which == "regions" else FUNCTION_CASES) if only in c.name and interpretable(c)]
    with tempfile.TemporaryDirectory() as folder:
        for case in cases[first::step]:
            wrong = guarded(case, Path(folder))
            for line in wrong:
                print(json.dumps(line), flush=True)
    print(json.dumps({"cases": len(cases[first::step])}))
    return 0


if __name__ == "__main__":
    assert os.environ.get("TRITON_INTERPRET") == "1", "set TRITON_INTERPRET=1 before triton is imported"
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:]))
