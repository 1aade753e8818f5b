"""The staged pipeline: a ring of K steps in LDS, filled by DMA while MFMAs read an older one.

One wait and one barrier a K step. The wait leaves the DMAs of the younger stages in flight; the
barrier makes every wave's share of the stages that are older visible, and says that every wave is
done with the stage that the next DMAs overwrite.

With two or three stages, a step begins with its first LDS reads. With more, and tiles large enough
for the matrix unit to count, the ring keeps one stage landed beyond the one that is multiplied, so
that the last MFMAs of a step run beside the first reads of the next, and a wave has fragments in
registers wherever it meets a barrier (with three, that stage is worth more in flight; with small
tiles too, and it would be a step more between the last data and the end):

- Step s waits for stage s + 1 and reads the rest of stage s, then the first fragments of s + 1.
- Stage s is read last in step s, whose MFMAs wait for what is read of it. The barrier of step
  s + 1 comes after them, and the DMAs into its slot after that barrier.

Block scales are read with the first slices of the step that they belong to.
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
from .scales import BlockScales
from .workgroup import Workgroup

# Elements of a tile of C up to which memory sets the time of a K step, whatever is multiplied.
SMALL_TILE = 64 * 64


def body(wg: Workgroup) -> None:
    """Emit the kernel. Called while FlyDSL traces `templates.gemm`."""
    a, b = begin(wg)
    end(wg, a, b, multiply_ring(wg, a, b, wg.block_scales()))


def begin(wg: Workgroup) -> tuple[Operand, Operand]:
    """A and B, the data of their first K step on its way."""
    config = wg.spec.config
    # Before anything else is computed: the first data takes longest.
    a = wg.operand_a(config.tile_m, wg.lds)
    a.load(fx.Int32(0), fx.Int32(0))
    ops.keep_order()
    b = wg.operand_b(config.tile_n, wg.lds + config.stages * a.g.bytes)
    b.load(fx.Int32(0), fx.Int32(0))
    ops.keep_order()
    return a, b


def end(wg: Workgroup, a: Operand, b: Operand, acc: list[Any]) -> None:
    """Bring the accumulators, fragment of M major, to C."""
    rows, columns = wg.wave[0] * (a.g.fragments * 16), wg.wave[1] * (b.g.fragments * 16)
    blocks = [
        Block(acc[m * b.g.fragments + n], rows + m * 16, columns + n * 16, (m, n))
        for m in range(a.g.fragments)
        for n in range(b.g.fragments)
    ]
    finish(wg, blocks)


class Ring:
    """The K steps in LDS: filled from memory, and multiplied by the waves."""

    def __init__(self, wg: Workgroup, a: Operand, b: Operand, scales: BlockScales | None) -> None:
        spec = wg.spec
        self.stages = spec.config.stages
        self.loaded = [x for x in (a, b, scales) if x is not None]
        of_a, of_b = ((scales, i) if scales is not None else None for i in range(2))
        self.a = Reader(a, spec.dtype, wg.wave[0], of_a)
        self.b = Reader(b, spec.b_type, wg.wave[1], of_b)
        self.scales = scales
        self.head = wg.place.k_head
        # Stages that have landed beyond the one that is multiplied.
        small = spec.config.tile_m * spec.config.tile_n <= SMALL_TILE
        self.ahead = 1 if self.stages > 3 and not small else 0

    def loads(self, k_step: Any, stage: Any) -> list[Any]:
        """What starts the loads of a K step into its stage, one by one."""
        return [start for part in self.loaded for start in part.loads(k_step, stage)]

    def fill(self, k_step: Any, stage: Any) -> None:
        """Start loading a K step into its stage."""
        for start in self.loads(k_step, stage):
            start()

    def wait(self, ahead: int) -> None:
        """Wait for a stage and ``ahead`` more with `stages` - 1 of them issued; meet all waves."""
        each = [part.dma_steps for part in self.loaded]
        # What is no DMA writes LDS with DS operations, which must be done at the barrier.
        lgkmcnt = None if all(each) else 0
        ops.wait(vmcnt=(self.stages - 2 - ahead) * sum(each), lgkmcnt=lgkmcnt)
        ops.barrier()

    def start(self) -> list[Any]:
        """Fill the ring behind the data of its first stage; the first slices of `advance`."""
        if self.scales is not None:
            for i in range(self.scales.early + 1):
                self.scales.load(fx.Int32(i - self.scales.early))
        for i in range(1, self.stages - 1):
            self.fill(fx.Int32(i), fx.Int32(i))
        if self.head is not None:
            self.wait(0)
            clear_heads(self.loaded, self.head)
        if not self.ahead:
            return []
        self.wait(0)
        # Opaque: else the compiler would carry bytes through the loop, and extend them each step.
        scales = [ops.from_here(s, scalar=False) for s in self.step_scales(fx.Int32(0))]
        return self.read(fx.Int32(0), 0) + scales

    def step_scales(self, k_step: Any) -> list[Any]:
        """Scales of B, then of A, for a K step; none without."""
        return self.b.step_scales(k_step) + self.a.step_scales(k_step)

    def read(self, stage: Any, instruction: int) -> list[Any]:
        """Slices of B, then of A, for an instruction of a stage."""
        return self.b.read(stage, instruction) + self.a.read(stage, instruction)

    def after(self, stage: Any) -> Any:
        """The stage after one."""
        following = stage + 1
        return (following == self.stages).select(fx.Int32(0), following)

    def advance(
        self, state: tuple[list[Any], list[Any], Any, Any], k_step: Any, remaining: Any = None
    ) -> tuple[list[Any], list[Any], Any, Any]:
        """One K step.

        Args:
            state: the accumulators, fragment of M major, each 4 neighbours along N; slices for
                the step's first instruction and the step's scales, none where the step reads them
                itself; the stages of the step before and of this one, which a remainder would take
                longer to find.
            k_step: its index.
            remaining: K elements of the step, where it is partial and the last.

        Returns:
            The state for the next step.
        """
        acc, first, before, stage = state
        after = self.after(stage)
        self.wait(self.ahead)
        # Where memory sets the pace, all reads of a step go before its loads, at which a wave may
        # stall; elsewhere they keep an instruction ahead.
        early = [self.read(stage, i) for i in range(0 if self.ahead else self.a.instructions)]
        current = first if self.ahead else early[0] + self.step_scales(k_step)
        slices = self.b.reads + self.a.reads
        scales, current = current[slices:], current[:slices]
        b_scales, a_scales = scales[: self.b.scale_reads], scales[self.b.scale_reads :]
        for instruction in range(self.a.instructions):
            following: list[Any] = []
            if instruction + 1 < self.a.instructions:
                later = instruction + 1
                following = self.read(stage, later) if self.ahead else early[later]
            elif self.ahead:
                following = self.read(after, 0) + self.step_scales(k_step + 1)
            if instruction == 0 and remaining is None:
                self.fill(k_step + (self.stages - 1), before)
            left = self.b.pieces(current[: self.b.reads], instruction, b_scales, remaining)
            right = self.a.pieces(current[self.b.reads :], instruction, a_scales, remaining)
            acc = _multiplied(acc, left, right, instruction)
            current = following
        return acc, current, stage, after


def _multiplied(acc: list[Any], left: list[Piece], right: list[Piece], instruction: int) -> Any:
    """acc + A·B of one instruction."""
    acc = list(acc)
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
    tile_k, k = wg.spec.config.tile_k, wg.k
    ring = Ring(wg, a, b, scales)
    # A plain name: FlyDSL would carry an object whose method is called through the loop.
    advance = ring.advance
    acc = [wg.cleared() for _ in range(a.g.fragments * b.g.fragments)]
    first = ring.start()
    full = ops.quotient(k, tile_k)
    before, stage = fx.Int32(ring.stages - 1), fx.Int32(0)
    for step in range(0, full, 1):
        acc, first, before, stage = advance((acc, first, before, stage), step)
    if const_expr(wg.spec.k_tail):
        acc, _, _, _ = advance((acc, first, before, stage), full, k - full * tile_k)
    return acc
