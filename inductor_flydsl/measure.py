"""Artifact and device → Measurement: numbers first, then the time of those that are right.

Owns the order of the two and the conversion of every failure into a rejected `Measurement`. What
right numbers are is `numerics`' business, how candidates take turns `timing`'s. Knows nothing of
how candidates are found or stored.

The time is always of the whole problem. Where its numbers were checked on a reduced one for want
of memory, the measurement's note says so.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from . import timing
from .config import GemmConfig
from .devices.base import Clock, Device, Kernel
from .errors import WrongNumbers
from .grouping import Split
from .numerics import (
    Accuracy,
    accuracy,
    check,
    check_bytes,
    compare,
    nearer,
    reduced,
)
from .problem import GemmProblem
from .records import NOT_MEASURED, Measurement, now_utc
from .samples import launches, operands

if TYPE_CHECKING:
    from .compiler import Artifact

# What the time of a grouped problem is of: nobody knows on the host where groups will end.
SPLITS_NOTE = f"mean over groups that are {', '.join(split.value for split in Split)}"

__all__ = [
    "Accuracy",
    "Measurement",
    "accuracy",
    "check",
    "compare",
    "measure",
    "measure_many",
    "operands",
    "reduced",
]


def measure(
    device: Device,
    artifact: Artifact,
    problem: GemmProblem,
    config: GemmConfig,
    *,
    seed: int | None = None,
) -> Measurement:
    """`measure_many` of one candidate."""
    return measure_many(device, [(config, artifact)], problem, seed=seed)[0]


def measure_many(
    device: Device,
    candidates: Sequence[tuple[GemmConfig, Artifact]],
    problem: GemmProblem,
    *,
    seed: int | None = None,
    deadline: float | None = None,
    begin: Callable[[int], None] = lambda index: None,
) -> list[Measurement]:
    """Check the numbers of kernels, then time those that are right, in turn.

    Args:
        device: where they run.
        candidates: configurations with the kernels that `KernelSpec.of` names for them, built
            for the device.
        problem: legal with each configuration.
        seed: of the random operands; None draws a new one, and a failure names it.
        deadline: `time.monotonic` at which to stop; what is left is NOT_MEASURED.
        begin: told the index of a candidate before anything of it runs.

    Returns:
        A measurement a candidate, in their order; where anything failed, one with infinite time
        and the reason. Only KeyboardInterrupt and SystemExit leave this function.
    """
    draw = secrets.randbits(30) if seed is None else seed
    session = _Session(device, nearer(problem), draw, deadline)
    runs = [_Run(config, artifact, index) for index, (config, artifact) in enumerate(candidates)]
    for run in runs:
        begin(run.index)
        session.check(run)
    right = [run for run in runs if run.failure is None]
    if right:
        session.time(right, begin)
    return [session.measurement(run) for run in runs]


@dataclass
class _Run:
    """One candidate on its way through a session."""

    config: GemmConfig
    artifact: Artifact
    index: int
    kernel: Kernel | None = None
    found: Accuracy | None = None
    failure: str | None = None
    us: float = math.inf
    spread_us: float = 0.0
    rounds: int = 0
    notes: list[str] = field(default_factory=list)

    def fail(self, error: Exception) -> None:
        self.failure = _reason(error)


@dataclass
class _Session:
    """One problem on one device."""

    device: Device
    problem: GemmProblem
    seed: int
    deadline: float | None

    def late(self) -> bool:
        return self.deadline is not None and time.monotonic() >= self.deadline

    def check(self, run: _Run) -> None:
        if self.late():
            run.failure = f"{NOT_MEASURED}: the budget ran out"
            return
        small, note = self._checked_problem(run.config)
        run.notes += [note] if note else []
        try:
            run.found = check(self.device, run.artifact, small, run.config, seed=self.seed)
        except WrongNumbers as error:
            run.failure = f"{_reason(error)} (seed {self.seed})"
        except Exception as error:
            run.fail(error)

    def _checked_problem(self, config: GemmConfig) -> tuple[GemmProblem, str]:
        if self.device.torch_device == "cpu":
            return reduced(self.problem, config), ""
        free = timing.free_bytes(self.device)
        if check_bytes(self.problem) < free // 2:
            return self.problem, ""
        small = reduced(self.problem, config)
        return small, f"numbers checked on {small}: {free >> 20} MiB are free"

    def time(self, runs: list[_Run], begin: Callable[[int], None]) -> None:
        """Fill in the times of `runs`, or their failures."""
        rotation = timing.rotation(
            self.problem,
            timing.cache_bytes(self.device),
            timing.free_bytes(self.device),
            self.device.clock,
        )
        if rotation.sets == 0:
            for run in runs:
                run.failure = f"{NOT_MEASURED}: {rotation.note}"
            return
        where = self.device.torch_device
        seeds = range(self.seed + 1, self.seed + 1 + rotation.sets)
        try:
            sets = [launches(self.problem, where, seed=seed) for seed in seeds]
        except Exception as error:
            for run in runs:
                run.fail(error)
            return
        for run in runs:
            begin(run.index)
            run.notes += [SPLITS_NOTE] if self.problem.grouping else []
            run.notes += [rotation.note] if rotation.note else []
            try:
                run.kernel = self.device.load(run.artifact, self.problem, run.config)
            except Exception as error:
                run.fail(error)
        live = [run for run in runs if run.failure is None]
        if self.device.clock is Clock.EMULATED:
            self._time_exactly(live, sets[0], begin)
        else:
            self._race(live, [launch for one in sets for launch in one], begin)

    def _time_exactly(
        self, runs: list[_Run], operands: list[Any], begin: Callable[[int], None]
    ) -> None:
        for run in runs:
            if self.late():
                run.failure = f"{NOT_MEASURED}: the budget ran out"
                continue
            begin(run.index)
            try:
                found = [self.device.time(_launch(run, launch)) for launch in operands]
            except Exception as error:
                run.fail(error)
                continue
            run.us = sum(time.us for time in found) / len(found)
            run.spread_us = max(time.spread_us for time in found)
            run.rounds = sum(time.rounds for time in found)

    def _race(self, runs: list[_Run], sets: list[Any], begin: Callable[[int], None]) -> None:
        samplers = {}
        for run in runs:
            begin(run.index)
            try:
                samplers[run.index] = timing.sampler(self.device, [_launch(run, s) for s in sets])
            except Exception as error:
                run.fail(error)
        result = timing.race(samplers, over=self.late, begin=begin)
        for run in runs:
            if run.index in result.failed:
                run.fail(result.failed[run.index])
            elif run.failure is None:
                run.us, run.spread_us = result.median(run.index), result.spread(run.index)
                run.rounds = len(result.samples[run.index])
            if run.index in result.given_up:
                ahead = result.given_up[run.index]
                run.notes.append(f"given up after {run.rounds} rounds: {ahead:.2f} µs was ahead")

    def measurement(self, run: _Run) -> Measurement:
        if run.failure is None and not (math.isfinite(run.us) and run.us > 0):
            run.failure = f"RuntimeError: the {self.device.clock.value} clock read {run.us} µs"
        ok = run.failure is None
        return Measurement(
            config=run.config,
            clock=self.device.clock,
            device=self.device.name,
            us=run.us if ok else math.inf,
            spread_us=run.spread_us if ok else 0.0,
            rounds=run.rounds if ok else 0,
            max_error=run.found.max_ulp if run.found else None,
            failure=run.failure,
            measured_at=now_utc(),
            note="; ".join(run.notes),
        )


def _launch(run: _Run, operands: tuple[Any, ...]) -> Callable[[], None]:
    kernel = run.kernel
    assert kernel is not None
    return lambda: kernel(*operands)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()) or "no message"
    name = type(error).__name__
    # Memory that others hold is no fault of the kernel's.
    return f"{NOT_MEASURED}: {text}" if name == "OutOfMemoryError" else f"{name}: {text}"
