"""Files that are either whole or not there: written beside their place, then moved into it.

    write_atomically(path, [header, body])

A process that is killed while it writes leaves its temporary file. The next writer of the folder removes it once it is
old: nobody writes for an hour without touching the file.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

STALE_SECONDS = 3600.0


def write_atomically(path: Path, chunks: Iterable[Any]) -> None:
    """Write the chunks (bytes or arrays of bytes); OSError leaves no file behind, and an older one as it was."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        remove(temporary)
        raise


def remove_leftovers(folder: Path, name: str = "*") -> None:
    """Remove what killed writers of a file of this name, or of any file, left in the folder an hour ago or more."""
    for path in folder.glob(f".{name}.{'[0-9a-f]' * 12}.tmp"):
        try:
            age = time.time() - path.stat().st_mtime
        except OSError:  # its writer was quicker
            continue
        if age > STALE_SECONDS:
            remove(path)


def remove(path: Path) -> None:
    """Remove a file if it is there and may be removed."""
    try:
        path.unlink()
    except OSError:
        return
