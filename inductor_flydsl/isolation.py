"""Measuring in a process of its own, so that a kernel that hangs or kills costs itself alone.

On a GPU a kernel that touches memory that is not its own aborts the process, and one that waits
for what never comes hangs it: neither raises. `measure_isolated` gives such a candidate a fatal
failure and measures the others again without it.

The process is ``python -m inductor_flydsl.isolation DEVICE TORCH_DEVICE``. It stays for the next
problem, and ends by itself when it is idle.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .compiler import Artifact
from .config import GemmConfig, KernelSpec
from .devices.base import Device
from .errors import DeviceUnavailable, InductorFlyDSLError
from .measure import measure_many
from .problem import GemmProblem
from .processes import Child, ProcessDied, ProcessHung, answers, questions
from .records import Measurement, now_utc

START_SECONDS = 300.0
# The last step of a session converts times and frees memory; nothing of a kernel runs in it.
END_SECONDS = 60.0

Start = Callable[[Device], Child]


def measure_isolated(
    device: Device,
    candidates: Sequence[tuple[GemmConfig, Artifact]],
    problem: GemmProblem,
    *,
    timeout: float,
    deadline: float | None = None,
    start: Start | None = None,
) -> list[Measurement]:
    """`measure.measure_many` in another process.

    Args:
        device, candidates, problem, deadline: as there.
        timeout: seconds that one step of one candidate may take; 0: no limit.
        start: how the process is started, for tests.

    Raises:
        DeviceUnavailable: the process does not start, or has no such device.
    """
    found: dict[int, Measurement] = {}
    while len(found) < len(candidates):
        left = [i for i in range(len(candidates)) if i not in found]
        child = _child(device, start or _start)
        step = _Step()
        try:
            asked = _question(problem, [candidates[i] for i in left], deadline)
            results = _session(child, asked, step, timeout)
        except (ProcessDied, ProcessHung) as error:
            if step.index is None:
                raise DeviceUnavailable(
                    f"device={device.name}: the measuring process {error}"
                ) from error
            guilty = left[step.index]
            found[guilty] = _fatal(device, candidates[guilty][0], error)
            continue
        _keep(device, child)
        found |= zip(left, results, strict=True)
    return [found[i] for i in range(len(candidates))]


class _Step:
    """Which of the candidates that were sent is running now."""

    index: int | None = None


def _session(child: Child, asked: dict[str, Any], step: _Step, timeout: float) -> list[Measurement]:
    child.send(asked)
    while True:
        limit = (timeout or None) if step.index is not None else START_SECONDS
        answer = child.receive(limit)
        if "begin" in answer:
            step.index = answer["begin"]
        elif "error" in answer:
            raise DeviceUnavailable(answer["error"])
        else:
            return [Measurement.from_json(data) for data in answer["measurements"]]


def _fatal(device: Device, config: GemmConfig, error: Exception) -> Measurement:
    kind = "Hang: gave" if isinstance(error, ProcessHung) else "Crash: the process"
    return Measurement(
        config=config,
        clock=device.clock,
        device=device.name,
        us=math.inf,
        failure=f"{kind} {error}",
        measured_at=now_utc(),
        fatal=True,
    )


def _question(
    problem: GemmProblem,
    candidates: Sequence[tuple[GemmConfig, Artifact]],
    deadline: float | None,
) -> dict[str, Any]:
    return {
        "problem": problem.to_json(),
        # Clocks of two processes do not compare; what is left does.
        "seconds": None if deadline is None else deadline - time.monotonic(),
        "candidates": [
            {
                "config": config.to_json(),
                "spec": artifact.spec.to_json(),
                "arch": artifact.arch,
                "backend": artifact.backend,
                "key": artifact.key,
                "path": None if artifact.path is None else str(artifact.path),
            }
            for config, artifact in candidates
        ],
    }


_idle: dict[tuple[int, str, str], Child] = {}


def _child(device: Device, start: Start) -> Child:
    child = _idle.pop((os.getpid(), device.name, device.torch_device), None)
    if child is not None and child.alive:
        return child
    child = start(device)
    try:
        answer = child.receive(START_SECONDS)
    except (ProcessDied, ProcessHung) as error:
        raise DeviceUnavailable(f"device={device.name}: the measuring process {error}") from error
    if "error" in answer:
        raise DeviceUnavailable(f"device={device.name}: in the measuring process: {answer}")
    return child


def _start(device: Device) -> Child:
    return Child(["-m", "inductor_flydsl.isolation", device.name, device.torch_device])


def _keep(device: Device, child: Child) -> None:
    _idle[os.getpid(), device.name, device.torch_device] = child


@atexit.register
def close_children() -> None:
    """Let the idle measuring processes of this process end."""
    for key in [k for k in _idle if k[0] == os.getpid()]:
        _idle.pop(key).close()


def serve(device: Device, say: Callable[..., None]) -> None:
    """The child's side: answer questions until there are no more."""
    say(ready=True)
    for question in questions():
        seconds = question["seconds"]
        results = measure_many(
            device,
            [(GemmConfig.from_json(c["config"]), _artifact(c)) for c in question["candidates"]],
            GemmProblem.from_json(question["problem"]),
            deadline=None if seconds is None else time.monotonic() + seconds,
            begin=lambda index: say(begin=index),
        )
        _free(device)
        say(measurements=[m.to_json() for m in results])


def _artifact(data: dict[str, Any]) -> Artifact:
    return Artifact(
        spec=KernelSpec.from_json(data["spec"]),
        arch=data["arch"],
        backend=data["backend"],
        key=data["key"],
        path=None if data["path"] is None else Path(data["path"]),
    )


def _free(device: Device) -> None:
    """Give memory back that the caching allocator holds: the user's process needs it."""
    if device.torch_device.startswith("cuda"):
        import torch

        with contextlib.suppress(RuntimeError):
            torch.cuda.empty_cache()


def main(name: str, torch_device: str) -> int:
    from .devices import get_device

    say = answers()
    try:
        device = get_device(name, torch_type=torch_device)
    except InductorFlyDSLError as error:
        say(error=str(error))
        return 1
    serve(device, say)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
