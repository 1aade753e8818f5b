"""Finds the configuration for a problem: look it up, else measure the likeliest and store that.

Owns the order of the steps and what a time budget is spent on. Knows nothing of Inductor. What it
needs of the world (the store, the compiler, the measuring, the versions) is passed to `Tuner`, so
that it runs without torch and without flydsl; `tune` and `lookup` use the real ones.
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from . import backing, ranking, settings, space
from ._version import __version__
from .background import Artifacts, Compile
from .backing import Measure
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
from .ledger import TunerStats, count, history, remember, stats, warn_once
from .problem import GemmProblem
from .records import (
    NOT_MEASURED,
    Contest,
    EnvironmentKey,
    Measurement,
    RecordKey,
    Store,
    TuningRecord,
    choose,
    now_utc,
)
from .targets import environment_key, miss_report, target_key

if TYPE_CHECKING:
    from .compiler import Artifact

__all__ = [
    "Tuner",
    "TunerStats",
    "default_tuner",
    "environment_key",
    "history",
    "lookup",
    "miss_report",
    "stats",
    "target_key",
    "tune",
]

log = logging.getLogger(__name__)

# Candidates that are compiled and measured at effort "default". The model's error is larger than
# the distance between its first few, and smaller than to its thirteenth.
DEFAULT_CANDIDATES = 12
# An emulated launch costs seconds of CPU where a GPU takes microseconds, and the user waits.
EMULATED_CANDIDATES = 4
# Share of a budget after which no further compile is started: what is compiled and not measured
# is worth nothing.
COMPILE_SHARE = 0.5

Progress = Callable[[str, int, int, str], None]
"""``progress(stage, done, all, what)``; the stages are ``compile`` and ``measure``."""


def _silent(stage: str, done: int, total: int, what: str) -> None:
    """A library call prints nothing."""


@dataclass
class _Plan:
    """What is to be done for one problem.

    Attributes:
        found: the record that settles it; the rest is then of no use.
        held: a record that more measurements are added to.
        configs: the candidates to measure, the most promising first.
        carried: failures of `held` that are not tried a second time.
    """

    problem: GemmProblem
    key: RecordKey | None
    found: TuningRecord | None = None
    held: TuningRecord | None = None
    configs: list[GemmConfig] = field(default_factory=list)
    carried: list[Measurement] = field(default_factory=list)

    def specs(self) -> list[KernelSpec]:
        return [KernelSpec.of(self.problem, config) for config in self.configs]


@dataclass
class Tuner:
    """A tuner built from its parts.

    Attributes:
        store: where records are.
        compile: (specs, arch, backend, deadline=, progress=) → artifact or failure, by spec;
            specs that the deadline left undone are absent.
        measure: (device, (config, artifact) pairs, problem, deadline) → a Measurement each; never
            raises for a bad kernel.
        environment: device → the environment key; raises MissingDependency if a part of it
            cannot be had, and then nothing is looked up or stored.
        effort: ``default`` or ``exhaustive``.
        must_store: raise StoreUnwritable instead of warning once.
        budget: seconds that one call may take; 0: no limit.
        complete: go on with records that a budget cut short; else they are as good as others.
        prepare: told of a device as soon as it is known that something will be compiled for it.
    """

    store: Store
    compile: Compile
    measure: Measure
    environment: Callable[[Device], EnvironmentKey]
    effort: str = "default"
    must_store: bool = False
    budget: float = 0.0
    complete: bool = False
    prepare: Callable[[Device], None] = lambda device: None
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
        count(lookups=1, hits=int(record is not None), misses=int(record is None))
        return record

    def tune(self, problem: GemmProblem, device: Device, *, force: bool = False) -> TuningRecord:
        """`tune_many` of one problem."""
        return self.tune_many([problem], device, force=force)[0]

    def tune_many(
        self,
        problems: Iterable[GemmProblem],
        device: Device,
        *,
        force: bool = False,
        progress: Progress = _silent,
    ) -> list[TuningRecord]:
        """The stored records, or new ones from measuring the likeliest candidates.

        Every candidate of every problem is compiled at once, in parallel, each kernel once.
        Meanwhile problem after problem is measured, as soon as its own candidates are there, and
        stored, so that what is done stays when the rest is interrupted.

        Args:
            problems: the GEMMs.
            device: where candidates run; records of another clock or kind of device don't count.
            force: measure even if there is a record.
            progress: told how far it is, from any thread.

        Returns:
            A record a problem, in their order. Its ``best`` is None if every candidate was
            rejected or the budget ran out before the first.

        Raises:
            ProblemError: no kernel here serves a problem.
            RecordMissing: the store's mode is ``require`` and there is no record.
            MissingDependency: flydsl is needed and not there.
            StoreUnwritable: ``must_store`` is set and a record could not be stored.
        """
        start = time.monotonic()
        plans = [self._plan(problem, device, force) for problem in problems]
        unique = list({plan.problem: plan for plan in plans if plan.found is None}.values())
        records: dict[GemmProblem, TuningRecord] = {}
        with self._compiling(unique, device, start, progress) as artifacts:
            for number, plan in enumerate(unique):
                built = artifacts.wait_for(plan.specs())
                progress("measure", number, len(unique), str(plan.problem))
                deadline = self._share(start, len(unique) - number)
                records[plan.problem] = self._settle(plan, device, built, deadline)
        if unique:
            progress("measure", len(unique), len(unique), "")
        return [records[plan.problem] if plan.found is None else plan.found for plan in plans]

    def precompile(self, problems: Iterable[GemmProblem], device: Device) -> int:
        """Compile the candidates of problems that have no record, all at once.

        Returns:
            How many kernels were asked of the compiler. Failures are told when they are tuned.

        Raises:
            MissingDependency: flydsl is needed and not there.
        """
        served = [p for p in problems if space.problem_limit(p, device.arch) is None]
        keys = [(p, self.key(p, device)) for p in dict.fromkeys(served)]
        without = [
            _Plan(p, key, configs=self.select(p, device))
            for p, key in keys
            if key is None or self.store.get(key) is None
        ]
        with self._compiling(without, device, time.monotonic(), _silent) as artifacts:
            return len(artifacts.all())

    def outstanding(
        self, problem: GemmProblem, device: Device, *, force: bool = False
    ) -> tuple[TuningRecord | None, list[GemmConfig]]:
        """What is stored and what `tune` would measure now, the most promising first.

        Raises:
            As `tune` does before it compiles anything.
        """
        plan = self._plan(problem, device, force, dry=True)
        return plan.found or plan.held, plan.configs

    def _plan(
        self, problem: GemmProblem, device: Device, force: bool, *, dry: bool = False
    ) -> _Plan:
        limit = space.problem_limit(problem, device.arch)
        if limit:
            way = "leave it to ATen or Triton"
            raise ProblemError("problem", str(problem), f"has no kernel: {limit}", way)
        if force and self.store.mode == "require":
            way = "use INDUCTOR_FLYDSL_CACHE=readwrite"
            raise BadArgument("force", force, "contradicts INDUCTOR_FLYDSL_CACHE=require", way)
        record = None if force else self.lookup(problem, device)
        key = self.key(problem, device)
        plan = _Plan(problem, key)
        if record is not None and self._satisfied(record):
            if not dry:
                remember(record, measured=0)
            plan.found = record
            return plan
        if self.store.mode == "require" and record is None:
            raise RecordMissing(miss_report(problem, key, self.store))
        if not dry:
            self.prepare(device)
        plan.held = self.store.peek(key) if key is not None else None
        plan.configs = self.select(problem, device)
        if plan.held is not None:
            self._continue(plan, plan.held, again=record is None)
        return plan

    def _continue(self, plan: _Plan, held: TuningRecord, *, again: bool) -> None:
        """Leave out what `held` has, or with `again` only what must not be tried again."""
        if not again:
            plan.configs = [c for c in plan.configs if held.measured(c) is None]
            return
        if held.best is not None and held.best not in plan.configs:
            # The incumbent is measured beside its challengers, on the same day.
            plan.configs.append(held.best)
        plan.carried = [m for m in held.measurements if m.fatal and m.config in plan.configs]
        skipped = {m.config for m in plan.carried}
        plan.configs = [c for c in plan.configs if c not in skipped]

    def _satisfied(self, record: TuningRecord) -> bool:
        if self.store.mode in ("require", "readonly"):
            return True
        if record.effort == "partial":
            return not self.complete and self.effort != "exhaustive"
        return self.effort != "exhaustive" or record.effort == "exhaustive"

    def _share(self, start: float, problems: int) -> float | None:
        """Until when the next of so many problems may be measured."""
        if not self.budget:
            return None
        now = time.monotonic()
        return now + max(0.0, start + self.budget - now) / problems

    def _compiling(
        self, plans: Sequence[_Plan], device: Device, start: float, progress: Progress
    ) -> Artifacts:
        rows: Iterable[Iterable[KernelSpec | None]] = [plan.specs() for plan in plans]
        if self.budget:
            # The best of each problem first, then the second of each: all get some.
            rows = itertools.zip_longest(*rows)
        wanted = list(dict.fromkeys(spec for row in rows for spec in row if spec is not None))
        count(compiled=len(wanted))
        return Artifacts(
            self.compile,
            wanted,
            device,
            deadline=start + COMPILE_SHARE * self.budget if self.budget else None,
            progress=lambda done, total: progress("compile", done, total, ""),
        )

    def _settle(
        self,
        plan: _Plan,
        device: Device,
        artifacts: Mapping[KernelSpec, Artifact | CompileFailed],
        deadline: float | None,
    ) -> TuningRecord:
        """Measure one problem and store what came of it."""
        results = self._run(plan, device, artifacts, deadline)
        tried = [m for m in results if m.tried]
        incumbent = plan.held.best if plan.held is not None else None
        record = TuningRecord(
            key=target_key(plan.problem, device),
            environment=plan.key.environment if plan.key is not None else _UNKNOWN,
            measurements=tuple(tried),
            best=choose(tried, incumbent=incumbent),
            created=now_utc(),
            device=device.name,
            clock=device.clock,
            effort=self.effort if len(tried) == len(results) else "partial",
        )
        if tried and record.best is None and incumbent is None:
            log.warning("no candidate for %s works; see inductor-flydsl explain", plan.problem)
        if plan.key is not None and (tried or not results):
            record = self._put(record)
            if self.store.mode == "refresh":
                self._refreshed[plan.key] = record
        elif plan.held is not None:
            record = plan.held
        count(tuned=int(bool(tried or not results)))
        remember(record, measured=len([m for m in tried if m not in plan.carried]))
        untried = [m for m in results if not m.tried and record.measured(m.config) is None]
        return replace(record, measurements=(*record.measurements, *untried))

    def select(self, problem: GemmProblem, device: Device) -> list[GemmConfig]:
        """The configurations that this tuner would measure, the most promising first."""
        keep: int | None = DEFAULT_CANDIDATES
        if device.clock is Clock.EMULATED:
            keep = EMULATED_CANDIDATES
        if self.effort == "exhaustive":
            keep = None
        ranked = ranking.rank(problem, space.candidates(problem, device.arch), device.arch, keep)
        return [config for config, _ in ranked]

    def _run(
        self,
        plan: _Plan,
        device: Device,
        artifacts: Mapping[KernelSpec, Artifact | CompileFailed],
        deadline: float | None,
    ) -> list[Measurement]:
        """A measurement of every candidate, in the plan's order, then the carried ones."""
        built: list[tuple[GemmConfig, Any]] = []
        results: dict[GemmConfig, Measurement] = {}
        for config, spec in zip(plan.configs, plan.specs(), strict=True):
            artifact = artifacts.get(spec)
            if artifact is None:
                reason = f"{NOT_MEASURED}: the budget ran out before it was compiled"
                results[config] = _failed(device, config, reason)
            elif isinstance(artifact, CompileFailed):
                results[config] = _failed(device, config, f"CompileFailed: {artifact}")
            else:
                built.append((config, artifact))
        spilling = _spilling([artifact for _, artifact in built])
        for config, artifact in built:
            if artifact in spilling:
                spills = f"Spills: {artifact.resources.spills} registers, and others none"
                results[config] = _failed(device, config, spills)
        built = [pair for pair in built if pair[0] not in results]
        if built:
            measured = self.measure(device, built, plan.problem, deadline)
            results |= {m.config: m for m in measured}
            count(measured=sum(m.tried for m in measured))
        for m in results.values():
            if not m.ok and m.tried:
                count(rejected=1)
                level = logging.INFO if "Spills" in str(m.failure) else logging.WARNING
                log.log(level, "%s for %s rejected: %s", m.config.name, plan.problem, m.failure)
        return [*(results[config] for config in plan.configs), *plan.carried]

    def held_contest(
        self, problem: GemmProblem, device: Device, entries: Iterable[tuple[str, str, float]]
    ) -> None:
        """Add a benchmark against other backends to the record of a problem, if there is one.

        Args:
            problem, device: name the record.
            entries: (backend, name of the choice, µs), on the record's clock.
        """
        key = self.key(problem, device)
        held = self.store.peek(key) if key is not None and self.store.writes else None
        if held is None:
            return
        ordered = tuple(sorted(entries, key=lambda entry: entry[2]))
        self._put(replace(held, contest=Contest(entries=ordered, held_at=now_utc())))

    def _put(self, record: TuningRecord) -> TuningRecord:
        try:
            return self.store.put(record)
        except StoreUnwritable as error:
            if self.must_store:
                raise
            warn_once(str(error))
            return record


_UNKNOWN = EnvironmentKey(sources="unknown", flydsl="unknown", plugin=__version__)


def _spilling(artifacts: Sequence[Any]) -> list[Any]:
    """Those that spill registers, where some don't."""
    found = [a for a in artifacts if a.resources is not None and a.resources.spills]
    return found if len(found) < len(artifacts) else []


def _failed(device: Device, config: GemmConfig, reason: str) -> Measurement:
    return Measurement(
        config=config,
        clock=device.clock,
        device=device.name,
        us=math.inf,
        failure=reason,
        measured_at=now_utc(),
    )


_lock = threading.Lock()
_tuners: dict[tuple[object, ...], Tuner] = {}


def default_tuner(
    *,
    effort: str | None = None,
    budget: float | None = None,
    must_store: bool = False,
    complete: bool = False,
) -> Tuner:
    """A tuner on the real compiler, the real measuring and the store that the settings name.

    Args:
        effort, budget: as the settings of that name; None asks them.
        must_store, complete: as `Tuner` has them.

    Raises:
        SettingError: a setting is unusable.
    """
    now = settings.current()
    wanted, _ = settings.resolve("effort", effort)
    seconds, _ = settings.resolve("budget", budget)
    limits = (now.jobs, now.measure_timeout, seconds)
    identity = (now.cache_dir, now.cache, wanted, limits, must_store, complete)
    with _lock:
        if identity not in _tuners:
            _tuners[identity] = Tuner(
                store=Store.over(now.cache_dir, now.cache),
                compile=backing.compile_in(now.jobs),
                measure=backing.measure_within(now.measure_timeout),
                environment=environment_key,
                effort=wanted,
                must_store=must_store,
                budget=seconds,
                complete=complete,
                prepare=backing.prepare_for(now.jobs),
            )
        return _tuners[identity]


def tune(
    problem: GemmProblem, device: Device, *, force: bool = False, effort: str | None = None
) -> TuningRecord:
    """`Tuner.tune` with the tuner that the settings describe."""
    return default_tuner(effort=effort).tune(problem, device, force=force)


def lookup(problem: GemmProblem, device: Device) -> TuningRecord | None:
    """`Tuner.lookup` with the tuner that the settings describe."""
    return default_tuner().lookup(problem, device)
