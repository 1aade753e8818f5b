"""Scalar ALU instructions and everything that steers a wave: branches, waits, barriers, the end.

Owns SOP* closures and the program counter's changes. A closure returns None to fall through, the
index of the next instruction, or LEAVE when its waves' counters and states are already set.
Semantics: AMD "CDNA4 ISA" guide, "Scalar ALU Operations" and "Program Flow Control".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .asm import EXEC, M0, VCC, Instruction, Operand
from .errors import ExecutionError, Trap
from .op import Op
from .operands import SCC_KEY, Decoder, Read, Write
from .program import CODE_BASE, CODE_STEP
from .state import AT_BARRIER, ENDED, Cohort

Run = Callable[[Cohort], Any]
LEAVE = -1
_NOTHING = frozenset({
    "s_nop", "s_setprio", "s_sleep", "s_incperflevel", "s_decperflevel", "s_ttracedata",
    "s_icache_inv", "s_wakeup",
})  # fmt: skip
# HW_REG ids of gfx9-gfx950 that hold something a kernel may ask for.
_HW_REGISTERS = {"HW_REG_HW_ID": 0, "HW_REG_XCC_ID": 0, "HW_REG_MODE": 0x2F0}


def compile_salu(d: Decoder, inst: Instruction, op: Op) -> Run:
    """Closure of a "salu" opcode on one value per wave."""
    dst, src = inst.operands[: len(op.dst)], inst.operands[len(op.dst) :]
    if len(src) != len(op.src):
        raise d.fail(f"{len(inst.operands)} operands, expected {len(op.dst) + len(op.src)}")
    reads = [d.scalar_read(o, k) for o, k in zip(src, op.src, strict=True)]
    reads += [_implicit_read(d, name, dst, op) for name in op.implicit_src]
    writes = [d.scalar_write(o, k) for o, k in zip(dst, op.dst, strict=True)]
    writes += [_implicit_write(d, name) for name in op.implicit_dst]
    fn: Callable[..., Any] = op.fn
    if len(writes) != 1:
        return _many(fn, reads, writes)
    write = writes[0]
    if len(reads) == 1:
        only = reads[0]
        return lambda c: write(c, fn(only(c)))
    if len(reads) == 2:
        first, second = reads
        return lambda c: write(c, fn(first(c), second(c)))
    return lambda c: write(c, fn(*[read(c) for read in reads]))


def _many(fn: Callable[..., Any], reads: list[Read], writes: list[Write]) -> Run:
    def run(c: Cohort) -> None:
        results = fn(*[read(c) for read in reads])
        for write, result in zip(writes, results, strict=True):
            write(c, result)

    return run


def _implicit_read(d: Decoder, name: str, dst: tuple[Operand, ...], op: Op) -> Read:
    if name == "scc":
        d.note_flag(name)
        return lambda c: c.m.scc[c.sel]
    if name == "dst":
        return d.scalar_read(dst[0], op.dst[0])
    index = {"exec": EXEC, "vcc": VCC}[name]
    return d.scalar_read(Operand("s", name, index, 2), "u64")


def _implicit_write(d: Decoder, name: str) -> Write:
    if name == "scc":
        d.writes.add(SCC_KEY)

        def write_scc(c: Cohort, value: Any) -> None:
            c.m.scc[c.sel] = value

        return write_scc
    index = {"exec": EXEC, "vcc": VCC}[name]
    return d.scalar_write(Operand("s", name, index, 2), "u64")


# --- program flow -----------------------------------------------------------------------------


def compile_flow(d: Decoder, inst: Instruction) -> Run | None:
    """Closure of a flow, wait or message instruction, None if `inst` is none of them."""
    base = inst.base
    if base in _NOTHING:
        return lambda c: None
    if base == "s_waitcnt":
        return _waitcnt(inst)
    if base == "s_endpgm":
        return _end
    if base == "s_barrier":
        return _barrier(inst)
    if base == "s_branch":
        target = d.program.labels[inst.operands[0].text]
        return lambda c: target
    if base.startswith("s_cbranch_") and base[10:] in _CONDITIONS:
        return _conditional(d, inst)
    if base in ("s_getpc_b64", "s_setpc_b64", "s_swappc_b64", "s_call_b64"):
        return _program_counter(d, inst)
    if base == "s_getreg_b32":
        return _getreg(d, inst)
    if base.startswith(("s_trap", "s_sendmsg")):
        return _trap(inst)
    if base.startswith(("s_movrel", "s_set_gpr_idx")):
        return _relative_move(d, inst)
    return None


def _waitcnt(inst: Instruction) -> Run:
    vm, lgkm = inst.extra.get("vmcnt"), inst.extra.get("lgkmcnt")

    def wait(c: Cohort) -> None:
        queues = c.m.queues
        if vm is not None:
            queues.wait_vm(c.waves, vm)
        if lgkm is not None:
            queues.wait_lgkm(c.waves, lgkm)

    return wait


def _end(c: Cohort) -> int:
    c.m.queues.retire(c.waves)
    c.m.status[c.sel] = ENDED
    return LEAVE


def _barrier(inst: Instruction) -> Run:
    following = inst.pc + 1

    def barrier(c: Cohort) -> int | None:
        m = c.m
        if m.hazards is not None:
            m.hazards.barrier_reached(c, inst)
        if c.n == m.waves:
            m.epoch += 1
            return None
        m.pc[c.sel] = following
        m.status[c.sel] = AT_BARRIER
        return LEAVE

    return barrier


_CONDITIONS: dict[str, Callable[[Cohort], np.ndarray]] = {
    "scc1": lambda c: c.m.scc[c.sel],
    "scc0": lambda c: ~c.m.scc[c.sel],
    "vccz": lambda c: (c.S[VCC, c.sel] | c.S[VCC + 1, c.sel]) == 0,
    "vccnz": lambda c: (c.S[VCC, c.sel] | c.S[VCC + 1, c.sel]) != 0,
    "execz": lambda c: (c.S[EXEC, c.sel] | c.S[EXEC + 1, c.sel]) == 0,
    "execnz": lambda c: (c.S[EXEC, c.sel] | c.S[EXEC + 1, c.sel]) != 0,
}


def _conditional(d: Decoder, inst: Instruction) -> Run:
    name = inst.base[10:]
    condition = _CONDITIONS[name]
    d.note_flag(name)
    target, following = d.program.labels[inst.operands[0].text], inst.pc + 1

    def branch(c: Cohort) -> int | None:
        if name[:4] == "exec" and c.full:
            return target if name == "execnz" else None
        taken = condition(c)
        count = int(np.count_nonzero(taken))
        if count == 0:
            return None
        if count == c.n:
            return target
        c.m.pc[c.sel] = np.where(taken, target, following)
        return LEAVE

    return branch


def _program_counter(d: Decoder, inst: Instruction) -> Run:
    base, operands = inst.base, inst.operands
    following = np.array([CODE_BASE + CODE_STEP * (inst.pc + 1)], np.uint64)
    save = d.scalar_write(operands[0], "u64") if base != "s_setpc_b64" else None
    if base == "s_getpc_b64":
        assert save is not None
        return lambda c: save(c, np.broadcast_to(following, (c.n,)))
    source = d.scalar_read(operands[-1], "u64")

    def jump(c: Cohort) -> int:
        where = np.broadcast_to(source(c), (c.n,)).astype(np.int64)
        if save is not None:
            save(c, np.broadcast_to(following, (c.n,)))
        pcs, rest = np.divmod(where - CODE_BASE, CODE_STEP)
        if rest.any() or pcs.min() < 0 or pcs.max() >= len(d.program.instructions):
            raise ExecutionError("jump outside of the code", c.m.kernel.name, inst.line, inst.text)
        if (pcs == pcs[0]).all():
            return int(pcs[0])
        c.m.pc[c.sel] = pcs
        return LEAVE

    return jump


def _getreg(d: Decoder, inst: Instruction) -> Run:
    text = inst.operands[1].text
    parts = [part.strip() for part in text.removeprefix("hwreg(").removesuffix(")").split(",")]
    if parts[0] not in _HW_REGISTERS:
        raise d.fail(f"hardware register {parts[0]}")
    shift, bits = (int(parts[1]), int(parts[2])) if len(parts) == 3 else (0, 32)
    write = d.scalar_write(inst.operands[0], "u32")
    fixed = _HW_REGISTERS[parts[0]] >> shift & ((1 << bits) - 1)

    def read(c: Cohort) -> None:
        if parts[0] == "HW_REG_XCC_ID":  # workgroups go round-robin to the 8 XCDs
            group = c.m.group_ids[c.m.group_of[c.sel]]
            write(c, (group % 8 >> shift & ((1 << bits) - 1)).astype(np.uint32))
        else:
            write(c, np.full(c.n, fixed, np.uint32))

    return read


def _trap(inst: Instruction) -> Run:
    if "DEALLOC_VGPRS" in inst.text:
        return lambda c: None

    def trap(c: Cohort) -> None:
        wave = c.m.wave_name(int(c.waves.idx[0]))
        raise Trap(f"{inst.text} executed by {wave}", c.m.kernel.name, inst.line, inst.text)

    return trap


def _relative_move(d: Decoder, inst: Instruction) -> Run:
    """s_movrels/s_movreld: register number plus M0."""
    if not inst.base.startswith(("s_movrels_b", "s_movreld_b")):
        raise d.fail("VGPR indexing mode")
    words = 2 if inst.base.endswith("64") else 1
    into, source = inst.operands
    source_row = d.sreg(source, words)
    target = d.sreg(into, words, write=True)
    indirect_source = inst.base.startswith("s_movrels")

    def move(c: Cohort) -> None:
        shift = c.S[M0, c.sel].astype(np.int64)
        waves = c.waves.idx
        for i in range(words):
            if indirect_source:
                c.S[target + i, waves] = c.S[source_row + i + shift, waves]
            else:
                c.S[target + i + shift, waves] = c.S[source_row + i, waves]

    return move
