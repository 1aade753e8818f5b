"""Results of 8 bits: every 16-bit number, and those around ties and the largest, against torch."""

import dataclasses

import pytest
import torch

from inductor_flydsl.arch import GFX950
from inductor_flydsl.compiler import compile_spec
from inductor_flydsl.config import GemmConfig, KernelSpec
from inductor_flydsl.devices import get_device
from inductor_flydsl.dtypes import DType
from inductor_flydsl.fusion import Fusion, Node, Store, Tensor
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.space import problem_limit

CONFIG = GemmConfig(tile_m=64, tile_n=64, tile_k=32, stages=2, waves_m=2, waves_n=2)
KINDS = [torch.float8_e4m3fn, torch.float8_e5m2]
WHOLE = Tensor(dtype=DType.FP32, along_m=True, along_n=True, quads=True)
# A tensor, beside a product that is ignored.
COPY = Fusion(nodes=(Node(op="acc"), Node(op="tensor", value=0)), tensors=(WHOLE,))


def asked(fusion, shape, kind, strides):
    """Of a product of ones that gives ``kind``."""
    dense = GemmProblem.dense(*shape, 32, out_dtype=str(kind).removeprefix("torch."))
    return dataclasses.replace(dense, fusion=fusion, tensors=strides)


def run(problem, *tensors, config=CONFIG):
    a, b = torch.ones(problem.m, 32).bfloat16(), torch.ones(problem.n, 32).bfloat16().mT
    c = torch.zeros(problem.m, problem.n, dtype=getattr(torch, problem.out_dtype.value))
    artifact = compile_spec(KernelSpec.of(problem, config), "gfx950", "emulator")
    device = get_device("emulator")
    device.load(artifact, problem, config)(c, a, b, *tensors)
    assert not device.last_run.findings
    return c


def same(got, expected):
    """Bit for bit, one NaN as good as another."""
    nan = expected.float().isnan()
    assert torch.equal(got.float().isnan(), nan)
    assert torch.equal(got.view(torch.uint8)[~nan], expected.view(torch.uint8)[~nan])


def numbers():
    """[256, 320] fp32: all bf16, and neighbours of each 8-bit number and of the middles."""
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16).float()
    codes = torch.arange(256).to(torch.uint8)
    exact = torch.cat([codes.view(kind).float() for kind in KINDS])
    exact = exact[exact.isfinite()].sort().values
    middles = (exact[1:] + exact[:-1]) / 2
    near = torch.cat([exact, middles, torch.tensor([464.0, 480.0, 61440.0, 65536.0])])
    up, down = (torch.nextafter(near, torch.full_like(near, s * torch.inf)) for s in (1, -1))
    x = torch.cat([every, near, up, down])
    return torch.cat([x, torch.zeros(256 * 320 - len(x))]).reshape(256, 320)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_number(kind):
    x = numbers()
    same(run(asked(COPY, x.shape, kind, ((0, 320, 1),)), x), x.to(kind))


@pytest.mark.parametrize("split_k", [1, 2])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_beside_another_result(kind, split_k):
    """C of 8 bits in rows of 68, and what it is rounded from in bf16 beside it; the other way."""
    x = torch.randn(70, 68, generator=torch.Generator().manual_seed(1)) * 100
    config = dataclasses.replace(CONFIG, split_k=split_k)
    name = DType(str(kind).removeprefix("torch."))
    for first, second in ((name, DType.BF16), (DType.BF16, name)):
        store = Store(node=1, dtype=second, width=4)
        fusion = dataclasses.replace(COPY, stores=(store,))
        out = getattr(torch, first.value)
        problem = asked(fusion, x.shape, out, ((0, 68, 1), (0, 72, 1)))
        problem = dataclasses.replace(problem, k=64, lda=64, ldb=64) if split_k > 1 else problem
        other = torch.zeros(70, 72, dtype=getattr(torch, second.value))
        a, b = torch.ones(70, problem.k).bfloat16(), torch.ones(68, problem.k).bfloat16().mT
        c = torch.zeros(70, 68, dtype=out)
        artifact = compile_spec(KernelSpec.of(problem, config), "gfx950", "emulator")
        device = get_device("emulator")
        device.load(artifact, problem, config)(c, a, b, x, other)
        assert not device.last_run.findings
        for got, dtype in ((c, out), (other[:, :68].contiguous(), other.dtype)):
            assert torch.equal(got.float(), x.to(dtype).float())
        assert (other[:, 68:].float() == 0).all()


def test_rows_that_are_no_whole_words_have_no_kernel():
    problem = asked(COPY, (64, 66), torch.float8_e5m2, ((0, 66, 1),))
    assert "four neighbours" in problem_limit(problem, GFX950)
    whole = dataclasses.replace(asked(COPY, (64, 64), torch.float8_e5m2, ((0, 64, 1),)))
    assert problem_limit(whole, GFX950) is None
    plain = dataclasses.replace(whole, fusion=None, tensors=())
    assert "has no kernel" in problem_limit(plain, GFX950)
