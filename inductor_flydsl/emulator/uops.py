"""Executed instructions → the few numbers that a CU's issue logic needs of each.

Owns classes of instructions, their clocks, and which MFMA results an instruction depends on. A
micro-operation is a tuple whose first element is its class; see `cu` for what is done with it.
Knows nothing of time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .asm import Instruction, Operand
from .facts import GFX950, Facts
from .loops import Loop
from .mfma_ops import MFMA
from .program import Program
from .trace import LdsCost, MemoryForm, VmemCost, WaveTrace, is_vmem
from .vector import mod_int

(VALU, MATRIX, SALU, BRANCH, DS, VMEM, SMEM, WAIT, BARRIER, PRIORITY, IDLE, END, MARK) = range(13)
Uop = tuple[Any, ...]

_TRANSCENDENTAL = ("v_exp", "v_log", "v_rcp", "v_rsq", "v_sqrt", "v_sin", "v_cos")
_ACC = 1024
NO_WAIT = 1 << 10


def _registers(operand: Operand) -> range:
    if operand.kind not in ("v", "a"):
        return range(0)
    first = operand.index + (_ACC if operand.kind == "a" else 0)
    return range(first, first + operand.count)


class Uops:
    """Micro-operations of a program's instructions, made as they are first asked for.

    Attributes:
        exchanged: whether a 64-byte segment is one that workgroups leave for one another.
    """

    def __init__(self, program: Program, facts: Facts = GFX950) -> None:
        self.program = program
        self.facts = facts
        self.known: dict[int, Uop] = {}
        self.forms: dict[int, tuple[int, bool, tuple[int, ...]]] = {}
        self.atomics: set[int] = set()
        self.results: dict[int, set[int]] = {}
        self.exchanged: Callable[[int], bool] = lambda segment: False
        for inst in program.instructions:
            if inst.base in MFMA:
                rows = _registers(inst.operands[0])
                for row in rows:
                    self.results.setdefault(row, set()).add(rows[0])

    def wave(self, trace: WaveTrace, keep: np.ndarray, loop: Loop | None) -> list[Uop]:
        """Micro-operations of the executed instructions at positions `keep`.

        A MARK comes before each round of `loop` that is kept.
        """
        pcs = trace.pcs
        taken = np.empty(len(pcs), np.bool_)
        taken[:-1] = pcs[1:] != pcs[:-1] + 1
        taken[-1] = False
        visits = _visits(pcs, trace.costs)
        chosen, jumps = pcs[keep].tolist(), taken[keep].tolist()
        ops: list[Uop] = []
        for pc, jump, position in zip(chosen, jumps, keep.tolist(), strict=True):
            if loop is not None and _heads(loop, position):
                ops.append((MARK,))
            costs = trace.costs.get(pc)
            if costs is not None:
                visit = min(visits[position], len(costs) - 1)
                ops.append(self._memory(pc, costs[visit]))
            else:
                ops.append(self._plain(pc, jump))
        return ops

    def writes(self, pc: int) -> bool:
        """Whether the vector memory instruction at `pc` is a store or an atomic."""
        return bool(self._form(pc)[1])

    def is_atomic(self, pc: int) -> bool:
        """Whether the vector memory instruction at `pc` is an atomic."""
        self._form(pc)
        return pc in self.atomics

    # --- one instruction ------------------------------------------------------------------

    def _depends(self, operands: Sequence[Operand]) -> tuple[int, ...]:
        """MFMA results, by their first register, that these operands touch."""
        bases: set[int] = set()
        for operand in operands:
            for row in _registers(operand):
                bases |= self.results.get(row, set())
        return tuple(sorted(bases))

    def _plain(self, pc: int, jump: bool) -> Uop:
        inst = self.program.instructions[pc]
        if inst.base.startswith(("s_cbranch", "s_branch", "s_setpc", "s_swappc", "s_call")):
            return (BRANCH, self.facts.branch_taken if jump else self.facts.branch_not_taken)
        if pc not in self.known:
            self.known[pc] = self._make(inst)
        return self.known[pc]

    def _make(self, inst: Instruction) -> Uop:
        base, facts = inst.base, self.facts
        if base in MFMA:
            return self._matrix(inst)
        if base == "s_waitcnt":
            vm, lgkm = inst.extra.get("vmcnt", NO_WAIT), inst.extra.get("lgkmcnt", NO_WAIT)
            return (WAIT, vm, lgkm)
        if base == "s_barrier":
            return (BARRIER,)
        if base == "s_setprio":
            return (PRIORITY, int(inst.operands[0].value))
        if base in ("s_nop", "s_sleep"):
            count = int(inst.operands[0].value) if inst.operands else 0
            return (IDLE, facts.turn * (count + 1) if base == "s_nop" else 64 * max(1, count))
        if base == "s_endpgm":
            return (END,)
        if base.startswith(("s_load", "s_buffer_load", "s_memtime", "s_memrealtime")):
            return (SMEM,)
        if base.startswith("s_"):
            return (SALU,)
        if base.startswith("v_"):
            slow = base.startswith(_TRANSCENDENTAL)
            return (VALU, facts.transcendental if slow else facts.turn,
                    self._depends(inst.operands))  # fmt: skip
        return (SALU,)

    def _matrix(self, inst: Instruction) -> Uop:
        op, facts = MFMA[inst.base], self.facts
        passes = op.passes_for(mod_int(inst.mods, "cbsz"), mod_int(inst.mods, "blgp"))
        states = facts.mfma_wait_states[min(16, passes)]
        d, a, b = (inst.operands[i] for i in range(3))
        blocked = min(facts.mfma_blocks_valu, facts.turn * passes)
        sources = self._depends((a, b, *inst.operands[4:]))
        return (MATRIX, facts.turn * passes, blocked, sources, _registers(d)[0],
                facts.turn * (states + 1))  # fmt: skip

    def _memory(self, pc: int, cost: LdsCost | VmemCost) -> Uop:
        inst = self.program.instructions[pc]
        written, store, depends = self._form(pc)
        if isinstance(cost, LdsCost):
            write = not inst.base.startswith(("ds_read", "ds_bpermute", "ds_permute", "ds_swizzle"))
            return (DS, cost.core, cost.bus, write, depends)
        exchange = self.is_atomic(pc) or self.exchanged(cost.segment)
        return (VMEM, cost.issue, cost.moved, cost.missed, written, store, depends, exchange)

    def _form(self, pc: int) -> tuple[int, bool, tuple[int, ...]]:
        """Clocks of its LDS-DMA, whether it stores, and the MFMA results that it needs."""
        known = self.forms.get(pc)
        if known is None:
            inst = self.program.instructions[pc]
            depends = self._depends(inst.operands)
            known = (0, False, depends)
            if is_vmem(inst):
                form = MemoryForm(self.program, inst)
                written = 64 * max(4, form.size) // self.facts.lds_write_bytes if form.lds else 0
                known = (written, form.store or form.atomic, depends)
                if form.atomic:
                    self.atomics.add(pc)
            self.forms[pc] = known
        return known


def _heads(loop: Loop, position: int) -> bool:
    offset = position - loop.start
    return 0 <= offset <= loop.rounds * loop.length and offset % loop.length == 0


def _visits(pcs: np.ndarray, costs: dict[int, Any]) -> dict[int, int]:
    """Position → how often its memory instruction was executed before."""
    found: dict[int, int] = {}
    for pc in costs:
        for visit, position in enumerate(np.flatnonzero(pcs == pc).tolist()):
            found[position] = visit
    return found
