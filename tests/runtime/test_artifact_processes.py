"""One compiled file for several processes, and for processes that are killed: it is always one of those saved."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import numpy as np
import pytest

import opfuse
from opfuse.errors import ArtifactError
from opfuse.runtime.atomic_file import STALE_SECONDS
from tests.runtime import cache_processes as processes
from tests.runtime.cache_processes import FEEDS, assert_right, compiled, right, run, save_one, start
from tests.runtime.file_faults import failing, faults, killed_at

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forks")


def which(answer: np.ndarray, *numbers: int) -> int:
    """The model whose answer this is."""
    (number,) = [n for n in numbers if np.abs(answer - right(n)).max() < 1e-5]
    assert_right(answer, number)
    return number


def saved(folder: Path, number: int) -> Path:
    path = folder / "model.opf"
    save_one(str(path), number)
    return path


def leftovers(folder: Path) -> list[str]:
    return [p.name for p in folder.iterdir() if p.name.endswith(".tmp")]


def test_two_processes_save_one_file_while_two_load_it(tmp_path: Path) -> None:
    path = saved(tmp_path, 0)
    savers = [start(processes.save_for_ever, str(path), number) for number in (0, 1)]
    found: set[int] = set()
    ends = time.monotonic() + 20
    while len(found) < 2 and time.monotonic() < ends:
        for answers in run(processes.load_many, *[(str(path), 20)] * 2):
            found |= {which(a, 0, 1) for a in answers}
    for saver in savers:
        assert saver.process.is_alive()
        saver.kill()
    assert found == {0, 1}
    assert which(opfuse.load(path)(FEEDS)["y"], 0, 1) in (0, 1)


def test_savers_that_are_killed_at_random(tmp_path: Path) -> None:
    path, rng = saved(tmp_path, 0), np.random.default_rng(0)
    compiled(tmp_path / "cache", 1)
    began = time.monotonic()
    start(save_one, str(path), 1).result()
    seconds = time.monotonic() - began
    for k in range(10):
        savers = [start(processes.save_for_ever, str(path), n) for n in (0, 1)]
        time.sleep(seconds * rng.uniform(0.5, 1.5) if k else seconds)
        for saver in savers:
            saver.kill()
        assert which(opfuse.load(path)(FEEDS)["y"], 0, 1) in (0, 1)


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_every_step_of_saving(after: bool, tmp_path: Path) -> None:
    """The old file until the move, the new one from then on."""
    path = saved(tmp_path, 0)
    exe = compiled(tmp_path / "cache", 1)
    with faults(failing(errno.EIO), 10**9) as steps:
        exe.save(tmp_path / "other.opf")
    count = steps.count - 0
    assert steps.names[-1] == "replace" and steps.names[1] == "open" and steps.names.count("write") > 6
    for at in range(1, count + 1, 1 if after else 2):
        saved(tmp_path, 0)
        assert start(save_killed_at, at, after, str(path)).exit_code() == -9
        assert which(opfuse.load(path)(FEEDS)["y"], 0, 1) == int(after and at == count)


def save_killed_at(at: int, after: bool, path: str) -> None:
    exe = compiled(Path(path).parent / "cache", 1)
    killed_at(at, after, exe.save, path)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_a_call_that_fails_while_saving_is_one_error_and_the_old_file_stays(number: int, tmp_path: Path) -> None:
    path = saved(tmp_path, 0)
    exe = compiled(tmp_path / "cache", 1)
    with faults(failing(number), 10**9) as steps:
        exe.save(tmp_path / "other.opf")
    before = path.read_bytes()
    for at in range(1, steps.count + 1):
        with faults(failing(number), at), pytest.raises(ArtifactError, match="cannot be written") as caught:
            exe.save(path)
        assert os.strerror(number) in str(caught.value) and str(path) in str(caught.value)
        assert path.read_bytes() == before and leftovers(tmp_path) == []
    assert which(opfuse.load(path)(FEEDS)["y"], 0, 1) == 0


@pytest.mark.parametrize("most", [0, 100, 5000])
def test_a_full_disk(most: int, tmp_path: Path) -> None:
    path = saved(tmp_path, 0)
    compiled(tmp_path / "cache", 1)
    with pytest.raises(ArtifactError, match="cannot be written"):
        start(processes.with_small_files, most, save_one, str(path), 1).result()
    assert which(opfuse.load(path)(FEEDS)["y"], 0, 1) == 0
    assert leftovers(tmp_path) == []


def test_what_a_killed_saver_left_is_removed_when_it_is_old(tmp_path: Path) -> None:
    """Of this file only: others in the user's folder are not ours."""
    path = saved(tmp_path, 0)
    assert start(save_killed_at, 5, False, str(path)).exit_code() == -9
    (left,) = leftovers(tmp_path)
    others = ["notes.tmp", ".model.opf.tmp", ".other.opf.0123456789ab.tmp"]
    old = time.time() - STALE_SECONDS - 60
    for name in (left, *others):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (old, old))
    saved(tmp_path, 1)
    assert sorted(leftovers(tmp_path)) == sorted(others)
