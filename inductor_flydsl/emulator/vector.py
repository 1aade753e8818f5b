"""Vector ALU instructions: an `Op` and operands → one closure.

Owns operand and result modifiers, op_sel, packed halves, and the plug for DPP and SDWA. Knows
nothing of what an opcode computes, nor of memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from .asm import EXEC, VCC, Instruction, Operand
from .dpp import dpp_pattern, dpp_read, sdwa_read, sdwa_write
from .op import DTYPES, Op
from .operands import Decoder, Read, Write, negated, width_of
from .state import LANES, Cohort

Run = Callable[[Cohort], Any]
_HALVES = ("u16", "i16", "f16", "bf16", "b16")
_LANE_IDS = np.arange(LANES, dtype=np.uint32).reshape(1, LANES)


def bit_list(mods: Any, name: str, count: int, default: int = 0) -> list[int]:
    """A list modifier such as op_sel:[0,1] as exactly `count` ints."""
    value = mods.get(name)
    if value is None:
        return [default] * count
    items = list(value) if isinstance(value, tuple) else [value]
    return (items + [default] * count)[:count]


def mod_int(mods: Any, name: str) -> int:
    """A modifier as one int; lists become a bit mask, first element in bit 0."""
    value = mods.get(name, 0)
    if isinstance(value, tuple):
        return sum(int(bit) << i for i, bit in enumerate(value))
    return int(value)


def compile_vector(d: Decoder, inst: Instruction, op: Op) -> Run:
    """Closure of a "valu", "vopc" or "vop3p" instruction."""
    if op.kind == "vop3p":
        return _packed(d, inst, op)
    dst, src = inst.operands[: len(op.dst)], inst.operands[len(op.dst) :]
    if len(src) != len(op.src):
        raise d.fail(f"{len(inst.operands)} operands, expected {len(op.dst) + len(op.src)}")
    reads = _sources(d, inst, op, src)
    reads += [_implicit(d, name, dst, op) for name in op.implicit_src]
    writes = _destinations(d, inst, op, dst)
    writes += [_implicit_write(d, name) for name in op.implicit_dst]
    fn = _with_mods(d, inst, op)
    return assemble(fn, reads, writes)


def _signs_are_masks(op: Op) -> bool:
    """Whether the opcode itself negates its sources: v_fma_mix, whose op_sel_hi says where the
    sign is."""
    return "neg" in op.mods


def assemble(fn: Callable[..., Any], reads: list[Read], writes: list[Write]) -> Run:
    """Read all, compute, write all; specialised on the common operand counts."""
    if len(writes) == 1:
        return _assemble_one(fn, reads, writes[0])

    def run_many(c: Cohort) -> None:
        results = fn(*[read(c) for read in reads])
        for write, result in zip(writes, results, strict=True):
            write(c, result)

    return run_many


def _assemble_one(fn: Callable[..., Any], reads: list[Read], write: Write) -> Run:
    if len(reads) == 1:
        only = reads[0]
        return lambda c: write(c, fn(only(c)))
    if len(reads) == 2:
        first, second = reads
        return lambda c: write(c, fn(first(c), second(c)))
    if len(reads) == 3:
        one, two, three = reads
        return lambda c: write(c, fn(one(c), two(c), three(c)))
    return lambda c: write(c, fn(*[read(c) for read in reads]))


_OTHER_ENCODINGS = ("op_sel", "op_sel_hi", "neg_lo", "neg_hi")


def _refuse_unmodelled(d: Decoder, inst: Instruction, op: Op, src: tuple[Operand, ...]) -> None:
    """Fails on a modifier that neither the engine nor the opcode gives a meaning.

    A sign of untyped bits is that of the float they hold where the opcode only moves them
    (v_cndmask_b32 -v0); where it takes them apart, as packed conversions and dot products do,
    there are two signs, and no public text says which neg flips.
    """
    for name in _OTHER_ENCODINGS:
        halves = name == "op_sel" and any(k in _HALVES for k in op.src + op.dst)
        usual = 1 if name == "op_sel_hi" else 0
        asked = any(bit != usual for bit in bit_list(inst.mods, name, len(src), usual))
        if asked and name not in op.mods and not halves and "op_sel" not in op.mods:
            raise d.fail(f"{name} of this opcode")
    moves = all(kind[0] in "bm" for kind in op.src + op.dst)
    for operand, kind in zip(src, op.src, strict=True):
        if (operand.neg or operand.abs) and kind[0] == "b" and kind != "bf16" and not moves:
            raise d.fail(f"sign modifier of the packed operand {operand.text}")


def _sources(d: Decoder, inst: Instruction, op: Op, src: tuple[Operand, ...]) -> list[Read]:
    select = bit_list(inst.mods, "op_sel", len(src) + len(op.dst))
    if _signs_are_masks(op):
        return [d.vector_read(replace(o, neg=False, abs=False), k)
                for o, k in zip(src, op.src, strict=True)]  # fmt: skip
    _refuse_unmodelled(d, inst, op, src)
    reads: list[Read] = []
    for i, (operand, kind) in enumerate(zip(src, op.src, strict=True)):
        if inst.encoding == "sdwa" and kind != "mask":
            reads.append(sdwa_read(d, operand, kind, str(inst.mods.get(f"src{i}_sel", "DWORD"))))
            continue
        high = bool(select[i]) and kind in _HALVES and "op_sel" not in op.mods
        reads.append(d.vector_read(operand, kind, high))
    if "dpp" in inst.encoding or dpp_pattern(inst) is not None:
        reads[0] = dpp_read(d, inst, reads[0])
    return reads


def _destinations(d: Decoder, inst: Instruction, op: Op, dst: tuple[Operand, ...]) -> list[Write]:
    writes: list[Write] = []
    high = False
    if len(op.dst) == 1 and op.dst[0] in _HALVES and "op_sel" not in op.mods:
        high = bool(bit_list(inst.mods, "op_sel", len(op.src) + 1)[len(op.src)])
    for operand, kind in zip(dst, op.dst, strict=True):
        if inst.encoding == "sdwa" and kind != "mask":
            writes.append(sdwa_write(d, inst, operand, kind))
            continue
        write = d.vector_write(operand, kind, high)
        if kind != "mask" and dpp_pattern(inst) is not None:
            write = _dpp_masked(d, inst, write)
        writes.append(write)
    return writes


def _dpp_masked(d: Decoder, inst: Instruction, write: Write) -> Write:
    """row_mask and bank_mask, and lanes with an invalid source, keep the old destination."""
    pattern = dpp_pattern(inst)
    assert pattern is not None
    lanes = pattern.enabled

    def masked(c: Cohort, value: Any) -> None:
        keep = (c.full, c.exec)
        on = np.broadcast_to(lanes, (c.n, LANES)) & c.active()
        if not pattern.bound_ctrl:
            on = on & pattern.valid(c)
        c.full, c.exec = False, on
        try:
            write(c, value)
        finally:
            c.full, c.exec = keep

    if lanes.all() and pattern.bound_ctrl:
        return write
    return masked


def _implicit(d: Decoder, name: str, dst: tuple[Operand, ...], op: Op) -> Read:
    if name == "lane":
        return lambda c: _LANE_IDS
    if name == "dst":
        return d.vector_read(dst[0], op.dst[0])
    if name == "scc":
        d.note_flag(name)
        return lambda c: c.m.scc[c.sel][:, None]
    if name == "exec":
        return lambda c: c.active()
    if name == "vcc":
        return d.mask_read(Operand("s", "vcc", VCC, 2))
    raise d.fail(f"implicit source {name}")


def _implicit_write(d: Decoder, name: str) -> Write:
    if name in ("vcc", "exec"):
        index = VCC if name == "vcc" else EXEC
        return d.mask_write(Operand("s", name, index, 2))
    raise d.fail(f"implicit destination {name}")


def _with_mods(d: Decoder, inst: Instruction, op: Op) -> Callable[..., Any]:
    fn: Callable[..., Any] = op.fn
    if op.mods:
        given = {name: mod_int(inst.mods, name) for name in op.mods if name in inst.mods}
        if _signs_are_masks(op):
            src = inst.operands[len(op.dst) :]
            given |= {n: sum(getattr(o, n) << i for i, o in enumerate(src)) for n in ("neg", "abs")}
        if given:
            inner = fn
            fn = lambda *args: inner(*args, **given)  # noqa: E731
    if op.kind == "vopc":
        return fn
    scale = {2: 2.0, 4: 4.0}.get(int(str(inst.mods.get("mul", 1))), 1.0)
    scale *= 0.5 if inst.mods.get("div") == 2 else 1.0
    clamp = "clamp" in inst.mods and "clamp" not in op.mods
    if clamp and not op.dst[0].startswith(("f", "bf")):
        return _saturated(d, op)
    if scale == 1.0 and not clamp:
        return fn
    return _float_result(fn, scale, clamp)


def _float_result(fn: Callable[..., Any], scale: float, clamp: bool) -> Callable[..., Any]:
    """omod then clamp to [0, 1]; NaN clamps to 0 (DX10_CLAMP)."""

    def run(*args: Any) -> Any:
        result = fn(*args)
        first = result[0] if isinstance(result, tuple) else result
        kind = first.dtype.type
        if scale != 1.0:
            first = first * kind(scale)
        if clamp:
            first = np.where(first > 0, np.minimum(first, kind(1)), kind(0))
        return (first, *result[1:]) if isinstance(result, tuple) else first

    return run


def _saturated(d: Decoder, op: Op) -> Callable[..., Any]:
    """Integer clamp: the exact result, limited to the destination's range."""
    exact = op.exact
    if exact is None:
        raise d.fail("clamp")
    dtype = DTYPES[op.dst[0]]
    info = np.iinfo(dtype)

    def run(*args: Any) -> Any:
        wide = exact(*[np.asarray(a).astype(np.int64) for a in args])
        return np.clip(wide, info.min, info.max).astype(dtype)

    return run


# --- packed math ----------------------------------------------------------------------------


def _packed(d: Decoder, inst: Instruction, op: Op) -> Run:
    """VOP3P: the low result takes source halves by op_sel, the high one by op_sel_hi."""
    dst, src = inst.operands[0], inst.operands[1:]
    if len(src) != len(op.src):
        raise d.fail(f"{len(src)} sources, expected {len(op.src)}")
    count = len(src)
    halves = []
    for half, default in ((0, 0), (1, 1)):
        select = bit_list(inst.mods, "op_sel_hi" if half else "op_sel", count, default)
        negate = bit_list(inst.mods, "neg_hi" if half else "neg_lo", count)
        reads = [
            _half_read(d, operand, kind, bool(select[i]), bool(negate[i]))
            for i, (operand, kind) in enumerate(zip(src, op.src, strict=True))
        ]
        if op.implicit_src == ("dst",):  # each half accumulates onto its own
            reads.append(_half_read(d, dst, op.dst[0], bool(half), False))
        elif op.implicit_src:
            raise d.fail(f"implicit sources {op.implicit_src}")
        halves.append(reads)
    fn = _with_mods(d, inst, op)
    low, high = halves
    kind = op.dst[0]
    if kind in _HALVES:
        row = d.row(dst, 1, write=True)
        write = d.vector_write(Operand(dst.kind, dst.text, dst.index, 1), "u32")
        del row
        return _packed16(fn, low, high, write)
    first = d.vector_write(Operand(dst.kind, dst.text, dst.index, 1), kind)
    second = d.vector_write(Operand(dst.kind, dst.text, dst.index + 1, 1), kind)

    def run32(c: Cohort) -> None:
        lo = fn(*[read(c) for read in low])
        hi = fn(*[read(c) for read in high])
        first(c, lo)
        second(c, hi)

    return run32


def _packed16(fn: Callable[..., Any], low: list[Read], high: list[Read], write: Write) -> Run:
    def run16(c: Cohort) -> None:
        lo = np.broadcast_to(fn(*[read(c) for read in low]), (c.n, LANES))
        hi = np.broadcast_to(fn(*[read(c) for read in high]), (c.n, LANES))
        both = np.empty((c.n, LANES, 2), lo.dtype)
        both[:, :, 0], both[:, :, 1] = lo, hi
        write(c, both.view(np.uint32)[:, :, 0])

    return run16


def _half_read(d: Decoder, operand: Operand, kind: str, high: bool, negate: bool) -> Read:
    if kind in _HALVES:
        read = _half16(d, operand, kind, high)
    elif width_of(kind) == 1 and operand.count > 1:
        part = Operand(**{**operand.__dict__, "index": operand.index + int(high), "count": 1})
        read = d.vector_read(part, kind)
    else:
        read = d.vector_read(operand, kind)
    return negated(read, kind) if negate else read


def _half16(d: Decoder, operand: Operand, kind: str, high: bool) -> Read:
    """A constant is a 32-bit value whose upper half is zero or its sign (LLVM VOP3P operands)."""
    dtype = DTYPES[kind]
    if operand.kind == "float":
        value = d.constant(operand, kind)
        assert value is not None
        column = np.zeros((1, 1), dtype) if high else value.reshape(1, 1)
        return lambda c: column
    if operand.kind == "int":
        word = np.array([int(operand.value) & 0xFFFFFFFF], np.uint32).view(np.uint16)
        column = word[int(high) : int(high) + 1].view(dtype).reshape(1, 1)
        return lambda c: column
    return d.vector_read(operand, kind, high)
