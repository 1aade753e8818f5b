"""Grouped products of 8- and 4-bit operands on the emulator, with MX block scales or factors of
rows and columns: every element against a float64 loop over the groups of decoded operands.

Memory lands as late as the waits allow, waves run in random order, registers and LDS start
poisoned, and C with everything around it starts as NaN. Scales of groups lie as torch has them.
"""

import dataclasses

import pytest
import torch
from kernel_runs import run, run_grouped

from inductor_flydsl import microscaling, numerics, samples
from inductor_flydsl.config import GemmConfig
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.scaling import Scales, factors

STAGED = GemmConfig(
    tile_m=32, tile_n=64, tile_k=128, stages=3, waves_m=1, waves_n=2, group_m=2, xcd_remap=True
)
SQUARE = GemmConfig(tile_m=64, tile_n=64, tile_k=256, stages=2, waves_m=2, waves_n=2)
DEEP = GemmConfig(tile_m=64, tile_n=64, tile_k=128, stages=5, waves_m=2, waves_n=2, group_m=8)
LONG = GemmConfig(tile_m=32, tile_n=32, tile_k=512, stages=2, waves_m=1, waves_n=2)
ALONE = GemmConfig(tile_m=16, tile_n=16, tile_k=256, stages=4, waves_m=1, waves_n=1)
HTI = GemmConfig(
    pipeline="hti", tile_m=128, tile_n=128, tile_k=256, stages=2, waves_m=2, waves_n=4, group_m=8
)
SKEW = [0, 1, 3, 129]
ALL_EMPTY, ONE_HAS_ALL = [0, 0, 0, 0], [0, 0, 160, 0]
MANY = [(i * 7) % 4 for i in range(128)]
BLOCKS = [0, 32, 96, 160, 128, 0, 288, 64]
FP8, FP4, BF8 = "float8_e4m3fn", "float4_e2m1fn_x2", "float8_e5m2"

# Extents of the groups; then M, N and K, the ragged one being their sum; and a configuration.
ROWS = [
    (SKEW, 96, 128, STAGED),
    (SKEW, 8, 416, STAGED),
    (SKEW, 328, 32, SQUARE),
    ([129, 3, 1, 0], 160, 512, SQUARE),
    ([5], 32, 96, ALONE),
    (ALL_EMPTY, 32, 64, STAGED),
    (ONE_HAS_ALL, 96, 256, DEEP),
    (MANY, 32, 64, ALONE),
    ([64, 128, 256], 72, 1152, LONG),
    ([129, 3, 0, 128, 131], 72, 800, HTI),
]
SUMS = [
    (BLOCKS, 72, 40, STAGED),
    (BLOCKS, 40, 72, LONG),
    ([32, 96, 0, 160], 130, 120, HTI),
    (BLOCKS, 8, 24, ALONE),
    ([0, 32, 160, 96], 72, 130, DEEP),
    ([32], 16, 16, SQUARE),
    (ALL_EMPTY, 32, 24, STAGED),
    (ONE_HAS_ALL, 65, 24, SQUARE),
    ([32 * (i % 3) for i in range(96)], 16, 16, ALONE),
]
TYPES = [(FP8, None), (FP4, None), (BF8, FP8), (FP8, FP4)]


def problem_of(axis, extents, others, **options):
    total = max(32 if axis == "k" else 1, sum(extents))
    sizes = {"m": (total, *others), "n": (others[0], total, others[1]), "k": (*others, total)}
    return GemmProblem.dense(*sizes[axis], groups=f"{axis}{len(extents)}", **options)


def check(problem, config, extents):
    """Compare all that the groups cover; what they don't must be untouched."""
    c, a, b, offsets, *others = run_grouped(problem, config, extents)
    if not sum(extents) and problem.grouping.axis.value != "k":
        assert c.isnan().all()
        return
    exact = numerics.exact_operands(problem, a, b, others, offsets)
    tensors = others[2:] if problem.block_scaled else others
    numerics.compare(c, *exact, problem.fusion, tensors, offsets=offsets)
    assert int(samples.buffer(c).isnan().logical_not().sum()) == c.numel()


def legal(config, types):
    """Two stages of FP8 in tiles of 128 by 128 have room for half a K step of 256 each."""
    return (
        dataclasses.replace(config, tile_k=128) if config.tile_k > 256 and FP8 in types else config
    )


def name(value):
    if isinstance(value, list):
        return f"G{len(value)}-{'-'.join(str(v) for v in value[:5])}"
    return str(getattr(value, "name", value))


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("extents, n, k, config", ROWS, ids=name)
def test_block_scales_of_ragged_rows(extents, n, k, config, types):
    scales = ("plain", "swizzled")[(n // 8 + TYPES.index(types)) % 2]
    persistent = (len(extents) + TYPES.index(types)) % 2
    config = dataclasses.replace(legal(config, types), persistent=persistent)
    out = ("bfloat16", "float16", "float32")[(n // 8 + k // 32) % 3]
    options = {"dtype": types[0], "b_dtype": types[1] or types[0], "out_dtype": out}
    check(problem_of("m", extents, (n, k), scales=scales, **options), config, extents)


@pytest.mark.parametrize("types", TYPES, ids=str)
@pytest.mark.parametrize("extents, m, n, config", SUMS, ids=name)
def test_block_scales_of_ragged_sums(extents, m, n, config, types):
    """A group without a share of K is a matrix of zeros, and all of them are written."""
    scales = ("plain", "swizzled")[(n // 4 + TYPES.index(types)) % 2]
    config = dataclasses.replace(legal(config, types), persistent=1)
    options = {"dtype": types[0], "b_dtype": types[1] or types[0]}
    check(problem_of("k", extents, (m, n), scales=scales, **options), config, extents)


COLUMNS = [
    (SKEW, 40, 416, STAGED),
    ([64, 1, 130, 63], 72, 256, DEEP),
    ([129, 3, 0, 128], 130, 544, HTI),
]


@pytest.mark.parametrize("extents, m, k, config", COLUMNS, ids=name)
@pytest.mark.parametrize("dtype", ["mxfp8", "mxfp4"])
def test_block_scales_of_ragged_columns(extents, m, k, config, dtype):
    check(problem_of("n", extents, (m, k), dtype=dtype), config, extents)


@pytest.mark.parametrize("kind", ["mxfp8", "mxfp4", "fp8"])
@pytest.mark.parametrize("layout", ["NN", "TN", "TT"])
@pytest.mark.parametrize("axis", ["m", "k"])
def test_operands_that_do_not_run_along_k(axis, layout, kind):
    extents = [0, 32, 64, 160] if axis == "k" else SKEW
    others = (40, 48) if axis == "k" else (40, 160)
    problem = problem_of(axis, extents, others, dtype=kind, layout=layout)
    check(problem, dataclasses.replace(STAGED, persistent=1), extents)


def rowwise(axis, extents, others, **options):
    """FP8 with a factor a row of A and a column of B, for each group as torch lays them out."""
    plain = problem_of(axis, extents, others, dtype=FP8, **options)
    of_a = plain.m if axis in "nk" else 0
    of_b = plain.n if axis in "mk" else 0
    return dataclasses.replace(
        plain, fusion=factors(True, True), tensors=((of_a, 1, 0), (of_b, 0, 1))
    )


FACTORS = [
    ("m", [129, 3, 1, 0], (96, 400), STAGED),
    ("m", SKEW, (8, 16), DEEP),
    ("m", ONE_HAS_ALL, (130, 272), HTI),
    ("n", SKEW, (40, 400), SQUARE),
    ("n", [64, 72, 1, 127], (130, 144), HTI),
    ("n", [64, 72, 1, 127], (40, 144), DEEP),
    ("k", [0, 16, 35, 129, 12], (72, 40), STAGED),
    ("k", [0, 16, 35, 129, 12], (72, 40), DEEP),
    ("k", [1, 300, 0, 2, 1], (130, 72), HTI),
    ("k", ALL_EMPTY, (32, 24), SQUARE),
    ("k", [16, 64, 48], (16, 8), SQUARE),
    ("k", MANY, (16, 8), ALONE),
]


@pytest.mark.parametrize("axis, extents, others, config", FACTORS, ids=name)
def test_factors_of_rows_and_columns(axis, extents, others, config):
    config = dataclasses.replace(config, persistent=len(extents) % 2)
    check(rowwise(axis, extents, others), config, extents)


@pytest.mark.parametrize(
    "dtype, scales", [("mxfp8", "plain"), ("mxfp4", "swizzled"), ("fp8", None)]
)
def test_batches(dtype, scales):
    """Neither operand is cut: the fourth form."""
    options = {} if scales is None else {"scales": scales}
    problem = GemmProblem.dense(70, 40, 288, batch=3, dtype=dtype, **options)
    _, findings = run(problem, STAGED)
    assert not findings


@pytest.mark.parametrize("config", [SQUARE, HTI], ids=name)
@pytest.mark.parametrize("code, partner", [(0, 254), (254, 0), (0, 127), (254, 100)])
@pytest.mark.parametrize("axis, extents", [("m", SKEW), ("k", [32, 0, 96, 160])])
def test_scales_at_the_ends_of_their_range(axis, extents, code, partner, config):
    """2^-127 and 2^127 on whole operands: fp32 products that stay within its range are exact."""
    others = (40, 288) if axis == "m" else (33, 40)
    problem = problem_of(axis, extents, others, dtype="mxfp8", out_dtype="fp32")

    def change(a, b, a_scale, b_scale):
        a_scale.view(torch.uint8).fill_(code)
        b_scale.view(torch.uint8).fill_(partner)

    config = dataclasses.replace(config, persistent=1)
    c, a, b, offsets, *scales = run_grouped(problem, config, extents, change)
    exact = numerics.product(*numerics.exact_operands(problem, a, b, scales, offsets), offsets)
    expected = exact.float()
    # Sums of fp32 in another order, and subnormals, whose spacing is fixed.
    slack = exact.abs().max() * 2**-18 + 2**-148
    finite = expected.isfinite()
    assert ((c.double() - exact).abs()[finite] <= slack).all()
    assert (c[~finite] == expected[~finite]).all()


@pytest.mark.parametrize("config", [STAGED, HTI], ids=name)
@pytest.mark.parametrize("scales", ["plain", "swizzled"])
def test_a_nan_scale_spoils_a_row_of_one_group(scales, config):
    extents = [70, 3, 130]
    problem = problem_of("m", extents, (40, 416), dtype="mxfp8", scales=scales)
    own = problem.a_scales
    # Row 60 of the third group; swizzled, the first two take a tile of 128 rows each.
    row = 2 * 128 + 60 if scales == "swizzled" else 73 + 60
    at = int(microscaling.scale_offsets(own, row + 1, 13)[row, 12])

    def change(a, b, a_scale, b_scale):
        a_scale.view(torch.uint8)[at] = 255

    config = dataclasses.replace(config, persistent=1)
    c, *_ = run_grouped(problem, config, extents, change)
    assert c[133].isnan().all() and c.isnan().sum() == problem.n


@pytest.mark.parametrize("config", [STAGED, HTI], ids=name)
@pytest.mark.parametrize("scales", ["plain", "swizzled"])
def test_a_nan_scale_spoils_the_sum_of_one_group(scales, config):
    """Its neighbours' K steps begin up to three blocks early and end inside of the next's."""
    extents = [32, 96, 64, 64]
    problem = problem_of("k", extents, (40, 72), dtype="mxfp8", scales=scales)
    # The last block of row 7 of the second group: after a padded tile of the first group's.
    at = 7 * problem.a_scales.row + 3 if scales == "plain" else 512 + 7 * 16 + 2

    def change(a, b, a_scale, b_scale):
        a_scale.view(torch.uint8)[at] = 255

    config = dataclasses.replace(config, persistent=1)
    c, *_ = run_grouped(problem, config, extents, change)
    assert c[1, 7].isnan().all() and c.isnan().sum() == problem.n


@pytest.mark.parametrize("axis", ["m", "k"])
def test_scales_and_operands_that_are_parts_of_something_wider(axis):
    extents = SKEW if axis == "m" else [32, 0, 96, 160]
    others = (40, 288) if axis == "m" else (40, 48)
    plain = problem_of(axis, extents, others, dtype="mxfp8")
    of_b = 41 * 40 if axis == "m" else 0
    for row, block, align in ((20, 1, 4), (13, 1, 1), (30, 2, 2)):
        a_scales = Scales(row=row, block=block, align=align)
        b_scales = dataclasses.replace(a_scales, batch=of_b)
        wider = {"lda": plain.lda + 16, "ldb": plain.ldb + 32, "ldc": plain.ldc + 8}
        if axis == "m":
            wider["b_batch"] = (plain.ldb + 32) * (plain.n + 3)
        else:
            wider["c_batch"] = (plain.ldc + 8) * plain.m
        problem = dataclasses.replace(plain, a_scales=a_scales, b_scales=b_scales, **wider)
        check(problem, dataclasses.replace(STAGED, persistent=1), extents)


@pytest.mark.parametrize("landing", ["lazy", "eager", "random"])
@pytest.mark.parametrize("order", ["forward", "reverse", "lockstep"])
def test_offsets_out_of_range_read_nothing_out_of_bounds(landing, order):
    problem = problem_of("m", [64], (64, 256), dtype="mxfp8", scales="swizzled")
    problem = dataclasses.replace(problem, grouping=dataclasses.replace(problem.grouping, groups=3))
    config = dataclasses.replace(STAGED, persistent=1)
    c, *_ = run_grouped(
        problem, config, [30, -10, 500], emulator_landing=landing, emulator_order=order
    )
    assert torch.isfinite(c[:30]).all()


@pytest.mark.parametrize("config", [STAGED, HTI], ids=name)
@pytest.mark.parametrize("scales", ["plain", "swizzled"])
def test_groups_that_share_k_do_not_share_blocks(scales, config):
    """A group that begins or ends inside of a block is NaN; empty ones and the others are not."""
    problem = problem_of("k", [32, 20, 0, 44, 64], (40, 16), dtype="mxfp8", scales=scales)
    config = dataclasses.replace(config, persistent=1)
    c, a, b, offsets, *held = run_grouped(problem, config, [32, 20, 0, 44, 64])
    assert offsets.tolist() == [32, 52, 52, 96, 160]
    assert c[[1, 3]].isnan().all()
    assert not c[2].any() and c[[0, 4]].isfinite().all()
    if scales == "plain":
        ends = torch.tensor([32, 32, 32, 96, 160])
        a, b = numerics.exact_operands(problem, a, b, held, ends)
        exact = numerics.product(a, b, ends)
        torch.testing.assert_close(c[[0, 4]].double(), exact[[0, 4]], rtol=2**-8, atol=1e-3)
