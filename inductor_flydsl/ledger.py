"""What this process's tuning came to: counts, and the records that it handed out.

Owns the two. Decides nothing.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace

from .records import TuningRecord

log = logging.getLogger("inductor_flydsl.tuner")

HISTORY_LENGTH = 1000


@dataclass(frozen=True, kw_only=True)
class TunerStats:
    """Counts of this process.

    Attributes:
        lookups: times a record was asked for.
        hits, misses: of these; their sum is ``lookups``.
        tuned: problems measured to the end.
        compiled: kernels asked of the compiler (it may have had them on disk).
        measured: candidates that were run.
        rejected: candidates that failed to compile or to run, or gave wrong numbers.
    """

    lookups: int = 0
    hits: int = 0
    misses: int = 0
    tuned: int = 0
    compiled: int = 0
    measured: int = 0
    rejected: int = 0


_lock = threading.Lock()
_stats = TunerStats()
_history: list[tuple[TuningRecord, int]] = []
_warned: set[str] = set()


def count(**more: int) -> None:
    """Add to the counts."""
    global _stats
    with _lock:
        _stats = replace(_stats, **{n: getattr(_stats, n) + v for n, v in more.items()})


def remember(record: TuningRecord, *, measured: int) -> None:
    """Add to the history."""
    with _lock:
        _history.append((record, measured))
        del _history[:-HISTORY_LENGTH]


def warn_once(text: str) -> None:
    """Log a warning, the first time that it is given."""
    with _lock:
        new = text not in _warned
        _warned.add(text)
    if new:
        log.warning("%s", text)


def stats() -> TunerStats:
    """The counts of this process so far."""
    return _stats


def history() -> list[tuple[TuningRecord, int]]:
    """What `Tuner.tune` returned in this process, oldest first, each with the number of
    candidates that were measured for it (0 for one found in the store); the last thousand."""
    with _lock:
        return list(_history)
