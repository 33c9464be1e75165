"""The user's cache: what is damaged is made again, and a place that cannot be written does no harm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from opfuse.runtime.cache import Cache, default_directory, key_of

KEY = key_of(["text", "target"])


def test_an_entry_is_made_once(tmp_path: Path) -> None:
    cache, calls = Cache(tmp_path), []
    for _ in range(3):
        assert cache.get_or_make("object", KEY, lambda: calls.append(1) or b"code") == b"code"
    assert calls == [1]
    assert cache.get("other", KEY) is None and cache.get("object", key_of(["x"])) is None


@pytest.mark.parametrize(
    "damage", [lambda d: b"", lambda d: d[:10], lambda d: d[:-1], lambda d: b"x" + d[1:], lambda d: d[:-1] + b"?",
               lambda d: d + b"more", lambda d: d[:20] + b"!" + d[21:]],
)  # fmt: skip
def test_a_damaged_entry_is_made_again(damage: object, tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put("object", KEY, b"code")
    (path,) = (p for p in tmp_path.rglob("*") if p.is_file())
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    assert cache.get("object", KEY) is None
    assert not path.exists()
    assert cache.get_or_make("object", KEY, lambda: b"code") == b"code" and cache.get("object", KEY) == b"code"


def test_keys_tell_where_one_part_ends() -> None:
    assert len({key_of(["ab", "c"]), key_of(["a", "bc"]), key_of(["abc"]), key_of(["abc", ""])}) == 4


def test_a_directory_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")
    cache = Cache(tmp_path / "cache")
    assert cache.get_or_make("object", KEY, lambda: b"code") == b"code"


def test_the_oldest_go_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    for k in range(4):
        cache.put("object", key_of([str(k)]), bytes(1000))
        (path,) = (p for p in tmp_path.rglob(key_of([str(k)])))
        os.utime(path, (k, k))
    assert cache.prune("object", 2500) > 0
    assert [cache.get("object", key_of([str(k)])) is not None for k in range(4)] == [False, False, True, True]
    assert cache.prune("none", 0) == 0


def test_directories_of_the_platforms() -> None:
    home = Path("home")
    assert default_directory(home, "linux") == home / ".cache" / "opfuse"
    assert default_directory(home, "darwin") == home / "Library" / "Caches" / "opfuse"
    assert default_directory(home, "win32") == home / "AppData" / "Local" / "opfuse" / "cache"
