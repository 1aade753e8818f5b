from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import filelock
import pytest
from unit_fakes import CONFIGS, PROBLEM, measured, record, target

from inductor_flydsl import cli, settings
from inductor_flydsl.calibration import EMULATED, MODELLED, UNFITTED
from inductor_flydsl.cli import output
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.records import Store

RECORD = record([measured(CONFIGS[0], 12.5, max_error=1.0), measured(CONFIGS[1], float("inf"))])
OTHER = record([measured(CONFIGS[2], 3.0)], key=target(GemmProblem.dense(1, 2, 3)))
TEXT = "256,512,1024"


@pytest.fixture
def filled(alone: None) -> Store:
    made = Store.over(settings.current().cache_dir)
    made.put(RECORD)
    made.put(OTHER)
    return made


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of one command."""
    try:
        status = cli.main(argv)
    except SystemExit as stop:
        status = int(stop.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("fly",),
        ("cache",),
        ("cache", "show"),
        ("explain",),
        ("explain", "1,2"),
        ("explain", "0,1,1"),
        ("explain", "-1,2,3"),
        ("tune", "-1,2,3"),
        ("check", "-1,2,3"),
        ("check", "64,-64,64"),
        ("explain", "8,8,8,fp8:mxfp4"),
        ("explain", "8,8,8,bf16,QQ"),
        ("explain", TEXT, "--top", "-1"),
        ("explain", TEXT, "--arch", "gfx942"),
        ("pack", "--out", "x", "--arch", "gfx942"),
        ("tune",),
        ("tune", TEXT, "--effort", "much"),
        ("tune", TEXT, "--device", "cuda"),
        ("tune", "1;2;3"),
        ("demo", "--m", "0"),
    ],
)
def test_wrong_usage_is_2_and_says_why_on_stderr(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]
) -> None:
    status, out, err = run(capsys, *argv)
    assert (status, out) == (2, "")
    assert err and "Traceback" not in err


def test_a_bad_setting_names_its_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INDUCTOR_FLYDSL_CACHE", "rw")
    status, _, err = run(capsys, "explain", TEXT)
    assert status == 2 and "INDUCTOR_FLYDSL_CACHE='rw'" in err


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version")[:2] == (0, "inductor-flydsl 0.1.0\n")
    status, out, _ = run(capsys, "--help")
    assert status == 0
    for verb in ("demo", "tune", "explain", "check", "cache", "env"):
        assert verb in out


def test_cache_dir(capsys: pytest.CaptureFixture[str]) -> None:
    where = str(settings.current().cache_dir[0])
    assert run(capsys, "cache", "dir") == (0, where + "\n", "")
    assert json.loads(run(capsys, "cache", "dir", "--json")[1])["cache_dir"] == where


def test_cache_list(capsys: pytest.CaptureFixture[str], filled: Store) -> None:
    status, out, _ = run(capsys, "cache", "list")
    assert status == 0
    assert len(out.splitlines()) == 3
    assert str(PROBLEM) in out and "gpu_event" in out and "12.50" in out
    (filled.folder / "0-0.json").write_text("broken")
    status, out, err = run(capsys, "cache", "list", "--json")
    assert (status, len(json.loads(out))) == (0, 2)
    assert "0-0.json" in err
    assert {r["clock"] for r in json.loads(out)} == {"gpu_event"}


def test_an_empty_store_lists_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "cache", "list")
    assert (status, out) == (0, "") and "no records" in err
    assert run(capsys, "cache", "list", "--json")[:2] == (0, "[]\n")
    assert run(capsys, "cache", "clear")[0] == 0


def test_cache_show_takes_a_unique_prefix(
    capsys: pytest.CaptureFixture[str], filled: Store
) -> None:
    status, out, _ = run(capsys, "cache", "show", RECORD.id[:9])
    assert status == 0
    for part in (RECORD.id, str(PROBLEM), "US (gpu_event)", "made up", CONFIGS[0].name, "chosen"):
        assert part in out
    data = json.loads(run(capsys, "cache", "show", RECORD.id, "--json")[1])
    assert data["key"] == RECORD.id
    assert data["measurements"] == RECORD.to_json()["measurements"]


def test_cache_show_of_nothing_or_of_two(capsys: pytest.CaptureFixture[str], filled: Store) -> None:
    status, out, err = run(capsys, "cache", "show", "zz")
    assert (status, out) == (1, "") and "KEY='zz'" in err
    path = filled.path(RECORD.id)
    path.with_name(RECORD.id[:4] + "twin.json").write_bytes(path.read_bytes())
    status, out, err = run(capsys, "cache", "show", RECORD.id[:4])
    assert (status, out) == (2, "") and "ambiguous" in err


def test_cache_show_of_a_broken_file_fails(
    capsys: pytest.CaptureFixture[str], filled: Store
) -> None:
    filled.path(RECORD.id).write_text("broken")
    status, out, err = run(capsys, "cache", "show", RECORD.id)
    assert (status, out) == (1, "") and "not JSON" in err


def test_cache_clear_asks(capsys: pytest.CaptureFixture[str], filled: Store) -> None:
    status, out, err = run(capsys, "cache", "clear")
    assert (status, out) == (2, "") and "--yes" in err
    status, out, _ = run(capsys, "cache", "clear", "--dry-run")
    assert status == 0 and "would delete 2" in out
    assert len(list(filled.records())) == 2
    status, out, _ = run(capsys, "cache", "clear", "--yes", "--json")
    assert status == 0 and json.loads(out)["records"] == sorted([RECORD.id, OTHER.id])
    assert list(filled.entries()) == []


def test_explain(capsys: pytest.CaptureFixture[str], filled: Store) -> None:
    status, out, err = run(capsys, "explain", TEXT, "--top", "3")
    assert status == 0
    assert "US (model)" in out and "US (gpu_event)" in out
    assert f"pick {CONFIGS[0].name}" in out and "made up" in out
    assert "bytes of LDS exceed" in out
    low, high = MODELLED["bf16"]
    assert f"clock model: published MI355X times are {low} to {high} of it (bf16" in out
    assert out.count("published MI355X times") == 1  # the stored record's clock measures
    assert out.count("staged_") > 6
    assert "torch" not in out
    data = json.loads(run(capsys, "explain", TEXT, "--json")[1])
    assert data["candidates"][0]["clock"] == "model"
    assert len(data["candidates"]) + sum(r["count"] for r in data["rejections"]) > 500
    assert [s["id"] for s in data["stored"]] == [RECORD.id]


def test_explain_tells_what_both_clocks_are_worth_for_mxfp8(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, out, _ = run(capsys, "explain", "128,256,512,mxfp8", "--top", "1")
    assert status == 0 and "is not known" not in out
    for clock, (low, high) in {"model": UNFITTED["mxfp8"], "emulated": EMULATED["mxfp8"]}.items():
        assert f"clock {clock}: published MI355X times are {low:.2f} to {high:.2f}" in out


@pytest.mark.parametrize(("torch", "told"), [("2.12.1", True), ("2.13.0+cpu", False)])
def test_explain_tells_of_mx_recipes_where_torch_has_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, torch: str, told: bool
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda _: torch)
    _, _, err = run(capsys, "explain", "128,256,512,mxfp8", "--top", "0")
    assert ("have MX recipes" in err) is told


def test_explain_of_what_stays_with_aten(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "explain", "64,64,64,fp32")
    assert status == 0
    assert "stays with ATen or Triton, because: dtype float32" in out


def _bare_python(tmp_path: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """The command in an interpreter that sees this package and filelock, and nothing else."""
    root = str(Path(cli.__file__).parents[2])
    site = tmp_path / "site"
    site.mkdir()
    (site / "filelock").symlink_to(Path(filelock.__file__).parent)
    code = "import sys; from inductor_flydsl.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.run(
        [sys.executable, "-S", "-c", code, *argv],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([root, str(site)])},
        capture_output=True,
        text=True,
        check=False,
    )


def test_explain_works_without_torch_and_flydsl_and_says_so(tmp_path: Path) -> None:
    done = _bare_python(tmp_path, "explain", TEXT)
    assert done.returncode == 0, done.stderr
    assert "US (model)" in done.stdout
    assert "flydsl is not installed" in done.stderr
    assert "torch is not installed" in done.stderr


@pytest.mark.parametrize("verb", [("tune", TEXT), ("check", TEXT), ("demo",)])
def test_what_needs_torch_says_so_without_it(tmp_path: Path, verb: tuple[str, ...]) -> None:
    done = _bare_python(tmp_path, *verb)
    assert (done.returncode, done.stdout) == (1, "")
    assert "not installed" in done.stderr and "Traceback" not in done.stderr


def test_env_without_anything(tmp_path: Path) -> None:
    done = _bare_python(tmp_path, "env", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["versions"]["torch"] is None
    assert "torch" in found["devices"]["hip"]["reason"]
    assert {s["origin"] for s in found["settings"]} == {"default"}


def test_a_reader_that_goes_away_is_no_traceback(filled: Store) -> None:
    command = [sys.executable, "-m", "inductor_flydsl", "explain", TEXT, "--top", "500"]
    root = str(Path(cli.__file__).parents[2])
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": root, "PYTHONUNBUFFERED": "1"},
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        err = process.stderr.read().decode()
    assert process.returncode == 128 + signal.SIGPIPE
    assert "Traceback" not in err and "Exception ignored" not in err


def test_an_interrupt_is_a_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("inductor_flydsl.explanation.explain", interrupted)
    assert run(capsys, "explain", TEXT) == (1, "", "interrupted\n")


def test_tables_align_numbers_right_and_have_no_colour_off_a_terminal() -> None:
    text = output.table(("NAME", "US"), [("a", "1.50"), ("long", "100.25")])
    assert text == "NAME      US\na       1.50\nlong  100.25"


def test_a_full_disk_under_stdout_is_one_line() -> None:
    done = subprocess.run(
        f"{sys.executable} -m inductor_flydsl env > /dev/full",
        shell=True,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr and "No space left" in done.stderr


def test_env_shows_paths_as_they_are_written(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "inductor_flydsl", "env", "--json"],
        env={**os.environ, "INDUCTOR_FLYDSL_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    values = {row["variable"]: row["value"] for row in json.loads(done.stdout)["settings"]}
    assert values["INDUCTOR_FLYDSL_CACHE_DIR"] == str(tmp_path)


@pytest.mark.parametrize("verb", ["explain", "tune", "check"])
def test_a_negative_extent_is_refused_as_a_problem(
    capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    status, _, err = run(capsys, verb, "-1,2,3")
    assert status == 2
    assert "problem='-1,2,3' is not [BATCHx]M,N,K" in err and "unrecognized" not in err


def test_the_folder_of_commands_runs_too() -> None:
    command = [sys.executable, "-m", "inductor_flydsl.cli", "explain", "1,2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "problem='1,2'" in done.stderr


def test_explain_shows_both_ways_where_operands_do_not_run_along_k(
    capsys: pytest.CaptureFixture[str], alone: None
) -> None:
    _, out, _ = run(capsys, "explain", "510,766,1024,fp8,TN")
    assert "as operands lie" in out and "A and B copied along K" in out
    data = json.loads(run(capsys, "explain", "510,766,1024,fp8,TN", "--json")[1])
    after = data["after_copies"]
    # 2 bytes moved for each of A and B at 8 TB/s at the most, and two launches.
    assert after["operands"] == "A and B" and after["copy_us"] > 2 * (510 + 766) * 1024 / 8e6
    assert after["copy_us"] < after["us"] < data["candidates"][0]["us"]
    for problem in ("512,768,1024,fp8,NT", "512,768,1024,bf16,TN"):
        assert "copied" not in run(capsys, "explain", problem)[1]
    assert "\n  B copied along K" in run(capsys, "explain", "512,768,1024,fp8,NN")[1]


def test_explain_takes_types_of_a_and_of_b(capsys: pytest.CaptureFixture[str], alone: None) -> None:
    _, out, err = run(capsys, "explain", "64,64,256,mxfp8:mxfp4->fp32")
    assert "float8_e4m3fn x float4_e2m1fn_x2 NT mx plain -> float32" in out
    assert "PyTorch has no op for FP8 times FP4" in err


def test_a_misspelled_variable_is_told_by_a_command(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("INDUCTOR_FLYDSL_CASHE_DIR", "x")
    assert run(capsys, "cache", "dir")[0] == 0
    assert "did you mean INDUCTOR_FLYDSL_CACHE_DIR?" in caplog.text


def test_no_problem_at_all_is_worded(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for verb in ("tune", "explain"):
        status, _, err = run(capsys, verb)
        assert status == 2 and "PROBLEM is missing; pass M,N,K or --" in err
    (tmp_path / "none.csv").write_text("m,n,k\n")
    status, _, err = run(capsys, "tune", "--shapes", str(tmp_path / "none.csv"))
    assert status == 2 and "none.csv' holds no problem" in err and "nothing" not in err


@pytest.mark.parametrize(
    ("dtype", "status", "said"),
    [
        ("fp16:bf16", 0, "A of float16 and B of bfloat16 have no kernel: they differ in type"),
        ("fp16:fp8", 0, "A of float16 and B of float8_e4m3fn have no kernel"),
        ("fp32", 0, "dtype float32 has no kernel; supported: bfloat16, float16"),
        ("fp64", 2, "use one of bf16, fp16, fp32, fp8, bf8, mxfp8, mxbf8, mxfp4"),
    ],
)
def test_types_without_a_kernel_are_told_as_such(
    capsys: pytest.CaptureFixture[str], dtype: str, status: int, said: str
) -> None:
    found, out, err = run(capsys, "explain", f"64,64,64,{dtype}")
    assert found == status and said in out + err and "bool" not in out + err
