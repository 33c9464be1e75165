"""What the user asks for, frozen. Every stage reads it; none changes it.

    Options(threads=2, disabled_rules=frozenset({"fold_batch_norm"}))

OptionError, at once, where a value makes no sense.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from opfuse.errors import OptionError
from opfuse.target import ISAS

PRECISIONS = ("fp32",)
MOST_THREADS = 1024


@dataclass(frozen=True)
class Options:
    threads: int = 1
    precision: str = "fp32"
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # input name -> shape
    disabled_rules: frozenset[str] = frozenset()  # names of rewrite rules (--no-rule)
    disabled_fusions: frozenset[str] = frozenset()  # decision ids (--no-fuse); "all" fuses nothing
    strict: bool = False  # exact rewrites only
    reassociate: bool = True
    isa: str | None = None  # "avx512", "avx2", "plain": the best that the machine has where None
    debug: bool = False  # random thread delays and a NaN-filled arena
    calibrate: bool = True  # count on measured rates of this machine, measured on first use; else on described ones
    cache: str | None = None  # directory of measurements and object code; the platform's own place where None

    def __post_init__(self) -> None:
        if not _whole(self.threads) or not 1 <= self.threads <= MOST_THREADS:
            raise OptionError("--threads", f"{self.threads!r} is no number from 1 to {MOST_THREADS}")
        if self.precision not in PRECISIONS:
            raise OptionError("--precision", f"{self.precision!r} is none of {', '.join(PRECISIONS)}")
        if self.isa is not None and self.isa not in ISAS:
            raise OptionError("--isa", f"{self.isa!r} is none of {', '.join(ISAS)}")
        for name, shape in self.shapes.items():
            wrong = [d for d in shape if not _whole(d) or d < 0]
            if wrong:
                problem = f"{wrong[0]!r} in the shape of {name!r} is no whole number from 0"
                raise OptionError("--shape", problem, "give one number for each dimension")
        for given in self.disabled_fusions:
            if given != "all" and not re.fullmatch("[0-9a-f]{10}", str(given)):
                raise OptionError("--no-fuse", f"{given!r} is no id of a fusion", "take one from `explain`, or \"all\"")


def _whole(x: object) -> bool:
    """A whole number, NumPy's too."""
    return hasattr(x, "__index__") and not isinstance(x, bool)
