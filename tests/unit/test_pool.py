"""The worker pool, with a compiler that crashes, hangs and fails on demand."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import fake_worker
import pytest
from unit_fakes import CONFIGS, PROBLEM

from inductor_flydsl import settings
from inductor_flydsl.compiler import Artifact, cache, pool
from inductor_flydsl.config import KernelSpec
from inductor_flydsl.errors import CompileFailed, MissingDependency
from inductor_flydsl.processes import Child

GOOD, CRASH, HANG, FAIL, KILLED = 2, 3, 4, 5, 6


def spec(stages: int, index: int = 0) -> KernelSpec:
    return KernelSpec.of(PROBLEM, dataclasses.replace(CONFIGS[index], stages=stages))


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    def start(arch: str, backend: str, directory: str) -> Child:
        return Child([fake_worker.__file__, arch, backend, directory])

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv("FAKE_WORKER_LOG", str(tmp_path / "log"))
    monkeypatch.setattr(cache, "artifact_key", fake_worker.fake_key)
    monkeypatch.setattr(pool, "_start", start)
    cache.reset_memory()
    yield
    pool.close_workers()
    cache.reset_memory()


def tries(tmp_path: Path) -> list[str]:
    path = tmp_path / "log"
    return path.read_text().splitlines() if path.exists() else []


def test_every_kernel_once_and_none_in_this_process(tmp_path: Path) -> None:
    specs = [spec(GOOD, i) for i in range(5)]
    told: list[tuple[int, int]] = []
    seen: dict[KernelSpec, object] = {}
    outcomes = pool.compile_many(
        [*specs, *specs],
        "gfx950",
        "emulator",
        jobs=2,
        progress=lambda done, total: told.append((done, total)),
        each=seen.__setitem__,
    )
    assert {s: o.path.read_bytes() for s, o in outcomes.items()} == {  # type: ignore[union-attr]
        s: b"code of " + s.name.encode() for s in specs
    }
    assert sorted(tries(tmp_path)) == sorted(s.name for s in specs)
    assert sorted(told) == [(n, 5) for n in range(1, 6)] and seen == outcomes
    assert cache.stats().compiled == 5
    assert pool.compile_many(specs, "gfx950", "emulator") == outcomes
    cache.reset_memory()
    assert pool.compile_many(specs, "gfx950", "emulator") == outcomes
    assert len(tries(tmp_path)) == 5 and cache.stats().disk_hits == 5


def test_one_kernel_goes_to_a_worker_too(tmp_path: Path) -> None:
    outcomes = pool.compile_many([spec(CRASH)], "gfx950", "emulator", jobs=2)
    assert isinstance(outcomes[spec(CRASH)], CompileFailed)


def test_a_crash_costs_its_candidate_alone_and_once_ever(tmp_path: Path) -> None:
    specs = [spec(GOOD, 0), spec(CRASH, 1), spec(GOOD, 2), spec(CRASH, 3), spec(GOOD, 4)]
    outcomes = pool.compile_many(specs, "gfx950", "emulator", jobs=2)
    assert [isinstance(outcomes[s], Artifact) for s in specs] == [True, False, True, False, True]
    text = str(outcomes[specs[1]])
    assert specs[1].name in text and "SIGSEGV" in text and "about to die" in text
    cache.reset_memory()
    again = pool.compile_many(specs, "gfx950", "emulator", jobs=2)
    assert "remembered" in str(again[specs[1]]) and "SIGSEGV" in str(again[specs[1]])
    assert len(tries(tmp_path)) == 5
    with pytest.raises(CompileFailed, match="SIGSEGV"):
        # Nor does it take down a program that loads the kernel by itself.
        cache.compile_spec(specs[1], "gfx950", "emulator")


def test_a_hang_costs_its_time_limit_once_ever(tmp_path: Path) -> None:
    specs = [spec(HANG, 0), spec(GOOD, 1), spec(GOOD, 2)]
    with settings.scope(compile_timeout=1.0):
        outcomes = pool.compile_many(specs, "gfx950", "emulator", jobs=2)
        assert "no answer within 1 s" in str(outcomes[specs[0]])
        assert all(isinstance(outcomes[s], Artifact) for s in specs[1:])
        start = time.monotonic()
        pool.compile_many(specs, "gfx950", "emulator", jobs=2)
    assert time.monotonic() - start < 0.5
    assert len(tries(tmp_path)) == 3


@pytest.mark.parametrize("stages", [FAIL, KILLED])
def test_what_may_be_different_next_time_is_tried_again(tmp_path: Path, stages: int) -> None:
    for _ in range(2):
        outcomes = pool.compile_many([spec(stages)], "gfx950", "emulator", jobs=2)
        words = "no registers left" if stages == FAIL else "SIGKILL"
        assert words in str(outcomes[spec(stages)])
    assert len(tries(tmp_path)) == 2


def test_the_deadline_leaves_the_rest_undone(tmp_path: Path) -> None:
    specs = [spec(GOOD, 0), spec(HANG, 1), spec(GOOD, 2)]
    pool.compile_many([spec(GOOD, 4)], "gfx950", "emulator", jobs=2)  # Its worker is warm now.
    start = time.monotonic()
    outcomes = pool.compile_many(
        specs[:1] + specs[1:2], "gfx950", "emulator", jobs=2, deadline=start + 3
    )
    assert set(outcomes) == {specs[0]} and time.monotonic() - start < 8
    assert pool.compile_many(specs[2:], "gfx950", "emulator", jobs=2, deadline=start) == {}
    # To run out of time is no fault of the kernel's.
    assert cache.failure(specs[1], "gfx950", "emulator") is None


def test_another_thread_can_stop_it(tmp_path: Path) -> None:
    stop = threading.Event()
    threading.Timer(1.0, stop.set).start()
    start = time.monotonic()
    specs = [spec(HANG, i) for i in range(4)]
    assert pool.compile_many(specs, "gfx950", "emulator", jobs=2, stop=stop) == {}
    assert time.monotonic() - start < 10
    assert cache.failure(specs[0], "gfx950", "emulator") is None


def test_what_is_missing_is_no_rejection() -> None:
    with pytest.raises(MissingDependency, match="there is no flydsl"):
        pool.compile_many([spec(GOOD)], "gfx950", "rocm", jobs=2)


def test_a_directory_of_its_own_is_all_that_is_used(tmp_path: Path) -> None:
    pool.compile_many([spec(GOOD)], "gfx950", "emulator", jobs=2)
    with cache.writing_to(tmp_path / "pack"):
        outcomes = pool.compile_many([spec(GOOD)], "gfx950", "emulator", jobs=2)
        assert str(outcomes[spec(GOOD)].path).startswith(str(tmp_path / "pack"))  # type: ignore[union-attr]
    assert len(tries(tmp_path)) == 2


def test_kernels_of_a_read_only_layer_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cache.writing_to(tmp_path / "image" / "artifacts"):
        pool.compile_many([spec(GOOD)], "gfx950", "emulator", jobs=2)
    cache.reset_memory()
    monkeypatch.setenv("INDUCTOR_FLYDSL_CACHE_DIR", f"{tmp_path / 'mine'}:{tmp_path / 'image'}")
    found = cache.find(spec(GOOD), "gfx950", "emulator")
    assert found is not None and "image" in str(found.path)
    assert cache.stats().disk_hits == 1


def test_a_worker_that_retired_is_replaced(tmp_path: Path) -> None:
    pool.compile_many([spec(GOOD, 0)], "gfx950", "emulator", jobs=2)
    pool.close_workers()
    time.sleep(0.1)
    outcomes = pool.compile_many([spec(GOOD, 1)], "gfx950", "emulator", jobs=2)
    assert isinstance(outcomes[spec(GOOD, 1)], Artifact)
