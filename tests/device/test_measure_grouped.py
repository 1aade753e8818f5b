"""Grouped problems: which splits their time is of, and what their numbers are checked on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_measure import Faulty

from inductor_flydsl import compiler, numerics, samples
from inductor_flydsl.config import GemmConfig, KernelSpec
from inductor_flydsl.devices import get_device
from inductor_flydsl.devices.base import Timing
from inductor_flydsl.errors import WrongNumbers
from inductor_flydsl.grouping import Split, offsets
from inductor_flydsl.measure import measure
from inductor_flydsl.problem import GemmProblem

CONFIG = GemmConfig(tile_m=64, tile_n=64, tile_k=64, stages=2, waves_m=2, waves_n=2, persistent=1)
PROBLEM = GemmProblem.dense(96, 80, 64, groups="m4")


def _measure(device: Any, problem: GemmProblem = PROBLEM) -> Any:
    artifact = compiler.compile_spec(KernelSpec.of(problem, CONFIG), "gfx950", "reference")
    return measure(device, artifact, problem, CONFIG, seed=3)


class Watching(Faulty):
    """A device that keeps the offsets of what it times, and takes as long as the largest group."""

    def __init__(self) -> None:
        reference = get_device("reference").load(None, PROBLEM, CONFIG)  # type: ignore[arg-type]

        def kernel(c: Any, a: Any, b: Any, ends: torch.Tensor) -> None:
            self.latest = ends.tolist()
            reference(c, a, b, ends)

        super().__init__(kernel)
        self.timed: list[list[int]] = []

    def time(self, call: Callable[[], None]) -> Timing:
        call()
        self.timed.append(self.latest)
        sizes = [end - start for start, end in zip([0, *self.latest], self.latest, strict=False)]
        return Timing(us=float(max(sizes)), spread_us=0.0, rounds=1)


def test_the_time_is_the_mean_over_splits_and_says_so() -> None:
    device = Watching()
    found = _measure(device)
    assert found.ok, found.failure
    assert device.timed == [offsets(96, 4, split) for split in Split]
    largest = [24, 46, 64]
    assert found.us == sum(largest) / 3 and found.rounds == 3
    assert all(split.value in found.note for split in Split)


def test_on_the_wall_clock_all_splits_take_turns() -> None:
    found = _measure(get_device("reference"))
    assert found.ok and "balanced, skewed, sparse" in found.note


@pytest.mark.parametrize("groups", ["m4", "n4", "k4"])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_operands_and_the_product_of_groups(groups: str, layout: str) -> None:
    problem = GemmProblem.dense(40, 24, 72, layout=layout, groups=groups)
    c, a, b, ends = samples.operands(problem, seed=1, split=Split.SKEWED)
    get_device("reference").load(None, problem, CONFIG)(c, a, b, ends)  # type: ignore[arg-type]
    numerics.compare(c, a, b, offsets=ends)
    # One row or column, or one term of the sums, belongs to another group.
    ends[0] += 1
    with pytest.raises(WrongNumbers):
        numerics.compare(c, a, b, offsets=ends)


def test_a_large_problem_is_checked_on_a_few_tiles_and_groups() -> None:
    for groups, count in (("m16", 8), ("m130", 129)):
        large = GemmProblem.dense(8192, 4096, 4096, groups=groups)
        small = numerics.reduced(large, CONFIG)
        assert small.grouping is not None and small.grouping.groups == count
        assert small.m <= 4 * CONFIG.tile_m and small.flops < large.flops / 1000
        assert KernelSpec.of(small, CONFIG) == KernelSpec.of(large, CONFIG)
