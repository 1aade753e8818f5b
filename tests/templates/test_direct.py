"""The direct pipeline on the emulator: every element, under the worst memory."""

import dataclasses

import pytest
import torch
from kernel_runs import VIEWS, repeats, run, spreads_as_it_should

from inductor_flydsl import measure
from inductor_flydsl.arch import GFX950
from inductor_flydsl.compiler import compile_spec
from inductor_flydsl.config import GemmConfig, KernelSpec
from inductor_flydsl.devices import get_device
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.space import why_not

SQUARE = GemmConfig(
    pipeline="direct", tile_m=32, tile_n=32, tile_k=256, stages=2, waves_m=1, waves_n=1, waves_k=4
)
# Fewer blocks of C than waves: some have nothing to bring to C.
THIN = dataclasses.replace(SQUARE, tile_m=16, tile_n=16, stages=4)
PAIR = dataclasses.replace(THIN, tile_k=64, waves_k=2, stages=8)
# Several blocks a wave, side by side and below each other.
WIDE = dataclasses.replace(SQUARE, tile_m=16, tile_n=128, tile_k=128, xcd_remap=True)
LARGE = dataclasses.replace(SQUARE, tile_m=64, tile_n=64, tile_k=128, group_m=2)
HUGE = dataclasses.replace(LARGE, tile_n=128)
MANY = dataclasses.replace(SQUARE, tile_n=64, waves_k=8)

SHAPES = [
    (1, 1, 1, SQUARE),
    (1, 8, 33, THIN),
    (7, 24, 33, PAIR),
    (16, 40, 2048, THIN),
    (17, 130, 1097, WIDE),
    (31, 65, 4095, SQUARE),
    (33, 72, 1096, SQUARE),
    (48, 64, 8, MANY),
    (64, 64, 512, SQUARE),
    (65, 66, 520, LARGE),
    (70, 136, 2064, LARGE),
    (70, 130, 1026, MANY),
    (72, 136, 1100, HUGE),
    (100, 40, 321, THIN),
]


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("m, n, k, config", SHAPES, ids=lambda v: str(getattr(v, "name", v)))
def test_equals_the_float64_product(m, n, k, config, dtype, layout):
    problem = GemmProblem.dense(m, n, k, dtype=dtype, layout=layout)
    _, findings = run(problem, config)
    assert not findings


@pytest.mark.parametrize("config", [SQUARE, THIN, WIDE], ids=lambda c: c.name)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_fp32_output(layout, config):
    problem = GemmProblem.dense(65, 72, 1100, out_dtype="float32", layout=layout)
    _, findings = run(problem, config)
    assert not findings


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("changes", VIEWS.values(), ids=VIEWS)
def test_strided_and_offset_operands(changes, layout):
    problem = dataclasses.replace(GemmProblem.dense(70, 72, 100, layout=layout), **changes)
    _, findings = run(problem, SQUARE)
    assert not findings


@pytest.mark.parametrize("k", [3 * 256, 3 * 256 + 7])
@pytest.mark.parametrize("landing", ["lazy", "eager", "random"])
@pytest.mark.parametrize("order", ["forward", "reverse", "random", "lockstep"])
def test_any_landing_and_any_order(landing, order, k):
    problem = GemmProblem.dense(40, 72, k, layout="NN")
    for seed in range(2):
        _, findings = run(
            problem, SQUARE, emulator_landing=landing, emulator_order=order, emulator_seed=seed
        )
        assert not findings


@pytest.mark.parametrize("config", [SQUARE, THIN, WIDE, LARGE], ids=lambda c: c.name)
@pytest.mark.parametrize("splits", [2, 3, 5])
@pytest.mark.parametrize("layout", ["NT", "TN"])
def test_splits(config, splits, layout):
    # Of five splits of two steps of 256 the last has none.
    problem = GemmProblem.dense(40, 72, 7 * 256 + 5, layout=layout)
    _, findings = run(problem, dataclasses.replace(config, split_k=splits))
    assert not findings


@pytest.mark.parametrize("splits", [1, 3])
def test_repeats_bit_for_bit(splits, monkeypatch):
    config = dataclasses.replace(SQUARE, split_k=splits)
    repeats(GemmProblem.dense(40, 72, 1800), config, monkeypatch)


@pytest.mark.parametrize("config", [SQUARE, THIN], ids=lambda c: c.name)
def test_batches(config):
    problem = GemmProblem.dense(33, 40, 300, batch=3)
    _, findings = run(problem, config)
    assert not findings


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_nan_and_inf_go_where_they_should(value, layout):
    spreads_as_it_should(value, SQUARE, layout)


def test_a_neighbour_in_the_same_row_is_not_read_as_k():
    """NaN behind the last K element of each row, in the same 16 bytes."""
    problem = dataclasses.replace(GemmProblem.dense(20, 24, 261), lda=272, ldb=272)
    problem = dataclasses.replace(problem, a_align=16, b_align=16)
    artifact = compile_spec(KernelSpec.of(problem, SQUARE), "gfx950", "emulator")
    wide_a = torch.full((20, 272), float("nan"), dtype=torch.bfloat16)
    wide_b = torch.full((24, 272), float("nan"), dtype=torch.bfloat16)
    c = torch.full((20, 24), float("nan"), dtype=torch.bfloat16)
    wide_a[:, :261].normal_()
    wide_b[:, :261].normal_()
    a, b = wide_a[:, :261], wide_b[:, :261].t()
    get_device("emulator").load(artifact, problem, SQUARE)(c, a, b)
    measure.compare(c, a, b)


REASONS = {
    "waves 2 by 1": {"waves_m": 2},
    "waves_k=1": {"waves_k": 1},
    "waves_k=3": {"waves_k": 3},
    "tile_k=64": {"tile_k": 64},
    "tile_k=1024": {"tile_k": 1024},
    "stages=3": {"stages": 3},
    "64 loads in flight": {"stages": 8},
    "registers for a turn's": {"tile_m": 128, "tile_n": 128, "tile_k": 128},
}


@pytest.mark.parametrize("part", REASONS)
def test_reasons(part):
    config = dataclasses.replace(SQUARE, **REASONS[part])
    reason = why_not(GemmProblem.dense(64, 64, 4096), config, GFX950)
    assert reason is not None and part in reason


def test_only_direct_waves_share_a_step():
    config = dataclasses.replace(SQUARE, pipeline="staged", tile_k=64)
    assert "waves_k=4" in why_not(GemmProblem.dense(64, 64, 4096), config, GFX950)
    # Of a tile that goes through LDS every wave brings a block.
    assert "1 blocks of C" in why_not(GemmProblem.dense(16, 33, 4096), THIN, GFX950)
    scaled = GemmProblem.parse("64,64,4096,mxfp8")
    assert "no matrix instruction" in why_not(scaled, SQUARE, GFX950)
