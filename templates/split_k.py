"""Split-K: several workgroups share a tile of C, each with a slice of K.

Each wave writes its fp32 accumulators to the workspace and counts itself in. The one that comes
last adds up all slices in the order of the splits, so the result does not depend on who that is,
and leaves the counter at zero for the next launch. Nobody waits for anybody.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from ..config import WAVE_SIZE
from . import ops
from .epilogue import Block, store_tile
from .workgroup import Workgroup

QUAD = 4
QUAD_BYTES = 16
# Loads of partial sums that are issued before those of the batch before are added up: what
# registers there are for, beside up to 16 blocks of accumulators or more.
LOADS, LOADS_FEW = 12, 4
ROOMY_BLOCKS = 16


@flyc.jit
def reduce_and_store(wg: Workgroup, blocks: list[Block]) -> None:
    """Leave this wave's share; as the last of the splits' waves at its place, sum and store C.

    Waves go by themselves: a wave sums what the waves with its index in the other splits left, so
    none waits for its workgroup, and the LDS has no part in it.
    """
    slices = _Slices(wg, len(blocks))
    last = _leave(wg, slices, blocks)

    def finish() -> None:
        ops.fence("acquire")
        store_tile(wg, slices.total(blocks))

    if last:
        finish()
        # Behind the loads, which would wait for it.
        _clear(wg)


@flyc.jit
def store_or_reduce(wg: Workgroup, blocks: list[Block]) -> None:
    """`reduce_and_store` of a tile that is shared, and `store_tile` of another."""
    slices = _Slices(wg, len(blocks))
    values = [block.value for block in blocks]

    def leave() -> Any:
        return _leave(wg, slices, blocks)

    def total() -> list[Any]:
        ops.fence("acquire")
        summed = [block.value for block in slices.total(blocks)]
        _clear(wg)
        return summed

    mine = fx.Int32(1)
    if wg.place.shared:
        mine = leave().select(fx.Int32(1), fx.Int32(0))
        if mine > 0:
            values = total()
    if mine > 0:
        store_tile(wg, [b._replace(value=v) for b, v in zip(blocks, values, strict=True)])


def _counter(wg: Workgroup) -> Any:
    """Address of the counter of the waves at this one's place in the tile."""
    place = fx.Int64(wg.tile) * wg.spec.config.waves + fx.Int64(ops.uniform(_wave(wg)))
    return wg.addresses["counters"] + place * 4


@flyc.jit
def _leave(wg: Workgroup, slices: _Slices, blocks: list[Block]) -> Any:
    """Leave this wave's share for others to sum; whether all the others are there already."""
    slices.write(blocks)
    # DMAs of K steps past the end must not outlive the workgroup's LDS; and this wave's share is
    # in memory before it says so.
    ops.wait(vmcnt=0)
    ops.fence("release")
    counter = _counter(wg)
    arrived = fx.Int32(0)
    if fx.thread_idx.x % 64 == 0:
        arrived = ops.atomic_add(counter, 1)
    return ops.uniform(arrived) == wg.spec.config.shares - 1


@flyc.jit
def _clear(wg: Workgroup) -> None:
    """Make the counter zero for the next launch."""
    counter = _counter(wg)
    if fx.thread_idx.x % 64 == 0:
        ops.store_word(counter, 0)


def _wave(wg: Workgroup) -> Any:
    """Index of the wave's place in the tile."""
    return wg.wave[0] * wg.spec.config.waves_n + wg.wave[1]


class _Slices:
    """The workspace: [tile][split][block][wave][lane] of 4 fp32: accesses are contiguous."""

    def __init__(self, wg: Workgroup, blocks: int) -> None:
        config = wg.spec.config
        self.wg = wg
        self.block_bytes = config.finishers * WAVE_SIZE * QUAD_BYTES
        self.split_bytes = blocks * self.block_bytes
        size = config.shares * self.split_bytes
        start = wg.addresses["workspace"] + fx.Int64(wg.tile) * size
        self.rsrc = ops.buffer(start, fx.Int32(size))
        self.offset = (_wave(wg) * 64 + fx.thread_idx.x % 64) * QUAD_BYTES

    def write(self, blocks: list[Block]) -> None:
        mine = self.wg.split * self.split_bytes
        for i, block in enumerate(blocks):
            ops.buffer_store(block.value, self.rsrc, self.offset, mine + i * self.block_bytes)

    def total(self, blocks: list[Block]) -> list[Block]:
        """The sum over splits, first to last.

        Of two, the other's share is added to this one, which is the same. Of more, this one is
        read back as well: to take it from the registers, whatever its place, would cost more.
        """
        count = self.wg.spec.config.shares
        pair = count == 2
        splits = [1 - self.wg.split] if pair else [fx.Int32(split) for split in range(count)]
        loads = LOADS if len(blocks) <= ROOMY_BLOCKS else LOADS_FEW
        each = max(1, loads // len(splits))
        first = [self._load(i, splits) for i in range(min(each, len(blocks)))]
        done: list[Block] = []
        for start in range(0, len(blocks), each):
            # Left alone, the compiler would wait for each load before it issues the next.
            following = range(start + each, min(start + 2 * each, len(blocks)))
            second = [self._load(i, splits) for i in following]
            ops.keep_order()
            done += [
                block._replace(
                    value=functools.reduce(operator.add, [block.value, *quads] if pair else quads)
                )
                for block, quads in zip(blocks[start : start + each], first, strict=True)
            ]
            first = second
        return done

    def _load(self, index: int, splits: list[Any]) -> list[fx.Vector]:
        starts = (split * self.split_bytes + index * self.block_bytes for split in splits)
        return [
            ops.buffer_load_elements(self.rsrc, self.offset, QUAD, fx.Float32, start)
            for start in starts
        ]
