"""Processes that share one cache folder or one compiled file, and are killed: what they do, and how they are started.

    answers = run(compile_and_answer, (folder, 0), (folder, 1))      # two processes that begin at one moment
    child = start(compile_and_answer, folder, 0);  child.kill()      # SIGKILL

Children are forks of a server that has imported everything, so that one takes milliseconds to begin.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import opfuse
from opfuse import pipeline
from opfuse.runtime.cache import Cache, key_of
from opfuse.runtime.executable import Executable
from tests.frontends.small_models import small

FEEDS = {"x": np.linspace(-2, 2, 3 * 17, dtype=np.float32).reshape(3, 17)}
KEYS = [key_of([str(k)]) for k in range(3)]


# ---- what they compile -----------------------------------------------------------------------------------------------
def model(number: int) -> onnx.ModelProto:
    """Models of the same shapes and other code: each has a longer chain than the one before."""
    rng = np.random.default_rng(number)
    chain = "".join(f"c{k + 1} = Tanh (c{k}) " for k in range(number))
    constants = {"w": rng.standard_normal((17, 9)).astype(np.float32), "k": np.float32(number + 0.5)}
    body = f"m = MatMul (x, w) c0 = Mul (m, k) {chain} y = Sigmoid (c{number})"
    return small(13, FEEDS, body, constants=constants)


def right(number: int) -> np.ndarray:
    weights = np.random.default_rng(number).standard_normal((17, 9)).astype(np.float32)
    c = FEEDS["x"].astype(np.float64) @ weights * (number + 0.5)
    for _ in range(number):
        c = np.tanh(c)
    return 1 / (1 + np.exp(-c))


def assert_right(answer: np.ndarray, number: int) -> None:
    np.testing.assert_allclose(answer, right(number), rtol=0, atol=32 * (number + 1) * 2.0**-24)


def compiled(folder: str | Path, number: int) -> Executable:
    return opfuse.compile(model(number), threads=1, calibrate=False, cache=folder)


# ---- what they do: each returns what the parent asks for -------------------------------------------------------------
def compile_and_answer(folder: str, number: int) -> np.ndarray:
    return compiled(folder, number)(FEEDS)["y"]


def compile_all(folder: str, numbers: tuple[int, ...]) -> list[np.ndarray]:
    return [compile_and_answer(folder, n) for n in numbers]


def answer_without_compiling(folder: str, number: int) -> np.ndarray:
    """The code must come from the cache."""

    def fail(*_: object) -> bytes:
        raise AssertionError("the cache does not hold the code")

    pipeline.compile_object = fail  # type: ignore[assignment]
    return compile_and_answer(folder, number)


def compile_and_find_again(folder: str, number: int) -> list[np.ndarray]:
    return [compile_and_answer(folder, number), answer_without_compiling(folder, number)]


def body_of(key: str, version: int, size: int = 300_000) -> bytes:
    """What may stand under a key: one of a few contents, each of one byte value and a length of its own."""
    return key.encode() + bytes([version]) * (size + 1000 * version)


def put_for_ever(folder: str) -> None:
    cache = Cache(Path(folder))
    for version in range(10**9):
        for key in KEYS:
            cache.put("object", key, body_of(key, version % 4))


def damage_for_ever(folder: str, seed: int) -> None:
    """Cut entries and turn their bits, in place, while others read and write them."""
    rng = np.random.default_rng(seed)
    while True:
        for path in [p for p in Path(folder).rglob("*") if p.is_file()]:
            try:
                with open(path, "r+b") as file:
                    data = bytearray(file.read())
                    if rng.random() < 0.3:
                        file.truncate(int(rng.integers(0, len(data) + 1)))
                    elif data:
                        at = int(rng.integers(0, len(data)))
                        file.seek(at)
                        file.write(bytes([data[at] ^ (1 << int(rng.integers(0, 8)))]))
            except OSError:
                continue


def save_for_ever(path: str, number: int) -> None:
    exe = compiled(Path(path).parent / "cache", number)
    while True:
        exe.save(path)


def save_one(path: str, number: int) -> None:
    """The model comes from the cache that lies beside the file."""
    compiled(Path(path).parent / "cache", number).save(path)


def load_many(path: str, times: int) -> list[np.ndarray]:
    return [opfuse.load(path)(FEEDS)["y"] for _ in range(times)]


def with_small_files(most: int, work: Callable[..., Any], *arguments: Any) -> Any:
    """As on a disk that is full: a file that grows beyond `most` bytes cannot be written on."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    return work(*arguments)


def as_nobody(work: Callable[..., Any], *arguments: Any) -> Any:
    """Permissions do not bind the superuser, and do not let nobody read where packages lie."""
    if os.geteuid() == 0:
        known = pipeline.version("llvmlite")
        pipeline.version = lambda name: known
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    return work(*arguments)


# ---- starting them ---------------------------------------------------------------------------------------------------
@functools.cache
def _context() -> Any:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.runtime.cache_processes", "tests.runtime.file_faults"])
    return context


@dataclass
class Child:
    process: BaseProcess
    pipe: Any

    def result(self, seconds: float = 60) -> Any:
        """What the work returned; its own exception where it raised one."""
        if not self.pipe.poll(seconds):
            self.kill()
            raise AssertionError("the process did not end")
        try:
            answer = self.pipe.recv()
        except EOFError:
            self.process.join()
            raise AssertionError(f"the process ended with {self.process.exitcode}") from None
        self.process.join()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def exit_code(self, seconds: float = 60) -> int | None:
        self.process.join(seconds)
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def _work(pipe: Any, barrier: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        if barrier is not None:
            barrier.wait(30)
        answer = work(*arguments)
    except BaseException as error:  # the parent raises it again
        answer = error
    pipe.send(answer)


def start(work: Callable[..., Any], *arguments: Any, barrier: Any = None) -> Child:
    ours, theirs = _context().Pipe(False)
    process = _context().Process(target=_work, args=(theirs, barrier, work, arguments), daemon=True)
    process.start()
    theirs.close()
    return Child(process, ours)


def run(work: Callable[..., Any], *each: tuple[Any, ...]) -> list[Any]:
    """Several processes at once."""
    barrier = _context().Barrier(len(each))
    children = [start(work, *arguments, barrier=barrier) for arguments in each]
    return [c.result() for c in children]
