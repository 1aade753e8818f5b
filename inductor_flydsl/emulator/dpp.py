"""Lane permutation (DPP) and sub-dword selection (SDWA) of vector operands.

Owns the two modifier families of GFX9-class vector instructions. Knows nothing of opcodes.
Semantics: AMD "CDNA4 ISA" guide, "Data Parallel Primitives (DPP)" and "Sub-Dword Addressing".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from .asm import Instruction, Operand
from .op import DTYPES
from .operands import Decoder, Read, Write, store_masked
from .state import LANES, Cohort

_PATTERNS = (
    "quad_perm", "row_shl", "row_shr", "row_ror", "wave_shl", "wave_shr", "wave_rol", "wave_ror",
    "row_mirror", "row_half_mirror", "row_bcast", "row_newbcast", "row_share",
)  # fmt: skip


@dataclass(frozen=True)
class DppPattern:
    """source: lane read by each lane, −1 where invalid. enabled: lanes row and bank masks allow.

    bound_ctrl: an invalid source reads 0 (asm `bound_ctrl:0` or `:1`); else the lane isn't written.
    """

    source: np.ndarray
    enabled: np.ndarray
    bound_ctrl: bool

    def valid(self, c: Cohort) -> np.ndarray:
        """bool [n, 64] (or [1, 64]): the source lane exists and EXEC has it on."""
        exists = (self.source >= 0).reshape(1, LANES)
        if c.exec is None:
            return exists
        return exists & c.exec[:, np.maximum(self.source, 0)]


@lru_cache(maxsize=256)
def _source_lanes(name: str, value: Any) -> np.ndarray:
    lane = np.arange(LANES)
    row, inside = lane & ~15, lane & 15
    n = value if isinstance(value, int) else 0
    if name == "quad_perm":
        return (lane & ~3) + np.array(value)[lane & 3]
    if name in ("row_shl", "row_shr"):
        moved = inside + (n if name == "row_shl" else -n)
        return np.where((moved >= 0) & (moved < 16), row + moved, -1)
    if name == "row_ror":
        return row + ((inside - n) & 15)
    if name in ("wave_shl", "wave_shr"):
        moved = lane + (1 if name == "wave_shl" else -1)
        return np.where((moved >= 0) & (moved < LANES), moved, -1)
    if name in ("wave_rol", "wave_ror"):
        return (lane + (1 if name == "wave_rol" else -1)) % LANES
    if name == "row_mirror":
        return row + 15 - inside
    if name == "row_half_mirror":
        return (lane & ~7) + 7 - (lane & 7)
    if name == "row_bcast":  # 15: lane 15 of a row to the next row; 31: lane 31 to rows 2 and 3
        return np.where(lane > n, (lane & ~15) - 1 if n == 15 else 31, -1)
    return row + n  # row_newbcast, row_share: lane n of each row


def dpp_pattern(inst: Instruction) -> DppPattern | None:
    """The permutation of an instruction with DPP modifiers, else None."""
    name = next((p for p in _PATTERNS if p in inst.mods), None)
    if name is None:
        return None
    row_mask, bank_mask = (int(str(inst.mods.get(k, 15))) for k in ("row_mask", "bank_mask"))
    lane = np.arange(LANES)
    enabled = (row_mask >> (lane // 16) & 1) & (bank_mask >> (lane % 16 // 4) & 1)
    return DppPattern(
        _source_lanes(name, inst.mods[name]), enabled.astype(bool), "bound_ctrl" in inst.mods
    )


def dpp_read(d: Decoder, inst: Instruction, read: Read) -> Read:
    """`read` with its lanes permuted; invalid lanes give 0."""
    pattern = dpp_pattern(inst)
    if pattern is None:
        raise d.fail("DPP control")
    lanes = np.maximum(pattern.source, 0)

    def permuted(c: Cohort) -> np.ndarray:
        value = np.broadcast_to(read(c), (c.n, LANES))[:, lanes]
        valid = np.broadcast_to(pattern.valid(c), value.shape)
        if not valid.all():
            value[~valid] = 0
        return value

    return permuted


_SELECTS = {"BYTE_0": (0, 8), "BYTE_1": (8, 8), "BYTE_2": (16, 8), "BYTE_3": (24, 8),
            "WORD_0": (0, 16), "WORD_1": (16, 16), "DWORD": (0, 32)}  # fmt: skip


def sdwa_read(d: Decoder, operand: Operand, kind: str, select: str) -> Read:
    """Selects a byte or word of a 32-bit source, sign-extended where sext(...) is written."""
    if select not in _SELECTS:
        raise d.fail(f"SDWA select {select}")
    shift, bits = _SELECTS[select]
    plain = Operand(operand.kind, operand.text, operand.index, operand.count, operand.value)
    word = d.vector_read(plain, "u32")
    dtype, size = DTYPES[kind], DTYPES[kind].itemsize

    def read(c: Cohort) -> np.ndarray:
        value = word(c) >> np.uint32(shift)
        if bits < 32:
            value = value & np.uint32((1 << bits) - 1)
            if operand.sext:
                top = np.uint32(1 << (bits - 1))
                value = (value ^ top) - top
        value = value.astype(np.uint16).view(dtype) if size == 2 else value.view(dtype)
        if operand.abs:
            value = np.abs(value)
        return np.negative(value) if operand.neg else value

    return read


def sdwa_write(d: Decoder, inst: Instruction, operand: Operand, kind: str) -> Write:
    """Puts a result into a byte or word; dst_unused says what becomes of the rest."""
    select = str(inst.mods.get("dst_sel", "DWORD"))
    unused = str(inst.mods.get("dst_unused", "UNUSED_PAD"))
    shift, bits = _SELECTS[select]
    row = d.row(operand, 1, write=True)
    if unused == "UNUSED_PRESERVE":
        d.row(operand, 1)
    mask = np.uint32(((1 << bits) - 1) << shift)
    size = DTYPES[kind].itemsize

    def write(c: Cohort, value: Any) -> None:
        raw = np.ascontiguousarray(value)
        word = raw.view(np.uint16).astype(np.uint32) if size == 2 else raw.view(np.uint32)
        field = word << np.uint32(shift) & mask
        if unused == "UNUSED_PRESERVE":
            field = field | (c.V[row, c.sel] & ~mask)
        elif unused == "UNUSED_SEXT" and bits < 32:
            top = np.uint32(1 << (bits - 1))
            field = ((field >> np.uint32(shift)) ^ top) - top << np.uint32(shift)
        store_masked(c, c.V, row, field)

    return write
