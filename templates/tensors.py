"""Tensors that an epilogue reads beside the accumulators, each where a lane's elements of C are.

Owns their addresses, and that what blocks of a row or a column share is loaded once. Knows nothing
of what is computed, nor of when it is loaded.
"""

from __future__ import annotations

from typing import Any

import flydsl.expr as fx

from ..config import start
from ..grouping import Axis
from . import ops
from .pointwise import QUAD, TYPES
from .workgroup import Workgroup, batch_offset


def tile_extents(wg: Workgroup) -> tuple[Any, Any]:
    """Rows and columns of the tile that C has."""
    config = wg.spec.config
    rows, columns = wg.place.m_end - wg.m0, wg.place.n_end - wg.n0
    rows = (rows < config.tile_m).select(rows, fx.Int32(config.tile_m))
    return rows, (columns < config.tile_n).select(columns, fx.Int32(config.tile_n))


class TensorReader:
    """One operand of the epilogue, read where a lane's four elements of C are."""

    def __init__(self, wg: Workgroup, index: int) -> None:
        self.tensor = wg.spec.fusion.tensors[index]
        self.kind = TYPES[self.tensor.dtype.value]
        self.size = self.tensor.dtype.bytes
        self.loaded: dict[tuple[int, int], list[Any]] = {}
        sizes = wg.sizes
        row, column = (getattr(sizes, f"t{index}_{axis}") for axis in ("row", "column"))
        self.row_stride = row if self.tensor.along_m else fx.Int32(0)
        self.column_stride = column if self.tensor.along_n else fx.Int32(0)
        # A group's columns may begin anywhere.
        anywhere = wg.spec.ragged is Axis.N and start(wg.spec) == 1
        self.quads = self.tensor.quads and not anywhere
        self.eights = self.tensor.eights and not anywhere
        self.lane = fx.thread_idx.x % 64
        self.row, self.column = self.lane % 16, self.lane // 16 * QUAD
        self.rows_left, self.columns_left = wg.place.m_end - wg.m0, wg.place.n_end - wg.n0
        skipped = fx.Int64(wg.m0) * fx.Int64(self.row_stride)
        skipped = skipped + fx.Int64(wg.n0) * fx.Int64(self.column_stride)
        if wg.spec.batched or wg.spec.ragged is not None:
            skipped = skipped + batch_offset(wg.spec, sizes, f"t{index}", wg.place.batch)
        rows, columns = tile_extents(wg)
        last = (rows - 1) * self.row_stride + (columns - 1) * self.column_stride
        # Whole dwords: the range check of a buffer load works on dwords.
        extent = ((last + 1) * self.size + 3) & -4
        self.rsrc = ops.buffer(wg.addresses[f"t{index}"] + skipped * self.size, extent)

    @property
    def registers(self) -> int:
        """Of a lane that `load` fills for each block; those of a row or a column are few."""
        if not (self.tensor.along_m and self.tensor.along_n):
            return 0
        return max(1, QUAD * self.size // 4) if self.quads else QUAD

    def load(self, blocks: list[Any]) -> list[Any]:
        """Start to load what the lane needs for blocks, one or two that lie side by side.

        Returns:
            For `wide`.
        """
        if self.eights and len(blocks) == 2 and self.registers:
            return self._load_eights(blocks[0])
        return [self._load_block(block) for block in blocks]

    def _load_eights(self, block: Any) -> list[Any]:
        """Eight neighbours a lane of this block and the next, as `rows.Rows` stores them."""
        group = self.lane // 16
        offset, skipped = self._place(block, group % 2 * 16 + group // 2 * 8)
        return [ops.buffer_load_elements(self.rsrc, offset, 4, fx.Int32, skipped)]

    def _load_block(self, block: Any) -> list[Any]:
        """What a block needs, loaded once where other blocks need the same."""
        m, n = block.place
        key = m if self.tensor.along_m else 0, n if self.tensor.along_n else 0
        if key not in self.loaded:
            self.loaded[key] = self._load(block)
        return self.loaded[key]

    def _load(self, block: Any) -> list[Any]:
        row, column = block.row + self.row, block.column + self.column
        if self.quads:
            offset = self._offset(row, column)
            if self.size == 1:
                return [ops.buffer_load(self.rsrc, offset, fx.Int32)]
            return [ops.buffer_load_elements(self.rsrc, offset, QUAD, self.kind)]
        columns = range(QUAD) if self.tensor.along_n else range(1)
        offsets = [self._offset(row, column + i) for i in columns]
        return [ops.buffer_load(self.rsrc, offset, self.kind) for offset in offsets]

    def wide(self, loaded: list[Any], count: int) -> list[fx.Vector]:
        """4 fp32 of each of so many blocks: the tensor at the lane's row and four columns.

        Args:
            loaded: what `load` gave.
            count: of the blocks.
        """
        if len(loaded) == count:
            return [self._wide(one) for one in loaded]
        (words,) = loaded
        pairs = [ops.swap_odd_rows(words[i], words[i + 2]) for i in range(2)]
        halves = (fx.Vector.from_elements([p[i] for p in pairs], fx.Int32) for i in range(2))
        return [half.bitcast(self.kind).to(fx.Float32) for half in halves]

    def _wide(self, loaded: list[Any]) -> fx.Vector:
        if self.quads and self.size == 1:
            loaded = [loaded[0] >> 8 * i & 0xFF for i in range(QUAD)]
        values = [x if self.size == 4 else x.to(fx.Float32) for x in loaded]
        if self.quads and self.size > 1:
            return values[0]
        return fx.Vector.from_elements(values * (QUAD // len(values)), fx.Float32)

    def _place(self, block: Any, column: Any) -> tuple[Any, Any]:
        """Bytes of a lane, and those that all lanes of a block have in common.

        Args:
            block: the block.
            column: of the lane in it.
        """
        rows, columns = self.rows_left - block.row, self.columns_left - block.column
        inside = (self.row < rows) & (column < columns)
        offset = (self.row * self.row_stride + column * self.column_stride) * self.size
        corner = (block.row * self.row_stride + block.column * self.column_stride) * self.size
        # As of stores: a block outside must not reach past what the descriptor covers.
        least = (rows < columns).select(rows, columns)
        outside = fx.Int32(ops.OUT_OF_RANGE)
        return inside.select(offset, outside), (least > 0).select(corner, fx.Int32(0))

    def _offset(self, row: Any, column: Any) -> Any:
        inside = (row < self.rows_left) & (column < self.columns_left)
        offset = (row * self.row_stride + column * self.column_stride) * self.size
        return inside.select(offset, fx.Int32(ops.OUT_OF_RANGE))
