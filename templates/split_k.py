"""Split-K: several workgroups share a tile of C, each with a slice of K.

Each wave writes its fp32 accumulators to the workspace and counts itself in. The one that comes
last adds up all slices in the order of the splits, so the result does not depend on who that is,
and leaves the counter at zero for the next launch. Nobody waits for anybody.
"""

from __future__ import annotations

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from . import ops
from .epilogue import Block, store_tile
from .workgroup import Workgroup

QUAD = 4
QUAD_BYTES = 16


@flyc.jit
def reduce_and_store(wg: Workgroup, blocks: list[Block]) -> None:
    """Leave this wave's share; as the last of the splits' waves at its place, sum and store C.

    Waves go by themselves: a wave sums what the waves with its index in the other splits left, so
    none waits for its workgroup, and the LDS has no part in it.
    """
    config = wg.spec.config
    slices = _Slices(wg, len(blocks))
    slices.write(blocks)
    # DMAs of K steps past the end must not outlive the workgroup's LDS; and this wave's share is
    # in memory before it says so.
    ops.wait(vmcnt=0)
    ops.fence("release")
    lane, wave = fx.thread_idx.x % 64, ops.uniform(_wave(wg))
    place = fx.Int64(wg.tile) * config.waves + fx.Int64(wave)
    counter = wg.addresses["counters"] + place * 4
    arrived = fx.Int32(0)
    if lane == 0:
        arrived = ops.atomic_add(counter, 1)
    last = ops.uniform(arrived) == config.split_k - 1

    def finish() -> None:
        ops.fence("acquire")
        store_tile(wg, slices.total(blocks))

    if last:
        if lane == 0:
            ops.store_word(counter, 0)
        finish()


def _wave(wg: Workgroup) -> Any:
    """Index of the wave's place in the tile."""
    return wg.wave[0] * wg.spec.config.waves_n + wg.wave[1]


class _Slices:
    """The workspace: [tile][split][block][wave][lane] of 4 fp32: accesses are contiguous."""

    def __init__(self, wg: Workgroup, blocks: int) -> None:
        config = wg.spec.config
        self.wg = wg
        self.block_bytes = config.threads * QUAD_BYTES
        self.split_bytes = blocks * self.block_bytes
        tile = fx.Int64(wg.tile) * (config.split_k * self.split_bytes)
        self.start = wg.addresses["workspace"] + tile
        self.offset = (_wave(wg) * 64 + fx.thread_idx.x % 64) * QUAD_BYTES

    def _start(self, split: Any) -> Any:
        return self.start + fx.Int64(split) * self.split_bytes

    def write(self, blocks: list[Block]) -> None:
        rsrc = ops.buffer(self._start(self.wg.split), fx.Int32(self.split_bytes))
        for i, block in enumerate(blocks):
            ops.buffer_store(block.value, rsrc, self.offset + i * self.block_bytes)

    def total(self, blocks: list[Block]) -> list[Block]:
        """The sum over splits, first to last, this workgroup's share from its registers."""
        shares = []
        for split in range(self.wg.spec.config.split_k):
            mine = self.wg.split == split
            # Of what the registers hold, nothing is loaded.
            size = mine.select(fx.Int32(0), fx.Int32(self.split_bytes))
            shares.append((mine, ops.buffer(self._start(fx.Int32(split)), size)))
        return [
            Block(self._sum(i, block.value, shares), block.row, block.column)
            for i, block in enumerate(blocks)
        ]

    def _sum(self, index: int, own: Any, shares: list[tuple[Any, Any]]) -> Any:
        total = None
        for mine, rsrc in shares:
            quad = ops.buffer_load_quad(rsrc, self.offset + index * self.block_bytes)
            quad = fx.Vector.from_elements(
                [mine.select(own[i], quad[i]) for i in range(QUAD)], fx.Float32
            )
            total = quad if total is None else total + quad
        return total
