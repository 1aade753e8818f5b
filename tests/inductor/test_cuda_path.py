"""Lowering, scheduling and code generation for ``cuda`` tensors, without a GPU.

Fake tensors and a made-up GPU drive Inductor to the end of code generation; nothing is launched,
and benchmarks read what a test says. What needs a GPU is in tests/device/run_gpu_reference.py.
"""

import contextlib
import types
from unittest import mock

import pytest
import torch
import torch._inductor.config as inductor_config
from torch._dynamo import device_interface
from torch._inductor import scheduler, select_algorithm
from torch._inductor.debug import DebugContext
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from inductor_flydsl import space
from inductor_flydsl.devices import Clock, reference
from inductor_flydsl.inductor import caller, choices

CHIP = types.SimpleNamespace(
    name="made up",
    gcnArchName="",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=1 << 36,
    warp_size=32,
    regs_per_multiprocessor=65536,
    max_threads_per_block=1024,
    max_threads_per_multi_processor=2048,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472,
    L2_cache_size=1 << 20,
)


class MadeUpDevice(reference.ReferenceDevice):
    """The reference device on a GPU that is not there."""

    def __init__(self, torch_device="cuda:0"):
        self.torch_device = torch_device
        self.clock = Clock.GPU_EVENT

    def environment(self):
        return {"compute_units": str(CHIP.multi_processor_count)}


@pytest.fixture
def gpu():
    """A GPU as far as Inductor's Python side asks."""

    def chip(*_):
        return CHIP

    def first_candidate(problem, device):
        return space.candidates(problem, device.arch)[0], (), 0

    def patched(owner, **names):
        return [mock.patch.object(owner, name, value) for name, value in names.items()]

    cuda = device_interface.CudaInterface
    patches = [
        *patched(
            torch.cuda,
            is_available=lambda: True,
            get_device_properties=chip,
            get_device_capability=lambda *_: (9, 0),
            current_device=lambda: 0,
            device_count=lambda: 1,
            _lazy_init=lambda: None,
        ),
        *patched(cuda, get_device_properties=staticmethod(chip)),
        *patched(cuda.Worker, get_device_properties=staticmethod(chip)),
        *patched(scheduler, has_triton=lambda *_, **__: True),
        *patched(reference, ReferenceDevice=MadeUpDevice),
        *patched(choices, _best=first_candidate),
        mock.patch("torch._dynamo.utils.preserve_rng_state", contextlib.nullcontext),
    ]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def generate(function, *shapes, ours=1e-9, aten=1.0):
    """Code of ``function`` on bf16 cuda operands, where benchmarks read these milliseconds."""

    def benchmark(self, candidates, *_, **__):
        return {c: ours if isinstance(c, caller.FlyDSLCaller) else aten for c in candidates}

    mode = FakeTensorMode()
    with mode:
        inputs = [torch.empty(*s, dtype=torch.bfloat16, device="cuda:0") for s in shapes]
        module = make_fx(function)(*inputs)
    selector = select_algorithm.AlgorithmSelectorCache
    settings = {"max_autotune": True, "max_autotune_gemm_backends": "ATEN,FLYDSL"}
    with (
        inductor_config.patch(settings),
        mock.patch.object(selector, "benchmark", benchmark),
        V.set_fake_mode(mode),
        V.set_debug_handler(DebugContext()),
    ):
        graph = GraphLowering(module, example_inputs=inputs)
        with V.set_graph_handler(graph):
            graph.run(*inputs)
            code, _ = graph.codegen()
    return code if isinstance(code, str) else code.value


def fusion_flag():
    new = "benchmark_template_fusion"
    return new if hasattr(inductor_config, new) else "benchmark_epilogue_fusion"


@pytest.mark.parametrize("benchmarked_fusion", [False, True])
def test_our_winner_is_generated(gpu, benchmarked_fusion):
    """With benchmarked fusion the op is a MultiTemplateBuffer until the scheduler finalizes it."""
    with inductor_config.patch({fusion_flag(): benchmarked_fusion}):
        code = generate(lambda a, b: (a @ b,), (64, 96), (96, 80))
    (decision,) = choices.decisions()
    assert decision.chosen == "FLYDSL" and {t.clock for t in decision.times} == {"gpu_event"}
    assert code.count("flydsl_kernel_0(buf0, ") == 1 and "extern_kernels.mm" not in code
    assert '"device": "reference"' in code and '"torch_device": "cuda:0"' in code
    # Inductor itself copies GPU inputs that are less aligned than their examples.
    assert '"check": ""' in code


@pytest.mark.parametrize("benchmarked_fusion", [False, True])
def test_a_faster_aten_is_generated(gpu, benchmarked_fusion):
    # Inductor keeps timings in memory by shapes, so those of another test must differ.
    rows = 72 + 8 * benchmarked_fusion
    with inductor_config.patch({fusion_flag(): benchmarked_fusion}):
        code = generate(lambda a, b: (a @ b,), (rows, 96), (96, 80), ours=2.0)
    (decision,) = choices.decisions()
    assert decision.chosen == "ATEN"
    assert "flydsl" not in code and "extern_kernels.mm" in code


def test_two_products_and_a_view(gpu):
    code = generate(lambda a, b, c: ((a.narrow(1, 8, 96) @ b) @ c,), (64, 104), (96, 80), (80, 48))
    first, second = choices.decisions()
    assert (first.problem.lda, first.problem.a_align) == (104, 16)
    assert (second.problem.m, second.problem.n, second.problem.k) == (64, 48, 80)
    assert code.count("flydsl_kernel_0(buf0, reinterpret_tensor(") == 1


def test_a_failed_benchmark_of_ours_leaves_aten(gpu):
    code = generate(lambda a, b: (a @ b,), (88, 96), (96, 80), ours=float("inf"))
    assert choices.decisions()[-1].chosen == "ATEN" and "flydsl" not in code
