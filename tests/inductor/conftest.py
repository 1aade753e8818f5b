"""Inductor tests run on the `reference` device and CPU tensors, with no cache between tests."""

import contextlib
import os

import pytest

torch = pytest.importorskip("torch")

import torch._inductor.config as inductor_config  # noqa: E402

import inductor_flydsl  # noqa: E402
from inductor_flydsl import compiler  # noqa: E402
from inductor_flydsl.devices import get_device  # noqa: E402
from inductor_flydsl.errors import InductorFlyDSLError  # noqa: E402
from inductor_flydsl.inductor import caller, choices  # noqa: E402

# Small products on several threads take milliseconds where the cores are shared with others.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)

BACKENDS = "ATEN,TRITON,FLYDSL"


@pytest.fixture(autouse=True)
def plugin(monkeypatch):
    """The plugin is on, on the reference device, and nothing is left of an earlier test."""
    monkeypatch.setenv("INDUCTOR_FLYDSL_DEVICE", "reference")
    inductor_flydsl.unregister()
    inductor_flydsl.register()
    torch._dynamo.reset()
    torch.manual_seed(0)
    choices.clear()
    settings = {
        "max_autotune_gemm_backends": BACKENDS,
        "flydsl_enable_autotuning": True,
        "force_disable_caches": True,
    }
    with inductor_config.patch(settings):
        yield
    inductor_flydsl.register()
    torch._dynamo.reset()


@pytest.fixture
def real_kernels(plugin, monkeypatch):
    """FlyDSL kernels on the emulator, one candidate a problem: an emulated launch is not cheap."""
    try:
        get_device("emulator").environment()
        compiler.source_fingerprint()
    except InductorFlyDSLError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("INDUCTOR_FLYDSL_DEVICE", "emulator")
    with inductor_config.patch(flydsl_enable_autotuning=False):
        yield


@pytest.fixture
def ours_is_fast(monkeypatch):
    """Inductor's benchmark of our choice reads next to nothing, so that ours wins."""
    monkeypatch.setattr(caller.FlyDSLBenchmarkRequest, "benchmark", lambda *a, **k: 1e-9)


@pytest.fixture
def compiled():
    """``compiled(f, *inputs)`` → (result, generated code, decisions) of one max-autotune call."""

    def run(function, *inputs, **options):
        from torch._inductor.utils import run_and_get_code

        before = len(choices.decisions())
        fast = torch.compile(function, mode="max-autotune", **options)
        with no_grad_unless_asked(inputs):
            result, code = run_and_get_code(fast, *inputs)
        return result, "\n".join(code), choices.decisions()[before:]

    return run


def no_grad_unless_asked(inputs):
    asked = any(getattr(x, "requires_grad", False) for x in inputs)
    return contextlib.nullcontext() if asked else torch.no_grad()


def random(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, dtype=dtype)


def assert_product(result, a, b, transform=lambda x: x):
    """`result` is the float64 product within the rounding of its type and of fp32 sums."""
    exact = transform(a.double() @ b.double())
    bound = a.double().abs() @ b.double().abs()
    tolerance = exact.abs() * torch.finfo(result.dtype).eps + bound * 2**-20 + 1e-6
    assert ((result.double() - exact).abs() <= tolerance).all()
