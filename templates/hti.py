"""The half-tile interleaved pipeline: two wave groups take turns at memory and at MFMAs.

The tile is cut in half along M and along N. A K step has four phases, one a quarter of C; a phase
is a memory cluster (LDS reads and the DMA of one half tile each) and an MFMA cluster, a barrier
after each. The second wave group runs one cluster behind the first, so on every SIMD one wave
feeds the matrix pipe while the other moves data.

Lifetimes. Number the clusters of a wave M0 X0 M1 X1 …, a barrier behind each; group 1 runs each
one barrier later, so its X(r) shares an interval with M(r+1) of group 0.

- Landed before read. A wave waits for its DMAs at the end of M(q). Group 1 does so before the
  barrier that opens M(q+1) of group 0, so from M(q+1) on every wave sees what M(q) waited for.
- Read before overwritten. Reads of M(r) are not waited for at its end: MFMAs start while they are
  on their way. But they are done at the barrier behind X(r), because X(r) multiplies what they
  bring, or at the barrier behind M(r+1), whose wait covers older reads. For group 1 these come at
  the latest right before M(r+2) of group 0: from there on, what M(r) read may be overwritten.

Phases 0, 1 and 2 of step s read A0, B1 and A1; phase 3 reads B0 of step s+1, whose registers X(2)
used last. So A0 of s+2 may be loaded from phase 2 of step s on, B1 from 3, A1 from 0 of step s+1,
and B0, read in phase 3 of step s-1, from 1: one half tile a phase (`REFILL`), in the order B0 A0
B1 A1. Each is waited for at the end of the phase before it is read in: B0 at 2, A0 at 3, B1 at 0,
A1 at 1. Five half tiles have been issued after it by then, beginning with the next in that order:
`Step.younger`.

The first step finds three half tiles on their way, which it reads first, and not seven: a wave is
stuck at a load for which there is no room, and multiplies nothing meanwhile. It loads two half
tiles a phase, in the same order, and leaves what every step leaves. They go into slots that nothing
was read from, but for B0 of step 2 in phase 2, and A0 and B1 in phase 3, when they may.

Block scales of a step are read with the half tile that they belong to. Their ring is filled with
B0, which is the first of them: it has three slots or more, so that a slot is filled a whole chunk
after it was last read.
"""

from __future__ import annotations

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import const_expr

from . import ops
from .epilogue import Block
from .finish import finish
from .heads import clear_heads
from .loads import Operand
from .matrix import Piece, Reader, product
from .workgroup import Workgroup

STAGES = 2
LGKMCNT_MAX = 15
# Half tiles that may be in flight at a wait.
YOUNGER = 5
# Half tiles that are asked for before the first step: what it reads first. With all those that a
# later step finds on their way, waves would be stuck at loads before they multiply anything.
FIRST, AHEAD = 3, 7
# Phase → (half of A, half of B) that it multiplies. Fragments are kept over the K step.
QUARTERS = ((0, 0), (0, 1), (1, 0), (1, 1))
# Half tiles in the order of their loads.
B0, A0, B1, A1 = range(4)
# Phase → (half tile that it loads, of which later step).
REFILL = ((A1, 1), (B0, 2), (A0, 2), (B1, 2))


def body(wg: Workgroup) -> None:
    """Emit the kernel. Called while FlyDSL traces `templates.gemm`."""
    config = wg.spec.config
    half_m, half_n = config.tile_m // 2, config.tile_n // 2
    a0 = wg.operand_a(half_m, wg.lds)
    a1 = a0.from_row(half_m, wg.lds + STAGES * a0.g.bytes)
    b_lds = wg.lds + 2 * STAGES * a0.g.bytes
    b0 = wg.operand_b(half_n, b_lds)
    b1 = b0.from_row(half_n, b_lds + STAGES * b0.g.bytes)
    acc = multiply_halves(wg, [a0, a1], [b0, b1])
    across_m, across_n = a0.g.fragments, b0.g.fragments
    blocks = []
    for (i, j), quarter in zip(QUARTERS, range(4), strict=True):
        row = wg.wave[0] * (across_m * 16) + i * half_m
        column = wg.wave[1] * (across_n * 16) + j * half_n
        for m in range(across_m):
            for n in range(across_n):
                value = acc[(quarter * across_m + m) * across_n + n]
                place = (i * across_m + m, j * across_n + n)
                blocks.append(Block(value, row + m * 16, column + n * 16, place))
    finish(wg, blocks)


class Step:
    """What the phases of a K step read, load, wait for and multiply."""

    def __init__(self, wg: Workgroup, a: list[Operand], b: list[Operand]) -> None:
        spec, config = wg.spec, wg.spec.config
        self.scales = wg.block_scales()
        of_a, of_b = ((self.scales, i) if self.scales is not None else None for i in range(2))
        self.halves = (
            Reader(b[0], spec.b_type, wg.wave[1], of_b),
            Reader(a[0], spec.dtype, wg.wave[0], of_a),
            Reader(b[1], spec.b_type, wg.wave[1], of_b, config.tile_n // 2),
            Reader(a[1], spec.dtype, wg.wave[0], of_a, config.tile_m // 2),
        )
        self.gathers = any(half.operand.dma_steps == 0 for half in self.halves)
        if self.scales is not None:
            self.gathers = self.gathers or self.scales.dma_steps == 0
        self.instructions = self.halves[0].instructions

    def dma_steps(self, half: int) -> int:
        """DMAs of `load`."""
        own = self.halves[half].operand.dma_steps
        return own + (self.scales.dma_steps if half == B0 and self.scales is not None else 0)

    def younger(self, half: int, count: int) -> int:
        """DMAs of the half tiles that were issued after one, which must have landed."""
        return sum(self.dma_steps((half + 1 + i) % 4) for i in range(count))

    def wait(self, half: int, reads: int = 0, count: int = YOUNGER) -> None:
        """Wait at the end of a memory cluster for the DMAs of the half tile that is read next.

        Args:
            half: which that is.
            reads: of this cluster that may be on their way behind the barrier; 15 is as good as
                any.
            count: half tiles that were issued after it.
        """
        # Gathers write LDS with DS operations, which must be done at the barrier.
        lgkmcnt = 0 if self.gathers else min(reads, LGKMCNT_MAX)
        ops.wait(vmcnt=self.younger(half, count), lgkmcnt=lgkmcnt)

    def start(self, count: int) -> None:
        """Start the loads of the first half tiles, which come before the first step."""
        if self.scales is not None:
            for piece in range(-self.scales.early, 0):
                self.scales.load(fx.Int32(piece))
        for i in range(count):
            self.load(fx.Int32(i // 4), i % 4)
            if i in (1, 3):
                # Every wave's share of what is read first is asked for before anything else.
                ops.barrier()

    def catch_up(self) -> None:
        """Start what the first step would have loaded beside what every step does."""
        for i in range(FIRST, AHEAD):
            self.load(fx.Int32(i // 4), i % 4)

    def clear_heads(self, count: Any) -> None:
        """Wait for the first step, and clear what it holds of K before ``count`` elements."""
        ops.wait(vmcnt=sum(self.dma_steps(half) for half in range(3)), lgkmcnt=0)
        ops.barrier()
        clear_heads([*(half.operand for half in self.halves), self.scales], count)

    def load(self, k_step: Any, half: int) -> None:
        """Start the DMA of one half tile; with the step's first one goes a piece of the scales."""
        if half == B0 and self.scales is not None:
            self.scales.load(k_step)
        self.halves[half].operand.load(k_step, k_step & (STAGES - 1))

    def read(self, k_step: Any, half: int) -> list[Any]:
        """What all instructions of a step take of a half tile: its scales, if any, then slices."""
        reader, stage = self.halves[half], k_step & (STAGES - 1)
        slices = [reader.read(stage, i) for i in range(self.instructions)]
        return reader.step_scales(k_step) + [x for one in slices for x in one]

    def reads(self, half: int) -> int:
        """DS instructions of `read`, without those of its first fragment."""
        reader = self.halves[half]
        each = 1 if reader.operand.g.k_contiguous else 2
        return reader.scale_reads + (reader.reads * self.instructions - 1) * each

    def multiply(
        self, acc: list[Any], a: tuple[int, list[Any]], b: tuple[int, list[Any]], remaining: Any
    ) -> list[Any]:
        """acc + A·B of one quarter.

        Args:
            acc: its accumulators.
            a, b: a half tile each, and what `read` gave of it.
            remaining: K elements of a partial step, else None.
        """
        acc = list(acc)
        for instruction in range(self.instructions):
            right = self._pieces(*a, instruction, remaining)
            left = self._pieces(*b, instruction, remaining)
            for m, row in enumerate(right):
                for n, column in enumerate(left):
                    i = m * len(left) + n
                    acc[i] = product(column, row, acc[i], instruction)
        return acc

    def _pieces(self, half: int, read: list[Any], instruction: int, remaining: Any) -> list[Piece]:
        reader = self.halves[half]
        scales, slices = read[: reader.scale_reads], read[reader.scale_reads :]
        own = slices[instruction * reader.reads : (instruction + 1) * reader.reads]
        return reader.pieces(own, instruction, scales, remaining)


def run_step(
    step: Step,
    acc: list[Any],
    b0: list[Any],
    k_step: Any,
    remaining: Any = None,
    first: bool = False,
) -> tuple[list[Any], list[Any]]:
    """The eight clusters of a K step, each ended by a barrier.

    The priority changes on the memory side of the barriers, where it costs the matrix unit
    nothing.

    Args:
        step: what to do in them.
        acc: accumulators, quarter major.
        b0: what was read of half tile B0.
        k_step: index of the step.
        remaining: K elements of a partial step, which is the last.
        first: it is the first step, and starts what `start` left out too.

    Returns:
        The accumulators, and what was read of B0 of the next step.
    """
    quarter = len(acc) // 4
    a: list[Any] = [None, None]
    b: list[Any] = [b0, None]
    done: list[Any] = []
    for phase, (i, j) in enumerate(QUARTERS):
        fresh = (A0, B1, A1, B0)[phase]
        read = step.read(k_step + phase // 3, fresh)
        count = YOUNGER
        if first:
            for number in range(FIRST + 2 * phase, FIRST + 2 * phase + 2):
                step.load(fx.Int32(number // 4), number % 4)
            count = FIRST - 1 + phase
        else:
            half, ahead = REFILL[phase]
            step.load(k_step + ahead, half)
        # X(3) needs nothing of what M(3) reads.
        reads = LGKMCNT_MAX if phase == 3 else step.reads(fresh)
        step.wait((B1, A1, B0, A0)[phase], reads, count)
        ops.set_priority(1)
        ops.barrier()
        if phase == 3:
            b0 = read
        else:
            kept = a if fresh in (A0, A1) else b
            kept[fresh // 2] = read
        own = acc[phase * quarter : (phase + 1) * quarter]
        done += step.multiply(own, ((A0, A1)[i], a[i]), ((B0, B1)[j], b[j]), remaining)
        ops.barrier()
        ops.set_priority(0)
    return done, b0


@flyc.jit
def multiply_halves(wg: Workgroup, a: Any, b: Any) -> list[Any]:
    """Run the phases over K.

    Returns:
        The accumulators: quarter, then fragment of M, then of N; 4 fp32 a lane each.
    """
    spec, wave, k = wg.spec, wg.wave, wg.k
    step_of = Step(wg, a, b)
    tile_k = spec.config.tile_k
    acc = [wg.cleared() for _ in range(4 * a[0].g.fragments * b[0].g.fragments)]
    full = ops.quotient(k, tile_k)
    peeled = wg.place.k_head is None
    step_of.start(FIRST if peeled else AHEAD)
    if const_expr(not peeled):
        step_of.clear_heads(wg.place.k_head)
    step_of.wait(A0, count=FIRST - 2 if peeled else YOUNGER)
    ops.barrier()
    b0 = step_of.read(fx.Int32(0), B0)
    if wave[0] == 1:
        ops.barrier()

    def advance(acc: Any, b0: Any, k_step: Any, remaining: Any = None) -> Any:
        return run_step(step_of, acc, b0, k_step, remaining)

    def begin(acc: Any, b0: Any) -> Any:
        return run_step(step_of, acc, b0, fx.Int32(0), first=True)

    def catch_up() -> None:
        step_of.catch_up()

    done = fx.Int32(0)
    # The outer conditions are known while the kernel is traced, the inner ones when it runs.
    if const_expr(peeled):  # noqa: SIM102
        if full > 0:
            acc, b0 = begin(acc, b0)
            done = fx.Int32(1)
    if const_expr(peeled and spec.k_tail):  # noqa: SIM102
        if full == 0:
            catch_up()
    for k_step in range(done, full, 1):
        acc, b0 = advance(acc, b0, k_step)
    if const_expr(spec.k_tail):
        acc, b0 = advance(acc, b0, full, k - full * tile_k)
    if wave[0] == 0:
        ops.barrier()
    return acc
