"""Split-K on the emulator: right, the same in any order of workgroups, and ready to run again."""

import dataclasses

import pytest
from kernel_runs import repeats, run

from inductor_flydsl.config import GemmConfig
from inductor_flydsl.problem import GemmProblem

CONFIG = GemmConfig(tile_m=32, tile_n=64, tile_k=64, stages=3, waves_m=1, waves_n=2, split_k=3)
HTI = GemmConfig(
    pipeline="hti", tile_m=128, tile_n=128, tile_k=64, stages=2, waves_m=2, waves_n=4, split_k=2
)


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("m, n, k", [(1, 24, 640), (40, 72, 200), (33, 65, 321), (32, 64, 4095)])
def test_equals_the_float64_product(m, n, k, layout):
    problem = GemmProblem.dense(m, n, k, layout=layout)
    _, findings = run(problem, CONFIG)
    assert not findings


def test_splits_of_a_half_tile_kernel():
    _, findings = run(GemmProblem.dense(130, 136, 450), HTI)
    assert not findings


def test_a_split_that_gets_nothing():
    # 5 K steps in 4 splits of 2: the last has none.
    config = dataclasses.replace(CONFIG, split_k=4)
    problem = GemmProblem.dense(40, 72, 5 * 64)
    assert config.split_extent(problem) * 3 > problem.k
    _, findings = run(problem, config)
    assert not findings


def test_repeats_bit_for_bit_whatever_comes_last(monkeypatch):
    repeats(GemmProblem.dense(70, 136, 1000), CONFIG, monkeypatch)
