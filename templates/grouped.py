"""Grouped problems: workgroups that find their tiles from offsets in memory, one after another.

A launch has a fixed number of workgroups. Each takes every so-manieth tile of a list that nobody
writes down: the tiles of the first group, then those of the second, and so on, so that the
workgroups that run at the same time share a group's operands in L2. Where a tile lies follows from
the sums of tiles before each group, which every wave keeps, a group a lane. What is done at a tile
is the pipelines' business; they run once for each, as if it were the only one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from ..config import START, chunk_starts
from ..grouping import Axis
from . import ops
from .tiles import group_along_m, remap_xcd
from .workgroup import Launched, Place, Workgroup

LANES = 64


@flyc.jit
def walk(launched: Launched, body: Callable[[Workgroup], None]) -> None:
    """Run a pipeline at every tile of this workgroup.

    Args:
        launched: of a spec with a ragged extent.
        body: emits the pipeline at one place.
    """
    grid = launched.sizes.grid
    # Plain names: FlyDSL would carry an object whose method is called through the loop.
    schedule = (KSchedule if launched.spec.ragged is Axis.K else TileSchedule).of(launched)
    place_of, total = schedule.place, schedule.total
    remap = launched.spec.config.xcd_remap
    pid = fx.block_idx.x

    def run(first: Any) -> None:
        left = total - first
        turn = (left < grid).select(left, grid)
        tile = first + (remap_xcd(pid, turn) if remap else pid)
        body(Workgroup.at(launched, place_of(tile)))
        # Every wave has read the tile of C from LDS before the next tile's DMA overwrites it.
        ops.wait(lgkmcnt=0)
        ops.barrier()

    for first in range(0, total - pid, grid):
        run(first)


@dataclass(frozen=True, kw_only=True)
class KSchedule:
    """Tiles where K is ragged: every group has all tiles of C.

    Attributes:
        launched: what is launched.
        tiles_m, tiles_n: of a group.
        total: tiles of all groups.
    """

    launched: Launched
    tiles_m: Any
    tiles_n: Any
    total: Any

    @classmethod
    def of(cls, launched: Launched) -> KSchedule:
        sizes, config = launched.sizes, launched.spec.config
        tiles_m, tiles_n = _tiles(sizes.m, config.tile_m), _tiles(sizes.n, config.tile_n)
        total = tiles_m * tiles_n * sizes.groups
        return cls(launched=launched, tiles_m=tiles_m, tiles_n=tiles_n, total=total)

    def place(self, tile: Any) -> Place:
        """Where tile number ``tile`` lies."""
        sizes, config = self.launched.sizes, self.launched.spec.config
        group, inside = ops.divide(tile, self.tiles_m * self.tiles_n)
        tile_m, tile_n = group_along_m(inside, self.tiles_m, self.tiles_n, config.group_m)
        start, end = _bounds(self.launched, group, sizes.k)
        return Place(
            m0=tile_m * config.tile_m,
            n0=tile_n * config.tile_n,
            m_end=sizes.m,
            n_end=sizes.n,
            k0=start,
            k=end - start,
            batch=group,
            tile=tile,
            split=fx.Int32(0),
        )


@dataclass(frozen=True, kw_only=True)
class TileSchedule:
    """Tiles where M or N is ragged: a group has as many as its extent needs.

    Attributes:
        launched: what is launched.
        across: tiles along the other extent.
        sums: for each 64 groups, tiles up to and with the lane's group.
        total: tiles of all groups.
    """

    launched: Launched
    across: Any
    sums: list[Any]
    total: Any

    @classmethod
    def of(cls, launched: Launched) -> TileSchedule:
        """Read the offsets; every wave does so for itself."""
        sizes, config = launched.sizes, launched.spec.config
        rows = launched.spec.ragged is Axis.M
        limit, tile = (sizes.m, config.tile_m) if rows else (sizes.n, config.tile_n)
        across = _tiles(sizes.n, config.tile_n) if rows else _tiles(sizes.m, config.tile_m)
        lane = fx.thread_idx.x % LANES
        rsrc = ops.buffer(launched.addresses["offsets"], sizes.groups * 4)
        sums, total = [], fx.Int32(0)
        for first in range(0, launched.spec.group_waves * LANES, LANES):
            # Past the last group and before the first, zeros are loaded.
            offset = (lane + first) * 4
            end = _within(ops.buffer_load(rsrc, offset, fx.Int32), limit)
            start = _within(ops.buffer_load(rsrc, offset - 4, fx.Int32), limit)
            along = (end > start).select(_tiles(end - _begin(launched, start), tile), 0)
            sums.append(_scan(along * across, lane) + total)
            total = ops.lane_of(sums[-1], LANES - 1)
        return cls(launched=launched, across=across, sums=sums, total=total)

    def place(self, tile: Any) -> Place:
        """Where tile number ``tile`` lies."""
        sizes, config = self.launched.sizes, self.launched.spec.config
        rows = self.launched.spec.ragged is Axis.M
        group, before = fx.Int32(0), fx.Int32(0)
        for sums in self.sums:
            done = ops.count_lanes(sums <= tile)
            last = ops.lane_of(sums, (done > 0).select(done - 1, 0))
            before = (done > 0).select(last, before)
            group = group + done
        start, end = _bounds(self.launched, group, sizes.m if rows else sizes.n)
        begin = _begin(self.launched, start)
        along = _tiles(end - begin, config.tile_m if rows else config.tile_n)
        tiles = (along, self.across) if rows else (self.across, along)
        tile_m, tile_n = group_along_m(tile - before, *tiles, config.group_m)
        first = start if chunk_starts(self.launched.spec) else None
        return Place(
            m0=tile_m * config.tile_m + (begin if rows else 0),
            n0=tile_n * config.tile_n + (0 if rows else begin),
            m_end=end if rows else sizes.m,
            n_end=sizes.n if rows else end,
            k0=fx.Int32(0),
            k=sizes.k,
            batch=group,
            tile=tile,
            split=fx.Int32(0),
            m_first=first if rows else None,
            n_first=None if rows else first,
        )


def _tiles(extent: Any, tile: int) -> Any:
    return ops.quotient(extent + (tile - 1), tile)


def _begin(launched: Launched, start: Any) -> Any:
    """Where the tiles of a group begin that starts at ``start``."""
    return start & -START if chunk_starts(launched.spec) else start


def _within(value: Any, limit: Any) -> Any:
    """An offset that no kernel follows out of its operands."""
    value = (value < limit).select(value, limit)
    return (value > 0).select(value, fx.Int32(0))


def _bounds(launched: Launched, group: Any, limit: Any) -> tuple[Any, Any]:
    """(start, end) of a group; end is never before start."""
    address = launched.addresses["offsets"] + fx.Int64(group) * 4
    end = _within(ops.load_constant(address), limit)
    first = group == 0
    before = first.select(address, address - 4)
    start = first.select(fx.Int32(0), _within(ops.load_constant(before), limit))
    return start, (end > start).select(end, start)


def _scan(value: Any, lane: Any) -> Any:
    """Inclusive sums over the lanes of a wave."""
    for distance in (1, 2, 4, 8, 16, 32):
        below = ops.from_lane(value, lane - distance)
        value = value + (lane >= distance).select(below, 0)
    return value
