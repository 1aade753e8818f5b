"""The staged pipeline on the emulator: every element against float64, under the worst memory.

Memory lands as late as the waits allow, the waves of a workgroup run in random order, registers
and LDS start poisoned, and C with everything around it starts as NaN.
"""

import dataclasses

import pytest
from kernel_runs import VIEWS, run, spreads_as_it_should

from inductor_flydsl.config import GemmConfig
from inductor_flydsl.problem import GemmProblem

SQUARE = GemmConfig(tile_m=64, tile_n=64, tile_k=64, stages=2, waves_m=2, waves_n=2)
RING = GemmConfig(
    tile_m=32, tile_n=64, tile_k=32, stages=4, waves_m=1, waves_n=2, group_m=2, xcd_remap=True
)
SMALL = GemmConfig(tile_m=16, tile_n=64, tile_k=128, stages=3, waves_m=1, waves_n=2)
LOW = GemmConfig(tile_m=16, tile_n=32, tile_k=128, stages=6, waves_m=1, waves_n=2)
NARROW = GemmConfig(tile_m=32, tile_n=16, tile_k=64, stages=8, waves_m=2, waves_n=1, xcd_remap=True)

SHAPES = [
    (1, 8, 1, SMALL),
    (1, 24, 33, SMALL),
    (1, 2880, 64, SMALL),
    (7, 8, 1, SQUARE),
    (7, 24, 33, RING),
    (7, 127, 127, SQUARE),
    (7, 2880, 72, SMALL),
    (16, 16, 16, SMALL),
    (16, 16, 4095, SMALL),
    (17, 8, 31, RING),
    (24, 24, 24, RING),
    (31, 1, 65, SQUARE),
    (32, 64, 32, RING),
    (33, 65, 129, RING),
    (63, 63, 63, SQUARE),
    (64, 64, 64, SQUARE),
    (64, 64, 1, SQUARE),
    (64, 64, 2, RING),
    (64, 64, 63, SQUARE),
    (64, 64, 66, SQUARE),
    (64, 128, 256, SQUARE),
    (65, 64, 128, SQUARE),
    (64, 66, 128, SQUARE),
    (96, 72, 40, RING),
    (100, 100, 100, RING),
    (127, 8, 33, SQUARE),
    (127, 24, 4095, SQUARE),
    (127, 127, 127, RING),
    (128, 128, 96, RING),
    (128, 130, 160, SQUARE),
    (129, 136, 136, SQUARE),
    (130, 24, 512, RING),
    (136, 264, 72, SQUARE),
    (192, 64, 200, RING),
    (200, 40, 130, SMALL),
    (255, 33, 70, SQUARE),
    (256, 128, 128, SQUARE),
    (257, 16, 64, RING),
    (2, 2, 2, SMALL),
    (3, 5, 4095, SMALL),
    (320, 96, 34, SQUARE),
    (1, 1, 1, SQUARE),
    (33, 65, 1097, LOW),
    (70, 40, 1096, NARROW),
]


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("m, n, k, config", SHAPES, ids=lambda v: str(getattr(v, "name", v)))
def test_equals_the_float64_product(m, n, k, config, dtype, layout):
    problem = GemmProblem.dense(m, n, k, dtype=dtype, layout=layout)
    _, findings = run(problem, config)
    assert not findings


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_fp32_output(layout):
    problem = GemmProblem.dense(65, 72, 96, out_dtype="float32", layout=layout)
    _, findings = run(problem, SQUARE)
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
    problem = GemmProblem.dense(70, 72, 200, layout="NT")
    for seed in range(2):
        _, findings = run(
            problem, RING, emulator_landing=landing, emulator_order=order, emulator_seed=seed
        )
        assert not findings


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_nan_and_inf_go_where_they_should(value, layout):
    spreads_as_it_should(value, SQUARE, layout)
