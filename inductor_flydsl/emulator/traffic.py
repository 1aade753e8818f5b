"""What a launch asks of L2, Infinity Cache and HBM, and what of them one CU gets.

Owns the sharing of lines between workgroups that run at the same time, workgroups going round
robin to the XCDs. Workgroups that start together are taken to walk through K together, so the
lines of their first loads stand for all their loads; what they load once comes from HBM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .cu import MemoryShare
from .facts import GFX950, Facts
from .probe import SEGMENT_BITS
from .vmem_timing import SEGMENT


@dataclass(frozen=True)
class Traffic:
    """Bytes of a whole launch, and which parts of what is read miss.

    read, written: bytes between CUs and L2. l2_miss: part of `read` that goes past L2. far: part
    that goes to HBM. sharers: CUs as busy as the busiest one that what is read would keep busy.
    """

    read: float
    written: float
    l2_miss: float
    far: float
    sharers: float

    def share(self, ghz: float, facts: Facts = GFX950) -> MemoryShare:
        """What one CU gets at a clock of `ghz`."""
        latency = facts.l2_latency + ghz * (
            self.l2_miss * facts.l2_miss_ns + self.far * facts.far_miss_ns
        )
        rate = facts.l2_bytes_per_clock
        # HBM's bytes and the Infinity Cache's come through the same fabric, one after another.
        near = max(0.0, self.l2_miss - self.far)
        past = self.far / facts.hbm_bytes_per_us + near / facts.infinity_cache_bytes_per_us
        if past:
            rate = min(rate, 1e-3 / (ghz * self.sharers * past))
        # XCDs see what others wrote at the Infinity Cache.
        exchange = facts.infinity_cache_bytes_per_us / (1e3 * ghz * self.sharers)
        return MemoryShare(
            int(latency), facts.l2_latency, rate,
            int(facts.l2_latency + ghz * facts.l2_miss_ns), min(facts.l2_bytes_per_clock, exchange),
        )  # fmt: skip

    def hbm_us(self, facts: Facts = GFX950) -> float:
        """Time HBM needs for the launch's reads and writes."""
        return (self.far * self.read + self.written) / facts.hbm_bytes_per_us


def measure_traffic(lines: np.ndarray, read: Mapping[int, float], written: float, sharers: float,
                    bases: np.ndarray | None = None) -> Traffic:  # fmt: skip
    """Traffic from the lines that workgroups which run at once load first.

    lines: int64 [2, n], workgroup and segment. read: bytes of the whole launch past the L1s, by
    region of memory. written: bytes. sharers: as of Traffic. bases: first addresses of the
    regions, ascending; None where all memory is region 0. A prologue may load more of one operand
    than of another, so each region's misses count by what is read of it in all.
    """
    total = sum(read.values())
    group, segment = lines
    where = regions_of(segment, bases)
    near = far = known = 0.0
    for region, size in read.items():
        mine = where == region
        count = int(mine.sum())
        if count:
            keys = group[mine] % GFX950.xcds << SEGMENT_BITS | segment[mine]
            near += size * len(np.unique(keys)) / count
            far += size * len(np.unique(segment[mine])) / count
            known += size
    if not known:
        return Traffic(total, written, 1.0, 1.0, sharers)
    return Traffic(total, written, near / known, far / known, sharers)


def regions_of(segments: np.ndarray, bases: np.ndarray | None) -> np.ndarray:
    """Index of the region that the end of each segment is in."""
    if bases is None:
        return np.zeros(len(segments), np.int64)
    ends = (segments + 1) * SEGMENT - 1
    return np.searchsorted(bases, ends, side="right") - 1
