"""`python -m opfuse`: the same command line as `opfuse`.

    python -m opfuse explain model.onnx
"""

from __future__ import annotations

import sys

from opfuse.cli import main

if __name__ == "__main__":
    sys.exit(main())
