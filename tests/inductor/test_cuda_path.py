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
import torch.nn.functional as F
from torch._dynamo import device_interface
from torch._inductor import scheduler, select_algorithm
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from inductor_flydsl import space
from inductor_flydsl.devices import Clock, reference
from inductor_flydsl.inductor import caller, choices, compat

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
        *patched(torch.utils._triton, triton_hash_with_backend=lambda: "made up"),
        *patched(reference, ReferenceDevice=MadeUpDevice),
        *patched(choices, _best=first_candidate),
        mock.patch("torch._dynamo.utils.preserve_rng_state", contextlib.nullcontext),
    ]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def generate(function, *shapes, ours=1e-9, aten=1.0, pointwise=0.1):
    """Code of ``function`` on bf16 cuda operands, where benchmarks read these milliseconds."""
    real = scheduler.Scheduler.speedup_by_fusion

    def speedup_by_fusion(self, node1, node2):
        # What it finds for an op that is open and has no Triton choice, after importing Triton.
        is_open = compat.open_choices(node1)
        return scheduler.FusionResult.fuse(False) if is_open else real(self, node1, node2)

    others = mock.patch.multiple(
        scheduler.Scheduler,
        benchmark_fused_nodes=lambda *_: (pointwise, ""),
        speedup_by_fusion=speedup_by_fusion,
    )

    def benchmark(self, candidates, *_, **__):
        return {c: ours if isinstance(c, caller.FlyDSLCaller) else aten for c in candidates}

    mode = FakeTensorMode()
    with mode:
        inputs = [torch.empty(*s, dtype=torch.bfloat16, device="cuda:0") for s in shapes]
        module = make_fx(function, select_decomp_table())(*inputs)
    selector = select_algorithm.AlgorithmSelectorCache
    settings = {"max_autotune": True, "max_autotune_gemm_backends": "ATEN,FLYDSL"}
    with (
        inductor_config.patch(settings),
        mock.patch.object(selector, "benchmark", benchmark),
        others,
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


def one_kernel(code):
    """Our kernel is called once, and there is no other."""
    calls = [x for x in code.splitlines() if "flydsl_kernel_0(" in x]
    return len(calls) == 1 and "triton_" not in code and "extern_kernels." not in code


FUSED = {
    "bias and gelu": (
        lambda a, b, bias: (F.gelu(torch.addmm(bias, a, b)),),
        ((64, 96), (96, 72), (72,)),
    ),
    "residual": (lambda a, b, r: (r + F.relu(a @ b),), ((64, 96), (96, 80), (64, 80))),
    "batch": (lambda a, b, r: (r + F.silu(a @ b),), ((3, 64, 96), (3, 96, 80), (3, 64, 80))),
}


@pytest.mark.parametrize("benchmarked_fusion", [False, True])
@pytest.mark.parametrize("name", FUSED)
def test_an_epilogue_joins_our_winner(gpu, benchmarked_fusion, name):
    with inductor_config.patch({fusion_flag(): benchmarked_fusion}):
        code = generate(FUSED[name][0], *FUSED[name][1])
    assert one_kernel(code), code
    (decision,) = choices.decisions()
    assert decision.chosen == "FLYDSL" and decision.fused and not decision.apart
    assert ("its epilogue joins it" in decision.reason) == benchmarked_fusion


@pytest.mark.parametrize("pointwise", [0.2, 0.01])
def test_the_kernel_that_the_others_need_after_them_counts(gpu, pointwise):
    rows = 96 if pointwise > 0.1 else 104
    with inductor_config.patch({fusion_flag(): True}):
        function = FUSED["residual"][0]
        shapes = ((rows, 96), (96, 80), (rows, 80))
        code = generate(function, *shapes, ours=1.1, aten=1.0, pointwise=pointwise)
    (decision,) = choices.decisions()
    if pointwise > 0.1:
        assert one_kernel(code) and decision.chosen == "FLYDSL"
        assert "faster with its epilogue" in decision.reason and "200.00 us" in decision.reason
    else:
        assert "extern_kernels.mm" in code and decision.chosen == "ATEN"


def test_what_cannot_join_is_told(gpu):
    with inductor_config.patch({fusion_flag(): True}):
        code = generate(lambda a, b: (torch.cos(a @ b),), (112, 96), (96, 80))
    (decision,) = choices.decisions()
    assert decision.chosen == "FLYDSL" and "flydsl_kernel_0(" in code and "triton_poi" in code
    assert "operation cos has no kernel" in decision.apart[0]
    assert "apart: " in str(decision) and decision.to_json()["apart"] == list(decision.apart)


@pytest.mark.parametrize("benchmarked_fusion", [False, True])
def test_a_product_that_is_read_twice_is_stored_beside_what_reads_it(gpu, benchmarked_fusion):
    """As in training: the input of the activation is kept, and read by what cannot join too."""

    def function(a, b, bias):
        product = torch.addmm(bias, a, b)
        return product.sum(0), product, F.gelu(product)

    rows = 120 + 32 * benchmarked_fusion
    with inductor_config.patch({fusion_flag(): benchmarked_fusion}):
        code = generate(function, (rows, 96), (96, 80), (80,))
    (decision,) = choices.decisions()
    assert decision.chosen == "FLYDSL" and len(decision.fused) == len(decision.stored) == 1
    assert ["is a reduction" in text for text in decision.apart] == [True]
    (call,) = [x.strip() for x in code.splitlines() if "flydsl_kernel_0(" in x]
    first, *_, last = call.removeprefix("flydsl_kernel_0(").rstrip(")").split(", ")
    for name in (first, last):
        assert f"{name} = empty_strided_cuda(({rows}, 80), (80, 1), torch.bfloat16)" in code
    assert "libdevice.erf" not in code


def test_three_results_are_one_kernel(gpu):
    def function(a, b):
        product = a @ b
        return product, F.relu(product), torch.sigmoid(product.float())

    with inductor_config.patch({fusion_flag(): True}):
        code = generate(function, (156, 96), (96, 80))
    (decision,) = choices.decisions()
    assert one_kernel(code) and len(decision.stored) == 2, str(decision)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_wider_output_and_what_follows_it(gpu, batch):
    """``out_dtype`` of mm and bmm, which torch has on a GPU alone."""
    product = torch.bmm if batch else torch.mm
    rows = 136 if batch else 128

    def function(a, b, r):
        return (F.relu(product(a, b, out_dtype=torch.float32)) * r,)

    shapes = ((*batch, rows, 96), (*batch, 96, 80), (*batch, rows, 80))
    with inductor_config.patch({fusion_flag(): True}):
        code = generate(function, *shapes)
    (decision,) = choices.decisions()
    assert decision.chosen == "FLYDSL" and decision.fused and one_kernel(code)
    assert decision.problem.out_dtype.value == "float32"
    assert f"empty_strided_cuda({(*batch, rows, 80)}" in code and "torch.float32)" in code


def test_an_error_while_settling_leaves_the_op_open(gpu, monkeypatch, caplog):
    def broken(*_):
        raise KeyError("injected")

    monkeypatch.setattr(compat, "close", broken)
    with inductor_config.patch({fusion_flag(): True}):
        code = generate(FUSED["residual"][0], (144, 96), (96, 80), (144, 80))
    assert "flydsl_kernel_0(" in code and "stays open: KeyError" in caplog.text
