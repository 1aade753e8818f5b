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
        lane = fx.thread_idx.x % 64
        self.row, self.column = lane % 16, lane // 16 * QUAD
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

    def load(self, block: Any) -> list[Any]:
        """Start to load what the lane needs for a block, once where other blocks need the same.

        Returns:
            For `wide`.
        """
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

    def wide(self, loaded: list[Any]) -> fx.Vector:
        """4 fp32: the tensor at the lane's row and its four columns of a block."""
        if self.quads and self.size == 1:
            loaded = [loaded[0] >> 8 * i & 0xFF for i in range(QUAD)]
        values = [x if self.size == 4 else x.to(fx.Float32) for x in loaded]
        if self.quads and self.size > 1:
            return values[0]
        return fx.Vector.from_elements(values * (QUAD // len(values)), fx.Float32)

    def _offset(self, row: Any, column: Any) -> Any:
        inside = (row < self.rows_left) & (column < self.columns_left)
        offset = (row * self.row_stride + column * self.column_stride) * self.size
        return inside.select(offset, fx.Int32(ops.OUT_OF_RANGE))
