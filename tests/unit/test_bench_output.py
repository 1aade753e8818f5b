"""What the benchmarks share: files are tried before anything is measured, exit statuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.output import parser

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("file", "why"), [("missing/out.json", "does not exist"), ("", "is a directory")]
)
def test_a_file_that_cannot_be_written_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, why: str
) -> None:
    with pytest.raises(SystemExit) as stopped:
        parser("").parse_args(["--json", str(tmp_path / file)])
    assert stopped.value.code == 2 and why in capsys.readouterr().err
    assert parser("").parse_args(["--json", str(tmp_path / "new.json")]).json
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["ablations", "emulator", "mutation"])
def test_mains_with_a_parser_of_their_own_try_the_file_too(tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-m", f"bench.{name}", "--quick", "--json", f"{tmp_path}/no/x"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "does not exist" in done.stderr.splitlines()[-1]


def test_a_reader_that_left_is_141_and_no_traceback() -> None:
    code = (
        "from bench.output import exit_with\n"
        "def main():\n"
        "    for i in range(10**5): print(i)\n"
        "    return 0\n"
        "exit_with(main)"
    )
    running = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert running.stdout is not None and running.stderr is not None
    assert running.stdout.readline() == b"0\n"
    running.stdout.close()
    assert running.stderr.read() == b""
    assert running.wait(timeout=60) == 141
