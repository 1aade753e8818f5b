"""Unit tests run without torch and flydsl, and see nothing of the user's settings or store."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import pytest


class _Refuse(MetaPathFinder):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name.split(".")[0] in ("torch", "flydsl"):
            raise ModuleNotFoundError(f"a unit test imports {name}", name=name.split(".")[0])


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith("INDUCTOR_FLYDSL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "meta_path", [_Refuse(), *sys.meta_path])
    yield
