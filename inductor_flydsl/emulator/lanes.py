"""Instructions that cross lanes, copy between register files, or multiply matrices.

Owns v_readlane/readfirstlane/writelane, permlane swaps, AGPR moves and the MFMA plug. Knows
nothing of what a matrix opcode computes. Semantics: AMD "CDNA4 ISA" guide, VOP1/VOP3 and MFMA.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .asm import Instruction
from .operands import Decoder, store_masked
from .state import LANES, Cohort

Run = Callable[[Cohort], Any]


def compile_lanes(d: Decoder, inst: Instruction) -> Run | None:
    """Closure of a cross-lane or register-move instruction, None if `inst` is none."""
    maker = _MAKERS.get(inst.base)
    return maker(d, inst) if maker else None


def _readfirstlane(d: Decoder, inst: Instruction) -> Run:
    """Lowest active lane; lane 0 where EXEC is 0."""
    read = d.vector_read(inst.operands[1], "u32")
    write = d.scalar_write(inst.operands[0], "u32")

    def run(c: Cohort) -> None:
        value = read(c)
        if value.shape[-1] == 1 or c.exec is None:
            write(c, value[:, 0])
        else:
            first = c.exec.argmax(axis=1)
            write(c, value[np.arange(c.n), first])

    return run


def _readlane(d: Decoder, inst: Instruction) -> Run:
    read = d.vector_read(inst.operands[1], "u32")
    lane = d.scalar_read(inst.operands[2], "u32")
    write = d.scalar_write(inst.operands[0], "u32")

    def run(c: Cohort) -> None:
        value = np.broadcast_to(read(c), (c.n, LANES))
        write(c, value[np.arange(c.n), lane(c) & np.uint32(63)])

    return run


def _writelane(d: Decoder, inst: Instruction) -> Run:
    """Ignores EXEC."""
    row = d.row(inst.operands[0], 1, write=True)
    value = d.scalar_read(inst.operands[1], "u32")
    lane = d.scalar_read(inst.operands[2], "u32")

    def run(c: Cohort) -> None:
        where = np.broadcast_to(lane(c) & np.uint32(63), (c.n,))
        c.stamps[row] += 1
        c.V[row, c.waves.idx, where] = value(c)

    return run


def _permlane_swap(d: Decoder, inst: Instruction) -> Run:
    """Odd rows of the first register change places with even rows of the second.

    v_permlane16_swap: rows of 16 lanes; v_permlane32_swap: of 32. Lanes need EXEC to be written.
    """
    width = 16 if "16" in inst.base else 32
    first, second = (d.row(o, 1) for o in inst.operands[:2])
    for operand in inst.operands[:2]:
        d.row(operand, 1, write=True)

    def run(c: Cohort) -> None:
        a = np.array(c.V[first, c.sel]).reshape(c.n, -1, 2, width)
        b = np.array(c.V[second, c.sel]).reshape(c.n, -1, 2, width)
        odd = a[:, :, 1].copy()
        a[:, :, 1] = b[:, :, 0]
        b[:, :, 0] = odd
        store_masked(c, c.V, first, a.reshape(c.n, LANES))
        store_masked(c, c.V, second, b.reshape(c.n, LANES))

    return run


def _swap(d: Decoder, inst: Instruction) -> Run:
    first, second = (d.row(o, 1) for o in inst.operands[:2])
    for operand in inst.operands[:2]:
        d.row(operand, 1, write=True)

    def run(c: Cohort) -> None:
        a, b = np.array(c.V[first, c.sel]), np.array(c.V[second, c.sel])
        store_masked(c, c.V, first, b)
        store_masked(c, c.V, second, a)

    return run


def _move(d: Decoder, inst: Instruction) -> Run:
    read = d.vector_read(inst.operands[1], "u32")
    write = d.vector_write(inst.operands[0], "u32")
    return lambda c: write(c, read(c))


_MAKERS: dict[str, Callable[[Decoder, Instruction], Run]] = {
    "v_readfirstlane_b32": _readfirstlane,
    "v_readlane_b32": _readlane,
    "v_writelane_b32": _writelane,
    "v_permlane16_swap_b32": _permlane_swap,
    "v_permlane32_swap_b32": _permlane_swap,
    "v_swap_b32": _swap,
    "v_accvgpr_read_b32": _move,
    "v_accvgpr_write_b32": _move,
    "v_accvgpr_mov_b32": _move,
    "v_nop": lambda d, inst: lambda c: None,
}
