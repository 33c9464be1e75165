"""The user's cache: object code and measurements by the hash of what they were made from.

    cache = Cache(default_directory())
    code = cache.get_or_make("object", key, lambda: compile_object(text, target))

Every entry carries its own digest. One that is damaged, cut short or foreign is made again; a directory that cannot be
written is as good as an empty one. Entries appear whole, so processes may share the directory.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from opfuse.runtime.atomic_file import write_atomically

_MAGIC = b"OPFC1\n"
_DIGEST = 32


def default_directory(home: Path | None = None, platform: str = sys.platform) -> Path:
    """Where a program of this platform keeps what it can make again."""
    home = home or Path.home()
    if platform == "darwin":
        return home / "Library" / "Caches" / "opfuse"
    if platform == "win32":
        return home / "AppData" / "Local" / "opfuse" / "cache"
    return home / ".cache" / "opfuse"


def key_of(parts: Iterable[str]) -> str:
    """A name made of content: equal parts give equal keys."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode()
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Cache:
    directory: Path

    def get(self, kind: str, key: str) -> bytes | None:
        """The entry, or None where there is none that is whole; a damaged one is removed."""
        path = self._path(kind, key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        start = len(_MAGIC) + _DIGEST
        body = data[start:]
        if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != data[len(_MAGIC) : start]:
            self._remove(path)
            return None
        return body

    def put(self, kind: str, key: str, body: bytes) -> None:
        path = self._path(kind, key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, [_MAGIC, hashlib.sha256(body).digest(), body])
        except OSError:
            return  # read-only or full: the cache only saves time

    def get_or_make(self, kind: str, key: str, make: Callable[[], bytes]) -> bytes:
        found = self.get(kind, key)
        if found is None:
            found = make()
            self.put(kind, key, found)
        return found

    def prune(self, kind: str, keep_bytes: int) -> int:
        """Remove the entries of a kind that were used longest ago until the rest fits; returns the bytes removed."""
        entries = []
        for path in (self.directory / kind).glob("*/*") if (self.directory / kind).is_dir() else ():
            try:
                status = path.stat()
            except OSError:
                continue
            entries.append((max(status.st_atime, status.st_mtime), status.st_size, path))
        total, removed = sum(size for _, size, _ in entries), 0
        for _, size, path in sorted(entries):
            if total - removed <= keep_bytes:
                break
            self._remove(path)
            removed += size
        return removed

    def _path(self, kind: str, key: str) -> Path:
        return self.directory / kind / key[:2] / key

    @staticmethod
    def _remove(path: Path) -> None:
        try:
            path.unlink()
        except OSError:
            return
