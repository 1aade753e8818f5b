"""Vector memory traffic: lane addresses → clocks of the address unit, bytes past the L1.

Owns segments (the 64 bytes that a CU's port moves in a clock) and an L1 of the last lines used.
Knows nothing of waves, latencies or bandwidth.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from .facts import GFX950, Facts

SEGMENT = 64
_SHIFT = 6


def segments_of(addr: np.ndarray, size: int, active: np.ndarray | None) -> list[np.ndarray]:
    """Distinct 64-byte segments that each row of addr [n, 64] touches, in order of address."""
    first = addr >> _SHIFT
    last = (addr + (size - 1)) >> _SHIFT
    crossing = bool((first != last).any())
    found = []
    for row in range(len(addr)):
        lanes = first[row] if active is None else first[row][active[row]]
        if crossing:
            more = last[row] if active is None else last[row][active[row]]
            lanes = np.concatenate([lanes, more])
        found.append(np.unique(lanes))
    return found


def issue_clocks(size: int, segments: int, facts: Facts = GFX950) -> int:
    """Clocks a CU spends on an instruction: its width's, or a segment a clock where that's more."""
    return max(facts.vmem_issue[max(4, size)], segments)


class L1:
    """The lines that a workgroup used last; a hit costs L2 nothing."""

    def __init__(self, facts: Facts = GFX950) -> None:
        self.capacity = facts.l1_bytes // SEGMENT
        self.lines: OrderedDict[int, None] = OrderedDict()

    def misses(self, segments: np.ndarray) -> int:
        """How many of these segments aren't held; they are held from now."""
        lines, missed = self.lines, 0
        for segment in segments.tolist():
            if segment in lines:
                lines.move_to_end(segment)
            else:
                missed += 1
                lines[segment] = None
        while len(lines) > self.capacity:
            lines.popitem(last=False)
        return missed
