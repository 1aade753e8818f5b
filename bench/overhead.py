"""Host cost of a warm call: `python -m bench.overhead [--quick] [--check] [--json F] [--plot F]`.

Clock: wall time of this CPU, the fastest of several repeats of a loop of calls. Every kernel is
launched through FlyDSL's own host launcher on a runtime library whose launch does nothing, so what
is left is the host's work. The launch itself, that launcher called with arguments packed before,
is measured too; the target is on what a call costs over it.

The peer is the in-tree FLYDSL of PyTorch 2.15, from the installed torch: the body of its generated
wrapper, line by line what `torch/_inductor/kernel/templates/flydsl_mm.py.jinja` emits for bf16.
Where torch is older the reason is printed.
"""

from __future__ import annotations

import importlib
import timeit
from collections.abc import Callable
from typing import Any

from .output import barh, exit_with, finish, parser

M, N, K = 128, 128, 128
TARGET_US = 2.0
Call = Callable[[], Any]
_stream = (0).__add__


def best_us(call: Call, quick: bool) -> float:
    """µs a call: the fastest of several loops."""
    number, repeat = (2_000, 9) if quick else (20_000, 15)
    call()
    return min(timeit.repeat(call, number=number, repeat=repeat)) / number * 1e6


def operands() -> tuple[Any, Any, Any]:
    """C[M, N], A[M, K] and B[K, N], column-major, bf16."""
    import torch

    a = torch.randn(M, K).bfloat16()
    b = torch.randn(N, K).bfloat16().t()
    return torch.empty(M, N).bfloat16(), a, b


def ours() -> dict[str, Call]:
    """The launch itself, our call of it on tensors, and the call that generated code makes."""
    from inductor_flydsl.arguments import launch_arguments
    from inductor_flydsl.compiler import compile_spec, load
    from inductor_flydsl.config import GemmConfig, KernelSpec
    from inductor_flydsl.devices.emulator import shim_library
    from inductor_flydsl.inductor.runtime import Kernel
    from inductor_flydsl.problem import GemmProblem

    problem = GemmProblem.dense(M, N, K)
    config = GemmConfig(tile_m=64, tile_n=64, tile_k=64, stages=2, waves_m=2, waves_n=2)
    artifact = compile_spec(KernelSpec.of(problem, config), "gfx950", "emulator")
    bound = load(artifact, shim_library()).bind(launch_arguments(problem, config))
    c, a, b = operands()
    # On a GPU the stream comes from torch's C function of one integer; a CPU build has none.
    call = bound.on_tensors(_stream, 0)
    generated = Kernel("")
    generated.launch = call
    addresses = [t.data_ptr() for t in (c, a, b)]
    launch, packed = bound.packed(*addresses, 0)
    # As with split-K and an epilogue: scratch memory of the stream, and two tensors more.
    full = load(artifact, shim_library()).bind(launch_arguments(problem, config))
    wide = full.on_tensors(_stream, 0, lambda stream: {"workspace": 0, "counters": 0})
    return {
        "launch itself": lambda: launch(packed),
        "ours, on tensors": lambda: call(c, a, b),
        "ours, from generated code": lambda: generated(c, a, b),
        "ours, split-K and epilogue": lambda: wide(c, a, b, b, a),
    }


def peer() -> Call:
    """A warm call of the in-tree backend.

    Raises:
        RuntimeError: the installed torch has none; the message says which it is.
    """
    import torch

    from inductor_flydsl.compiler import flydsl_bridge
    from inductor_flydsl.devices.emulator import shim_library

    flydsl_bridge.prepare("emulator", "gfx950")
    flydsl_bridge.use_runtime(shim_library())
    try:
        from torch._inductor.kernel.vendored_templates.flydsl import kernels
        from torch._inductor.runtime.flydsl_cache import run_cached_flydsl
    except ImportError:
        raise RuntimeError(
            f"torch {torch.__version__} has no FLYDSL backend; install 2.15 or later to compare"
        ) from None
    import flydsl.compiler as flyc

    gemm = importlib.import_module(f"{kernels.__name__}.gemm_gfx950").gemm_gfx950
    param = kernels.make_gemm_param_and_validate(
        M,
        N,
        K,
        {
            "dtype_id": kernels.GEMM_DTYPE_BF16,
            "tile_m": 64,
            "tile_n": 64,
            "tile_k": 64,
            "stages": 2,
            "m_waves": 2,
            "n_waves": 2,
            "group_m": 0,
            "use_half_tile_interleaved": False,
            "a_is_transposed": False,
            "b_is_transposed": True,
            "has_bias": False,
            "has_k_tail": kernels.infer_has_k_tail(K, 64, 2, False),
        },
    )
    output, mat1, mat2 = operands()

    def call() -> None:
        tensors = (output, mat1, mat2)
        described = tuple(flyc.from_torch_tensor(t).mark_layout_dynamic() for t in tensors)
        run_cached_flydsl(
            gemm,
            *described,
            param,
            0,
            constexpr_param=param,
            compiler=flyc.compile,
            dispatch_args=(*tensors, param, 0),
        )

    return call


def main() -> int:
    arguments = parser(__doc__).parse_args()
    calls = ours()
    reason = ""
    try:
        calls["PyTorch's in-tree FLYDSL"] = peer()
    except RuntimeError as error:
        reason = str(error)
    times = {name: best_us(call, arguments.quick) for name, call in calls.items()}
    base = times["launch itself"]
    print("clock: wall, µs a call, fastest repeat; the launch does nothing on the device")
    print(f"{'call':28} {'µs':>8} {'over the launch':>16}")
    for name, us in times.items():
        print(f"{name:28} {us:8.3f} {us - base:16.3f}")
    if reason:
        print(f"the peer is not measured: {reason}")
    unmet = [
        f"{name}: {us - base:.2f} µs over the launch itself, at most {TARGET_US:g}"
        for name, us in times.items()
        if name.startswith("ours") and us - base > TARGET_US
    ]
    if arguments.plot:
        barh(arguments.plot, "Host cost of a warm call", "µs, wall clock", times)
    results = {"clock": "wall", "us": times, "peer_missing": reason}
    return finish(arguments, results, unmet)


if __name__ == "__main__":
    exit_with(main)
