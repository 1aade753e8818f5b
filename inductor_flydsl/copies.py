"""Operands of narrow types that do not run along K: what a copy of them costs, and what it gives.

Their kernels load such an operand byte by byte where its lines are not aligned, and one that runs
along K by DMA, so a copy first may be the shorter way. Owns the problem after the copy and the
copy's predicted time. Needs no torch; decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .arch import Arch
from .constants import CONSTANTS
from .dtypes import DType
from .problem import GemmProblem, Layout, alignment


@dataclass(frozen=True, kw_only=True)
class Copied:
    """A product after copies of its operands.

    Attributes:
        problem: the same product on the copies.
        operands: which are copied: ``A``, ``B`` or both.
        us: predicted time of the copies, clock ``model``: launches, and each byte read and written
            once at the rate of HBM.
    """

    problem: GemmProblem
    operands: str
    us: float


def along_k(problem: GemmProblem, arch: Arch) -> Copied | None:
    """The product on copies that run along K; None where all operands do so, or would not have to.

    Operands of 16 bits are loaded by DMA in either order. FP4 cannot be copied: Inductor generates
    no code that reads it, and PyTorch has no copy of it.
    """
    p = problem
    a_lies = p.layout.a_k_contiguous and p.a_inner == 1
    b_lies = p.layout.b_k_contiguous and p.b_inner == 1
    if not p.dtype.scaled or (a_lies and b_lies) or DType.FP4 in (p.dtype, p.b_type):
        return None
    copied, moved, launches = p, 0, 0
    if not a_lies:
        copied = replace(copied, lda=p.k, a_inner=1, a_align=alignment(p.k))
        moved, launches = moved + 2 * p.m * p.k, launches + 1
    if not b_lies:
        copied = replace(copied, ldb=p.k, b_inner=1, b_align=alignment(p.k))
        moved, launches = moved + 2 * p.n * p.k, launches + 1
    us = launches * CONSTANTS.launch_us + moved / arch.hbm_tb_s * 1e-6
    names = " and ".join("A" * (not a_lies) + "B" * (not b_lies))
    return Copied(problem=replace(copied, layout=Layout.NT), operands=names, us=us)
