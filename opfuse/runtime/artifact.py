"""`.opf` files: an executable saved, and loaded again in milliseconds.

    save("model.opf", exe);  exe = load("model.opf")

What was saved runs without compiling; shapes that no variant was compiled for are refused. The model itself is in the
file too, so that `verify` can compare with it. Trust such a file as you trust a shared library.
"""

from __future__ import annotations

from pathlib import Path

from opfuse.runtime.archive import read_archive
from opfuse.runtime.executable import Executable, Reports


def save(path: str | Path, executable: Executable) -> None:
    """Write the executable's variants. InputError where there is none yet; ArtifactError where writing fails."""
    executable.save(path)


def load(path: str | Path, reports: Reports | None = None) -> Executable:
    """The executable of a file. ArtifactError says what is wrong with the file, or that this CPU cannot run it."""
    archive = read_archive(Path(path))
    return Executable.of_variants(archive.interface, archive.options, archive.variants, reports, archive.graph)
