"""What a run executed: per wave of some workgroups, instructions in order and what they touched.

Owns the recording around an engine's closures and the costs of memory instructions, taken from
their lanes' actual addresses the first few times that each is executed; later executions are
taken to cost what the last recorded one did. Knows nothing of time or of other waves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .address import address_reader
from .asm import Instruction, Operand
from .facts import GFX950, Facts
from .lds_timing import PERMUTE_CLOCKS, Access, access_of, bus_clocks, core_clocks
from .operands import Decoder
from .program import Program
from .state import Cohort, WaveSet
from .vmem import _LOADS, _NAME, _STORES
from .vmem_timing import L1, SEGMENT, issue_clocks, segments_of

Run = Callable[[Cohort], Any]
VISITS = 4
"""Executions of a memory instruction whose addresses are looked at; they cover a loop's start."""


@dataclass(frozen=True)
class LdsCost:
    """Clocks of the LDS core and of the SIMD pair's bus for one wave-instruction."""

    core: int
    bus: int


@dataclass(frozen=True)
class VmemCost:
    """Clocks of the CU's address unit, bytes moved, and bytes of them that L1 doesn't hold."""

    issue: int
    moved: int
    missed: int


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
    """Wraps closures so that what chosen workgroups execute is noted.

    groups: linear ids of the workgroups to follow. One recorder serves all machines of a launch.
    """

    def __init__(self, program: Program, groups: Sequence[int], waves: int,
                 facts: Facts = GFX950) -> None:  # fmt: skip
        self.program = program
        self.facts = facts
        self.waves = waves
        self.wanted = frozenset(groups)
        self.events: list[tuple[int, WaveSet, Any]] = []
        self.costs: dict[tuple[int, int, int], list[Cost]] = {}
        self.seen: dict[tuple[int, int, Any], int] = {}
        self.caches: dict[int, L1] = {}
        self.followed: dict[int, bool] = {}

    def wrap(self, code: list[Run]) -> list[Run]:
        """The same closures, each of which tells the recorder first."""
        return [self._wrapped(code, pc) for pc in range(len(code))]

    def _wrapped(self, code: list[Run], pc: int) -> Run:
        inst = self.program.instructions[pc]
        note = self._note_memory(inst, pc)
        events = self.events

        def run(c: Cohort) -> Any:
            events.append((pc, c.waves, c.m))
            if note is not None:
                note(c)
            return code[pc](c)

        return run

    def _note_memory(self, inst: Instruction, pc: int) -> Callable[[Cohort], None] | None:
        lds = inst.base.startswith("ds_")
        if not lds and not is_vmem(inst):
            return None
        cost = self._lds_cost if lds else self._vmem_cost
        seen = self.seen

        def note(c: Cohort) -> None:
            key = (pc, id(c.m), c.waves.key)
            visits = seen.get(key, 0)
            if visits < VISITS:
                seen[key] = visits + 1
                if self._follows(c.m):
                    cost(c, inst, pc)

        return note

    def _follows(self, machine: Any) -> bool:
        key = id(machine)
        if key not in self.followed:
            ids = machine.group_ids.tolist()
            self.followed[key] = not self.wanted.isdisjoint(ids)
        return self.followed[key]

    def _tracked(self, c: Cohort) -> list[tuple[int, int, int]]:
        """(row in the cohort, workgroup id, wave of the workgroup) of followed waves."""
        m = c.m
        found = []
        for row, wave in enumerate(c.waves.idx.tolist()):
            number, column = divmod(wave, m.groups)
            group = int(m.group_ids[column])
            if group in self.wanted:
                found.append((row, group, number))
        return found

    def _lds_cost(self, c: Cohort, inst: Instruction, pc: int) -> None:
        tracked = self._tracked(c)
        if not tracked:
            return
        access = access_of(inst.base)
        if access is None:
            clocks = [PERMUTE_CLOCKS[0]] * len(tracked)
            bus = PERMUTE_CLOCKS[1]
        else:
            addr, active = _LdsForm(self.program, inst, access).touch(c)
            rows = [row for row, _, _ in tracked]
            lanes = None if active is None else active[rows]
            clocks = core_clocks(access, addr[rows], lanes).tolist()
            bus = bus_clocks(access, self.facts)
        for (_, group, number), core in zip(tracked, clocks, strict=True):
            self.costs.setdefault((group, number, pc), []).append(LdsCost(core, bus))

    def _vmem_cost(self, c: Cohort, inst: Instruction, pc: int) -> None:
        tracked = self._tracked(c)
        if not tracked:
            return
        form = MemoryForm(self.program, inst)
        rows = [row for row, _, _ in tracked]
        addr, active = form.touch(c)
        lanes = None if active is None else active[rows]
        touched = segments_of(addr[rows], form.size, lanes)
        for (_, group, number), segments in zip(tracked, touched, strict=True):
            moved = SEGMENT * len(segments)
            missed = moved
            if not (form.store or form.atomic):
                cache = self.caches.setdefault(group, L1(self.facts))
                missed = SEGMENT * cache.misses(segments)
            issue = issue_clocks(form.size, len(segments), self.facts)
            cost = VmemCost(issue, moved, missed)
            self.costs.setdefault((group, number, pc), []).append(cost)

    # --- afterwards -----------------------------------------------------------------------

    def traces(self) -> list[GroupTrace]:
        """The followed workgroups that ran, by id."""
        pieces = self._pieces()
        groups: dict[int, GroupTrace] = {}
        for group, number in sorted(pieces):
            parts = pieces[group, number]
            pcs = parts[0] if len(parts) == 1 else np.concatenate(parts)
            costs = {
                pc: costs for (g, w, pc), costs in self.costs.items() if (g, w) == (group, number)
            }
            trace = groups.setdefault(group, GroupTrace(group))
            trace.waves.append(WaveTrace(pcs, costs))
        return list(groups.values())

    def _pieces(self) -> dict[tuple[int, int], list[np.ndarray]]:
        """Runs of instructions by (workgroup, wave)."""
        pieces: dict[tuple[int, int], list[np.ndarray]] = {}
        members: dict[tuple[int, Any], list[tuple[int, int]]] = {}
        events, start, end = self.events, 0, len(self.events)
        while start < end:
            _, waves, machine = events[start]
            stop = start + 1
            while stop < end and events[stop][1] is waves:
                stop += 1
            key = (id(machine), waves.key)
            if key not in members:
                members[key] = [
                    (int(machine.group_ids[w % machine.groups]), w // machine.groups)
                    for w in waves.idx.tolist()
                    if int(machine.group_ids[w % machine.groups]) in self.wanted
                ]
            if members[key]:
                pcs = np.fromiter((e[0] for e in events[start:stop]), np.int32, stop - start)
                for member in members[key]:
                    pieces.setdefault(member, []).append(pcs)
            start = stop
        return pieces
