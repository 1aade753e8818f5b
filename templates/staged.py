"""The staged pipeline: a ring of K steps in LDS, filled by DMA while MFMAs read an older one.

One wait and one barrier a K step. The wait leaves the DMAs of the younger stages in flight; the
barrier makes every wave's share of the oldest stage visible, and says that every wave is done
with the stage that the next DMAs overwrite.
"""

from __future__ import annotations

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import const_expr

from . import ops
from .epilogue import Block
from .finish import finish
from .loads import Operand
from .matrix import Reader, product
from .scales import BlockScales
from .workgroup import Workgroup


def body(wg: Workgroup) -> None:
    """Emit the kernel. Called while FlyDSL traces `templates.gemm`."""
    config = wg.spec.config
    a = wg.operand_a(config.tile_m, 0, wg.lds)
    b = wg.operand_b(config.tile_n, 0, wg.lds + config.stages * a.g.bytes)
    scales = wg.block_scales()
    acc = multiply_ring(wg, a, b, scales)
    rows, columns = wg.wave[0] * (a.g.fragments * 16), wg.wave[1] * (b.g.fragments * 16)
    blocks = [
        Block(acc[m * b.g.fragments + n], rows + m * 16, columns + n * 16)
        for m in range(a.g.fragments)
        for n in range(b.g.fragments)
    ]
    finish(wg, blocks)


class Ring:
    """The K steps in LDS: filled from memory, and multiplied by the waves."""

    def __init__(self, wg: Workgroup, a: Operand, b: Operand, scales: BlockScales | None) -> None:
        spec = wg.spec
        self.loaded = [x for x in (a, b, scales) if x is not None]
        of_a, of_b = ((scales, i) if scales is not None else None for i in range(2))
        self.a = Reader(a, spec.dtype, wg.wave[0], of_a)
        self.b = Reader(b, spec.b_type, wg.wave[1], of_b)
        self.early = scales.early if scales is not None else 0

    @property
    def dma_steps(self) -> int:
        """Loads of a K step that vmcnt counts until the pipeline waits for them."""
        return sum(g.dma_steps for g in self.loaded)

    def fill(self, k_step: Any, stage: Any) -> None:
        """Start loading a K step."""
        for part in self.loaded:
            part.load(k_step, stage)

    def start(self, stages: int) -> None:
        """Start loading so many K steps, and what has to be there before the first of them."""
        for i in range(self.early):
            self.loaded[-1].load(fx.Int32(i - self.early), None)
        for i in range(stages):
            self.fill(fx.Int32(i), fx.Int32(i))

    def multiply(self, acc: list[Any], k_step: Any, stage: Any, remaining: Any = None) -> list[Any]:
        """acc + A·B of one stage.

        Args:
            acc: accumulators, fragment of M major. Each holds 4 neighbours along N.
            k_step: index of the K step; stage: of its place in the ring.
            remaining: K elements of the step, where it is partial; None where it is full.
        """
        acc = list(acc)
        a_scales = self.a.step_scales(k_step, remaining)
        b_scales = self.b.step_scales(k_step, remaining)
        for instruction in range(self.a.instructions):
            left = self.b.pieces(stage, instruction, b_scales, remaining)
            right = self.a.pieces(stage, instruction, a_scales, remaining)
            for m, row in enumerate(right):
                for n, column in enumerate(left):
                    i = m * len(left) + n
                    # B first: the result's rows are N, so a lane holds neighbours of C's row.
                    acc[i] = product(column, row, acc[i], instruction)
        return acc


@flyc.jit
def multiply_ring(wg: Workgroup, a: Operand, b: Operand, scales: Any) -> list[Any]:
    """Run the ring over K.

    Returns:
        The accumulators, fragment of M major, 4 fp32 a lane each.
    """
    stages, tile_k, k = wg.spec.config.stages, wg.spec.config.tile_k, wg.k
    ring = Ring(wg, a, b, scales)
    # Plain names: FlyDSL would carry an object whose method is called through the loop.
    fill, multiply = ring.fill, ring.multiply
    acc = [ops.zeros() for _ in range(a.g.fragments * b.g.fragments)]
    younger = (stages - 2) * ring.dma_steps
    ring.start(stages - 1)
    full = k // tile_k
    for step in range(0, full, 1):
        ops.wait(vmcnt=younger, lgkmcnt=0)
        ops.barrier()
        ahead = step + (stages - 1)
        fill(ahead, ahead % stages)
        acc = multiply(acc, step, step % stages)
    if const_expr(wg.spec.k_tail):
        ops.wait(vmcnt=younger, lgkmcnt=0)
        ops.barrier()
        acc = multiply(acc, full, full % stages, remaining=k - full * tile_k)
    return acc
