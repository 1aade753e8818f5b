"""Matrix instructions: operands of v_mfma_* and v_smfmac_* → one closure.

Owns how registers reach the matrix opcodes, and the unpacked operands that are kept while their
registers hold the same. Knows nothing of formats. MFMA ignores EXEC (AMD "CDNA4 ISA" guide,
"Matrix Arithmetic Instructions").
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from .asm import Instruction, Operand
from .mfma import Keep, mfma
from .mfma_ops import MFMA, MfmaOp
from .operands import Decoder, Read, constant_bits
from .state import LANES, Cohort
from .vector import bit_list, mod_int

Run = Callable[[Cohort], Any]
_CACHED_FRAGMENTS = 64


def compile_matrix(d: Decoder, inst: Instruction) -> Run | None:
    """Closure of a matrix instruction, None if `inst` is none."""
    op = MFMA.get(inst.base)
    if op is None:
        return None
    return _general(d, inst, op)


def _accumulator(d: Decoder, operand: Operand, regs: int) -> Read:
    """uint32 [regs, n, 64], or one broadcast element for a constant."""
    fixed = d.constant(operand, "f32")
    if fixed is not None:
        words = fixed.view(np.uint32)
        return lambda c: np.broadcast_to(words, (regs, c.n, LANES))
    row = d.row(operand, regs)
    return lambda c: c.V[row : row + regs, c.sel]


def _keeper(rows: dict[str, list[range]]) -> Callable[[Cohort], Keep]:
    """A fragment meets several others: it is unpacked once while its registers stay.

    rows: of each operand, the registers of its elements and of its scales.
    """

    def of(c: Cohort) -> Keep:
        fragments, stamps = c.m.fragments, c.stamps

        def keep(which: str, kind: Hashable, build: Callable[[], np.ndarray]) -> np.ndarray:
            own = rows[which]
            key = (kind, *own, c.waves.key)
            now = [stamps[r] for span in own for r in span]
            known = fragments.get(key)
            if known is not None and known[0] == now:
                return known[1]
            if len(fragments) >= _CACHED_FRAGMENTS:
                fragments.clear()
            fragment = build()
            fragments[key] = (now, fragment)
            return fragment

        return keep

    return of


def _scale(d: Decoder, operand: Operand) -> Read:
    """E8M0 codes; a float constant stands for its exponent field."""
    if operand.kind == "float":
        code = np.full((1, 1), constant_bits(operand, "f32") >> 23 & 0xFF, np.uint32)
        return lambda c: code
    return d.vector_read(operand, "u32")


def _general(d: Decoder, inst: Instruction, op: MfmaOp) -> Run:
    target, a, b, c_in = inst.operands[:4]
    out = d.row(target, op.cd_regs, write=True)
    row_a, row_b = (d.row(operand, operand.count) for operand in (a, b))
    regs_a, regs_b = a.count, b.count
    if op.sparse:  # the accumulator is the destination; the fourth operand is the index
        acc: Read = _accumulator(d, target, op.cd_regs)
        index: Read | None = d.vector_read(c_in, "u32")
    else:
        acc, index = _accumulator(d, c_in, op.cd_regs), None
    scales = [_scale(d, operand) for operand in inst.operands[4:6]]
    rows = {"a": [range(row_a, row_a + a.count)], "b": [range(row_b, row_b + b.count)]}
    cached = not op.sparse
    for which, operand in zip("ab", inst.operands[4:6], strict=False):
        if operand.kind in ("v", "a"):
            row = d.row(operand, 1)
            rows[which].append(range(row, row + 1))
        elif operand.kind == "s":  # scalar registers have no stamps
            cached = False
    keeper = _keeper(rows)
    given: dict[str, int] = {
        name: mod_int(inst.mods, name) for name in ("cbsz", "abid", "blgp") if name in inst.mods
    }
    if scales:  # the scale's byte: op_sel gives its low bit, op_sel_hi its high bit
        low, high = bit_list(inst.mods, "op_sel", 2), bit_list(inst.mods, "op_sel_hi", 2, 1)
        given |= {f"opsel_{name}": low[i] + 2 * high[i] for i, name in enumerate("ab")}

    def run(c: Cohort) -> None:
        extra: dict[str, Any] = dict(given)
        if cached:
            extra["keep"] = keeper(c)
        if index is not None:
            extra["index"] = index(c)
        if scales:
            shape = (c.n, LANES)
            extra["scale_a"], extra["scale_b"] = (np.broadcast_to(s(c), shape) for s in scales)
        a_regs, b_regs = c.V[row_a : row_a + regs_a, c.sel], c.V[row_b : row_b + regs_b, c.sel]
        result = mfma(op, a_regs, b_regs, acc(c), **extra)
        c.V[out : out + op.cd_regs, c.sel] = result.view(np.uint32)
        for r in range(out, out + op.cd_regs):
            c.stamps[r] += 1

    return run
