"""What was decided for each op of this process, and in what words it is told.

Owns the list that `choices.decisions`, ``explain`` and the demo read, and the autotune table of
choices that Inductor does not rank itself. Decides nothing, and imports no torch.
"""

from __future__ import annotations

import collections
import itertools
import json
import logging
import math
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ..config import GemmConfig
from ..problem import GemmProblem

log = logging.getLogger("inductor_flydsl")
KEPT = 10_000


@dataclass(frozen=True)
class Time:
    """The time of one choice.

    Attributes:
        name: as in an autotune table; ours are names of configurations.
        us: µs on ``clock``; infinite for a choice that failed, None for one that is not ranked.
        clock: ``gpu_event``, ``emulated`` or ``wall``; times of different clocks never compare.
        failure: why it failed, or empty.
    """

    name: str
    us: float | None
    clock: str
    failure: str = ""

    def lost(self, best: Time | None) -> str:
        """Why this choice was not taken where `best` was, in words."""
        if self.failure or (self.us is not None and math.isinf(self.us)):
            return f"failed: {self.failure}" if self.failure else "failed"
        if self.us is None or best is None or best.us is None or best.clock != self.clock:
            return "not ranked: no time on the clock of the one that was taken"
        return f"{self.us:.2f} us, {self.us / best.us:.2f}x of {best.name} ({self.clock})"

    def to_json(self) -> dict[str, Any]:
        finite = self.us is not None and math.isfinite(self.us)
        us = self.us if finite else None
        return {"name": self.name, "us": us, "clock": self.clock, "failure": self.failure}


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What became of one op.

    Attributes:
        op: as Inductor names it (``mm``).
        shapes: the operands in words, for ops that have no `problem` too.
        chosen: the backend that serves the op: ``FLYDSL``, ``ATEN``, ``TRITON``; ``OTHERS`` where
            several of Inductor's own were left to choose from.
        reason: why.
        problem: what was asked, where it is one of ours.
        config: our candidate, chosen or not, where there was one.
        times: what was compared.
        winner: name of the fastest in ``times``, where one was.
        candidates: our configurations that were tried for ``config``, with their times.
        fused: what was put into the kernel beside the product, one entry a pointwise node.
        stored: values on the way, the product or some of ``fused``, that it stores beside the last
            one because others use them.
        apart: what follows the product in a kernel of its own, each with the reason.
        dynamic: integers of the problem that every launch is given; the problem has their hints.
        compile_id: torch's number of the compilation, as in its logs (``0/0``).
        graph: number of the graph in this process; torch's own number starts again after a reset.
        number: of the decision in this process; it keeps it where it is amended.
    """

    op: str
    shapes: str
    chosen: str
    reason: str
    problem: GemmProblem | None = None
    config: GemmConfig | None = None
    times: tuple[Time, ...] = ()
    winner: str = ""
    candidates: tuple[Time, ...] = ()
    fused: tuple[str, ...] = ()
    stored: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    dynamic: tuple[str, ...] = ()
    compile_id: str = ""
    graph: int = 0
    number: int = field(default=0, compare=False)

    @property
    def losers(self) -> tuple[tuple[str, str], ...]:
        """(name, why it was not taken) of every choice and candidate that was not."""
        lost = []
        for times, name in (
            (self.times, self.winner),
            (self.candidates, self.config.name if self.config else ""),
        ):
            best = next((t for t in times if t.name == name), None)
            lost += [(t.name, t.lost(best)) for t in times if t.name != name]
        return tuple(dict(lost).items())

    def to_json(self) -> dict[str, Any]:
        """Plain data, complete."""
        return {
            "op": self.op,
            "shapes": self.shapes,
            "problem": None if self.problem is None else self.problem.to_json(),
            "subject": self.subject,
            "chosen": self.chosen,
            "reason": self.reason,
            "config": None if self.config is None else self.config.name,
            "winner": self.winner,
            "times": [t.to_json() for t in self.times],
            "candidates": [t.to_json() for t in self.candidates],
            "fused": list(self.fused),
            "stored": list(self.stored),
            "apart": list(self.apart),
            "dynamic": list(self.dynamic),
            "losers": [{"name": name, "reason": why} for name, why in self.losers],
            "compile_id": self.compile_id,
            "number": self.number,
        }

    @property
    def subject(self) -> str:
        """The op in words."""
        if self.problem is None:
            return f"{self.op} {self.shapes}"
        hints = {name: getattr(self.problem, name) for name in ("m", "n", "k", "batch")}
        sizes = [f"{n.upper()} dynamic, tuned at {hints[n]}" for n in self.dynamic if n in hints]
        return " ".join([str(self.problem), *(f"({text})" for text in sizes)])

    def __str__(self) -> str:
        notes = [f"fused: {', '.join(self.fused)}"] if self.fused else []
        notes += [f"stored too: {', '.join(self.stored)}"] if self.stored else []
        notes += [f"apart: {text}" for text in self.apart]
        return f"{self.subject}: {self.chosen} ({'; '.join([self.reason, *notes])})"


_lock = threading.Lock()
_graphs = itertools.count(1)
_numbers = itertools.count(1)
_kept: collections.deque[Decision] = collections.deque(maxlen=KEPT)


def record(decision: Decision, *, level: int = logging.INFO) -> Decision:
    """Keep and log a decision; a decline that repeats the latest word for word is kept once.

    At level DEBUG it is logged as JSON too, in the form that ``explain --log`` reads.

    Returns:
        It as it is kept, for `amend`.
    """
    number = next(_numbers)
    decision = replace(decision, compile_id=_compile_id(), graph=_graph(), number=number)
    with _lock:
        if _kept and _kept[-1] == decision and decision.chosen != "FLYDSL":
            return _kept[-1]
        _kept.append(decision)
    log.log(level, "%s", decision)
    if log.isEnabledFor(logging.DEBUG):
        log.debug("inductor_flydsl decision: %s", json.dumps(decision.to_json()))
    return decision


def amend(decision: Decision, **fields: Any) -> Decision:
    """Put a kept decision in other words, for what comes out after it was made.

    Args:
        decision: as `record` or `amend` gave it.
        fields: of it, with their new values.

    Returns:
        It as it is kept now.
    """
    changed = replace(decision, **fields)
    if changed == decision:
        return decision
    with _lock:
        places = [i for i, kept in enumerate(_kept) if kept is decision]
        for place in places:
            _kept[place] = changed
    if log.isEnabledFor(logging.DEBUG):
        log.debug("inductor_flydsl decision: %s", json.dumps(changed.to_json()))
    return changed


def _compile_id() -> str:
    guards = sys.modules.get("torch._guards")
    found = guards.CompileContext.current_compile_id() if guards is not None else None
    return "" if found is None else str(found)


def _graph() -> int:
    """Number of the graph that Inductor is lowering, counted in this process; 0 for none."""
    virtualized = sys.modules.get("torch._inductor.virtualized")
    graph = virtualized.V.graph if virtualized is not None else None
    if graph is None or not hasattr(graph, "__dict__"):
        return 0
    number: int = vars(graph).setdefault("_flydsl_graph", next(_graphs))
    return number


def decisions() -> tuple[Decision, ...]:
    """Every decision of this process so far, oldest first (the latest 10,000)."""
    with _lock:
        return tuple(_kept)


def last_compile() -> tuple[Decision, ...]:
    """The decisions of the latest compilation that had any, oldest first.

    A model with graph breaks is several compilations; a graph that came from Inductor's cache is
    none, since nothing was decided.
    """
    kept = decisions()
    return tuple(d for d in kept if _compilation(d) == _compilation(kept[-1]))


def _compilation(decision: Decision) -> tuple[int, str]:
    return decision.graph, decision.compile_id


def clear() -> None:
    """Forget every decision."""
    with _lock:
        _kept.clear()


def table(title: str, times: Iterable[Time], winner: str) -> str:
    """An autotune table whose rows name their clocks.

    Rows with a time come first, fastest first, with their speed relative to the winner's.
    """
    rows = sorted(times, key=lambda t: math.inf if t.us is None else t.us)
    best = next((t.us for t in rows if t.name == winner), None)
    lines = [f"AUTOTUNE {title}"]
    for row in rows:
        if row.us is None:
            lines.append(f"  {row.name} not ranked: no time on this clock")
        elif math.isinf(row.us):
            lines.append(f"  {row.name} failed")
        else:
            share = f" {best / row.us:.1%}" if best else ""
            lines.append(f"  {row.name} {row.us:.3f} us ({row.clock}){share}")
    return "\n".join(lines)


def print_table(text: str) -> None:
    """Write a table where Inductor writes its own."""
    sys.stderr.write(text + "\n")
