"""`inductor-flydsl explain`: candidates, the stored pick, and every rejection with its reason."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from .. import calibration, explanation, logs, model, occupancy
from ..devices.base import Clock
from ..problem import GemmProblem
from . import FAILED, OK, MissingArgument, UsageError
from .cache import measurements_table
from .output import emit_json, microseconds, say, table


def run(arguments: argparse.Namespace) -> int:
    if arguments.top < 0:
        raise UsageError("--top", arguments.top, "is negative", "use 0 or more")
    if arguments.problem is None and arguments.log is None:
        raise MissingArgument("PROBLEM", "pass M,N,K or --log FILE")
    if arguments.problem is not None and arguments.log is not None:
        way = "leave one of them out"
        raise UsageError("PROBLEM", arguments.problem, "is explained apart from --log", way)
    if arguments.log is not None:
        return _explain_log(arguments)
    found = explanation.explain(GemmProblem.parse(arguments.problem), arch=arguments.arch)
    for note in found.notes:
        say(f"note: {note}")
    if arguments.json:
        emit_json(found.to_json())
        return OK
    print(f"{found.problem} on {found.arch}: {_verdict(found)}")
    if found.candidates:
        print(_candidates(found, arguments.top))
    print(_stored(found))
    if found.candidates:
        print(_kernels(found))
    if found.rejections:
        print(_rejections(found))
    return OK


def _explain_log(arguments: argparse.Namespace) -> int:
    try:
        source: Any = sys.stdin
        if arguments.log != "-":
            source = open(arguments.log, errors="replace")  # noqa: SIM115
        with source as lines:
            decisions, tables = logs.parse(lines)
    except OSError as error:
        raise UsageError(
            "--log", arguments.log, f"cannot be read ({error})", "name a log"
        ) from error
    if arguments.json:
        emit_json(
            {
                "decisions": [d.to_json() for d in decisions],
                "tables": [t.to_json() for t in tables],
            }
        )
        return OK if decisions or tables else FAILED
    if not decisions:
        say("no decision is in this log; compile with TORCH_LOGS=+inductor_flydsl")
    for decision in decisions:
        config = f" {decision.config}" if decision.config and decision.chosen == "FLYDSL" else ""
        where = f" [{decision.compile_id}]" if decision.compile_id else ""
        print(f"{decision.subject}{where}: {decision.chosen}{config}, because: {decision.reason}")
        for text in decision.fused:
            print(f"  fused: {text}")
        for text in decision.stored:
            print(f"  stored too: {text}")
        for text in decision.apart:
            print(f"  apart: {text}")
        for name, why in decision.losers:
            print(f"  not {name}: {why}")
    for found in tables if not decisions else ():
        print(f"{found.title}: {found.rows[0][0]} of {len(found.rows)}")
        for name, ms in found.rows[1:]:
            print(f"  not {name}: {ms:g} ms, {ms / found.rows[0][1]:.2f}x")
    return OK if decisions or tables else FAILED


def _verdict(found: explanation.Explanation) -> str:
    if found.limit:
        return f"stays with ATen or Triton, because: {found.limit}"
    forbidden = sum(r.count for r in found.rejections)
    return f"{len(found.candidates)} configurations are legal, {forbidden} are not"


def _candidates(found: explanation.Explanation, top: int) -> str:
    header = ("CONFIG", f"US ({model.CLOCK})", "BOUND", *(p.upper() for p in model.PARTS))
    rows = [
        (c.name, microseconds(p.us), p.bound, *(microseconds(v) for v in p.parts.values()))
        for c, p in found.candidates[:top]
    ]
    title = f"\nPredicted times, clock {model.CLOCK} (a formula, not a measurement), best first:"
    error = calibration.note(model.CLOCK, found.problem)
    lines = [title, table(header, rows, indent="  "), f"  {error}"]
    if found.after_copies is not None:
        lines.append(_both_ways(found, found.after_copies))
    return "\n".join(lines)


def _both_ways(found: explanation.Explanation, other: explanation.AfterCopies) -> str:
    """The best kernel on operands as they lie, and on copies of them that run along K."""
    config, prediction = found.candidates[0]
    copied = microseconds(other.copy_us)
    rows = [
        ("as operands lie", config.name, "", microseconds(prediction.us)),
        (f"{other.operands} copied along K", other.config.name, copied, microseconds(other.us)),
    ]
    header = ("WAY", "CONFIG", "COPY US", f"US ({model.CLOCK})")
    return f"\nA compile offers both ways:\n{table(header, rows, indent='  ')}"


def _stored(found: explanation.Explanation) -> str:
    if not found.stored:
        text = "\nThe store has no record of this problem."
        if found.candidates:
            error = calibration.note(Clock.EMULATED.value, found.problem)
            text += f" Of the times that the emulator gives:\n  {error}"
        return text
    blocks = []
    for entry in found.stored:
        record = entry.record
        pick = "no candidate works" if record.best is None else f"pick {record.best.name}"
        text = f"\nStored for {record.device}, clock {record.clock.value} ({record.id}): {pick}"
        text += f"\n  not used here: {entry.stale}" if entry.stale else ""
        rows = measurements_table(record).splitlines()
        error = calibration.note(record.clock.value, found.problem)
        text += "".join(f"\n  {line}" for line in [*rows, *([error] if error else [])])
        text += "".join(f"\n  {m.config.name} rejected: {m.failure}" for m in record.rejected)
        blocks.append(text)
    return "\n".join(blocks)


def _kernels(found: explanation.Explanation) -> str:
    if not found.kernels:
        return "\nNone of its kernels is compiled here; inductor-flydsl tune does that."
    rows = [(config.name, *occupancy.cells(kernel)) for config, kernel in found.kernels]
    title = "\nKernels that are compiled here, from their code objects:"
    return f"{title}\n{table(('CONFIG', *occupancy.COLUMNS), rows, indent='  ')}"


def _rejections(found: explanation.Explanation) -> str:
    lines = ["\nNot legal for this problem:"]
    for rejection in found.rejections:
        config, why = rejection.examples[0]
        lines.append(f"  {rejection.count:4d}  {why}  (for example {config.name})")
    return "\n".join(lines)
