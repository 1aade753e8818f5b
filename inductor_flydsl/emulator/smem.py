"""Scalar memory instructions: s_load_*, s_buffer_load_*, s_store_*, and clocks.

Owns their operands and bounds. A load reads memory and writes SGPRs when it lands; only
lgkmcnt(0) covers it. Semantics: AMD "CDNA4 ISA" guide, "Scalar Memory Operations".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from .access import Site, gather
from .asm import Instruction, Operand
from .operands import SGPR_KEY, Decoder, Read
from .queues import SMEM, Entry
from .state import Cohort, Machine, Selector

Run = Callable[[Cohort], Any]
_WORDS = {"": 1, "x2": 2, "x4": 4, "x8": 8, "x16": 16}
_IGNORED = ("s_dcache_inv", "s_dcache_wb", "s_dcache_inv_vol", "s_dcache_wb_vol", "s_icache_inv")


def compile_smem(d: Decoder, inst: Instruction) -> Run | None:
    """Closure of a scalar memory instruction, None if `inst` is none."""
    if inst.base in _IGNORED:
        return lambda c: None
    if inst.base in ("s_memtime", "s_memrealtime"):
        return _clock(d, inst)
    match = re.fullmatch(r"s_(buffer_)?load_dword(|x2|x4|x8|x16)", inst.base)
    if not match:
        return None
    return _load(d, inst, bool(match[1]), _WORDS[match[2]])


def _clock(d: Decoder, inst: Instruction) -> Run:
    write = d.scalar_write(inst.operands[0], "u64")

    def run(c: Cohort) -> None:
        write(c, np.full(c.n, c.m.ticks, np.uint64))

    return run


def _offset(d: Decoder, inst: Instruction, operand: Operand) -> Read:
    extra = int(str(inst.mods.get("offset", 0)))
    if operand.kind == "int":
        fixed = np.array([int(operand.value) + extra], np.int64)
        return lambda c: fixed
    read = d.scalar_read(operand, "u32")
    return lambda c: read(c).astype(np.int64) + extra


def _load(d: Decoder, inst: Instruction, buffer: bool, words: int) -> Run:
    target, base, offset_operand = inst.operands[:3]
    row = d.sreg(target, words, write=True)
    source = d.sreg(base, 4 if buffer else 2)
    offset = _offset(d, inst, offset_operand)
    step = 4 * np.arange(words, dtype=np.int64)

    def land(m: Machine, sel: Selector, addr: np.ndarray, valid: Any) -> None:
        m.S[row : row + words, sel] = gather(Site(m, inst, sel), addr, 4, valid)[0].T

    def run(c: Cohort) -> None:
        s = c.S[source : source + 2, c.sel].astype(np.int64)
        where = offset(c) & ~np.int64(3)
        if buffer:
            start = (s[0] | (s[1] & 0xFFFF) << 32) + where
            records = c.S[source + 2, c.sel].astype(np.int64)
            valid = where.reshape(-1, 1) + step < records[:, None]
        else:
            start = ((s[0] | s[1] << 32) + where) & ~np.int64(3)
            valid = None
        entry = Entry(SMEM, c.waves, land, (start[:, None] + step, valid), inst, regs=regs)
        c.m.queues.issue(entry)

    regs = tuple(range(row + SGPR_KEY, row + SGPR_KEY + words))
    return run
