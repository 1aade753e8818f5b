"""`scaled_grouped_mm` as users write it, compiled: MX and row-wise FP8, in every form, and v1."""

import pytest
import torch
import torch._inductor.config as inductor_config
from torch.nn import functional

import inductor_flydsl
from inductor_flydsl import microscaling
from inductor_flydsl.dtypes import DType
from inductor_flydsl.inductor import choices
from inductor_flydsl.numerics import product
from inductor_flydsl.scaling import ScaleLayout, Scales

pytestmark = [
    pytest.mark.skipif(
        not hasattr(functional, "scaled_grouped_mm"),
        reason=f"torch {torch.__version__} has no scaled_grouped_mm",
    ),
    pytest.mark.usefixtures("real_kernels"),
]
E4M3 = torch.float8_e4m3fn
FP4 = getattr(torch, "float4_e2m1fn_x2", None)
ENDS = torch.tensor([0, 5, 6, 70], dtype=torch.int32)
SUMS = torch.tensor([0, 32, 96, 256], dtype=torch.int32)
M, N, K, G = 70, 48, 128, 4


def elements(*sizes, dtype=E4M3, seed=1):
    """Random elements; FP4 is any code, two a byte of the last size."""
    generator = torch.Generator().manual_seed(seed + len(sizes))
    if dtype is FP4:
        half = (*sizes[:-1], sizes[-1] // 2)
        return torch.randint(0, 256, half, dtype=torch.uint8, generator=generator).view(dtype)
    return torch.randn(sizes, generator=generator).to(dtype)


def codes(*sizes, seed=3):
    generator = torch.Generator().manual_seed(seed + len(sizes))
    made = torch.randint(124, 131, sizes, dtype=torch.uint8, generator=generator)
    return made.view(torch.float8_e8m0fnu)


def values(x):
    """float64 elements of [..., K]."""
    return microscaling.decode(x, DType.parse(str(x.dtype)), -1)


def factors(scale):
    """float64 [..., K] of plain scales [..., K/32]."""
    exponents = scale.view(torch.uint8).double() - 127
    return torch.exp2(exponents).repeat_interleave(32, -1)


def blocked(scale):
    """Plain scales [rows, blocks] as torch swizzles them, in one dimension."""
    rows, blocks = scale.shape
    scales = Scales.contiguous(32 * blocks, ScaleLayout.SWIZZLED)
    held = torch.zeros(scales.bytes(rows, 32 * blocks), dtype=torch.uint8)
    at = microscaling.scale_offsets(scales, rows, blocks)
    held[at.flatten()] = scale.view(torch.uint8).flatten()
    return held.view(torch.float8_e8m0fnu)


def pieces(ends):
    ends = ends.tolist()
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def function_of(kind, swizzle=None, **options):
    recipe = getattr(functional.ScalingType, kind)
    swizzle = getattr(functional.SwizzleType, swizzle) if swizzle else None

    def function(a, b_rows, scale_a, scale_b, *offsets):
        offs = {"offs": offsets[0]} if offsets else {}
        return functional.scaled_grouped_mm(
            a, b_rows.mT, scale_a, recipe, scale_b, recipe, swizzle, swizzle, **offs, **options
        )

    return function


def assert_close(result, exact):
    slack = exact.abs().max() * 2**-18
    assert ((result.double() - exact).abs() <= exact.abs() * 2**-8 + slack).all()


def assert_ours(decisions, groups):
    (decision,) = decisions
    assert decision.chosen == "FLYDSL", decision.reason
    assert str(decision.problem.grouping or "") == groups


@pytest.mark.parametrize("device", ["reference", "emulator"])
@pytest.mark.parametrize("swizzle", ["NO_SWIZZLE", "SWIZZLE_32_4_4"])
@pytest.mark.parametrize("dtype", [E4M3, FP4], ids=str)
def test_mx_rows(compiled, monkeypatch, dtype, swizzle, device):
    monkeypatch.setenv("INDUCTOR_FLYDSL_DEVICE", device)
    a, b = elements(M, K, dtype=dtype), elements(G, N, K, dtype=dtype)
    scale_a, scale_b = codes(M, K // 32), codes(G, N, K // 32)
    exact = product(values(a) * factors(scale_a), (values(b) * factors(scale_b)).mT, ENDS)
    if swizzle != "NO_SWIZZLE":
        own = [blocked(scale_a[piece]) for piece in pieces(ENDS) if piece.stop > piece.start]
        scale_a = torch.cat(own).view(-1, K // 32)
        scale_b = torch.stack([blocked(scale) for scale in scale_b])
    function = function_of("BlockWise1x32", swizzle)
    result, code, decisions = compiled(function, a, b, scale_a, scale_b, ENDS)
    assert_ours(decisions, "m4")
    assert "flydsl_kernel" in code and result.dtype is torch.bfloat16
    assert_close(result, exact)


@pytest.mark.parametrize("device", ["reference", "emulator"])
@pytest.mark.parametrize("swizzle", ["NO_SWIZZLE", "SWIZZLE_32_4_4"])
@pytest.mark.parametrize("dtype", [E4M3, FP4], ids=str)
def test_mx_sums(compiled, monkeypatch, dtype, swizzle, device):
    monkeypatch.setenv("INDUCTOR_FLYDSL_DEVICE", device)
    a, b = elements(40, 256, dtype=dtype), elements(N, 256, dtype=dtype)
    scale_a, scale_b = codes(40, 8), codes(N, 8)
    exact = product(values(a) * factors(scale_a), (values(b) * factors(scale_b)).mT, SUMS)
    if swizzle != "NO_SWIZZLE":
        of_blocks = [slice(p.start // 32, p.stop // 32) for p in pieces(SUMS) if p.stop > p.start]
        scale_a, scale_b = (
            torch.cat([blocked(scale[:, piece]) for piece in of_blocks]).view(128, -1)
            for scale in (scale_a, scale_b)
        )
    function = function_of("BlockWise1x32", swizzle)
    result, _, decisions = compiled(function, a, b, scale_a, scale_b, SUMS)
    assert_ours(decisions, "k4")
    assert result.shape == (G, 40, N) and (result[0] == 0).all()
    assert_close(result, exact)


@pytest.mark.parametrize("form", ["columns", "batches"])
def test_mx_where_a_is_a_matrix_a_group(compiled, form):
    """Forms that PyTorch has no kernel for on any device."""
    columns = form == "columns"
    a, b = elements(G, 32, K), elements(M, K) if columns else elements(G, N, K)
    scale_a, scale_b = codes(G, 32, 4), codes(*b.shape[:-1], 4)
    offsets = (ENDS,) if columns else ()
    wide = values(a) * factors(scale_a), (values(b) * factors(scale_b)).mT
    function = function_of("BlockWise1x32", "NO_SWIZZLE")
    result, _, decisions = compiled(function, a, b, scale_a, scale_b, *offsets)
    assert_ours(decisions, "n4" if columns else "")
    assert_close(result, product(*wide, *offsets) if columns else wide[0] @ wide[1])


def test_scales_of_weights_in_one_dimension_dense_or_padded(compiled):
    """What torch's own check asks for: [G, rows and blocks padded to multiples of 128 and 4]."""
    a, b, scale_a, scale_b = elements(M, K), elements(G, N, K), codes(M, 4), codes(G, N, 4)
    exact = product(values(a) * factors(scale_a), (values(b) * factors(scale_b)).mT, ENDS)
    padded = torch.zeros(G, 128, 4, dtype=torch.uint8)
    padded[:, :N] = scale_b.view(torch.uint8)
    function = function_of("BlockWise1x32", "NO_SWIZZLE")
    for held in (scale_b.view(G, -1), padded.view(torch.float8_e8m0fnu).view(G, -1)):
        result, _, decisions = compiled(function, a, b, scale_a, held, ENDS)
        assert_ours(decisions[-1:], "m4")
        assert_close(result, exact)


def rowwise(form):
    """(A, rows of B, factors of both, offsets, exact) of row-wise FP8."""
    generator = torch.Generator().manual_seed(7)
    sizes = {
        "rows": ((M, K), (G, N, K), ENDS),
        "columns": ((G, 32, K), (M, K), ENDS),
        "sums": ((40, 256), (N, 256), SUMS),
        "batches": ((G, 32, K), (G, N, K), None),
    }[form]
    a, b, ends = elements(*sizes[0]), elements(*sizes[1]), sizes[2]
    each = (G,) if form == "sums" else ()
    of_a, of_b = (0.5 + torch.rand((*each, *x.shape[:-1]), generator=generator) for x in (a, b))
    if form == "sums":
        exact = product(values(a), values(b).mT, ends)
        exact = exact * of_a[:, :, None].double() * of_b[:, None, :].double()
        return a, b, of_a.flatten(), of_b.flatten(), (ends,), exact
    wide = values(a) * of_a.double()[..., None], (values(b) * of_b.double()[..., None]).mT
    offsets = () if ends is None else (ends,)
    return a, b, of_a, of_b, offsets, product(*wide, ends)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("form", ["rows", "columns", "sums", "batches"])
def test_rowwise(compiled, form, version):
    *inputs, offsets, exact = rowwise(form)
    function = function_of("RowWise")
    if version == 1:

        def function(a, b_rows, scale_a, scale_b, *offs):
            named = {"offs": offs[0]} if offs else {}
            out = {"out_dtype": torch.bfloat16}
            return torch._scaled_grouped_mm(a, b_rows.mT, scale_a, scale_b, **named, **out)

    result, _, decisions = compiled(function, *inputs, *offsets)
    assert_ours(decisions, {"rows": "m4", "columns": "n4", "sums": "k4", "batches": ""}[form])
    assert_close(result, exact)


def test_rowwise_reference_device(compiled, monkeypatch):
    monkeypatch.setenv("INDUCTOR_FLYDSL_DEVICE", "reference")
    for form in ("rows", "columns", "sums", "batches"):
        *inputs, offsets, exact = rowwise(form)
        result, _, decisions = compiled(function_of("RowWise"), *inputs, *offsets)
        assert decisions[-1].chosen == "FLYDSL"
        assert_close(result, exact)


def test_mx_of_version_1_is_plain(compiled):
    a, b, scale_a, scale_b = elements(M, K), elements(G, 128, K), codes(M, 4), codes(G, 128, 4)
    exact = product(values(a) * factors(scale_a), (values(b) * factors(scale_b)).mT, ENDS)

    def function(a, b_rows, scale_a, scale_b, offs):
        out = {"out_dtype": torch.bfloat16}
        return torch._scaled_grouped_mm(a, b_rows.mT, scale_a, scale_b, offs=offs, **out)

    result, _, decisions = compiled(function, a, b, scale_a, scale_b.view(G, -1), ENDS)
    assert_ours(decisions, "m4")
    assert_close(result, exact)


def test_a_pointwise_function_after_it_is_fused(compiled):
    *inputs, offsets, exact = rowwise("rows")
    scale = torch.rand(N)
    plain = function_of("RowWise")

    def function(a, b, scale_a, scale_b, offs, scale):
        return torch.relu(plain(a, b, scale_a, scale_b, offs)) * scale

    result, code, decisions = compiled(function, *inputs, *offsets, scale)
    assert_ours(decisions, "m4")
    assert "cpp_fused" not in code
    assert_close(result, torch.relu(exact) * scale.double())


@pytest.mark.parametrize("kind", ["RowWise", "BlockWise1x32"])
@pytest.mark.parametrize("form", ["rows", "sums"])
def test_one_kernel_for_every_number_of_tokens(form, kind):
    """The total is only known at a launch, and with it the rows of plain scales along it."""
    fast = torch.compile(function_of(kind), mode="max-autotune")
    rows = form == "rows"
    weights, of_weights = elements(G, N, K), codes(G, N, 4)
    for count in (64, 96, 160):
        ends = torch.tensor([0, count // 2 // 32 * 32, count, count], dtype=torch.int32)
        a = elements(count, K) if rows else elements(40, count)
        b = weights if rows else elements(N, count)
        scale_a, scale_b = codes(*a.shape[:-1], a.shape[-1] // 32), codes(N, count // 32)
        scale_b = of_weights if rows else scale_b
        if kind == "RowWise":
            scale_a = torch.rand(count) if rows else torch.rand(G * 40)
            scale_b = torch.rand(G, N) if rows else torch.rand(G * N)
            wide_a, wide_b = values(a), values(b).mT
            of_a = scale_a[:, None] if rows else scale_a.view(G, 40, 1)
            exact = product(wide_a, wide_b * scale_b[:, None].double() if rows else wide_b, ends)
            exact = exact * of_a * (1 if rows else scale_b.view(G, 1, N))
        else:
            wide_b = (values(b) * factors(scale_b)).mT
            exact = product(values(a) * factors(scale_a), wide_b, ends)
        for tensor in (a, b, scale_a, scale_b)[:: 2 if rows else 1]:
            cut = tensor.dim() > 1 or rows
            if cut and (rows or kind != "RowWise" or tensor.dtype == E4M3):
                torch._dynamo.mark_dynamic(tensor, 0 if rows else tensor.dim() - 1)
        with torch.no_grad():
            assert_close(fast(a, b, scale_a, scale_b, ends), exact)
    (decision,) = choices.decisions()
    assert decision.chosen == "FLYDSL", decision.reason


def test_one_kernel_for_every_number_of_tokens_whose_scales_are_swizzled():
    """Rows of scales depend on where the groups end; only the least there are is known."""
    fast = torch.compile(function_of("BlockWise1x32", "SWIZZLE_32_4_4"), mode="max-autotune")
    b, scale_b = elements(G, N, K), codes(G, N, 4)
    held_b = torch.stack([blocked(scale) for scale in scale_b])
    for count in (70, 40, 300):
        ends = torch.tensor([0, count // 4, count // 2, count], dtype=torch.int32)
        a, scale_a = elements(count, K), codes(count, 4)
        own = [blocked(scale_a[piece]) for piece in pieces(ends) if piece.stop > piece.start]
        held_a = torch.cat(own).view(-1, 4)
        torch._dynamo.mark_dynamic(a, 0)
        torch._dynamo.maybe_mark_dynamic(held_a, 0)
        exact = product(values(a) * factors(scale_a), (values(b) * factors(scale_b)).mT, ends)
        with torch.no_grad():
            assert_close(fast(a, b, held_a, held_b, ends), exact)
    (decision,) = choices.decisions()
    assert decision.chosen == "FLYDSL", decision.reason


def test_what_nothing_runs_is_refused_with_the_reason(compiled):
    """PyTorch has no such kernel on a CPU, and what it says of that names nothing of the call."""
    a, b, one = elements(M, K), elements(G, N, K), torch.ones(())
    scale_b = codes(G, N, 4)
    mx, row = function_of("BlockWise1x32"), function_of("RowWise")

    calls = {
        "TensorWise": (function_of("TensorWise"), a, b, one, one),
        "sizes [70, 3] are not those of A, 70 rows of K=128": (mx, a, b, codes(M, 3), scale_b),
        "the scale of A has sizes [70, 1]": (row, a, b, torch.rand(M, 1), torch.rand(G, N)),
    }
    for words, (function, *inputs) in calls.items():
        choices.clear()
        with pytest.raises(RuntimeError, match="NothingRunsIt") as caught:
            compiled(function, *inputs, ENDS)
        (decision,) = choices.decisions()
        assert words in decision.reason and decision.reason in str(caught.value)
        assert "leave the op out of the compiled graph" in str(caught.value)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("kind", ["RowWise", "BlockWise1x32"])
def test_no_rows_at_all(compiled, kind, version):
    """A rank that got no tokens."""
    ends = torch.zeros(G, dtype=torch.int32)
    row = kind == "RowWise"
    scales = (torch.rand(0), torch.rand(G, N)) if row else (codes(0, 4), codes(G, N * 4))
    function = function_of(kind)
    if version == 1:
        scales = scales if row else (codes(0, 4), codes(G, 128 * 4))

        def function(a, b_rows, scale_a, scale_b, offs):
            out = {"out_dtype": torch.bfloat16}
            return torch._scaled_grouped_mm(a, b_rows.mT, scale_a, scale_b, offs=offs, **out)

    result, _, (decision,) = compiled(function, elements(0, K), elements(G, N, K), *scales, ends)
    assert "empty" in decision.reason
    assert result.shape == (0, N) and result.dtype is torch.bfloat16


@pytest.mark.parametrize("kind", ["RowWise", "BlockWise1x32"])
def test_an_empty_sum_is_zero(compiled, kind):
    ends = torch.zeros(G, dtype=torch.int32)
    row = kind == "RowWise"
    scales = (torch.rand(G * 40), torch.rand(G * N)) if row else (codes(40, 0), codes(N, 0))
    result, *_ = compiled(function_of(kind), elements(40, 0), elements(N, 0), *scales, ends)
    assert result.shape == (G, 40, N) and not result.any()


@pytest.mark.parametrize("how", ["options", "list"])
def test_the_meta_function_stands_only_where_flydsl_may_take_part(how):
    """And FLYDSL may come with the options of one compile, which Dynamo does not know yet."""
    *inputs, offsets, exact = rowwise("rows")
    listed = {"max_autotune": True, "max_autotune_gemm_backends": "FLYDSL"}
    function = function_of("RowWise")
    with inductor_config.patch(max_autotune_gemm_backends="ATEN"):
        if how == "options":
            assert_close(torch.compile(function, options=listed)(*inputs, *offsets), exact)
            return
        if torch.__version__.startswith("2.13"):
            with pytest.raises(Exception, match="_scaled_grouped_mm_v2"):
                torch.compile(function, mode="max-autotune", fullgraph=True)(*inputs, *offsets)
    with inductor_flydsl.disabled(), pytest.raises(Exception, match="_scaled_grouped_mm_v2"):
        torch.compile(function, mode="max-autotune", fullgraph=True)(*inputs, *offsets)
    assert not choices.decisions()


def test_unregistered_leaves_it_alone():
    inductor_flydsl.unregister()
    from torch._inductor.lowering import user_lowerings

    ops = torch.ops.aten._scaled_grouped_mm, torch.ops.aten._scaled_grouped_mm_v2
    assert not any(op.default in user_lowerings for op in ops)
    inductor_flydsl.register()
    assert all(op.default in user_lowerings for op in ops)
