"""A user's store over read-only ones, and file systems without flock."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from pathlib import Path

import filelock
import pytest
from unit_fakes import CONFIGS, ENVIRONMENT, measured, record, target

from inductor_flydsl import locks, settings
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.records import RecordKey, Store

A, B, C = CONFIGS[:3]
RECORD = record([measured(A, 10.0)])
OTHER = record([measured(B, 3.0)], key=target(GemmProblem.dense(1, 2, 3)))


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A read-only layer with two records."""
    path = tmp_path / "image"
    Store(path).put(RECORD)
    Store(path).put(OTHER)
    return path


def files(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(p.relative_to(root)): (p.stat().st_mtime_ns, p.read_bytes())
        for p in root.rglob("*")
        if p.is_file()
    }


def test_lower_layers_are_found_and_never_written(tmp_path: Path, image: Path) -> None:
    before = files(image)
    store = Store(tmp_path / "mine", below=[tmp_path / "absent", image])
    assert store.get(RECORD.full_key) == RECORD
    stored = store.put(record([measured(B, 8.0)]))
    found = store.get(RECORD.full_key)
    assert found is not None and {m.config for m in found.measurements} == {A, B}
    assert found.best == B and [m.config for m in stored.measurements] == [B]
    assert sorted(r.id for r in store.records()) == sorted([RECORD.id, OTHER.id])
    assert next(r for r in store.records() if r.id == RECORD.id) == found
    assert len(list(store.entries())) == 3
    assert store.remove(OTHER.id) is False and store.get(OTHER.full_key) == OTHER
    assert store.remove(RECORD.id) is True and store.get(RECORD.full_key) == RECORD
    assert files(image) == before


def test_a_corrupt_file_below_is_left_there(
    tmp_path: Path, image: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = Store(image).path(RECORD.id)
    path.write_text("broken")
    store = Store(tmp_path / "mine", below=[image])
    with caplog.at_level(logging.WARNING):
        assert store.get(RECORD.full_key) is None
    assert str(path) in caplog.text and path.read_text() == "broken"
    assert not (tmp_path / "mine").exists()


def test_the_nearest_may_be_in_any_layer(tmp_path: Path, image: Path) -> None:
    store = Store(tmp_path / "mine", below=[image])
    asked = RecordKey(target=target(compute_units=64), environment=ENVIRONMENT)
    found = store.nearest(asked)
    assert found is not None and found[0] == RECORD
    assert [f.field for f in found[1]] == ["target.compute_units"]


def test_the_setting_is_a_path_list(monkeypatch: pytest.MonkeyPatch, image: Path) -> None:
    monkeypatch.setenv("INDUCTOR_FLYDSL_CACHE_DIR", f"~/mine{os.pathsep}{image}")
    layers = settings.current().cache_dir
    assert layers == (Path.home() / "mine", image)
    assert Store.over(layers).get(RECORD.full_key) == RECORD
    with settings.scope(cache_dir=layers[1:]):
        assert settings.current().cache_dir == (image,)
    assert settings.as_text(layers) == f"{Path.home() / 'mine'}{os.pathsep}{image}"


@pytest.fixture
def no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    def acquire(self: object, timeout: float | None = None, **_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(filelock.FileLock, "acquire", acquire)
    monkeypatch.setattr(locks, "_soft_folders", set())


def test_without_flock_marker_files_serve(tmp_path: Path, no_flock: None) -> None:
    store = Store(tmp_path)
    store.put(RECORD)
    threads = [
        threading.Thread(target=store.put, args=(record([measured(c, 5.0 + i)]),))
        for i, c in enumerate(CONFIGS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = store.get(RECORD.full_key)
    assert found is not None and {m.config for m in found.measurements} == set(CONFIGS)
    assert list((tmp_path / "locks").glob("*.marker")) == []


def test_a_marker_excludes_others_until_it_is_old(
    tmp_path: Path, no_flock: None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.lock"
    with (
        locks.locked(path, timeout=1),
        pytest.raises(TimeoutError),
        locks.locked(path, timeout=0.2),
    ):
        raise AssertionError("two hold one lock")
    marker = path.with_suffix(".marker")
    marker.write_text("1 another-machine")
    old = time.time() - 100
    os.utime(marker, (old, old))
    with caplog.at_level(logging.WARNING), locks.locked(path, timeout=5):
        pass
    assert not marker.exists() and list(tmp_path.glob("*.stale")) == []


def test_other_errors_of_a_lock_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def acquire(self: object, timeout: float | None = None, **_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(filelock.FileLock, "acquire", acquire)
    with pytest.raises(OSError, match="Input/output"), locks.locked(tmp_path / "x", timeout=1):
        pass
