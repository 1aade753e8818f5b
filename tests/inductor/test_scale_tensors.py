"""E8M0 scales that a graph on CPU tensors copies, joins or makes itself."""

import pytest
import torch
from torch.nn import functional

from inductor_flydsl.numerics import product

E8M0 = torch.float8_e8m0fnu
pytestmark = [
    pytest.mark.skipif(
        not hasattr(functional, "ScalingType"),
        reason=f"torch {torch.__version__} has no recipes of scales",
    ),
    pytest.mark.usefixtures("real_kernels"),
]


def scaled_mm(a, b_rows, scale_a, scale_b):
    mx = functional.ScalingType.BlockWise1x32
    return functional.scaled_mm(
        a, b_rows.t(), scale_a, mx, scale_b, mx, output_dtype=torch.bfloat16
    )


def quantized(x):
    """FP8 elements and their scales, as an MX linear layer makes them."""
    blocks = x.reshape(x.shape[0], -1, 32)
    exponent = (torch.floor(torch.log2(blocks.abs().amax(-1))) - 8).clamp(-127, 127)
    values = (blocks * torch.exp2(-exponent)[..., None]).to(torch.float8_e4m3fn)
    return values.reshape(x.shape), (exponent + 127).to(torch.uint8).view(E8M0)


def decoded(values, scales):
    exponents = scales.view(torch.uint8).double() - 127
    return values.double() * torch.exp2(exponents).repeat_interleave(32, -1)


def assert_close(result, exact):
    slack = exact.abs().max() * 2**-18
    assert ((result.double() - exact).abs() <= exact.abs() * 2**-8 + slack).all()


def test_scales_made_in_the_graph(compiled):
    weights, of_weights = quantized(torch.randn(48, 64))

    def function(x):
        values, scales = quantized(x)
        return scaled_mm(values, weights, scales, of_weights), values, scales

    (result, values, scales), _, (decision,) = compiled(function, torch.randn(33, 64))
    assert decision.chosen == "FLYDSL", decision.reason
    assert_close(result, product(decoded(values, scales), decoded(weights, of_weights).mT, None))


def test_scales_with_gaps_and_parts_of_scales(compiled):
    a, b = (torch.randn(n, 64).to(torch.float8_e4m3fn) for n in (34, 48))
    wide, first, rest = (
        torch.randint(120, 130, sizes, dtype=torch.uint8).view(E8M0)
        for sizes in ((34, 4), (20, 2), (28, 2))
    )

    def function(a, b, wide, first, rest):
        return scaled_mm(a, b, wide[:, ::2], torch.cat([first, rest]))

    result, _, (decision,) = compiled(function, a, b, wide, first, rest)
    assert decision.chosen == "FLYDSL", decision.reason
    joined = torch.cat([first.view(torch.uint8), rest.view(torch.uint8)]).view(E8M0)
    kept = wide.view(torch.uint8)[:, ::2].contiguous().view(E8M0)
    assert_close(result, product(decoded(a, kept), decoded(b, joined).mT, None))


def test_every_code_is_copied_as_it_is(compiled):
    every = torch.arange(256, dtype=torch.uint8).view(16, 16).view(E8M0)
    a = torch.randn(16, 16)

    def function(every, a):
        return every.t().contiguous(), a @ a

    (result, _), *_ = compiled(function, every, a)
    assert torch.equal(result.view(torch.uint8), every.view(torch.uint8).t())


def test_swizzled_scales_at_an_odd_address_are_refused_with_the_way_out(compiled):
    a, b = (torch.randn(n, 64).to(torch.float8_e4m3fn) for n in (64, 48))
    held = torch.randint(120, 130, (513,), dtype=torch.uint8).view(E8M0)
    mx, swizzled = (functional.ScalingType.BlockWise1x32, functional.SwizzleType.SWIZZLE_32_4_4)

    def function(a, b_rows, held):
        own = (held[1:], mx, held[:512], mx, swizzled, swizzled)
        return functional.scaled_mm(a, b_rows.t(), *own, output_dtype=torch.bfloat16)

    with pytest.raises(RuntimeError, match="multiple of 4: clone"):
        compiled(function, a, b, held)
