"""Stream-K: tiles of whole rounds in one piece, those of the last, partial round shared along K.

The first workgroups have a tile each, as many as fill the compute units once or several times.
What is left is cut into chains of tiles, each shared evenly by several workgroups (`stream`), and
what these leave is summed as in split-K. A workgroup whose share of a chain spans two tiles does
one after the other. Nobody waits for anybody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import const_expr

from ..stream import columns_of, first_of
from . import ops
from .tiles import divisor, in_turns, remap_xcd
from .workgroup import Launched, Place, Workgroup


@flyc.jit
def walk(launched: Launched, body: Callable[[Workgroup], None]) -> None:
    """Run a pipeline at every place of this workgroup, one or two.

    Args:
        launched: of a spec with stream-K.
        body: emits the pipeline at one place.
    """
    share = Share.of(launched)
    if const_expr(launched.spec.config.stream_k == 1):
        body(Workgroup.at(launched, share.place(launched, fx.Int32(0))))
    else:
        # A plain name: FlyDSL would carry an object whose method is called through the loop.
        place_of, count = share.place, share.count(launched)

        def run(index: Any) -> None:
            now = launched.again()
            body(Workgroup.at(now, place_of(now, index)))
            # Every wave has read its LDS before the next place's DMA overwrites it.
            ops.wait(lgkmcnt=0)
            ops.barrier()

        for index in range(0, count, 1):
            run(index)


@dataclass(frozen=True, kw_only=True)
class Share:
    """What a workgroup computes.

    Attributes:
        shared: whether it has a share of a chain, or else a whole tile.
        chain, chains: index of its chain, or tile, and how many chains there are.
        member: its place in the chain.
        column: of the first tile that it has of the chain.
        begin, middle, end: K steps of the chain: its first, that of the next tile, and that of the
            next member.
        places: tiles that it has a share of.
    """

    shared: Any
    chain: Any
    chains: Any
    member: Any
    column: Any
    begin: Any
    middle: Any
    end: Any
    places: Any

    @classmethod
    def of(cls, launched: Launched) -> Share:
        sizes, config = launched.sizes, launched.spec.config
        pid, whole = fx.block_idx.x, sizes.whole
        shared, members = pid >= whole, sizes.grid - whole
        spare = pid - whole
        if config.xcd_remap:
            pid, spare = remap_xcd(pid, whole), remap_xcd(spare, members)
        chains = _part(members, config.split_k)
        member = _reached(spare, chains, config.split_k)
        steps = _steps(launched)
        begin, end = (
            _part((member + i) * (steps * config.stream_k), config.split_k) for i in range(2)
        )
        columns = [columns_of(i, config.split_k, config.stream_k) for i in range(config.split_k)]
        column = _pick(member, [own[0] for own in columns])
        return cls(
            shared=shared,
            chain=shared.select(spare - member * chains, pid),
            chains=chains,
            member=member,
            column=column,
            begin=begin,
            middle=(column + 1) * steps,
            end=end,
            places=_pick(member, [len(own) for own in columns]),
        )

    def count(self, launched: Launched) -> Any:
        """Places of the workgroup. Columns have as many tiles as there are, or one less or none."""
        sizes = launched.sizes
        left = sizes.tiles * sizes.batch - sizes.whole - self._tile(self.column)
        first = (left > 0).select(fx.Int32(1), fx.Int32(0))
        both = (left > self.chains) & (self.places > 1)
        second = both.select(fx.Int32(1), fx.Int32(0))
        return self.shared.select(first + second, fx.Int32(1))

    def place(self, launched: Launched, index: Any) -> Place:
        """The first or the second place, by its index."""
        spec, sizes = launched.spec, launched.sizes
        config = spec.config
        column, begin, end = self.column, self.begin, self.end
        if config.stream_k > 1:
            later, over = index > 0, end > self.middle
            column = later.select(column + 1, column)
            begin = later.select(self.middle, begin)
            # Whoever has no K step of a tile is waited for nevertheless: its share is zero.
            first_end, later_end = over.select(self.middle, end), over.select(end, self.middle)
            end = later.select(later_end, first_end)
        tile = self._tile(column)
        number = self.shared.select(sizes.whole + tile, self.chain)
        batch, inside = fx.Int32(0), number
        if spec.batched:
            batch, inside = ops.divide_by(number, divisor(sizes, "tiles"))
        tiles_m = _tiles(sizes.m, config.tile_m)
        tile_m, tile_n = in_turns(inside, tiles_m, sizes, config.group_m)
        firsts = [first_of(i, config.split_k, config.stream_k) for i in range(config.stream_k)]
        first, steps = _pick(column, firsts), _steps(launched)
        k0 = self.shared.select(begin - column * steps, fx.Int32(0)) * config.tile_k
        k = self.shared.select((end - begin) * config.tile_k, sizes.k)
        left = sizes.k - k0
        return Place(
            m0=tile_m * config.tile_m,
            n0=tile_n * config.tile_n,
            m_end=sizes.m,
            n_end=sizes.n,
            k0=k0,
            k=(left < k).select(left, k),
            batch=batch,
            tile=tile,
            split=self.shared.select(self.member - first, fx.Int32(0)),
            shared=self.shared,
        )

    def _tile(self, column: Any) -> Any:
        """Index among the tiles that are shared."""
        return column * self.chains + self.chain


def _pick(index: Any, values: list[int]) -> Any:
    """The value at an index."""
    found = fx.Int32(values[0])
    for i in range(1, len(values)):
        found = (index == i).select(fx.Int32(values[i]), found)
    return found


def _tiles(extent: Any, tile: int) -> Any:
    return ops.quotient(extent + (tile - 1), tile)


def _steps(launched: Launched) -> Any:
    """K steps of a tile."""
    return _tiles(launched.sizes.k, launched.spec.config.tile_k)


def _part(value: Any, parts: int) -> Any:
    """value // parts."""
    if parts & (parts - 1) == 0:
        return ops.quotient(value, parts)
    return ops.divide(value, fx.Int32(parts))[0]


def _reached(value: Any, each: Any, most: int) -> Any:
    """value // each, which is less than ``most``, for less than a division."""
    found = fx.Int32(0)
    for i in range(1, most):
        found = found + (value >= each * i).select(fx.Int32(1), fx.Int32(0))
    return found
