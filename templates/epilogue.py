"""From accumulators to C: the fused pointwise program, then stores of what it gives.

A lane holds four neighbours of a row. Where an output takes them in one store, two blocks that lie
side by side are exchanged between lanes, so that stores are of 16 bytes and cover 64 bytes of a
row; where it is aligned to less, its tile goes through LDS, so that narrow stores run along the
rows. Several outputs share LDS, one after another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from ..activations import recognised
from ..dtypes import DType
from ..grouping import Axis
from . import ops
from .pointwise import QUAD, QuadOps
from .rows import Block, Rows
from .tensors import TensorReader
from .workgroup import Workgroup

__all__ = ["Block", "store_tile"]

# Registers of a lane for tensors of the epilogue that are on their way: some of those that held
# fragments.
LOADED_REGISTERS = 32
# Groups of blocks whose arithmetic is ahead of the tensors that it does not need.
BEFORE = 2
# Priorities of a wave at instruction issue.
LEVELS = 4


def store_tile(wg: Workgroup, blocks: list[Block]) -> None:
    """Compute what C and other outputs hold from the accumulators and store it; nothing outside of
    them is written.

    Args:
        wg: the workgroup.
        blocks: all of this wave's, those of a row of blocks one after another along N; together
            with the other waves' the whole tile.
    """
    # Elements of a store at the most.
    most = max(output.width // output.dtype.bytes for output in wg.spec.outputs)
    if wg.spec.ragged is not Axis.N or most == 1:
        _store(wg, blocks, wide=True)
        return
    # Wide stores would cover what is a neighbour's where its group ends or begins in the tile.
    left = wg.place.n_end - wg.n0
    ends = (left < wg.spec.config.tile_n) & (ops.modulo(left, most) != 0)
    _either(
        (wg.place.n_first > wg.n0) | ends,
        lambda: _store(wg, blocks, wide=False),
        lambda: _store(wg, blocks, wide=True),
    )


@flyc.jit
def _either(condition: Any, yes: Callable[[], None], no: Callable[[], None]) -> None:
    if condition:
        yes()
    else:
        no()


def _store(wg: Workgroup, blocks: list[Block], *, wide: bool) -> None:
    """`store_tile`, by the width of each output at a time or by single elements."""
    rows = [Rows(wg, o, o.width if wide else o.dtype.bytes) for o in wg.spec.outputs]
    together = 2 if any(r.in_pairs for r in rows) else 1
    groups = [blocks[i : i + together] for i in range(0, len(blocks), together)]
    if any(r.through_lds for r in rows):
        _store_through_lds(wg, groups, rows)
        return
    # DMAs of K steps past the end must not outlive the workgroup's LDS.
    ops.wait(vmcnt=0)
    for i, results in enumerate(_fused(wg, groups)):
        if wg.spec.fusion is not None and i % -(-len(groups) // LEVELS) == 0:
            # Waves of a SIMD that fall behind go first: they end together, and none is left
            # alone with instructions that another's arithmetic would have hidden.
            ops.set_priority(LEVELS - 1 - i * LEVELS // len(groups))
        for r, group in zip(rows, results, strict=True):
            r.store(group)
        # What is computed of the next runs beside this store, not before it.
        ops.keep_order()
    if wg.spec.fusion is not None:
        ops.set_priority(0)


def _store_through_lds(wg: Workgroup, groups: list[list[Block]], rows: list[Rows]) -> None:
    """Outputs with narrow stores, one after another; the others meanwhile."""
    # DMAs of K steps past the end may still be in flight, into the space of these tiles.
    ops.wait(vmcnt=0, lgkmcnt=0)
    ops.barrier()
    narrow = [r for r in rows if r.through_lds]
    held: list[list[Block]] = [[] for _ in rows]
    for results in _fused(wg, groups):
        for r, group, kept in zip(rows, results, held, strict=True):
            if not r.through_lds:
                r.store(group)
                continue
            ready = [r.narrowed(block) for block in group]
            if r is narrow[0]:
                r.to_lds(ready)
            else:
                kept += ready
    for r in narrow:
        if r is not narrow[0]:
            # The tile before has been read.
            ops.wait(lgkmcnt=0)
            ops.barrier()
            r.to_lds(held[rows.index(r)])
        ops.wait(lgkmcnt=0)
        ops.barrier()
        r.from_lds()


def _fused(wg: Workgroup, groups: list[list[Block]]) -> Iterator[list[list[Block]]]:
    """Groups of blocks with what the fused program makes of them for each output, one group at a
    time."""
    if wg.spec.fusion is None:
        yield from ([group] for group in groups)
        return
    fusion = recognised(wg.spec.fusion)
    readers = [TensorReader(wg, i) for i in range(len(fusion.tensors))]
    each = sum(reader.registers for reader in readers) * len(groups[0])
    ahead = max(1, LOADED_REGISTERS // each) if each else len(groups)
    loaded = [[reader.load(group) for reader in readers] for group in groups[:ahead]]
    # Whole tensors are long in coming: what needs none of them is computed of later groups first.
    before = BEFORE if each else 0

    def advance(i: int, values: list[list[Any]], *, whole: bool) -> list[list[Any]]:
        blocks = groups[i]
        wide = [
            r.wide(raw, len(blocks)) if whole or not r.registers else [None] * len(blocks)
            for r, raw in zip(readers, loaded[i], strict=True)
        ]
        return [
            fusion.advanced(known, _quad_ops(wg, block), block.value, [of[j] for of in wide])
            for j, (block, known) in enumerate(zip(blocks, values, strict=True))
        ]

    def start(i: int) -> list[list[Any]]:
        return advance(i, [[] for _ in groups[i]], whole=not before)

    begun = [start(i) for i in range(min(before, len(groups)))]
    for i, group in enumerate(groups):
        if i + ahead < len(groups):
            loaded.append([reader.load(groups[i + ahead]) for reader in readers])
        if i + before < len(groups):
            begun.append(start(i + before))
        values = advance(i, begun[i], whole=True) if before else begun[i]
        results = [fusion.finished(own) for own in values]
        yield [
            [block._replace(value=value) for block, value in zip(group, output, strict=True)]
            for output in zip(*results, strict=True)
        ]


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

    stored = {output.dtype for output in wg.spec.outputs}
    finest = next((t for t in (DType.FP32, DType.FP16) if t in stored), DType.BF16)
    return QuadOps(finest, index)
