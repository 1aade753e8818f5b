"""How far a long command is, on stderr: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time

WIDTH = 30
# Elsewhere than on a terminal somebody reads a log: a line now and then.
LINE_SECONDS = 5.0


class Progress:
    """``progress(stage, done, all, what)``; safe from any thread. Call `close` at the end."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._lock = threading.Lock()
        self._start = time.monotonic()
        self._last = ("", 0.0)
        self._drawn = False

    def __call__(self, stage: str, done: int, total: int, what: str = "") -> None:
        with self._lock:
            if self._terminal:
                self._draw(stage, done, total, what)
            else:
                self._line(stage, done, total, what)

    def _draw(self, stage: str, done: int, total: int, what: str) -> None:
        filled = WIDTH * done // max(1, total)
        bar = "#" * filled + "." * (WIDTH - filled)
        elapsed = time.monotonic() - self._start
        text = f"{stage:8}[{bar}] {done}/{total} {elapsed:.0f} s {what}"
        sys.stderr.write(f"\r\x1b[2K{text[:110]}")
        sys.stderr.flush()
        self._drawn = True

    def _line(self, stage: str, done: int, total: int, what: str) -> None:
        now = time.monotonic()
        before, at = self._last
        if stage == before and done < total and now - at < LINE_SECONDS:
            return
        self._last = (stage, now)
        print(f"{stage} {done}/{total} {what}".rstrip(), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Take the bar off the terminal."""
        with self._lock:
            if self._drawn:
                sys.stderr.write("\r\x1b[2K")
                sys.stderr.flush()
                self._drawn = False
