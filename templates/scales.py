"""Block scales on their way from memory to matrix instructions, for A and B together.

Owns the ring that `scale_ring` sizes: which rows a wave loads in which K step, and where a lane
finds its own. The data of a K step and the last piece of its chunk are loaded together, so what
waits for the one waits for the other. Knows nothing of a pipeline's order, and waits for nothing.
"""

from __future__ import annotations

from typing import Any

import flydsl.expr as fx

from ..scale_ring import CHUNK_K, ROW_BYTES, UNIT_BYTES, UNIT_ROWS
from ..scaling import BLOCK, TILE_BLOCKS, TILE_BYTES, TILE_ROWS
from . import ops

CHUNK_BLOCKS = CHUNK_K // BLOCK
# A lane loads the scales of 4 blocks of a row at once; 4 lanes load a row of a chunk.
LANE_BLOCKS = 4
LANES_A_ROW = ROW_BYTES // LANE_BLOCKS


class Source:
    """The scales of one operand in memory, from the tile's first row and the split's first K.

    Args:
        layout: ``swizzled``, or another word for rows with strides.
        address: byte address of the operand's first scale.
        rows: (the tile's first row, rows of the whole operand).
        blocks: (the split's first block along K, blocks of the split).
        strides: (row, block) as `scaling.Scales` has them.
    """

    def __init__(self, layout: str, address: Any, rows: Any, blocks: Any, strides: Any) -> None:
        self.swizzled = layout == "swizzled"
        self.row, self.block = strides
        self.blocks = blocks[1]
        self.rows_left = rows[1] - rows[0]
        if self.swizzled:
            # The tile may begin inside of a tile of the layout.
            self.skipped_rows = rows[0] % TILE_ROWS
            start = fx.Int64(rows[0] // TILE_ROWS) * fx.Int64(self.row)
            start = start + fx.Int64(blocks[0] // TILE_BLOCKS) * TILE_BYTES
        else:
            start = fx.Int64(rows[0]) * fx.Int64(self.row)
            start = start + fx.Int64(blocks[0]) * fx.Int64(self.block)
        self.address = address + start
        self.bytes = (self.blocks > 0).select(self._extent(), fx.Int32(0))

    def _extent(self) -> Any:
        """Whole dwords from `address` to the last scale: the range check works on dwords."""
        if not self.swizzled:
            return (self.offset(self.rows_left - 1, self.blocks - 1) + 4) & -4
        tiles = (self.rows_left - 1 + self.skipped_rows) // TILE_ROWS
        return tiles * self.row + (self.blocks + (TILE_BLOCKS - 1)) // TILE_BLOCKS * TILE_BYTES

    def offset(self, row: Any, block: Any) -> Any:
        """Bytes from `address` to the scale of a row of the tile and a block of the split."""
        if not self.swizzled:
            return row * self.row + block * self.block
        row = row + self.skipped_rows
        tile = row // TILE_ROWS * self.row + block // TILE_BLOCKS * TILE_BYTES
        return tile + row % 32 * 16 + row % TILE_ROWS // 32 * 4 + block % TILE_BLOCKS

    def bounded(self, row: Any, block: Any) -> Any:
        """`offset`, or one out of range where there is no such row or block."""
        inside = (row < self.rows_left) & (block < self.blocks)
        return inside.select(self.offset(row, block), fx.Int32(ops.OUT_OF_RANGE))


class BlockScales:
    """The scales of a workgroup's tiles of A and B.

    Args:
        spec: the KernelSpec.
        a, b: where they are in memory.
        lds: LDS byte address of the ring.
    """

    def __init__(self, spec: Any, a: Source, b: Source, lds: Any) -> None:
        self.ring = spec.scale_ring
        self.sources = a, b
        self.lds = lds
        self.gathered = "gather" in (spec.a_scales, spec.b_scales)
        # Scales of a row in a K step, and those of one lane: one a matrix instruction.
        self.per_step = spec.config.tile_k // BLOCK
        self.own = self.per_step // 4
        thread = fx.thread_idx.x
        self.wave, self.lane = ops.uniform(thread // 64), thread % 64

    @property
    def dma_steps(self) -> int:
        """Loads of a piece that vmcnt counts until the pipeline waits for them."""
        return 0 if self.gathered else self.ring.loads

    @property
    def early(self) -> int:
        """Pieces of the first chunk that are loaded before the first K step's own."""
        return self.ring.steps - 1

    def load(self, k_step: Any, stage: Any = None) -> None:
        """Start loading the piece that goes with the data of a K step, from ``-early`` on.

        The stage of that data says nothing here: a chunk outlives it.
        """
        ring = self.ring
        piece = k_step + self.early
        chunk, part = piece // ring.steps, piece % ring.steps
        base = self.lds + chunk % ring.slots * ring.chunk_bytes
        for i in range(ring.loads):
            unit = (part * ring.loads + i) * ring.waves + self.wave
            self._load_unit(chunk, unit, base + unit * UNIT_BYTES)

    def _load_unit(self, chunk: Any, unit: Any, lds: Any) -> None:
        """16 rows of a chunk, 4 lanes a row."""
        a, b = self.sources
        of_b = unit >= self.ring.a_units
        unit = of_b.select(unit - self.ring.a_units, unit)
        row = unit * UNIT_ROWS + self.lane // LANES_A_ROW
        block = chunk * CHUNK_BLOCKS + self.lane % LANES_A_ROW * LANE_BLOCKS
        # The unit is the same for the whole wave, and so is the descriptor.
        rsrc = ops.buffer(of_b.select(b.address, a.address), of_b.select(b.bytes, a.bytes))

        def offset(block: Any) -> Any:
            return of_b.select(b.bounded(row, block), a.bounded(row, block))

        if not self.gathered:
            ops.load_to_lds(rsrc, lds, offset(block), LANE_BLOCKS)
            return
        codes = [ops.buffer_load(rsrc, offset(block + i), fx.Int8) for i in range(LANE_BLOCKS)]
        word = fx.Vector.from_elements(codes, fx.Int8)
        ops.lds_store(word, lds + self.lane * LANE_BLOCKS, LANE_BLOCKS)

    def bases(self, operand: int, first_row: Any) -> Any:
        """LDS address (chunk 0) of the scales of a lane, of the wave's first row fragment.

        Args:
            operand: 0 for A, 1 for B.
            first_row: of the wave in the tile of the operand.
        """
        row = first_row + self.lane % 16 + operand * self.ring.a_units * UNIT_ROWS
        return self.lds + row * ROW_BYTES + self.lane // 16 * self.own

    def read(self, base: Any, k_step: Any, index: int, remaining: Any = None) -> Any:
        """The scales of row fragment ``index`` that a lane feeds to the K step's instructions.

        Returns:
            Int32 whose byte i is for instruction i.
        """
        ring = self.ring
        slot = k_step // ring.steps % ring.slots * ring.chunk_bytes
        address = base + slot + k_step % ring.steps * self.per_step + index * 16 * ROW_BYTES
        scales = ops.lds_load_word(address, self.own)
        return scales if remaining is None else scales & self._tail_mask(remaining)

    def _tail_mask(self, remaining: Any) -> Any:
        """Bytes of blocks that begin before ``remaining`` K elements of the step."""
        first = self.lane // 16 * self.own
        mask = fx.Int32(0)
        for i in range(self.own):
            inside = (first + i) * BLOCK < remaining
            mask = mask | inside.select(fx.Int32(0xFF << (8 * i)), fx.Int32(0))
        return mask
