"""`inductor-flydsl tune`: measure problems ahead of time into the store."""

from __future__ import annotations

import argparse
import time

from .. import model, settings, space
from ..devices import Device, get_device
from ..problem import GemmProblem
from ..tuner import Tuner, default_tuner, history
from . import FAILED, OK
from .cache import summary
from .output import emit_json, microseconds, say, table


def run(arguments: argparse.Namespace) -> int:
    problems = [GemmProblem.parse(text) for text in arguments.problems]
    device = get_device(arguments.device)
    tuner = default_tuner(effort=arguments.effort, must_store=True)
    refused = {p: why for p in problems if (why := space.problem_limit(p, device.arch))}
    for problem, why in refused.items():
        say(f"{problem}: no kernel, because {why}")
    served = [p for p in dict.fromkeys(problems) if p not in refused]
    if arguments.dry_run:
        _dry_run(arguments, tuner, device, served)
        return FAILED if refused else OK
    if not tuner.store.writes:
        say(f"INDUCTOR_FLYDSL_CACHE={tuner.store.mode}: nothing will be stored")
    rows = []
    for number, problem in enumerate(served, start=1):
        say(f"[{number}/{len(served)}] {problem} on {device.name}")
        start = time.perf_counter()
        tuner.tune(problem, device, force=arguments.force)
        record, measured = history()[-1]
        rows.append(summary(record) | {"measured_now": measured})
        say(f"  {measured} measured in {time.perf_counter() - start:.1f} s of wall time")
    _print(arguments, rows)
    return FAILED if refused or any(row["best"] is None for row in rows) else OK


def _print(arguments: argparse.Namespace, rows: list[dict[str, object]]) -> None:
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
            row["best"] or "none works",
            microseconds(row["us"]),  # type: ignore[arg-type]
            row["measured_now"],
        )
        for row in rows
    ]
    print(table(header, cells))


def _dry_run(
    arguments: argparse.Namespace, tuner: Tuner, device: Device, problems: list[GemmProblem]
) -> None:
    plans = []
    for problem in problems:
        stored = None if arguments.force else tuner.lookup(problem, device)
        chosen = [] if stored is not None else tuner.select(problem, device)
        plans.append((problem, stored, model.rank(problem, chosen, device.arch)))
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
        if stored is not None:
            print(f"{problem} on {device.name}: stored as {stored.id}")
            continue
        print(f"{problem} on {device.name}: would measure {len(ranked)}")
        rows = [(c.name, microseconds(p.us)) for c, p in ranked]
        print(table(("CONFIG", f"US ({model.CLOCK})"), rows, indent="  "))
    say(f"effort {tuner.effort}, store {settings.current().cache_dir}; nothing was measured")
