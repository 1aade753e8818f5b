"""Candidates measured together: order, rotation, notes, memory and the budget."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_measure import CONFIG, PROBLEM, Faulty, right

from inductor_flydsl import compiler, measure, timing
from inductor_flydsl.config import GemmConfig, KernelSpec
from inductor_flydsl.devices import get_device
from inductor_flydsl.devices.base import Clock, Kernel, Timing
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.records import NOT_MEASURED
from inductor_flydsl.space import candidates

CONFIGS = candidates(PROBLEM, get_device("reference").arch)[:4]


class Staged(Faulty):
    """A device on the wall clock whose kernel of a config is given, with what was launched."""

    name, clock = "reference", Clock.WALL

    def __init__(self, kernels: dict[GemmConfig, Kernel]) -> None:
        super().__init__(right)
        self.kernels = kernels
        self.log: list[tuple[GemmConfig, int]] = []

    def load(self, artifact: Any, problem: GemmProblem, config: GemmConfig) -> Kernel:
        kernel = self.kernels.get(config, right)

        def launch(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
            self.log.append((config, a.data_ptr()))
            kernel(c, a, b)

        return launch

    def time(self, call: Callable[[], None]) -> Timing:
        raise AssertionError("on this clock candidates take turns")


def pairs(configs: list[GemmConfig], problem: GemmProblem = PROBLEM) -> list[Any]:
    return [
        (c, compiler.compile_spec(KernelSpec.of(problem, c), "gfx950", "reference"))
        for c in configs
    ]


def slow(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    right(c, a, b)
    time.sleep(0.02)


def wrong(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    right(c, a, b)
    c[3, 4] += 100


def test_numbers_of_all_before_any_time_and_wrong_ones_are_never_timed() -> None:
    device = Staged({CONFIGS[1]: wrong, CONFIGS[2]: slow})
    found = measure.measure_many(device, pairs(CONFIGS), PROBLEM)
    assert [m.config for m in found] == CONFIGS
    assert [m.ok for m in found] == [True, False, True, True]
    assert "WrongNumbers" in (found[1].failure or "") and "(seed " in (found[1].failure or "")
    first = [config for config, _ in device.log[: len(CONFIGS)]]
    assert first == CONFIGS and [c for c, _ in device.log].count(CONFIGS[1]) == 1
    # The slow one was given up, and it says at what.
    assert found[2].rounds == timing.MIN_ROUNDS and "given up after 4 rounds" in found[2].note
    assert found[0].rounds > timing.MIN_ROUNDS and found[2].us > 20_000 > found[0].us
    assert found[0].spread_us >= 0 and found[0].clock is Clock.WALL


def test_launches_rotate_over_operand_sets() -> None:
    device = Staged({})
    measure.measure_many(device, pairs(CONFIGS[:1]), PROBLEM)
    timed = [address for _, address in device.log[1:]]
    assert len(set(timed)) == timing.CPU_SETS
    assert all(x != y for x, y in itertools.pairwise(timed[timing.WARM_UP :]))


def test_operands_are_new_each_time_unless_the_seed_is_given() -> None:
    seen: list[float] = []

    def keep(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        seen.append(float(a[0, 0]))
        right(c, a, b)

    for seed in (None, None, 5, 5):
        measure.measure_many(Faulty(keep), pairs([CONFIG]), PROBLEM, seed=seed)
    one, two, three, four = seen[:1] + seen[1:2] + seen[2:3] + seen[3:4]
    assert one != two and three == four


def test_a_candidate_that_breaks_while_it_is_timed_costs_itself() -> None:
    calls = iter(range(1000))

    def breaks(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        right(c, a, b)
        if next(calls) == 8:
            raise RuntimeError("fault at 0x40")

    found = measure.measure_many(Staged({CONFIGS[0]: breaks}), pairs(CONFIGS), PROBLEM)
    assert found[0].failure == "RuntimeError: fault at 0x40" and math.isinf(found[0].us)
    assert all(m.ok for m in found[1:])


def test_too_little_memory_is_a_reason_and_no_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "free_bytes", lambda device: 1000)
    (found,) = measure.measure_many(Staged({}), pairs(CONFIGS[:1]), PROBLEM)
    assert not found.ok and not found.tried
    assert found.failure == f"{NOT_MEASURED}: the operands take 0 MiB, 0 MiB are free"


def test_an_allocation_that_fails_is_no_rejection() -> None:
    def exhausts(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")

    (found,) = measure.measure_many(Staged({CONFIG: exhausts}), pairs([CONFIG]), PROBLEM)
    assert not found.tried and "tried to allocate" in (found.failure or "")


def test_a_budget_that_is_over_measures_nothing() -> None:
    for device in (Staged({}), Faulty(right)):
        found = measure.measure_many(device, pairs(CONFIGS), PROBLEM, deadline=time.monotonic() - 1)
        assert not any(m.tried for m in found)
        assert all("budget" in (m.failure or "") for m in found)


def test_batches_are_measured_and_checked() -> None:
    problem = GemmProblem.from_json(
        GemmProblem.dense(24, 40, 64).to_json()
        | {"op": "bmm", "batch": 3, "a_batch": 24 * 64, "b_batch": 0, "c_batch": 24 * 40}
    )

    def one_batch_missing(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        right(c[:2], a[:2], b[:2])

    good, bad = (
        measure.measure_many(Staged({CONFIG: kernel}), pairs([CONFIG], problem), problem)[0]
        for kernel in (right, one_batch_missing)
    )
    assert good.ok
    assert "960 of 2880 elements are NaN or unwritten, first [2, 0, 0]" in (bad.failure or "")
