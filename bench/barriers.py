"""Proof that a barrier, or a wait for LDS, is redundant: others still order all LDS accesses.

Owns a happens-before check that shares nothing with the emulator's own race finding. It records
when each wave of a workgroup touches which dwords of LDS, in barriers passed: from the one before
the access is issued to the one before which its wave has waited for it, as late as the waits let
it land. Two accesses of different waves to one dword, one of them a write, whose spans meet are not
ordered; neither are a wave's own direct-to-LDS load and a DS operation before the wait. Barriers
alone order waves, and the record doesn't depend on which wave goes first as long as no address or
branch depends on LDS; so no order of waves can break a kernel that passes. That no address depends
on data is checked by a second run on other operands.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from inductor_flydsl.emulator import Options
from inductor_flydsl.emulator.decode import code_of
from inductor_flydsl.emulator.hazards import Hazards
from inductor_flydsl.emulator.launch import make_launch, make_machine
from inductor_flydsl.emulator.queues import VM, Entry, Queues
from inductor_flydsl.emulator.state import Machine
from inductor_flydsl.emulator.wave import Scheduler

from .isa_runs import Case
from .waits import Verdict, signals

MAX_GROUPS = 16
"""Workgroups that are followed: enough for all that share a tile of C."""


@dataclass
class Access:
    """Dwords of LDS that one wave touches.

    kind: "read", "write" or "dma". first, last: epochs, barriers passed. start, end: clock ticks of
    the issue and of the wait that covers it, for accesses of one wave.
    """

    wave: int
    kind: str
    line: int
    dwords: np.ndarray
    first: int
    start: int
    last: int = 1 << 30
    end: int = 1 << 60

    def unordered_with(self, other: Access) -> bool:
        """Whether the two may happen in either order, and it would show."""
        if self.kind == other.kind == "read":
            return False
        if self.wave != other.wave:
            return self.first <= other.last and other.first <= self.last
        # A wave's DS operations are in order, and so are its DMAs, but not these with those.
        if (self.kind == "dma") == (other.kind == "dma"):
            return False
        return self.start < other.end and other.start < self.end


class Recording(Hazards):
    """Notes accesses where the emulator looks for hazards; finds none itself."""

    def start(self, machine: Machine) -> None:
        """Watches `machine`, whose waves all belong to one workgroup."""
        view = self.attach(machine)
        self.__dict__.update(view.__dict__)
        self.accesses: list[Access] = []

    def _note(self, entry: Entry, addr: np.ndarray, size: int, write: bool) -> None:
        kind = "read" if not write else "dma" if entry.kind is VM else "write"
        active = entry.arrays[1] if write else entry.arrays[0]
        epoch = int(self.m.epoch[0])
        own = []
        for row, wave in enumerate(entry.waves.idx.tolist()):
            lanes = addr[row] if active is None else addr[row][active[row]]
            first = np.unique(lanes >> 2)
            words = np.unique((first[:, None] + np.arange(max(1, size // 4))).ravel())
            own.append(Access(wave, kind, entry.inst.line, words, epoch, self.m.ticks))
        self.accesses += own
        entry.note = own

    def lds_read(self, c: Any, inst: Any, addr: np.ndarray, size: int, entry: Entry) -> None:
        self._note(entry, addr, size, False)

    def lds_write(self, c: Any, inst: Any, addr: np.ndarray, size: int, entry: Entry) -> None:
        self._note(entry, addr, size, True)

    def lds_atomic(self, c: Any, inst: Any, addr: np.ndarray, size: int, entry: Entry) -> None:
        raise NotImplementedError(f"line {inst.line}: LDS atomics order waves themselves")

    def issued(self, entry: Entry) -> None:
        """Registers aren't followed here."""

    def landed(self, entry: Entry) -> None:
        """A wait has covered the access."""
        waves = set(entry.waves.idx.tolist())  # an entry may have been split since
        for access in entry.note or ():
            if access.wave in waves:
                access.last, access.end = int(self.m.epoch[0]), self.m.ticks

    def barrier_reached(self, c: Any, inst: Any) -> None:
        """Spans tell all there is to say."""


def record(program: Any, case: Case) -> list[list[Access]]:
    """LDS accesses of each of the first workgroups, run one after another, memory landing as late
    as it may."""
    case.reset()
    kernel = program.kernel(case.name)
    launch = make_launch(kernel, case.grid, case.block, case.kernarg, case.dynamic_lds)
    own = [
        case.memory.add_array(array, name, writable=False)
        for array, name in ((launch.kernarg, "kernarg"), (launch.packet, "dispatch packet"))
    ]
    found = []
    for group in range(min(launch.groups, MAX_GROUPS)):
        machine = make_machine(launch, np.array([group]), Options().poison, case.memory)
        machine.queues = Queues(machine, "lazy", random.Random(0))
        machine.hazards = recording = Recording(kernel)
        recording.start(machine)
        scheduler = Scheduler(machine, code_of(program, True), "lockstep", random.Random(0))
        with np.errstate(all="ignore"):
            while not scheduler.done:
                scheduler.step()
        machine.queues.land_ended()
        found.append(recording.accesses)
    for region in own:
        case.memory.remove(region)
    return found


def unordered(accesses: Sequence[Access]) -> tuple[Access, Access] | None:
    """The first two accesses to one dword that nothing orders."""
    by_dword: dict[int, list[Access]] = {}
    for access in accesses:
        for dword in access.dwords.tolist():
            by_dword.setdefault(dword, []).append(access)
    checked: set[tuple[int, ...]] = set()
    for group in by_dword.values():
        key = tuple(map(id, group))
        if key in checked:
            continue
        checked.add(key)
        for i, one in enumerate(group):
            for other in group[i + 1 :]:
                if one.unordered_with(other):
                    return one, other
    return None


def signals_others(program: Any, pc: int) -> bool:
    """Whether a path from the barrier at `pc` tells other workgroups something before it meets
    another barrier: then the barrier may order memory, not only LDS."""
    todo, seen = [pc + 1], set()
    while todo:
        at = todo.pop()
        if at in seen or at >= len(program.instructions):
            continue
        seen.add(at)
        inst = program.instructions[at]
        if signals(inst):
            return True
        if inst.base in ("s_barrier", "s_endpgm"):
            continue
        if inst.base.startswith(("s_branch", "s_cbranch_")):
            todo.append(program.labels[inst.operands[0].text])
        if inst.base != "s_branch":
            todo.append(at + 1)
    return False


def prove_ordered(program: Any, cases: Sequence[Case]) -> Verdict:
    """Whether barriers order all LDS accesses of a kernel on all these launches."""
    count = 0
    for case in cases:
        accesses = record(program, case)
        for operand in case.tensors[1:]:
            operand.neg_()
        other = record(program, case)
        for operand in case.tensors[1:]:
            operand.neg_()
        for own, changed in zip(accesses, other, strict=True):
            if [_place(a) for a in own] != [_place(a) for a in changed]:
                return Verdict(False, "LDS addresses depend on data")
            clash = unordered(own)
            if clash:
                lines = " and ".join(f"line {a.line} of wave {a.wave}" for a in clash)
                return Verdict(False, f"{lines} touch the same LDS dword in no order")
            count += len(own)
    return Verdict(True, f"other barriers order every two LDS accesses ({count} in {len(cases)} "
                         "launches)")  # fmt: skip


def _place(access: Access) -> tuple[Any, ...]:
    a = access
    return (a.wave, a.line, a.first, a.last, a.start, a.end, a.dwords.tobytes())
