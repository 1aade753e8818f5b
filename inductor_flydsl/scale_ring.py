"""The LDS ring of block scales: its sizes, for the space and for the kernels alike.

A chunk holds the scales of 512, 1024 or 2048 elements along K of every row of the tile of A, then
of B. It is loaded a piece a K step, so that every step issues as many DMAs. A segment of memory
holds the scales of 2048 elements of a row: shorter chunks fetch it several times, so the longest is
taken that leaves room for as many workgroups.
Knows nothing of how a pipeline waits.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from .arch import GFX950

# Elements along K of a chunk, the longest first; 32 of them share a scale of one byte.
CHUNKS_K = (2048, 1024, 512)
ELEMENTS_A_BYTE = 32
# One load of a wave: 64 lanes of 4 bytes.
UNIT_BYTES, LANE_BYTES = 256, 4


@dataclass(frozen=True)
class ScaleRing:
    """Sizes of the ring.

    Attributes:
        chunk_k: elements along K of a chunk.
        steps: K steps that a chunk lasts, and pieces that it is loaded in.
        waves: that load scales of A; as many load those of B, or the same one where there is one.
        loads: of each wave for a piece, of each operand that it loads.
        slots: chunks held at once.
        alone: one wave loads both.
    """

    chunk_k: int
    steps: int
    waves: int
    loads: int
    slots: int
    alone: bool

    @classmethod
    def of(cls, config: Any, data_bytes: int) -> ScaleRing:
        """The ring of a GemmConfig whose operands take ``data_bytes`` of LDS."""
        rings = [
            cls._of_chunk(config, chunk_k, rounded)
            for chunk_k, rounded in itertools.product(CHUNKS_K, (True, False))
        ]
        smallest = rings[-1]
        most = max(1, _fit(data_bytes + smallest.bytes))
        return next((r for r in rings if _fit(data_bytes + r.bytes) == most), smallest)

    @classmethod
    def _of_chunk(cls, config: Any, chunk_k: int, rounded: bool) -> ScaleRing:
        """With chunks so long; rounded: their number is a power of two, easier to count by."""
        steps = max(1, chunk_k // config.tile_k)
        waves = max(1, config.waves // 2)
        units = max(config.tile_m, config.tile_n) * _row_bytes(chunk_k) // UNIT_BYTES
        loads = -(-units // (steps * waves))
        # The first piece of a chunk is loaded steps - 1 before the K step it belongs to, which is
        # itself stages - 1 ahead.
        slots = 3 if config.pipeline == "hti" else 2 - (2 - config.stages) // steps
        if rounded:
            slots = 1 << (slots - 1).bit_length()
        return cls(chunk_k, steps, waves, loads, slots, config.waves == 1)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of a chunk."""
        return _row_bytes(self.chunk_k)

    @property
    def unit_rows(self) -> int:
        """Rows that one wave loads at once."""
        return UNIT_BYTES // self.row_bytes

    @property
    def dma_steps(self) -> int:
        """DMA instructions of each wave for a piece."""
        return self.loads * (2 if self.alone else 1)

    @property
    def operand_bytes(self) -> int:
        """LDS bytes of one operand's part of a chunk; loads of more rows than it has pad it."""
        return self.steps * self.loads * self.waves * UNIT_BYTES

    @property
    def chunk_bytes(self) -> int:
        """LDS bytes of a chunk: A's part, then B's."""
        return 2 * self.operand_bytes

    @property
    def bytes(self) -> int:
        return self.slots * self.chunk_bytes


def _row_bytes(chunk_k: int) -> int:
    return chunk_k // ELEMENTS_A_BYTE


def _fit(lds_bytes: int) -> int:
    """Workgroups with so much LDS that a CU holds."""
    granules = -(-lds_bytes // GFX950.lds_granule)
    return GFX950.lds_bytes // (granules * GFX950.lds_granule)
