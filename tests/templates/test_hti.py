"""The half-tile interleaved pipeline on the emulator: every element, under the worst memory."""

import dataclasses

import pytest
from kernel_runs import VIEWS, run

from inductor_flydsl.config import GemmConfig
from inductor_flydsl.problem import GemmProblem

SQUARE = GemmConfig(
    pipeline="hti", tile_m=128, tile_n=128, tile_k=64, stages=2, waves_m=2, waves_n=4, group_m=2
)
WIDE = dataclasses.replace(SQUARE, tile_n=256, group_m=0, xcd_remap=True)
LARGE = dataclasses.replace(SQUARE, tile_m=256, tile_n=256)

SHAPES = [
    (1, 1, 1, SQUARE),
    (7, 24, 33, SQUARE),
    (64, 64, 64, SQUARE),
    (128, 128, 128, SQUARE),
    (129, 136, 192, SQUARE),
    (200, 130, 66, WIDE),
    (130, 264, 4095, WIDE),
    (264, 304, 256, LARGE),
]


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("m, n, k, config", SHAPES, ids=lambda v: str(getattr(v, "name", v)))
def test_equals_the_float64_product(m, n, k, config, dtype, layout):
    problem = GemmProblem.dense(m, n, k, dtype=dtype, layout=layout)
    _, findings = run(problem, config)
    assert not findings


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("changes", VIEWS.values(), ids=VIEWS)
def test_strided_and_offset_operands(changes, layout):
    problem = dataclasses.replace(GemmProblem.dense(70, 72, 100, layout=layout), **changes)
    _, findings = run(problem, SQUARE)
    assert not findings


@pytest.mark.parametrize("landing", ["lazy", "eager", "random"])
@pytest.mark.parametrize("order", ["forward", "reverse", "random", "lockstep"])
def test_any_landing_and_any_order(landing, order):
    problem = GemmProblem.dense(140, 72, 330)
    for seed in range(2):
        _, findings = run(
            problem, SQUARE, emulator_landing=landing, emulator_order=order, emulator_seed=seed
        )
        assert not findings
