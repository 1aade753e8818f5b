"""Activations of every 16-bit number on the emulator, against float64."""

import dataclasses

import pytest
import torch

from inductor_flydsl.compiler import compile_spec
from inductor_flydsl.config import GemmConfig, KernelSpec
from inductor_flydsl.devices import get_device
from inductor_flydsl.dtypes import DType
from inductor_flydsl.fusion import Fusion, Node, Tensor, TorchOps
from inductor_flydsl.problem import GemmProblem

CONFIG = GemmConfig(tile_m=128, tile_n=128, tile_k=32, stages=2, waves_m=2, waves_n=2)
SIDE = 256


def of_tensor(*nodes):
    """A program on a tensor, node 1, beside a product that it ignores."""
    whole = Tensor(dtype=DType.FP32, along_m=True, along_n=True, quads=True)
    made = tuple(Node(op=op, args=args, value=value) for op, args, value in nodes)
    first = (Node(op="acc"), Node(op="tensor", value=0))
    return Fusion(nodes=first + made, tensors=(whole,))


GELU = of_tensor(
    ("const", (), 0.5), ("mul", (1, 2), None), ("const", (), 0.5**0.5), ("mul", (1, 4), None),
    ("erf", (5,), None), ("const", (), 1.0), ("add", (6, 7), None), ("mul", (3, 8), None),
)  # fmt: skip
GELU_TANH = of_tensor(
    ("const", (), 0.5), ("mul", (1, 2), None), ("mul", (1, 1), None), ("mul", (4, 1), None),
    ("const", (), 0.044715), ("mul", (5, 6), None), ("add", (1, 7), None),
    ("const", (), (2 / torch.pi) ** 0.5), ("mul", (8, 9), None), ("tanh", (10,), None),
    ("const", (), 1.0), ("add", (11, 12), None), ("mul", (3, 13), None),
)  # fmt: skip
SILU = of_tensor(("sigmoid", (1,), None), ("mul", (1, 2), None))
RELU = of_tensor(("relu", (1,), None))
EXACT = {
    "gelu": (GELU, TorchOps().gelu),
    "gelu_tanh": (GELU_TANH, TorchOps().gelu_tanh),
    "silu": (SILU, lambda x: x * torch.sigmoid(x)),
    "relu": (RELU, torch.relu),
}


def run(fusion, x, kind):
    """The program of a 256x256 tensor x, as ``kind``."""
    problem = GemmProblem.dense(SIDE, SIDE, 32, out_dtype=str(kind).removeprefix("torch."))
    if kind is torch.float16:
        problem = dataclasses.replace(problem, dtype=DType.FP16)
    problem = dataclasses.replace(problem, fusion=fusion, tensors=((0, SIDE, 1),))
    inner = torch.float16 if kind is torch.float16 else torch.bfloat16
    a, b = torch.ones(SIDE, 32, dtype=inner), torch.ones(SIDE, 32, dtype=inner).mT
    c = torch.full((SIDE, SIDE), 7.0, dtype=kind)
    artifact = compile_spec(KernelSpec.of(problem, CONFIG), "gfx950", "emulator")
    assert artifact.resources.spills == 0
    device = get_device("emulator")
    device.load(artifact, problem, CONFIG)(c, a, b, x)
    assert not device.last_run.findings
    return c


def order(x):
    """Position of a 16-bit float among all of its type; both zeros are one."""
    bits = x.view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", EXACT)
def test_every_number(name, kind):
    fusion, exact = EXACT[name]
    every = torch.arange(-(2**15), 2**15).to(torch.int16).view(kind).reshape(SIDE, SIDE)
    got, expected = run(fusion, every.float(), kind), exact(every.double()).to(kind)
    finite = every.isfinite()
    if name == "gelu" and kind is torch.bfloat16:
        # Where fp32 has no digits of 1 + erf left, a shorter polynomial is as good as eager.
        far = finite & (every < -6)
        assert (got[far].double() - exact(every[far].double())).abs().max() < 5e-11
        assert (got[far] <= 0).all()
        finite &= ~far
    off = (order(got) - order(expected)).abs()[finite]
    # Of smaller results the exponential, which is under 1/90 of them, is flushed to zero.
    off = off[exact(every.double())[finite].abs() > 2**-119]
    assert off.max() <= 1
    assert (off > 0).sum() <= 0.02 * len(off)
    assert torch.isnan(got[torch.isnan(every)]).all()
    infinite = torch.tensor([torch.inf], dtype=kind)
    assert (got[every == infinite] == infinite).all()


@pytest.mark.parametrize("name", EXACT)
def test_fp32_results(name):
    fusion, exact = EXACT[name]
    x = torch.linspace(-12, 12, SIDE * SIDE).reshape(SIDE, SIDE)
    got, expected = run(fusion, x, torch.float32), exact(x.double())
    error = ((got.double() - expected) / expected).abs()
    error[expected.abs() < 2**-119] = 0
    # An exponent of many digits before its point has few behind it.
    assert error[x > -4].max() < 2e-6
    assert error.max() < 2e-5
