"""Findings: what a kernel does that hardware doesn't promise to do right.

Owns the kinds of findings, their words and their counting. A run without findings never comes
here. Knows the queues and the LDS shadow, nothing of what instructions compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .asm import EXEC, M0, VCC, Instruction
from .defined import Definedness, Fault, Uses
from .operands import SCC_KEY, SGPR_KEY
from .program import Kernel
from .queues import DS, SMEM, VM, Entry
from .shadow import Clash, Shadow
from .state import Cohort, Machine, Selector
from .waitstates import too_close

ERRORS = ("out-of-bounds", "read-before-landing", "write-before-landing", "lds-race",
          "barrier-divergence", "wait-states")  # fmt: skip
WARNINGS = ("lds-overlap", "misaligned", "uninitialised-lds", "uninitialised-vgpr", "spill")
_SHOWN_WAVES = 4
_MEMORY = ("ds_", "buffer_", "global_", "flat_", "scratch_", "s_load", "s_buffer_load")


@dataclass(frozen=True)
class Finding:
    """One hazard at one instruction.

    kind: one of ERRORS or WARNINGS. text, line: the instruction. source: file:line, if the text
    has debug lines. waves: the first few that met it. what: the registers or bytes. message: what
    is wrong and which wait or barrier is missing. count: lanes or waves that met it, over the run.
    """

    kind: str
    kernel: str
    text: str
    line: int
    source: str
    waves: tuple[str, ...]
    what: str
    message: str
    count: int

    @property
    def severity(self) -> str:
        """ "error" if results may be wrong on hardware, else "warning"."""
        return "error" if self.kind in ERRORS else "warning"

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        who = f"{', '.join(self.waves)}; " if self.waves else ""
        return (
            f"{self.severity}: {self.kind}: {self.message}\n  {self.kernel} line {self.line}"
            f"{where}: {self.text}\n  {self.what}; {who}{self.count} times"
        )


Run = Callable[[Cohort], Any]


def checked(run: Run, inst: Instruction, uses: Uses) -> Run:
    """Wraps a closure with the register checks."""
    reads, writes, touched = uses.reads, uses.writes, uses.touched
    moves_memory = inst.base.startswith(_MEMORY)

    def wrapped(c: Cohort) -> Any:
        hazards = c.m.hazards
        if hazards is None:
            return run(c)
        if hazards.in_flight and not touched.isdisjoint(hazards.in_flight):
            # Loads into the same register land in order, so only others overwrite too early.
            hazards.touched(c, inst, reads, frozenset() if moves_memory else writes)
        if not touched.isdisjoint(hazards.definedness.undefined):
            return hazards.run_undefined(c, run, inst, uses)
        return run(c)

    return wrapped


class Hazards:
    """Collects the findings of one launch."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.found: dict[tuple[str, int, str], Finding] = {}
        self.m: Machine
        resources = kernel.resources
        for pair in too_close(kernel):
            self._add(
                "wait-states", pair.user, (), pair.producer.operands[0].text,
                f"touches the result of '{pair.producer.text}' (line {pair.producer.line}) "
                f"{pair.states} wait states behind it; {pair.needed} are needed: put an s_nop "
                f"{pair.needed - pair.states - 1} between", detail=str(pair.producer.line),
            )  # fmt: skip
        spills = resources.vgpr_spills + resources.sgpr_spills
        if resources.vgpr_spills:
            message = (
                f"the compiler spilled {resources.vgpr_spills} VGPRs to {resources.scratch} bytes "
                f"of scratch, and {resources.sgpr_spills} SGPRs"
            )
            self._add("spill", None, (), f"{spills} registers", message, count=spills)

    def attach(self, machine: Machine) -> Hazards:
        """A view that watches `machine` and collects into the same findings."""
        view = Hazards.__new__(Hazards)
        view.kernel, view.found, view.m = self.kernel, self.found, machine
        view.in_flight = {}
        view.definedness = Definedness(machine)
        view.shadow = Shadow(machine.lds.nbytes, machine.waves_per_group)
        return view

    in_flight: dict[int, int]
    """Register → waves for which an operation that writes it is in flight."""
    definedness: Definedness
    shadow: Shadow

    def findings(self) -> tuple[Finding, ...]:
        """All findings, errors first, then by line."""
        order = {kind: i for i, kind in enumerate(ERRORS + WARNINGS)}
        return tuple(sorted(self.found.values(), key=lambda f: (order[f.kind], f.line)))

    def _add(self, kind: str, inst: Instruction | None, waves: Iterable[int], what: str,
             message: str, *, count: int = 1, detail: str = "") -> None:  # fmt: skip
        key = (kind, inst.line if inst else 0, detail)
        old = self.found.get(key)
        if old is not None:
            self.found[key] = replace(old, count=old.count + count)
            return
        names = tuple(self.m.wave_name(int(w)) for w in list(waves)[:_SHOWN_WAVES])
        text, line, source = (inst.text, inst.line, inst.source) if inst else ("", 0, "")
        self.found[key] = Finding(
            kind, self.kernel.name, text, line, source, names, what, message, count
        )

    # --- registers ------------------------------------------------------------------------

    def issued(self, entry: Entry) -> None:
        """An operation entered its queue."""
        for reg in entry.regs:
            self.in_flight[reg] = self.in_flight.get(reg, 0) + entry.waves.n

    def landed(self, entry: Entry) -> None:
        """An operation left its queue: a wait covered it."""
        for reg in entry.regs:
            left = self.in_flight[reg] - entry.waves.n
            if left:
                self.in_flight[reg] = left
            else:
                del self.in_flight[reg]
        if entry.marks is not None and entry.note is not None and entry.note.open:
            self._set_end(entry, closed=True)

    def touched(self, c: Cohort, inst: Instruction, reads: frozenset[int],
                writes: frozenset[int]) -> None:  # fmt: skip
        """An instruction touches a register that some wave has in flight; are they its waves?"""
        pending = self.m.queues.pending(c.waves)
        for at, entry in enumerate(pending):
            for regs, kind, verb in ((reads, "read", "reads"), (writes, "write", "overwrites")):
                hit = sorted(regs.intersection(entry.regs))
                if not hit:
                    continue
                newer = [e for e in pending[at + 1 :] if e.waves.key == entry.waves.key]
                self._add(
                    f"{kind}-before-landing", inst, entry.waves.idx, self._registers(hit),
                    f"{verb} {self._registers(hit)} while '{entry.inst.text}' (line "
                    f"{entry.inst.line}) is in flight; {_missing_wait(entry, newer)}",
                    count=entry.waves.n, detail=str(entry.inst.line),
                )  # fmt: skip

    def run_undefined(self, c: Cohort, run: Run, inst: Instruction, uses: Uses) -> Any:
        """Runs an instruction that touches registers of which some bits were never written."""
        known = self.definedness
        if inst.base.startswith(_MEMORY):
            self._undefined(c, inst, known.access(c, inst, uses), "memory")
            jump = run(c)
            known.loaded(c, uses)
            return jump
        if inst.base.startswith("s_cbranch_"):
            self._undefined(c, inst, known.condition(c, inst), "the branch")
            return run(c)
        if inst.base in ("s_setpc_b64", "s_swappc_b64"):
            self._undefined(c, inst, known.access(c, inst, uses), "the jump")
            return run(c)
        self._undefined(c, inst, known.execute(c, run, inst, uses), "EXEC")
        return None

    def _undefined(self, c: Cohort, inst: Instruction, fault: Fault | None, where: str) -> None:
        if fault is None:
            return
        names = self._registers(fault.registers)
        message = f"{names} reaches {where} and was never written, or not all of it"
        if fault.origin is not None and fault.origin.register not in fault.registers:
            first = self._registers([fault.origin.register])
            message = (
                f"{names} reaches {where} and depends on {first}, which nothing had written when "
                f"'{fault.origin.inst.text}' (line {fault.origin.inst.line}) read it"
            )
        self._add("uninitialised-vgpr", inst, c.waves.idx[fault.waves], names, message,
                  count=fault.lanes)  # fmt: skip

    def _registers(self, regs: list[int]) -> str:
        base = self.m.agpr_base
        names = [
            _scalar_name(r) if r >= SGPR_KEY else f"a{r - base}" if r >= base else f"v{r}"
            for r in regs
        ]
        return ", ".join(names[:4]) + (" …" if len(names) > 4 else "")

    # --- memory ---------------------------------------------------------------------------

    def out_of_bounds(self, inst: Instruction, sel: Selector, lanes: np.ndarray, address: int,
                      space: str = "global") -> None:  # fmt: skip
        """Active lanes outside of every region, or of the workgroup's LDS."""
        waves = np.arange(self.m.waves)[sel][lanes.any(axis=1)]
        if space == "lds":
            what = f"LDS byte {address}"
            message = f"touches LDS byte {address}; the workgroup has {self.m.lds_size}"
        else:
            what = f"address {address:#x}"
            message = f"touches address {address:#x}, outside every buffer the kernel was given"
        self._add("out-of-bounds", inst, waves, what, message, count=int(lanes.sum()))

    def misaligned(self, c: Cohort, inst: Instruction, addr: np.ndarray, size: int,
                   active: np.ndarray | None) -> None:  # fmt: skip
        """LDS addresses that aren't multiples of the access, up to a dword."""
        step = 8 if "_tr_" in inst.base else min(size, 4)
        if not int(np.bitwise_or.reduce(addr, axis=None)) & (step - 1):
            return
        lanes = (addr & (step - 1)) != 0
        if active is not None:
            lanes &= active
        if lanes.any():
            waves = c.waves.idx[np.flatnonzero(lanes.any(axis=1))]
            self._add("misaligned", inst, waves, f"{step}-byte alignment",
                      f"LDS addresses are not multiples of {step}",
                      count=int(lanes.sum()))  # fmt: skip

    def _rows(self, c: Cohort) -> tuple[np.ndarray, np.ndarray]:
        """(wave number in its workgroup, epoch) [n, 1] of a cohort."""
        return self._wave_epoch(c.waves.idx)

    def _wave_epoch(self, waves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        m = self.m
        return (waves // m.groups)[:, None], m.epoch[m.group_of[waves]][:, None]

    def lds_read(self, c: Cohort, inst: Instruction, addr: np.ndarray, size: int,
                 entry: Entry) -> None:  # fmt: skip
        """Before a read is issued."""
        self.misaligned(c, inst, addr, size, c.exec)
        wave, epoch = self._rows(c)
        entry.marks, entry.note = (addr, c.exec, epoch), Note(size, write=False)
        rows, addr, wave, epoch = _active(addr, c.exec, wave, epoch)
        if not addr.size:
            return
        race, unwritten = self.shadow.read(addr, size, wave, epoch)
        if race:
            self._race(c, inst, race, rows, "read")
        if unwritten:
            where = self._byte(c, unwritten, rows)
            self._add("uninitialised-lds", inst, [self._wave(c, unwritten, rows)], where,
                      f"reads {where}, which nothing has written",
                      count=unwritten.count)  # fmt: skip

    def lds_write(self, c: Cohort, inst: Instruction, addr: np.ndarray, size: int,
                  entry: Entry) -> None:  # fmt: skip
        """Before a DS write or an LDS-DMA is issued."""
        dma = entry.kind is VM
        active = entry.arrays[1]
        self.misaligned(c, inst, addr, size, active)
        wave, epoch = self._rows(c)
        entry.marks, entry.note = (addr, active, epoch), Note(size, write=True, open=dma)
        rows, addr, wave, epoch = _active(addr, active, wave, epoch)
        if not addr.size:
            return
        words = None if dma else [word for word in entry.arrays[2:] if word is not None]
        if words is not None and active is not None:
            words = [word[active][:, None] for word in words]
        race = self.shadow.write(addr, size, wave, epoch, words)
        if race:
            self._race(c, inst, race, rows, "write")

    def lds_atomic(self, c: Cohort, inst: Instruction, addr: np.ndarray, size: int,
                   entry: Entry) -> None:  # fmt: skip
        """Atomics are ordered among themselves; they only define what they touch."""
        self.misaligned(c, inst, addr, size, c.exec)
        wave, epoch = self._rows(c)
        _, addr, wave, epoch = _active(addr, c.exec, wave, epoch)
        if addr.size:
            self.shadow.fill(addr, size, wave, epoch)

    def _wave(self, c: Cohort, clash: Clash, rows: np.ndarray | None) -> int:
        return int(c.waves.idx[clash.row if rows is None else rows[clash.row]])

    def _byte(self, c: Cohort, clash: Clash, rows: np.ndarray | None) -> str:
        wave = self._wave(c, clash, rows)
        return f"LDS byte {clash.byte - int(self.m.lds_base[wave])}"

    def _race(self, c: Cohort, inst: Instruction, clash: Clash, rows: np.ndarray | None,
              action: str) -> None:  # fmt: skip
        wave = self._wave(c, clash, rows)
        mine = wave // self.m.groups
        byte = self._byte(c, clash, rows)
        other = f"wave {clash.other}"
        if clash.other == mine and not clash.read:
            self._add(f"{action}-before-landing", inst, [wave], byte,
                      f"{action}s {byte} while this wave's own LDS-DMA into it is in flight; an "
                      "s_waitcnt vmcnt is missing", count=clash.count, detail="lds")  # fmt: skip
            return
        if clash.open:
            missing = f"{other} hasn't waited for its access with s_waitcnt"
        elif clash.late:
            missing = f"{other} waited for its access only behind the barrier, not before it"
        else:
            missing = f"no s_barrier between this and {other}'s access"
        kind = "read-before-landing" if action == "read" and clash.open else "lds-race"
        if clash.read and (clash.late or clash.open):
            # DS reads end long before an LDS-DMA lands, but nothing promises it.
            kind = "lds-overlap"
        self._add(kind, inst, [wave], byte, f"{action}s {byte}, {missing}", count=clash.count,
                  detail="lds")  # fmt: skip

    # --- barriers -------------------------------------------------------------------------

    def barrier_reached(self, c: Cohort, inst: Instruction) -> None:
        """DS operations not waited for may still happen behind the barrier."""
        for entry in self.m.queues.pending(c.waves):
            if entry.kind is DS and entry.note is not None and not entry.note.open:
                entry.note = replace(entry.note, open=True)
                self._set_end(entry, closed=False)

    def _set_end(self, entry: Entry, closed: bool) -> None:
        assert entry.note is not None
        addr, active, issued = entry.marks
        wave, epoch = self._wave_epoch(entry.waves.idx)
        rows, addr, wave, epoch = _active(addr, active, wave, epoch)
        if not addr.size:
            return
        size, write = entry.note.size, entry.note.write
        if closed:
            issued = issued if rows is None else issued[rows]
            self.shadow.close(addr, size, wave, (issued, epoch), write)
        else:
            self.shadow.reopen(addr, size, wave, write)

    def barrier_released(self, waiting: np.ndarray, release: np.ndarray) -> None:
        """[waves of a workgroup, workgroups]: a barrier lets go though not all waves came."""
        missing = release & ~waiting.all(axis=0)
        if not missing.any():
            return
        m = self.m
        group = int(np.flatnonzero(missing)[0])
        came = np.flatnonzero(waiting[:, group]) * m.groups + group
        inst = m.kernel.program.instructions[int(m.pc[came[0]]) - 1]
        absent = np.flatnonzero(~waiting[:, group])
        self._add(
            "barrier-divergence", inst, came, f"workgroup {int(m.group_ids[group])}",
            f"waves {', '.join(map(str, absent))} ended without this barrier",
            count=int(missing.sum()),
        )  # fmt: skip


@dataclass(frozen=True)
class Note:
    """What an entry does to LDS: bytes a lane, and whether it is open in the shadow."""

    size: int
    write: bool
    open: bool = False


_Rows = tuple[np.ndarray | None, np.ndarray, np.ndarray, np.ndarray]


def _active(addr: np.ndarray, active: np.ndarray | None, wave: np.ndarray,
            epoch: np.ndarray) -> _Rows:  # fmt: skip
    """Drops inactive lanes: (rows or None, addr [k, 1], wave [k, 1], epoch [k, 1])."""
    if active is None:
        return None, addr, wave, epoch
    rows = np.nonzero(active)[0]
    return rows, addr[active][:, None], wave[rows], epoch[rows]


def _scalar_name(key: int) -> str:
    names = {VCC: "vcc_lo", VCC + 1: "vcc_hi", M0: "m0", EXEC: "exec_lo", EXEC + 1: "exec_hi"}
    return "scc" if key == SCC_KEY else names.get(key - SGPR_KEY, f"s{key - SGPR_KEY}")


def _missing_wait(entry: Entry, newer: list[Entry]) -> str:
    if entry.kind is SMEM:
        return "s_waitcnt lgkmcnt(0) is missing"
    counter = "vmcnt" if entry.kind is VM else "lgkmcnt"
    count = sum(1 for e in newer if e.kind is entry.kind)
    return f"s_waitcnt {counter}({count}) is missing"
