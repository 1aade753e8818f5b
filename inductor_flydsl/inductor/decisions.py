"""What was decided for each op of this process, and in what words it is told.

Owns the list that `choices.decisions`, ``explain`` and the demo read, and the autotune table of
choices that Inductor does not rank itself. Decides nothing, and imports no torch.
"""

from __future__ import annotations

import collections
import logging
import math
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from ..config import GemmConfig
from ..problem import GemmProblem

log = logging.getLogger("inductor_flydsl")
KEPT = 10_000


@dataclass(frozen=True)
class Time:
    """The time of one choice.

    Attributes:
        name: as in an autotune table; ours are names of configurations.
        us: µs on ``clock``; infinite for a choice that failed, None for one that is not ranked.
        clock: ``gpu_event``, ``emulated`` or ``wall``; times of different clocks never compare.
    """

    name: str
    us: float | None
    clock: str


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What became of one op.

    Attributes:
        op: as Inductor names it (``mm``).
        shapes: the operands in words, for ops that have no `problem` too.
        chosen: the backend that serves the op: ``FLYDSL``, ``ATEN``, ``TRITON``; ``OTHERS`` where
            several of Inductor's own were left to choose from.
        reason: why.
        problem: what was asked, where it is one of ours.
        config: our candidate, chosen or not, where there was one.
        times: what was compared.
    """

    op: str
    shapes: str
    chosen: str
    reason: str
    problem: GemmProblem | None = None
    config: GemmConfig | None = None
    times: tuple[Time, ...] = ()

    def __str__(self) -> str:
        subject = str(self.problem) if self.problem is not None else f"{self.op} {self.shapes}"
        return f"{subject}: {self.chosen} ({self.reason})"


_lock = threading.Lock()
_kept: collections.deque[Decision] = collections.deque(maxlen=KEPT)


def record(decision: Decision, *, level: int = logging.INFO) -> None:
    """Keep and log a decision; one that repeats the latest word for word is kept once."""
    with _lock:
        if _kept and _kept[-1] == decision:
            return
        _kept.append(decision)
    log.log(level, "%s", decision)


def decisions() -> tuple[Decision, ...]:
    """Every decision of this process so far, oldest first (the latest 10,000)."""
    with _lock:
        return tuple(_kept)


def clear() -> None:
    """Forget every decision."""
    with _lock:
        _kept.clear()


def table(title: str, times: Iterable[Time], winner: str) -> str:
    """An autotune table whose rows name their clocks.

    Rows with a time come first, fastest first, with their speed relative to the winner's.
    """
    rows = sorted(times, key=lambda t: math.inf if t.us is None else t.us)
    best = next((t.us for t in rows if t.name == winner), None)
    lines = [f"AUTOTUNE {title}"]
    for row in rows:
        if row.us is None:
            lines.append(f"  {row.name} not ranked: no time on this clock")
        elif math.isinf(row.us):
            lines.append(f"  {row.name} failed")
        else:
            share = f" {best / row.us:.1%}" if best else ""
            lines.append(f"  {row.name} {row.us:.3f} us ({row.clock}){share}")
    return "\n".join(lines)


def print_table(text: str) -> None:
    """Write a table where Inductor writes its own."""
    sys.stderr.write(text + "\n")
