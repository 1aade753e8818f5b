from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from unit_fakes import ENVIRONMENT, PROBLEM, FakeDevice, World, emulated

from inductor_flydsl import settings, tuner
from inductor_flydsl.config import KernelSpec
from inductor_flydsl.devices.base import Clock
from inductor_flydsl.errors import (
    BadArgument,
    MissingDependency,
    ProblemError,
    RecordMissing,
    StoreUnwritable,
)
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.records import Store

GPU = FakeDevice()


def _best_first(world: World, root: Path, count: int = 12) -> list[KernelSpec]:
    return [KernelSpec.of(PROBLEM, c) for c in world.tuner(root).select(PROBLEM, GPU)[:count]]


def test_measures_the_likeliest_stores_and_finds_again(tmp_path: Path) -> None:
    world = World()
    chosen = world.tuner(tmp_path).select(PROBLEM, GPU)
    world.times = {chosen[7]: 5.0}
    before = tuner.stats()
    found = world.tuner(tmp_path).tune(PROBLEM, GPU)
    assert found.best == chosen[7]
    assert len(world.ran) == len(world.compiled) == tuner.DEFAULT_CANDIDATES
    assert [m.config for m in found.measurements] == chosen
    assert Store(tmp_path).get(found.full_key) == found

    second = World()
    assert second.tuner(tmp_path).tune(PROBLEM, GPU) == found
    assert second.tuner(tmp_path).lookup(PROBLEM, GPU) == found
    assert second.ran == second.compiled == []
    counts = {n: getattr(tuner.stats(), n) - v for n, v in vars(before).items()}
    assert counts == {
        "lookups": 3,
        "hits": 2,
        "misses": 1,
        "tuned": 1,
        "compiled": 12,
        "measured": 12,
        "rejected": 0,
    }
    assert [measured for _, measured in tuner.history()[-2:]] == [12, 0]


def test_few_candidates_on_the_emulator_and_all_when_exhaustive(tmp_path: Path) -> None:
    world = World()
    assert len(world.tuner(tmp_path).select(PROBLEM, emulated())) == tuner.EMULATED_CANDIDATES
    everything = world.tuner(tmp_path, effort="exhaustive").select(PROBLEM, emulated())
    assert len(everything) > 100


def test_records_of_one_device_never_serve_another(tmp_path: Path) -> None:
    world = World()
    tuned = world.tuner(tmp_path)
    tuned.tune(PROBLEM, emulated())
    for other in (
        GPU,
        FakeDevice(clock=Clock.WALL),
        FakeDevice("reference", Clock.WALL, backend="reference"),
        FakeDevice(facts={"compute_units": "64"}),
    ):
        assert tuned.lookup(PROBLEM, other) is None
    assert tuned.lookup(PROBLEM, emulated()) is not None
    tuned.tune(PROBLEM, GPU)
    assert tuned.lookup(PROBLEM, FakeDevice("hip:3")) is not None


def test_failing_candidates_lose_with_one_warning_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    a, b, c, *_ = world.tuner(tmp_path).select(PROBLEM, GPU)
    world.broken, world.times = {a}, {b: "WrongNumbers: 7 elements", c: 50.0}
    with caplog.at_level(logging.WARNING):
        found = world.tuner(tmp_path).tune(PROBLEM, GPU)
    assert found.best == c
    assert {m.config: m.failure for m in found.rejected} == {
        a: "CompileFailed: made up",
        b: "WrongNumbers: 7 elements",
    }
    assert len(caplog.records) == 2
    assert a not in world.ran
    again = World().tuner(tmp_path).lookup(PROBLEM, GPU)
    assert again is not None and again.rejected == found.rejected


def test_kernels_that_spill_lose_unless_all_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    a, b, *others = world.tuner(tmp_path).select(PROBLEM, GPU)
    world.spills, world.times = {a: 3, b: 61}, {a: 10.0, others[0]: 50.0}
    with caplog.at_level(logging.WARNING):
        found = world.tuner(tmp_path).tune(PROBLEM, GPU)
    assert found.best == others[0] and not caplog.records
    assert {m.config: m.failure for m in found.rejected} == {
        a: "Spills: 3 registers, and others none",
        b: "Spills: 61 registers, and others none",
    }
    assert not {a, b} & set(world.ran)
    world.spills |= dict.fromkeys(others, 1)
    assert world.tuner(tmp_path).tune(PROBLEM, GPU, force=True).best == a


def test_a_record_of_failures_is_a_hit(tmp_path: Path) -> None:
    world = World()
    world.broken = set(world.tuner(tmp_path).select(PROBLEM, GPU))
    assert world.tuner(tmp_path).tune(PROBLEM, GPU).best is None
    second = World()
    assert second.tuner(tmp_path).tune(PROBLEM, GPU).best is None
    assert second.ran == []
    assert second.tuner(tmp_path).tune(PROBLEM, GPU, force=True).best is not None


def test_problems_without_a_kernel_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="dtype float32.*ATen"):
        World().tuner(tmp_path).tune(GemmProblem.dense(8, 8, 8, dtype="fp32"), GPU)


def test_force_measures_again_and_keeps_the_choice_within_the_spread(tmp_path: Path) -> None:
    world = World(spread=1.0)
    a, b, *_ = world.tuner(tmp_path).select(PROBLEM, GPU)
    world.times = {a: 10.0, b: 10.5}
    assert world.tuner(tmp_path).tune(PROBLEM, GPU).best == a
    world.times = {a: 10.5, b: 10.0}
    found = world.tuner(tmp_path).tune(PROBLEM, GPU, force=True)
    assert found.best == a
    assert found.measured(b).us == 10.0  # type: ignore[union-attr]
    world.times = {a: 12.0, b: 10.0}
    assert world.tuner(tmp_path).tune(PROBLEM, GPU, force=True).best == b


def test_the_incumbent_is_measured_beside_its_challengers(tmp_path: Path) -> None:
    world = World()
    everything = world.tuner(tmp_path, effort="exhaustive").select(PROBLEM, GPU)
    slow = everything[-1]
    world.times = {slow: 1.0}
    world.tuner(tmp_path, effort="exhaustive").tune(PROBLEM, GPU)
    world.ran.clear()
    world.times = {slow: 200.0}
    found = world.tuner(tmp_path).tune(PROBLEM, GPU, force=True)
    assert slow in world.ran and len(world.ran) == 13
    assert found.best != slow
    assert found.effort == "exhaustive"


def test_more_effort_measures_only_what_is_new(tmp_path: Path) -> None:
    world = World()
    first = world.tuner(tmp_path).tune(PROBLEM, GPU)
    done, world.ran = set(world.ran), []
    wide = world.tuner(tmp_path, effort="exhaustive")
    found = wide.tune(PROBLEM, GPU)
    assert not done & set(world.ran)
    assert set(found.measurements) > set(first.measurements)
    world.ran = []
    assert wide.tune(PROBLEM, GPU) == found
    assert world.tuner(tmp_path).tune(PROBLEM, GPU) == found
    assert world.ran == []


def test_require_says_how_the_nearest_record_differs(tmp_path: Path) -> None:
    World().tuner(tmp_path).tune(PROBLEM, GPU)
    world = World(environment=replace(ENVIRONMENT, flydsl="0.4.0"))
    with pytest.raises(RecordMissing) as caught:
        world.tuner(tmp_path, "require").tune(PROBLEM, GPU)
    assert "environment.flydsl: asked '0.4.0', stored '0.5.0'" in str(caught.value)
    assert "hip" not in str(caught.value)
    assert world.ran == []
    assert World().tuner(tmp_path, "require").tune(PROBLEM, GPU).best is not None
    with pytest.raises(RecordMissing, match="no records"):
        World().tuner(tmp_path / "empty", "require").tune(PROBLEM, GPU)
    with pytest.raises(BadArgument, match="force"):
        World().tuner(tmp_path, "require").tune(PROBLEM, GPU, force=True)


def test_refresh_measures_once_a_process(tmp_path: Path) -> None:
    World().tuner(tmp_path).tune(PROBLEM, GPU)
    world = World()
    refreshing = world.tuner(tmp_path, "refresh")
    found = refreshing.tune(PROBLEM, GPU)
    assert len(world.ran) == 12
    assert refreshing.tune(PROBLEM, GPU) == found
    assert len(world.ran) == 12
    assert Store(tmp_path).get(found.full_key) == found


@pytest.mark.parametrize("mode", ["readonly", "off"])
def test_modes_that_store_nothing(tmp_path: Path, mode: str) -> None:
    world = World()
    found = world.tuner(tmp_path, mode).tune(PROBLEM, GPU)
    assert found.best is not None and len(world.ran) == 12
    assert not tmp_path.joinpath("records").exists()


def test_readonly_does_not_measure_for_more_effort(tmp_path: Path) -> None:
    found = World().tuner(tmp_path).tune(PROBLEM, GPU)
    world = World()
    assert world.tuner(tmp_path, "readonly", effort="exhaustive").tune(PROBLEM, GPU) == found
    assert world.ran == []


def test_without_versions_nothing_is_stored(tmp_path: Path) -> None:
    world = World(environment=None)
    assert world.tuner(tmp_path).lookup(PROBLEM, GPU) is None
    assert world.tuner(tmp_path).tune(PROBLEM, GPU).best is not None
    assert not tmp_path.joinpath("records").exists()
    with pytest.raises(RecordMissing, match="flydsl is not usable"):
        world.tuner(tmp_path, "require").tune(PROBLEM, GPU)


def test_a_missing_compiler_is_no_rejection(tmp_path: Path) -> None:
    def compile(*_: object, **__: object) -> dict[KernelSpec, object]:
        raise MissingDependency("flydsl is not installed")

    broken = replace(World().tuner(tmp_path), compile=compile)
    with pytest.raises(MissingDependency):
        broken.tune(PROBLEM, GPU)
    assert not tmp_path.joinpath("records").exists()


def test_a_store_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert World().tuner(blocker / "x").tune(PROBLEM, GPU).best is not None
    assert len(caplog.records) == 1
    with pytest.raises(StoreUnwritable):
        World().tuner(blocker / "x", must_store=True).tune(PROBLEM, GPU)


def test_variants_that_share_a_kernel_are_compiled_once(tmp_path: Path) -> None:
    world = World()
    world.tuner(tmp_path).tune(PROBLEM, GPU)
    assert world.compiled == _best_first(world, tmp_path)


def test_the_default_tuner_follows_the_settings(tmp_path: Path) -> None:
    with settings.scope(cache_dir=tmp_path, cache="readonly", effort="exhaustive"):
        made = tuner.default_tuner()
        assert (made.store.root, made.store.mode, made.effort) == (
            tmp_path,
            "readonly",
            "exhaustive",
        )
        assert tuner.default_tuner() is made
        assert tuner.default_tuner(effort="default").effort == "default"
    assert tuner.default_tuner().store.root != tmp_path
