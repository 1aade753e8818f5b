"""Child processes that do one thing at a time and may die or hang while doing it.

Owns their start, a question with a time limit, their end, and the words for how they died. Knows
nothing of kernels: compile workers and measuring processes are both of this kind.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

STDERR_TAIL = 400
POLL_SECONDS = 0.25
# An idle child holds hundreds of MB.
IDLE_SECONDS = 60.0


class ProcessDied(Exception):
    """The process ended without an answer; the message says how.

    Attributes:
        code: its exit status, negative for a signal.
    """

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class ProcessHung(Exception):
    """No answer came in time; the process was ended."""


class Child:
    """A Python module as a process that answers each JSON line with JSON lines.

    Args:
        arguments: of the Python interpreter, for example ``-m``, a module, and its arguments.
        environment: variables over those of this process.
    """

    def __init__(self, arguments: Sequence[str], environment: dict[str, str] | None = None) -> None:
        root = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        # A file, not a pipe: a pipe that nobody reads stops a process that prints a lot. It stays
        # open as long as the process.
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            bufsize=0,
            # A group of its own, so that what it started (a linker) can be ended with it.
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path, **(environment or {})},
        )
        self._lines: list[bytes] = []
        self._rest = b""
        self.ready = False

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def send(self, message: Any) -> None:
        """Write one line.

        Raises:
            ProcessDied: there is nobody to read it.
        """
        assert self.process.stdin is not None
        data = json.dumps(message).encode() + b"\n"
        try:
            while data:
                data = data[self.process.stdin.write(data) or 0 :]
        except BrokenPipeError:
            raise self._death() from None

    def receive(self, seconds: float | None, stop: Callable[[], bool] = lambda: False) -> Any:
        """The next line of its answers, waiting up to `seconds` (None: for ever).

        Args:
            seconds: how long to wait.
            stop: asked now and then; True ends the process.

        Raises:
            ProcessDied, ProcessHung: there is none; the process is gone in both cases.
        """
        assert self.process.stdout is not None
        end = None if seconds is None else time.monotonic() + seconds
        while not self._lines:
            left = POLL_SECONDS if end is None else max(0.0, end - time.monotonic())
            if not select.select([self.process.stdout], [], [], min(left, POLL_SECONDS))[0]:
                if (left > POLL_SECONDS or end is None) and not stop():
                    continue
                self.kill()
                raise ProcessHung(f"no answer within {seconds or 0:g} s")
            data = os.read(self.process.stdout.fileno(), 1 << 16)
            if not data:
                raise self._death()
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._lines += lines
        return json.loads(self._lines.pop(0))

    def kill(self) -> None:
        """End the process and what it started, and wait for it."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self._finish()

    def close(self) -> None:
        """Let it end by itself: it sees the end of its stdin."""
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()

    def _finish(self) -> int:
        code = self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        return code

    def _death(self) -> ProcessDied:
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.kill()
        code = self._finish()
        if code < 0:
            try:
                how = f"was ended by {signal.Signals(-code).name}"
            except ValueError:
                how = f"was ended by signal {-code}"
        else:
            how = f"exited with status {code}"
        tail = self._tail()
        return ProcessDied(how + (f"; its last words: {tail}" if tail else ""), code)

    def _tail(self) -> str:
        self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, self._stderr.tell() - 16 * STDERR_TAIL))
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return " | ".join(line.strip() for line in lines[-3:])[-STDERR_TAIL:]


def answers() -> Callable[..., None]:
    """In a child: a function that sends an answer. Whatever else is printed goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def say(**answer: Any) -> None:
        print(json.dumps(answer), file=out, flush=True)

    return say


def questions() -> Iterator[Any]:
    """In a child: what the parent asks, until it has gone or is silent for IDLE_SECONDS."""
    rest = b""
    while select.select([0], [], [], IDLE_SECONDS)[0]:
        data = os.read(0, 1 << 16)
        if not data:
            return
        *lines, rest = (rest + data).split(b"\n")
        yield from map(json.loads, lines)
