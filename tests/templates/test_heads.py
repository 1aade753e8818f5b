"""Products of batches that count heads of an outer index, on the emulator: tensors of the epilogue,
C and what is stored beside it each have a stride for either."""

import dataclasses
import math

import pytest
import torch
from kernel_runs import node

from inductor_flydsl import settings
from inductor_flydsl.arch import GFX950
from inductor_flydsl.compiler import compile_spec
from inductor_flydsl.config import GemmConfig, KernelSpec
from inductor_flydsl.devices import get_device
from inductor_flydsl.dtypes import DType
from inductor_flydsl.fusion import Fusion, Store, Tensor
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.space import why_not

STAGED = GemmConfig(tile_m=32, tile_n=32, tile_k=32, stages=2, waves_m=2, waves_n=1)
SPLIT = dataclasses.replace(STAGED, split_k=2)
HTI = GemmConfig(pipeline="hti", tile_m=128, tile_n=128, tile_k=64, stages=2, waves_m=2, waves_n=4)
B, H, M, N, K = 2, 3, 37, 40, 70


def fusion():
    """relu(acc + bias) · scale, the argument of relu in fp32 beside it."""
    full = Tensor(dtype=DType.BF16, along_m=True, along_n=True)
    nodes = (
        node("acc"),
        node("tensor", value=0),
        node("add", 0, 1),
        node("relu", 2),
        node("tensor", value=1),
        node("mul", 3, 4),
    )
    store = Store(node=2, dtype=DType.FP32, width=16)
    return Fusion(nodes=nodes, tensors=(full, full), stores=(store,))


@pytest.mark.parametrize("config", [STAGED, SPLIT, HTI], ids=["staged", "split-K", "hti"])
def test_each_has_two_strides(config):
    """A bias of each outer index, a scale of each head, and rows of heads side by side in C."""
    generator = torch.Generator().manual_seed(3)

    def random(*shape):
        return torch.randn(*shape, generator=generator).bfloat16()

    a, b = random(B * H, M, K), random(B * H, N, K).mT
    bias, scale = random(B, 1, M, N), random(1, H, M, N)
    row = H * N
    dense = dataclasses.replace(GemmProblem.dense(M, N, K, batch=B * H), ldc=row, c_batch=N)
    problem = dataclasses.replace(
        dense,
        fusion=fusion(),
        tensors=((0, N, 1), (M * N, N, 1), (M * N, N, 1)),
        heads=H,
        outer=(M * row, M * N, 0, H * M * N + 8),
    )
    assert why_not(problem, config, GFX950) is None
    assert GemmProblem.from_json(problem.to_json()) == problem
    c = torch.full((B, M, H, N), math.nan).bfloat16()
    flat = torch.full((B * H * M * N + 8,), math.nan)
    kept = flat.as_strided((B, H, M, N), (H * M * N + 8, M * N, N, 1))
    artifact = compile_spec(KernelSpec.of(problem, config), "gfx950", "emulator")
    device = get_device("emulator")
    with settings.scope(emulator_landing="lazy", emulator_order="random"):
        device.load(artifact, problem, config)(c, a, b, bias, scale, kept)
    assert not device.last_run.findings
    exact = (a.double() @ b.double()).view(B, H, M, N) + bias.double()
    torch.testing.assert_close(kept.double(), exact, rtol=1e-5, atol=1e-4)
    assert flat[H * M * N : H * M * N + 8].isnan().all()
    exact = exact.relu() * scale.double()
    torch.testing.assert_close(c.transpose(1, 2).double(), exact, rtol=2**-7, atol=1e-2)
