"""Kernels that store a value on the way beside what C holds, in every pipeline.

Each output is compared with its own program in float64; what lies around it stays as it was.
"""

import dataclasses

import pytest
from kernel_runs import BIASED_GELU, node, run, run_on

from inductor_flydsl.config import GemmConfig
from inductor_flydsl.dtypes import DType
from inductor_flydsl.fusion import Fusion, Store, Tensor
from inductor_flydsl.problem import GemmProblem

STAGED = GemmConfig(tile_m=64, tile_n=64, tile_k=64, stages=2, waves_m=2, waves_n=2)
SPLIT = dataclasses.replace(STAGED, split_k=3)
HTI = GemmConfig(pipeline="hti", tile_m=128, tile_n=128, tile_k=64, stages=2, waves_m=2, waves_n=4)
ROLLED = GemmConfig(
    pipeline="rolled", tile_m=128, tile_n=128, tile_k=128, stages=4, waves_m=2, waves_n=2
)
DIRECT = GemmConfig(
    pipeline="direct", tile_m=32, tile_n=32, tile_k=128, stages=2, waves_m=1, waves_n=1, waves_k=4
)
# Fewer blocks of C than waves.
THIN = dataclasses.replace(DIRECT, tile_m=16, tile_n=16)
BF16, FP16, FP32 = DType.BF16, DType.FP16, DType.FP32


def biased_gelu(*stores):
    """GELU(acc + bias), spelled out as Inductor does; node 2 is its argument."""
    bias = Tensor(dtype=BF16, along_m=False, along_n=True)
    return Fusion(nodes=BIASED_GELU, tensors=(bias,), stores=stores)


def with_outputs(problem, fusion, *strides):
    """``problem`` with a bias of its own columns, and outputs (batch, row) strides apart."""
    tensors = ((0, 0, 1), *((batch, row, 1) for batch, row in strides))
    return dataclasses.replace(problem, fusion=fusion, tensors=tensors)


# Type of C and of the pre-activation, N, row stride of C and of the other, bytes of its stores.
CASES = {
    "wide": (BF16, BF16, 72, 72, 72, 16),
    "fp32 kept": (BF16, FP32, 72, 72, 72, 16),
    "fp32 result": (FP32, BF16, 72, 72, 72, 16),
    "types apart": (FP16, BF16, 72, 80, 76, 8),
    "narrow kept": (BF16, BF16, 72, 72, 73, 2),
    "narrow result": (BF16, FP32, 72, 73, 72, 16),
    "both narrow": (BF16, FP32, 71, 71, 75, 4),
    "pairs apart": (BF16, BF16, 70, 72, 70, 4),
}


PIPELINES = {"staged": STAGED, "split-K": SPLIT, "hti": HTI, "direct": DIRECT, "thin": THIN}


@pytest.mark.parametrize("config", PIPELINES.values(), ids=PIPELINES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_pre_activation_beside_its_gelu(case, config):
    out, kept, n, ldc, ld, width = case
    fusion = biased_gelu(Store(node=2, dtype=kept, width=width))
    dense = GemmProblem.dense(70, n, 200, out_dtype=out)
    align = next(a for a in (16, 8, 4, 2) if ldc * out.bytes % a == 0)
    dense = dataclasses.replace(dense, ldc=ldc, c_align=align)
    _, findings = run(with_outputs(dense, fusion, (0, ld)), config)
    assert not findings


@pytest.mark.parametrize("tiles", [1, 2])
@pytest.mark.parametrize("case", [CASES["fp32 kept"], CASES["both narrow"]], ids=["wide", "narrow"])
def test_whole_tiles_and_shared_ones_store_both(case, tiles):
    """Stream-K on four compute units: four tiles of the six are whole."""
    out, kept, n, ldc, ld, width = case
    fusion = biased_gelu(Store(node=2, dtype=kept, width=width))
    align = next(a for a in (16, 8, 4, 2) if ldc * out.bytes % a == 0)
    dense = GemmProblem.dense(70, n, 330, out_dtype=out)
    dense = dataclasses.replace(dense, ldc=ldc, c_align=align)
    config = dataclasses.replace(STAGED, tile_m=32, waves_m=1, split_k=3, stream_k=tiles)
    _, findings = run_on(4, with_outputs(dense, fusion, (0, ld)), config)
    assert not findings


def test_two_values_are_stored_beside_c():
    """acc + bias, its GELU, and a sigmoid of that."""
    first = biased_gelu()
    nodes = (*first.nodes, node("sigmoid", 10))
    stores = (Store(node=10, dtype=FP16, width=8), Store(node=2, dtype=FP32, width=16))
    fusion = Fusion(nodes=nodes, tensors=first.tensors, stores=stores)
    problem = with_outputs(GemmProblem.dense(70, 72, 100), fusion, (0, 76), (0, 72))
    _, findings = run(problem, STAGED)
    assert not findings


@pytest.mark.parametrize("config", [STAGED, SPLIT], ids=["staged", "split-K"])
def test_a_batch_of_both(config):
    fusion = biased_gelu(Store(node=2, dtype=FP32, width=16))
    dense = GemmProblem.dense(37, 40, 200, batch=3)
    _, findings = run(with_outputs(dense, fusion, (40 * 50, 44)), config)
    assert not findings


def test_a_product_of_fp8():
    fusion = biased_gelu(Store(node=2, dtype=FP32, width=16))
    dense = GemmProblem.dense(70, 72, 640, dtype="fp8")
    _, findings = run(with_outputs(dense, fusion, (0, 72)), ROLLED)
    assert not findings


@pytest.mark.parametrize(
    "groups, stride", [("m4", (0, 72)), ("n4", (0, 72)), ("k4", (70 * 72 + 8, 72))]
)
def test_groups(groups, stride):
    fusion = biased_gelu(Store(node=2, dtype=FP32, width=16))
    dense = GemmProblem.dense(70, 72, 96, groups=groups)
    _, findings = run(with_outputs(dense, fusion, stride), STAGED)
    assert not findings


def scaled_residual(dtype, **runs):
    """relu(acc + bias)·r + r, of a residual r that is read several neighbours at a time."""
    bias = Tensor(dtype=BF16, along_m=False, along_n=True, quads=True)
    whole = Tensor(dtype=dtype, along_m=True, along_n=True, **runs)
    nodes = (
        node("acc"),
        node("tensor", value=0),
        node("add", 0, 1),
        node("relu", 2),
        node("tensor", value=1),
        node("mul", 3, 4),
        node("add", 5, 4),
    )
    return Fusion(nodes=nodes, tensors=(bias, whole))


@pytest.mark.parametrize("config", [STAGED, SPLIT, HTI], ids=["staged", "split-K", "hti"])
@pytest.mark.parametrize("out", [BF16, FP32])
@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_eight_neighbours_of_a_residual(dtype, out, config):
    """Rows of 72 elements, 80 apart: the last tile has one run of eight."""
    fusion = scaled_residual(dtype, quads=True, eights=True)
    dense = GemmProblem.dense(150, 72, 200, out_dtype=out)
    problem = dataclasses.replace(dense, fusion=fusion, tensors=((0, 0, 1), (0, 80, 1)))
    assert GemmProblem.from_json(problem.to_json()) == problem
    _, findings = run(problem, config)
    assert not findings


@pytest.mark.parametrize("groups", ["m4", "n4"])
def test_eight_neighbours_in_groups(groups):
    fusion = scaled_residual(BF16, quads=True, eights=True)
    dense = GemmProblem.dense(70, 72, 96, groups=groups)
    problem = dataclasses.replace(dense, fusion=fusion, tensors=((0, 0, 1), (0, 80, 1)))
    _, findings = run(problem, STAGED)
    assert not findings
