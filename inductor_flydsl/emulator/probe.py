"""Where each workgroup's first loads go, without running the kernel.

Owns a short run of many workgroups up to their first barrier or matrix instruction after a load.
What it finds says how workgroups share operands, whatever order a kernel puts its tiles in. It
writes no memory and needs no result to be right: a kernel that it can't follow gives no lines.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from .asm import Instruction
from .errors import EmulatorError
from .launch import Launch, make_machine
from .memory import Memory
from .mfma_ops import MFMA
from .program import Program
from .queues import Queues
from .state import ENDED, Cohort
from .trace import MemoryForm, is_vmem
from .wave import Scheduler

Run = Callable[[Cohort], Any]
LEAVE = -1
MAX_WAVES = 512
BUDGET_WAVES = 4096
SEGMENT_BITS = 42
"""Bits of a segment's number: an address has 48, six of them inside a segment."""
STEP_LIMIT = 4096
"""Turns of the scheduler after which a probe is given up: it waits for something."""
NARROW, WIDE = 1, 2
"""What a wave has loaded: a segment in all, such as a group's offsets, or operands."""


class Probe:
    """Lines (64 bytes) that workgroups load first: arrays of workgroup ids and segments."""

    def __init__(self, launch: Launch, memory: Memory, code: list[Run]) -> None:
        self.launch, self.memory = launch, memory
        self.loaded: np.ndarray = np.zeros(0, np.int8)
        self.found: list[np.ndarray] = []
        program = launch.kernel.program
        self.code = [self._changed(program, pc, code) for pc in range(len(code))]

    def _changed(self, program: Program, pc: int, code: list[Run]) -> Run:
        inst = program.instructions[pc]
        if inst.base in MFMA or inst.base == "s_barrier":
            # Waves may meet over offsets before they know where their operands are.
            least = NARROW if inst.base in MFMA else WIDE
            return lambda c: self._stop(c, code[pc], least)
        if is_vmem(inst):
            form: list[MemoryForm] = []
            return lambda c: self._vmem(c, inst, form, code[pc])
        return lambda c: code[pc](c)

    def _stop(self, c: Cohort, run: Run, least: int) -> Any:
        if (self.loaded[c.waves.idx] >= least).all():
            c.m.status[c.sel] = ENDED
            return LEAVE
        return run(c)

    def _vmem(self, c: Cohort, inst: Instruction, made: list[MemoryForm], run: Run) -> Any:
        if not made:
            made.append(MemoryForm(self.launch.kernel.program, inst))
        form = made[0]
        if form.store or form.atomic or form.space == "scratch":
            return None
        addr, active = form.touch(c)
        groups = c.m.group_ids[c.m.group_of[c.sel]][:, None]
        segments = addr >> 6
        keys = groups << SEGMENT_BITS | segments
        self.found.append(np.unique(keys if active is None else keys[active]))
        off = np.zeros_like(segments, np.bool_) if active is None else ~active
        last = np.where(off, segments.min(), segments).max(1)
        first = np.where(off, segments.max(), segments).min(1)
        seen = np.where(last > first, WIDE, NARROW).astype(np.int8)
        self.loaded[c.waves.idx] = np.maximum(self.loaded[c.waves.idx], seen)
        return None if form.lds else run(c)

    def run(self, groups: np.ndarray) -> np.ndarray:
        """int64 [2, n]: workgroup, segment; each pair once. Empty where it can't be told."""
        per_machine = max(1, MAX_WAVES // self.launch.waves)
        moved = self.memory.bytes_read, self.memory.bytes_written
        try:
            for start in range(0, len(groups), per_machine):
                self._machine(groups[start : start + per_machine])
        except (EmulatorError, ValueError):
            self.found = []
        finally:
            self.memory.bytes_read, self.memory.bytes_written = moved
        if not self.found:
            return np.zeros((2, 0), np.int64)
        keys = np.unique(np.concatenate(self.found))
        return np.stack([keys >> SEGMENT_BITS, keys & (1 << SEGMENT_BITS) - 1])

    def _machine(self, groups: np.ndarray) -> None:
        machine = make_machine(self.launch, groups, False, self.memory)
        rng = random.Random(0)
        machine.queues = Queues(machine, "eager", rng)
        self.loaded = np.zeros(machine.waves, np.int8)
        scheduler = Scheduler(machine, self.code, "lockstep", rng)
        before = len(self.found)
        for _ in range(STEP_LIMIT):
            if scheduler.done:
                break
            scheduler.step()
            if scheduler.spins:
                break
        if len(self.found) > before:
            self.found[before:] = [np.unique(np.concatenate(self.found[before:]))]


def probe_groups(at_once: int, waves: int) -> np.ndarray:
    """The first workgroups of a launch, up to all that run `at_once`, as the budget takes them."""
    return np.arange(min(at_once, max(1, BUDGET_WAVES // waves)), dtype=np.int64)
