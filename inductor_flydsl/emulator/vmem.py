"""Vector memory instructions: buffer_, global_, flat_ and scratch_ loads, stores and atomics.

Owns their operands, address arithmetic and bounds; each issues an entry that reads memory, writes
registers or LDS when it lands. Loads read memory when they land, stores and atomics take their
data at issue. Semantics: AMD "CDNA4 ISA" guide, "Vector Memory Buffer Instructions" and "Flat
Memory Instructions". Knows nothing of when things land.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from .access import (
    Site,
    atomic_on_host,
    limited_gather,
    merge_half,
    outside_lds,
    scatter,
    widen,
    write_rows,
)
from .address import address_reader
from .asm import M0, Instruction, Operand
from .atomics import GLOBAL_ATOMICS
from .operands import Decoder
from .queues import VM, Entry
from .state import LANES, Cohort, Machine, Selector

Run = Callable[[Cohort], Any]
_LANE = np.arange(LANES, dtype=np.int64)
_LOADS: dict[str, tuple[int, str]] = {
    "dword": (4, ""), "dwordx2": (8, ""), "dwordx3": (12, ""), "dwordx4": (16, ""),
    "ubyte": (1, ""), "sbyte": (1, "i8"), "ushort": (2, ""), "sshort": (2, "i16"),
    "short_d16": (2, "lo"), "short_d16_hi": (2, "hi"),
    "ubyte_d16": (1, "lo"), "ubyte_d16_hi": (1, "hi"),
    "sbyte_d16": (1, "i8lo"), "sbyte_d16_hi": (1, "i8hi"),
}  # fmt: skip
_STORES: dict[str, tuple[int, bool]] = {
    "dword": (4, False), "dwordx2": (8, False), "dwordx3": (12, False), "dwordx4": (16, False),
    "byte": (1, False), "short": (2, False), "byte_d16_hi": (1, True), "short_d16_hi": (2, True),
}  # fmt: skip
_NAME = re.compile(r"^(buffer|global|flat|scratch)_(load_lds|load|store|atomic)_(\w+)$")
_IGNORED = ("buffer_wbl2", "buffer_inv", "buffer_wbinvl1", "buffer_wbinvl1_vol", "buffer_gl0_inv")


def compile_vmem(d: Decoder, inst: Instruction) -> Run | None:
    """Closure of a vector memory instruction, None if `inst` is none."""
    if inst.base in _IGNORED:  # caches aren't modelled
        return lambda c: None
    match = _NAME.match(inst.base)
    if not match:
        return None
    space, action, name = match.groups()
    if action == "load_lds" or "lds" in inst.mods:
        return _load_lds(d, inst, space, name)
    if action == "load" and name in _LOADS:
        return _load(d, inst, space, name)
    if action == "store" and name in _STORES:
        return _store(d, inst, space, name)
    if action == "atomic" and name in GLOBAL_ATOMICS and space != "scratch":
        return _atomic(d, inst, space, name)
    return None


# --- loads ----------------------------------------------------------------------------------


def _load(d: Decoder, inst: Instruction, space: str, name: str) -> Run:
    size, form = _LOADS[name]
    words = max(1, size // 4)
    row = d.row(inst.operands[0], words, write=True)
    address = address_reader(d, inst, space, inst.operands[1:], size)
    if form.endswith(("lo", "hi")):
        d.row(inst.operands[0], 1)
        d.bits[row], d.sets[row] = 0, HALF_BITS[form.endswith("hi")]
    private = space == "scratch"

    def land(m: Machine, sel: Selector, addr: np.ndarray, active: Any, valid: Any) -> None:
        if private:
            data = m.memory_scratch.gather(addr, size, active)
        else:
            data = limited_gather(Site(m, inst, sel), addr, size, active, valid)
        if form:
            half = form.endswith(("lo", "hi"))
            data = (merge_half(m, sel, row, data[0], form) if half else widen(data[0], form))[None]
        write_rows(m, sel, row, data, active)

    regs = tuple(range(row, row + words))

    def run(c: Cohort) -> None:
        addr, valid = address(c)
        c.m.queues.issue(Entry(VM, c.waves, land, (addr, c.exec, valid), inst, regs=regs))

    return run


def _load_lds(d: Decoder, inst: Instruction, space: str, name: str) -> Run:
    """LDS[M0 + offset + lane·size] = memory, when it lands; a narrow load fills a whole dword."""
    if name not in ("dword", "dwordx3", "dwordx4", "ubyte", "sbyte", "ushort", "sshort"):
        raise d.fail(f"direct-to-LDS load of {name}")
    size, form = _LOADS[name]
    stride = max(4, size)
    address = address_reader(d, inst, space, inst.operands, size)
    m0 = d.scalar_read(Operand("s", "m0", M0, 1), "u32")
    offset = int(str(inst.mods.get("offset", 0)))
    spread = _LANE * stride

    def land(m: Machine, sel: Selector, *arrays: Any) -> None:
        addr, active, valid, start = arrays
        if active is None and valid is None and size in (4, 16):
            items = m.memory.items(addr, size)
            if items is not None and not int(np.bitwise_or.reduce(start)) & (size - 1):
                shift = size.bit_length() - 1
                m.lds_view(size)[(start >> shift)[:, None] + _LANE] = items
                return
        data = limited_gather(Site(m, inst, sel), addr, size, active, valid)
        data = widen(data[0], form)[None] if form else data
        lanes = start[:, None] + spread
        for i, word in enumerate(data):
            at = (lanes + 4 * i) >> 2
            if active is None:
                m.lds_view(4)[at] = word
            else:
                m.lds_view(4)[at[active]] = word[active]

    def run(c: Cohort) -> None:
        addr, valid = address(c)
        first = (m0(c) & np.uint32(0x3FFFC)).astype(np.int64) + offset
        start = c.lds_base[:, 0] + first
        active = c.exec
        if int(first.max()) + LANES * stride > c.m.lds_size:
            _, bad = outside_lds(c, inst, start[:, None] + spread, stride)
            if bad is not None:
                active = c.active() & ~bad
        entry = Entry(VM, c.waves, land, (addr, active, valid, start), inst)
        if c.m.hazards is not None:
            c.m.hazards.lds_write(c, inst, start[:, None] + spread, stride, entry)
        c.m.queues.issue(entry)

    return run


# --- stores and atomics -----------------------------------------------------------------------


HALF_BITS = (0xFFFF, 0xFFFF0000)


def note_stored(d: Decoder, operand: Operand, size: int, high: bool) -> None:
    """Says which bits of its data a narrow store needs."""
    if size < 4:
        d.bits[d.row(operand, 1)] = (1 << 8 * size) - 1 << (16 if high else 0)


def _data_words(d: Decoder, operand: Operand, words: int) -> Callable[[Cohort], tuple[Any, ...]]:
    row = d.row(operand, words)
    rows = range(row, row + words)
    return lambda c: tuple(np.array(c.V[r, c.sel]) for r in rows)


def _store(d: Decoder, inst: Instruction, space: str, name: str) -> Run:
    size, high = _STORES[name]
    # buffer stores name their data first, the others their address.
    at = 0 if space == "buffer" else 1
    data_words = _data_words(d, inst.operands[at], max(1, size // 4))
    note_stored(d, inst.operands[at], size, high)
    if space == "scratch":  # a spilled value need not matter
        first = d.row(inst.operands[at])
        d.bits.update(dict.fromkeys(range(first, first + inst.operands[at].count), 0))
    rest = inst.operands[:at] + inst.operands[at + 1 :]
    address = address_reader(d, inst, space, rest, size)
    private = space == "scratch"

    def land(m: Machine, sel: Selector, addr: np.ndarray, active: Any, valid: Any,
             *words: np.ndarray) -> None:  # fmt: skip
        data = np.stack(words)
        if high:
            data = data >> np.uint32(16)
        if private:
            m.memory_scratch.scatter(addr, size, data, active)
        elif valid is None:
            scatter(Site(m, inst, sel), addr, size, data, active)
        else:
            allowed = valid >= 0 if active is None else active
            step = min(size, 4)
            for i in range(len(words)):
                inside = allowed & (valid >= i * step + step)
                scatter(Site(m, inst, sel), addr + 4 * i, step, data[i : i + 1], inside)

    def run(c: Cohort) -> None:
        addr, valid = address(c)
        c.m.queues.issue(Entry(VM, c.waves, land, (addr, c.exec, valid, *data_words(c)), inst))

    return run


def _atomic(d: Decoder, inst: Instruction, space: str, name: str) -> Run:
    op = GLOBAL_ATOMICS[name]
    size = np.dtype(op.dtype).itemsize
    words = size // 4
    returns = "sc0" in inst.mods or "glc" in inst.mods
    operands = inst.operands
    if space == "buffer":
        data, rest, target = operands[0], operands[1:], operands[0]
    else:
        target, operands = (operands[0], operands[1:]) if returns else (operands[0], operands)
        data, rest = operands[1], operands[:1] + operands[2:]
    row = d.row(target, words, write=True) if returns else 0
    data_words = _data_words(d, data, words * op.sources)
    address = address_reader(d, inst, space, rest, size)

    def land(m: Machine, sel: Selector, addr: np.ndarray, active: Any, valid: Any,
             *parts: np.ndarray) -> None:  # fmt: skip
        allowed = np.ones(addr.shape, np.bool_) if active is None else active
        if valid is not None:
            allowed = allowed & (valid >= size)
        old = atomic_on_host(Site(m, inst, sel), op, addr, allowed, parts)
        if returns:
            write_rows(m, sel, row, old, active)

    regs = tuple(range(row, row + words)) if returns else ()

    def run(c: Cohort) -> None:
        addr, valid = address(c)
        arrays = (addr, c.exec, valid, *data_words(c))
        c.m.queues.issue(Entry(VM, c.waves, land, arrays, inst, regs=regs))

    return run
