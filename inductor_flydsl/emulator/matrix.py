"""Matrix instructions: operands of v_mfma_* and v_smfmac_* → one closure.

Owns how registers reach the matrix opcodes, and a fast form for dense bf16/f16 products. Knows
nothing of formats beyond those two. MFMA ignores EXEC (AMD "CDNA4 ISA" guide, "Matrix Arithmetic
Instructions").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .asm import Instruction, Operand
from .mfma import mfma
from .mfma_ops import MFMA, MfmaOp
from .operands import Decoder, Read, constant_bits
from .state import LANES, Cohort
from .vector import bit_list, mod_int

Run = Callable[[Cohort], Any]
_CACHED_FRAGMENTS = 64
_HIGH = np.uint32(0xFFFF0000)


def compile_matrix(d: Decoder, inst: Instruction) -> Run | None:
    """Closure of a matrix instruction, None if `inst` is none."""
    op = MFMA.get(inst.base)
    if op is None:
        return None
    plain = not any(name in inst.mods for name in ("cbsz", "abid", "blgp"))
    if op.a == op.b in ("bf16", "f16") and op.blocks == 1 and not op.sparse and plain:
        return _dense_half(d, inst, op)
    return _general(d, inst, op)


def _accumulator(d: Decoder, operand: Operand, regs: int) -> Read:
    """uint32 [regs, n, 64], or one broadcast element for a constant."""
    fixed = d.constant(operand, "f32")
    if fixed is not None:
        words = fixed.view(np.uint32)
        return lambda c: np.broadcast_to(words, (regs, c.n, LANES))
    row = d.row(operand, regs)
    return lambda c: c.V[row : row + regs, c.sel]


def _dense_half(d: Decoder, inst: Instruction, op: MfmaOp) -> Run:
    """D = A·B + C with f32 accumulation.

    A lane holds row (or column) lane % m and a run of k; the product doesn't depend on the order
    of k, so both fragments are laid out [n, k in register order, m].
    """
    target, a, b, c_in = inst.operands
    out = d.row(target, op.cd_regs, write=True)
    load_a = _fragment(d, a, op.a_regs, op.m, op.a)
    load_b = _fragment(d, b, op.b_regs, op.n, op.b)
    acc = _accumulator(d, c_in, op.cd_regs)
    blocks, groups = op.cd_regs // 4, LANES // op.n

    def run(c: Cohort) -> None:
        product = np.matmul(load_a(c).transpose(0, 2, 1), load_b(c))
        # Row 8·block + 4·group + r (32x32), or 4·group + r (16x16), is in register 4·block + r.
        tiles = product.reshape(c.n, blocks, groups, 4, op.n).transpose(1, 3, 0, 2, 4)
        old = acc(c).view(np.float32).reshape(blocks, 4, c.n, groups, op.n)
        c.VF[out : out + op.cd_regs, c.sel] = (tiles + old).reshape(op.cd_regs, c.n, LANES)
        for r in range(out, out + op.cd_regs):
            c.stamps[r] += 1

    return run


def _fragment(d: Decoder, operand: Operand, regs: int, m: int, kind: str) -> Read:
    row = d.row(operand, regs)
    depth = 2 * regs * (LANES // m)

    def bf16(c: Cohort) -> np.ndarray:
        words = c.V[row : row + regs, c.sel].transpose(1, 0, 2)
        both = np.empty((c.n, 2, regs, LANES), np.uint32)
        np.left_shift(words, np.uint32(16), out=both[:, 0])
        np.bitwise_and(words, _HIGH, out=both[:, 1])
        return both.view(np.float32).reshape(c.n, depth, m)

    def f16(c: Cohort) -> np.ndarray:
        words = c.V[row : row + regs, c.sel].transpose(1, 0, 2)
        both = np.empty((c.n, 2, regs, LANES), np.float32)
        halves = np.ascontiguousarray(words).view(np.float16)
        both[:, 0], both[:, 1] = halves[..., 0::2], halves[..., 1::2]
        return both.reshape(c.n, depth, m)

    make = bf16 if kind == "bf16" else f16

    def cached(c: Cohort) -> np.ndarray:
        """A fragment meets several others: it is converted once while its registers stay."""
        fragments = c.m.fragments
        key = (row, regs, m, kind, c.waves.key)
        now = c.stamps[row : row + regs]
        known = fragments.get(key)
        if known is not None and known[0] == now:
            return known[1]
        if len(fragments) >= _CACHED_FRAGMENTS:
            fragments.clear()
        fragment = make(c)
        fragments[key] = (now, fragment)
        return fragment

    return cached


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
    given: dict[str, int] = {
        name: mod_int(inst.mods, name) for name in ("cbsz", "abid", "blgp") if name in inst.mods
    }
    if scales:  # the scale's byte: op_sel gives its low bit, op_sel_hi its high bit
        low, high = bit_list(inst.mods, "op_sel", 2), bit_list(inst.mods, "op_sel_hi", 2, 1)
        given |= {f"opsel_{name}": low[i] + 2 * high[i] for i, name in enumerate("ab")}

    def run(c: Cohort) -> None:
        extra: dict[str, Any] = dict(given)
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
