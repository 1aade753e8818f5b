"""Running a kernel: the emulator's public face.

Owns options, the split of a grid into machines, and what a run returns. Host addresses in kernargs
are real: register what they point to in a `Memory` first.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from . import timing
from .arguments import pack_arguments
from .conflicts import BankConflict, bank_conflicts
from .decode import code_of
from .errors import LaunchError
from .hazards import Finding, Hazards
from .launch import Launch, make_launch, make_machine
from .memory import Memory
from .probe import Probe, probe_groups
from .program import Kernel, Program, Resources, load_program
from .queues import Queues
from .trace import GroupTrace, Recorder
from .wave import PATIENCE, Scheduler, check_limit, check_progress

LANDINGS = ("lazy", "eager", "random")
ORDERS = ("lockstep", "forward", "reverse", "random", "priority")
TRACED_WORKGROUPS = 4
"""Workgroups that the clock follows where all are run."""


@dataclass(frozen=True)
class Options:
    """How to run a kernel; every field has a safe default.

    landing: when memory operations land: "lazy" only where a wait forces it, "eager" at issue,
      "random" in between. order: which waves go first: "lockstep" (fastest) all together,
      "forward", "reverse", "random" one wave of each workgroup at a time up to its next barrier,
      "priority" one wave of all, by a random order of priority: workgroups drift apart.
    seed: of everything random. findings: look for hazards (slower). poison: registers and LDS
      start as NaN patterns instead of zeros. sample_workgroups: run only these linear workgroup
      ids. parts: the first id of each part of the grid, where workgroups of one do other work than
      those of another; each has some in the sample. max_instructions: wave-instructions after which
      a run is taken to be stuck.
    max_waves: waves that run at a time; bounds memory. timed: whether the launch is timed; without
      it time_us is NaN.
    """

    landing: str = "lazy"
    order: str = "lockstep"
    seed: int = 0
    findings: bool = True
    poison: bool = True
    sample_workgroups: tuple[int, ...] | None = None
    parts: tuple[int, ...] = (0,)
    max_instructions: int = 2_000_000_000
    max_waves: int = 512
    timed: bool = True

    def __post_init__(self) -> None:
        for name, choices in (("landing", LANDINGS), ("order", ORDERS)):
            if getattr(self, name) not in choices:
                raise LaunchError(f"Options.{name} {getattr(self, name)!r}: choose from {choices}")
        for name in ("max_instructions", "max_waves"):
            if getattr(self, name) < 1:
                raise LaunchError(f"Options.{name} {getattr(self, name)} must be at least 1")
        if self.sample_workgroups is not None:
            object.__setattr__(self, "sample_workgroups", tuple(self.sample_workgroups))


@dataclass(frozen=True)
class RunResult:
    """What a run did.

    instructions: wave-instructions executed. findings: hazards, worst first. time_us: an estimate
    on the named `clock`, for the whole grid even where workgroups were sampled. stats by name:
    workgroups, workgroups_run, instructions by class of the whole grid, and, where timed: cycles
    and frequency_ghz of the body, mfma_utilisation of the chip and (…_loop) of a CU's main loop,
    waves_per_simd, bound (what the launch waits for most), matrix_energy (of a matrix operation
    with the LDS traffic that feeds it, 1 where that is usual), and how the time is made up.
    conflicts: where timed, the LDS instructions of the followed workgroups that meet at banks,
    dearest first.
    """

    kernel: str
    instructions: int
    findings: tuple[Finding, ...]
    time_us: float
    clock: str
    resources: Resources
    stats: dict[str, float | str] = field(default_factory=dict)
    conflicts: tuple[BankConflict, ...] = ()

    @property
    def cycles(self) -> float:
        """Emulated clocks of the launch at the nominal frequency."""
        return self.time_us * timing.CLOCK_MHZ


def _kernel_of(what: Kernel | Program | str, name: str) -> Kernel:
    if isinstance(what, str):
        what = load_program(what)
    if isinstance(what, Program):
        return what.kernel(name)
    if not isinstance(what, Kernel):
        raise LaunchError(f"kernel {what!r}: give assembly text, a Program or a Kernel")
    return what


def run(kernel: Kernel | Program | str, grid: int | Sequence[int], block: int | Sequence[int],
        args: bytes | Sequence[Any], memory: Memory | None = None,
        options: Options = Options(),  # noqa: B008
        dynamic_lds: int = 0, name: str = "") -> RunResult:  # fmt: skip
    """Runs one launch to its end.

    kernel: assembly text for gfx950, or what `load_program` makes of it. grid: workgroups in x, y,
    z. block: work-items in x, y, z. args: the explicit arguments, one a piece (see
    `pack_arguments`), or their bytes; hidden ones are filled in. memory: what the kernel may touch
    besides the arrays among `args`. dynamic_lds: bytes beyond the kernel's own. name: picks a
    kernel of a program that has several.

    Raises ProgramError for text that can't be read, LaunchError for an argument that doesn't fit,
    UnknownInstruction, MemoryFault (findings off), Trap, Deadlock.
    """
    chosen = _kernel_of(kernel, name)
    memory = Memory() if memory is None else memory
    kernarg = bytes(args) if isinstance(args, (bytes, bytearray, memoryview)) else (
        pack_arguments(chosen, args, memory)
    )  # fmt: skip
    launch = make_launch(chosen, grid, block, kernarg, dynamic_lds)
    overlay = [
        memory.add_array(a, label, writable=False)
        for a, label in ((launch.kernarg, "kernarg"), (launch.packet, "dispatch packet"))
    ]
    try:
        with np.errstate(all="ignore"):
            return _Run(launch, memory, options).go()
    finally:
        for region in overlay:
            memory.remove(region)


class _Run:
    """One launch under way: machines over slices of the grid, in dispatch order."""

    def __init__(self, launch: Launch, memory: Memory, options: Options) -> None:
        self.launch = launch
        self.memory = memory
        self.options = options
        self.rng = random.Random(options.seed)
        self.hazards = Hazards(launch.kernel) if options.findings else None
        self.code = code_of(launch.kernel.program, options.findings)
        self.hits = np.zeros(len(self.code) + 1, np.int64)
        memory.bytes_read = memory.bytes_written = 0
        ids = options.sample_workgroups
        if ids is not None and not all(0 <= i < launch.groups for i in ids):
            raise LaunchError(f"sample_workgroups {ids}: the grid has {launch.groups} workgroups")
        self.ids = np.arange(launch.groups) if ids is None else np.array(sorted(set(ids)), np.int64)
        self.parts = list(pairwise((*sorted(set(options.parts)), launch.groups)))
        followed: list[int] = []
        for first, end in self.parts if options.timed else ():
            own = self.ids[(first <= self.ids) & (self.ids < end)]
            if not len(own):
                raise LaunchError(f"Options.parts: no workgroup of {first} to {end - 1} is sampled")
            followed += own[np.linspace(0, len(own) - 1, TRACED_WORKGROUPS).astype(int)].tolist()
        self.recorder = Recorder(launch.kernel.program, followed)

    def go(self) -> RunResult:
        per_machine = max(1, self.options.max_waves // self.launch.waves)
        pending = [self.ids[i : i + per_machine] for i in range(0, len(self.ids), per_machine)]
        active: list[Scheduler] = []
        while pending or active:
            # Workgroups that wait for others only get on if those run too.
            if pending and all(s.spins > PATIENCE for s in active):
                active.append(self._machine(pending.pop(0)))
            for scheduler in active:
                scheduler.step()
                while not scheduler.done and scheduler.spins <= PATIENCE:
                    self._check(active)
                    scheduler.step()
                if scheduler.done:
                    scheduler.m.queues.land_ended()
                    self.hits += scheduler.hits
            active = [s for s in active if not s.done]
            self._check(active)
            if active and not pending:
                check_progress(active)
        return self._result()

    def _check(self, active: list[Scheduler]) -> None:
        if active:
            check_limit(active, int(self.hits.sum()), self.options.max_instructions)

    def _machine(self, groups: np.ndarray) -> Scheduler:
        machine = make_machine(self.launch, groups, self.options.poison, self.memory)
        machine.queues = Queues(machine, self.options.landing, self.rng)
        machine.hazards = self.hazards.attach(machine) if self.hazards is not None else None
        code = self.code
        if self.recorder.follows(groups):
            code = self.recorder.wrap(code, machine)
        return Scheduler(machine, code, self.options.order, self.rng)

    def _result(self) -> RunResult:
        launch = self.launch
        time_us, stats = math.nan, self._counts()
        conflicts: tuple[BankConflict, ...] = ()
        if self.options.timed:
            traces = self.recorder.traces()
            conflicts = bank_conflicts(launch.kernel.program, traces, dict(enumerate(self.hits)))
            bases = np.sort(np.array([region.base for region in self.memory.regions], np.int64))
            estimate = timing.time_launch(launch, self._parts(traces), bases)
            time_us, stats = estimate.time_us, stats | estimate.stats
        return RunResult(
            kernel=launch.kernel.name,
            instructions=int(self.hits.sum()),
            findings=self.hazards.findings() if self.hazards is not None else (),
            time_us=time_us,
            clock=timing.CLOCK,
            resources=launch.kernel.resources,
            stats=stats,
            conflicts=conflicts,
        )

    def _parts(self, traces: list[GroupTrace]) -> list[timing.Part]:
        """The parts of the grid, with what was executed of each and its first loads."""
        at_once, parts = timing.groups_at_once(self.launch), []
        for first, end in self.parts:
            probe = Probe(self.launch, self.memory, code_of(self.launch.kernel.program, False))
            lines = probe.run(first + probe_groups(min(at_once, end - first), self.launch.waves))
            own = [trace for trace in traces if first <= trace.group < end]
            parts.append(timing.Part(first, end - first, own, lines))
        return parts

    def _counts(self) -> dict[str, float | str]:
        """Wave-instructions of the whole grid by class."""
        scale = self.launch.groups / len(self.ids)
        stats: dict[str, float | str] = {
            "workgroups": float(self.launch.groups),
            "workgroups_run": float(len(self.ids)),
        }
        totals: dict[str, float] = {}
        for inst, n in zip(self.launch.kernel.program.instructions, self.hits, strict=False):
            if n:
                name = f"{timing.instruction_class(inst)}_instructions"
                totals[name] = totals.get(name, 0.0) + scale * int(n)
        return stats | totals
