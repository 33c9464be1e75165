"""Faults at every step of writing a file: the process is killed there, or the system call fails.

    with_fault(kill, 3, work, ...)          # the third step is begun and not survived
    with_fault(failing(errno.ENOSPC), 3, work, ...)

A step is one of the system calls below, or a chunk of bytes, of which half are written when the fault comes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

CALLS = ("mkdir", "open", "fsync", "replace", "unlink")
Fault = Callable[[], None]


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def failing(number: int) -> Fault:
    def fail() -> None:
        raise OSError(number, os.strerror(number))

    return fail


class Steps:
    """Counts; `after` lets the call be made before the fault."""

    def __init__(self, at: int, fault: Fault, after: bool) -> None:
        self.at, self.fault, self.after, self.count, self.names = at, fault, after, 0, [""]

    def step(self, name: str, call: Callable[[], Any]) -> Any:
        self.count += 1
        self.names.append(name)
        if self.count != self.at:
            return call()
        try:
            if self.after:
                call()
        finally:
            self.fault()
        raise AssertionError("no fault came")


class _File:
    """A file whose chunks are steps."""

    def __init__(self, file: Any, steps: Steps) -> None:
        self._file, self._steps = file, steps

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, chunk: Any) -> int:
        data = bytes(chunk)
        self._file.write(data[: len(data) // 2])
        self._file.flush()
        self._steps.step("write", lambda: None)
        self._file.write(data[len(data) // 2 :])
        return len(data)


@contextmanager
def faults(fault: Fault, at: int, after: bool = False) -> Iterator[Steps]:
    """Within, the step number `at` (from 1 on) does not end well; steps of reading do not count."""
    steps, kept = Steps(at, fault, after), {name: getattr(os, name) for name in (*CALLS, "fdopen")}

    def counted(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if name == "open" and not arguments[1] & os.O_WRONLY:
                return kept[name](*arguments, **named)
            return steps.step(name, lambda: kept[name](*arguments, **named))

        return call

    for name in CALLS:
        setattr(os, name, counted(name))
    os.fdopen = lambda *a, **k: _File(kept["fdopen"](*a, **k), steps)  # type: ignore[assignment]
    try:
        yield steps
    finally:
        for name, function in kept.items():
            setattr(os, name, function)


def with_fault(fault: Fault, at: int, after: bool, work: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
    """What the work returns, and how many steps there were."""
    with faults(fault, at, after) as steps:
        return work(*arguments), steps.count


def killed_at(at: int, after: bool, work: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
    return with_fault(kill, at, after, work, *arguments)


def failed_at(number: int, at: int, work: Callable[..., Any], *arguments: Any) -> tuple[Any, int]:
    return with_fault(failing(number), at, False, work, *arguments)
