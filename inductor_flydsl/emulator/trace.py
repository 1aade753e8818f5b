"""What a run executed: per wave of some workgroups, instructions in order and what they touched.

Owns the recording around an engine's closures and the costs of memory instructions, taken from
their lanes' actual addresses the first few times that each is executed; later executions are
taken to cost what the last of these did, if they reach memory at all. Knows nothing of time or of
other waves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .address import address_reader
from .asm import Instruction, Operand
from .facts import GFX950, Facts
from .lds_timing import PERMUTE_CLOCKS, Access, access_of, bus_clocks, core_clocks
from .operands import Decoder
from .program import Program
from .state import Cohort, Machine, WaveSet
from .vmem import _LOADS, _NAME, _STORES
from .vmem_timing import L1, SEGMENT, issue_clocks, segments_of

Run = Callable[[Cohort], Any]
Member = tuple[int, int]
Events = list[tuple[int, WaveSet]]
Tracked = list[tuple[int, Member]]
VISITS = 4
"""Executions of a memory instruction whose addresses are looked at; they cover a loop's start. Of
later ones it is only asked whether they reach memory: past the end of K they do not."""


@dataclass(frozen=True)
class LdsCost:
    """Clocks of the LDS core and of the SIMD pair's bus for one wave-instruction."""

    core: int
    bus: int


@dataclass(frozen=True)
class VmemCost:
    """Clocks of the CU's address unit, bytes moved, and bytes of them that L1 doesn't hold.

    segment: number of the first 64 bytes touched, -1 where no lane reaches memory.
    """

    issue: int
    moved: int
    missed: int
    segment: int


Cost = LdsCost | VmemCost


@dataclass
class WaveTrace:
    """One wave: `pcs` in the order executed; `costs` of each memory instruction by visit."""

    pcs: np.ndarray
    costs: dict[int, list[Cost]]


@dataclass
class GroupTrace:
    """One workgroup: its linear id and its waves."""

    group: int
    waves: list[WaveTrace] = field(default_factory=list)


class MemoryForm:
    """How a vector memory instruction addresses memory; `space` is buffer, global or flat."""

    def __init__(self, program: Program, inst: Instruction) -> None:
        match = _NAME.match(inst.base)
        assert match is not None
        self.space, action, name = match.groups()
        self.lds = action == "load_lds" or "lds" in inst.mods
        self.store = action == "store"
        self.atomic = action == "atomic"
        table = _STORES if self.store else _LOADS
        wide = name.endswith("x2") or "64" in name
        self.size = table[name][0] if name in table else 8 if wide else 4
        self.read = address_reader(
            Decoder(program, inst), inst, self.space, self._operands(inst), self.size
        )

    def _operands(self, inst: Instruction) -> tuple[Operand, ...]:
        """The address operands; the rest are data."""
        operands = inst.operands
        if self.lds:
            return operands
        if self.space == "buffer":
            return operands[1:]
        if self.store:
            return operands[:1] + operands[2:]
        if self.atomic:
            skip = 1 if "sc0" in inst.mods or "glc" in inst.mods else 0
            return operands[skip : skip + 1] + operands[skip + 2 :]
        return operands[1:]

    def touch(self, c: Cohort) -> tuple[np.ndarray, np.ndarray | None]:
        """Byte addresses [n, 64] and the lanes that reach memory, None for all."""
        addr, valid = self.read(c)
        active = c.exec
        if valid is not None:
            inside = valid > 0
            active = inside if active is None else active & inside
        return addr, active


class _LdsForm:
    """Addresses of a ds_ instruction: a VGPR plus one or two offsets."""

    def __init__(self, program: Program, inst: Instruction, access: Access) -> None:
        mods = inst.mods
        returns = inst.base.startswith("ds_read") or "_rtn" in inst.base
        self.row = Decoder(program, inst).row(inst.operands[1 if returns else 0], 1)
        self.access = access
        if "offset0" in mods or "offset1" in mods or "2_b" in inst.base or "2st64" in inst.base:
            step = access.size * (64 if "st64" in inst.base else 1)
            names = ("offset0", "offset1")
            self.offsets = [int(str(mods.get(name, 0))) * step for name in names]
        else:
            self.offsets = [int(str(mods.get("offset", 0)))]

    def touch(self, c: Cohort) -> tuple[np.ndarray, np.ndarray | None]:
        base = c.V[self.row, c.sel].astype(np.int64)
        addr = np.concatenate([base + offset for offset in self.offsets], axis=1)
        active = None if c.exec is None else np.tile(c.exec, (1, len(self.offsets)))
        return addr, active


def is_vmem(inst: Instruction) -> bool:
    """Whether an instruction moves data between lanes and memory."""
    return _NAME.match(inst.base) is not None


class Recorder:
    """Wraps a machine's closures so that what chosen workgroups execute is noted.

    groups: linear ids of the workgroups to follow. One recorder serves all machines of a launch.
    """

    def __init__(self, program: Program, groups: Iterable[int], facts: Facts = GFX950) -> None:
        self.program = program
        self.facts = facts
        self.wanted = frozenset(groups)
        self.costs: dict[Member, dict[int, list[Cost]]] = {}
        self.caches: dict[int, L1] = {}
        self.forms: dict[int, MemoryForm] = {}
        self.runs: list[tuple[np.ndarray, Events]] = []

    def follows(self, groups: np.ndarray) -> bool:
        """Whether a machine with these workgroups has one to follow."""
        return not self.wanted.isdisjoint(groups.tolist())

    def wrap(self, code: list[Run], machine: Machine) -> list[Run]:
        """The closures of `machine`, each of which tells the recorder first."""
        events: Events = []
        self.runs.append((machine.group_ids, events))
        return [self._wrapped(code, pc, events) for pc in range(len(code))]

    def _wrapped(self, code: list[Run], pc: int, events: Events) -> Run:
        inst = self.program.instructions[pc]
        note = self._note_memory(inst, pc)
        if note is None:

            def plain(c: Cohort) -> Any:
                events.append((pc, c.waves))
                return code[pc](c)

            return plain

        def memory(c: Cohort) -> Any:
            events.append((pc, c.waves))
            note(c)
            return code[pc](c)

        return memory

    def _note_memory(self, inst: Instruction, pc: int) -> Callable[[Cohort], None] | None:
        lds = inst.base.startswith("ds_")
        if not lds and not is_vmem(inst):
            return None
        cost = self._lds_cost if lds else self._vmem_cost
        seen: dict[Any, int] = {}
        tracked: dict[Any, Tracked] = {}

        def note(c: Cohort) -> None:
            key = c.waves.key
            visits = seen.get(key, 0)
            if visits >= VISITS and lds:
                return
            if not visits:
                tracked[key] = self._members(c.m.group_ids, c.waves)
            seen[key] = visits + 1
            if tracked[key]:
                # A line that can't be decoded has its own error when it is executed, next.
                with contextlib.suppress(IndexError, ValueError):
                    (cost if visits < VISITS else self._vmem_repeat)(c, inst, pc, tracked[key])

        return note

    def _members(self, ids: np.ndarray, waves: WaveSet) -> list[tuple[int, Member]]:
        """(row in `waves`, (workgroup id, wave of the workgroup)) of followed waves."""
        found = []
        for row, wave in enumerate(waves.idx.tolist()):
            number, column = divmod(wave, len(ids))
            group = int(ids[column])
            if group in self.wanted:
                found.append((row, (group, number)))
        return found

    def _add(self, member: Member, pc: int, cost: Cost) -> None:
        self.costs.setdefault(member, {}).setdefault(pc, []).append(cost)

    def _lds_cost(self, c: Cohort, inst: Instruction, pc: int, tracked: Tracked) -> None:
        access = access_of(inst.base)
        if access is None:
            for _, member in tracked:
                self._add(member, pc, LdsCost(*PERMUTE_CLOCKS))
            return
        rows = [row for row, _ in tracked]
        addr, active = _LdsForm(self.program, inst, access).touch(c)
        clocks = core_clocks(access, addr[rows], None if active is None else active[rows])
        bus = bus_clocks(access, self.facts)
        for (_, member), core in zip(tracked, clocks.tolist(), strict=True):
            self._add(member, pc, LdsCost(core, bus))

    def _form(self, inst: Instruction, pc: int) -> MemoryForm:
        if pc not in self.forms:
            self.forms[pc] = MemoryForm(self.program, inst)
        return self.forms[pc]

    def _vmem_repeat(self, c: Cohort, inst: Instruction, pc: int, tracked: Tracked) -> None:
        """The cost of an earlier execution again, or none where no lane reaches memory."""
        form = self._form(inst, pc)
        _, active = form.touch(c)
        nothing = VmemCost(issue_clocks(form.size, 0, self.facts), 0, 0, -1)
        for row, member in tracked:
            before = self.costs[member][pc]
            reaches = active is None or bool(active[row].any())
            before.append(before[VISITS - 1] if reaches else nothing)

    def _vmem_cost(self, c: Cohort, inst: Instruction, pc: int, tracked: Tracked) -> None:
        form = self._form(inst, pc)
        rows = [row for row, _ in tracked]
        addr, active = form.touch(c)
        touched = segments_of(addr[rows], form.size, None if active is None else active[rows])
        for (_, member), segments in zip(tracked, touched, strict=True):
            missed = len(segments)
            if not (form.store or form.atomic):
                missed = self.caches.setdefault(member[0], L1(self.facts)).misses(segments)
            issue = issue_clocks(form.size, len(segments), self.facts)
            first = int(segments[0]) if len(segments) else -1
            cost = VmemCost(issue, SEGMENT * len(segments), SEGMENT * missed, first)
            self._add(member, pc, cost)

    # --- afterwards -----------------------------------------------------------------------

    def traces(self) -> list[GroupTrace]:
        """The followed workgroups that ran, by id."""
        pieces: dict[Member, list[np.ndarray]] = {}
        for ids, events in self.runs:
            self._sort(ids, events, pieces)
        groups: dict[int, GroupTrace] = {}
        for member in sorted(pieces):
            parts = pieces[member]
            pcs = parts[0] if len(parts) == 1 else np.concatenate(parts)
            wave = WaveTrace(pcs, self.costs.get(member, {}))
            groups.setdefault(member[0], GroupTrace(member[0])).waves.append(wave)
        return list(groups.values())

    def _sort(self, ids: np.ndarray, events: Events,
              pieces: dict[Member, list[np.ndarray]]) -> None:  # fmt: skip
        """Adds a machine's events to the waves that they belong to."""
        members: dict[Any, list[Member]] = {}
        start, end = 0, len(events)
        while start < end:
            waves = events[start][1]
            stop = start + 1
            while stop < end and events[stop][1] is waves:
                stop += 1
            if waves.key not in members:
                members[waves.key] = [member for _, member in self._members(ids, waves)]
            if members[waves.key]:
                pcs = np.fromiter((e[0] for e in events[start:stop]), np.int32, stop - start)
                for member in members[waves.key]:
                    pieces.setdefault(member, []).append(pcs)
            start = stop
