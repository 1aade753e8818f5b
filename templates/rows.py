"""What a kernel stores, C or another output, row by row: where a lane's elements go, and how.

Owns the addresses and the width of stores. Knows nothing of what is computed, nor of which output
is stored when.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flydsl.expr as fx

from ..config import Output, c_pad_bytes
from . import ops
from .pointwise import QUAD, TYPES, eight_bits
from .tensors import tile_extents
from .workgroup import Workgroup, batch_offset

COLUMNS_MAX = 2**31 - 1


class Block(NamedTuple):
    """A 16x16 piece of the tile of C in one wave.

    Attributes:
        value: 4 fp32 a lane: row ``lane % 16``, columns ``4·(lane // 16)`` to + 3.
        row, column: of its corner in the tile.
        place: the same, counted in blocks of the wave.
    """

    value: Any
    row: Any
    column: Any
    place: tuple[int, int]


class Target(NamedTuple):
    """Where a lane stores.

    Attributes:
        offset: bytes of a lane; `ops.OUT_OF_RANGE` where it stores nothing.
        skipped: bytes that all lanes have in common.
    """

    offset: Any
    skipped: Any


class Rows:
    """One output as this workgroup's lanes store it.

    Args:
        wg: the workgroup.
        output: what is stored.
        width: bytes at a time.
    """

    def __init__(self, wg: Workgroup, output: Output, width: int) -> None:
        self.wg, self.width = wg, width
        self.size, self.dtype = output.dtype.bytes, output.dtype
        self.through_lds = wg.spec.through_lds(output._replace(width=width))
        name, sizes = output.pointer, wg.sizes
        address = wg.addresses[name]
        self.ld = sizes.ldc
        if name != "c":
            self.ld = getattr(sizes, f"{name}_row")
            if wg.spec.batched or wg.spec.ragged is not None:
                step = batch_offset(wg.spec, sizes, name, wg.place.batch)
                address = address + step * self.size
        start = (fx.Int64(wg.m0) * fx.Int64(self.ld) + fx.Int64(wg.n0)) * self.size
        self.rows_left, self.columns_left = wg.place.m_end - wg.m0, wg.place.n_end - wg.n0
        rows, columns = tile_extents(wg)
        extent = ((rows - 1) * self.ld + columns) * self.size
        self.rsrc = ops.buffer(address + start, extent)
        self.lane = fx.thread_idx.x % 64

    def target(self, lane: tuple[Any, Any], block: tuple[Any, Any]) -> Target:
        """Where neighbours of a row a lane go, all of them inside or none.

        Args:
            lane: the lane's row and column, counted from the block's.
            block: row and column in the tile, the same in all lanes.
        """
        rows, columns = self.rows_left - block[0], self.columns_left - block[1]
        inside = (lane[0] < rows) & (lane[1] < columns)
        place = self.wg.place
        if place.m_first is not None:
            inside = inside & (lane[0] >= place.m_first - place.m0 - block[0])
        if place.n_first is not None:
            inside = inside & (lane[1] >= place.n_first - place.n0 - block[1])
        offset = (lane[0] * self.ld + lane[1]) * self.size
        offset = inside.select(offset, fx.Int32(ops.OUT_OF_RANGE))
        # A block that lies outside must not reach past what the descriptor covers.
        least = (rows < columns).select(rows, columns)
        corner = (block[0] * self.ld + block[1]) * self.size
        return Target(offset, (least > 0).select(corner, fx.Int32(0)))

    def put(self, value: Any, target: Target) -> None:
        """Store what belongs at a target."""
        ops.buffer_store(value, self.rsrc, target.offset, target.skipped)

    @property
    def in_pairs(self) -> bool:
        """Whether two blocks that lie side by side are stored together."""
        wide = self.size == 2 and self.width >= 16
        return wide and self.wg.spec.config.fragments_n % 2 == 0

    @property
    def _each(self) -> int:
        """Elements of a row that a lane stores at once of a block on its own."""
        return min(self.width // self.size, QUAD)

    def narrowed(self, block: Block) -> Block:
        """A block with the elements that are stored."""
        if self.size == 4:
            return block
        if self.size == 1:
            word = eight_bits(block.value, self.dtype)
            return block._replace(value=fx.Vector.from_elements([word], fx.Int32))
        return block._replace(value=block.value.to(TYPES[self.dtype.value]))

    def _targets(self, blocks: list[Block]) -> list[Target]:
        """Where `store` puts these blocks."""
        row, group = self.lane % 16, self.lane // 16
        if self.in_pairs:
            lane = row, group % 2 * 16 + group // 2 * 8
            return [self.target(lane, (blocks[0].row, blocks[0].column))]
        return [
            self.target((row, group * QUAD + first), (block.row, block.column))
            for block in blocks
            for first in range(0, QUAD, self._each)
        ]

    def store(self, blocks: list[Block]) -> None:
        """Store blocks straight from registers; of `in_pairs`, two that lie side by side."""
        targets = self._targets(blocks)
        words_of = [self.narrowed(block).value for block in blocks]
        if self.in_pairs:
            self.put(self._eight(*words_of), targets[0])
            return
        left = iter(targets)
        for value in words_of:
            width = self._each * self.size
            words = value.bitcast(fx.Int16 if width == 2 else fx.Int32)
            for i in range(QUAD // self._each):
                self.put(words if width > 4 else words[i], next(left))

    def _eight(self, left: Any, right: Any) -> fx.Vector:
        """Eight neighbours a lane of two blocks side by side.

        Groups 0 and 2 of 16 lanes get columns 0 to 7 and 8 to 15 of the left block, groups 1 and
        3 those of the right.
        """
        x, y = left.bitcast(fx.Int32), right.bitcast(fx.Int32)
        pairs = [ops.swap_odd_rows(x[i], y[i]) for i in range(2)]
        words = [pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]]
        return fx.Vector.from_elements(words, fx.Int32)

    # -- through LDS -------------------------------------------------------------------------------

    @property
    def _pitch(self) -> int:
        """LDS bytes from one row of the tile to the next."""
        return int(self.wg.spec.config.tile_n * self.size + c_pad_bytes(self.size))

    def to_lds(self, blocks: list[Block]) -> None:
        """Put `narrowed` blocks where `from_lds` finds them."""
        base = self.wg.lds + self.lane % 16 * self._pitch + self.lane // 16 * QUAD * self.size
        for block in blocks:
            at = base + block.row * self._pitch + block.column * self.size
            ops.lds_store(block.value, at, QUAD * self.size)

    def from_lds(self) -> None:
        """Store the tile that is in LDS, along its rows."""
        config, size, width = self.wg.spec.config, self.size, self.width
        per_row = config.tile_n * size // width
        units = config.tile_m * per_row
        for first in range(0, units, config.threads):
            unit = fx.thread_idx.x + first
            row, column = unit // per_row, unit % per_row * (width // size)
            value = _piece(self.wg.lds + row * self._pitch + column * size, width)
            if units % config.threads:
                # Columns past the tile are columns past C.
                column = (unit < units).select(column, fx.Int32(COLUMNS_MAX))
            self.put(value, self.target((row, column), (0, 0)))


def _piece(address: Any, width: int) -> Any:
    """`width` bytes of LDS as whole integers, whatever the output type."""
    if width == 2:
        return ops.lds_load(address, 1, fx.Int16)[0]
    words = ops.lds_load(address, width // 4, fx.Int32)
    return words[0] if width == 4 else words
