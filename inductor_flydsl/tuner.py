"""Finds the configuration for a problem: look it up, else measure the likeliest and store that.

Owns the order of the steps and this process's counts. Knows nothing of Inductor. What it needs of
the world (the store, the compiler, the measuring, the versions) is passed to `Tuner`, so that it
runs without torch and without flydsl; `tune` and `lookup` use the real ones.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from . import model, settings, space
from ._version import __version__
from .config import GemmConfig, KernelSpec
from .devices.base import Clock, Device
from .errors import (
    BadArgument,
    CompileFailed,
    MissingDependency,
    ProblemError,
    RecordMissing,
    StoreUnwritable,
)
from .problem import GemmProblem
from .records import (
    EnvironmentKey,
    Measurement,
    RecordKey,
    Store,
    TargetKey,
    TuningRecord,
    choose,
    now_utc,
)

if TYPE_CHECKING:
    from .compiler import Artifact

log = logging.getLogger(__name__)

# Candidates that are compiled and measured at effort "default". The model's error is larger than
# the distance between its first few, and smaller than to its thirteenth.
DEFAULT_CANDIDATES = 12
# An emulated launch costs seconds of CPU where a GPU takes microseconds, and the user waits.
EMULATED_CANDIDATES = 4

Compile = Callable[
    [Sequence[KernelSpec], str, str], "Mapping[KernelSpec, Artifact | CompileFailed]"
]
Measure = Callable[[Device, "Artifact", GemmProblem, GemmConfig], Measurement]


@dataclass(frozen=True, kw_only=True)
class TunerStats:
    """Counts of this process.

    Attributes:
        lookups: times a record was asked for.
        hits, misses: of these; their sum is ``lookups``.
        tuned: problems measured to the end.
        compiled: kernels asked of the compiler (it may have had them on disk).
        measured: candidates that were run.
        rejected: candidates that failed to compile or to run, or gave wrong numbers.
    """

    lookups: int = 0
    hits: int = 0
    misses: int = 0
    tuned: int = 0
    compiled: int = 0
    measured: int = 0
    rejected: int = 0


@dataclass
class Tuner:
    """A tuner built from its parts.

    Attributes:
        store: where records are.
        compile: (specs, arch, backend) → artifact or failure, by spec.
        measure: (device, artifact, problem, config) → Measurement; never raises for a bad kernel.
        environment: device → the environment key; raises MissingDependency if a part of it
            cannot be had, and then nothing is looked up or stored.
        effort: ``default`` or ``exhaustive``.
        must_store: raise StoreUnwritable instead of warning once.
    """

    store: Store
    compile: Compile
    measure: Measure
    environment: Callable[[Device], EnvironmentKey]
    effort: str = "default"
    must_store: bool = False
    _refreshed: dict[RecordKey, TuningRecord] = field(default_factory=dict)

    def key(self, problem: GemmProblem, device: Device) -> RecordKey | None:
        """The key of a problem here, or None where its environment cannot be told."""
        try:
            environment = self.environment(device)
        except MissingDependency as error:
            log.info("no tuning record is looked up or stored: %s", error)
            return None
        return RecordKey(target=target_key(problem, device), environment=environment)

    def lookup(self, problem: GemmProblem, device: Device) -> TuningRecord | None:
        """The stored record, or None; compiles and measures nothing."""
        key = self.key(problem, device)
        record = self._refreshed.get(key) if key and self.store.mode == "refresh" else None
        if record is None and key is not None:
            record = self.store.get(key)
        _count(lookups=1, hits=int(record is not None), misses=int(record is None))
        return record

    def tune(self, problem: GemmProblem, device: Device, *, force: bool = False) -> TuningRecord:
        """The stored record, or a new one from measuring the likeliest candidates.

        Args:
            problem: the GEMM.
            device: where candidates run; records of another clock or kind of device don't count.
            force: measure even if there is a record.

        Returns:
            A record whose ``best`` is None if every candidate was rejected.

        Raises:
            ProblemError: no kernel here serves the problem.
            RecordMissing: the store's mode is ``require`` and there is no record.
            MissingDependency: flydsl is needed and not there.
            StoreUnwritable: ``must_store`` is set and the record could not be stored.
        """
        limit = space.problem_limit(problem, device.arch)
        if limit:
            way = "leave it to ATen or Triton"
            raise ProblemError("problem", str(problem), f"has no kernel: {limit}", way)
        if force and self.store.mode == "require":
            way = "use INDUCTOR_FLYDSL_CACHE=readwrite"
            raise BadArgument("force", force, "contradicts INDUCTOR_FLYDSL_CACHE=require", way)
        record = None if force else self.lookup(problem, device)
        if record is not None and self._satisfied(record):
            _remember(record, measured=0)
            return record
        key = self.key(problem, device)
        if self.store.mode == "require" and record is None:
            raise RecordMissing(miss_report(problem, key, self.store))
        held = self.store.peek(key) if key is not None else None
        return self._tune(problem, device, key=key, held=held, again=record is None)

    def _satisfied(self, record: TuningRecord) -> bool:
        if self.effort != "exhaustive" or record.effort == "exhaustive":
            return True
        return self.store.mode in ("require", "readonly")

    def _tune(
        self,
        problem: GemmProblem,
        device: Device,
        *,
        key: RecordKey | None,
        held: TuningRecord | None,
        again: bool,
    ) -> TuningRecord:
        """Measure and store; `again` measures even what the held record has measured."""
        configs = self.select(problem, device)
        if held is not None and not again:
            configs = [c for c in configs if held.measured(c) is None]
        elif held is not None and held.best is not None and held.best not in configs:
            # The incumbent is measured beside its challengers, on the same day.
            configs.append(held.best)
        measurements = self._run(problem, device, configs)
        incumbent = held.best if held is not None else None
        environment = key.environment if key is not None else _UNKNOWN
        record = TuningRecord(
            key=target_key(problem, device),
            environment=environment,
            measurements=tuple(measurements),
            best=choose(measurements, incumbent=incumbent),
            created=now_utc(),
            device=device.name,
            clock=device.clock,
            effort=self.effort,
        )
        if record.best is None and not (held is not None and held.best is not None):
            log.warning("no candidate for %s works; see inductor-flydsl explain", problem)
        if key is not None:
            record = self._put(record)
            if self.store.mode == "refresh":
                self._refreshed[key] = record
        _count(tuned=1)
        _remember(record, measured=len(measurements))
        return record

    def select(self, problem: GemmProblem, device: Device) -> list[GemmConfig]:
        """The configurations that this tuner would measure, the most promising first."""
        keep: int | None = DEFAULT_CANDIDATES
        if device.clock is Clock.EMULATED:
            keep = EMULATED_CANDIDATES
        if self.effort == "exhaustive":
            keep = None
        ranked = model.rank(problem, space.candidates(problem, device.arch), device.arch, keep)
        return [config for config, _ in ranked]

    def _run(
        self, problem: GemmProblem, device: Device, configs: Sequence[GemmConfig]
    ) -> list[Measurement]:
        specs = {config: KernelSpec.of(problem, config) for config in configs}
        wanted = list(dict.fromkeys(specs.values()))
        artifacts = self.compile(wanted, device.arch.name, device.backend) if wanted else {}
        _count(compiled=len(wanted))
        measurements = []
        for config, spec in specs.items():
            artifact = artifacts[spec]
            if isinstance(artifact, CompileFailed):
                measurement = _failed(device, config, f"CompileFailed: {artifact}")
            else:
                measurement = self.measure(device, artifact, problem, config)
                _count(measured=1)
            if not measurement.ok:
                _count(rejected=1)
                log.warning("%s for %s rejected: %s", config.name, problem, measurement.failure)
            measurements.append(measurement)
        return measurements

    def _put(self, record: TuningRecord) -> TuningRecord:
        try:
            return self.store.put(record)
        except StoreUnwritable as error:
            if self.must_store:
                raise
            _warn_once(str(error))
            return record


_UNKNOWN = EnvironmentKey(sources="unknown", flydsl="unknown", plugin=__version__)


def _failed(device: Device, config: GemmConfig, reason: str) -> Measurement:
    return Measurement(
        config=config,
        clock=device.clock,
        device=device.name,
        us=math.inf,
        failure=reason,
        measured_at=now_utc(),
    )


def target_key(problem: GemmProblem, device: Device) -> TargetKey:
    """What a record on this device is filed under, apart from versions."""
    units = device.environment().get("compute_units", device.arch.compute_units)
    return TargetKey(
        problem=problem,
        arch=device.arch.name,
        device=device.name.split(":", 1)[0],
        clock=device.clock,
        compute_units=int(units),
    )


def environment_key(device: Device) -> EnvironmentKey:
    """The versions that measurements on this device depend on.

    Raises:
        MissingDependency: flydsl is needed for the device's kernels and not there.
    """
    about = {k: str(v) for k, v in device.environment().items() if k != "compute_units"}
    if device.backend == "reference":
        sources = flydsl = "none"
    else:
        from . import compiler

        sources = compiler.source_fingerprint()
        flydsl = compiler.flydsl_version()
    return EnvironmentKey(
        sources=sources,
        flydsl=flydsl,
        plugin=__version__,
        device=tuple(sorted(about.items())),
    )


def miss_report(problem: GemmProblem, key: RecordKey | None, store: Store) -> str:
    """Why there is no record: in words, with the fields that differ from the nearest one."""
    text = f"no tuning record for {problem} in {store.root}"
    if key is None:
        return f"{text}: flydsl is not usable here, so its kernels' version cannot be told"
    text += f" (key {key.id}, clock {key.target.clock.value})"
    found = store.nearest(key)
    if found is None:
        return f"{text}; the store has no records; run inductor-flydsl tune"
    nearest, fields = found
    detail = "; ".join(str(f) for f in fields)
    return f"{text}; the nearest, {nearest.id}, differs in {detail}; run inductor-flydsl tune"


_lock = threading.Lock()
_stats = TunerStats()
_history: list[tuple[TuningRecord, int]] = []
_warned: set[str] = set()
HISTORY_LENGTH = 1000


def _count(**more: int) -> None:
    global _stats
    with _lock:
        _stats = replace(_stats, **{n: getattr(_stats, n) + v for n, v in more.items()})


def _remember(record: TuningRecord, *, measured: int) -> None:
    with _lock:
        _history.append((record, measured))
        del _history[:-HISTORY_LENGTH]


def _warn_once(text: str) -> None:
    with _lock:
        new = text not in _warned
        _warned.add(text)
    if new:
        log.warning("%s", text)


def stats() -> TunerStats:
    """The counts of this process so far."""
    return _stats


def history() -> list[tuple[TuningRecord, int]]:
    """What `Tuner.tune` returned in this process, oldest first, each with the number of
    candidates that were measured for it (0 for one found in the store); the last thousand."""
    with _lock:
        return list(_history)


def default_tuner(*, effort: str | None = None, must_store: bool = False) -> Tuner:
    """A tuner on the real compiler, the real measuring and the store that the settings name.

    Raises:
        SettingError: a setting is unusable.
    """
    now = settings.current()
    wanted, _ = settings.resolve("effort", effort)
    identity = (now.cache_dir, now.cache, wanted, now.jobs, must_store)
    with _lock:
        if identity not in _tuners:
            _tuners[identity] = Tuner(
                store=Store(now.cache_dir, now.cache),
                compile=_compile_with(now.jobs),
                measure=_measure,
                environment=environment_key,
                effort=wanted,
                must_store=must_store,
            )
        return _tuners[identity]


_tuners: dict[tuple[object, ...], Tuner] = {}


def _compile_with(jobs: int) -> Compile:
    def compile(
        specs: Sequence[KernelSpec], arch: str, backend: str
    ) -> Mapping[KernelSpec, Artifact | CompileFailed]:
        from . import compiler

        return compiler.compile_many(specs, arch, backend, jobs)

    return compile


def _measure(
    device: Device, artifact: Artifact, problem: GemmProblem, config: GemmConfig
) -> Measurement:
    from .measure import measure

    return measure(device, artifact, problem, config)


def tune(
    problem: GemmProblem, device: Device, *, force: bool = False, effort: str | None = None
) -> TuningRecord:
    """`Tuner.tune` with the tuner that the settings describe."""
    return default_tuner(effort=effort).tune(problem, device, force=force)


def lookup(problem: GemmProblem, device: Device) -> TuningRecord | None:
    """`Tuner.lookup` with the tuner that the settings describe."""
    return default_tuner().lookup(problem, device)
