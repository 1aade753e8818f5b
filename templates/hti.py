"""The half-tile interleaved pipeline: two wave groups take turns at memory and at MFMAs.

The tile is cut in half along M and along N. A K step has four phases, one a quarter of C; a phase
is a memory cluster (LDS reads, and the DMA of one half tile) and an MFMA cluster, a barrier after
each. The second wave group runs one cluster behind the first, so on every SIMD one wave feeds
the matrix pipe while the other moves data.

Waits. Number the clusters of a wave M0 X0 M1 X1 …; group 1 runs each one barrier later. What a
wave waits for at the end of M(q) is therefore visible to every wave from M(q+1) on, and what is
read in M(r), with the reads waited for before its barrier, may be overwritten from M(r+1) on.
Half tiles are loaded in the order B0 A0 B1 A1 and read in phases 0, 0, 1, 2; each is loaded one
phase after its slot was last read. Counting what is issued later gives the same number of younger
half tiles at every wait: YOUNGER.
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

STAGES = 2
# Half tiles that may be in flight at a wait.
YOUNGER = 5
# Phase → (half of A, half of B) that it multiplies. Fragments are kept over the K step.
QUARTERS = ((0, 0), (0, 1), (1, 0), (1, 1))


def body(wg: Workgroup) -> None:
    """Emit the kernel. Called while FlyDSL traces `templates.gemm`."""
    config = wg.spec.config
    half_m, half_n = config.tile_m // 2, config.tile_n // 2
    a0 = wg.operand_a(half_m, 0, wg.lds)
    a1 = wg.operand_a(half_m, half_m, wg.lds + STAGES * a0.g.bytes)
    b_lds = wg.lds + 2 * STAGES * a0.g.bytes
    b0 = wg.operand_b(half_n, 0, b_lds)
    b1 = wg.operand_b(half_n, half_n, b_lds + STAGES * b0.g.bytes)
    acc = multiply_halves(wg.spec, (a0, a1), (b0, b1), wg.wave, wg.k)
    across_m, across_n = a0.g.fragments, b0.g.fragments
    blocks = []
    for (i, j), quarter in zip(QUARTERS, range(4), strict=True):
        row = wg.wave[0] * (across_m * 16) + i * half_m
        column = wg.wave[1] * (across_n * 16) + j * half_n
        for m in range(across_m):
            for n in range(across_n):
                value = acc[(quarter * across_m + m) * across_n + n]
                blocks.append(Block(value, row + m * 16, column + n * 16))
    finish(wg, blocks)


class Step:
    """One K step: what each phase reads, loads and multiplies."""

    def __init__(self, a: tuple[Operand, Operand], b: tuple[Operand, Operand], wave: Any) -> None:
        self.a, self.b = a, b
        self.a_bases = [half.fragment_bases(wave[0]) for half in a]
        self.b_bases = [half.fragment_bases(wave[1]) for half in b]

    @property
    def younger(self) -> int:
        """DMAs of YOUNGER half tiles, alternately of A and of B, whichever comes first."""
        steps = (self.a[0].dma_steps, self.b[0].dma_steps)
        return YOUNGER // 2 * sum(steps) + min(steps)

    def load(self, k_step: Any, half: int) -> None:
        """Start the DMA of one half tile; 0 to 3 are B0 A0 B1 A1."""
        operand = (self.b[0], self.a[0], self.b[1], self.a[1])[half]
        operand.load(k_step, k_step % STAGES)

    def read_a(self, k_step: Any, half: int) -> list[Any]:
        a = self.a[half]
        return self._read(a, self.a_bases[half], k_step)

    def read_b(self, k_step: Any, half: int) -> list[Any]:
        b = self.b[half]
        return self._read(b, self.b_bases[half], k_step)

    @staticmethod
    def _read(operand: Operand, bases: list[Any], k_step: Any) -> list[Any]:
        """Fragments of a half tile, MFMA step major."""
        g = operand.g
        return [
            operand.fragment(bases, k_step % STAGES, kk, i)
            for kk in range(g.tile_k // 32)
            for i in range(g.fragments)
        ]

    def mask(self, fragments: list[Any], remaining: Any) -> list[Any]:
        """The fragments with K elements past ``remaining`` set to zero."""
        steps = self.a[0].g.tile_k // 32
        each = len(fragments) // steps
        masks = [tail_masks(remaining - kk * 32, self.a[0].lane) for kk in range(steps)]
        return [masked(f, masks[i // each]) for i, f in enumerate(fragments)]

    def multiply(self, acc: list[Any], a: list[Any], b: list[Any]) -> list[Any]:
        """acc + A·B of one quarter, at high priority."""
        across_m, across_n = self.a[0].g.fragments, self.b[0].g.fragments
        acc = list(acc)
        ops.set_priority(1)
        for kk in range(self.a[0].g.tile_k // 32):
            for m in range(across_m):
                for n in range(across_n):
                    i = m * across_n + n
                    left, right = b[kk * across_n + n], a[kk * across_m + m]
                    acc[i] = ops.mfma(left, right, acc[i])
        ops.set_priority(0)
        return acc


def run_step(step: Step, acc: list[Any], k_step: Any, remaining: Any = None) -> list[Any]:
    """The eight clusters of a K step, each ended by a barrier."""
    quarter = len(acc) // 4
    a: list[Any] = [None, None]
    b: list[Any] = [None, None]
    done: list[Any] = []
    for phase, (i, j) in enumerate(QUARTERS):
        if b[j] is None:
            b[j] = step.read_b(k_step, j)
        if a[i] is None:
            a[i] = step.read_a(k_step, i)
        # One phase after its slot was last read: A1 of the next step, then B0 A0 B1 of the one
        # after it.
        step.load(k_step + (1 if phase == 0 else 2), (phase + 3) % 4)
        # Nothing new is read in phase 3, so nothing need have landed at the end of M(2).
        ops.wait(vmcnt=None if phase == 2 else step.younger, lgkmcnt=0)
        ops.barrier()
        if remaining is not None:
            b[j] = step.mask(b[j], remaining) if phase in (0, 1) else b[j]
            a[i] = step.mask(a[i], remaining) if phase in (0, 2) else a[i]
        done += step.multiply(acc[phase * quarter : (phase + 1) * quarter], a[i], b[j])
        ops.barrier()
    return done


@flyc.jit
def multiply_halves(spec: Any, a: Any, b: Any, wave: Any, k: Any) -> list[Any]:
    """Run the phases over K.

    Returns:
        The accumulators: quarter, then fragment of M, then of N; 4 fp32 a lane each.
    """
    step_of = Step(a, b, wave)
    tile_k = spec.config.tile_k
    acc = [ops.zeros() for _ in range(4 * a[0].g.fragments * b[0].g.fragments)]
    for half in range_constexpr(4):
        step_of.load(fx.Int32(0), half)
    for half in range_constexpr(3):
        step_of.load(fx.Int32(1), half)
    ops.wait(vmcnt=step_of.younger, lgkmcnt=0)
    ops.barrier()
    if wave[0] == 1:
        ops.barrier()
    full = k // tile_k

    def advance(acc: Any, k_step: Any, remaining: Any = None) -> Any:
        return run_step(step_of, acc, k_step, remaining)

    for k_step in range(0, full, 1):
        acc = advance(acc, k_step)
    if const_expr(spec.k_tail):
        acc = advance(acc, full, k - full * tile_k)
    if wave[0] == 0:
        ops.barrier()
    return acc
