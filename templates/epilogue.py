"""From accumulators to C: through LDS, so that stores run along the rows of C."""

from __future__ import annotations

from typing import Any

import flydsl.expr as fx

from ..config import C_PAD_BYTES
from . import ops


def c_pitch(spec: Any) -> int:
    """LDS bytes from one row of the tile of C to the next."""
    return spec.config.tile_n * spec.out_dtype.bytes + C_PAD_BYTES


def store_tile(spec: Any, out_dtype: Any, acc: list[Any], waves: Any, place: Any) -> None:
    """Convert the accumulators and store the tile; nothing outside C is written.

    Args:
        spec: the KernelSpec.
        out_dtype: FlyDSL type of C.
        acc: as `staged.multiply_ring` returns them.
        waves: the wave's index along M and along N.
        place: address of C, first row and column of the tile, m, n, ldc, LDS address.
    """
    # DMAs of K steps past the end may still be in flight, into the space of this tile.
    ops.wait(vmcnt=0, lgkmcnt=0)
    ops.barrier()
    _shuffle(spec, out_dtype, acc, waves, place[-1])
    ops.wait(lgkmcnt=0)
    ops.barrier()
    _write_rows(spec, place)


def _shuffle(spec: Any, out_dtype: Any, acc: list[Any], waves: Any, lds: Any) -> None:
    config = spec.config
    size = spec.out_dtype.bytes
    across_m = config.tile_m // config.waves_m // 16
    across_n = config.tile_n // config.waves_n // 16
    lane = fx.thread_idx.x % 64
    row = waves[0] * (across_m * 16) + lane % 16
    column = waves[1] * (across_n * 16) + lane // 16 * 4
    base = lds + row * c_pitch(spec) + column * size
    for m in range(across_m):
        for n in range(across_n):
            value = acc[m * across_n + n]
            value = value if spec.out_dtype.bytes == 4 else value.to(out_dtype)
            ops.lds_store(value, base + m * 16 * c_pitch(spec) + n * 16 * size, 4 * size)


def _write_rows(spec: Any, place: Any) -> None:
    c_address, m0, n0, m, n, ldc, lds = place
    config = spec.config
    size, width = spec.out_dtype.bytes, spec.store_bytes
    per_row = config.tile_n * size // width
    units = config.tile_m * per_row
    start = c_address + (fx.Int64(m0) * fx.Int64(ldc) + fx.Int64(n0)) * size
    rows_left, columns_left = m - m0, n - n0
    rsrc = ops.buffer(start, ((rows_left - 1) * ldc + columns_left) * size)
    for first in range(0, units, config.threads):
        unit = fx.thread_idx.x + first
        row, column = unit // per_row, unit % per_row * (width // size)
        value = _piece(lds + row * c_pitch(spec) + column * size, width)
        inside = (row < rows_left) & (column < columns_left)
        if units % config.threads:
            inside = inside & (unit < units)
        offset = inside.select((row * ldc + column) * size, fx.Int32(ops.OUT_OF_RANGE))
        ops.buffer_store(value, rsrc, offset)


def _piece(address: Any, width: int) -> Any:
    """`width` bytes of LDS as whole integers, whatever the output type."""
    if width == 2:
        return ops.lds_load(address, 1, fx.Int16)[0]
    words = ops.lds_load(address, width // 4, fx.Int32)
    return words[0] if width == 4 else words
