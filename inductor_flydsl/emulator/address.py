"""Addresses of vector memory instructions: operands → int64 [n, 64] byte addresses.

Owns buffer descriptors, saddr/vaddr/offset arithmetic and buffer bounds. Knows nothing of what is
done at an address.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .asm import Instruction, Operand
from .errors import MemoryFault
from .operands import Decoder
from .state import LANES, Cohort

AddressRead = Callable[[Cohort], tuple[np.ndarray, np.ndarray | None]]
"""Cohort → (address, valid): `valid` is None, or bytes from each address that the buffer holds."""


def address_reader(d: Decoder, inst: Instruction, space: str, operands: tuple[Operand, ...],
                   size: int) -> AddressRead:  # fmt: skip
    """Reader for the address operands of a `size`-byte access; raises on forms not emulated."""
    offset = int(str(inst.mods.get("offset", 0)))
    if space == "buffer":
        return _buffer(d, inst, operands, size)
    if space == "scratch":
        return _scratch(d, operands, offset, size)
    if len(operands) > 1 and operands[1].kind == "s":
        return _scalar_base(d, operands, offset)
    vaddr = operands[0]
    row = d.row(vaddr, 2)

    def vector(c: Cohort) -> tuple[np.ndarray, None]:
        words = np.empty((c.n, LANES, 2), np.uint32)
        words[:, :, 0] = c.V[row, c.sel]
        words[:, :, 1] = c.V[row + 1, c.sel]
        addr = words.view(np.int64)[:, :, 0]
        return (addr + offset if offset else np.ascontiguousarray(addr)), None

    return vector


def _scalar_base(d: Decoder, operands: tuple[Operand, ...], offset: int) -> AddressRead:
    base = d.scalar_read(operands[1], "i64")
    row = d.row(operands[0], 1)

    def scalar(c: Cohort) -> tuple[np.ndarray, None]:
        return c.V[row, c.sel].astype(np.int64) + (base(c)[:, None] + offset), None

    return scalar


def _scratch(d: Decoder, operands: tuple[Operand, ...], offset: int, size: int) -> AddressRead:
    """Each lane owns `scratch_size` bytes: vaddr + saddr + offset within them."""
    inst = d.inst
    row = d.row(operands[0], 1) if operands[0].kind in ("v", "a") else None
    scalar = operands[1] if len(operands) > 1 else None
    base = d.scalar_read(scalar, "u32") if scalar is not None and scalar.kind == "s" else None

    def private(c: Cohort) -> tuple[np.ndarray, None]:
        addr = np.full((c.n, LANES), offset, np.int64)
        if row is not None:
            addr += c.V[row, c.sel]
        if base is not None:
            addr += base(c)[:, None]
        m = c.m
        inside = addr + size <= m.scratch_size
        if not (inside.all() if c.exec is None else inside[c.exec].all()):
            raise MemoryFault(
                f"{inst.mnemonic} leaves its lane's {m.scratch_size} bytes of scratch",
                m.kernel.name, inst.line, inst.text,
            )  # fmt: skip
        lanes = c.waves.idx[:, None] * LANES + np.arange(LANES)
        return m.scratch_base + lanes * m.scratch_size + addr, None

    return private


def _buffer(d: Decoder, inst: Instruction, operands: tuple[Operand, ...], size: int) -> AddressRead:
    """Descriptor words: base[31:0]; base[47:32], stride[61:48]; num_records; flags.

    Without idxen the range check is on the byte offset, and per dword ("Buffer Resource
    Descriptor", "Range Checking"); with it, on the index.
    """
    offset = int(str(inst.mods.get("offset", 0)))
    indexed = "idxen" in inst.mods
    has_offset = "offen" in inst.mods
    vaddr, resource, soffset = operands[:3]
    rows = d.row(vaddr, int(indexed) + int(has_offset)) if indexed or has_offset else 0
    srd = d.sreg(resource, 4)
    scalar_offset = d.scalar_read(soffset, "u32")

    def buffer(c: Cohort) -> tuple[np.ndarray, np.ndarray | None]:
        s = c.S[srd : srd + 4, c.sel]
        high = s[1].astype(np.int64)
        base = s[0].astype(np.int64) | (high & 0xFFFF) << 32
        records = s[2].astype(np.int64)
        shift = scalar_offset(c).astype(np.int64)
        where = np.full((c.n, LANES), offset, np.int64)
        if has_offset:
            where += c.V[rows + int(indexed), c.sel]
        if indexed:
            index = c.V[rows, c.sel].astype(np.int64)
            stride = (high >> 16 & 0x3FFF)[:, None]
            inside = index < records[:, None]
            valid = None if inside.all() else np.where(inside, size, 0)
            return base[:, None] + shift[:, None] + index * stride + where, valid
        room = records - shift
        short = int(where.max()) + size > int(room.min())
        valid = np.clip(room[:, None] - where, 0, size) if short else None
        return where + (base + shift)[:, None], valid

    return buffer
