"""Split-K on the emulator: right, the same in any order of workgroups, and ready to run again."""

import dataclasses

import pytest
from kernel_runs import run

from inductor_flydsl import measure
from inductor_flydsl.compiler import compile_spec
from inductor_flydsl.config import GemmConfig, KernelSpec
from inductor_flydsl.devices import get_device
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
    import torch

    problem = GemmProblem.dense(70, 136, 1000)
    artifact = compile_spec(KernelSpec.of(problem, CONFIG), "gfx950", "emulator")
    kernel = get_device("emulator").load(artifact, problem, CONFIG)
    c, a, b = measure.operands(problem)
    results = []
    for seed in range(3):
        monkeypatch.setenv("INDUCTOR_FLYDSL_EMULATOR_SEED", str(seed))
        c.fill_(float("nan"))
        kernel(c, a, b)  # The same counters each time: every launch must leave them at zero.
        results.append(c.clone())
    assert all(torch.equal(results[0], r) for r in results[1:])
    measure.compare(c, a, b)
