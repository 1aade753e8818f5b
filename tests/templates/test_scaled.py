"""MX and plain 8-bit products on the emulator: every element against float64 of decoded operands.

The reference decodes elements and scales from their bit fields, as the OCP specifications define
them. Memory lands as late as the waits allow, waves run in random order, LDS starts poisoned.
"""

import dataclasses

import pytest
from kernel_runs import run

from inductor_flydsl.config import GemmConfig
from inductor_flydsl.problem import GemmProblem

SQUARE = GemmConfig(tile_m=64, tile_n=64, tile_k=128, stages=2, waves_m=2, waves_n=2)
LONG = dataclasses.replace(SQUARE, tile_k=256, stages=3, group_m=2, xcd_remap=True)
LONGEST = dataclasses.replace(SQUARE, tile_m=32, tile_k=512)
SMALL = GemmConfig(tile_m=16, tile_n=64, tile_k=256, stages=4, waves_m=1, waves_n=2)

HTI = GemmConfig(
    pipeline="hti", tile_m=128, tile_n=128, tile_k=256, stages=2, waves_m=2, waves_n=4, group_m=2
)
WIDE = dataclasses.replace(HTI, tile_n=256, group_m=0, xcd_remap=True)

SHAPES = [
    (1, 8, 32, SMALL),
    (1, 2880, 96, SMALL),
    (7, 127, 160, SMALL),
    (64, 64, 128, SQUARE),
    (65, 130, 1184, SQUARE),
    (127, 65, 2880, LONG),
    (33, 7, 1376, LONG),
    (130, 72, 2048, LONGEST),
    (70, 129, 672, LONGEST),
    (7, 127, 96, HTI),
    (129, 136, 1184, HTI),
    (130, 264, 2208, WIDE),
]
TYPES = [
    ("float8_e4m3fn", None),
    ("float8_e5m2", None),
    ("float4_e2m1fn_x2", None),
    ("float8_e4m3fn", "float8_e5m2"),
    ("float8_e4m3fn", "float4_e2m1fn_x2"),
    ("float4_e2m1fn_x2", "float8_e5m2"),
]


def problem_of(m, n, k, types, **options):
    b_dtype = types[1] or types[0]
    return GemmProblem.dense(m, n, k, dtype=types[0], b_dtype=b_dtype, **options)


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("m, n, k, config", SHAPES, ids=lambda v: str(getattr(v, "name", v)))
def test_equals_the_float64_product(m, n, k, config, types):
    scales = ("plain", "swizzled")[(n + TYPES.index(types)) % 2]
    out = ("bfloat16", "float16", "float32")[(m + k // 32) % 3]
    _, findings = run(problem_of(m, n, k, types, scales=scales, out_dtype=out), config)
    assert not findings


@pytest.mark.parametrize("layout", ["NN", "TN", "TT"])
@pytest.mark.parametrize("types", [TYPES[0], TYPES[2]], ids=str)
def test_operands_that_run_along_m_or_n(types, layout):
    problem = problem_of(70, 40, 288, types, scales="plain", layout=layout)
    _, findings = run(problem, SQUARE)
    assert not findings


@pytest.mark.parametrize("types", [TYPES[0], TYPES[3]], ids=str)
@pytest.mark.parametrize("k", [16, 48, 400, 1024])
def test_without_block_scales(types, k):
    _, findings = run(problem_of(65, 33, k, types), SQUARE)
    assert not findings
