"""PyTorch's own vendored FlyDSL GEMM on the emulator: it reads LDS before its loads have landed.

The half-tile interleaved kernel starts its loop behind a barrier before which no wave has waited
for its loads: what other waves read first may still be on its way. Latency hides it on hardware.
"""

from __future__ import annotations

import importlib
import importlib.util
import struct

import pytest

torch = pytest.importorskip("torch")

from inductor_flydsl import emulator  # noqa: E402

MODULE = "torch._inductor.kernel.vendored_templates.flydsl.kernels.gemm_gfx950"
M, N, K = 256, 256, 512


def vendored():
    """The module, or a skip that says what is missing."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 15):
        pytest.skip(f"torch {torch.__version__} has no vendored FlyDSL GEMM; needs 2.15")
    if importlib.util.find_spec("flydsl") is None:
        pytest.skip("flydsl is not installed")
    from inductor_flydsl.compiler import flydsl_bridge

    flydsl_bridge.prepare("emulator", "gfx950")
    return importlib.import_module(MODULE)


def compiled_text(module, half_tile_interleaved: bool, tensors) -> str:
    import flydsl.expr as fx

    from inductor_flydsl.compiler import flydsl_bridge

    param = module.make_gemm_param_and_validate(M, N, K, {
        "dtype_id": module.GEMM_DTYPE_BF16, "tile_m": 256, "tile_n": 256, "tile_k": 64,
        "stages": 2, "m_waves": 2, "n_waves": 4,
        "use_half_tile_interleaved": half_tile_interleaved, "has_k_tail": False,
    })  # fmt: skip
    assert param is not None
    return flydsl_bridge.compile_text(module.gemm_gfx950, *tensors, param, fx.Stream(None))


def arguments(kernel: emulator.Kernel, tensors, numbers) -> list[object]:
    """Each tensor is an address and a packed layout: extents as int32, its stride as int64."""
    out: list[object] = []
    left = [*tensors, tensors[0]]  # the last is the bias, unused here
    values = list(numbers)
    visible = [arg for arg in kernel.args if not arg.kind.startswith("hidden_")]
    for arg in visible:
        if arg.size == 8:
            tensor = left.pop(0)
            out.append(tensor)
        elif arg.size == 16:
            leading = max(tensor.stride())
            out.append(struct.pack("<iiq", *tensor.shape, leading))
        else:
            out.append(values.pop(0))
    return out


def check(half_tile_interleaved: bool) -> tuple[emulator.RunResult, float]:
    """(what the run found, largest relative error) of one workgroup's tile."""
    module = vendored()
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(s, K, generator=generator).bfloat16() for s in (M, N))
    out = torch.full((M, N), torch.nan, dtype=torch.bfloat16)
    tensors = (out, a, b.t())
    kernel = emulator.load_program(compiled_text(module, half_tile_interleaved, tensors)).kernel()
    block = kernel.reqd_workgroup_size
    assert block is not None
    result = emulator.run(kernel, 1, block, arguments(kernel, tensors, (M, N, K, K, K)))
    exact = a.double() @ b.double().t()
    error = (out.double() - exact).abs().nan_to_num(nan=torch.inf).max() / exact.abs().max()
    return result, float(error)


def test_the_prologue_of_the_half_tile_interleaved_kernel_reads_too_early() -> None:
    result, error = check(half_tile_interleaved=True)
    races = [f for f in result.findings if f.kind == "lds-race" and f.text.startswith("ds_read")]
    assert races
    for finding in races:
        assert "waited for its access only behind the barrier, not before it" in finding.message
        assert finding.source.startswith("gemm_gfx950.py:")
    # Waves that go in step give right numbers: they alone don't show the fault.
    assert error < 0.01


def test_the_full_tile_kernel_is_clean() -> None:
    result, error = check(half_tile_interleaved=False)
    assert not result.findings and error < 0.01
