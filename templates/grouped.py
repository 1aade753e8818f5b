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

from ..config import start as start_of
from ..grouping import Axis
from ..scaling import BLOCK, TILE_ROWS
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
        now = launched.again()
        body(Workgroup.at(now, place_of(now, tile)))
        # Every wave has read the tile of C from LDS before the next tile's DMA overwrites it.
        ops.wait(lgkmcnt=0)
        ops.barrier()

    for first in range(0, total - pid, grid):
        run(first)


@dataclass(frozen=True, kw_only=True)
class Sums:
    """What all groups before one have of something; every wave keeps it, a group a lane.

    Attributes:
        upto: for each 64 groups, the sum up to and with the lane's group.
    """

    upto: list[Any]

    @classmethod
    def of(cls, values: list[Any]) -> Sums:
        """Sums of ``values``, for each 64 groups that of the lane's group."""
        lane = fx.thread_idx.x % LANES
        upto, total = [], fx.Int32(0)
        for value in values:
            upto.append(_scan(value, lane) + total)
            total = ops.lane_of(upto[-1], LANES - 1)
        return cls(upto=upto)

    @property
    def total(self) -> Any:
        return ops.lane_of(self.upto[-1], LANES - 1)

    def before(self, done: list[Any]) -> Any:
        """The sum of the first groups: ``done[i]`` of the i-th 64."""
        found = fx.Int32(0)
        for upto, count in zip(self.upto, done, strict=True):
            last = ops.lane_of(upto, (count > 0).select(count - 1, 0))
            found = (count > 0).select(last, found)
        return found


@dataclass(frozen=True, kw_only=True)
class KSchedule:
    """Tiles where K is ragged: every group has all tiles of C.

    Attributes:
        tiles_m, tiles_n: of a group.
        total: tiles of all groups.
        padding: tiles of swizzled scales; None without.
    """

    tiles_m: Any
    tiles_n: Any
    total: Any
    padding: Sums | None

    @classmethod
    def of(cls, launched: Launched) -> KSchedule:
        sizes, config = launched.sizes, launched.spec.config
        tiles_m, tiles_n = _tiles(sizes.m, config.tile_m), _tiles(sizes.n, config.tile_n)
        total = tiles_m * tiles_n * sizes.groups
        padding = _padding(launched, _extents(launched, sizes.k) if launched.spec.pads else [])
        return cls(tiles_m=tiles_m, tiles_n=tiles_n, total=total, padding=padding)

    def place(self, launched: Launched, tile: Any) -> Place:
        """Where tile number ``tile`` lies."""
        spec, sizes = launched.spec, launched.sizes
        config = spec.config
        group, inside = ops.divide(tile, self.tiles_m * self.tiles_n)
        tile_m, tile_n = group_along_m(inside, self.tiles_m, self.tiles_n, config.group_m)
        start, end = _bounds(launched, group, sizes.k)
        spoiled = None
        if spec.block_scaled:
            # Blocks that two groups share have no scale of their own. The device can refuse no
            # offsets, and a result that leaves elements out must not look like one.
            spoiled = (end > start) & (((start | end) & (BLOCK - 1)) != 0)
            start, end = start & -BLOCK, end & -BLOCK
        begin = _begin(launched, start)
        return Place(
            m0=tile_m * config.tile_m,
            n0=tile_n * config.tile_n,
            m_end=sizes.m,
            n_end=sizes.n,
            k0=begin,
            k=(end > start).select(end - begin, fx.Int32(0)),
            batch=group,
            tile=tile,
            split=fx.Int32(0),
            k_head=start - begin if start_of(spec) > 1 else None,
            scale_shift=_shift(self.padding, _done(launched, group), start),
            spoiled=spoiled,
        )


@dataclass(frozen=True, kw_only=True)
class TileSchedule:
    """Tiles where M or N is ragged: a group has as many as its extent needs.

    Attributes:
        across: tiles along the other extent.
        tiles: of the groups.
        total: tiles of all groups.
        padding: tiles of swizzled scales; None without.
    """

    across: Any
    tiles: Sums
    total: Any
    padding: Sums | None

    @classmethod
    def of(cls, launched: Launched) -> TileSchedule:
        """Read the offsets; every wave does so for itself."""
        sizes, config = launched.sizes, launched.spec.config
        rows = launched.spec.ragged is Axis.M
        limit, tile = (sizes.m, config.tile_m) if rows else (sizes.n, config.tile_n)
        across = _tiles(sizes.n, config.tile_n) if rows else _tiles(sizes.m, config.tile_m)
        extents = _extents(launched, limit)
        counts = [
            (end > start).select(_tiles(end - _begin(launched, start), tile), 0) * across
            for start, end in extents
        ]
        tiles, padding = Sums.of(counts), _padding(launched, extents)
        return cls(across=across, tiles=tiles, total=tiles.total, padding=padding)

    def place(self, launched: Launched, tile: Any) -> Place:
        """Where tile number ``tile`` lies."""
        sizes, config = launched.sizes, launched.spec.config
        rows = launched.spec.ragged is Axis.M
        done = [ops.count_lanes(upto <= tile) for upto in self.tiles.upto]
        group = sum(done[1:], done[0])
        before = self.tiles.before(done)
        start, end = _bounds(launched, group, sizes.m if rows else sizes.n)
        begin = _begin(launched, start)
        along = _tiles(end - begin, config.tile_m if rows else config.tile_n)
        tiles = (along, self.across) if rows else (self.across, along)
        tile_m, tile_n = group_along_m(tile - before, *tiles, config.group_m)
        first = start if start_of(launched.spec) > 1 else None
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
            scale_shift=_shift(self.padding, done, start),
        )


def _tiles(extent: Any, tile: int) -> Any:
    return ops.quotient(extent + (tile - 1), tile)


def _begin(launched: Launched, start: Any) -> Any:
    """Where the tiles or K steps of a group begin that starts at ``start``."""
    return start & -start_of(launched.spec)


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


def _extents(launched: Launched, limit: Any) -> list[tuple[Any, Any]]:
    """(start, end) of the lane's group, for each 64 groups."""
    lane = fx.thread_idx.x % LANES
    rsrc = ops.buffer(launched.addresses["offsets"], launched.sizes.groups * 4)
    found = []
    for first in range(0, launched.spec.group_waves * LANES, LANES):
        # Past the last group and before the first, zeros are loaded.
        offset = (lane + first) * 4
        end = _within(ops.buffer_load(rsrc, offset, fx.Int32), limit)
        found.append((_within(ops.buffer_load(rsrc, offset - 4, fx.Int32), limit), end))
    return found


def _padding(launched: Launched, extents: list[tuple[Any, Any]]) -> Sums | None:
    """Tiles of swizzled scales along the ragged extent: of 128 rows, or of 4 blocks of 32."""
    if not launched.spec.pads:
        return None
    counts = [(end > start).select(_tiles(end - start, TILE_ROWS), 0) for start, end in extents]
    return Sums.of(counts)


def _shift(padding: Sums | None, done: list[Any], start: Any) -> Any:
    """`Place.scale_shift` of a group that starts at ``start``."""
    return None if padding is None else padding.before(done) * TILE_ROWS - start


def _done(launched: Launched, group: Any) -> list[Any]:
    """How many of each 64 groups come before one."""
    counts = []
    for first in range(0, launched.spec.group_waves * LANES, LANES):
        count = group - first
        count = (count > 0).select(count, fx.Int32(0))
        counts.append((count < LANES).select(count, fx.Int32(LANES)))
    return counts


def _scan(value: Any, lane: Any) -> Any:
    """Inclusive sums over the lanes of a wave."""
    for distance in (1, 2, 4, 8, 16, 32):
        below = ops.from_lane(value, lane - distance)
        value = value + (lane >= distance).select(below, 0)
    return value
