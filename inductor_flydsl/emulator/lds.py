"""LDS instructions (ds_*): reads, writes, transposing reads, atomics, and lane permutes.

Owns their operands, address arithmetic and lane layouts; each issues an entry counted in lgkmcnt.
A read takes its data from LDS at issue, behind its wave's earlier writes, and fills registers when
it lands: a DS operation reaches LDS within tens of clocks, so what may still be missing is another
wave's write or an LDS-DMA, which take longer. A write reaches LDS when it lands. Semantics: AMD
"CDNA4 ISA" guide, "Data Share Operations" and "MFMA Transpose Load from LDS".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from .access import merge_half, outside_lds, sources_of, widen, write_rows
from .asm import Instruction
from .atomics import LDS_ATOMICS, apply_atomic
from .memory import gather_flat, scatter_flat
from .operands import Decoder
from .queues import DS, Entry
from .state import LANES, Cohort, Machine, Selector
from .vmem import HALF_BITS, note_stored

Run = Callable[[Cohort], Any]
_READS: dict[str, tuple[int, str]] = {
    "b32": (4, ""), "b64": (8, ""), "b96": (12, ""), "b128": (16, ""),
    "u8": (1, ""), "i8": (1, "i8"), "u16": (2, ""), "i16": (2, "i16"),
    "u16_d16": (2, "lo"), "u16_d16_hi": (2, "hi"), "u8_d16": (1, "lo"), "u8_d16_hi": (1, "hi"),
    "i8_d16": (1, "i8lo"), "i8_d16_hi": (1, "i8hi"),
}  # fmt: skip
_WRITES: dict[str, tuple[int, bool]] = {
    "b32": (4, False), "b64": (8, False), "b96": (12, False), "b128": (16, False),
    "b8": (1, False), "b16": (2, False), "b8_d16_hi": (1, True), "b16_d16_hi": (2, True),
}  # fmt: skip


def compile_ds(d: Decoder, inst: Instruction) -> Run | None:
    """Closure of a ds_ instruction, None if `inst` is none that is emulated."""
    if not inst.base.startswith("ds_") or "gds" in inst.mods:
        return None
    name = inst.base[3:]
    if name == "nop":
        return lambda c: None
    if name in ("bpermute_b32", "permute_b32", "swizzle_b32"):
        return _permute(d, inst, name)
    two = re.fullmatch(r"(read|write)2(st64)?_b(32|64)", name)
    if two:
        action, strided, bits = two.groups()
        size = int(bits) // 8
        return (_read2 if action == "read" else _write2)(d, inst, size, 64 if strided else 1)
    transposed = re.fullmatch(r"read_b(64|96)_tr_b(16|8|4|6)", name)
    if transposed:
        return _read_transposed(d, inst, int(transposed[1]) // 8, int(transposed[2]))
    action, _, kind = name.partition("_")
    if action == "read" and kind in _READS:
        return _read(d, inst, *_READS[kind])
    if action == "write" and kind in _WRITES:
        return _write(d, inst, *_WRITES[kind])
    atomic = name.replace("_rtn", "")
    if atomic in LDS_ATOMICS:
        return _atomic(d, inst, atomic, "_rtn" in name)
    return None


def _offset(inst: Instruction, name: str = "offset") -> int:
    return int(str(inst.mods.get(name, 0)))


Address = Callable[[Cohort], tuple[np.ndarray, np.ndarray | None]]


def _address(d: Decoder, operand: int, offset: int, size: int) -> Address:
    """int64 [n, 64] byte addresses in the machine's LDS array, and lanes out of bounds or None."""
    inst = d.inst
    row = d.row(inst.operands[operand], 1)
    # The sum has 32 bits: compilers put what is negative in the register and the rest here.
    step = np.uint32(offset)

    def address(c: Cohort) -> tuple[np.ndarray, np.ndarray | None]:
        relative = c.V[row, c.sel] + step
        addr = relative + c.lds_base
        if int(relative.max()) + size <= c.m.lds_size:
            return addr, None
        return outside_lds(c, inst, addr, size)

    return address


def _without(active: np.ndarray | None, bad: np.ndarray | None) -> np.ndarray | None:
    """`active` less the lanes out of bounds; None stands for all lanes."""
    if bad is None:
        return active
    return ~bad if active is None else active & ~bad


def _read(d: Decoder, inst: Instruction, size: int, form: str) -> Run:
    words = max(1, size // 4)
    row = d.row(inst.operands[0], words, write=True)
    if form.endswith(("lo", "hi")):
        d.row(inst.operands[0], 1)
        d.bits[row], d.sets[row] = 0, HALF_BITS[form.endswith("hi")]
    address = _address(d, 1, _offset(inst), size)
    if not form:
        return _issue_read(inst, address, size, row)

    def land(m: Machine, sel: Selector, active: Any, raw: np.ndarray) -> None:
        half = form.endswith(("lo", "hi"))
        data = merge_half(m, sel, row, raw, form) if half else widen(raw, form)
        write_rows(m, sel, row, (data,), active)

    return _issue_read(inst, address, size, row, land=land)


def _land_words(row: int) -> Callable[..., None]:
    def land(m: Machine, sel: Selector, active: Any, *words: np.ndarray) -> None:
        write_rows(m, sel, row, words, active)

    return land


def _sample(c: Cohort, addr: np.ndarray, size: int, zero: np.ndarray | None) -> np.ndarray:
    """uint32 [words, n, 64] at LDS addresses, 0 on the lanes `zero`."""
    c.m.queues.order_ds(c.waves)
    data = gather_flat(c.m.lds_view, 0, addr, size)
    if zero is not None:
        data[:, zero] = 0
    return data


def _issue_read(inst: Instruction, address: Address, size: int, row: int, *,
                land: Callable[..., None] | None = None,
                change: Callable[[np.ndarray], np.ndarray] | None = None) -> Run:  # fmt: skip
    land = land or _land_words(row)
    regs = tuple(range(row, row + max(1, size // 4)))

    def run(c: Cohort) -> None:
        addr, zero = address(c)
        data = _sample(c, addr, size, zero)
        if change is not None:
            data = change(data)
        entry = Entry(DS, c.waves, land, (c.exec, *data), inst, regs=regs)
        if c.m.hazards is not None:
            c.m.hazards.lds_read(c, inst, addr, size, entry)
        c.m.queues.issue(entry)

    return run


def _write(d: Decoder, inst: Instruction, size: int, high: bool) -> Run:
    words = max(1, size // 4)
    address = _address(d, 0, _offset(inst), size)
    row = d.row(inst.operands[1], words)
    note_stored(d, inst.operands[1], size, high)
    rows = range(row, row + words)

    def land(m: Machine, sel: Selector, addr: np.ndarray, active: Any, *data: np.ndarray) -> None:
        scatter_lds(m, addr, size, data, active)

    def run(c: Cohort) -> None:
        addr, bad = address(c)
        active = _without(c.exec, bad)
        if high:
            data: tuple[np.ndarray, ...] = (c.V[row, c.sel] >> np.uint32(16),)
        else:
            data = tuple(np.array(c.V[r, c.sel]) for r in rows)
        entry = Entry(DS, c.waves, land, (addr, active, *data), inst, stores=True)
        if c.m.hazards is not None:
            c.m.hazards.lds_write(c, inst, addr, size, entry)
        c.m.queues.issue(entry)

    return run


def scatter_lds(m: Machine, addr: np.ndarray, size: int, data: tuple[np.ndarray, ...],
                active: np.ndarray | None) -> None:  # fmt: skip
    """Writes data words [n, 64] at byte addresses, on active lanes."""
    if active is None:
        scatter_flat(m.lds_view, 0, addr, size, data)
        return
    flat = addr[active]
    if flat.size:
        scatter_flat(m.lds_view, 0, flat, size, tuple(w[active] for w in data))


def _read2(d: Decoder, inst: Instruction, size: int, stride: int) -> Run:
    """Two elements, at offset0 and offset1 in units of the element (times 64 for st64)."""
    words = size // 4
    row = d.row(inst.operands[0], 2 * words, write=True)
    steps = [_offset(inst, name) * size * stride for name in ("offset0", "offset1")]
    low, high = (_address(d, 1, step, size) for step in steps)

    land = _land_words(row)
    regs = tuple(range(row, row + 2 * words))

    def run(c: Cohort) -> None:
        (first, zero), (second, zero2) = low(c), high(c)
        data = (*_sample(c, first, size, zero), *_sample(c, second, size, zero2))
        entry = Entry(DS, c.waves, land, (c.exec, *data), inst, regs=regs)
        if c.m.hazards is not None:
            c.m.hazards.lds_read(c, inst, np.concatenate([first, second], axis=1), size, entry)
        c.m.queues.issue(entry)

    return run


def _write2(d: Decoder, inst: Instruction, size: int, stride: int) -> Run:
    words = size // 4
    sources = [d.row(operand, words) for operand in inst.operands[1:3]]
    steps = [_offset(inst, name) * size * stride for name in ("offset0", "offset1")]
    low, high = (_address(d, 0, step, size) for step in steps)

    def land(m: Machine, sel: Selector, addr: np.ndarray, active: Any, *data: np.ndarray) -> None:
        scatter_lds(m, addr, size, data, active)

    def run(c: Cohort) -> None:
        (first, bad), (second, bad2) = low(c), high(c)
        # Two entries would count twice in lgkmcnt, so both halves are one pair of arrays.
        addr = np.concatenate([first, second], axis=1)
        active: np.ndarray | None = None
        if c.exec is not None or bad is not None or bad2 is not None:
            halves = [_without(c.active(), bad), _without(c.active(), bad2)]
            active = np.concatenate(halves, axis=1)  # type: ignore[arg-type]
        data = tuple(
            np.concatenate([c.V[sources[0] + i, c.sel], c.V[sources[1] + i, c.sel]], axis=1)
            for i in range(words)
        )
        entry = Entry(DS, c.waves, land, (addr, active, *data), inst, stores=True)
        if c.m.hazards is not None:
            c.m.hazards.lds_write(c, inst, addr, size, entry)
        c.m.queues.issue(entry)

    return run


# --- transposing reads ------------------------------------------------------------------------


def transpose_elements(data: np.ndarray, bits: int) -> np.ndarray:
    """Transposes across each 16 lanes: what ds_read_b64_tr_b16/_b8/_b4 and b96_tr_b6 return.

    data: uint32 [words, n, 64], what each lane's own address holds; E = 64/bits (16 for 6 bits)
    elements a lane. The 16·E elements of 16 lanes, in lane order, are a matrix of E rows of 16
    for b16; in general lane i, element e of the result is element (i % E) of lane (16/E·e + i//E).
    """
    words, n, _ = data.shape
    per_lane = words * 32 // bits
    raw = np.ascontiguousarray(np.moveaxis(data, 0, -1)).reshape(n * 4, 16, words)
    items = _unpack(raw, bits, per_lane)
    # Rows of the matrix: 16 columns; one lane holds per_lane columns of one row.
    matrix = items.reshape(n * 4, per_lane, 16)
    result = _pack(np.ascontiguousarray(matrix.transpose(0, 2, 1)), bits, words)
    return np.moveaxis(result.reshape(n, 64, words), -1, 0)


def _unpack(raw: np.ndarray, bits: int, per_lane: int) -> np.ndarray:
    if bits in (8, 16):
        return raw.view(np.uint8 if bits == 8 else np.uint16)
    flat = np.unpackbits(raw.view(np.uint8), axis=-1, bitorder="little")
    fields = flat.reshape(*raw.shape[:-1], per_lane, bits)
    return (fields << np.arange(bits, dtype=np.uint8)).sum(axis=-1, dtype=np.uint8)


def _pack(items: np.ndarray, bits: int, words: int) -> np.ndarray:
    if bits in (8, 16):
        return items.view(np.uint32)
    fields = (items[..., None] >> np.arange(bits, dtype=np.uint8)) & np.uint8(1)
    flat = fields.reshape(*items.shape[:-1], words * 32)
    return np.packbits(flat, axis=-1, bitorder="little").view(np.uint32)


def _read_transposed(d: Decoder, inst: Instruction, size: int, bits: int) -> Run:
    row = d.row(inst.operands[0], size // 4, write=True)
    address = _address(d, 1, _offset(inst), size)
    return _issue_read(inst, address, size, row, change=lambda data: transpose_elements(data, bits))


# --- atomics and permutes ---------------------------------------------------------------------


def _atomic(d: Decoder, inst: Instruction, name: str, returns: bool) -> Run:
    op = LDS_ATOMICS[name]
    size = np.dtype(op.dtype).itemsize
    words = size // 4
    row = d.row(inst.operands[0], words, write=True) if returns else 0
    first = int(returns)
    address = _address(d, first, _offset(inst), size)
    sources = [d.row(o, words) for o in inst.operands[first + 1 : first + 1 + op.sources]]

    def land(m: Machine, sel: Selector, addr: np.ndarray, active: Any, *data: np.ndarray) -> None:
        lanes = np.ones(addr.shape, np.bool_) if active is None else active
        old = np.zeros((*addr.shape, words), np.uint32)
        if lanes.any():
            parts = sources_of(op, data, lanes)
            got = apply_atomic(op, m.lds_view(size), addr[lanes] // size, parts)
            old[lanes] = got.view(np.uint32).reshape(-1, words)
        if returns:
            write_rows(m, sel, row, np.moveaxis(old, -1, 0), active)

    regs = tuple(range(row, row + words)) if returns else ()

    def run(c: Cohort) -> None:
        addr, bad = address(c)
        active = _without(c.exec, bad)
        data = tuple(np.array(c.V[r + i, c.sel]) for r in sources for i in range(words))
        entry = Entry(DS, c.waves, land, (addr, active, *data), inst, regs=regs, stores=True)
        if c.m.hazards is not None:
            c.m.hazards.lds_atomic(c, inst, addr, size, entry)
        c.m.queues.issue(entry)

    return run


def swizzle_offset(text: str) -> int:
    """The offset that a swizzle(…) macro stands for (LLVM "AMDGPU operand syntax", swizzle).

    Raises ValueError for a macro that isn't known.
    """
    match = re.fullmatch(r"swizzle\((\w+),(.*)\)", text.replace(" ", ""))
    if match is None:
        raise ValueError(f"offset {text} is not understood")
    mode, words = match[1], match[2].split(",")
    if mode == "BITMASK_PERM":  # one letter a lane bit, the highest first
        bits = list(enumerate(reversed(words[0].strip("\"'"))))
        keep, ones, flip = (sum((c in s) << i for i, c in bits) for s in ("pi", "1", "i"))
        return keep | ones << 5 | flip << 10
    numbers = [int(word, 0) for word in words]
    if mode == "QUAD_PERM":
        return 0x8000 | sum(lane << 2 * i for i, lane in enumerate(numbers))
    if mode == "SWAP":
        return 31 | numbers[0] << 10
    if mode == "REVERSE":
        return 31 | numbers[0] - 1 << 10
    if mode == "BROADCAST":
        return ~(numbers[0] - 1) & 31 | numbers[1] << 5
    raise ValueError(f"swizzle mode {mode} is not modelled")


def swizzle_lanes(value: int) -> np.ndarray:
    """Source lane of each lane for ds_swizzle_b32 (ISA guide, DS_SWIZZLE_B32)."""
    lane = np.arange(LANES)
    if value & 0x8000:  # quad permute
        return (lane & ~3) + (value >> 2 * (lane & 3) & 3)
    inside = lane & 31
    and_mask, or_mask, xor_mask = value & 31, value >> 5 & 31, value >> 10 & 31
    return (lane & 32) + (((inside & and_mask) | or_mask) ^ xor_mask)


def _permute(d: Decoder, inst: Instruction, name: str) -> Run:
    """Lane exchange through the LDS crossbar; counted in lgkmcnt, touches no memory."""
    row = d.row(inst.operands[0], 1, write=True)
    data_row = d.row(inst.operands[-1], 1)
    index_row = d.row(inst.operands[1], 1)
    shares = index_row == data_row and name != "swizzle_b32"
    offset = inst.mods.get("offset", 0)
    if not isinstance(offset, int):
        offset = swizzle_offset(str(offset))
    if name == "swizzle_b32" and offset >= 0xC000:
        raise d.fail("swizzle in rotate or FFT mode")
    fixed = swizzle_lanes(offset) if name == "swizzle_b32" else None
    step = np.uint32(offset)
    # Undefined data moves along; the landing defines nothing by itself.
    if not shares:
        d.bits[data_row] = 0
    d.sets[row] = 0

    def moved(c: Cohort, data: np.ndarray) -> np.ndarray:
        data = np.where(c.active(), data, np.uint32(0))
        if fixed is not None:
            return data[:, fixed]
        lane = ((c.V[index_row, c.sel] + step) >> np.uint32(2)) & np.uint32(63)
        if name == "bpermute_b32":
            return np.take_along_axis(data, lane.astype(np.int64), axis=1)
        out = np.zeros_like(data)
        active = c.active()
        waves = np.broadcast_to(np.arange(c.n)[:, None], lane.shape)
        out[waves[active], lane[active]] = data[active]
        return out

    def land(m: Machine, sel: Selector, value: np.ndarray, active: Any) -> None:
        write_rows(m, sel, row, value[None], active)

    def run(c: Cohort) -> None:
        value = moved(c, c.V[data_row, c.sel])
        if c.m.hazards is not None:
            known = c.m.hazards.definedness
            known.exchanged(c, inst, (data_row, row), lambda bits: moved(c, bits))
        c.m.queues.issue(Entry(DS, c.waves, land, (value, c.exec), inst, regs=(row,)))

    return run
