"""The staged pipeline: a ring of K steps in LDS, filled by DMA while MFMAs read an older one.

One wait and one barrier a K step. The wait leaves the DMAs of the younger stages in flight; the
barrier makes every wave's share of the oldest stage visible, and says that every wave is done
with the stage that the next DMAs overwrite.
"""

from __future__ import annotations

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import const_expr, range_constexpr

from . import ops
from .epilogue import Block
from .finish import finish
from .loads import Operand, masked, tail_masks
from .workgroup import Workgroup


def body(wg: Workgroup) -> None:
    """Emit the kernel. Called while FlyDSL traces `templates.gemm`."""
    config = wg.spec.config
    a = wg.operand_a(config.tile_m, 0, wg.lds)
    b = wg.operand_b(config.tile_n, 0, wg.lds + config.stages * a.g.bytes)
    acc = multiply_ring(wg.spec, a, b, wg.wave, wg.k)
    rows, columns = wg.wave[0] * (a.g.fragments * 16), wg.wave[1] * (b.g.fragments * 16)
    blocks = [
        Block(acc[m * b.g.fragments + n], rows + m * 16, columns + n * 16)
        for m in range(a.g.fragments)
        for n in range(b.g.fragments)
    ]
    finish(wg, blocks)


class Stage:
    """One K step of the ring, as the waves read it: fragments in, products out."""

    def __init__(self, a: Operand, b: Operand, wave: tuple[Any, Any]) -> None:
        self.a, self.b = a, b
        self.a_bases = a.fragment_bases(wave[0])
        self.b_bases = b.fragment_bases(wave[1])

    def multiply(self, acc: list[Any], stage: Any, remaining: Any = None) -> list[Any]:
        """acc + A·B of one stage.

        Args:
            acc: accumulators, fragment of M major. Each holds 4 neighbours along N.
            stage: index in the ring.
            remaining: K elements of the step, where it is partial; None where it is full.
        """
        a, b = self.a, self.b
        acc = list(acc)
        for kk in range(a.g.tile_k // 32):
            left = [b.fragment(self.b_bases, stage, kk, n) for n in range(b.g.fragments)]
            right = [a.fragment(self.a_bases, stage, kk, m) for m in range(a.g.fragments)]
            if remaining is not None:
                masks = tail_masks(remaining - kk * 32, a.lane)
                left = [masked(f, masks) for f in left]
                right = [masked(f, masks) for f in right]
            for m in range(a.g.fragments):
                for n in range(b.g.fragments):
                    i = m * b.g.fragments + n
                    # B first: the result's rows are N, so a lane holds neighbours of C's row.
                    acc[i] = ops.mfma(left[n], right[m], acc[i])
        return acc


@flyc.jit
def multiply_ring(spec: Any, a: Operand, b: Operand, wave: Any, k: Any) -> list[Any]:
    """Run the ring over K.

    Returns:
        The accumulators, fragment of M major, 4 fp32 a lane each.
    """
    stages, tile_k = spec.config.stages, spec.config.tile_k
    # Plain names: FlyDSL would carry an object whose method is called through the loop.
    multiply = Stage(a, b, wave).multiply
    acc = [ops.zeros() for _ in range(a.g.fragments * b.g.fragments)]
    younger = (stages - 2) * (a.g.dma_steps + b.g.dma_steps)

    def fill(step: Any, stage: Any) -> None:
        a.load(step, stage)
        b.load(step, stage)

    for stage in range_constexpr(stages - 1):
        fill(fx.Int32(stage), fx.Int32(stage))
    full = k // tile_k
    for step in range(0, full, 1):
        ops.wait(vmcnt=younger, lgkmcnt=0)
        ops.barrier()
        ahead = step + (stages - 1)
        fill(ahead, ahead % stages)
        acc = multiply(acc, step % stages)
    if const_expr(spec.k_tail):
        ops.wait(vmcnt=younger, lgkmcnt=0)
        ops.barrier()
        acc = multiply(acc, full % stages, remaining=k - full * tile_k)
    return acc
