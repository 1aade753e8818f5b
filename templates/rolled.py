"""The rolled pipeline: the staged ring for waves that are alone on their SIMD.

Four waves with 256 accumulators a lane each, in AGPRs, read a third less of LDS than eight with
128, but no other wave issues MFMAs while one reads, loads or waits. So everything else lies between
its MFMAs, one matrix instruction a block of C in a K step:

- Step s multiplies what is in registers, and reads of stage s + 1 where it has multiplied what they
  held: a row fragment of A behind its row of blocks, those of B in the last row. So nothing is held
  twice, and a read has a row of MFMAs or more until it is used.
- The wait for stage s + 1 and the barrier come behind the first row of blocks of step s, the first
  reads of it behind them, and the DMAs of stage s + 3, evenly. The slot that these fill was read
  last in step s - 2, before the barrier of step s - 1.
- The loop goes over a turn of the ring at a time, so that the compiler knows all LDS addresses.

FlyDSL's public FP4 kernel of 4 waves places what it does in the same spirit.
"""

from __future__ import annotations

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import const_expr, range_constexpr

from . import ops
from .loads import Operand
from .matrix import product
from .staged import Ring, begin, end
from .workgroup import Workgroup


def body(wg: Workgroup) -> None:
    """Emit the kernel. Called while FlyDSL traces `templates.gemm`."""
    a, b = begin(wg)
    end(wg, a, b, multiply_turns(wg, a, b, wg.block_scales()))


class RolledRing(Ring):
    """The ring, with the order of a step as this file has it."""

    def after(self, stage: Any) -> Any:
        following = stage + 1
        if isinstance(stage, int):
            return following % self.stages
        return super().after(stage)

    def advance(
        self, state: tuple[list[Any], list[Any], Any, Any], k_step: Any, remaining: Any = None
    ) -> tuple[list[Any], list[Any], Any, Any]:
        """One K step; arguments and result as of `Ring.advance`.

        The stages are ints where they are known.
        """
        acc, held, before, stage = state
        after = self.after(stage)
        slices = self.b.reads + self.a.reads
        scales, held = held[slices:], held[:slices]
        left = self.b.pieces(held[: self.b.reads], 0, scales[: self.b.scale_reads], remaining)
        right = self.a.pieces(held[self.b.reads :], 0, scales[self.b.scale_reads :], remaining)
        acc = list(acc)
        of_a: list[Any] = []
        of_b: list[Any] = []
        starts: list[Any] = []
        spread = (len(right) - 2) * len(left)
        for m, row in enumerate(right):
            for n, column in enumerate(left):
                i = m * len(left) + n
                acc[i] = product(column, row, acc[i], 0, agprs=True)
                ops.keep_slots()
                begun, due = ((x - len(left)) * len(starts) // spread for x in (i, i + 1))
                for start in starts[max(0, begun) : max(0, due)]:
                    start()
                if m == len(right) - 1:
                    of_b.append(self.b.read_fragment(after, n, k_step + 1))
            if m == 0:
                # Between MFMAs, whose results nothing waits for.
                self.wait(self.ahead)
                if remaining is None:
                    starts = self.loads(k_step + self.stages - 1, before)
            of_a.append(self.a.read_fragment(after, m, k_step + 1))
            ops.keep_slots()
        parts = of_b + of_a
        following = [x for part, _ in parts for x in part] + [x for _, s in parts for x in s]
        return acc, following, stage, after


@flyc.jit
def multiply_turns(wg: Workgroup, a: Operand, b: Operand, scales: Any) -> list[Any]:
    """Run the ring over K.

    Returns:
        The accumulators, fragment of M major, 4 fp32 a lane each.
    """
    tile_k, k = wg.spec.config.tile_k, wg.k
    ring = RolledRing(wg, a, b, scales)
    # Plain names: FlyDSL would carry an object whose method is called through the loop.
    advance, stages = ring.advance, ring.stages
    acc = [wg.cleared() for _ in range(a.g.fragments * b.g.fragments)]
    first = ring.start()
    full = ops.quotient(k, tile_k)
    before, stage = fx.Int32(stages - 1), fx.Int32(0)
    for turn in range(0, ops.quotient(full, stages), 1):
        for i in range_constexpr(stages):
            state = (acc, first, (i - 1) % stages, i)
            acc, first, _, _ = advance(state, turn * stages + i)
    for step in range(full & -stages, full, 1):
        acc, first, before, stage = advance((acc, first, before, stage), step)
    if const_expr(wg.spec.k_tail):
        acc, _, _, _ = advance((acc, first, before, stage), full, k - full * tile_k)
    ops.settle()
    return acc
