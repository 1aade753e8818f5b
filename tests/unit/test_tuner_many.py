"""Many problems at once, a budget, what is never tried again, and the contest with others."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest
from unit_fakes import PROBLEM, FakeDevice, World

from inductor_flydsl.config import KernelSpec
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.records import NOT_MEASURED, Store
from inductor_flydsl.tuner import DEFAULT_CANDIDATES

GPU = FakeDevice()
OTHERS = [GemmProblem.dense(256, 512, 2048), GemmProblem.dense(64, 64, 64, layout="NN")]
ALL = [PROBLEM, *OTHERS]


def test_every_candidate_of_all_is_compiled_in_one_call(tmp_path: Path) -> None:
    world = World()
    told: list[tuple[str, int, int, str]] = []
    records = world.tuner(tmp_path).tune_many(
        [*ALL, PROBLEM], GPU, progress=lambda *step: told.append(step)
    )
    assert [r.key.problem for r in records] == [*ALL, PROBLEM]
    wanted = {KernelSpec.of(p, c) for p in ALL for c in world.tuner(tmp_path).select(p, GPU)}
    # `World` asserts that no kernel is asked for twice, whoever shares it.
    assert set(world.compiled) == wanted and len(world.compiled) == len(wanted)
    assert len(world.ran) == len(ALL) * DEFAULT_CANDIDATES
    assert [s for s in told if s[0] == "measure"][-1] == ("measure", 3, 3, "")
    assert len(list(Store(tmp_path).records())) == 3


def test_what_is_stored_is_not_compiled_again(tmp_path: Path) -> None:
    World().tuner(tmp_path).tune(PROBLEM, GPU)
    world = World()
    world.tuner(tmp_path).tune_many(ALL, GPU)
    assert len(world.ran) == 2 * DEFAULT_CANDIDATES
    assert world.tuner(tmp_path).precompile(ALL, GPU) == 0


def test_precompile_measures_nothing(tmp_path: Path) -> None:
    world = World()
    asked = world.tuner(tmp_path).precompile([*ALL, GemmProblem.dense(8, 8, 8, dtype="fp32")], GPU)
    assert asked == len(world.compiled) > DEFAULT_CANDIDATES
    assert world.ran == [] and not tmp_path.joinpath("records").exists()


def test_an_interruption_keeps_what_was_measured(tmp_path: Path) -> None:
    world = World()
    count = 0

    def interrupt(stage: str, done: int, total: int, what: str) -> None:
        nonlocal count
        count += stage == "measure"
        if count == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.tuner(tmp_path).tune_many(ALL, GPU, progress=interrupt)
    assert len(list(Store(tmp_path).records())) == 2
    again = World()
    again.tuner(tmp_path).tune_many(ALL, GPU)
    assert len(again.ran) == DEFAULT_CANDIDATES


def test_a_budget_gives_every_problem_its_best_candidates(tmp_path: Path) -> None:
    world = World(compile_at_most=6)
    start = time.monotonic()
    records = world.tuner(tmp_path, budget=100.0).tune_many(ALL, GPU)
    assert [r.effort for r in records] == ["partial"] * 3
    chosen = {p: world.tuner(tmp_path).select(p, GPU) for p in ALL}
    for record in records:
        tried = [m for m in record.measurements if m.tried]
        assert tried and record.best is not None
        # Each has its most promising one; problems that share a kernel may have more.
        assert chosen[record.key.problem][0] in {m.config for m in tried}
        left = [m for m in record.measurements if not m.tried]
        assert len(left) == DEFAULT_CANDIDATES - len(tried)
        assert all(m.failure.startswith(NOT_MEASURED) for m in left)  # type: ignore[union-attr]
    shares = [deadline - start for deadline in world.deadlines if deadline is not None]
    assert len(shares) == 3 and 33 < shares[0] < 40 and 49 < shares[1] < 55 and shares[2] < 101
    stored = list(Store(tmp_path).records())
    assert all(m.tried for r in stored for m in r.measurements)


def test_a_partial_record_serves_and_can_be_completed(tmp_path: Path) -> None:
    World(compile_at_most=2).tuner(tmp_path, budget=100.0).tune(PROBLEM, GPU)
    world = World()
    assert world.tuner(tmp_path).tune(PROBLEM, GPU).effort == "partial"
    assert world.ran == []
    done = world.tuner(tmp_path, complete=True).tune(PROBLEM, GPU)
    assert done.effort == "default" and len(world.ran) == DEFAULT_CANDIDATES - 2
    assert len([m for m in done.measurements if m.ok]) == DEFAULT_CANDIDATES


def test_a_budget_that_measures_nothing_stores_nothing(tmp_path: Path) -> None:
    found = World(compile_at_most=0).tuner(tmp_path, budget=100.0).tune(PROBLEM, GPU)
    assert found.best is None and not any(m.tried for m in found.measurements)
    assert not tmp_path.joinpath("records").exists()
    assert World().tuner(tmp_path).tune(PROBLEM, GPU).best is not None


def test_a_budget_that_runs_out_again_leaves_the_record_as_it_was(tmp_path: Path) -> None:
    first = World().tuner(tmp_path).tune(PROBLEM, GPU)
    found = World(compile_at_most=0).tuner(tmp_path, budget=100.0).tune(PROBLEM, GPU, force=True)
    assert found.best == first.best
    assert Store(tmp_path).get(first.full_key) == first


def test_what_hung_or_crashed_is_never_tried_again(tmp_path: Path) -> None:
    world = World()
    a, b, c, *_ = world.tuner(tmp_path).select(PROBLEM, GPU)
    world.times = {a: "Hang: gave no answer within 60 s", b: "Crash: SIGSEGV", c: "WrongNumbers: 1"}
    first = world.tuner(tmp_path).tune(PROBLEM, GPU)
    again = World()
    found = again.tuner(tmp_path).tune(PROBLEM, GPU, force=True)
    assert a not in again.ran and b not in again.ran and c in again.ran
    assert found.measured(a) == first.measured(a) and found.effort == "default"
    assert found.measured(c).ok  # type: ignore[union-attr]


def test_a_compile_that_raises_ends_the_call(tmp_path: Path) -> None:
    def compile(*_: object, **__: object) -> dict[KernelSpec, object]:
        raise OSError("no space left")

    broken = World().tuner(tmp_path)
    broken.compile = compile
    with pytest.raises(OSError, match="no space left"):
        broken.tune_many(ALL, GPU)


def test_workers_are_started_for_a_miss_alone(tmp_path: Path) -> None:
    started: list[str] = []
    world = World()
    tuner = world.tuner(tmp_path, prepare=lambda device: started.append(device.name))
    tuner.tune(PROBLEM, GPU)
    assert started == ["hip:0"]
    tuner.tune(PROBLEM, GPU)
    tuner.lookup(OTHERS[0], GPU)
    assert started == ["hip:0"]


def test_a_contest_is_kept_with_the_record(tmp_path: Path) -> None:
    tuner = World().tuner(tmp_path)
    entries = [("ATEN", "mm", 12.0), ("TRITON", "triton_mm_7", math.inf), ("FLYDSL", "x", 10.0)]
    tuner.held_contest(PROBLEM, GPU, entries)
    assert tuner.lookup(PROBLEM, GPU) is None
    first = tuner.tune(PROBLEM, GPU)
    tuner.held_contest(PROBLEM, GPU, entries)
    found = tuner.lookup(PROBLEM, GPU)
    assert found is not None and found.contest is not None
    assert found.measurements == first.measurements and found.best == first.best
    assert found.contest.backends == ("FLYDSL", "ATEN")
    assert (found.contest.best("ATEN"), found.contest.best("TRITON")) == (12.0, None)
    World().tuner(tmp_path, "readonly").held_contest(PROBLEM, GPU, [("ATEN", "mm", 1.0)])
    assert tuner.lookup(PROBLEM, GPU) == found
    # It stays when the problem is measured again.
    assert tuner.tune(PROBLEM, GPU, force=True).contest == found.contest


def test_what_is_outstanding_is_what_is_then_measured(tmp_path: Path) -> None:
    World(compile_at_most=2).tuner(tmp_path, budget=100.0).tune(PROBLEM, GPU)
    for options, force in (({"complete": True}, False), ({"effort": "exhaustive"}, False)):
        world = World()
        tuner = world.tuner(tmp_path, **options)
        stored, left = tuner.outstanding(PROBLEM, GPU, force=force)
        assert stored is not None and world.ran == [] == world.compiled
        tuner.tune(PROBLEM, GPU, force=force)
        assert world.ran == left != []
        stored, left = tuner.outstanding(PROBLEM, GPU)
        assert left == [] and stored == Store(tmp_path).get(stored.full_key)  # type: ignore[union-attr]
    assert len(tuner.outstanding(PROBLEM, GPU, force=True)[1]) > 100


def test_a_cut_exhaustive_record_is_partial_until_a_plain_tune_completes_it(
    tmp_path: Path,
) -> None:
    for measured in (16, 32):
        cut = World(compile_at_most=16).tuner(tmp_path, budget=100.0, effort="exhaustive")
        found = cut.tune(PROBLEM, GPU)
        assert found.effort == "partial" and sum(m.tried for m in found.measurements) == measured
    plain = World().tuner(tmp_path, complete=True)
    done = plain.tune(PROBLEM, GPU)
    assert done.effort == "default" and all(done.measured(c) for c in plain.select(PROBLEM, GPU))
    cut = World(compile_at_most=16).tuner(tmp_path, budget=100.0, effort="exhaustive")
    assert cut.tune(PROBLEM, GPU).effort == "default"
    stored, left = cut.outstanding(PROBLEM, GPU)
    assert stored is not None and stored == plain.lookup(PROBLEM, GPU)
    assert left == [c for c in cut.select(PROBLEM, GPU) if stored.measured(c) is None] != []
