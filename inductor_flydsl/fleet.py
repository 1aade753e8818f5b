"""Tuning on several devices at once, one process each, into one store.

A process is ``python -m inductor_flydsl.fleet DEVICE OPTIONS``. Problems are handed out one by one,
so that a fast device gets more of them. Each process stores what it measures itself; what is
stored when the work is interrupted need not be measured again.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from . import settings
from .devices import get_device
from .errors import DeviceUnavailable, InductorFlyDSLError
from .problem import GemmProblem
from .processes import Child, ProcessDied, ProcessHung, answers, questions
from .records import TuningRecord
from .tuner import default_tuner, stats

START_SECONDS = 300.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """How problems are tuned, the same in every process.

    Attributes:
        effort, force, budget: as `Tuner` takes them; None asks the settings.
    """

    effort: str | None = None
    force: bool = False
    budget: float | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one problem.

    Attributes:
        record: what the store has now, or None with the reason in ``error``.
        measured: candidates that were run for it.
        device: where.
    """

    problem: GemmProblem
    device: str
    record: TuningRecord | None = None
    measured: int = 0
    error: str = ""


def tune_over(
    devices: Sequence[str],
    problems: Sequence[GemmProblem],
    job: Job,
    done: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Tune problems on devices, each in a process of its own.

    Args:
        devices: names; one may occur twice where it is an emulator.
        problems: served by kernels, each once.
        job: how.
        done: told of each problem, from any thread.

    Returns:
        An outcome a problem, in their order. A process that dies costs the problem it was at.

    Raises:
        DeviceUnavailable: a process does not start or has no such device.
    """
    queue: SimpleQueue[GemmProblem] = SimpleQueue()
    for problem in problems:
        queue.put(problem)
    outcomes: dict[GemmProblem, Outcome] = {}
    alive: set[Child] = set()
    stop = threading.Event()

    def work(device: str) -> None:
        child = None
        for problem in _taken(queue, stop):
            child = child if child is not None and child.alive else _start(device, job, alive)
            outcomes[problem] = outcome = _one(child, device, problem)
            done(outcome)
        if child is not None:
            child.close()

    with ThreadPoolExecutor(len(devices)) as threads:
        running = [threads.submit(work, device) for device in devices]
        try:
            for future in running:
                future.result()
        except BaseException:
            stop.set()
            for child in list(alive):
                child.kill()
            raise
    return [outcomes[problem] for problem in problems]


def _taken(queue: SimpleQueue[GemmProblem], stop: threading.Event) -> Iterator[GemmProblem]:
    while not stop.is_set():
        try:
            yield queue.get_nowait()
        except Empty:
            return


def _start(device: str, job: Job, alive: set[Child]) -> Child:
    # The processes have this one's environment, but not its scopes.
    chosen = settings.current()
    scope = {name: settings.as_text(getattr(chosen, name)) for name in settings.KNOBS}
    options = {"job": vars(job), "scope": scope}
    child = Child(["-m", "inductor_flydsl.fleet", device, json.dumps(options)])
    alive.add(child)
    try:
        answer = child.receive(START_SECONDS)
    except (ProcessDied, ProcessHung) as error:
        raise DeviceUnavailable(f"device={device}: the tuning process {error}") from error
    if "error" in answer:
        raise DeviceUnavailable(answer["error"])
    return child


def _one(child: Child, device: str, problem: GemmProblem) -> Outcome:
    try:
        child.send(problem.to_json())
        answer = child.receive(None)
    except (ProcessDied, ProcessHung) as error:
        return Outcome(problem=problem, device=device, error=f"the tuning process {error}")
    return _outcome(problem, device, answer)


def _outcome(problem: GemmProblem, device: str, answer: dict[str, Any]) -> Outcome:
    if "error" in answer:
        return Outcome(problem=problem, device=device, error=answer["error"])
    return Outcome(
        problem=problem,
        device=device,
        record=TuningRecord.from_json(answer["record"]),
        measured=answer["measured"],
    )


def tune_here(device: str, problem: GemmProblem, job: Job, *, must_store: bool) -> dict[str, Any]:
    """One problem in this process, as plain data: ``record`` and ``measured``, or ``error``."""
    before = stats().measured
    try:
        tuner = default_tuner(
            effort=job.effort, budget=job.budget, must_store=must_store, complete=True
        )
        record = tuner.tune(problem, get_device(device), force=job.force)
    except InductorFlyDSLError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"record": record.to_json(), "measured": stats().measured - before}


def main(device: str, options: str) -> int:
    say = answers()
    asked = json.loads(options)
    job = Job(**asked["job"])
    with settings.scope(**{n: v for n, v in asked["scope"].items() if v or n != "record"}):
        try:
            get_device(device)
        except InductorFlyDSLError as error:
            say(error=str(error))
            return 1
        say(ready=True)
        for question in questions():
            say(**tune_here(device, GemmProblem.from_json(question), job, must_store=True))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
