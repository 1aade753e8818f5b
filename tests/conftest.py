"""Every test has a tuning store of its own; all of one run share compiled kernels."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def artifact_cache(tmp_path_factory):
    """Keep compiled kernels of this run apart from the user's, unless the caller says where."""
    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        base = tmp_path_factory.getbasetemp()
        root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(root / "inductor")
    return Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    """An empty tuning store."""
    path = tmp_path / "store"
    monkeypatch.setenv("INDUCTOR_FLYDSL_CACHE_DIR", str(path))
    return path
