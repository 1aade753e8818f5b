"""What importing the package costs and offers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import inductor_flydsl


def _python(code: str) -> str:
    root = inductor_flydsl.__path__[0].rsplit("/", 1)[0]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {root!r})\n{code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "modules",
    [
        "inductor_flydsl",
        "inductor_flydsl.tuner, inductor_flydsl.measure, inductor_flydsl.explanation",
        "inductor_flydsl.cli.tune, inductor_flydsl.cli.cache, inductor_flydsl.cli.demo",
    ],
)
def test_importing_imports_nothing_heavy(modules: str) -> None:
    code = f"import {modules}\nprint(sorted({{m.split('.')[0] for m in sys.modules}}))"
    loaded = _python(code)
    for name in ("torch", "flydsl", "numpy"):
        assert f"'{name}'" not in loaded


def test_the_bare_import_loads_two_modules() -> None:
    code = "import inductor_flydsl\nprint(*(m for m in sys.modules if m[:15] == 'inductor_flydsl'))"
    assert set(_python(code).split()) == {"inductor_flydsl", "inductor_flydsl._version"}


def test_every_folder_of_the_package_is_installed() -> None:
    root = Path(inductor_flydsl.__path__[0])
    listed = (root.parent / "pyproject.toml").read_text()
    for init in root.rglob("__init__.py"):
        name = ".".join(("inductor_flydsl", *init.parent.relative_to(root).parts))
        assert f'"{name}"' in listed, name


def test_public_names_resolve() -> None:
    from inductor_flydsl import settings
    from inductor_flydsl.config import GemmConfig
    from inductor_flydsl.problem import GemmProblem

    assert inductor_flydsl.GemmProblem is GemmProblem
    assert inductor_flydsl.GemmConfig is GemmConfig
    assert inductor_flydsl.settings is settings
    assert set(dir(inductor_flydsl)) == set(inductor_flydsl.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = inductor_flydsl.nothing


def test_explain_takes_text_or_a_problem() -> None:
    problem = inductor_flydsl.GemmProblem.dense(64, 64, 64)
    found = inductor_flydsl.explain("64,64,64")
    assert found == inductor_flydsl.explain(problem)
    assert found.candidates and found.limit is None
