"""MX and plain 8-bit products on the emulator: every element against float64 of decoded operands.

The reference decodes elements and scales from their bit fields, as the OCP specifications define
them. Memory lands as late as the waits allow, waves run in random order, LDS starts poisoned.
"""

import dataclasses

import pytest
from kernel_runs import run

from inductor_flydsl import microscaling, numerics, samples, space
from inductor_flydsl.arch import GFX950
from inductor_flydsl.compiler import compile_spec
from inductor_flydsl.config import GemmConfig, KernelSpec
from inductor_flydsl.devices import get_device
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.scaling import Scales

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
    problem = problem_of(m, n, k, types, scales=scales, out_dtype=out)
    # Two stages of a wide tile have room for a K step of FP4; of FP8 for half of one, or for as
    # many columns fewer.
    half = dataclasses.replace(config, tile_k=config.tile_k // 2)
    turned = dataclasses.replace(config, tile_m=config.tile_n, tile_n=config.tile_m)
    legal = (c for c in (config, half, turned) if not space.why_not(problem, c, GFX950))
    _, findings = run(problem, next(legal))
    assert not findings


@pytest.mark.parametrize("layout", ["NN", "TN", "TT"])
@pytest.mark.parametrize("types", [TYPES[0], TYPES[2]], ids=str)
def test_operands_that_run_along_m_or_n(types, layout):
    problem = problem_of(70, 40, 288, types, scales="plain", layout=layout)
    _, findings = run(problem, SQUARE)
    assert not findings


@pytest.mark.parametrize("config", [SQUARE, LONG, LONGEST, SMALL, HTI], ids=lambda c: c.name)
@pytest.mark.parametrize("types", [TYPES[0], TYPES[2], TYPES[4]], ids=str)
def test_lines_along_m_or_n_come_by_dma(types, config):
    """Bytes are transposed on their way from LDS, pairs of FP4 too."""
    layout = ("NN", "TN", "TT")[(config.tile_m + TYPES.index(types)) % 3]
    problem = problem_of(160, 144, 1440, types, scales="plain", layout=layout)
    half = dataclasses.replace(config, tile_k=config.tile_k // 2)
    legal = next(c for c in (config, half) if not space.why_not(problem, c, GFX950))
    spec = KernelSpec.of(problem, legal)
    assert "gather" not in (spec.a_load, spec.b_load)
    _, findings = run(problem, legal)
    assert not findings


@pytest.mark.parametrize("types", [TYPES[0], TYPES[3]], ids=str)
@pytest.mark.parametrize("k", [16, 48, 400, 1024])
def test_without_block_scales(types, k):
    _, findings = run(problem_of(65, 33, k, types), SQUARE)
    assert not findings


def launched(problem, config, change):
    """(C, exact float64 product) of a launch on operands that `change` has set up."""
    import torch

    a_c, a, b, *others = samples.operands(problem, seed=9)
    change(a.view(torch.uint8), b.view(torch.uint8), *(x.view(torch.uint8) for x in others))
    artifact = compile_spec(KernelSpec.of(problem, config), "gfx950", "emulator")
    device = get_device("emulator")
    device.load(artifact, problem, config)(a_c, a, b, *others)
    assert not device.last_run.findings
    wide_a, wide_b = numerics.exact_operands(problem, a, b, others)
    return a_c, wide_a @ wide_b


@pytest.mark.parametrize("config", [SQUARE, HTI], ids=lambda c: c.name)
@pytest.mark.parametrize("code, partner", [(0, 254), (254, 0), (0, 127), (254, 100), (1, 200)])
@pytest.mark.parametrize("types", [TYPES[0], TYPES[2]], ids=str)
def test_scales_at_the_ends_of_their_range(types, code, partner, config):
    """2^-127 and 2^127 on whole operands: fp32 products that stay within its range are exact."""
    problem = problem_of(33, 40, 288, types, scales="plain", out_dtype="float32")

    def change(a, b, a_scale, b_scale):
        a_scale.fill_(code)
        b_scale.fill_(partner)

    c, exact = launched(problem, config, change)
    expected = exact.float()
    # Sums of fp32 in another order, and subnormals, whose spacing is fixed.
    slack = exact.abs().max() * 2**-18 + 2**-148
    finite = expected.isfinite()
    assert ((c.double() - exact).abs()[finite] <= slack).all()
    assert (c[~finite] == expected[~finite]).all()


@pytest.mark.parametrize("config", [SQUARE, HTI], ids=lambda c: c.name)
@pytest.mark.parametrize("layout", ["plain", "swizzled"])
def test_a_nan_scale_spoils_its_rows_alone(layout, config):
    problem = problem_of(70, 40, 416, TYPES[0], scales=layout)
    scales = problem.a_scales
    at = int(microscaling.scale_offsets(scales, 70, 13)[61, 12])

    def change(a, b, a_scale, b_scale):
        a_scale[at] = 255

    c, exact = launched(problem, config, change)
    assert c[61].isnan().all() and exact[61].isnan().all()
    assert c.isnan().sum() == problem.n


@pytest.mark.parametrize("types, nan", [(TYPES[0], 0x7F), (TYPES[1], 0x7D)], ids=str)
def test_nan_infinity_saturation_and_zero_blocks(types, nan):
    problem = problem_of(40, 48, 320, types, scales="plain", out_dtype="float32")
    top = 0x7E if types == TYPES[0] else 0x7B

    def change(a, b, a_scale, b_scale):
        a[3, 17] = nan
        a[5, :] = top  # The largest finite value all along a row.
        a[7, :] = 0
        if types == TYPES[1]:
            a[9, 200] = 0x7C  # Infinity.
        b[:, 11] = 0x80  # -0 all along a column.

    c, exact = launched(problem, SQUARE, change)
    expected = exact.float()
    assert (c.isnan() == expected.isnan()).all()
    assert (c.isinf() == expected.isinf()).all()
    assert (c[7] == 0).all()
    kept = expected.isfinite()
    assert ((c.double() - exact).abs()[kept] <= exact[kept].abs().max() * 2**-18).all()


def test_scales_that_are_rows_of_something_wider():
    """Views: dword-aligned rows with a gap, odd rows, and scales that step by two."""
    for row, block, align in ((20, 1, 4), (13, 1, 1), (30, 2, 2)):
        problem = problem_of(70, 40, 288, TYPES[0], scales="plain")
        scales = Scales(row=row, block=block, align=align)
        problem = dataclasses.replace(problem, a_scales=scales, b_scales=scales)
        _, findings = run(problem, SQUARE)
        assert not findings


@pytest.mark.parametrize("landing", ["lazy", "eager", "random"])
@pytest.mark.parametrize("order", ["forward", "reverse", "random", "lockstep"])
@pytest.mark.parametrize("config", [LONG, HTI], ids=lambda c: c.name)
def test_any_landing_and_any_order(landing, order, config):
    problem = problem_of(130, 72, 1312, TYPES[2], scales="plain")
    _, findings = run(problem, config, emulator_landing=landing, emulator_order=order)
    assert not findings


@pytest.mark.parametrize("stages, tile_k", [(6, 512), (6, 256), (5, 128), (4, 512)])
def test_scales_outlive_deep_rings(stages, tile_k):
    config = GemmConfig(tile_m=32, tile_n=32, tile_k=tile_k, stages=stages, waves_m=1, waves_n=2)
    _, findings = run(problem_of(40, 40, 4160, TYPES[2], scales="plain"), config)
    assert not findings


@pytest.mark.parametrize("tile", [(256, 256), (128, 256)], ids=str)
@pytest.mark.parametrize("k", [96, 512, 1440, 2688])
def test_a_lone_wave_rolls_its_registers(k, tile):
    config = GemmConfig(
        pipeline="rolled", tile_m=tile[0], tile_n=tile[1], tile_k=128, stages=4, waves_m=2,
        waves_n=2,
    )  # fmt: skip
    scales = "swizzled" if k == 512 else "plain"
    layout = "TN" if k == 1440 else "NT"
    problem = problem_of(272, 528, k, TYPES[2], scales=scales, layout=layout)
    _, findings = run(problem, config)
    assert not findings


def test_splits_of_k():
    split = dataclasses.replace(LONG, split_k=3)
    for types in (TYPES[0], TYPES[2]):
        _, findings = run(problem_of(65, 72, 2080, types, scales="swizzled"), split)
        assert not findings
