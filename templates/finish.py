"""The end of every kernel: straight to C, or to the workspace of a split-K tile first."""

from __future__ import annotations

from .epilogue import Block, store_tile
from .split_k import reduce_and_store, store_or_reduce
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
    if wg.place.shared is None:
        reduce_and_store(wg, blocks)
        return
    store_or_reduce(wg, blocks)
