"""Stream-K on the emulator: whole tiles and shared ones, right in any order, ready to run again.

The chip has a few compute units, so that few tiles are full rounds and a rest.
"""

import dataclasses

import pytest
import torch
from kernel_runs import VIEWS, run_on

from inductor_flydsl import measure, settings
from inductor_flydsl.arch import GFX950
from inductor_flydsl.arguments import launch_arguments
from inductor_flydsl.compiler import compile_spec
from inductor_flydsl.config import GemmConfig, KernelSpec
from inductor_flydsl.devices.emulator import EmulatorDevice
from inductor_flydsl.dtypes import DType
from inductor_flydsl.fusion import Fusion, Node, Tensor, TorchOps
from inductor_flydsl.problem import GemmProblem

SMALL = GemmConfig(
    tile_m=32, tile_n=64, tile_k=64, stages=3, waves_m=1, waves_n=2, split_k=3, stream_k=1
)
CHAINS = dataclasses.replace(SMALL, stream_k=2, group_m=2, xcd_remap=True)
THREE = dataclasses.replace(SMALL, split_k=4, stream_k=3)
FIVE = dataclasses.replace(SMALL, split_k=5, stream_k=2)
HTI = GemmConfig(
    pipeline="hti", tile_m=128, tile_n=128, tile_k=64, stages=2, waves_m=2, waves_n=4, split_k=2,
    stream_k=1,
)  # fmt: skip
HTI_CHAINS = dataclasses.replace(HTI, split_k=3, stream_k=2)
LARGE = dataclasses.replace(
    HTI, tile_m=256, tile_n=256, split_k=4, group_m=8, xcd_remap=True
)  # fmt: skip

# Compute units, M, N, K: full rounds, a rest.
SHAPES = [
    (2, 96, 64, 640, SMALL),
    (5, 97, 65, 643, SMALL),
    (4, 33, 130, 321, SMALL),
    (16, 33, 130, 321, CHAINS),
    (3, 1, 200, 192, SMALL),
    (5, 97, 65, 643, CHAINS),
    (7, 100, 130, 330, CHAINS),
    (5, 97, 65, 643, THREE),
    (9, 33, 65, 257, THREE),
    (5, 97, 65, 643, FIVE),
    (4, 130, 264, 450, HTI),
    (4, 257, 129, 1155, HTI_CHAINS),
]


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("units, m, n, k, config", SHAPES, ids=lambda v: str(getattr(v, "name", v)))
def test_equals_the_float64_product(units, m, n, k, config, layout):
    _, findings = run_on(units, GemmProblem.dense(m, n, k, layout=layout), config)
    assert not findings


def test_the_largest_tile():
    _, findings = run_on(3, GemmProblem.dense(264, 304, 576, dtype="float16"), LARGE)
    assert not findings


@pytest.mark.parametrize("types", ["mxfp8", "mxfp4", "fp8"])
@pytest.mark.parametrize("config", [HTI, HTI_CHAINS], ids=lambda c: c.name)
def test_narrow_operands(config, types):
    step = 256 if types == "mxfp4" else 128
    problem = GemmProblem.parse(f"257,129,{9 * step + 32},{types}")
    _, findings = run_on(4, problem, dataclasses.replace(config, tile_k=step))
    assert not findings


@pytest.mark.parametrize("config", [SMALL, THREE], ids=lambda c: c.name)
def test_tiles_of_all_batches_are_one_list(config):
    problem = GemmProblem.dense(97, 65, 643, batch=3)
    given = launch_arguments(problem, config, 7)
    assert given["whole"] == 21  # Of 3 times 8 tiles.
    _, findings = run_on(7, problem, config)
    assert not findings


@pytest.mark.parametrize("changes", VIEWS.values(), ids=VIEWS)
def test_strided_and_offset_operands(changes):
    problem = dataclasses.replace(GemmProblem.dense(70, 72, 200), **changes)
    _, findings = run_on(4, problem, CHAINS)
    assert not findings


@pytest.mark.parametrize("landing", ["lazy", "eager", "random"])
@pytest.mark.parametrize("order", ["forward", "reverse", "random", "lockstep"])
def test_any_landing_and_any_order(landing, order):
    problem = GemmProblem.dense(70, 72, 330)
    for config in (SMALL, CHAINS):
        emulator = {"emulator_landing": landing, "emulator_order": order}
        _, findings = run_on(4, problem, config, **emulator)
        assert not findings


def loaded(problem, config, units):
    artifact = compile_spec(KernelSpec.of(problem, config), "gfx950", "emulator")
    device = EmulatorDevice()
    device.arch = dataclasses.replace(GFX950, compute_units=units, xcds=1)
    return device, device.load(artifact, problem, config)


@pytest.mark.parametrize("config", [SMALL, THREE, FIVE], ids=lambda c: c.name)
def test_repeats_bit_for_bit_whatever_comes_last(config):
    problem = GemmProblem.dense(97, 136, 1000)
    device, kernel = loaded(problem, config, 7)
    c, a, b = measure.operands(problem)
    results = []
    for seed in range(3):
        c.fill_(float("nan"))
        with settings.scope(emulator_seed=seed, emulator_order=("random", "reverse")[seed % 2]):
            kernel(c, a, b)  # The same counters each time: every launch must leave them at zero.
        assert not device.last_run.findings
        results.append(c.clone())
    assert all(torch.equal(results[0], r) for r in results[1:])
    measure.compare(c, a, b)


@pytest.mark.parametrize("config", [SMALL, THREE], ids=lambda c: c.name)
@pytest.mark.parametrize("m", [1, 33, 64, 97, 190])
def test_one_kernel_for_any_m(m, config):
    # Of 4 compute units: no full round, a rest, full rounds and none.
    problem = GemmProblem.dense(128, 65, 640)
    artifact = compile_spec(KernelSpec.of(problem, config), "gfx950", "emulator")
    device = EmulatorDevice()
    device.arch = dataclasses.replace(GFX950, compute_units=4, xcds=1)
    measure.check(device, artifact, dataclasses.replace(problem, m=m), config)
    assert not device.last_run.findings


@pytest.mark.parametrize("config", [SMALL, CHAINS, THREE, FIVE], ids=lambda c: c.name)
@pytest.mark.parametrize("k", [1, 64, 128, 129, 192])
def test_fewer_k_steps_than_members(k, config):
    # As a kernel of dynamic K may meet them: some have a share without a step.
    problem = GemmProblem.dense(97, 65, k)
    device, kernel = loaded(problem, config, 5)
    c, a, b = measure.operands(problem)
    for _ in range(2):
        c.fill_(float("nan"))
        kernel(c, a, b)
        assert not device.last_run.findings
        measure.compare(c, a, b)


@pytest.mark.parametrize("config", [SMALL, CHAINS], ids=lambda c: c.name)
def test_an_epilogue_is_applied_once_to_every_tile(config):
    tensors = (
        Tensor(dtype=DType.BF16, along_m=False, along_n=True),
        Tensor(dtype=DType.BF16, along_m=True, along_n=True),
    )
    nodes = (
        Node(op="acc"),
        Node(op="tensor", value=0),
        Node(op="add", args=(0, 1)),
        Node(op="relu", args=(2,)),
        Node(op="tensor", value=1),
        Node(op="add", args=(3, 4)),
    )
    fusion = Fusion(nodes=nodes, tensors=tensors)
    problem = dataclasses.replace(
        GemmProblem.dense(70, 136, 330), fusion=fusion, tensors=((0, 0, 1), (0, 136, 1))
    )
    generator = torch.Generator().manual_seed(1)
    bias, residual = (
        torch.randn(*size, generator=generator).bfloat16() for size in ((136,), (70, 136))
    )
    device, kernel = loaded(problem, config, 4)
    c, a, b, *_ = measure.operands(problem)
    kernel(c, a, b, bias, residual)
    assert not device.last_run.findings
    expected = fusion.evaluate(
        TorchOps(), a.double() @ b.double(), [bias.double(), residual.double()]
    )
    torch.testing.assert_close(c.double(), expected, rtol=2**-7, atol=2**-7)
