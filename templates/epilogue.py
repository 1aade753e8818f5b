"""From accumulators to C: through LDS, so that stores run along the rows of C."""

from __future__ import annotations

from typing import Any, NamedTuple

import flydsl.expr as fx

from ..config import C_PAD_BYTES
from . import ops
from .workgroup import Workgroup


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
    return spec.config.tile_n * spec.out_dtype.bytes + C_PAD_BYTES


def store_tile(wg: Workgroup, blocks: list[Block]) -> None:
    """Convert the accumulators and store the tile; nothing outside C is written.

    Args:
        wg: the workgroup.
        blocks: all of this wave's, together with the other waves' the whole tile.
    """
    # DMAs of K steps past the end may still be in flight, into the space of this tile.
    ops.wait(vmcnt=0, lgkmcnt=0)
    ops.barrier()
    _shuffle(wg, blocks)
    ops.wait(lgkmcnt=0)
    ops.barrier()
    _write_rows(wg)


def _shuffle(wg: Workgroup, blocks: list[Block]) -> None:
    pitch, size = c_pitch(wg.spec), wg.spec.out_dtype.bytes
    lane = fx.thread_idx.x % 64
    base = wg.lds + lane % 16 * pitch + lane // 16 * 4 * size
    for block in blocks:
        value = block.value if size == 4 else block.value.to(wg.out_dtype)
        ops.lds_store(value, base + block.row * pitch + block.column * size, 4 * size)


def _write_rows(wg: Workgroup) -> None:
    spec, sizes = wg.spec, wg.sizes
    config = spec.config
    size, width = spec.out_dtype.bytes, spec.store_bytes
    per_row = config.tile_n * size // width
    units = config.tile_m * per_row
    start = wg.c + (fx.Int64(wg.m0) * fx.Int64(sizes.ldc) + fx.Int64(wg.n0)) * size
    rows_left, columns_left = sizes.m - wg.m0, sizes.n - wg.n0
    rsrc = ops.buffer(start, ((rows_left - 1) * sizes.ldc + columns_left) * size)
    for first in range(0, units, config.threads):
        unit = fx.thread_idx.x + first
        row, column = unit // per_row, unit % per_row * (width // size)
        value = _piece(wg.lds + row * c_pitch(spec) + column * size, width)
        inside = (row < rows_left) & (column < columns_left)
        if units % config.threads:
            inside = inside & (unit < units)
        offset = inside.select((row * sizes.ldc + column) * size, fx.Int32(ops.OUT_OF_RANGE))
        ops.buffer_store(value, rsrc, offset)


def _piece(address: Any, width: int) -> Any:
    """`width` bytes of LDS as whole integers, whatever the output type."""
    if width == 2:
        return ops.lds_load(address, 1, fx.Int16)[0]
    words = ops.lds_load(address, width // 4, fx.Int32)
    return words[0] if width == 4 else words
