"""Child processes of `bench`: started, asked, stopped while others run, and ended, whatever they do.

    process = Process(Contender.named("onnxruntime"), folder)
    process.ask({"do": "block", ...}, timeout=60)     # wakes it, waits for the answer, stops it again
    process.error                                     # why it can no longer be asked; empty while it lives
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import opfuse.report.contender as program


class ContenderFailed(RuntimeError):
    """A contender that answered with an error, crashed, or did not answer in time."""


@dataclass(frozen=True)
class Contender:
    """A runtime to be measured: its name, and the command that starts its process (see `opfuse.report.contender`)."""

    name: str
    command: tuple[str, ...]

    @staticmethod
    def named(name: str) -> Contender:
        """One of the known runtimes. ValueError for others."""
        if name not in program.RUNTIMES:
            raise ValueError(f"no contender {name!r}; choose from {', '.join(program.RUNTIMES)}")
        root = str(Path(program.__file__).resolve().parents[2])
        # -P: the program's own folder must not shadow what the runtimes import.
        return Contender(name, (sys.executable, "-P", program.__file__, name, root))


class Process:
    """One contender's process. It is stopped (SIGSTOP) whenever it is not being asked."""

    def __init__(self, contender: Contender, folder: Path) -> None:
        self.name, self.error = contender.name, ""
        self._words = folder / f"errors-{contender.name}.txt"
        self._buffer = b""
        with self._words.open("wb") as words:
            self._child = subprocess.Popen(
                contender.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words, bufsize=0
            )

    def ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Wake the process, ask, and stop it again. On failure `error` is set and the answer is empty."""
        try:
            self._wake()
            self._write(request)
            reply = self._read(timeout)
            if "error" in reply:
                raise ContenderFailed(str(reply["error"]))
            self._stop()
        except ContenderFailed as failure:
            self.error = str(failure)
            self.end()
            return {}
        return reply

    def end(self) -> None:
        """End the process at once; may be called again."""
        if self._child.poll() is None:
            self._child.kill()  # works on a stopped process too
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _wake(self) -> None:
        self._signal(signal.SIGCONT)

    def _stop(self) -> None:
        """Stop every thread of the process and wait until they stand."""
        self._signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def _signal(self, which: signal.Signals) -> None:
        if self._child.poll() is not None:
            raise ContenderFailed(self._last_words())
        self._child.send_signal(which)

    def _write(self, request: Mapping[str, Any]) -> None:
        assert self._child.stdin is not None
        try:
            self._child.stdin.write((json.dumps(request) + "\n").encode())
        except OSError:
            raise ContenderFailed(self._last_words()) from None

    def _read(self, timeout: float) -> dict[str, Any]:
        """One line of JSON. What a runtime prints elsewhere does not come here."""
        assert self._child.stdout is not None
        end = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                left = end - time.monotonic()
                if left <= 0 or not selector.select(left):
                    raise ContenderFailed(f"no answer within {timeout:.0f} s")
                chunk = os.read(self._child.stdout.fileno(), 1 << 16)
                if not chunk:
                    raise ContenderFailed(self._last_words())
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            reply = json.loads(line)
        except ValueError:
            raise ContenderFailed(f"an answer that is not JSON: {line[:80]!r}") from None
        return dict(reply)

    def _last_words(self) -> str:
        code = self._child.wait()
        how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        words = self._words.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return f"{how}: {words[-1][:300]}" if words else how
