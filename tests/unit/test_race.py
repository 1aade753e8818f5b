"""Rotation of operands and the race of candidates, on clocks that are made up."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

import pytest
from unit_fakes import PROBLEM

from inductor_flydsl import timing
from inductor_flydsl.devices.base import Clock
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.samples import operand_bytes

GIB = 1 << 30


def test_a_rotation_exceeds_the_caches_twice() -> None:
    size = operand_bytes(PROBLEM)
    for cache in (size, 3 * size + 1, 100 * size):
        found = timing.rotation(PROBLEM, cache, 100 * GIB)
        assert found.sets * size >= 2 * cache and (found.sets - 1) * size < 2 * cache
        assert not found.note
    assert timing.rotation(PROBLEM, 0, GIB).sets == 1


def test_little_memory_makes_it_smaller_and_says_so() -> None:
    size = operand_bytes(PROBLEM)
    found = timing.rotation(PROBLEM, 100 * size, 20 * size)
    assert found.sets == 5 and "instead of 200" in found.note and "MiB are free" in found.note
    one = timing.rotation(PROBLEM, 100 * size, 3 * size)
    assert one.sets == 1 and one.note
    none = timing.rotation(GemmProblem.dense(40_000, 40_000, 40_000), 0, 5 * GIB)
    assert none.sets == 0 and "5,120 MiB are free" in none.note


def test_sets_are_bounded() -> None:
    tiny = GemmProblem.dense(1, 8, 8)
    assert timing.rotation(tiny, GIB, 100 * GIB).sets == timing.MAX_SETS
    assert timing.rotation(tiny, GIB, 100 * GIB, Clock.WALL).sets == timing.CPU_SETS


def test_operand_bytes_count_gaps_and_batches() -> None:
    dense = GemmProblem.dense(4, 5, 6)
    assert operand_bytes(dense) == 2 * (4 * 6 + 6 * 5 + 4 * 5)
    wide = replace(dense, lda=100)
    assert operand_bytes(wide) == 2 * (3 * 100 + 6 + 6 * 5 + 4 * 5)
    many = replace(dense, batch=3, a_batch=24, b_batch=0, c_batch=20)
    assert operand_bytes(many) == 2 * (3 * 24 + 6 * 5 + 3 * 20)


class Slowing:
    """A GPU whose clock sinks with every sample that anybody takes."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    def sampler(self, name: str, us: float) -> timing.Sample:
        def sample() -> float:
            self.taken.append(name)
            return us * (1 + 0.02 * len(self.taken))

        return sample


def test_candidates_take_turns_so_that_drift_hits_all() -> None:
    gpu = Slowing()
    times = {"a": 10.2, "b": 10.0, "c": 10.1}
    result = timing.race({n: gpu.sampler(n, us) for n, us in times.items()}, rounds=20)
    assert min(times, key=result.median) == "b"
    for start in range(0, 60, 3):
        assert set(gpu.taken[start : start + 3]) == {"a", "b", "c"}
    # Nobody always follows the same.
    assert len({tuple(gpu.taken[s : s + 3]) for s in range(0, 60, 3)}) == 3
    # One after the other, the slowest would have looked fastest.
    alone = Slowing()
    one_by_one = {
        n: statistics.median(alone.sampler(n, us)() for _ in range(20)) for n, us in times.items()
    }
    assert min(one_by_one, key=one_by_one.__getitem__) == "a"


def test_hopeless_candidates_are_given_up_and_close_ones_are_not() -> None:
    rng = random.Random(3)
    counts = dict.fromkeys(("fast", "close", "slow"), 0)

    def sampler(name: str, us: float) -> timing.Sample:
        def sample() -> float:
            counts[name] += 1
            return us * rng.uniform(0.97, 1.03)

        return sample

    result = timing.race(
        {
            "slow": sampler("slow", 20.0),
            "fast": sampler("fast", 10.0),
            "close": sampler("close", 11),
        }
    )
    assert counts == {"fast": timing.ROUNDS, "close": timing.ROUNDS, "slow": timing.MIN_ROUNDS}
    assert set(result.given_up) == {"slow"} and 9.7 < result.given_up["slow"] < 10.3
    assert 19 < result.median("slow") < 21


def test_one_outlier_gives_nobody_up() -> None:
    samples = iter([90.0, 10.0, 95.0, 10.0, 10.0] + [10.0] * 40)
    result = timing.race({"noisy": lambda: next(samples), "steady": lambda: 10.1})
    assert result.given_up == {} and len(result.samples["noisy"]) == timing.ROUNDS


def test_who_raises_leaves_and_the_rest_go_on() -> None:
    calls = iter(range(100))

    def breaks() -> float:
        if next(calls) == 2:
            raise RuntimeError("fault at 0x10")
        return 5.0

    began: list[str] = []
    result = timing.race({"bad": breaks, "good": lambda: 9.0}, begin=began.append)
    assert str(result.failed["bad"]) == "fault at 0x10"
    assert result.median("good") == 9.0
    assert began.count("bad") == 3
    # With nobody left to compare with, the rest is short.
    assert began.count("good") == 2 * timing.MIN_ROUNDS


def test_a_budget_ends_the_race_with_what_there_is() -> None:
    rounds = iter((False, True))
    result = timing.race({"a": lambda: 1.0, "b": lambda: 2.0}, over=lambda: next(rounds))
    assert [len(s) for s in result.samples.values()] == [2, 2]
    assert timing.race({}).samples == {}


@pytest.mark.parametrize(
    ("values", "spread"), [([5.0], 0.0), ([4.0, 6.0], 1.0), ([1, 2, 3, 4, 5, 6, 7, 8], 2.25)]
)
def test_spread(values: list[float], spread: float) -> None:
    assert timing.Race({"x": values}, {}, {}).spread("x") == spread
