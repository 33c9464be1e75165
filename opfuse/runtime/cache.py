"""The user's cache: object code and measurements by the hash of what they were made from.

    cache = Cache(default_directory())
    code = cache.get_or_make("object", key, lambda: compile_object(text, target))

Every entry carries a digest of its name and content. One that is damaged, cut short or of another name is made again; a
directory that cannot be written is as good as an empty one. Entries appear whole, so processes may share the directory,
and be killed at any moment. What was not used for longest goes when the objects grow beyond `KEEP_BYTES`.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from opfuse.runtime.atomic_file import remove, remove_leftovers, write_atomically

KEEP_BYTES = 2 << 30  # of one kind
_MAGIC = b"OPFC2\n"
_DIGEST = 32


def default_directory(home: Path | None = None, platform: str = sys.platform) -> Path:
    """Where a program of this platform keeps what it can make again; for users without a home, no place at all."""
    try:
        home = home or Path.home()
    except RuntimeError:
        return Path(os.devnull) / "opfuse"
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
        if data[: len(_MAGIC)] != _MAGIC or data[len(_MAGIC) : start] != _digest(kind, key, body):
            remove(path)
            return None
        return body

    def put(self, kind: str, key: str, body: bytes) -> None:
        path = self._path(kind, key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_leftovers(path.parent)
            write_atomically(path, [_MAGIC, _digest(kind, key, body), body])
        except OSError:
            return  # read-only or full: the cache only saves time

    def get_or_make(self, kind: str, key: str, make: Callable[[], bytes]) -> bytes:
        found = self.get(kind, key)
        if found is None:
            found = make()
            self.put(kind, key, found)
            self.prune(kind, KEEP_BYTES)
        return found

    def prune(self, kind: str, keep_bytes: int) -> int:
        """Remove the entries of a kind that were used longest ago until the rest fits; returns the bytes removed."""
        try:
            entries = sorted(self._entries(kind))
        except OSError:
            return 0  # a folder that cannot be read, or that another process removes just now
        total, removed = sum(size for _, size, _ in entries), 0
        for _, size, path in entries:
            if total - removed <= keep_bytes:
                break
            remove(path)
            removed += size
        return removed

    def _entries(self, kind: str) -> Iterator[tuple[float, int, Path]]:
        """When each was used last, its bytes, its file."""
        for path in (self.directory / kind).glob("*/*"):
            try:
                status = path.stat()
            except OSError:
                continue
            yield max(status.st_atime, status.st_mtime), status.st_size, path

    def _path(self, kind: str, key: str) -> Path:
        return self.directory / kind / key[:2] / key


def _digest(kind: str, key: str, body: bytes) -> bytes:
    """Of name and content: an entry that lies under another's name is no entry."""
    return hashlib.sha256(bytes.fromhex(key_of([kind, key])) + body).digest()
