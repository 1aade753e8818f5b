"""Accesses that may leave memory: checked gathers and scatters, and what is said of those that do.

Owns the choice between a finding and an error, and writing loaded words to registers. Knows
nothing of instructions' operands or addresses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .asm import Instruction
from .atomics import Atomic, apply_atomic
from .errors import MemoryFault
from .memory import Outside
from .state import Cohort, Machine, Selector


class Site(NamedTuple):
    """Who accesses: an instruction of the waves `sel` of a machine."""

    m: Machine
    inst: Instruction
    sel: Selector


def fault(site: Site, addr: np.ndarray, lanes: np.ndarray) -> None:
    """Reports an access outside memory: a finding where findings are on, else MemoryFault."""
    m, inst, sel = site
    wave, lane = (int(x) for x in np.argwhere(lanes)[0])
    if m.hazards is not None:
        m.hazards.out_of_bounds(inst, sel, lanes, int(addr[wave, lane]))
        return
    where = int(np.arange(m.waves)[sel][wave])
    raise MemoryFault(
        f"{inst.mnemonic} touches address {int(addr[wave, lane]):#x} outside every region "
        f"({m.wave_name(where)}, lane {lane}, {int(lanes.sum())} lanes in all)",
        m.kernel.name, inst.line, inst.text,
    )  # fmt: skip


def outside_lds(c: Cohort, inst: Instruction, addr: np.ndarray,
                size: int) -> tuple[np.ndarray, np.ndarray | None]:  # fmt: skip
    """LDS addresses [n, 64] that leave the workgroup's LDS → (addresses made safe, those lanes).

    Reads there give 0 and writes vanish. Reports them: a finding, or MemoryFault.
    """
    m = c.m
    relative = addr - c.lds_base
    bad = (relative < 0) | (relative + size > m.lds_size)
    addr = np.where(bad, c.lds_base, addr)
    if c.exec is not None:
        bad &= c.exec
    if not bad.any():
        return addr, None
    wave, lane = (int(x) for x in np.argwhere(bad)[0])
    if m.hazards is not None:
        m.hazards.out_of_bounds(inst, c.sel, bad, int(relative[wave, lane]), "lds")
        return addr, bad
    raise MemoryFault(
        f"{inst.mnemonic} touches LDS byte {int(relative[wave, lane])} of {m.lds_size} "
        f"({m.wave_name(int(c.waves.idx[wave]))}, lane {lane})",
        m.kernel.name, inst.line, inst.text,
    )  # fmt: skip


def gather(site: Site, addr: np.ndarray, size: int, active: np.ndarray | None) -> np.ndarray:
    """Memory.gather; lanes that fault give 0."""
    try:
        return site.m.memory.gather(addr, size, active)
    except Outside as error:
        fault(site, addr, error.lanes)
        keep = ~error.lanes if active is None else active & ~error.lanes
        return site.m.memory.gather(addr, size, keep)


def scatter(site: Site, addr: np.ndarray, size: int, data: np.ndarray,
            active: np.ndarray | None) -> None:  # fmt: skip
    """Memory.scatter; lanes that fault write nothing."""
    try:
        site.m.memory.scatter(addr, size, data, active)
    except Outside as error:
        fault(site, addr, error.lanes)
        keep = ~error.lanes if active is None else active & ~error.lanes
        site.m.memory.scatter(addr, size, data, keep)


def limited_gather(site: Site, addr: np.ndarray, size: int, active: np.ndarray | None,
                   valid: np.ndarray | None) -> np.ndarray:  # fmt: skip
    """Gather where `valid` (bytes a lane may read, or None for all) stops at a buffer's end."""
    if valid is None:
        return gather(site, addr, size, active)
    allowed = valid >= 0 if active is None else active
    if size <= 4:
        return gather(site, addr, size, allowed & (valid >= size))
    words = [
        gather(site, addr + 4 * i, 4, allowed & (valid >= 4 * i + 4))[0] for i in range(size // 4)
    ]
    return np.stack(words)


def widen(raw: np.ndarray, form: str) -> np.ndarray:
    """Sign extension of a loaded byte or short, uint32 → uint32."""
    if form.startswith("i8"):
        return (raw.astype(np.uint8).view(np.int8)).astype(np.int32).view(np.uint32)
    if form == "i16":
        return (raw.astype(np.uint16).view(np.int16)).astype(np.int32).view(np.uint32)
    return raw


def write_rows(m: Machine, sel: Selector, row: int, data: Sequence[np.ndarray] | np.ndarray,
               active: np.ndarray | None) -> None:  # fmt: skip
    """V[row + i, sel] = data[i] on active lanes."""
    for i, word in enumerate(data):
        m.stamps[row + i] += 1
        if active is None:
            m.V[row + i, sel] = word
            continue
        old = m.V[row + i, sel]
        np.copyto(old, word, where=active)
        if not isinstance(sel, slice):
            m.V[row + i, sel] = old


def merge_half(m: Machine, sel: Selector, row: int, raw: np.ndarray, form: str) -> np.ndarray:
    """A d16 load keeps the other half of its register."""
    old = m.V[row, sel]
    value = widen(raw, form) & np.uint32(0xFFFF)
    if form.endswith("hi"):
        return (old & np.uint32(0xFFFF)) | value << np.uint32(16)
    return (old & np.uint32(0xFFFF0000)) | value


def sources_of(
    op: Atomic, parts: tuple[np.ndarray, ...], lanes: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Data words → one flat array per source, of active lanes only."""
    words = np.dtype(op.dtype).itemsize // 4
    return tuple(
        np.ascontiguousarray(np.stack([p[lanes] for p in parts[i : i + words]], axis=-1))
        .view(op.dtype)
        .reshape(-1)
        for i in range(0, len(parts), words)
    )


def atomic_on_host(site: Site, op: Atomic, addr: np.ndarray, lanes: np.ndarray,
                   parts: tuple[np.ndarray, ...]) -> np.ndarray:  # fmt: skip
    """Applies `op` for the given lanes, region by region; old values as uint32 [words, n, 64]."""
    size = np.dtype(op.dtype).itemsize
    old = np.zeros((*addr.shape, size // 4), np.uint32)
    left = lanes.copy()
    for region in site.m.memory.regions:
        inside = left & (addr >= region.base) & (addr + size <= region.base + region.nbytes)
        inside &= (addr & (size - 1)) == 0
        if not region.writable or not inside.any():
            continue
        left &= ~inside
        index = (addr[inside] - region.base) // size
        got = apply_atomic(op, region.view(size), index, sources_of(op, parts, inside))
        old[inside] = got.view(np.uint32).reshape(-1, size // 4)
        site.m.memory.bytes_written += index.size * size
    if left.any():
        fault(site, addr, left)
    return np.moveaxis(old, -1, 0)
