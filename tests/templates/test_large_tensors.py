"""Operands over 4 GiB on the emulator: 64-bit addresses up to a tile and its K step.

The tensors are views of storage that is reserved and never touched between their elements.
"""

import pytest
import torch

from inductor_flydsl.arch import GFX950
from inductor_flydsl.compiler import compile_spec
from inductor_flydsl.config import GemmConfig, KernelSpec
from inductor_flydsl.devices import get_device
from inductor_flydsl.problem import DType, GemmProblem, Layout
from inductor_flydsl.space import why_not

STAGED = GemmConfig(tile_m=64, tile_n=64, tile_k=64, stages=3, waves_m=2, waves_n=2)
HTI = GemmConfig(pipeline="hti", tile_m=128, tile_n=128, tile_k=64, stages=2, waves_m=2, waves_n=4)
# Bytes of the 600th row or K line are past 4 GiB.
FAR = 4 * 2**20
M, N, K = 600, 72, 130


def far(rows: int, columns: int) -> torch.Tensor:
    """bf16 [rows, columns], rows FAR elements apart."""
    storage = torch.empty(((rows - 1) * FAR + columns + 16,), dtype=torch.bfloat16)
    return storage.as_strided((rows, columns), (FAR, 1))


def product(problem: GemmProblem, config: GemmConfig, c, a, b) -> None:
    assert why_not(problem, config, GFX950) is None
    artifact = compile_spec(KernelSpec.of(problem, config), "gfx950", "emulator")
    device = get_device("emulator")
    device.load(artifact, problem, config)(c, a, b)
    assert not device.last_run.findings
    expected = (a.double() @ b.double()).bfloat16()
    assert (c != expected).float().mean() < 2e-3
    torch.testing.assert_close(c, expected, rtol=2**-7, atol=1e-6)


@pytest.mark.parametrize("config", [STAGED, HTI], ids=lambda c: c.name)
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


@pytest.mark.parametrize("config", [STAGED, HTI], ids=lambda c: c.name)
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
