"""The generated reference is up to date, and the README names every verb and setting."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from inductor_flydsl import settings

ROOT = Path(settings.__file__).parents[1]


def test_the_reference_is_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "make_reference.py", "--check"],
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stderr}: run python docs/make_reference.py"


def test_the_reference_has_every_setting_verb_and_public_name() -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    import inductor_flydsl

    for knob in settings.KNOBS.values():
        assert f"`{knob.variable}`" in text and len(knob.help) > 10
    for name in inductor_flydsl.__all__:
        assert f"`{name}" in text
    for verb in ("demo", "tune", "pack", "cache report", "cache import", "env"):
        assert f"| `{verb}` |" in text


@pytest.mark.parametrize("verb", ["demo", "tune", "explain", "check", "cache", "pack", "env"])
def test_the_readme_names_every_verb(verb: str) -> None:
    assert f"inductor-flydsl {verb}" in (ROOT / "README.md").read_text()
