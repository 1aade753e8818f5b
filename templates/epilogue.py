"""From accumulators to C: the fused pointwise program, then stores.

A lane holds four neighbours of a row. Where C takes them in one store, two blocks that lie side by
side are exchanged between lanes, so that stores are of 16 bytes and cover 64 bytes of a row; where
C is aligned to less, its tile goes through LDS, so that narrow stores run along the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import flydsl.compiler as flyc
import flydsl.expr as fx

from ..activations import recognised
from ..config import c_pad_bytes, through_lds
from ..grouping import Axis
from . import ops
from .pointwise import QUAD, QuadOps
from .tensors import TensorReader, tile_extents
from .workgroup import Workgroup

COLUMNS_MAX = 2**31 - 1
# Registers of a lane for tensors of the epilogue that are on their way: some of those that held
# fragments.
LOADED_REGISTERS = 48
# Priorities of a wave at instruction issue.
LEVELS = 4


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
    """Where a lane stores in C.

    Attributes:
        offset: bytes of a lane; `ops.OUT_OF_RANGE` where it stores nothing.
        skipped: bytes that all lanes have in common.
    """

    offset: Any
    skipped: Any


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
    width, element = wg.spec.store_bytes, wg.spec.out_dtype.bytes
    if wg.spec.ragged is not Axis.N or width == element:
        _store(wg, blocks, width)
        return
    # Wide stores would cover what is a neighbour's where its group ends or begins in the tile.
    left = wg.place.n_end - wg.n0
    ends = (left < wg.spec.config.tile_n) & (ops.modulo(left, width // element) != 0)
    _either(
        (wg.place.n_first > wg.n0) | ends,
        lambda: _store(wg, blocks, element),
        lambda: _store(wg, blocks, width),
    )


@flyc.jit
def _either(condition: Any, yes: Callable[[], None], no: Callable[[], None]) -> None:
    if condition:
        yes()
    else:
        no()


def _store(wg: Workgroup, blocks: list[Block], width: int) -> None:
    """`store_tile` by ``width`` bytes at a time."""
    rows = _Rows(wg, width)
    together = 2 if rows.in_pairs else 1
    groups = [blocks[i : i + together] for i in range(0, len(blocks), together)]
    if wg.spec.config.split_k > 1 or not through_lds(width, rows.size):
        # DMAs of K steps past the end must not outlive the workgroup's LDS.
        ops.wait(vmcnt=0)
        for i, group in enumerate(_fused(wg, groups)):
            if wg.spec.fusion is not None and i % -(-len(groups) // LEVELS) == 0:
                # Waves of a SIMD that fall behind go first: they end together, and none is left
                # alone with instructions that another's arithmetic would have hidden.
                ops.set_priority(LEVELS - 1 - i * LEVELS // len(groups))
            rows.store(group)
            # What is computed of the next runs beside this store, not before it.
            ops.keep_order()
        if wg.spec.fusion is not None:
            ops.set_priority(0)
        return
    # Those DMAs may still be in flight, into the space of this tile.
    ops.wait(vmcnt=0, lgkmcnt=0)
    ops.barrier()
    for group in _fused(wg, groups):
        _shuffle(wg, group)
    ops.wait(lgkmcnt=0)
    ops.barrier()
    _write_rows(rows)


def _fused(wg: Workgroup, groups: list[list[Block]]) -> Iterator[list[Block]]:
    """Groups of blocks with what the fused program makes of them, one at a time."""
    if wg.spec.fusion is None:
        yield from groups
        return
    fusion = recognised(wg.spec.fusion)
    readers = [TensorReader(wg, i) for i in range(len(fusion.tensors))]

    def load(group: list[Block]) -> list[list[Any]]:
        return [[reader.load(block) for reader in readers] for block in group]

    each = sum(reader.registers for reader in readers) * len(groups[0])
    ahead = max(1, LOADED_REGISTERS // each) if each else len(groups)
    loaded = [load(group) for group in groups[:ahead]]
    for i, group in enumerate(groups):
        if i + ahead < len(groups):
            loaded.append(load(groups[i + ahead]))
        done = []
        for j, block in enumerate(group):
            tensors = [r.wide(raw) for r, raw in zip(readers, loaded[i][j], strict=True)]
            value = fusion.evaluate(_quad_ops(wg, block), block.value, tensors)
            done.append(block._replace(value=value))
        yield done


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

    return QuadOps(wg.spec.out_dtype, index)


def _shuffle(wg: Workgroup, blocks: list[Block]) -> None:
    pitch, size = c_pitch(wg.spec), wg.spec.out_dtype.bytes
    lane = fx.thread_idx.x % 64
    base = wg.lds + lane % 16 * pitch + lane // 16 * QUAD * size
    for block in blocks:
        value = block.value if size == 4 else block.value.to(wg.out_dtype)
        ops.lds_store(value, base + block.row * pitch + block.column * size, QUAD * size)


class _Rows:
    """C as this workgroup's lanes store it, by ``width`` bytes at a time."""

    def __init__(self, wg: Workgroup, width: int) -> None:
        spec, sizes = wg.spec, wg.sizes
        self.wg, self.size, self.width = wg, spec.out_dtype.bytes, width
        start = (fx.Int64(wg.m0) * fx.Int64(sizes.ldc) + fx.Int64(wg.n0)) * self.size
        self.rows_left, self.columns_left = wg.place.m_end - wg.m0, wg.place.n_end - wg.n0
        rows, columns = tile_extents(wg)
        extent = ((rows - 1) * sizes.ldc + columns) * self.size
        self.rsrc = ops.buffer(wg.addresses["c"] + start, extent)
        self.lane = fx.thread_idx.x % 64

    def target(self, lane: tuple[Any, Any], block: tuple[Any, Any]) -> Target:
        """Where neighbours of a row a lane go, all of them inside C or none.

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
        ldc = self.wg.sizes.ldc
        offset = inside.select((lane[0] * ldc + lane[1]) * self.size, fx.Int32(ops.OUT_OF_RANGE))
        # A block that lies outside must not reach past what the descriptor covers.
        least = (rows < columns).select(rows, columns)
        corner = (block[0] * ldc + block[1]) * self.size
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
        """Store one block straight from registers, or two of `in_pairs`."""
        targets = self._targets(blocks)
        if self.in_pairs:
            self.put(self._eight(*blocks), targets[0])
            return
        left = iter(targets)
        for block in blocks:
            value = block.value if self.size == 4 else block.value.to(self.wg.out_dtype)
            width = self._each * self.size
            words = value.bitcast(fx.Int16 if width == 2 else fx.Int32)
            for i in range(QUAD // self._each):
                self.put(words if width > 4 else words[i], next(left))

    def _eight(self, left: Block, right: Block) -> fx.Vector:
        """Eight neighbours a lane of two blocks side by side.

        Groups 0 and 2 of 16 lanes get columns 0 to 7 and 8 to 15 of the left block, groups 1 and
        3 those of the right.
        """
        x, y = (b.value.to(self.wg.out_dtype).bitcast(fx.Int32) for b in (left, right))
        pairs = [ops.swap_odd_rows(x[i], y[i]) for i in range(2)]
        words = [pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]]
        return fx.Vector.from_elements(words, fx.Int32)


def _write_rows(rows: _Rows) -> None:
    wg, config = rows.wg, rows.wg.spec.config
    size, width = rows.size, rows.width
    per_row = config.tile_n * size // width
    units = config.tile_m * per_row
    for first in range(0, units, config.threads):
        unit = fx.thread_idx.x + first
        row, column = unit // per_row, unit % per_row * (width // size)
        value = _piece(wg.lds + row * c_pitch(wg.spec) + column * size, width)
        if units % config.threads:
            # Columns past the tile are columns past C.
            column = (unit < units).select(column, fx.Int32(COLUMNS_MAX))
        rows.put(value, rows.target((row, column), (0, 0)))


def _piece(address: Any, width: int) -> Any:
    """`width` bytes of LDS as whole integers, whatever the output type."""
    if width == 2:
        return ops.lds_load(address, 1, fx.Int16)[0]
    words = ops.lds_load(address, width // 4, fx.Int32)
    return words[0] if width == 4 else words
