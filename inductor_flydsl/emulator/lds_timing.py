"""LDS bank conflicts: lane addresses of one ds_ instruction → clocks of the LDS core and bus.

Owns phases and banks. A phase serves its lanes in as many clocks as the worst bank has different
dwords to give; lanes that want the same dword share it. Phases and banks were measured on gfx950
(ROCm/gfx950-gluon-tutorials). Knows nothing of waves, registers or time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from .facts import GFX950, Facts

_B128 = ([0, 1, 2, 3, 12, 13, 14, 15, 20, 21, 22, 23, 24, 25, 26, 27],
         [4, 5, 6, 7, 8, 9, 10, 11, 16, 17, 18, 19, 28, 29, 30, 31])  # fmt: skip
_B96 = ([0, 1, 2, 3, 20, 21, 22, 23], [4, 5, 6, 7, 16, 17, 18, 19],
        [8, 9, 10, 11, 28, 29, 30, 31], [12, 13, 14, 15, 24, 25, 26, 27])  # fmt: skip


def _halves(phases: tuple[list[int], ...]) -> np.ndarray:
    """Phases of the first 32 lanes → [phases, lanes] of all 64."""
    low = np.array(phases)
    return np.concatenate([low, low + 32])


def _runs(lanes: int) -> np.ndarray:
    return np.arange(64).reshape(-1, lanes)


@dataclass(frozen=True)
class Access:
    """How the LDS serves one form of instruction: bytes a lane, accesses, phases, banks."""

    size: int
    accesses: int
    phases: np.ndarray
    banks: int
    write: bool


_READ_PHASES = {4: _runs(64), 8: _runs(32), 12: _halves(_B96), 16: _halves(_B128)}
_READ_BANKS = {4: 64, 8: 64, 12: 32, 16: 64}
_WRITE_PHASES = {4: _runs(32), 8: _runs(16), 12: _runs(8), 16: _runs(8)}


def access_of(base: str) -> Access | None:
    """The access of a ds_ mnemonic; None for those that touch no memory."""
    if re.match(r"ds_(nop|bpermute|permute|swizzle)", base):
        return None
    two = re.fullmatch(r"ds_(read|write)2(?:st64)?_b(32|64)", base)
    if two:
        size = int(two[2]) // 8
        return _access(size, 2, two[1] == "write")
    wide = re.search(r"_b(96|128|64)", base) or re.search(r"_[uif](64)", base)
    size = int(wide[1]) // 8 if wide else 4
    if base.startswith("ds_read"):
        return _access(size, 1, False)
    # An atomic reads and writes its dwords.
    return _access(size, 1 if base.startswith("ds_write") else 2, True)


def _access(size: int, accesses: int, write: bool) -> Access:
    phases = (_WRITE_PHASES if write else _READ_PHASES)[size]
    return Access(size, accesses, phases, 32 if write else _READ_BANKS[size], write)


def core_clocks(access: Access, addr: np.ndarray, active: np.ndarray | None = None) -> np.ndarray:
    """Clocks of the LDS core for byte addresses [n, 64 · k], one row a wave → int64 [n].

    active: bool like addr; None for all lanes. A lane whose address isn't aligned to its access
    is served alone.
    """
    total = np.zeros(len(addr), np.int64)
    for start in range(0, addr.shape[1], 64):
        part = addr[:, start : start + 64].astype(np.int64)
        on = None if active is None else active[:, start : start + 64]
        total += _one(access, part, on)
    if access.accesses * 64 > addr.shape[1]:
        total *= access.accesses
    return total


def _one(access: Access, addr: np.ndarray, active: np.ndarray | None) -> np.ndarray:
    n, (phases, lanes) = len(addr), access.phases.shape
    words = access.size // 4
    dwords = addr[:, access.phases].repeat(words, axis=2) >> 2  # [n, phases, lanes · words]
    dwords += np.tile(np.arange(words), lanes)
    bank = dwords % access.banks
    key = bank << 40 | dwords
    if active is not None:
        key[~active[:, access.phases].repeat(words, axis=2)] = -1
    key.sort(axis=2)
    fresh = key >= 0
    fresh[:, :, 1:] &= key[:, :, 1:] != key[:, :, :-1]
    row = np.arange(n * phases).reshape(n, phases, 1)
    slots = (row * access.banks + (key >> 40))[fresh]
    counts = np.bincount(slots, minlength=n * phases * access.banks)
    degree = counts.reshape(n, phases, access.banks).max(axis=2).sum(axis=1)
    if access.size in (8, 16):
        crooked = (addr & (access.size - 1)) != 0
        if active is not None:
            crooked &= active
        if crooked.any():
            degree = np.where(crooked.any(axis=1), 64, degree)
    return np.maximum(degree, 1)


def bus_clocks(access: Access, facts: Facts = GFX950) -> int:
    """Clocks of a SIMD pair's bus for one instruction of a whole wave."""
    return max(1, access.accesses * access.size * 64 // facts.lds_bus_bytes)


PERMUTE_CLOCKS = (2, 2)
"""Core and bus clocks of a lane exchange: a dword a lane through the crossbar."""
