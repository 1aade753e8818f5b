"""Tuning over several processes, over Ray, from a file, and what is packed from it."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inductor_flydsl import cli, compiler, fleet, settings, tuner
from inductor_flydsl.config import KernelSpec
from inductor_flydsl.devices import get_device
from inductor_flydsl.devices.base import Clock
from inductor_flydsl.errors import DeviceUnavailable
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.records import Measurement, Store, TargetKey, TuningRecord, now_utc

SHAPES = ["16,16,32", "24,16,32", "16,24,32", "24,24,32"]


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, Any, str]:
    status = cli.main([*argv, "--json"])
    out, err = capsys.readouterr()
    return status, json.loads(out) if out else None, err


@pytest.fixture
def shapes(tmp_path: Path) -> str:
    path = tmp_path / "shapes.csv"
    path.write_text("\n".join(["m,n,k", *SHAPES]))
    return str(path)


def test_two_processes_fill_one_store_and_go_on_where_they_stopped(
    capsys: pytest.CaptureFixture[str], shapes: str, store: Path
) -> None:
    assert run(capsys, "tune", SHAPES[0], "--device", "reference")[0] == 0
    argv = ("tune", "--shapes", shapes, "--device", "reference", "--device", "reference")
    status, rows, err = run(capsys, *argv)
    assert status == 0, err
    assert [r["problem"]["m"] for r in rows] == [16, 24, 16, 24]
    assert [r["measured_now"] for r in rows] == [0, *[tuner.DEFAULT_CANDIDATES] * 3]
    assert len(list(Store(store).records())) == 4
    status, rows, _ = run(capsys, *argv)
    assert status == 0 and sum(r["measured_now"] for r in rows) == 0


def test_a_process_that_dies_costs_one_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [GemmProblem.parse(text) for text in SHAPES[:3]]
    seen: list[fleet.Outcome] = []

    def done(outcome: fleet.Outcome) -> None:
        seen.append(outcome)

    one = fleet._one

    def kill_the_second(child: Any, device: str, problem: GemmProblem) -> fleet.Outcome:
        if problem == problems[1]:
            child.process.kill()
        return one(child, device, problem)

    monkeypatch.setattr(fleet, "_one", kill_the_second)
    outcomes = fleet.tune_over(["reference"], problems, fleet.Job(), done)
    assert [o.record is not None for o in outcomes] == [True, False, True]
    assert "SIGKILL" in outcomes[1].error and len(seen) == 3


def test_a_device_that_is_not_there_ends_it() -> None:
    with pytest.raises(DeviceUnavailable, match="ROCm build"):
        fleet.tune_over(["hip:0"], [GemmProblem.parse(SHAPES[0])], fleet.Job())


def test_kinds_of_devices_do_not_mix(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("tune", SHAPES[0], "--device", "reference", "--device", "emulator")
    status, out, err = run(capsys, *argv)
    assert (status, out) == (2, None) and "mixes kinds" in err


def test_a_budget_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    status, rows, _ = run(capsys, "tune", *SHAPES, "--device", "reference", "--budget", "0.001")
    assert status == 1 and all(r["best"] is None for r in rows)
    status, rows, _ = run(capsys, "tune", *SHAPES, "--device", "reference", "--budget", "300")
    assert status == 0 and all(r["measured_now"] for r in rows)


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_a_local_ray_cluster_on_the_emulator(
    capsys: pytest.CaptureFixture[str], store: Path
) -> None:
    argv = ("tune", *SHAPES[:2], "--device", "emulator", "--ray", "local")
    status, rows, err = run(capsys, *argv)
    assert status == 0, err
    assert all(r["clock"] == "emulated" and r["measured_now"] >= 4 for r in rows)
    assert len(list(Store(store).records())) == 2
    before = tuner.stats().measured
    status, rows, _ = run(capsys, "tune", *SHAPES[:2], "--device", "emulator")
    assert status == 0 and tuner.stats().measured == before


USE = """
import json, sys
from inductor_flydsl import compiler, tuner
from inductor_flydsl.config import KernelSpec
from inductor_flydsl.devices import get_device
from inductor_flydsl.measure import compare, operands
from inductor_flydsl.problem import GemmProblem
device = get_device("emulator")
for text in sys.argv[1:]:
    problem = GemmProblem.parse(text)
    best = tuner.tune(problem, device).best
    artifact = compiler.compile_spec(KernelSpec.of(problem, best), "gfx950", "emulator")
    c, a, b = operands(problem)
    device.load(artifact, problem, best)(c, a, b)
    compare(c, a, b)
print(json.dumps({"compiled": compiler.stats().compiled, "measured": tuner.stats().measured}))
"""


def test_a_pack_serves_another_process_that_compiles_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(capsys, "tune", *SHAPES[:2], "--device", "emulator")[0] == 0
    out = tmp_path / "pack"
    assert run(capsys, "pack", "--out", str(out), "--dry-run")[1]["records"]
    status, packed, err = run(capsys, "pack", "--out", str(out))
    assert status == 0, err
    assert packed["backend"] == "emulator" and len(packed["records"]) == 2
    environment = os.environ | {
        "INDUCTOR_FLYDSL_CACHE_DIR": f"{tmp_path / 'empty'}{os.pathsep}{out}",
        "INDUCTOR_FLYDSL_CACHE": "require",
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", USE, *SHAPES[:2]],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"compiled": 0, "measured": 0}
    assert list((tmp_path / "inductor").rglob("*.bin")) == []


def _hip_record(problem: GemmProblem) -> TuningRecord:
    """As a GPU with these kernels would have stored it."""
    emulator = get_device("emulator")
    config = tuner.default_tuner().select(problem, emulator)[0]
    environment = replace(tuner.environment_key(emulator), device=(("gpu", "MI355X"),))
    what = {"clock": Clock.GPU_EVENT, "device": "hip:0"}
    return TuningRecord(
        key=TargetKey(
            problem=problem, arch="gfx950", device="hip", clock=Clock.GPU_EVENT, compute_units=256
        ),
        environment=environment,
        measurements=(Measurement(config=config, us=5.0, **what),),
        best=config,
        created=now_utc(),
        **what,
    )


def _linker() -> str | None:
    found = [shutil.which("ld.lld"), *map(str, Path("/usr/lib").glob("llvm-*/bin/ld.lld"))]
    return next((path for path in found if path), None)


def test_a_pack_for_gpus_on_a_machine_without_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = GemmProblem.parse(SHAPES[0])
    record = _hip_record(problem)
    Store(settings.current().cache_dir[0]).put(record)
    root = tmp_path / "rocm"
    monkeypatch.setenv("ROCM_PATH", str(root))
    status, out, err = run(capsys, "pack", "--out", str(tmp_path / "pack"))
    assert (status, out) == (1, None)
    assert str(root / "llvm/bin/ld.lld") in err and "ROCM_PATH" in err
    linker = _linker()
    if linker is None:
        pytest.skip("no ld.lld is installed")
    (root / "llvm/bin").mkdir(parents=True)
    (root / "llvm/bin/ld.lld").symlink_to(linker)
    status, packed, err = run(capsys, "pack", "--out", str(tmp_path / "pack"))
    assert status == 0, err
    assert packed["backend"] == "rocm" and packed["compiled"] == 1
    assert record.best is not None
    monkeypatch.setenv("INDUCTOR_FLYDSL_CACHE_DIR", f"{tmp_path / 'mine'}:{tmp_path / 'pack'}")
    found = compiler.compile_many([KernelSpec.of(problem, record.best)], "gfx950", "rocm")
    (artifact,) = found.values()
    # A code object lies in it, under the kernel's own name.
    assert isinstance(artifact, compiler.Artifact) and artifact.path is not None
    assert str(artifact.path).startswith(str(tmp_path / "pack"))
    text = pickle.loads(artifact.path.read_bytes()).ir
    assert artifact.spec.name in text and r'bin = "\7FELF' in text


def test_a_pack_of_nothing_that_fits_fails(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(capsys, "tune", SHAPES[0], "--device", "reference")[0] == 0
    status, packed, _ = run(capsys, "pack", "--backend", "emulator", "--out", str(tmp_path / "p"))
    assert status == 1 and packed["records"] == []
    assert "measured on reference" in packed["skipped"][0]["reason"]
