"""The Inductor tests on every supported pair of torch and FlyDSL: ``make matrix``.

Makes one virtual environment a torch (the larger builds take several GB each) under
``.venv-matrix``, installs each FlyDSL into it in turn, and prints a table. Exits 1 if any pair
fails.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCH = ("2.13.0", "2.14.1", "2.15.0")
FLYDSL = ("0.5.0", "0.3.4.1")
SUITES = ("tests/inductor", "tests/device/test_protocol.py")


def environment(torch: str) -> Path:
    """Python of the virtual environment with this torch, made if it is not there."""
    folder = ROOT / ".venv-matrix" / f"torch-{torch}"
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, f"torch=={torch}"], check=True)
        subprocess.run([*pip, "-e", ".[test]"], check=True, cwd=ROOT)
        (folder / ".ready").touch()
    return python


def run_pair(torch: str, flydsl: str, extra: list[str]) -> tuple[bool, str]:
    """Run the suites on one pair; returns (passed, pytest's closing line)."""
    python = environment(torch)
    pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, f"flydsl=={flydsl}"], check=True)
    cache = ROOT / "build" / "matrix" / f"{torch}-{flydsl}"
    done = subprocess.run(
        [str(python), "-m", "pytest", *SUITES, *extra],
        cwd=ROOT,
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = done.stdout.strip().splitlines() or ["no output"]
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-2000:], file=sys.stderr)
    # Without colours and rulers: "123 passed, 2 skipped in 45.6s".
    summary = re.sub(r"\x1b\[[0-9;]*m|=", "", lines[-1]).strip()
    return done.returncode == 0, summary


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", action="append", help=f"default: {', '.join(TORCH)}")
    parser.add_argument("--flydsl", action="append", help=f"default: {', '.join(FLYDSL)}")
    parser.add_argument("-n", "--workers", default="2", help="pytest-xdist workers (2)")
    arguments = parser.parse_args()
    rows = []
    for torch in arguments.torch or TORCH:
        for flydsl in arguments.flydsl or FLYDSL:
            passed, summary = run_pair(torch, flydsl, ["-n", arguments.workers])
            rows.append((torch, flydsl, "ok" if passed else "FAILED", summary))
            print(f"torch {torch}  flydsl {flydsl}  {rows[-1][2]}  {summary}", file=sys.stderr)
    print(f"{'torch':8} {'flydsl':8} {'result':7} tests")
    for row in rows:
        print(f"{row[0]:8} {row[1]:8} {row[2]:7} {row[3]}")
    return 0 if all(row[2] == "ok" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
