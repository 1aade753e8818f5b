"""Finds the main loop in executed instructions, and leaves out most of its rounds.

Owns the detection of identical rounds. Knows nothing of what instructions do or cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Loop:
    """Rounds that are the same, instruction by instruction.

    start: position of the first round. length: instructions a round. rounds: how many there are.
    """

    start: int
    length: int
    rounds: int


def find_loop(pcs: np.ndarray) -> Loop | None:
    """The longest stretch of identical rounds in executed `pcs` (int [n]); None without a loop.

    A round starts at the target of a backward jump and ends where the next starts, so the last time
    through isn't counted. Of nested loops the outer one is found where
    its rounds are the same.
    """
    if len(pcs) < 4:
        return None
    heads = np.unique(pcs[1:][np.diff(pcs) < 0])
    best: Loop | None = None
    for head in heads.tolist():
        found = _longest(pcs, np.flatnonzero(pcs == head))
        if found is not None and (
            best is None or found.length * found.rounds > best.length * best.rounds
        ):
            best = found
    return best


def _longest(pcs: np.ndarray, at: np.ndarray) -> Loop | None:
    """The longest stretch of identical rounds that start at positions `at`."""
    if len(at) < 2:
        return None
    lengths = np.diff(at)
    same = np.zeros(len(lengths), np.bool_)
    for i in range(1, len(lengths)):
        n = lengths[i]
        same[i] = n == lengths[i - 1] and np.array_equal(
            pcs[at[i] : at[i] + n], pcs[at[i - 1] : at[i - 1] + n]
        )
    best = (0, 0)
    begin = 0
    for i in range(1, len(lengths) + 1):
        if i == len(lengths) or not same[i]:
            best = max(best, (i - begin, -begin))
            begin = i
    rounds, first = best[0], -best[1]
    if rounds < 2:
        return None
    return Loop(int(at[first]), int(lengths[first]), rounds)


def positions(count: int, loop: Loop | None, dropped: int) -> np.ndarray:
    """Positions of `count` executed instructions with `dropped` rounds left out near the end.

    The last rounds stay, so that what follows the loop meets what it would have met.
    """
    if loop is None or dropped == 0:
        return np.arange(count)
    stop = loop.start + (loop.rounds - 2) * loop.length
    begin = stop - dropped * loop.length
    return np.concatenate([np.arange(begin), np.arange(stop, count)])
