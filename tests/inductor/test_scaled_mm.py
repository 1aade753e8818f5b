"""`scaled_mm` as users write it, compiled: MX, tensor-wise and row-wise FP8."""

import pytest
import torch
import torch._inductor.config as inductor_config
from torch.nn import functional

from inductor_flydsl import microscaling
from inductor_flydsl.dtypes import DType
from inductor_flydsl.inductor import choices
from inductor_flydsl.scaling import ScaleLayout, Scales

pytestmark = pytest.mark.skipif(
    not hasattr(functional, "scaled_mm"), reason=f"torch {torch.__version__} has no scaled_mm"
)
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
FP4 = getattr(torch, "float4_e2m1fn_x2", None)


def elements(rows, k, dtype, generator):
    """Random [rows, K] of a type: FP4 is any code, two a byte."""
    if dtype is FP4:
        return torch.randint(0, 256, (rows, k // 2), dtype=torch.uint8, generator=generator).view(
            dtype
        )
    return torch.randn(rows, k, generator=generator).to(dtype)


def block_scales(rows, k, layout, generator):
    scales = Scales.contiguous(k, layout)
    count = scales.bytes(rows, k)
    codes = torch.randint(124, 131, (count,), dtype=torch.uint8, generator=generator)
    shape = (rows, k // 32) if layout is ScaleLayout.PLAIN else (count,)
    return codes.view(torch.float8_e8m0fnu).view(shape), scales


def exact(a, b_rows, of_a, of_b):
    """float64 A·Bᵀ of [rows, K] operands with their (scales, how they lie)."""
    wide = []
    for x, (held, scales) in ((a, of_a), (b_rows, of_b)):
        dtype = DType.parse(str(x.dtype))
        k = x.shape[1] * dtype.packed
        factors = microscaling.decode_scales(held, scales, x.shape[0], k)
        wide.append(microscaling.decode(x, dtype, 1) * factors)
    return wide[0] @ wide[1].mT


def assert_close(result, expected):
    """Within a unit in the last place, and fp32 sums in any order."""
    eps = torch.finfo(result.dtype).eps
    slack = expected.abs().max() * 2**-18
    assert ((result.double() - expected).abs() <= expected.abs() * eps + slack).all()


@pytest.fixture
def mx(compiled, monkeypatch):
    """``mx(a, b_rows, of_a, of_b, **options)`` → (result, code, decisions) of a compiled call."""

    def run(a, b_rows, of_a, of_b, then=lambda x: x, **options):
        recipe = functional.ScalingType.BlockWise1x32
        swizzles = [
            functional.SwizzleType.NO_SWIZZLE
            if scales.layout is ScaleLayout.PLAIN
            else functional.SwizzleType.SWIZZLE_32_4_4
            for _, scales in (of_a, of_b)
        ]

        def product(a, b, scale_a, scale_b):
            return then(
                functional.scaled_mm(a, b, scale_a, recipe, scale_b, recipe, *swizzles, **options)
            )

        return compiled(product, a, b_rows.t(), of_a[0], of_b[0])

    return run


@pytest.mark.parametrize("device", ["reference", "emulator"])
@pytest.mark.parametrize("layout", list(ScaleLayout))
@pytest.mark.parametrize("dtype", [E4M3, FP4], ids=str)
def test_mx(mx, monkeypatch, device, layout, dtype):
    monkeypatch.setenv("INDUCTOR_FLYDSL_DEVICE", device)
    generator = torch.Generator().manual_seed(1)
    m, n, k = 40, 72, 256
    a, b = (elements(rows, k, dtype, generator) for rows in (m, n))
    of_a, of_b = (block_scales(rows, k, layout, generator) for rows in (m, n))
    result, code, decisions = mx(a, b, of_a, of_b)
    assert [d.chosen for d in decisions] == ["FLYDSL"]
    assert "flydsl_kernel" in code
    assert result.dtype is torch.bfloat16
    assert_close(result, exact(a, b, of_a, of_b))


def test_rows_of_an_operand_and_of_its_scales_are_one_dynamic_extent(monkeypatch):
    """They reach the compiler as sizes of two inputs, which nothing but the op holds together."""
    monkeypatch.setenv("INDUCTOR_FLYDSL_DEVICE", "emulator")
    generator = torch.Generator().manual_seed(5)
    n, k, plain = 48, 128, ScaleLayout.PLAIN
    b, of_b = elements(n, k, E4M3, generator), block_scales(n, k, plain, generator)
    recipe, swizzle = functional.ScalingType.BlockWise1x32, functional.SwizzleType.NO_SWIZZLE

    def product(a, b, scale_a, scale_b):
        recipes = (scale_a, recipe, scale_b, recipe)
        return functional.scaled_mm(a, b, *recipes, swizzle, swizzle)

    fast = torch.compile(product, mode="max-autotune")
    with inductor_config.patch(flydsl_enable_autotuning=False):
        for m in (32, 17, 100):
            a, of_a = elements(m, k, E4M3, generator), block_scales(m, k, plain, generator)
            result = fast(a, b.t(), of_a[0], of_b[0])
            assert_close(result, exact(a, b, of_a, of_b))
    assert [d.chosen for d in choices.decisions()] == ["FLYDSL"] * 2


@pytest.mark.parametrize("layout", list(ScaleLayout))
@pytest.mark.parametrize("sizes", [(0, 48, 128), (40, 0, 128), (40, 48, 0)])
def test_empty_mx_operands_give_what_eager_gives(mx, sizes, layout):
    m, n, k = sizes
    generator = torch.Generator().manual_seed(1)
    a, b = (elements(rows, k, E4M3, generator) for rows in (m, n))
    of_a, of_b = (block_scales(rows, k, layout, generator) for rows in (m, n))
    bias = torch.randn(n, generator=generator).bfloat16()
    # Eager PyTorch drops the bias too where K is 0.
    result, code, (decision,) = mx(a, b, of_a, of_b, bias=bias)
    assert (result.shape, result.dtype) == ((m, n), torch.bfloat16)
    assert not result.any() and "flydsl_kernel" not in code
    assert "an operand is empty" in decision.reason


def test_k_that_differs_is_an_error_in_words(mx):
    generator = torch.Generator().manual_seed(1)
    a, b = elements(40, 256, E4M3, generator), elements(48, 128, E4M3, generator)
    of_a, of_b = (block_scales(rows, 256, ScaleLayout.PLAIN, generator) for rows in (40, 48))
    with pytest.raises(Exception, match="cannot be multiplied|contraction|inner dim") as caught:
        mx(a, b, of_a, of_b)
    assert "256" in str(caught.value) and "128" in str(caught.value)


def test_bias_and_relu_join_an_mx_kernel(mx, monkeypatch):
    monkeypatch.setenv("INDUCTOR_FLYDSL_DEVICE", "emulator")
    generator = torch.Generator().manual_seed(2)
    m, n, k = 33, 48, 160
    a, b = (elements(rows, k, E4M3, generator) for rows in (m, n))
    plain = ScaleLayout.PLAIN
    of_a, of_b = (block_scales(rows, k, plain, generator) for rows in (m, n))
    bias = torch.randn(n, generator=generator).bfloat16()
    result, code, decisions = mx(
        a, b, of_a, of_b, then=torch.relu, bias=bias, output_dtype=torch.float32
    )
    assert [d.chosen for d in decisions] == ["FLYDSL"]
    assert code.count("flydsl_kernel_0(") == 1 and "cpp_fused" not in code
    assert result.dtype is torch.float32
    assert_close(result, (exact(a, b, of_a, of_b) + bias.double()).relu())


def factors(kind, m, n, generator):
    """fp32 scales of A and B: one each, or one a row of A and a column of B."""
    shapes = ((), ()) if kind == "tensor" else ((m, 1), (1, n))
    return [torch.rand(shape, generator=generator) + 0.5 for shape in shapes]


@pytest.mark.parametrize("kind", ["tensor", "row"])
@pytest.mark.parametrize("form", ["v1", "v2"])
@pytest.mark.parametrize("types", [(E4M3, E4M3), (E5M2, E4M3)], ids=str)
def test_fp8_with_factors(compiled, monkeypatch, kind, form, types):
    monkeypatch.setenv("INDUCTOR_FLYDSL_DEVICE", "emulator")
    generator = torch.Generator().manual_seed(3)
    m, n, k = 48, 80, 144
    a, b = (elements(rows, k, dtype, generator) for rows, dtype in zip((m, n), types, strict=True))
    scale_a, scale_b = factors(kind, m, n, generator)
    bias = torch.randn(n, generator=generator).bfloat16()
    recipe = functional.ScalingType.TensorWise if kind == "tensor" else None
    recipe = recipe or functional.ScalingType.RowWise

    def product(a, b, scale_a, scale_b, bias):
        if form == "v1":
            options = {"bias": bias, "out_dtype": torch.bfloat16}
            result = torch._scaled_mm(a, b, scale_a, scale_b, **options)
        else:
            result = functional.scaled_mm(a, b, scale_a, recipe, scale_b, recipe, bias=bias)
        return torch.relu(result)

    result, code, decisions = compiled(product, a, b.t(), scale_a, scale_b, bias)
    assert [d.chosen for d in decisions] == ["FLYDSL"]
    assert "cpp_fused" not in code
    wide = a.double() @ b.double().t() * scale_a.double() * scale_b.double()
    assert_close(result, (wide + bias.double()).relu())


@pytest.mark.parametrize("form", ["v1", "v2"])
def test_operands_of_other_layouts(compiled, monkeypatch, form):
    monkeypatch.setenv("INDUCTOR_FLYDSL_DEVICE", "emulator")
    generator = torch.Generator().manual_seed(4)
    a = elements(128, 64, E4M3, generator).t()
    b = elements(128, 96, E4M3, generator)
    scale_a, scale_b = factors("tensor", 64, 96, generator)
    recipe = functional.ScalingType.TensorWise

    def product(a, b, scale_a, scale_b):
        if form == "v1":
            return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16)
        return functional.scaled_mm(a, b, scale_a, recipe, scale_b, recipe)

    result, _, decisions = compiled(product, a, b, scale_a, scale_b)
    assert [d.chosen for d in decisions] == ["FLYDSL"]
    assert_close(result, a.double() @ b.double() * scale_a.double() * scale_b.double())


@pytest.mark.parametrize("swizzled", [False, True])
def test_what_torch_quantises_itself(mx, monkeypatch, swizzled):
    pytest.importorskip("expecttest", reason="torch's own quantisers are in its tests' package")
    from torch.testing._internal import common_quantized

    monkeypatch.setenv("INDUCTOR_FLYDSL_DEVICE", "emulator")
    generator = torch.Generator().manual_seed(5)
    m, n, k = 130, 40, 96
    wide = [torch.randn(rows, k, generator=generator) for rows in (m, n)]
    made = [common_quantized.to_mxfp(x.bfloat16()) for x in wide]
    layout = ScaleLayout.SWIZZLED if swizzled else ScaleLayout.PLAIN
    held = []
    for scale, _ in made:
        scale = common_quantized.to_blocked(scale) if swizzled else scale
        held.append((scale.view(torch.float8_e8m0fnu), Scales.contiguous(k, layout)))
    a, b = (x for _, x in made)
    result, _, decisions = mx(a, b, *held, output_dtype=torch.float32)
    assert [d.chosen for d in decisions] == ["FLYDSL"]
    product = wide[0].double() @ wide[1].double().t()
    # Three bits of mantissa and a shared exponent: a few per cent of the product's size.
    assert (result.double() - product).norm() < 0.05 * product.norm()
    assert_close(result, exact(a, b, *held))


def test_v1_takes_e8m0_scales_as_rocm_does(compiled, monkeypatch):
    monkeypatch.setenv("INDUCTOR_FLYDSL_DEVICE", "emulator")
    generator = torch.Generator().manual_seed(6)
    a, b = (elements(128, 256, E4M3, generator) for _ in range(2))
    of_a, of_b = (block_scales(128, 256, ScaleLayout.PLAIN, generator) for _ in range(2))

    def product(a, b, scale_a, scale_b):
        return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16)

    result, _, decisions = compiled(product, a, b.t(), of_a[0], of_b[0])
    assert [d.chosen for d in decisions] == ["FLYDSL"]
    assert_close(result, exact(a, b, of_a, of_b))


def test_recipes_that_are_not_ours_stay_with_inductor(compiled):
    generator = torch.Generator().manual_seed(7)
    a, b = (elements(rows, 64, E4M3, generator) for rows in (32, 48))
    scale = torch.ones((), dtype=torch.float32)

    def product(a, b, scale):
        return torch._scaled_mm(a, b, scale, scale, out_dtype=torch.float32)

    import inductor_flydsl

    with inductor_flydsl.disabled():
        result, _, decisions = compiled(product, a, b.t(), scale)
    assert not decisions
    assert_close(result, a.double() @ b.double().t())
