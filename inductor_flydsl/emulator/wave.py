"""Runs the waves of a machine: which go next, how far, and when they meet again.

Owns the order of waves, cohorts and their reconvergence, barriers, and giving way to others in a
spinning loop. Knows nothing of what instructions do.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from .errors import Deadlock, ExecutionError
from .state import AT_BARRIER, ENDED, RUNNING, Cohort, Machine, WaveSet

Run = Callable[[Cohort], Any]
NO_LIMIT = 1 << 60
LEFT = -1
SPIN_LIMIT = 256
"""Backward jumps after which a cohort gives way to others: long enough for most loops, short
enough that a wave that waits on memory for another doesn't hold it up."""
PATIENCE = 8
"""Turns given way after which everything in flight has had the time to land."""
STUCK = 16
"""Turns that change no register of any wave after which they wait for what never comes."""


class Scheduler:
    """Steps one machine's waves. `hits[pc]` counts wave-instructions.

    order: "lockstep" lets all waves go together; "forward", "reverse" and "random" let one wave of
    each workgroup go to its next barrier, or its end, before another; "priority" lets one wave of
    all go, the first in a random order that holds for the run, so that workgroups drift apart.
    """

    def __init__(self, machine: Machine, code: list[Run], order: str, rng: random.Random) -> None:
        self.m = machine
        self.code = code
        self.order = order
        self.rng = rng
        self.hits = [0] * (len(code) + 1)
        self.last_run = np.zeros(machine.waves, np.int64)
        self.rank = np.array(rng.sample(range(machine.waves), machine.waves))
        self.turn = 0
        self.jumps = 0
        self.spins = 0
        self.executed = 0
        self.state = (0, 0)
        self.still = 0

    @property
    def done(self) -> bool:
        """Whether every wave has ended."""
        return bool((self.m.status == ENDED).all())

    def stands_still(self) -> bool:
        """Whether registers are as they were the last STUCK times that this was asked."""
        state = zlib.crc32(self.m.V.data), zlib.crc32(self.m.S.data)
        self.still = self.still + 1 if state == self.state else 0
        self.state = state
        return self.still >= STUCK

    def step(self) -> None:
        """Runs one cohort until it leaves, meets others or spins; releases barriers first."""
        m = self.m
        running = np.flatnonzero(m.status == RUNNING)
        if len(running) < m.waves:
            self._release_barriers()
            running = np.flatnonzero(m.status == RUNNING)
        group = self._group(running)
        pcs = m.pc[group]
        # While waves spin, the least recently run goes next, so that those waited for get on.
        first = int(pcs[np.argmin(self.last_run[group])] if self.spins else pcs.min())
        chosen = group[pcs == first]
        ahead = pcs[pcs > first]
        self.turn += 1
        self.last_run[chosen] = self.turn
        self._run(Cohort(m, WaveSet(chosen), first), int(ahead.min()) if len(ahead) else NO_LIMIT)

    def _group(self, running: np.ndarray) -> np.ndarray:
        """Waves that may be chosen from now: all, or one wave of each workgroup."""
        if self.order == "lockstep" or self.spins:
            return running
        if self.order == "priority":
            return running[[self.rank[running].argmin()]]
        numbers = running // self.m.groups
        present = np.unique(numbers)
        if self.order == "random":
            pick = self.rng.choice(list(present))
        else:
            pick = present[0] if self.order == "forward" else present[-1]
        return running[numbers == pick]

    def _release_barriers(self) -> None:
        m = self.m
        status = m.status.reshape(m.waves_per_group, m.groups)
        waiting = status == AT_BARRIER
        release = waiting.any(axis=0) & (status != RUNNING).all(axis=0)
        if not release.any():
            return
        if m.hazards is not None:
            m.hazards.barrier_released(waiting, release)
        m.epoch[release] += 1
        status[waiting & release] = RUNNING

    def _run(self, c: Cohort, limit: int) -> None:
        m, code, hits, n, pc = self.m, self.code, self.hits, c.n, c.pc
        random_landing = m.queues.landing == "random"
        start = m.ticks
        end = min(limit, len(code))
        while pc < end:
            hits[pc] += n
            m.ticks += 1
            jump = code[pc](c)
            if random_landing and self.rng.random() < 0.25:
                m.queues.land_random(c.waves)
            if jump is None:
                pc += 1
            elif jump < 0:
                if m.status[c.waves.idx[0]] != RUNNING:
                    self.jumps = self.spins = 0
                pc = LEFT
                break
            else:
                if jump <= pc:
                    self.jumps += 1
                    if self.jumps >= SPIN_LIMIT:
                        pc = jump
                        self._spun()
                        break
                pc = jump
        self.executed += (m.ticks - start) * n
        if pc != LEFT:
            m.pc[c.sel] = pc
            if pc >= len(code):
                raise ExecutionError(f"a wave ran past the last instruction of {m.kernel.name}")

    def _spun(self) -> None:
        """A cohort jumped back often: others get a turn, and in the end all operations land."""
        self.jumps = 0
        self.spins += 1
        if self.spins > PATIENCE:
            unfinished = np.flatnonzero(self.m.status != ENDED)
            self.m.queues.land_all(WaveSet(unfinished))


def check_limit(active: list[Scheduler], retired: int, limit: int) -> None:
    """Raises Deadlock where more wave-instructions than `limit` were executed."""
    total = retired + sum(s.executed for s in active)
    if total > limit:
        raise _stuck(
            active,
            f"{total} wave-instructions executed, limit {limit}; if this isn't a deadlock, raise "
            "Options.max_instructions",
        )


def check_progress(active: list[Scheduler]) -> None:
    """Raises Deadlock where all machines spin and their registers have stood still for long."""
    if all([s.spins > PATIENCE and s.stands_still() for s in active]):
        raise _stuck(active, "waves wait in a loop for something that no wave will do")


def _stuck(active: list[Scheduler], message: str) -> Deadlock:
    machine = next((s.m for s in active if not s.done), active[0].m)
    waiting = np.flatnonzero(machine.status != ENDED)
    names = ", ".join(machine.wave_name(int(w)) for w in waiting[:4])
    at = int(machine.pc[waiting[0]]) if len(waiting) else machine.kernel.entry
    inst = machine.kernel.program.instructions[at]
    return Deadlock(
        f"{message}; {len(waiting)} waves haven't ended: {names}",
        machine.kernel.name,
        inst.line,
        inst.text,
    )
