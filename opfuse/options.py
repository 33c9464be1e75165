"""What the user asks for, frozen. Every stage reads it; none changes it.

    Options(threads=2, disabled_rules=frozenset({"fold_batch_norm"}))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
