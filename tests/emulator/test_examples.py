"""The examples of docs/emulator.md run as they are written."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def example(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed; pip install {module}")


def test_the_flydsl_kernel_is_clean() -> None:
    needs("flydsl")
    done = example("check_flydsl_kernel.py")
    assert done.returncode == 0, done.stderr
    assert "right numbers, 0 findings" in done.stdout


def test_the_seeded_bug_is_found_and_its_line_named() -> None:
    needs("flydsl")
    done = example("check_flydsl_kernel.py", "--bug")
    assert done.returncode == 1, done.stderr
    source = (ROOT / "examples" / "check_flydsl_kernel.py").read_text().splitlines()
    line = 1 + next(i for i, text in enumerate(source) if "turned = fx.memref_load" in text)
    assert f"check_flydsl_kernel.py:{line}" in done.stdout
    assert "error: lds-race" in done.stdout and "no s_barrier" in done.stdout


def test_the_triton_kernel_is_clean() -> None:
    needs("triton")
    done = example("check_triton_kernel.py", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["findings"] == [] and found["error"] < 1e-5 and found["us"] > 0
