"""The verbs that run kernels, on the emulator and on the reference device."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from inductor_flydsl import cli, emulator, tuner
from inductor_flydsl.config import GemmConfig

SMALL = "20,24,40"


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = cli.main(argv)
    out, err = capsys.readouterr()
    return status, out, err


def test_check_runs_the_named_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    names = [
        GemmConfig(tile_m=16, tile_n=16, tile_k=32, stages=s, waves_m=1, waves_n=1).name
        for s in (2, 3)
    ]
    argv = [word for name in names for word in ("--config", name)]
    status, out, _ = run(capsys, "check", SMALL, *argv, "--json")
    results = json.loads(out)["results"]
    assert status == 0
    assert [r["name"] for r in results] == names
    assert all(r["failure"] is None and r["max_error_ulp"] <= 1 for r in results)
    assert {r["clock"] for r in results} == {"emulated"}
    status, out, _ = run(capsys, "check", SMALL)
    assert status == 0 and "right" in out and "US (emulated)" in out


def test_check_reports_resources_and_bank_conflicts_with_their_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, out, _ = run(capsys, "check", SMALL, "--landing", "random", "--seed", "3", "--json")
    found = json.loads(out)
    (result,) = found["results"]
    assert (status, found["landing"], found["seed"]) == (0, "random", 3)
    assert (result["numbers"], result["findings"]) == ("right", [])
    assert result["resources"]["vgpr"] > 0 and result["resources"]["vgpr_spills"] == 0
    for conflict in result["lds_bank_conflicts"]:
        assert conflict["ways"] > 1 and conflict["clocks"] > conflict["phases"]
        assert re.fullmatch(r"\w+\.py:\d+", conflict["source"])


@pytest.mark.parametrize(
    ("wait", "kind"),
    [(r"s_waitcnt vmcnt", "read-before-landing"), (r"s_barrier", "lds-race")],
)
def test_check_fails_on_a_finding_and_names_the_source_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, wait: str, kind: str
) -> None:
    def broken(self: object, text: bytes) -> emulator.Program:
        return emulator.load_program(re.sub(rf"\t{wait}[^\n]*", "\ts_nop 0", text.decode()))

    monkeypatch.setattr("inductor_flydsl.devices.emulator._Bridge.program", broken)
    name = GemmConfig(tile_m=32, tile_n=32, tile_k=32, stages=2, waves_m=1, waves_n=2).name
    status, out, _ = run(capsys, "check", "64,64,256", "--config", name, "--json")
    (result,) = json.loads(out)["results"]
    assert status == 1
    found = [f for f in result["findings"] if f["kind"] == kind]
    assert found and all(f["severity"] == "error" for f in found)
    assert re.fullmatch(r"\w+\.py:\d+", found[0]["source"]) and found[0]["waves"]
    status, out, _ = run(capsys, "check", "64,64,256", "--config", name)
    assert status == 1 and f"error: {kind}" in out and ".py:" in out


@pytest.mark.parametrize("name", ["staged_big", "staged_256x256x128_s4_w2x4"])
def test_check_refuses_configs_with_the_reason(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    status, out, err = run(capsys, "check", SMALL, "--config", name)
    assert (status, out) == (2, "")
    assert name in err and ("is not a configuration" in err or "bytes of LDS" in err)


@pytest.mark.parametrize(("device", "clock"), [("emulator", "emulated"), ("reference", "wall")])
def test_tune_stores_and_finds_again(
    capsys: pytest.CaptureFixture[str], device: str, clock: str
) -> None:
    argv = ("tune", SMALL, "--device", device, "--json")
    status, out, err = run(capsys, *argv)
    (row,) = json.loads(out)
    assert status == 0, err
    assert row["clock"] == clock and row["us"] > 0 and row["measured_now"] >= 4
    before = tuner.stats().measured
    status, out, _ = run(capsys, *argv)
    (again,) = json.loads(out)
    assert (status, again["measured_now"], again["best"]) == (0, 0, row["best"])
    assert tuner.stats().measured == before
    status, out, _ = run(capsys, "cache", "show", row["key"])
    assert status == 0 and f"US ({clock})" in out
    status, out, _ = run(capsys, "tune", SMALL, "--device", device, "--dry-run")
    assert status == 0 and row["key"] in out


def test_tune_dry_run_measures_nothing(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    status, out, err = run(capsys, "tune", "48,48,48", "--device", "reference", "--dry-run")
    assert err.count("clock model: published MI355X times are") == 1
    assert status == 0
    assert f"would measure {tuner.DEFAULT_CANDIDATES}" in out and "US (model)" in out
    assert not store.exists()


def test_a_dry_run_says_what_a_larger_effort_would_add(
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = ("tune", SMALL, "--device", "reference")
    (row,) = json.loads(run(capsys, *argv, "--json")[1])
    exhaustive = (*argv, "--effort", "exhaustive", "--dry-run")
    status, out, _ = run(capsys, *exhaustive)
    first = out.splitlines()[0]
    assert status == 0 and f"(effort default, stored as {row['key']})" in first
    (plan,) = json.loads(run(capsys, *exhaustive, "--json")[1])
    assert plan["stored"] == row["key"] and len(plan["candidates"]) > 100
    assert f"would measure {len(plan['candidates'])} " in first


def test_a_budget_that_runs_out_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("tune", SMALL, "--device", "reference")
    status, out, err = run(capsys, *argv, "--budget", "0.001")
    assert status == 1 and "none measured yet" in out
    left = tuner.DEFAULT_CANDIDATES
    assert f"the budget of 0.001 s ran out with {left} candidates left; tune again" in err
    (row,) = json.loads(run(capsys, *argv, "--budget", "0.001", "--json")[1])
    assert (row["left"], row["measured_now"]) == (left, 0)
    status, out, err = run(capsys, *argv, "--budget", "300", "--json")
    assert status == 0 and "budget" not in err and json.loads(out)[0]["left"] == 0


def test_tune_reports_what_has_no_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "tune", "8,8,8,fp32", "--device", "reference")
    assert (status, out) == (1, "") and "dtype float32 has no kernel" in err


def test_tune_fails_where_it_cannot_store(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INDUCTOR_FLYDSL_CACHE_DIR", str(tmp_path / "file" / "store"))
    status, out, err = run(capsys, "tune", SMALL, "--device", "reference")
    assert (status, out) == (1, "") and "cannot be written" in err


def test_require_fails_with_the_difference(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(capsys, "tune", SMALL, "--device", "reference")[0] == 0
    monkeypatch.setenv("INDUCTOR_FLYDSL_CACHE", "require")
    status, _, err = run(capsys, "tune", "20,24,48", "--device", "reference")
    assert status == 1 and "target.problem.k: asked 48, stored 40" in err


def test_env_tells_devices_and_origins(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INDUCTOR_FLYDSL_EFFORT", "exhaustive")
    monkeypatch.setenv("INDUCTOR_FLYDSL_JOBS", "many")
    status, out, _ = run(capsys, "env", "--json")
    found = json.loads(out)
    assert status == 0
    assert found["devices"]["reference"]["clock"] == "wall"
    origins = {s["variable"]: (s["value"], s["origin"]) for s in found["settings"]}
    assert origins["INDUCTOR_FLYDSL_EFFORT"] == ("exhaustive", "INDUCTOR_FLYDSL_EFFORT")
    assert "many" in origins["INDUCTOR_FLYDSL_JOBS"][0]
    assert run(capsys, "env")[0] == 0


def _demo(**environment: str) -> subprocess.CompletedProcess[str]:
    root = str(Path(cli.__file__).parents[2])
    return subprocess.run(
        [sys.executable, "-m", "inductor_flydsl", "demo", "--m=32", "--n=48", "--k=64", "--json"],
        env={**os.environ, "PYTHONPATH": root, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_demo_twice() -> None:
    first = _demo(INDUCTOR_FLYDSL_DEVICE="emulator")
    assert first.returncode == 0, first.stderr
    found = json.loads(first.stdout)
    assert found["clock"] == "emulated" and found["measured"] >= 4 and found["failed"] == []
    assert all(s["right"] and s["chosen"] == "FLYDSL" for s in found["steps"])
    second = _demo(INDUCTOR_FLYDSL_DEVICE="emulator", INDUCTOR_FLYDSL_CACHE="require")
    assert second.returncode == 0, second.stderr
    again = json.loads(second.stdout)
    assert (again["compiled"], again["measured"]) == (0, 0)
    assert again["hits"] == again["lookups"] > 0


def test_demo_without_a_record_where_one_is_required_fails() -> None:
    done = _demo(INDUCTOR_FLYDSL_DEVICE="emulator", INDUCTOR_FLYDSL_CACHE="require")
    assert (done.returncode, done.stdout) == (1, "")
    assert "torch.compile failed: RecordMissing: no tuning record for" in done.stderr
    assert "Traceback" not in done.stderr
