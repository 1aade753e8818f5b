"""What a launch asks of L2, Infinity Cache and HBM, and what of them one CU gets.

Owns the sharing of lines between workgroups that run at the same time, workgroups going round
robin to the XCDs. Workgroups that start together are taken to walk through K together, so the
lines of their first loads stand for all their loads; what they load once comes from HBM.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .cu import MemoryShare
from .facts import GFX950, Facts
from .probe import SEGMENT_BITS


@dataclass(frozen=True)
class Traffic:
    """Bytes of a whole launch, and which parts of what is read miss.

    read, written: bytes between CUs and L2. l2_miss: part of `read` that goes past L2. far: part
    that goes to HBM. cus: CUs that take part.
    """

    read: float
    written: float
    l2_miss: float
    far: float
    cus: int

    def share(self, ghz: float, facts: Facts = GFX950) -> MemoryShare:
        """What one CU gets at a clock of `ghz`."""
        latency = facts.l2_latency + ghz * (
            self.l2_miss * facts.l2_miss_ns + self.far * facts.far_miss_ns
        )
        rates = [facts.l2_bytes_per_clock]
        per_clock = 1e-3 / (ghz * self.cus)  # bytes/µs of the chip → bytes a clock and CU
        if self.l2_miss:
            rates.append(facts.infinity_cache_bytes_per_us * per_clock / self.l2_miss)
        if self.far:
            rates.append(facts.hbm_bytes_per_us * per_clock / self.far)
        return MemoryShare(int(latency), facts.l2_latency, min(rates))

    def hbm_us(self, facts: Facts = GFX950) -> float:
        """Time HBM needs for the launch's reads and writes."""
        return (self.far * self.read + self.written) / facts.hbm_bytes_per_us


def measure_traffic(lines: np.ndarray, read: float, written: float, cus: int,
                    facts: Facts = GFX950) -> Traffic:  # fmt: skip
    """Traffic from first-load `lines` (int64 [2, n]: workgroup, segment) of those that run at once.

    read, written: bytes of the whole launch past the L1s. cus: CUs that take part.
    """
    count = lines.shape[1]
    if not count:
        return Traffic(read, written, 1.0, 1.0, cus)
    group, segment = lines
    near = len(np.unique(group % facts.xcds << SEGMENT_BITS | segment))
    return Traffic(read, written, near / count, len(np.unique(segment)) / count, cus)
