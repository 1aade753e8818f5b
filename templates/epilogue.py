"""From accumulators to C: the fused pointwise program, then stores.

A lane holds four neighbours of a row. Where C takes them in one store, two blocks that lie side by
side are exchanged between lanes, so that stores are of 16 bytes and cover 64 bytes of a row; where
C is aligned to less, its tile goes through LDS, so that narrow stores run along the rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flydsl.expr as fx

from ..config import c_pad_bytes
from ..grouping import Axis
from . import ops
from .pointwise import QUAD, TYPES, QuadOps
from .workgroup import Workgroup

COLUMNS_MAX = 2**31 - 1


class Block(NamedTuple):
    """A 16x16 piece of the tile of C in one wave.

    Attributes:
        value: 4 fp32 a lane: row ``lane % 16``, columns ``4·(lane // 16)`` to + 3.
        row, column: of its corner in the tile.
    """

    value: Any
    row: Any
    column: Any


def c_pitch(spec: Any) -> int:
    """LDS bytes from one row of the tile of C to the next."""
    size = spec.out_dtype.bytes
    return int(spec.config.tile_n * size + c_pad_bytes(size))


def store_tile(wg: Workgroup, blocks: list[Block]) -> None:
    """Compute what C holds from the accumulators and store it; nothing outside C is written.

    Args:
        wg: the workgroup.
        blocks: all of this wave's, those of a row of blocks one after another along N; together
            with the other waves' the whole tile.
    """
    if wg.spec.fusion is not None:
        blocks = _fused(wg, blocks)
    if not wg.spec.c_through_lds:
        # DMAs of K steps past the end must not outlive the workgroup's LDS.
        ops.wait(vmcnt=0)
        _Rows(wg).store(blocks)
        return
    # Those DMAs may still be in flight, into the space of this tile.
    ops.wait(vmcnt=0, lgkmcnt=0)
    ops.barrier()
    _shuffle(wg, blocks)
    ops.wait(lgkmcnt=0)
    ops.barrier()
    _write_rows(wg)


def _tile_extents(wg: Workgroup) -> tuple[Any, Any]:
    """Rows and columns of the tile that C has."""
    config = wg.spec.config
    rows, columns = wg.place.m_end - wg.m0, wg.place.n_end - wg.n0
    rows = (rows < config.tile_m).select(rows, fx.Int32(config.tile_m))
    return rows, (columns < config.tile_n).select(columns, fx.Int32(config.tile_n))


def _fused(wg: Workgroup, blocks: list[Block]) -> list[Block]:
    fusion = wg.spec.fusion
    readers = [_TensorReader(wg, i) for i in range(len(fusion.tensors))]
    done = []
    for block in blocks:
        tensors = [reader.quad(block) for reader in readers]
        value = fusion.evaluate(_quad_ops(wg, block), block.value, tensors)
        done.append(Block(value, block.row, block.column))
    return done


def _quad_ops(wg: Workgroup, block: Block) -> QuadOps:
    """Operations on a lane's four elements of a block."""
    lane = fx.thread_idx.x % 64

    def index(name: str) -> fx.Vector:
        if name == "batch":
            first = fx.Int32(wg.place.batch)
        elif name == "row":
            first = wg.m0 + block.row + lane % 16
        else:
            first = wg.n0 + block.column + lane // 16 * QUAD
        steps = range(QUAD) if name == "column" else [0] * QUAD
        values = [(first + step).to(fx.Float32) for step in steps]
        return fx.Vector.from_elements(values, fx.Float32)

    return QuadOps(index)


class _TensorReader:
    """One operand of the epilogue, read where a lane's four elements of C are."""

    def __init__(self, wg: Workgroup, index: int) -> None:
        self.tensor = wg.spec.fusion.tensors[index]
        self.kind = TYPES[self.tensor.dtype.value]
        self.size = self.tensor.dtype.bytes
        sizes = wg.sizes
        batch, row, column = (
            getattr(sizes, f"t{index}_{axis}") for axis in ("batch", "row", "column")
        )
        self.row_stride = row if self.tensor.along_m else fx.Int32(0)
        self.column_stride = column if self.tensor.along_n else fx.Int32(0)
        lane = fx.thread_idx.x % 64
        self.row, self.column = lane % 16, lane // 16 * QUAD
        self.rows_left, self.columns_left = wg.place.m_end - wg.m0, wg.place.n_end - wg.n0
        skipped = fx.Int64(wg.m0) * fx.Int64(self.row_stride)
        skipped = skipped + fx.Int64(wg.n0) * fx.Int64(self.column_stride)
        if wg.spec.batched or wg.spec.ragged is Axis.K:
            skipped = skipped + fx.Int64(wg.place.batch) * fx.Int64(batch)
        rows, columns = _tile_extents(wg)
        last = (rows - 1) * self.row_stride + (columns - 1) * self.column_stride
        # Whole dwords: the range check of a buffer load works on dwords.
        extent = ((last + 1) * self.size + 3) & -4
        self.rsrc = ops.buffer(wg.addresses[f"t{index}"] + skipped * self.size, extent)

    def quad(self, block: Block) -> fx.Vector:
        """4 fp32: the tensor at the lane's row and its four columns of a block."""
        row, column = block.row + self.row, block.column + self.column
        if not self.tensor.along_n:
            value = self._load(row, column)
            return fx.Vector.from_elements([value] * QUAD, fx.Float32)
        if self.tensor.quads:
            offset = self._offset(row, column)
            if self.size == 1:
                word = ops.buffer_load(self.rsrc, offset, fx.Int32)
                values = [(word >> 8 * i & 0xFF).to(fx.Float32) for i in range(QUAD)]
                return fx.Vector.from_elements(values, fx.Float32)
            values = ops.buffer_load_elements(self.rsrc, offset, QUAD, self.kind)
            return values if self.size == 4 else values.to(fx.Float32)
        elements = [self._load(row, column + i) for i in range(QUAD)]
        return fx.Vector.from_elements(elements, fx.Float32)

    def _offset(self, row: Any, column: Any) -> Any:
        inside = (row < self.rows_left) & (column < self.columns_left)
        offset = (row * self.row_stride + column * self.column_stride) * self.size
        return inside.select(offset, fx.Int32(ops.OUT_OF_RANGE))

    def _load(self, row: Any, column: Any) -> Any:
        value = ops.buffer_load(self.rsrc, self._offset(row, column), self.kind)
        return value if self.size == 4 else value.to(fx.Float32)


def _shuffle(wg: Workgroup, blocks: list[Block]) -> None:
    pitch, size = c_pitch(wg.spec), wg.spec.out_dtype.bytes
    lane = fx.thread_idx.x % 64
    base = wg.lds + lane % 16 * pitch + lane // 16 * QUAD * size
    for block in blocks:
        value = block.value if size == 4 else block.value.to(wg.out_dtype)
        ops.lds_store(value, base + block.row * pitch + block.column * size, QUAD * size)


class _Rows:
    """C as this workgroup's lanes store it."""

    def __init__(self, wg: Workgroup) -> None:
        spec, sizes = wg.spec, wg.sizes
        self.wg, self.size = wg, spec.out_dtype.bytes
        start = (fx.Int64(wg.m0) * fx.Int64(sizes.ldc) + fx.Int64(wg.n0)) * self.size
        self.rows_left, self.columns_left = wg.place.m_end - wg.m0, wg.place.n_end - wg.n0
        rows, columns = _tile_extents(wg)
        extent = ((rows - 1) * sizes.ldc + columns) * self.size
        self.rsrc = ops.buffer(wg.addresses["c"] + start, extent)
        self.lane = fx.thread_idx.x % 64

    def put(self, value: Any, row: Any, column: Any) -> None:
        """Store neighbours of a row a lane, all of them inside C or none."""
        inside = (row < self.rows_left) & (column < self.columns_left)
        place = self.wg.place
        if place.m_first is not None:
            inside = inside & (row >= place.m_first - place.m0)
        if place.n_first is not None:
            inside = inside & (column >= place.n_first - place.n0)
        offset = (row * self.wg.sizes.ldc + column) * self.size
        ops.buffer_store(value, self.rsrc, inside.select(offset, fx.Int32(ops.OUT_OF_RANGE)))

    def store(self, blocks: list[Block]) -> None:
        """Store blocks straight from registers, where they lie in pairs by pairs."""
        config = self.wg.spec.config
        row, group = self.lane % 16, self.lane // 16
        wide = self.size == 2 and self.wg.spec.store_bytes >= 16
        if not wide or config.fragments_n % 2:
            for block in blocks:
                value = block.value if self.size == 4 else block.value.to(self.wg.out_dtype)
                self._four(value, block.row + row, block.column + group * QUAD)
            return
        column = group % 2 * 16 + group // 2 * 8
        for left, right in zip(blocks[::2], blocks[1::2], strict=True):
            self.put(self._eight(left, right), left.row + row, left.column + column)

    def _four(self, value: fx.Vector, row: Any, column: Any) -> None:
        """Store four neighbours a lane, in as many stores as the alignment of C asks for."""
        width = min(self.wg.spec.store_bytes, QUAD * self.size)
        kind = fx.Int16 if width == 2 else fx.Int32
        words = value.bitcast(kind)
        if width > 4:
            self.put(words, row, column)
            return
        each = width // self.size
        for i in range(QUAD // each):
            self.put(words[i], row, column + i * each)

    def _eight(self, left: Block, right: Block) -> fx.Vector:
        """Eight neighbours a lane of two blocks side by side.

        Groups 0 and 2 of 16 lanes get columns 0 to 7 and 8 to 15 of the left block, groups 1 and
        3 those of the right.
        """
        x, y = (b.value.to(self.wg.out_dtype).bitcast(fx.Int32) for b in (left, right))
        pairs = [ops.swap_odd_rows(x[i], y[i]) for i in range(2)]
        words = [pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]]
        return fx.Vector.from_elements(words, fx.Int32)


def _write_rows(wg: Workgroup) -> None:
    rows, config = _Rows(wg), wg.spec.config
    size, width = rows.size, wg.spec.store_bytes
    per_row = config.tile_n * size // width
    units = config.tile_m * per_row
    for first in range(0, units, config.threads):
        unit = fx.thread_idx.x + first
        row, column = unit // per_row, unit % per_row * (width // size)
        value = _piece(wg.lds + row * c_pitch(wg.spec) + column * size, width)
        if units % config.threads:
            # Columns past the tile are columns past C.
            column = (unit < units).select(column, fx.Int32(COLUMNS_MAX))
        rows.put(value, row, column)


def _piece(address: Any, width: int) -> Any:
    """`width` bytes of LDS as whole integers, whatever the output type."""
    if width == 2:
        return ops.lds_load(address, 1, fx.Int16)[0]
    words = ops.lds_load(address, width // 4, fx.Int32)
    return words[0] if width == 4 else words
