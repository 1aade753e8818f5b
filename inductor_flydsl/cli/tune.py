"""`inductor-flydsl tune`: measure problems ahead of time into the store."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable
from pathlib import Path

from .. import calibration, model, occupancy, ranking, settings, shapes, space
from ..arch import get_arch
from ..devices import Device, get_device
from ..fleet import Job, Outcome, tune_over
from ..problem import GemmProblem
from ..records import TuningRecord, now_utc
from ..tuner import Tuner, default_tuner
from . import FAILED, OK, MissingArgument, UsageError
from .cache import summary
from .output import emit_json, microseconds, say, table
from .progress import Progress

_WAY = "pass M,N,K or --shapes with a file of problems"


def run(arguments: argparse.Namespace) -> int:
    problems = _problems(arguments)
    names = _devices(arguments)
    overrides = {} if arguments.jobs is None else {"jobs": arguments.jobs}
    with settings.scope(**overrides):
        device = get_device(names[0])
        tuner = default_tuner(
            effort=arguments.effort, budget=arguments.budget, must_store=True, complete=True
        )
        served, refused = _served(problems, device)
        if arguments.dry_run:
            _dry_run(arguments, tuner, device, served)
            return FAILED if refused else OK
        if not tuner.store.writes:
            say(f"INDUCTOR_FLYDSL_CACHE={tuner.store.mode}: nothing will be stored")
        start = time.perf_counter()
        if arguments.ray:
            outcomes = _on_ray(arguments, names, served)
        elif len(names) > 1:
            outcomes = _over(arguments, names, served, tuner, device)
        else:
            outcomes = _here(arguments, tuner, device, served)
    _print(arguments, outcomes)
    measured = sum(o.measured for o in outcomes)
    say(f"{measured} candidates measured in {time.perf_counter() - start:.1f} s of wall time")
    _tell_left(outcomes, tuner.budget)
    worked = all(o.record is not None and o.record.best is not None for o in outcomes)
    return OK if worked and not refused else FAILED


def _problems(arguments: argparse.Namespace) -> list[GemmProblem]:
    problems = [GemmProblem.parse(text) for text in arguments.problems]
    for name in arguments.shapes:
        problems += shapes.read(Path(name))
    if not problems:
        if not arguments.shapes:
            raise MissingArgument("PROBLEM", _WAY)
        raise UsageError("--shapes", " ".join(arguments.shapes), "holds no problem", _WAY)
    return list(dict.fromkeys(problems))


def _devices(arguments: argparse.Namespace) -> list[str]:
    names = arguments.device or [settings.resolve("device")[0]]
    if "hip:all" in names:
        import torch

        count = torch.cuda.device_count() if torch.version.hip else 0
        every = [f"hip:{index}" for index in range(count)] or ["hip"]
        names = [n for name in names for n in (every if name == "hip:all" else [name])]
    for name in names:
        settings.resolve("device", name)
    kinds = {name.partition(":")[0] for name in names}
    if len(kinds) > 1:
        raise UsageError("--device", ", ".join(names), "mixes kinds", "tune one kind at a time")
    return names


def _served(problems: list[GemmProblem], device: Device) -> tuple[list[GemmProblem], bool]:
    """The problems that have kernels, and whether others had to be refused."""
    refused = {p: why for p in problems if (why := space.problem_limit(p, device.arch))}
    for problem, why in refused.items():
        say(f"{problem}: no kernel, because {why}")
    return [p for p in problems if p not in refused], bool(refused)


def _job(arguments: argparse.Namespace) -> Job:
    return Job(effort=arguments.effort, force=arguments.force, budget=arguments.budget)


def _here(
    arguments: argparse.Namespace, tuner: Tuner, device: Device, problems: list[GemmProblem]
) -> list[Outcome]:
    if not problems:
        return []
    progress = Progress()
    start = now_utc()
    try:
        records = tuner.tune_many(problems, device, force=arguments.force, progress=progress)
    finally:
        progress.close()
    return [
        Outcome(problem=p, device=device.name, record=r, measured=_since(start, r))
        for p, r in zip(problems, records, strict=True)
    ]


def _since(start: str, record: TuningRecord) -> int:
    return sum(m.tried and m.measured_at >= start for m in record.measurements)


def _over(
    arguments: argparse.Namespace,
    names: list[str],
    problems: list[GemmProblem],
    tuner: Tuner,
    device: Device,
) -> list[Outcome]:
    progress, outcomes = Progress(), []

    def done(outcome: Outcome) -> None:
        outcomes.append(outcome)
        text = f"{outcome.problem} on {outcome.device}"
        progress("measure", len(outcomes), len(problems), text)

    try:
        progress("compile", 0, len(problems), f"candidates of {len(problems)} problems")
        tuner.precompile(problems, device)
        return tune_over(names, problems, _job(arguments), done)
    finally:
        progress.close()


def _on_ray(
    arguments: argparse.Namespace, names: list[str], problems: list[GemmProblem]
) -> list[Outcome]:
    from ..fleet_ray import tune_on_ray

    progress, outcomes = Progress(), []

    def done(outcome: Outcome) -> None:
        outcomes.append(outcome)
        progress("measure", len(outcomes), len(problems), str(outcome.problem))

    try:
        return tune_on_ray(arguments.ray, names[0], problems, _job(arguments), done)
    finally:
        progress.close()


def _tell_left(outcomes: list[Outcome], budget: float) -> None:
    """What a budget cut off, where it did."""
    left = sum(_left(o.record) for o in outcomes if o.record)
    if left and budget:
        say(f"the budget of {budget:g} s ran out with {left} candidates left; tune again goes on")


def _left(record: TuningRecord) -> int:
    """Candidates that were not tried."""
    return sum(not m.tried for m in record.measurements)


def _print(arguments: argparse.Namespace, outcomes: list[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.record is None:
            say(f"{outcome.problem} on {outcome.device}: {outcome.error}")
    kernels = {o.record.id: _kernel(o.record) for o in outcomes if o.record is not None}
    rows = [
        summary(o.record)
        | {"measured_now": o.measured, "left": _left(o.record)}
        | {"kernel": _json(kernels[o.record.id])}
        for o in outcomes
        if o.record is not None
    ]
    if arguments.json:
        emit_json(rows)
        return
    if not rows:
        return
    header = ("KEY", "PROBLEM", "DEVICE", "CLOCK", "BEST", "US", "MEASURED NOW")
    cells = [
        (
            str(row["key"])[:12],
            GemmProblem.from_json(row["problem"]),  # type: ignore[arg-type]
            row["device"],
            row["clock"],
            row["verdict"],
            microseconds(row["us"]),  # type: ignore[arg-type]
            row["measured_now"],
        )
        for row in rows
    ]
    print(table(header, cells))
    shown = [
        (str(row["key"])[:12], row["best"], *occupancy.cells(kernel))
        for row in rows
        if (kernel := kernels[str(row["key"])]) is not None
    ]
    if shown:
        title = "\nWhat the best kernels occupy, from their code objects:"
        print(f"{title}\n{table(('KEY', 'BEST', *occupancy.COLUMNS), shown)}")
    records = [o.record for o in outcomes if o.record is not None]
    _tell_errors((record.clock.value, record.key.problem) for record in records)


def _kernel(record: TuningRecord) -> occupancy.Occupancy | None:
    if record.best is None:
        return None
    return occupancy.compiled(record.key.problem, record.best, get_arch(record.key.arch))


def _json(kernel: occupancy.Occupancy | None) -> dict[str, object] | None:
    return None if kernel is None else kernel.to_json()


def _tell_errors(times: Iterable[tuple[str, GemmProblem]]) -> None:
    """How far the printed times are from a GPU's, once for each clock and type."""
    for note in dict.fromkeys(calibration.note(clock, problem) for clock, problem in times):
        if note:
            say(note)


def _dry_run(
    arguments: argparse.Namespace, tuner: Tuner, device: Device, problems: list[GemmProblem]
) -> None:
    plans = []
    for problem in problems:
        stored, left = tuner.outstanding(problem, device, force=arguments.force)
        plans.append((problem, stored, ranking.rank(problem, left, device.arch)))
    if arguments.json:
        emit_json(
            [
                {
                    "problem": problem.to_json(),
                    "stored": None if stored is None else stored.id,
                    "candidates": [
                        {"name": c.name, "clock": model.CLOCK, "us": p.us} for c, p in ranked
                    ],
                }
                for problem, stored, ranked in plans
            ]
        )
        return
    for problem, stored, ranked in plans:
        held = "" if stored is None else f" (effort {stored.effort}, stored as {stored.id})"
        if not ranked:
            print(f"{problem} on {device.name}: would measure nothing{held}")
            continue
        print(f"{problem} on {device.name}: would measure {len(ranked)}{held}")
        rows = [(c.name, microseconds(p.us)) for c, p in ranked]
        print(table(("CONFIG", f"US ({model.CLOCK})"), rows, indent="  "))
    _tell_errors((model.CLOCK, problem) for problem, _, ranked in plans if ranked)
    store = settings.as_text(settings.current().cache_dir)
    limit = f", budget {tuner.budget:g} s" if tuner.budget else ""
    say(f"effort {tuner.effort}{limit}, store {store}; nothing was measured")
