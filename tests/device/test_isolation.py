"""A candidate that kills or hangs its process costs itself alone."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from inductor_flydsl import compiler, isolation
from inductor_flydsl.config import KernelSpec
from inductor_flydsl.devices import get_device
from inductor_flydsl.errors import DeviceUnavailable
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.processes import Child
from inductor_flydsl.space import candidates

PROBLEM = GemmProblem.dense(64, 48, 64)
DEVICE = get_device("reference")
CONFIGS = candidates(PROBLEM, DEVICE.arch)[:4]

# What a kernel does hangs on the name of its configuration.
CHILD = """
import os, signal, sys, time
from inductor_flydsl import isolation
from inductor_flydsl.devices.reference import ReferenceDevice
from inductor_flydsl.processes import answers
CRASH, HANG, LATE = sys.argv[1:4]
class Bad(ReferenceDevice):
    def load(self, artifact, problem, config):
        launch, calls = super().load(artifact, problem, config), iter(range(10**6))
        def kernel(c, a, b):
            number = next(calls)
            launch(c, a, b)
            if config.name == CRASH or config.name == LATE and number == 2:
                print("memory access fault", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGABRT)
            if config.name == HANG:
                time.sleep(600)
        return kernel
isolation.serve(Bad(), answers())
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A way to start the child, and the list of those that were started."""
    children: list[Child] = []

    def starter(crash: str = "", hang: str = "", late: str = "") -> Any:
        def start(device: Any) -> Child:
            children.append(Child(["-c", CHILD, crash, hang, late]))
            return children[-1]

        return start

    yield starter, children
    isolation.close_children()


def measure(start: Any, **options: Any) -> list[Any]:
    pairs = [
        (c, compiler.compile_spec(KernelSpec.of(PROBLEM, c), "gfx950", "reference"))
        for c in CONFIGS
    ]
    return isolation.measure_isolated(DEVICE, pairs, PROBLEM, start=start, **options)


def test_good_candidates_come_back_and_the_process_stays(started: Any) -> None:
    start, children = started
    for _ in range(2):
        found = measure(start(), timeout=60)
        assert [m.config for m in found] == CONFIGS and all(m.ok and m.us > 0 for m in found)
    assert len(children) == 1 and children[0].process.pid != os.getpid()


def test_a_crash_at_once_a_late_crash_and_a_hang(started: Any) -> None:
    start, children = started
    names = [c.name for c in CONFIGS]
    begin = time.monotonic()
    found = measure(start(crash=names[0], hang=names[2], late=names[3]), timeout=2)
    assert [m.ok for m in found] == [False, True, False, False]
    assert [m.fatal for m in found] == [True, False, True, True]
    assert "SIGABRT" in found[0].failure and "memory access fault" in found[0].failure
    assert found[2].failure == "Hang: gave no answer within 2 s"
    assert found[3].failure.startswith("Crash: the process was ended by SIGABRT")
    assert len(children) == 4 and time.monotonic() - begin < 60


def test_a_process_that_never_starts_is_no_rejection(started: Any) -> None:
    with pytest.raises(DeviceUnavailable, match="exited with status 3"):
        measure(lambda device: Child(["-c", "raise SystemExit(3)"]), timeout=2)


def test_a_device_that_is_not_there_says_so() -> None:
    with pytest.raises(DeviceUnavailable, match="ROCm build"):
        measure(lambda d: Child(["-m", "inductor_flydsl.isolation", "hip:0", "cuda:0"]), timeout=9)


def test_what_a_child_started_ends_with_it(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(p.pid, flush=True)\ntime.sleep(600)\n"
    )
    child = Child(["-c", code])
    grandchild = child.receive(60)
    child.kill()
    for _ in range(50):
        state = Path(f"/proc/{grandchild}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    raise AssertionError(f"{grandchild} outlived its parent, {sys.platform}")
