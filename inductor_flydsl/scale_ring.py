"""The LDS ring of block scales: its sizes, for the space and for the kernels alike.

A chunk holds the scales of 512 elements along K of every row of the tile of A, then of B: 16 bytes
a row. It is loaded a piece a K step, so that every step issues as many DMAs: a line of memory holds
the scales of thousands of elements, and a step of its own would bring each line many times.
Knows nothing of how a pipeline waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# Elements along K of a chunk, and the bytes that their scales take in a row.
CHUNK_K, ROW_BYTES = 512, 16
# Rows that one wave loads at once, 4 lanes a row.
UNIT_ROWS = 16
UNIT_BYTES = UNIT_ROWS * ROW_BYTES


@dataclass(frozen=True)
class ScaleRing:
    """Sizes of the ring.

    Attributes:
        steps: K steps that a chunk lasts, and pieces that it is loaded in.
        waves: that load scales of A; as many load those of B, or the same one where there is one.
        loads: of each wave for a piece, of each operand that it loads.
        slots: chunks held at once, a power of two.
        alone: one wave loads both.
    """

    steps: int
    waves: int
    loads: int
    slots: int
    alone: bool

    @classmethod
    def of(cls, config: Any) -> ScaleRing:
        """The ring of a GemmConfig."""
        steps = max(1, CHUNK_K // config.tile_k)
        waves = max(1, config.waves // 2)
        units = max(config.tile_m, config.tile_n) // UNIT_ROWS
        loads = -(-units // (steps * waves))
        # The first piece of a chunk is loaded steps - 1 before the K step it belongs to, which is
        # itself stages - 1 ahead.
        needed = 3 if config.pipeline == "hti" else 2 - (2 - config.stages) // steps
        slots = 1 << (needed - 1).bit_length()
        return cls(steps, waves, loads, slots, config.waves == 1)

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
