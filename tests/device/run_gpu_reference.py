"""The Inductor side on a real GPU of any make, with torch's product standing in for the kernel.

    python tests/device/run_gpu_reference.py [--only NAME]

Needs torch 2.11 or later with CUDA or ROCm and Triton; no FlyDSL and no AMD GPU. Prints one line
a check and exits 1 if any fails. Where a check must see our choice win, its benchmark is replaced
by one that reads next to nothing: that shows the way from winning to running, not a speed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ["INDUCTOR_FLYDSL_DEVICE"] = "reference"
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
# A child process shares the caches of its parent.
SCRATCH = Path(os.environ.get("FLYDSL_GPU_SCRATCH") or tempfile.mkdtemp(prefix="flydsl-gpu-"))
os.environ["INDUCTOR_FLYDSL_CACHE_DIR"] = str(SCRATCH / "store")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(SCRATCH / "inductor")
warnings.filterwarnings("ignore")

import torch  # noqa: E402
import torch._inductor.config as config  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from torch._inductor.utils import run_and_get_code  # noqa: E402

import inductor_flydsl  # noqa: E402
from inductor_flydsl.inductor import caller, choices  # noqa: E402

M, N, K = 512, 768, 1024
CALL = "flydsl_kernel_"
CHECKS = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


@contextlib.contextmanager
def ours_is_fast():
    real = caller.FlyDSLBenchmarkRequest.benchmark
    caller.FlyDSLBenchmarkRequest.benchmark = lambda *a, **k: 1e-9
    try:
        yield
    finally:
        caller.FlyDSLBenchmarkRequest.benchmark = real


def operands(m=M, n=N, k=K, dtype=torch.bfloat16):
    a = torch.randn(m, k, device="cuda", dtype=dtype)
    return a, torch.randn(n, k, device="cuda", dtype=dtype).t()


def compiled(function, *inputs, **options):
    """(result, code, decisions) of one call."""
    torch._dynamo.reset()
    before = len(choices.decisions())
    fast = torch.compile(function, mode="max-autotune", **options)
    asked = any(x.requires_grad for x in inputs)
    with contextlib.nullcontext() if asked else torch.no_grad():
        result, code = run_and_get_code(fast, *inputs)
    return result, "\n".join(code), choices.decisions()[before:]


def close(result, exact, a, b, rounding=1):
    bound = a.double().abs() @ b.double().abs()
    eps = torch.finfo(result.dtype).eps
    tolerance = exact.abs() * eps * rounding + bound * 2**-18 + 1e-5
    worst = ((result.double() - exact).abs() / tolerance).max().item()
    assert worst <= 1, f"error is {worst:.2f} of what rounding allows"


@check
def enters_the_table_beside_aten_and_triton():
    a, b = operands()
    result, _, (decision,) = compiled(lambda a, b: a @ b, a, b)
    kinds = {t.name.split("_")[0] for t in decision.times}
    assert {"mm", "triton", "flydsl"} <= kinds, kinds
    assert {t.clock for t in decision.times} == {"gpu_event"}
    assert all(t.us > 0 for t in decision.times)
    close(result, a.double() @ b.double(), a, b)
    mine = next(t.us for t in decision.times if t.name.startswith("flydsl"))
    aten = next(t.us for t in decision.times if t.name == "mm")
    return f"{len(decision.times)} rows, ours {mine:.1f} us, ATen {aten:.1f} us, {decision.chosen}"


@check
def wins_and_runs_under_cuda_graphs():
    a, b = operands()
    counters.clear()
    with ours_is_fast():
        torch._dynamo.reset()
        fast = torch.compile(lambda a, b: a @ b, mode="max-autotune")
        with torch.no_grad():
            _, code = run_and_get_code(fast, a, b)
            for _ in range(4):
                a, b = operands()
                result = fast(a, b).clone()
                close(result, a.double() @ b.double(), a, b)
    assert CALL in "\n".join(code) and choices.decisions()[-1].chosen == "FLYDSL"
    skips = counters["inductor"]["cudagraph_skips"]
    assert skips == 0, f"CUDA graphs were skipped {skips} times"
    from torch._inductor.cudagraph_trees import get_container

    manager = get_container(torch.cuda.current_device()).tree_manager
    assert manager is not None and manager.roots, "no CUDA graph was recorded"
    return "5 calls, graph recorded"


def fusion_flag():
    new = "benchmark_template_fusion"
    return new if hasattr(config, new) else "benchmark_epilogue_fusion"


def one_kernel(code, *, calls=1):
    """Ours are all that generated code runs: no pointwise kernel of Triton's, nothing of ATen's."""
    lines = [x.strip() for x in code.splitlines() if not x.strip().startswith("#")]
    found = [x for x in lines if CALL in x and " = " not in x]
    assert len(found) == calls, found
    others = [x for x in lines if re.search(r"triton_\w+\.run\(|extern_kernels\.\w+\(", x)]
    assert not others, f"other kernels run too: {others}"


def _fused(function, inputs, exact, *, benchmarked, tolerance=0.05):
    """Our winner under default settings (``benchmarked``), with its epilogue in it."""
    with ours_is_fast(), config.patch({fusion_flag(): benchmarked}):
        result, code, (decision,) = compiled(function, *inputs)
    assert decision.chosen == "FLYDSL" and decision.fused and not decision.apart, str(decision)
    one_kernel(code)
    torch.testing.assert_close(result.double(), exact, rtol=2**-6, atol=tolerance)
    return f"{len(decision.fused)} nodes fused, {decision.reason}"


def _bias_and_gelu(benchmarked):
    a, b = operands()
    bias = torch.randn(N, device="cuda", dtype=torch.bfloat16)
    exact = torch.nn.functional.gelu(a.double() @ b.double() + bias.double())

    def function(a, b, bias):
        return torch.nn.functional.gelu(torch.addmm(bias, a, b))

    return _fused(function, (a, b, bias), exact, benchmarked=benchmarked)


@check
def bias_and_gelu_fused_under_default_settings():
    return _bias_and_gelu(True)


@check
def bias_and_gelu_fused_without_benchmarked_fusion():
    return _bias_and_gelu(False)


@check
def a_row_scale_fused_under_default_settings():
    a, b = operands()
    scale = torch.randn(N, device="cuda", dtype=torch.bfloat16)
    exact = torch.relu(a.double() @ b.double()) * scale.double()
    return _fused(
        lambda a, b, s: torch.relu(a @ b) * s, (a, b, scale), exact, benchmarked=True, tolerance=0.5
    )


@check
def bmm_and_a_residual_fused_under_default_settings():
    a = torch.randn(4, 256, K, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(4, N, K, device="cuda", dtype=torch.bfloat16).mT
    r = torch.randn(4, 256, N, device="cuda", dtype=torch.bfloat16)
    exact = r.double() + torch.nn.functional.silu(a.double() @ b.double())
    return _fused(
        lambda a, b, r: r + torch.nn.functional.silu(a @ b),
        (a, b, r),
        exact,
        benchmarked=True,
        tolerance=0.5,
    )


def _layer(x, w, bias, v):
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, w, bias)) @ v.t()


def _trained(function, inputs, grad):
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    result = function(*inputs)
    return [result, *torch.autograd.grad(result, inputs, grad.to(result.dtype))]


@check
def a_pre_activation_is_stored_beside_its_gelu_in_training():
    """Forward is two kernels, the first of which stores what backward needs; default settings."""
    shapes = ((M, K), (N, K), (N,), (256, N))
    inputs = [torch.randn(*s, device="cuda", dtype=torch.bfloat16) / K**0.5 for s in shapes]
    grad = torch.randn(M, 256, device="cuda", dtype=torch.bfloat16)
    before = len(choices.decisions())
    torch._dynamo.reset()
    with ours_is_fast(), config.patch({fusion_flag(): True}):
        fast = torch.compile(_layer, mode="max-autotune")
        ours, (forward, backward) = run_and_get_code(_trained, fast, inputs, grad)
    found = choices.decisions()[before:]
    assert [d.chosen for d in found] == ["FLYDSL"] * 6, [str(d) for d in found]
    one_kernel(forward, calls=2)
    assert len(found[0].stored) == 1 and found[0].fused and not found[0].apart, str(found[0])
    exact = _trained(_layer, [t.double() for t in inputs], grad)
    for got, eager, value in zip(ours, _trained(_layer, inputs, grad), exact, strict=True):
        assert (got - value).norm() <= 2 * (eager - value).norm() + 1e-3 * value.norm()
    return f"stored too: {', '.join(found[0].stored)}"


@check
def three_results_of_a_product_are_one_kernel():
    def function(a, b):
        product = a @ b
        return product, torch.relu(product), torch.sigmoid(product)

    a, b = operands()
    with ours_is_fast(), config.patch({fusion_flag(): True}):
        results, code, (decision,) = compiled(function, a, b)
    assert len(decision.stored) == 2 and not decision.apart, str(decision)
    one_kernel(code)
    for got, value in zip(results, function(a.double(), b.double()), strict=True):
        torch.testing.assert_close(got.double(), value, rtol=2**-6, atol=0.5)
    return f"stored too: {', '.join(decision.stored)}"


@check
def a_stored_mask_fused_under_default_settings():
    a, b = operands()
    keep = torch.rand(M, N, device="cuda") < 0.5
    exact = torch.where(keep, a.double() @ b.double(), -1.0) * 2
    return _fused(
        lambda a, b, keep: torch.where(keep, a @ b, -1.0) * 2,
        (a, b, keep),
        exact,
        benchmarked=True,
        tolerance=1.0,
    )


@check
def a_causal_mask_fused_under_default_settings():
    a, b = operands()
    rows, columns = (torch.arange(x, device="cuda") for x in (M, N))
    exact = torch.where(rows[:, None] >= columns, a.double() @ b.double(), -1e4)

    def function(a, b):
        rows, columns = (torch.arange(x, device="cuda") for x in (M, N))
        return torch.where(rows[:, None] >= columns, a @ b, -1e4)

    return _fused(function, (a, b), exact, benchmarked=True, tolerance=0.5)


@check
def swiglu_is_two_kernels_under_default_settings():
    a, gate = operands()
    up = torch.randn(N, K, device="cuda", dtype=torch.bfloat16).t()
    exact = torch.nn.functional.silu(a.double() @ gate.double()) * (a.double() @ up.double())
    with ours_is_fast():
        result, code, found = compiled(
            lambda a, g, u: torch.nn.functional.silu(a @ g) * (a @ u), a, gate, up
        )
    assert [x.chosen for x in found] == ["FLYDSL"] * 2, found
    one_kernel(code, calls=2)
    bound = exact.abs() * 2**-5 + 8.0
    assert bool(((result.double() - exact).abs() <= bound).all())
    return "; ".join(f"{len(x.fused)} nodes fused" for x in found)


@check
def baddbmm_enters_the_table_and_is_right():
    a = torch.randn(4, 256, K, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(4, K, N, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(4, 1, N, device="cuda", dtype=torch.bfloat16)
    with ours_is_fast():
        result, code, (decision,) = compiled(torch.baddbmm, bias, a, b)
    assert decision.chosen == "FLYDSL" and CALL in code
    exact = bias.double() + a.double() @ b.double()
    torch.testing.assert_close(result.double(), exact, rtol=2**-6, atol=0.5)
    return f"{len(decision.times)} rows"


@check
def a_real_contest_with_an_epilogue_is_decided_and_told():
    """No benchmark is replaced: whoever wins, the numbers are right and the decision says why."""
    a, b = operands()
    bias = torch.randn(N, device="cuda", dtype=torch.bfloat16)
    result, code, (decision,) = compiled(
        lambda a, b, c: torch.nn.functional.gelu(torch.addmm(c, a, b)), a, b, bias
    )
    assert (decision.chosen == "FLYDSL") == (CALL in code), str(decision)
    exact = torch.nn.functional.gelu(a.double() @ b.double() + bias.double())
    torch.testing.assert_close(result.double(), exact, rtol=2**-6, atol=0.05)
    return f"{decision.chosen}: {decision.reason}"


@check
def what_cannot_be_fused_is_told():
    a, b = operands()
    with ours_is_fast():
        result, code, (decision,) = compiled(lambda a, b: torch.cos(a @ b), a, b)
    assert decision.apart and "operation cos has no kernel" in decision.apart[0], str(decision)
    assert result.isfinite().all()
    kept = CALL in code
    return f"{decision.apart[0]}; {'ours and a pointwise kernel' if kept else 'Triton, fused'}"


@check
def autotunes_in_a_subprocess():
    a, b = operands()
    with config.patch(autotune_in_subproc=True):
        result, _, (decision,) = compiled(lambda a, b: a @ b, a, b)
    times = {t.name: t.us for t in decision.times}
    mine = next(us for name, us in times.items() if name.startswith("flydsl"))
    assert 0 < mine < 1e5, f"ours read {mine} us in the tuning process"
    close(result, a.double() @ b.double(), a, b)
    return f"ours {mine:.1f} us in the tuning process"


@check
def views_and_one_buffer_twice():
    x = torch.randn(M, K + 8, device="cuda", dtype=torch.bfloat16)
    result, _, (decision,) = compiled(lambda x: x[:, 8:] @ x[:, :-8].t(), x)
    (mine,) = [t for t in decision.times if t.name.startswith("flydsl")]
    assert mine.us < 1e6
    a, b = x[:, 8:], x[:, :-8].t()
    close(result, a.double() @ b.double(), a, b)
    return f"{len(decision.times)} rows, ours {mine.us:.1f} us"


@check
def an_input_that_is_misaligned_later():
    a, b = operands()
    with ours_is_fast(), torch.no_grad():
        torch._dynamo.reset()
        fast = torch.compile(lambda a, b: a @ b, mode="max-autotune-no-cudagraphs")
        fast(a, b)
        storage = torch.randn(M * K + 8, device="cuda", dtype=torch.bfloat16)
        moved = storage.as_strided((M, K), (K, 1), 1)
        close(fast(moved, b), moved.double() @ b.double(), moved, b)
    return "Inductor copies it"


@check
def forward_and_backward():
    a = torch.randn(M, K, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    w = torch.randn(N, K, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    before = len(choices.decisions())
    torch._dynamo.reset()
    with ours_is_fast():
        fast = torch.compile(torch.nn.functional.linear, mode="max-autotune")
        result = fast(a, w)
        grad = torch.randn_like(result)
        result.backward(grad)
    found = sorted(d.problem.layout.value for d in choices.decisions()[before:])
    assert found == ["NN", "NT", "TN"], found
    with torch.no_grad():
        close(w.grad, grad.t().double() @ a.double(), grad.t(), a)
        close(a.grad, grad.double() @ w.double(), grad, w)
    return "NT forward, NN and TN backward"


@check
def fp32_output():
    a, b = operands()
    with ours_is_fast():
        result, _, decisions = compiled(lambda a, b: torch.mm(a, b, out_dtype=torch.float32), a, b)
    assert result.dtype == torch.float32
    close(result, a.double() @ b.double(), a, b)
    return ", ".join(f"{d.chosen} ({d.problem})" for d in decisions) or "not lowered as a GEMM"


@check
def an_error_in_our_benchmark_loses():
    from inductor_flydsl.inductor import runtime

    real = runtime.load

    def broken(launch):
        raise KeyError("injected")

    runtime.load = broken
    runtime.kernel.cache_clear()
    try:
        a, b = operands()
        result, code, (decision,) = compiled(lambda a, b: a @ b, a, b)
    finally:
        runtime.load = real
        runtime.kernel.cache_clear()
    assert decision.chosen != "FLYDSL" and CALL not in code
    close(result, a.double() @ b.double(), a, b)
    return f"{decision.chosen} instead"


@check
def dynamic_rows_are_one_kernel():
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("inductor")
    before = len(choices.decisions())
    torch._dynamo.reset()
    with ours_is_fast(), torch.no_grad(), config.patch(max_autotune=True):
        fast = torch.compile(lambda a, b: torch.relu(a @ b), backend=counter)
        for m in (64, 7, 127, 300, 512):
            a, b = operands(m=m)
            torch._dynamo.mark_dynamic(a, 0)
            result = fast(a, b)
            exact = torch.relu(a.double() @ b.double())
            close(result, exact, a, b)
    decisions = choices.decisions()[before:]
    assert counter.frame_count == 1 and len(decisions) == 1, [str(d) for d in decisions]
    assert decisions[0].chosen == "FLYDSL" and decisions[0].dynamic == ("m",), str(decisions[0])
    return f"5 sizes, 1 graph: {decisions[0].subject}"


CHILD = """
import json, sys
sys.argv = ["child"]
import runpy
module = runpy.run_path({path!r}, run_name="child")
torch, config, counters = module["torch"], module["config"], module["counters"]
module["settle"](force_disable_caches=False)
torch.manual_seed(0)
a, b = module["operands"]()
with module["ours_is_fast"](), torch.no_grad():
    c = torch.compile(lambda a, b: a @ b, mode="max-autotune")(a, b)
module["close"](c, a.double() @ b.double(), a, b)
from inductor_flydsl.inductor import runtime
from inductor_flydsl import tuner
print(json.dumps([counters["inductor"]["fxgraph_cache_hit"], tuner.stats().measured,
                  runtime.kernel.cache_info().currsize]))
"""


@check
def a_second_process_hits_the_fx_graph_cache():
    found = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", CHILD.format(path=__file__)],
            env={**os.environ, "FLYDSL_GPU_SCRATCH": str(SCRATCH)},
            capture_output=True,
            text=True,
            check=False,
            timeout=170,
        )
        assert done.returncode == 0, done.stderr[-1500:]
        found.append(json.loads(done.stdout.splitlines()[-1]))
    assert found[1] == [1, 0, 1], found
    return f"hit, measured, kernels: {found}"


def settle(**more):
    """The configuration that every check runs under."""
    inductor_flydsl.register()
    config.max_autotune_gemm_backends = "ATEN,TRITON,FLYDSL"
    config.flydsl_enable_autotuning = True
    for name, value in {"force_disable_caches": True, **more}.items():
        setattr(config, name, value)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", choices=sorted(CHECKS))
    wanted = parser.parse_args().only or list(CHECKS)
    if not torch.cuda.is_available():
        print("no GPU that torch can use", file=sys.stderr)
        return 2
    settle()
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, device reference")
    failed = 0
    for name in wanted:
        start = time.perf_counter()
        try:
            verdict, detail = "PASS", CHECKS[name]() or ""
        except Exception as error:
            verdict, detail = "FAIL", f"{type(error).__name__}: {error}"
            traceback.print_exc()
            failed += 1
        print(f"{verdict}  {name}  ({time.perf_counter() - start:.1f} s)  {detail}", flush=True)
    print(f"{len(wanted) - failed} of {len(wanted)} passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
