"""Operands over 4 GiB on the emulator: 64-bit addresses up to a tile and its K step.

The tensors are views of storage that is reserved and never touched between their elements.
"""

import dataclasses

import pytest
import torch

from inductor_flydsl import measure, numerics, samples
from inductor_flydsl.arch import GFX950
from inductor_flydsl.compiler import compile_spec
from inductor_flydsl.config import GemmConfig, KernelSpec
from inductor_flydsl.devices import get_device
from inductor_flydsl.fusion import Fusion, Node, Tensor
from inductor_flydsl.problem import DType, GemmProblem, Layout
from inductor_flydsl.space import why_not

STAGED = GemmConfig(tile_m=64, tile_n=64, tile_k=64, stages=3, waves_m=2, waves_n=2)
HTI = GemmConfig(pipeline="hti", tile_m=128, tile_n=128, tile_k=64, stages=2, waves_m=2, waves_n=4)
DIRECT = GemmConfig(
    pipeline="direct", tile_m=64, tile_n=32, tile_k=128, stages=2, waves_m=1, waves_n=1, waves_k=4
)
# Bytes of the 600th row or K line are past 4 GiB.
FAR = 4 * 2**20
M, N, K = 600, 72, 130


def far(rows: int, columns: int) -> torch.Tensor:
    """bf16 [rows, columns], rows FAR elements apart."""
    storage = torch.empty(((rows - 1) * FAR + columns + 16,), dtype=torch.bfloat16)
    return storage.as_strided((rows, columns), (FAR, 1))


def product(problem: GemmProblem, config: GemmConfig, c, a, b, *added) -> None:
    assert why_not(problem, config, GFX950) is None
    artifact = compile_spec(KernelSpec.of(problem, config), "gfx950", "emulator")
    device = get_device("emulator")
    device.load(artifact, problem, config)(c, a, b, *added)
    assert not device.last_run.findings
    expected = sum((x.double() for x in added), a.double() @ b.double()).bfloat16()
    assert (c != expected).float().mean() < 2e-3
    torch.testing.assert_close(c, expected, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("config", [STAGED, HTI, DIRECT], ids=lambda c: c.name)
def test_rows_of_a_and_c_past_four_gibibytes(config):
    generator = torch.Generator().manual_seed(2)
    a, c = far(M, K), far(M, N)
    a.copy_(torch.randn(M, K, generator=generator))
    c.fill_(float("nan"))
    b = torch.randn(N, K, generator=generator).bfloat16()
    problem = GemmProblem(
        m=M, n=N, k=K, dtype=DType.BF16, out_dtype=DType.BF16, layout=Layout.NT, lda=FAR, ldb=K,
        ldc=FAR, b_align=4,
    )  # fmt: skip
    product(problem, config, c, a, b.t())


@pytest.mark.parametrize("config", [STAGED, HTI, DIRECT], ids=lambda c: c.name)
def test_lines_of_k_past_four_gibibytes(config):
    generator = torch.Generator().manual_seed(3)
    k = M
    a, b = far(k, M // 8), far(k, N)
    a.copy_(torch.randn(k, M // 8, generator=generator))
    b.copy_(torch.randn(k, N, generator=generator))
    c = torch.full((M // 8, N), float("nan"), dtype=torch.bfloat16)
    problem = GemmProblem(
        m=M // 8, n=N, k=k, dtype=DType.BF16, out_dtype=DType.BF16, layout=Layout.TN, lda=FAR,
        ldb=FAR, ldc=N,
    )  # fmt: skip
    product(problem, config, c, a.t(), b)


# Elements from one batch to the next: 2^31 and some, over 4 GiB.
APART = 2**31 + 128
SPLIT = dataclasses.replace(STAGED, split_k=2)


def batches(*sizes: int) -> torch.Tensor:
    """bf16 [2, *sizes], the second of them APART behind the first."""
    rows, columns = sizes
    storage = torch.empty((APART + rows * columns + 16,), dtype=torch.bfloat16)
    return storage.as_strided((2, rows, columns), (APART, columns, 1))


@pytest.mark.parametrize("config", [STAGED, SPLIT, HTI], ids=lambda c: c.name)
def test_batches_past_four_gibibytes(config):
    """Of A, B, C and what the epilogue reads."""
    generator = torch.Generator().manual_seed(4)
    a, b, c, residual = batches(70, K), batches(N, K), batches(70, N), batches(70, N)
    for operand in (a, b, residual):
        operand.copy_(torch.randn(operand.shape, generator=generator))
    c.fill_(float("nan"))
    nodes = (Node(op="acc"), Node(op="tensor", value=0), Node(op="add", args=(0, 1)))
    full = Tensor(dtype=DType.BF16, along_m=True, along_n=True)
    problem = dataclasses.replace(
        GemmProblem.dense(70, N, K, batch=2),
        a_batch=APART,
        b_batch=APART,
        c_batch=APART,
        fusion=Fusion(nodes=nodes, tensors=(full,)),
        tensors=((APART, N, 1),),
    )
    product(problem, config, c, a, b.mT, residual)


def test_weights_of_groups_past_four_gibibytes():
    generator = torch.Generator().manual_seed(5)
    a, b = torch.randn(64, K, generator=generator).bfloat16(), batches(N, K)
    b.copy_(torch.randn(b.shape, generator=generator))
    c = torch.full((64, N), float("nan"), dtype=torch.bfloat16)
    problem = dataclasses.replace(GemmProblem.dense(64, N, K, groups="m2"), b_batch=APART)
    config = dataclasses.replace(STAGED, persistent=1)
    artifact = compile_spec(KernelSpec.of(problem, config), "gfx950", "emulator")
    device = get_device("emulator")
    offsets = torch.tensor([23, 64], dtype=torch.int32)
    device.load(artifact, problem, config)(c, a, b.mT, offsets)
    assert not device.last_run.findings
    parts = [a[:23].double() @ b[0].double().t(), a[23:].double() @ b[1].double().t()]
    torch.testing.assert_close(c.double(), torch.cat(parts), rtol=2**-7, atol=1e-6)


def test_what_lies_far_apart_is_measured_near():
    """Tuning asks for no memory between batches, and records what was asked."""
    far = dataclasses.replace(GemmProblem.dense(70, N, K, batch=2), a_batch=APART, c_batch=APART)
    near = numerics.nearer(far)
    assert (near.a_batch, near.b_batch, near.c_batch) == (2**16, far.b_batch, 2**16)
    assert KernelSpec.of(near, STAGED) == KernelSpec.of(far, STAGED)
    assert samples.operand_bytes(near) < 2**20 < 2**32 < samples.operand_bytes(far)
    artifact = compile_spec(KernelSpec.of(far, STAGED), "gfx950", "emulator")
    found = measure.measure(get_device("emulator"), artifact, far, STAGED)
    assert found.failure is None and found.us > 0
    dense = GemmProblem.dense(70, N, K, batch=2)
    assert numerics.nearer(dense) is dense
