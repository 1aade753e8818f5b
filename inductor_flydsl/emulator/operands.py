"""Operands → closures that read or write them on a cohort.

Owns how registers and constants are viewed in an opcode's operand types, and EXEC masking of
vector results. Knows nothing of what instructions compute. A `Decoder` also notes which registers
an instruction reads and writes, for the hazard checks.

Vector reads give [n, 64] (registers) or [n, 1] / [1, 1] (scalars, constants); scalar reads [n] or
[1]. Wide types (b96 and up) have a leading axis of registers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from .asm import EXEC, VCC, Instruction, Operand
from .errors import UnknownInstruction
from .op import DTYPES
from .program import Program
from .state import LANES, Cohort, pack_mask, unpack_mask

Read = Callable[[Cohort], Any]
Write = Callable[[Cohort, Any], None]

SGPR_KEY = 4096
"""Scalar register r is r + SGPR_KEY in a set of registers; vector registers are their row in V."""
SCC_KEY = SGPR_KEY + 128
"""The condition code in a set of registers."""

_SHARED_APERTURE, _PRIVATE_APERTURE = 0x1_0000_0000_0000, 0x2_0000_0000_0000
_SPECIAL_CONSTANTS = {
    "src_shared_base": _SHARED_APERTURE, "src_shared_limit": _SHARED_APERTURE | 0xFFFFFFFF,
    "src_private_base": _PRIVATE_APERTURE, "src_private_limit": _PRIVATE_APERTURE | 0xFFFFFFFF,
}  # fmt: skip
_FLOATS = {"f16": "<e", "f32": "<f", "f64": "<d"}


def width_of(kind: str) -> int:
    """Registers that a vector operand of this type takes."""
    if kind in ("mask", "imm16"):
        return 1
    bits = int(kind.lstrip("biuf"))
    return max(1, bits // 32)


def constant_bits(operand: Operand, kind: str) -> int:
    """Bits of an inline constant or literal as an operand of type `kind`.

    Float text takes the operand's format (LLVM "inline constant"); a 32-bit literal of an f64
    operand is its high half; integers are sign-extended where they are written negative.
    """
    value = operand.value
    bits = 64 if kind.endswith("64") else 32
    if operand.kind == "float":
        if kind == "bf16":
            return struct.unpack("<I", struct.pack("<f", value))[0] >> 16
        text = _FLOATS.get(kind, "<f")
        if text == "<d":
            # 1/(2π) is the only inline constant that isn't exact in f32.
            value = 0.15915494309189532 if abs(value - 0.15915494) < 1e-8 else value
        raw = struct.pack(text, value)
        return int.from_bytes(raw, "little")
    number = int(value)
    if kind == "f64" and not -16 <= number <= 64:
        return (number & 0xFFFFFFFF) << 32
    return number & ((1 << bits) - 1)


class Decoder:
    """Makes closures for one instruction's operands and collects the registers they touch."""

    def __init__(self, program: Program, inst: Instruction) -> None:
        self.program = program
        self.inst = inst
        self.reads: set[int] = set()
        self.writes: set[int] = set()
        # Bits of a register that matter to a memory operation, and bits that it writes, where
        # that isn't all of them.
        self.bits: dict[int, int] = {}
        self.sets: dict[int, int] = {}

    def fail(self, reason: str) -> UnknownInstruction:
        """The error for a form of the instruction that isn't emulated."""
        return UnknownInstruction(self.inst.mnemonic, self.inst.text, self.inst.line, reason)

    def row(self, operand: Operand, count: int | None = None, write: bool = False) -> int:
        """Row of V of a vector register operand; notes it as read or written."""
        if operand.kind not in ("v", "a"):
            raise self.fail(f"operand {operand.text} must be a vector register")
        row = operand.index + (self.program.vgprs if operand.kind == "a" else 0)
        size = operand.count if count is None else count
        (self.writes if write else self.reads).update(range(row, row + size))
        return row

    def sreg(self, operand: Operand, count: int, write: bool = False) -> int:
        """Row of S of a scalar register operand; notes it as read or written."""
        if operand.kind != "s":
            raise self.fail(f"operand {operand.text} must be a scalar register")
        touched = range(operand.index + SGPR_KEY, operand.index + SGPR_KEY + count)
        (self.writes if write else self.reads).update(touched)
        return operand.index

    def note_flag(self, name: str) -> None:
        """Notes that scc, vccz, execnz and the like are read."""
        if "scc" in name:
            self.reads.add(SCC_KEY)
        else:
            first = SGPR_KEY + (EXEC if "exec" in name else VCC)
            self.reads.update((first, first + 1))

    def constant(self, operand: Operand, kind: str) -> np.ndarray | None:
        """A constant operand as a one-element array of `kind`, None for registers."""
        if operand.kind in ("int", "float"):
            bits = constant_bits(operand, kind)
        elif operand.kind == "symbol":
            bits = self.program.evaluate(operand, self.inst.line)
        elif operand.text in _SPECIAL_CONSTANTS:
            bits = _SPECIAL_CONSTANTS[operand.text]
        else:
            return None
        dtype = DTYPES[kind]
        if kind == "imm16":
            return np.array([int(operand.value) & 0xFFFF], dtype)
        raw = (bits & ((1 << 8 * dtype.itemsize) - 1)).to_bytes(dtype.itemsize, "little")
        return np.frombuffer(raw, dtype)

    # --- scalar ---------------------------------------------------------------------------

    def scalar_read(self, operand: Operand, kind: str) -> Read:
        """Reads [n] (or [1]) of `kind` from a scalar operand."""
        fixed = self.constant(operand, kind)
        if fixed is not None:
            return lambda c: fixed
        if operand.text in ("scc", "src_scc", "vccz", "src_vccz", "execz", "src_execz"):
            self.note_flag(operand.text)
            return _special_read(operand.text)
        if operand.kind in ("v", "a"):
            raise self.fail(f"operand {operand.text} must be scalar")
        if kind.endswith("64"):
            r = self.sreg(operand, 2)
            return _pair_read(r, DTYPES[kind])
        r = self.sreg(operand, 1)
        if kind == "f32":
            return lambda c: c.SF[r, c.sel]
        if kind in ("i32", "imm16"):
            return lambda c: c.SI[r, c.sel]
        if kind in ("u32", "b32"):
            return lambda c: c.S[r, c.sel]
        dtype = DTYPES[kind]
        return lambda c: c.S[r, c.sel].astype(np.uint16).view(dtype)

    def scalar_write(self, operand: Operand, kind: str) -> Write:
        """Writes [n] of `kind` to a scalar register, EXEC included."""
        r = self.sreg(operand, 2 if kind.endswith("64") else 1, write=True)
        if kind.endswith("64"):
            write = _pair_write(r)
        elif kind == "f32":
            write = _scalar_f32_write(r)
        else:
            write = _scalar_word_write(r)
        if r in (EXEC, EXEC + 1):
            return _then_refresh(write)
        return write

    # --- vector ---------------------------------------------------------------------------

    def vector_read(self, operand: Operand, kind: str, high: bool = False) -> Read:
        """Reads [n, 64] or a broadcast of `kind`, input modifiers applied.

        high: take the upper 16 bits (op_sel) of a 16-bit operand.
        """
        read = self._plain_vector_read(operand, kind, high)
        if operand.abs:
            read = _magnitude(read, kind)
        if operand.neg:
            read = negated(read, kind)
        return read

    def _plain_vector_read(self, operand: Operand, kind: str, high: bool) -> Read:
        if kind == "mask":
            return self.mask_read(operand)
        fixed = None if width_of(kind) > 2 else self.constant(operand, kind)
        if fixed is not None:
            if high:
                fixed = np.zeros(1, DTYPES[kind])
            column = fixed.reshape(1, 1)
            return lambda c: column
        if operand.kind in ("v", "a"):
            return self._register_read(operand, kind, high)
        if width_of(kind) > 2:
            if operand.kind == "int" and operand.value == 0:
                zeros = np.zeros((width_of(kind), 1, 1), np.uint32)
                return lambda c: zeros
            raise self.fail(f"operand {operand.text} of {width_of(kind)} registers")
        if high:
            r = self.sreg(operand, 1)
            dtype = DTYPES[kind]
            return lambda c: (c.S[r, c.sel] >> 16).astype(np.uint16).view(dtype)[:, None]
        scalar = self.scalar_read(operand, kind)
        return lambda c: scalar(c)[:, None]

    def _register_read(self, operand: Operand, kind: str, high: bool) -> Read:
        width = width_of(kind)
        r = self.row(operand, width)
        if width > 2:
            return lambda c: c.V[r : r + width, c.sel]
        if width == 2:
            return _vector_pair_read(r, DTYPES[kind])
        if kind == "f32":
            return lambda c: c.VF[r, c.sel]
        if kind in ("i32", "imm16"):
            return lambda c: c.VI[r, c.sel]
        if kind in ("u32", "b32"):
            return lambda c: c.V[r, c.sel]
        dtype, half = DTYPES[kind], int(high)
        return lambda c: c.V[r, c.sel].view(dtype)[:, half::2]

    def vector_write(self, operand: Operand, kind: str, high: bool = False) -> Write:
        """Writes [n, 64] or a broadcast to a vector register, where EXEC is on."""
        if kind == "mask":
            return self.mask_write(operand)
        if operand.kind == "s":  # v_readfirstlane and the like write scalars themselves
            raise self.fail(f"destination {operand.text} must be a vector register")
        width = width_of(kind)
        r = self.row(operand, width, write=True)
        if width > 2:
            return _wide_write(r, width)
        if width == 2:
            return _vector_pair_write(r)
        if kind in ("u32", "b32"):
            return _plain_write("V", r)
        if kind == "f32":
            return _plain_write("VF", r)
        if kind == "i32":
            return _plain_write("VI", r)
        return _half_write(r, high)

    def mask_read(self, operand: Operand) -> Read:
        """Reads a lane mask as bool [n, 64]."""
        fixed = self.constant(operand, "u64")
        if fixed is not None:
            row = np.unpackbits(fixed.view(np.uint8), bitorder="little").view(np.bool_)
            return lambda c: row.reshape(1, LANES)
        r = self.sreg(operand, 2)
        return lambda c: unpack_mask(c.S[r, c.sel], c.S[r + 1, c.sel])

    def mask_write(self, operand: Operand) -> Write:
        """Writes bool [n, 64] as a lane mask; lanes that EXEC turns off give 0."""
        r = self.sreg(operand, 2, write=True)

        def write(c: Cohort, bits: Any) -> None:
            if not c.full:
                bits = bits & c.exec
            words = pack_mask(np.broadcast_to(bits, (c.n, LANES)))
            c.S[r, c.sel] = words[:, 0]
            c.S[r + 1, c.sel] = words[:, 1]

        return _then_refresh(write) if r == EXEC else write


# --- closures -------------------------------------------------------------------------------


def _special_read(text: str) -> Read:
    if "scc" in text:
        return lambda c: c.m.scc[c.sel].astype(np.uint32)
    r = EXEC if "exec" in text else VCC
    return lambda c: ((c.S[r, c.sel] | c.S[r + 1, c.sel]) == 0).astype(np.uint32)


def _pair_read(r: int, dtype: np.dtype) -> Read:
    def read(c: Cohort) -> np.ndarray:
        out = np.empty((c.n, 2), np.uint32)
        out[:, 0] = c.S[r, c.sel]
        out[:, 1] = c.S[r + 1, c.sel]
        return out.view(dtype)[:, 0]

    return read


def _pair_write(r: int) -> Write:
    def write(c: Cohort, value: Any) -> None:
        words = np.atleast_1d(np.ascontiguousarray(value)).view(np.uint32)
        c.S[r, c.sel] = words[0::2]
        c.S[r + 1, c.sel] = words[1::2]

    return write


def _scalar_f32_write(r: int) -> Write:
    def write(c: Cohort, value: Any) -> None:
        c.SF[r, c.sel] = value

    return write


def _scalar_word_write(r: int) -> Write:
    def write(c: Cohort, value: Any) -> None:
        if value.dtype == np.int32:
            c.SI[r, c.sel] = value
        else:
            c.S[r, c.sel] = value

    return write


def _then_refresh(write: Write) -> Write:
    def both(c: Cohort, value: Any) -> None:
        write(c, value)
        c.refresh_exec()

    return both


def _vector_pair_read(r: int, dtype: np.dtype) -> Read:
    def read(c: Cohort) -> np.ndarray:
        out = np.empty((c.n, LANES, 2), np.uint32)
        out[:, :, 0] = c.V[r, c.sel]
        out[:, :, 1] = c.V[r + 1, c.sel]
        return out.view(dtype)[:, :, 0]

    return read


def store_masked(c: Cohort, array: np.ndarray, r: int, value: Any) -> None:
    """array[r, waves] = value where EXEC is on; `array` is V or a view of it."""
    c.stamps[r] += 1
    if c.exec is None:
        array[r, c.sel] = value
    elif isinstance(c.sel, slice):
        np.copyto(array[r, c.sel], value, where=c.exec, casting="unsafe")
    else:
        old = array[r, c.sel]
        np.copyto(old, value, where=c.exec, casting="unsafe")
        array[r, c.sel] = old


def _plain_write(bank: str, r: int) -> Write:
    if bank == "V":

        def write_u32(c: Cohort, value: Any) -> None:
            if c.full:
                c.stamps[r] += 1
                c.V[r, c.sel] = value
            else:
                store_masked(c, c.V, r, value)

        return write_u32
    if bank == "VF":

        def write_f32(c: Cohort, value: Any) -> None:
            if c.full:
                c.stamps[r] += 1
                c.VF[r, c.sel] = value
            else:
                store_masked(c, c.VF, r, value)

        return write_f32

    def write_i32(c: Cohort, value: Any) -> None:
        store_masked(c, c.VI, r, value)

    return write_i32


def _vector_pair_write(r: int) -> Write:
    def write(c: Cohort, value: Any) -> None:
        words = np.ascontiguousarray(value).view(np.uint32)
        store_masked(c, c.V, r, words[..., 0::2])
        store_masked(c, c.V, r + 1, words[..., 1::2])

    return write


def _wide_write(r: int, width: int) -> Write:
    def write(c: Cohort, value: Any) -> None:
        for i in range(width):
            store_masked(c, c.V, r + i, value[i])

    return write


def _half_write(r: int, high: bool) -> Write:
    """16-bit results clear the upper half (GFX9); op_sel writes the upper half alone."""

    def write_low(c: Cohort, value: Any) -> None:
        store_masked(c, c.V, r, np.ascontiguousarray(value).view(np.uint16))

    def write_high(c: Cohort, value: Any) -> None:
        bits = np.ascontiguousarray(value).view(np.uint16).astype(np.uint32)
        store_masked(c, c.V, r, (c.V[r, c.sel] & np.uint32(0xFFFF)) | bits << np.uint32(16))

    return write_high if high else write_low


def _sign_bit(kind: str) -> Any:
    """Sign of the float that an untyped operand (v_cndmask_b32 -v0, …) or bf16 holds."""
    unsigned = DTYPES[kind].type
    return unsigned(1 << (8 * DTYPES[kind].itemsize - 1))


def _magnitude(read: Read, kind: str) -> Read:
    if kind in ("f16", "f32", "f64"):
        return lambda c: np.abs(read(c))
    mask = ~_sign_bit(kind)
    return lambda c: read(c) & mask


def negated(read: Read, kind: str) -> Read:
    """`read` with the sign of its floats flipped."""
    if kind in ("f16", "f32", "f64"):
        return lambda c: np.negative(read(c))
    sign = _sign_bit(kind)
    return lambda c: read(c) ^ sign
