"""One compiled kernel at many sizes on the emulator: what it is not specialised on may change."""

import dataclasses

import pytest
import torch
from kernel_runs import node

from inductor_flydsl import settings
from inductor_flydsl.arch import GFX950
from inductor_flydsl.compiler import compile_spec
from inductor_flydsl.config import GemmConfig, KernelSpec
from inductor_flydsl.devices import get_device
from inductor_flydsl.dtypes import DType
from inductor_flydsl.fusion import Fusion, Tensor
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.space import why_not

STAGED = GemmConfig(
    tile_m=32, tile_n=64, tile_k=64, stages=3, waves_m=1, waves_n=2, group_m=2, xcd_remap=True
)
SPLIT = dataclasses.replace(STAGED, split_k=3)
HTI = GemmConfig(pipeline="hti", tile_m=128, tile_n=128, tile_k=64, stages=2, waves_m=2, waves_n=2)
CONFIGS = (STAGED, SPLIT, HTI)
M, K = 40, 200


# acc + bias[n] + mask[m, n] where n <= 2·m, else 0.
CAUSAL = Fusion(
    nodes=(
        node("acc"),
        node("tensor", value=0),
        node("add", 0, 1),
        node("tensor", value=1),
        node("add", 2, 3),
        node("row"),
        node("add", 5, 5),
        node("column"),
        node("le", 7, 6),
        node("const", value=0.0),
        node("where", 8, 4, 9),
    ),
    tensors=(
        Tensor(dtype=DType.BF16, along_m=False, along_n=True),
        Tensor(dtype=DType.BF16, along_m=True, along_n=True),
    ),
)


def causal(product, bias, mask):
    rows, columns = torch.arange(product.shape[-2]), torch.arange(product.shape[-1])
    inside = columns <= 2 * rows[:, None]
    return (product + bias.double() + mask.double()) * inside


def problem_of(n, layout, batch, align, fused):
    """With N, and the strides that depend on it, as they are."""
    made = GemmProblem.dense(M, n, K, layout=layout, batch=batch)
    made = dataclasses.replace(made, c_align=align, b_align=align if layout[1] == "N" else 16)
    if fused:
        made = dataclasses.replace(made, fusion=CAUSAL, tensors=((0, 0, 1), (M * n, n, 1)))
    return made


def assert_right(artifact, problem, config):
    """The kernel at this problem's sizes; what lies around C is not written."""
    p, generator = problem, torch.Generator().manual_seed(problem.n)
    batch = (p.batch,) if p.batch > 1 else ()

    def random(*shape):
        return torch.randn(*batch, *shape, generator=generator).bfloat16()

    a = random(M, K) if p.layout.value[0] == "N" else random(K, M).mT
    b = random(K, p.n) if p.layout.value[1] == "N" else random(p.n, K).mT
    around = 64
    storage = torch.full((p.batch * M * p.n + 2 * around,), float("nan"), dtype=torch.bfloat16)
    c = storage[around:-around].view(*batch, M, p.n)
    tensors, expected = (), a.double() @ b.double()
    if p.fusion:
        tensors = (torch.randn(p.n, generator=generator).bfloat16(), random(M, p.n))
        expected = causal(expected, *tensors)
    device = get_device("emulator")
    with settings.scope(emulator_landing="lazy", emulator_order="random"):
        device.load(artifact, p, config)(c, a, b, *tensors)
    assert not device.last_run.findings
    bound = (a.double().abs() @ b.double().abs() + 8) * 2**-20
    assert ((c.double() - expected).abs() <= expected.abs() * 2**-7 + bound).all()
    assert storage[:around].isnan().all() and storage[-around:].isnan().all()


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "causal"])
@pytest.mark.parametrize(("layout", "batch"), [("NT", 1), ("NN", 2), ("TN", 1)])
@pytest.mark.parametrize("config", CONFIGS, ids=lambda c: c.name)
@pytest.mark.parametrize(("align", "sizes"), [(2, (63, 1, 64, 131, 200)), (16, (64, 8, 136, 200))])
def test_columns(config, layout, batch, fused, align, sizes):
    tuned = problem_of(sizes[0], layout, batch, align, fused)
    assert why_not(tuned, config, GFX950) is None
    artifact = compile_spec(KernelSpec.of(tuned, config), "gfx950", "emulator")
    for n in sizes:
        assert_right(artifact, problem_of(n, layout, batch, align, fused), config)
