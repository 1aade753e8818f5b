"""Proof that a wait is redundant: the operations that it waits for never matter before another.

Owns a walk of every path of a kernel's control flow with the queues of one wave, once with a wait
as written and once as changed. Operations of one counter retire in order, so each queue is the
newest part of one history, and the change shows as operations that are still in flight with it and
not without. The wait is redundant if on no path

- an instruction touches a register that such an operation writes,
- an LDS read meets such a direct-to-LDS load, or one is issued while such an LDS read is in flight,
- a barrier is reached with such an operation that touches LDS or writes memory,
- such a store is followed by a write-back of caches or by what tells others of it: an atomic, or a
  store of wider scope,
- such a load or atomic is followed by an invalidation of caches, which makes it an acquire.

States are explored until none is new; the number is bounded since every queue is (a counter's
width). Nothing is assumed of values: both ways of every branch are taken. Operations are taken to
stay in flight until a wait covers them, which is the latest that hardware may let them land.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from inductor_flydsl.emulator.asm import Instruction
from inductor_flydsl.emulator.decode import registers_of
from inductor_flydsl.emulator.program import Program

VM_LIMIT, LGKM_LIMIT = 63, 15
MAX_STATES = 200_000


@dataclass(frozen=True)
class Effect:
    """What a memory operation does: its counter, the registers it writes, LDS and memory."""

    counter: str
    writes: frozenset[int]
    lds: str = ""
    stores: bool = False
    loads: bool = False


@dataclass(frozen=True)
class State:
    """Where a path is: operations in flight, oldest first; how many of them as written; `smem`
    pairs hold (operation, in flight as written too)."""

    pc: int
    vm: tuple[int, ...] = ()
    vm_kept: int = 0
    ds: tuple[int, ...] = ()
    ds_kept: int = 0
    smem: tuple[tuple[int, bool], ...] = ()


@dataclass(frozen=True)
class Verdict:
    """redundant, and why: in words, with the lines where more was in flight and did no harm."""

    redundant: bool
    reason: str


def effect_of(program: Program, inst: Instruction) -> Effect | None:
    """What a memory instruction puts in flight, None for others."""
    base = inst.base
    reads, writes = registers_of(program, inst)
    if base.startswith("ds_"):
        kind = "" if "permute" in base or "swizzle" in base or base == "ds_nop" else "read"
        return Effect("ds", writes, "write" if base.startswith("ds_write") else kind)
    if base.startswith(("s_load_", "s_buffer_load_")):
        return Effect("smem", writes)
    if base.startswith(("buffer_", "global_", "flat_", "scratch_")) and inst.operands:
        dma = "lds" in inst.mods or "_lds_" in base
        stores = "_store" in base or "_atomic" in base
        loads = "_store" not in base
        return Effect("vm", writes, "dma" if dma else "", stores, loads)
    return None


def signals(inst: Instruction) -> bool:
    """Whether others may learn of earlier stores by this one: an atomic, or a store of wide scope
    (sc0, sc1: LLVM AMDGPU memory model for gfx942)."""
    scoped = "sc0" in inst.mods or "sc1" in inst.mods
    return "_atomic" in inst.base or ("_store" in inst.base and scoped)


class Walk:
    """All paths of one kernel with the wait at `pc` changed to `counts` ({} for none).

    lds: whether LDS counts; without it the order of LDS accesses is left to `bench.barriers`.
    """

    def __init__(self, program: Program, entry: int, pc: int, counts: Mapping[str, int], *,
                 lds: bool = True) -> None:  # fmt: skip
        self.lds = lds
        self.program = program
        self.entry = entry
        self.pc = pc
        self.counts = counts
        self.effects = [effect_of(program, inst) for inst in program.instructions]
        self.touches = [frozenset().union(*registers_of(program, i)) for i in program.instructions]
        self.extra_seen: set[int] = set()

    def prove(self) -> Verdict:
        """Walks until no state is new or a harm is found."""
        todo, seen = [State(self.entry)], set()
        while todo:
            state = todo.pop()
            if state in seen:
                continue
            seen.add(state)
            if len(seen) > MAX_STATES:
                return Verdict(False, "too many paths")
            harm = self._harm(state)
            if harm:
                return Verdict(False, harm)
            todo += self._next(state)
        if not self.extra_seen:
            return Verdict(True, "on every path an earlier wait has covered all that it waits for")
        lines = sorted(self.program.instructions[pc].line for pc in self.extra_seen)
        return Verdict(True, "on every path what it waits for is first used behind another wait "
                             f"that covers it (lines passed: {lines[0]}–{lines[-1]})")  # fmt: skip

    def _extra(self, state: State) -> list[int]:
        """Operations in flight because of the change."""
        vm = state.vm[: len(state.vm) - state.vm_kept]
        ds = state.ds[: len(state.ds) - state.ds_kept]
        return [*vm, *ds, *(pc for pc, kept in state.smem if not kept)]

    def _harm(self, state: State) -> str:
        extra = self._extra(state)
        if not extra or state.pc >= len(self.program.instructions):
            return ""
        inst = self.program.instructions[state.pc]
        self.extra_seen.add(state.pc)
        own = self.effects[state.pc]
        for pc in extra:
            effect = self.effects[pc]
            assert effect is not None
            what = f"line {inst.line} meets line {self.program.instructions[pc].line} in flight"
            if not self.touches[state.pc].isdisjoint(effect.writes):
                return what
            if inst.base == "s_barrier" and (effect.stores or (effect.lds and self.lds)):
                return what
            if self.lds and own is not None and {own.lds, effect.lds} == {"read", "dma"}:
                return what
            if effect.stores and (inst.base.startswith("buffer_wb") or signals(inst)):
                return what
            if effect.loads and inst.base.startswith("buffer_inv"):
                return what
        return ""

    def _next(self, state: State) -> list[State]:
        inst = self.program.instructions[state.pc]
        base = inst.base
        if base == "s_endpgm":
            return []
        if base == "s_waitcnt":
            changed = self.counts if state.pc == self.pc else inst.extra
            return [replace(self._wait(state, inst.extra, changed), pc=state.pc + 1)]
        if base.startswith(("s_setpc", "s_swappc", "s_call")):
            raise NotImplementedError(f"line {inst.line}: {inst.text} jumps to a computed place")
        effect = self.effects[state.pc]
        if effect is not None:
            state = self._issue(state, effect)
        after = replace(state, pc=state.pc + 1)
        if not base.startswith(("s_branch", "s_cbranch_")):
            return [after]
        jump = replace(state, pc=self.program.labels[inst.operands[0].text])
        return [jump] if base == "s_branch" else [after, jump]

    def _wait(self, state: State, written: Mapping[str, int], changed: Mapping[str, int]) -> State:
        kept = min(state.vm_kept, written.get("vmcnt", VM_LIMIT))
        vm = state.vm[max(0, len(state.vm) - changed.get("vmcnt", VM_LIMIT)) :]
        ds_kept, ds, smem = state.ds_kept, state.ds, state.smem
        if "lgkmcnt" in written:
            ds_kept = min(ds_kept, written["lgkmcnt"])
            if written["lgkmcnt"] == 0:
                smem = tuple((pc, False) for pc, _ in smem)
        if "lgkmcnt" in changed:
            ds = ds[max(0, len(ds) - changed["lgkmcnt"]) :]
            if changed["lgkmcnt"] == 0:
                smem = ()
        return replace(state, vm=vm, vm_kept=min(kept, len(vm)), ds=ds,
                       ds_kept=min(ds_kept, len(ds)), smem=tuple(sorted(set(smem))))  # fmt: skip

    def _issue(self, state: State, effect: Effect) -> State:
        if effect.counter == "smem":
            others = [item for item in state.smem if item[0] != state.pc]
            return replace(state, smem=tuple(sorted([*others, (state.pc, True)])))
        if effect.counter == "ds":
            ds = (*state.ds, state.pc)[-LGKM_LIMIT:]
            return replace(state, ds=ds, ds_kept=min(state.ds_kept + 1, len(ds)))
        vm = (*state.vm, state.pc)[-VM_LIMIT:]
        return replace(state, vm=vm, vm_kept=min(state.vm_kept + 1, len(vm)))


def prove_redundant(program: Program, entry: int, pc: int, counts: Mapping[str, int], *,
                    lds: bool = True) -> Verdict:  # fmt: skip
    """Whether the s_waitcnt at `pc` may have `counts` instead without effect; lds: as in Walk."""
    if any(c.startswith("exp") for c in program.instructions[pc].extra):
        return Verdict(False, "expcnt isn't followed")
    return Walk(program, entry, pc, counts, lds=lds).prove()
