"""Fused epilogues and batches on the emulator, against the same program in float64."""

import dataclasses

import pytest
import torch
from kernel_runs import BIASED_GELU, node

from inductor_flydsl.compiler import compile_spec
from inductor_flydsl.config import GemmConfig, KernelSpec
from inductor_flydsl.devices import get_device
from inductor_flydsl.dtypes import DType
from inductor_flydsl.fusion import Fusion, Tensor, TorchOps
from inductor_flydsl.problem import GemmProblem

CONFIG = GemmConfig(tile_m=64, tile_n=64, tile_k=64, stages=2, waves_m=2, waves_n=2)
M, N, K = 70, 72, 40


def unary(op):
    return Fusion(nodes=(node("acc"), node(op, 0)))


def run(problem, tensors=(), config=CONFIG, seed=0):
    """(C, float64 product) of random operands, with C poisoned before."""
    generator = torch.Generator().manual_seed(seed)
    batch = (problem.batch,) if problem.batch > 1 else ()
    narrow = getattr(torch, problem.dtype.value)
    a = torch.randn(*batch, problem.m, problem.k, generator=generator).to(narrow)
    b = torch.randn(*batch, problem.n, problem.k, generator=generator).to(narrow).mT
    kind = getattr(torch, problem.out_dtype.value)
    c = torch.full((*batch, problem.m, problem.n), float("nan"), dtype=kind)
    artifact = compile_spec(KernelSpec.of(problem, config), "gfx950", "emulator")
    device = get_device("emulator")
    device.load(artifact, problem, config)(c, a, b, *tensors)
    assert not device.last_run.findings
    assert artifact.resources.spills == 0
    return c, a.double() @ b.double()


@pytest.mark.parametrize(
    "op", ["neg", "abs", "exp", "relu", "sigmoid", "tanh", "erf", "floor", "ceil", "trunc"]
)
def test_one_operation_in_fp32(op):
    problem = dataclasses.replace(GemmProblem.dense(M, N, K, out_dtype="float32"), fusion=unary(op))
    c, product = run(problem)
    expected = getattr(torch, op)(product)
    # What rounding of the fp32 sum may move the result by: steps of floor, ceil and trunc.
    steps = torch.isclose(product, product.round(), atol=1e-4) & (
        torch.tensor(op in ("floor", "ceil", "trunc"))
    )
    error = (c.double() - expected).abs() / expected.abs().clamp_min(0.05)
    assert error[~steps].max() < 1e-5


@pytest.mark.parametrize("op", ["sqrt", "rsqrt", "log", "log2", "reciprocal"])
def test_operations_on_positive_numbers(op):
    fusion = Fusion(nodes=(node("acc"), node("abs", 0), node(op, 1)))
    problem = dataclasses.replace(GemmProblem.dense(M, N, K, out_dtype="float32"), fusion=fusion)
    c, product = run(problem)
    expected = getattr(torch, op)(product.abs())
    error = (c.double() - expected).abs() / expected.abs().clamp_min(0.1)
    # Near zero the fp32 sum itself has few good digits.
    assert error[product.abs() > 1e-2].max() < 1e-4


def test_tanh_and_erf_keep_small_numbers():
    scale = node("const", value=1e-6)
    for op in ("tanh", "erf"):
        fusion = Fusion(nodes=(node("acc"), scale, node("mul", 0, 1), node(op, 2)))
        problem = dataclasses.replace(
            GemmProblem.dense(M, N, K, out_dtype="float32"), fusion=fusion
        )
        c, product = run(problem)
        expected = getattr(torch, op)(product * 1e-6)
        assert ((c.double() - expected).abs() / expected.abs())[product.abs() > 0.1].max() < 1e-5


def chain():
    """where(s > 1/4, gelu(acc + bias) + residual, s), s = sigmoid of it, times tanh of a column."""
    tensors = (
        Tensor(dtype=DType.BF16, along_m=False, along_n=True, quads=True),
        Tensor(dtype=DType.BF16, along_m=True, along_n=True),
        Tensor(dtype=DType.FP32, along_m=True, along_n=False),
    )
    nodes = (
        *BIASED_GELU,
        node("tensor", value=1),
        node("add", 10, 11),
        node("tensor", value=2),
        node("tanh", 13),
        node("mul", 12, 14),
        node("sigmoid", 15),
        node("const", value=0.25),
        node("gt", 16, 17),
        node("where", 18, 15, 16),
    )
    return Fusion(nodes=nodes, tensors=tensors)


@pytest.mark.parametrize("split_k", [1, 2])
def test_a_chain_with_three_tensors(split_k):
    fusion = chain()
    problem = dataclasses.replace(
        GemmProblem.dense(M, N, 128), fusion=fusion, tensors=((0, 0, 1), (0, 73, 1), (0, 2, 0))
    )
    generator = torch.Generator().manual_seed(5)
    bias = torch.randn(N, generator=generator).bfloat16()
    residual = torch.randn(M, 73, generator=generator).bfloat16()[:, :N]
    column = torch.randn(M, 2, generator=generator)[:, :1]
    config = dataclasses.replace(CONFIG, split_k=split_k)
    c, product = run(problem, (bias, residual, column), config)
    wide = [t.double() for t in (bias, residual, column)]
    expected = fusion.evaluate(TorchOps(), product, wide)
    wrong = (c != expected.bfloat16()).sum()
    # GELU's tail for bf16 moves about one rounding in 300 to the neighbour.
    assert wrong <= 0.004 * c.numel() + 5
    torch.testing.assert_close(c.double(), expected, rtol=2**-7, atol=1e-3)


def masked(along_m=True, along_n=True, quads=False):
    """acc where a bool tensor says so, -inf elsewhere."""
    mask = Tensor(dtype=DType.BOOL, along_m=along_m, along_n=along_n, quads=quads)
    nodes = (
        node("acc"),
        node("tensor", value=0),
        node("const", value=0.0),
        node("ne", 1, 2),
        node("const", value=float("-inf")),
        node("where", 3, 0, 4),
    )
    return Fusion(nodes=nodes, tensors=(mask,))


MASKS = {
    "quads": (masked(quads=True), (0, N, 1)),
    "odd rows": (masked(), (0, N + 1, 1)),
    "a row": (masked(along_m=False, quads=True), (0, 0, 1)),
    "a column": (masked(along_n=False), (0, 3, 0)),
    "turned": (masked(), (0, 1, M)),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_a_stored_mask(mask):
    fusion, strides = mask
    problem = dataclasses.replace(
        GemmProblem.dense(M, N, K), fusion=fusion, tensors=(strides,), op="mm"
    )
    truths = torch.rand(M * (N + 1), generator=torch.Generator().manual_seed(2)) > 0.5
    c, product = run(problem, (truths,))
    kept = truths.as_strided((M, N), strides[1:])
    assert 0 < kept.sum() < kept.numel()
    assert (c[~kept] == float("-inf")).all()
    torch.testing.assert_close(c[kept].double(), product[kept], rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("split_k", [1, 2])
def test_an_element_knows_its_place(split_k):
    """acc where 3·batch + row - column ≥ 2, else 100·batch + row."""
    nodes = (
        node("acc"),
        node("batch"),
        node("row"),
        node("column"),
        node("const", value=3.0),
        node("mul", 1, 4),
        node("add", 5, 2),
        node("sub", 6, 3),
        node("const", value=2.0),
        node("ge", 7, 8),
        node("const", value=100.0),
        node("mul", 1, 10),
        node("add", 11, 2),
        node("where", 9, 0, 12),
    )
    dense = GemmProblem.dense(M, N, 128, batch=3, out_dtype="float32")
    problem = dataclasses.replace(dense, fusion=Fusion(nodes=nodes))
    c, product = run(problem, config=dataclasses.replace(CONFIG, split_k=split_k))
    batch, row, column = (torch.arange(n).double() for n in (3, M, N))
    batch, row = batch[:, None, None], row[:, None]
    kept = 3 * batch + row - column >= 2
    expected = torch.where(kept, product, 100 * batch + row)
    torch.testing.assert_close(c.double(), expected, rtol=1e-5, atol=1e-4)
    assert torch.equal(c[~kept], expected[~kept].float())


HTI = GemmConfig(
    pipeline="hti", tile_m=128, tile_n=128, tile_k=64, stages=2, waves_m=2, waves_n=4
)  # fmt: skip


DIRECT = GemmConfig(
    pipeline="direct", tile_m=32, tile_n=32, tile_k=128, stages=4, waves_m=1, waves_n=1, waves_k=4
)


@pytest.mark.parametrize("config", [CONFIG, HTI, DIRECT], ids=["staged", "hti", "direct"])
@pytest.mark.parametrize("n", [72, 71], ids=["wide stores", "through LDS"])
def test_masks_of_both_kinds_in_every_pipeline(config, n):
    """acc where column ≤ row and a stored bool says so, 0 elsewhere."""
    nodes = (
        node("acc"),
        node("row"),
        node("column"),
        node("le", 2, 1),
        node("tensor", value=0),
        node("const", value=0.0),
        node("ne", 4, 5),
        node("and", 3, 6),
        node("where", 7, 0, 5),
    )
    mask = Tensor(dtype=DType.BOOL, along_m=True, along_n=True, quads=n % 4 == 0)
    fusion = Fusion(nodes=nodes, tensors=(mask,))
    dense = GemmProblem.dense(M, n, 192)
    problem = dataclasses.replace(dense, fusion=fusion, tensors=((0, n, 1),))
    kept = torch.rand(M, n, generator=torch.Generator().manual_seed(4)) > 0.5
    c, product = run(problem, (kept,), config)
    kept = kept & (torch.arange(n) <= torch.arange(M)[:, None])
    assert (c[~kept] == 0).all()
    torch.testing.assert_close(c[kept].double(), product[kept], rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("dtype, out", [("bfloat16", "float16"), ("float16", "bfloat16")])
def test_a_result_of_the_other_short_type(dtype, out):
    problem = GemmProblem.dense(M, N, K, out_dtype=out)
    c, product = run(dataclasses.replace(problem, dtype=DType.parse(dtype)))
    assert c.dtype is getattr(torch, out)
    torch.testing.assert_close(c.double(), product, rtol=2.0**-7, atol=1e-3)


def test_nan_goes_through_relu_and_maximum():
    for op in ("relu",):
        problem = dataclasses.replace(GemmProblem.dense(M, N, K), fusion=unary(op))
        artifact = compile_spec(KernelSpec.of(problem, CONFIG), "gfx950", "emulator")
        a, b = torch.randn(M, K).bfloat16(), torch.randn(N, K).bfloat16().mT
        a[3, 5] = float("nan")
        c = torch.zeros(M, N).bfloat16()
        get_device("emulator").load(artifact, problem, CONFIG)(c, a, b)
        assert c[3].isnan().all()
        assert not c[:3].isnan().any() and (c[:3] >= 0).all()


@pytest.mark.parametrize("shared", ["", "a", "b"])
def test_batches(shared):
    strides = {"a_batch": M * K, "b_batch": N * K, "c_batch": M * N}
    strides |= {f"{name}_batch": 0 for name in shared}
    problem = dataclasses.replace(
        GemmProblem.dense(M, N, K), batch=3, a_align=16, b_align=16, op="bmm", **strides
    )
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(1 if shared == "a" else 3, M, K, generator=generator).bfloat16()
    b = torch.randn(1 if shared == "b" else 3, N, K, generator=generator).bfloat16().mT
    c = torch.full((3, M, N), float("nan")).bfloat16()
    artifact = compile_spec(KernelSpec.of(problem, CONFIG), "gfx950", "emulator")
    device = get_device("emulator")
    device.load(artifact, problem, CONFIG)(c, a, b)
    assert not device.last_run.findings
    expected = (a.double() @ b.double()).expand(3, M, N).bfloat16()
    assert (c != expected).float().mean() < 1e-3
    torch.testing.assert_close(c, expected, rtol=2**-7, atol=1e-6)
