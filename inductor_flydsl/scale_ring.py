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
        a_units, b_units: groups of 16 rows in the tiles of A and of B.
        steps: K steps that a chunk lasts, and pieces that it is loaded in.
        loads: of each wave for a piece.
        waves: of the workgroup.
        slots: chunks held at once.
    """

    a_units: int
    b_units: int
    steps: int
    loads: int
    waves: int
    slots: int

    @classmethod
    def of(cls, config: Any) -> ScaleRing:
        """The ring of a GemmConfig."""
        steps = max(1, CHUNK_K // config.tile_k)
        a_units, b_units = config.tile_m // UNIT_ROWS, config.tile_n // UNIT_ROWS
        loads = -(-(a_units + b_units) // (steps * config.waves))
        # The first piece of a chunk is loaded steps - 1 before the K step it belongs to, which is
        # itself stages - 1 ahead.
        slots = 3 if config.pipeline == "hti" else 2 - (2 - config.stages) // steps
        return cls(a_units, b_units, steps, loads, config.waves, slots)

    @property
    def chunk_bytes(self) -> int:
        """LDS bytes of a chunk; loads of more rows than there are pad it."""
        return self.steps * self.loads * self.waves * UNIT_BYTES

    @property
    def bytes(self) -> int:
        return self.slots * self.chunk_bytes
