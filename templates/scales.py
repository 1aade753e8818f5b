"""Block scales on their way from memory to matrix instructions, for A and B together.

Owns the ring that `scale_ring` sizes: which rows a wave loads in which K step, and where a lane
finds its own. The data of a K step and the last piece of its chunk are loaded together, so what
waits for the one waits for the other. Knows nothing of a pipeline's order, and waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import flydsl.expr as fx

from ..scale_ring import LANE_BYTES, UNIT_BYTES
from ..scaling import BLOCK, TILE_BLOCKS, TILE_BYTES, TILE_ROWS
from . import ops
from .loads import upto

# A lane loads the scales of so many blocks of a row at once.
LANE_BLOCKS = LANE_BYTES


class Source:
    """The scales of one operand in memory, from the tile's first row and the split's first K.

    Args:
        layout: ``swizzled``, or another word for rows with strides.
        address: byte address of the operand's first scale.
        rows: (the tile's first row, rows of the whole operand, rows of a tile).
        blocks: (the split's first block along K, blocks of the split).
        strides: (row, block) as `scaling.Scales` has them.
    """

    def __init__(self, layout: str, address: Any, rows: Any, blocks: Any, strides: Any) -> None:
        self.swizzled = layout == "swizzled"
        self.row = strides[0]
        self.block = 1 if layout == "dma" else strides[1]
        self.blocks = blocks[1]
        left, tile = rows[1] - rows[0], fx.Int32(rows[2])
        # Loads pad a tile; what they would bring of the next one is traffic for nothing.
        self.rows_left = (left < tile).select(left, tile)
        if self.swizzled:
            # The tile may begin inside of a tile of the layout.
            self.skipped_rows = ops.modulo(rows[0], TILE_ROWS)
            start = fx.Int64(ops.quotient(rows[0], TILE_ROWS)) * fx.Int64(self.row)
            start = start + fx.Int64(ops.quotient(blocks[0], TILE_BLOCKS)) * TILE_BYTES
        else:
            start = fx.Int64(rows[0]) * fx.Int64(self.row)
            start = start + fx.Int64(blocks[0]) * fx.Int64(strides[1])
        self.address = address + start
        self.bytes = (self.blocks > 0).select(self._extent(), fx.Int32(0))

    def _extent(self) -> Any:
        """Whole dwords from `address` to the last scale: the range check works on dwords."""
        if not self.swizzled:
            return (self.offset(self.rows_left - 1, self.blocks - 1) + 4) & -4
        tiles = ops.quotient(self.rows_left - 1 + self.skipped_rows, TILE_ROWS)
        blocks = ops.quotient(self.blocks + (TILE_BLOCKS - 1), TILE_BLOCKS)
        return tiles * self.row + blocks * TILE_BYTES

    def offset(self, row: Any, block: Any) -> Any:
        """Bytes from `address` to the scale of a row of the tile and a block of the split."""
        if not self.swizzled:
            return row * self.row + block * self.block
        row = row + self.skipped_rows
        inside = ops.modulo(row, 32) * 16 + ops.quotient(ops.modulo(row, TILE_ROWS), 32) * 4
        tile = ops.quotient(row, TILE_ROWS) * self.row
        return tile + ops.quotient(block, TILE_BLOCKS) * TILE_BYTES + inside

    def from_unit(self, row: Any, block: Any) -> Any:
        """What `offset` grows by from the first row of a unit and a multiple of 4 blocks.

        A unit begins at a multiple of its rows, so the layout's order of 32 rows is kept in it.
        """
        if self.swizzled:
            return row * 16 + ops.quotient(block, TILE_BLOCKS) * TILE_BYTES
        return row * self.row + block

    def bounded(self, row: Any, block: Any) -> Any:
        """`offset` of any block, or one out of range where there is no such row or block."""
        inside = (row < self.rows_left) & (block < self.blocks)
        offset = self.offset(row, block)
        if self.swizzled:
            offset = offset + ops.modulo(block, TILE_BLOCKS)
        return inside.select(offset, fx.Int32(ops.OUT_OF_RANGE))


class _Either:
    """The source of A or of B, chosen by a condition that is the same in all lanes."""

    def __init__(self, of_b: Any, a: Source, b: Source) -> None:
        self.of_b, self.a, self.b = of_b, a, b
        self.blocks = a.blocks
        self.address = of_b.select(b.address, a.address)
        self.bytes = of_b.select(b.bytes, a.bytes)

    def offset(self, row: Any, block: Any) -> Any:
        return self.of_b.select(self.b.offset(row, block), self.a.offset(row, block))

    def from_unit(self, row: Any, block: Any) -> Any:
        return self.of_b.select(self.b.from_unit(row, block), self.a.from_unit(row, block))

    def bounded(self, row: Any, block: Any) -> Any:
        return self.of_b.select(self.b.bounded(row, block), self.a.bounded(row, block))


class BlockScales:
    """The scales of a workgroup's tiles of A and B.

    The first half of the waves loads those of A and the second half those of B, so that what a
    wave needs for it is the same all the time.

    Args:
        spec: the KernelSpec.
        a, b: where they are in memory.
        lds: LDS byte address of the ring.
    """

    def __init__(self, spec: Any, a: Source, b: Source, lds: Any) -> None:
        self.ring = spec.scale_ring
        self.lds = lds
        self.gathered = "gather" in (spec.a_scales, spec.b_scales)
        # Scales of a row in a K step, and those of one lane: one a matrix instruction.
        self.per_step = spec.config.tile_k // BLOCK
        self.own = self.per_step // 4
        self.threads = spec.config.threads
        self.thread = thread = ops.from_here(fx.thread_idx.x, scalar=False)
        wave, self.lane = ops.uniform(ops.quotient(thread, 64)), ops.modulo(thread, 64)
        if self.ring.alone:
            self.loaders = [_Loader(self, a, wave, 0), _Loader(self, b, wave, 1)]
        else:
            of_b = wave >= self.ring.waves
            of_wave, operand = (
                of_b.select(wave - self.ring.waves, wave),
                of_b.select(fx.Int32(1), fx.Int32(0)),
            )
            self.loaders = [_Loader(self, _Either(of_b, a, b), of_wave, operand)]

    @property
    def dma_steps(self) -> int:
        """Loads of a piece that vmcnt counts until the pipeline waits for them."""
        return 0 if self.gathered else self.ring.dma_steps

    @property
    def early(self) -> int:
        """Pieces of the first chunk that are loaded before the first K step's own."""
        return self.ring.steps - 1

    def load(self, k_step: Any, stage: Any = None) -> None:
        """Start loading the piece that goes with the data of a K step, from ``-early`` on."""
        for start in self.loads(k_step, stage):
            start()

    def loads(self, k_step: Any, stage: Any = None) -> list[Callable[[], None]]:
        """`load` in parts that each start a DMA, or what a unit gathers.

        The stage of that data says nothing here: a chunk outlives it. What a row has past the end
        of K is not used; chunks past it are not loaded, whose latency the last steps would wait
        for.
        """
        ring = self.ring
        piece = k_step + self.early
        chunk, part = ops.quotient(piece, ring.steps), ops.modulo(piece, ring.steps)
        slot = ops.remainder(chunk, ring.slots) * ring.chunk_bytes
        return [
            start
            for loader in self.loaders
            for start in loader.loads(chunk * ring.row_bytes, part, slot)
        ]

    def bases(self, operand: int, first_row: Any) -> Any:
        """LDS address (chunk 0) of the scales of a lane, of the wave's first row fragment.

        Args:
            operand: 0 for A, 1 for B.
            first_row: of the wave in the tile of the operand.
        """
        row = first_row + ops.modulo(self.lane, 16)
        own = ops.quotient(self.lane, 16) * self.own
        return self.lds + operand * self.ring.operand_bytes + row * self.ring.row_bytes + own

    def read(self, base: Any, k_step: Any, index: int) -> Any:
        """The scales of row fragment ``index`` that a lane feeds to the K step's instructions.

        Returns:
            Int32 whose byte i is for instruction i.
        """
        ring = self.ring
        chunk, part = ops.quotient(k_step, ring.steps), ops.modulo(k_step, ring.steps)
        moved = ops.remainder(chunk, ring.slots) * ring.chunk_bytes + part * self.per_step
        return ops.lds_load_word(base + moved + index * 16 * ring.row_bytes, self.own)

    @property
    def _head_units(self) -> int:
        """Rows of both operands in a chunk."""
        return int(self.ring.chunk_bytes // self.ring.row_bytes)

    @property
    def head_shares(self) -> int:
        """Rows that each thread clears at most."""
        return -(-self._head_units // self.threads)

    def has_share(self, index: int) -> Any:
        """Whether this thread has a row to clear."""
        return self.thread + index * self.threads < self._head_units

    def clear_head(self, count: Any, index: int) -> None:
        """Make the scales of the first K elements of the first chunk 2^-127, of one row.

        Args:
            count: of elements, fewer than four blocks.
            index: this thread's share, of `head_shares`.
        """
        address = self.lds + (self.thread + index * self.threads) * self.ring.row_bytes
        word = ops.lds_load(address, 1, fx.Int32)[0]
        ops.lds_store(word & (upto(ops.quotient(count, BLOCK)) ^ -1), address, 4)

    def tail_mask(self, remaining: Any) -> Any:
        """Which bytes of `read` are of blocks before ``remaining`` K elements of the step."""
        first = ops.quotient(self.lane, 16) * self.own
        mask = fx.Int32(0)
        for i in range(self.own):
            inside = (first + i) * BLOCK < remaining
            mask = mask | inside.select(fx.Int32(0xFF << (8 * i)), fx.Int32(0))
        return mask


class _Loader:
    """What a wave loads of the scales of one operand."""

    def __init__(
        self, scales: BlockScales, source: Source | _Either, wave: Any, operand: Any
    ) -> None:
        self.ring, self.source, self.wave = scales.ring, source, wave
        self.gathered = scales.gathered
        self.lds = scales.lds + operand * self.ring.operand_bytes + wave * UNIT_BYTES
        lane = scales.lane
        lanes = self.ring.row_bytes // LANE_BLOCKS
        self.lane_row = ops.quotient(lane, lanes)
        self.lane_block = ops.modulo(lane, lanes) * LANE_BLOCKS
        self.lane_lds = lane * LANE_BLOCKS
        self.lane_offset = source.from_unit(self.lane_row, self.lane_block)
        self.rsrc = ops.buffer(source.address, source.bytes)

    def loads(self, block: Any, part: Any, slot: Any) -> list[Callable[[], None]]:
        """Parts of loading a part of the chunk that begins at a block, into a slot of the ring."""
        first = part * self.ring.loads
        return [
            partial(self._load, block, (first + i) * self.ring.waves, slot)
            for i in range(self.ring.loads)
        ]

    def _load(self, block: Any, unit: Any, slot: Any) -> None:
        row = (unit + self.wave) * self.ring.unit_rows
        lds = self.lds + slot + unit * UNIT_BYTES
        if self.gathered:
            self._gather(row, block, lds)
            return
        skipped = self.source.offset(row, block)
        skipped = (block < self.source.blocks).select(skipped, self.source.bytes)
        ops.load_to_lds(self.rsrc, lds, self.lane_offset, LANE_BLOCKS, skipped)

    def _gather(self, row: Any, block: Any, lds: Any) -> None:
        row, block = row + self.lane_row, block + self.lane_block
        offsets = [self.source.bounded(row, block + i) for i in range(LANE_BLOCKS)]
        codes = [ops.buffer_load(self.rsrc, offset, fx.Int8) for offset in offsets]
        word = fx.Vector.from_elements(codes, fx.Int8)
        ops.lds_store(word, lds + self.lane_lds, LANE_BLOCKS)
