"""Real inputs in the form that users have them: quantised by torchao, an independent library.

Its own dequantisation is the reference, so that nothing of ours reads the format twice.
"""

import pytest
import torch
from torch.nn import functional

mx_tensor = pytest.importorskip(
    "torchao.prototype.mx_formats.mx_tensor", reason="pip install torchao, an extra of the tests"
)
pytestmark = pytest.mark.skipif(
    not hasattr(functional, "scaled_mm"), reason=f"torch {torch.__version__} has no scaled_mm"
)
FP4 = getattr(torch, "float4_e2m1fn_x2", None)
BLOCK = 32


def quantised(x, dtype, swizzled):
    """(elements, E8M0 scales, the float64 values that they stand for)."""
    scales, data = mx_tensor.to_mx(x, dtype, BLOCK, is_swizzled_scales=swizzled)
    plain, _ = mx_tensor.to_mx(x, dtype, BLOCK)
    # Through bfloat16 nothing is lost: 4 bits of mantissa at most, times a power of two.
    values = mx_tensor.to_dtype(data, plain, dtype, BLOCK, torch.bfloat16).double()
    data = data.view(FP4) if dtype is FP4 else data
    return data, scales.view(torch.float8_e8m0fnu), values


@pytest.mark.parametrize("swizzled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, FP4], ids=str)
def test_a_layer_in_what_torchao_makes(compiled, real_kernels, dtype, swizzled):
    generator = torch.Generator().manual_seed(1)
    m, n, k = 130, 56, 192
    # Rows and blocks of very different sizes, as activations have them.
    sizes = torch.exp2(torch.randint(-12, 12, (m, k // BLOCK), generator=generator).float())
    x = torch.randn(m, k, generator=generator) * sizes.repeat_interleave(BLOCK, 1)
    w = torch.randn(n, k, generator=generator) / k**0.5
    x[7] = 0
    (a, of_a, wide_a), (b, of_b, wide_b) = (
        quantised(t.bfloat16(), dtype, swizzled) for t in (x, w)
    )
    recipe = functional.ScalingType.BlockWise1x32
    swizzle = functional.SwizzleType(int(swizzled))

    def layer(a, b, of_a, of_b):
        scales = (of_a, recipe, of_b, recipe, swizzle, swizzle)
        return functional.scaled_mm(a, b.t(), *scales, output_dtype=torch.float32)

    result, _, decisions = compiled(layer, a, b, of_a, of_b)
    assert [d.chosen for d in decisions] == ["FLYDSL"]
    exact = wide_a @ wide_b.t()
    bound = wide_a.abs() @ wide_b.abs().t()
    assert ((result.double() - exact).abs() <= bound * 2**-18).all()
    assert exact[7].abs().max() == 0 and (exact.abs().amax(1) > 0).sum() == m - 1
    # What is left is what eight, or four, bits hold of the numbers.
    wide = x.double() @ w.double().t()
    assert (result.double() - wide).norm() < (0.2 if dtype is FP4 else 0.12) * wide.norm()
