"""opfuse: an operator-fusion engine for neural networks.

    import opfuse
    exe = opfuse.compile("model.onnx", threads=2)
    y = exe(x=array)
    print(exe.explain())
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "compile", "load"]

if TYPE_CHECKING:
    from opfuse.pipeline import compile
    from opfuse.pipeline import load_model as load


def __getattr__(name: str) -> Any:
    """Import the pipeline on first use: `import opfuse` alone loads nothing heavy (and works where LLVM is missing)."""
    public = {"compile": "compile", "load": "load_model"}
    if name not in public:
        raise AttributeError(f"module 'opfuse' has no attribute {name!r}")
    return getattr(import_module("opfuse.pipeline"), public[name])
