"""One cache folder for several processes, and for processes that are killed: answers are right whatever lies there."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opfuse.runtime import cache as cache_module
from opfuse.runtime.atomic_file import STALE_SECONDS
from opfuse.runtime.cache import Cache, default_directory
from tests.runtime import cache_processes as processes
from tests.runtime.cache_processes import (
    KEYS,
    answer_without_compiling,
    assert_right,
    body_of,
    compile_all,
    compile_and_answer,
    compile_and_find_again,
    run,
    start,
)
from tests.runtime.file_faults import failed_at, failing, faults, killed_at

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forks")
NEVER = 10**9
ERRORS = (errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT, errno.EIO, errno.ENOENT)


def files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def assert_whole(folder: Path) -> int:
    """Every key gives nothing or one of its contents; returns how many give one."""
    found = [(key, Cache(folder).get("object", key)) for key in KEYS]
    for key, body in found:
        assert body is None or body in [body_of(key, version) for version in range(4)]
    return sum(body is not None for _, body in found)


# ---- two at once -----------------------------------------------------------------------------------------------------
def test_two_processes_compile_one_model_at_once(tmp_path: Path) -> None:
    for answer in run(compile_and_answer, (str(tmp_path), 1), (str(tmp_path), 1)):
        assert_right(answer, 1)
    (third,) = run(answer_without_compiling, (str(tmp_path), 1))
    assert_right(third, 1)
    assert len(files(tmp_path)) == 1


def test_two_processes_compile_models_of_which_some_are_the_same(tmp_path: Path) -> None:
    orders = ((0, 1, 2), (2, 1, 3))
    for order, answers in zip(orders, run(compile_all, *((str(tmp_path), o) for o in orders)), strict=True):
        for number, answer in zip(order, answers, strict=True):
            assert_right(answer, number)
    assert len(files(tmp_path)) == 4
    for answer, number in zip(run(answer_without_compiling, *((str(tmp_path), n) for n in range(4))), range(4),
                              strict=True):  # fmt: skip
        assert_right(answer, number)


def test_entries_that_are_damaged_all_the_time(tmp_path: Path) -> None:
    """Bits are turned and ends cut off in place, between any two moments of the others."""
    run(compile_all, (str(tmp_path), (0, 1)))
    vandals = [start(processes.damage_for_ever, str(tmp_path), seed) for seed in range(2)]
    try:
        orders = ((0, 1, 2) * 3, (2, 1, 0) * 3)
        for order, answers in zip(orders, run(compile_all, *((str(tmp_path), o) for o in orders)), strict=True):
            for number, answer in zip(order, answers, strict=True):
                assert_right(answer, number)
    finally:
        for v in vandals:
            v.kill()
    for number, answer in enumerate(run(compile_all, (str(tmp_path), (0, 1, 2)))[0]):
        assert_right(answer, number)


# ---- killed at any moment --------------------------------------------------------------------------------------------
def test_writers_that_are_killed_leave_no_entry_that_is_not_whole(tmp_path: Path) -> None:
    rng, seen = np.random.default_rng(0), 0
    for _ in range(40):
        children = [start(processes.put_for_ever, str(tmp_path)) for _ in range(2)]
        time.sleep(rng.uniform(0, 0.05))
        for child in children:
            child.kill()
        seen += assert_whole(tmp_path)
    assert seen


def test_compilers_that_are_killed_at_random(tmp_path: Path) -> None:
    began = time.monotonic()
    assert_right(start(compile_and_answer, str(tmp_path / "timed"), 1).result(), 1)
    seconds, rng = time.monotonic() - began, np.random.default_rng(1)
    for delay in rng.uniform(0, 1.1 * seconds, 12):
        folder = tmp_path / f"{rng.integers(4)}"  # empty, or with what the one before left
        child = start(compile_and_answer, str(folder), 1)
        time.sleep(delay)
        child.kill()
        for answer in start(compile_and_find_again, str(folder), 1).result():
            assert_right(answer, 1)


def put_one(folder: str) -> None:
    Cache(Path(folder)).put("object", KEYS[0], body_of(KEYS[0], 0, 3000))


def steps_of(work: Any, *arguments: Any) -> int:
    """How many steps it takes where nothing happens."""
    _, count = start(killed_at, NEVER, False, work, *arguments).result()
    return int(count)


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_every_step_of_writing(after: bool, tmp_path: Path) -> None:
    count = steps_of(put_one, str(tmp_path / "whole"))
    assert count >= 8  # folders, open, three chunks, fsync, replace
    for at in range(1, count + 1):
        folder = tmp_path / f"{at}"
        assert start(killed_at, at, after, put_one, str(folder)).exit_code() == -9
        body = Cache(folder).get("object", KEYS[0])
        assert (body is None) == (at < count or not after)  # there after the last step, the move, and not before
        put_one(str(folder))
        assert Cache(folder).get("object", KEYS[0]) == body_of(KEYS[0], 0, 3000)


def test_compilers_that_are_killed_at_every_step_of_writing(tmp_path: Path) -> None:
    count = steps_of(compile_and_answer, str(tmp_path / "whole"), 0)
    assert count >= 8
    for at in range(1, count + 1):
        folder = str(tmp_path / f"{at}")
        assert start(killed_at, at, False, compile_and_answer, folder, 0).exit_code() == -9
        for answer in start(compile_and_find_again, folder, 0).result():
            assert_right(answer, 0)


def test_what_killed_writers_left_is_removed_when_it_is_old(tmp_path: Path) -> None:
    start(killed_at, steps_of(put_one, str(tmp_path / "whole")), False, put_one, str(tmp_path / "c")).exit_code()
    (left,) = files(tmp_path / "c")
    assert left.suffix == ".tmp"
    put_one(str(tmp_path / "c"))
    assert left in files(tmp_path / "c")  # its writer may be at work
    old = time.time() - STALE_SECONDS - 60
    os.utime(left, (old, old))
    put_one(str(tmp_path / "c"))
    assert [p.name for p in files(tmp_path / "c")] == [KEYS[0]]


# ---- folders that cannot be written ----------------------------------------------------------------------------------
@pytest.mark.parametrize("number", ERRORS, ids=lambda n: errno.errorcode[n])
def test_a_call_that_fails_at_any_step_is_no_harm(number: int, tmp_path: Path) -> None:
    count = steps_of(put_one, str(tmp_path / "whole"))
    for at in range(1, count + 1):
        folder = tmp_path / f"{at}"
        with faults(failing(number), at) as steps:
            put_one(str(folder))
        assert Cache(folder).get("object", KEYS[0]) in (None, body_of(KEYS[0], 0, 3000))
        assert not [p for p in files(folder) if p.suffix == ".tmp"], steps.names
        put_one(str(folder))
        assert Cache(folder).get("object", KEYS[0]) == body_of(KEYS[0], 0, 3000)


def test_models_compile_whatever_call_fails(tmp_path: Path) -> None:
    count = steps_of(compile_and_answer, str(tmp_path / "whole"), 0)
    for at in range(1, count + 1):
        answer, _ = start(failed_at, errno.ENOSPC, at, compile_and_answer, str(tmp_path / f"{at}"), 0).result()
        assert_right(answer, 0)


@pytest.mark.parametrize("most", [0, 6, 39, 2000])
def test_a_full_disk(most: int, tmp_path: Path) -> None:
    """The kernel itself stops the writing, after so many bytes."""
    answer = start(processes.with_small_files, most, compile_and_answer, str(tmp_path), 0).result()
    assert_right(answer, 0)
    assert files(tmp_path) == []
    for again in start(compile_and_find_again, str(tmp_path), 0).result():
        assert_right(again, 0)


@pytest.mark.parametrize("mode", [0o555, 0o000, 0o666])
@pytest.mark.parametrize("filled", [False, True])
def test_folders_without_permissions(mode: int, filled: bool) -> None:
    """Not to be written, not to be read, not to be entered; where it can be read, what is there serves."""
    with tempfile.TemporaryDirectory() as place:  # pytest's own may be entered by its user alone
        os.chmod(place, 0o755)
        folder = Path(place) / "cache"
        folder.mkdir()
        if filled:
            run(compile_and_answer, (str(folder), 0))
        before, serves = files(folder), filled and mode == 0o555
        folder.chmod(mode)
        work = answer_without_compiling if serves else compile_and_answer
        answer = start(compile_then_as_nobody, str(Path(place) / "own"), work, str(folder), 0).result()
        folder.chmod(0o755)
        assert_right(answer, 0)
        assert files(folder) == before


def compile_then_as_nobody(own: str, work: Any, *arguments: Any) -> Any:
    """Everything is imported before the rights are given up."""
    compile_and_answer(own, 0)
    return processes.as_nobody(work, *arguments)


def test_users_without_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(cache_module.Path, "home", none)
    cache = Cache(default_directory())
    assert cache.get_or_make("object", KEYS[0], lambda: b"code") == b"code"
    assert cache.get("object", KEYS[0]) is None


# ---- what is no entry ------------------------------------------------------------------------------------------------
def test_an_entry_under_another_name_is_none(tmp_path: Path) -> None:
    """Content is bound to its key and kind: a file that was copied or renamed is made again."""
    put_one(str(tmp_path))
    (path,) = files(tmp_path)
    for kind, key in (("object", KEYS[1]), ("rates", KEYS[0])):
        place = tmp_path / kind / key[:2] / key
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
        assert Cache(tmp_path).get(kind, key) is None
    assert Cache(tmp_path).get("object", KEYS[0]) is not None


def test_every_bit_and_every_length_is_checked(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put("object", KEYS[0], b"code")
    (path,) = files(tmp_path)
    data = path.read_bytes()
    turned = [data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :] for at in range(len(data)) for bit in range(8)]
    for bad in (*turned, *(data[:n] for n in range(len(data))), data + b"\0"):
        path.write_bytes(bad)
        assert cache.get("object", KEYS[0]) is None
    path.write_bytes(data)
    assert cache.get("object", KEYS[0]) == b"code"


def test_a_folder_in_the_place_of_an_entry(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    (tmp_path / "object" / KEYS[0][:2] / KEYS[0] / "inside").mkdir(parents=True)
    assert cache.get_or_make("object", KEYS[0], lambda: b"code") == b"code"
    assert files(tmp_path) == []


def test_the_folder_goes_away_meanwhile(tmp_path: Path) -> None:
    import shutil

    def make() -> bytes:
        shutil.rmtree(tmp_path / "cache")
        return b"code"

    cache = Cache(tmp_path / "cache")
    cache.put("object", KEYS[1], b"other")
    assert cache.get_or_make("object", KEYS[0], make) == b"code"
    assert cache.get("object", KEYS[0]) == b"code"


def test_the_cache_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "KEEP_BYTES", 5000)
    cache = Cache(tmp_path)
    for k in range(20):
        key = cache_module.key_of([f"entry {k}"])
        cache.get_or_make("object", key, lambda: bytes(1000))
        assert cache.get("object", key) is not None
    assert sum(p.stat().st_size for p in files(tmp_path)) <= 5000
