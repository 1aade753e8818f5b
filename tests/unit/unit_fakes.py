"""A device, a compiler and a measuring that run nothing, for tests of the tuner and the store."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inductor_flydsl.arch import GFX950, Arch
from inductor_flydsl.compiler.artifact import Artifact, Resources
from inductor_flydsl.config import GemmConfig, KernelSpec
from inductor_flydsl.devices.base import Clock, Kernel, Timing
from inductor_flydsl.errors import CompileFailed, MissingDependency
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.records import (
    EnvironmentKey,
    Measurement,
    Store,
    TargetKey,
    TuningRecord,
    choose,
    now_utc,
)
from inductor_flydsl.tuner import Tuner

PROBLEM = GemmProblem.dense(256, 512, 1024)
ENVIRONMENT = EnvironmentKey(
    sources="5ca1ab1e", flydsl="0.5.0", plugin="0.1.0", device=(("driver", "6.4"),)
)
CONFIGS = [
    GemmConfig(tile_m=tile_m, tile_n=tile_n, tile_k=64, stages=2, waves_m=2, waves_n=2)
    for tile_m in (64, 128, 256)
    for tile_n in (64, 128)
]


@dataclass
class FakeDevice:
    name: str = "hip:0"
    clock: Clock = Clock.GPU_EVENT
    arch: Arch = GFX950
    backend: str = "rocm"
    torch_device: str = "cuda:0"
    facts: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        return dict(self.facts)

    def load(self, artifact: Any, problem: GemmProblem, config: GemmConfig) -> Kernel:
        raise AssertionError("a unit test loads no kernel")

    def time(self, call: Callable[[], None]) -> Timing:
        raise AssertionError("a unit test times no kernel")

    def synchronize(self) -> None:
        raise AssertionError("a unit test launches no kernel")


def emulated() -> FakeDevice:
    return FakeDevice("emulator:gfx950", Clock.EMULATED, GFX950, "emulator", "cpu")


def measured(config: GemmConfig, us: float, **options: Any) -> Measurement:
    """A measurement on a GPU; infinite time is a failure."""
    failure = None if math.isfinite(us) else "WrongNumbers: made up"
    values = {"clock": Clock.GPU_EVENT, "device": "hip:0", "failure": failure}
    return Measurement(config=config, us=us, measured_at=now_utc(), **(values | options))


def target(problem: GemmProblem = PROBLEM, **options: Any) -> TargetKey:
    values = {"arch": "gfx950", "device": "hip", "clock": Clock.GPU_EVENT, "compute_units": 256}
    return TargetKey(problem=problem, **(values | options))


def record(measurements: Sequence[Measurement], **options: Any) -> TuningRecord:
    values: dict[str, Any] = {
        "key": target(),
        "environment": ENVIRONMENT,
        "best": choose(measurements),
        "created": now_utc(),
        "device": "hip:0",
        "clock": Clock.GPU_EVENT,
    }
    return TuningRecord(measurements=tuple(measurements), **(values | options))


@dataclass
class World:
    """The injected parts of a tuner, with what was asked of them.

    Attributes:
        times: µs by config, or a reason to fail; others take the default of 100 µs.
        broken: configs that do not compile.
        spills: registers that a config's kernel spills; others spill none.
        compile_at_most: kernels that a compile gets to before its deadline.
    """

    times: dict[GemmConfig, float | str] = field(default_factory=dict)
    spread: float = 0.0
    broken: set[GemmConfig] = field(default_factory=set)
    spills: dict[GemmConfig, int] = field(default_factory=dict)
    environment: EnvironmentKey | None = ENVIRONMENT
    compiled: list[KernelSpec] = field(default_factory=list)
    ran: list[GemmConfig] = field(default_factory=list)
    deadlines: list[float | None] = field(default_factory=list)
    compile_at_most: int | None = None

    def tuner(self, root: Path, mode: str = "readwrite", **options: Any) -> Tuner:
        return Tuner(
            store=Store(root, mode),
            compile=self._compile,
            measure=self._measure,
            environment=self._environment,
            **options,
        )

    def _compile(
        self, specs: Sequence[KernelSpec], arch: str, backend: str, **options: Any
    ) -> Mapping[KernelSpec, Any]:
        assert len(set(specs)) == len(specs)
        done = list(specs[: self.compile_at_most])
        self.compiled += done
        options["progress"](len(done), len(specs))
        broken = CompileFailed("made up")
        return {s: broken if s.config in self.broken else self._artifact(s, arch) for s in done}

    def _artifact(self, spec: KernelSpec, arch: str) -> Artifact:
        spills = self.spills.get(spec.config, 0)
        held = Resources(vgprs=64, agprs=0, sgprs=40, lds_bytes=0, scratch_bytes=0, spills=spills)
        return Artifact(spec=spec, arch=arch, backend="rocm", key="0", resources=held)

    def _measure(
        self,
        device: Any,
        candidates: Sequence[tuple[GemmConfig, Any]],
        problem: GemmProblem,
        deadline: float | None,
    ) -> list[Measurement]:
        self.deadlines.append(deadline)
        return [self._one(device, artifact, problem, config) for config, artifact in candidates]

    def _one(
        self, device: Any, artifact: Any, problem: GemmProblem, config: GemmConfig
    ) -> Measurement:
        assert artifact.spec == KernelSpec.of(problem, config)
        self.ran.append(config)
        outcome = self.times.get(config, 100.0)
        failure = outcome if isinstance(outcome, str) else None
        us = outcome if isinstance(outcome, float) else math.inf
        where = {"clock": device.clock, "device": device.name, "failure": failure}
        fatal = failure is not None and failure.startswith(("Hang", "Crash"))
        return measured(config, us, spread_us=self.spread, fatal=fatal, **where)

    def _environment(self, device: Any) -> EnvironmentKey:
        if self.environment is None:
            raise MissingDependency("flydsl is not installed")
        return self.environment
