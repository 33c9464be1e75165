"""The file format of compiled models: named parts behind an index, each with its digest, each at a page's start.

    magic (8 bytes) | format version (u32) | length of the index (u32) | SHA-256 of the index | index (JSON) | parts

    write_container(path, {"plan": b"...", "weights": array}, {"opfuse": "0.1.0"})
    container = read_container(path);  container.part("weights")     # a read-only array, mapped from the file

Every part is checked when the file is opened, at 1 GB/s and more a core. The digests guard against damage, not against
malice: a compiled model holds machine code and is to be trusted as a shared library is.
"""

from __future__ import annotations

import glob
import hashlib
import json
import mmap
import struct
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from opfuse.errors import ArtifactError
from opfuse.runtime.atomic_file import remove_leftovers, write_atomically

MAGIC = b"\x89OPF\r\n\x1a\n"  # a text transfer or a cut at 7 bits spoils it
FORMAT = 2
PAGE = 4096
_HEAD = struct.Struct("<8sII32s")
_PIECE, _HASHERS = 1 << 20, 8


@dataclass(frozen=True)
class Container:
    """An open file. `facts` is what the writer said of it; parts are views, which keep the mapping alive."""

    path: Path
    facts: Mapping[str, Any]
    _places: Mapping[str, tuple[int, int]]
    _bytes: np.ndarray

    def part(self, name: str) -> np.ndarray:
        if name not in self._places:
            raise _wrong(self.path, f"the part {name!r} is missing", "artifact-corrupt")
        offset, size = self._places[name]
        return self._bytes[offset : offset + size]

    def json(self, name: str) -> Any:
        try:
            return json.loads(self.part(name).tobytes())
        except ValueError as error:
            raise _wrong(self.path, f"the part {name!r} is no JSON: {error}", "artifact-corrupt") from error


def write_container(path: Path, parts: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Write all or nothing. ArtifactError where the place cannot be written."""
    arrays = {name: np.frombuffer(data, np.uint8) for name, data in parts.items()}
    entries, at = [], 0
    for name, array in arrays.items():
        entries.append({"name": name, "offset": at, "bytes": array.nbytes, "sha256": digest(array)})
        at += -(-array.nbytes // PAGE) * PAGE
    index = json.dumps({"facts": dict(facts), "parts": entries}).encode()
    head = _HEAD.pack(MAGIC, FORMAT, len(index), hashlib.sha256(index).digest())
    try:
        remove_leftovers(path.parent, glob.escape(path.name))
        write_atomically(path, _chunks(head + index, list(arrays.values())))
    except OSError as error:
        why = error.strerror or error
        raise _wrong(path, f"cannot be written: {why}", "artifact-write", "choose another place") from error


def _chunks(head: bytes, arrays: list[np.ndarray]) -> Iterator[Any]:
    yield head
    yield b"\0" * (-len(head) % PAGE)
    for array in arrays:
        yield array.data
        yield b"\0" * (-array.nbytes % PAGE)


def read_container(path: Path) -> Container:
    """Open, map and check a file. ArtifactError says what is wrong with it: foreign, too new, truncated, corrupt."""
    data = _map(path)
    if data.nbytes < _HEAD.size or data[: len(MAGIC)].tobytes() != MAGIC:
        raise _wrong(path, "is not a compiled model", "artifact-foreign", "pass a file that `opfuse compile` wrote")
    _, version, length, index_digest = _HEAD.unpack(data[: _HEAD.size].tobytes())
    if version != FORMAT:
        raise _wrong(
            path, f"has the format {version}, this opfuse reads {FORMAT}", "artifact-version",
            "compile the model again, or install the opfuse that wrote it",
        )  # fmt: skip
    index = data[_HEAD.size : _HEAD.size + length].tobytes()
    if len(index) < length:
        raise _truncated(path)
    if hashlib.sha256(index).digest() != index_digest:
        raise _wrong(path, "is corrupt: the digest of its index differs", "artifact-corrupt")
    content = json.loads(index)
    first = -(-(_HEAD.size + length) // PAGE) * PAGE
    places = {}
    for entry in content["parts"]:
        start, size = first + entry["offset"], entry["bytes"]
        if start + size > data.nbytes:
            raise _truncated(path)
        if digest(data[start : start + size]) != entry["sha256"]:
            raise _wrong(path, f"is corrupt: the digest of its part {entry['name']!r} differs", "artifact-corrupt")
        places[entry["name"]] = (start, size)
    return Container(path, content["facts"], places, data)


def _map(path: Path) -> np.ndarray:
    try:
        with open(path, "rb") as file:
            if file.seek(0, 2) == 0:
                raise _truncated(path)
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except OSError as error:
        raise _wrong(path, f"cannot be read: {error}", "artifact-read", "check the path") from error


def digest(array: np.ndarray) -> str:
    """SHA-256 of the SHA-256s of the array's pieces, which several threads compute: weights are large."""
    pieces = [array[at : at + _PIECE] for at in range(0, max(array.nbytes, 1), _PIECE)]
    if len(pieces) == 1:
        parts = [hashlib.sha256(pieces[0].data).digest()]
    else:
        with ThreadPoolExecutor(_HASHERS) as threads:
            parts = list(threads.map(lambda piece: hashlib.sha256(piece.data).digest(), pieces))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _wrong(path: Path, problem: str, code: str, way_out: str = "") -> ArtifactError:
    return ArtifactError(str(path), problem, way_out, code=code)


def _truncated(path: Path) -> ArtifactError:
    way_out = "copy it again or compile the model again"
    return _wrong(path, "is truncated: parts of it are missing", "artifact-truncated", way_out)
