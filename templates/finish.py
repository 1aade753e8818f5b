"""The end of every kernel: straight to C, or to the workspace of a split-K tile first."""

from __future__ import annotations

from . import ops
from .epilogue import Block, store_tile
from .split_k import reduce_and_store
from .workgroup import Workgroup


def finish(wg: Workgroup, blocks: list[Block]) -> None:
    """Bring this workgroup's accumulators to where they belong.

    Args:
        wg: the workgroup.
        blocks: all of this wave's.
    """
    if wg.spec.config.split_k == 1:
        store_tile(wg, blocks)
        return
    # Every wave is done with the ring, and no DMA is on its way into it: the LDS is free.
    ops.wait(vmcnt=0, lgkmcnt=0)
    ops.barrier()
    reduce_and_store(wg, blocks)
