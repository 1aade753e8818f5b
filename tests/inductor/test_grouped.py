"""``torch.nn.functional.grouped_mm`` through torch.compile: which kernel, which numbers."""

import re

import pytest
import torch
import torch._inductor.config as inductor_config
import torch.nn.functional as F

import inductor_flydsl
from inductor_flydsl.config import GemmConfig
from inductor_flydsl.inductor import choices, runtime
from inductor_flydsl.numerics import product
from inductor_flydsl.problem import GemmProblem

from .conftest import random

pytestmark = pytest.mark.skipif(
    not hasattr(F, "grouped_mm"), reason="this PyTorch has no torch.nn.functional.grouped_mm"
)
# A call of ATen's kernel in generated code.
CALL = re.compile(r"_grouped_mm(\.default)?\(")
ENDS = [10, 10, 33, 40]


def grouped(a, b, offsets):
    return F.grouped_mm(a, b, offs=offsets)


def transposed(*sizes):
    return random(*sizes).transpose(-2, -1)


# The form, A, B, and how the problem is named.
FORMS = [
    ("rows, weights as they are", lambda: random(40, 32), lambda: random(4, 32, 24), "m4", "NN"),
    ("rows, weights transposed", lambda: random(40, 32), lambda: transposed(4, 24, 32), "m4", "NT"),
    ("rows that walk memory", lambda: transposed(32, 40), lambda: random(4, 32, 24), "m4", "TN"),
    ("columns", lambda: random(4, 16, 32), lambda: random(32, 40), "n4", "NN"),
    ("columns, transposed", lambda: transposed(4, 32, 16), lambda: transposed(40, 32), "n4", "TT"),
    ("gradient of weights", lambda: transposed(40, 32), lambda: random(40, 24), "k4", "TN"),
    ("sums that walk memory", lambda: random(32, 40), lambda: transposed(24, 40), "k4", "NT"),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form[0])
def test_forms_and_layouts(compiled, ours_is_fast, form):
    _, make_a, make_b, groups, layout = form
    a, b, offsets = make_a(), make_b(), torch.tensor(ENDS, dtype=torch.int32)
    result, code, (decision,) = compiled(grouped, a, b, offsets)
    assert decision.chosen == "FLYDSL" and not CALL.search(code)
    assert str(decision.problem.grouping) == groups
    assert decision.problem.layout.value == layout
    assert_close(result, product(a.double(), b.double(), offsets))


def test_the_batched_form_is_a_batched_product(compiled, ours_is_fast, monkeypatch):
    monkeypatch.setenv("INDUCTOR_FLYDSL_DEVICE", "emulator")
    a, b = random(3, 16, 32), transposed(3, 24, 32)
    with inductor_config.patch(flydsl_enable_autotuning=False):
        result, _, (decision,) = compiled(lambda a, b: F.grouped_mm(a, b), a, b)
    assert decision.chosen == "FLYDSL" and decision.problem.batch == 3
    assert_close(result, a.double() @ b.double())


def assert_close(result, exact):
    scale = exact.abs().max()
    assert (result.double() - exact).abs().max() <= 2**-8 * scale


def test_views_of_experts_and_tokens(compiled, ours_is_fast):
    """Every second expert's weights, and tokens that are columns of a wider tensor."""
    weights, tokens = random(8, 32, 24), random(40, 48)
    offsets = torch.tensor(ENDS, dtype=torch.int32)

    def function(tokens, weights, offsets):
        return grouped(tokens[:, 8:40], weights[::2], offsets)

    result, _, (decision,) = compiled(function, tokens, weights, offsets)
    assert decision.chosen == "FLYDSL"
    assert (decision.problem.lda, decision.problem.b_batch) == (48, 2 * 32 * 24)
    assert_close(result, product(tokens[:, 8:40].double(), weights[::2].double(), offsets))


def test_offsets_are_not_read_at_compile_time(compiled, ours_is_fast):
    """One compiled function serves every split, also one that holds nothing."""
    a, b = random(40, 32), random(4, 32, 24)
    fast = torch.compile(grouped, mode="max-autotune")
    with torch.no_grad():
        for ends in (ENDS, [0, 0, 0, 40], [40, 40, 40, 40], [0, 0, 0, 0]):
            offsets = torch.tensor(ends, dtype=torch.int32)
            result, before = fast(a, b, offsets), len(choices.decisions())
            exact = product(a.double(), b.double(), offsets)
            assert_close(result[: ends[-1]], exact[: ends[-1]]) if ends[-1] else None
    assert len(choices.decisions()) == before


def test_a_pointwise_function_after_it_is_fused(compiled, ours_is_fast):
    a, b, offsets = random(40, 32), random(4, 32, 24), torch.tensor(ENDS, dtype=torch.int32)
    scale = random(24)

    def function(a, b, offsets, scale):
        return torch.relu(grouped(a, b, offsets)) * scale

    result, code, (decision,) = compiled(function, a, b, offsets, scale)
    assert decision.chosen == "FLYDSL" and "cpp_fused" not in code
    exact = torch.relu(product(a.double(), b.double(), offsets)) * scale.double()
    assert_close(result, exact)


def test_flydsl_alone_and_unable_leaves_aten(compiled):
    a, b, offsets = random(40, 32), random(4, 32, 24), torch.tensor(ENDS, dtype=torch.int32)
    with (
        inductor_config.patch(max_autotune_gemm_backends="FLYDSL"),
        inductor_flydsl.settings.scope(device="hip"),
    ):
        result, code, (decision,) = compiled(grouped, a, b, offsets)
    assert decision.chosen == "ATEN" and CALL.search(code)
    assert_close(result, product(a.double(), b.double(), offsets))


def test_disabled_and_unregistered_leave_it_alone(compiled):
    a, b, offsets = random(40, 32), random(4, 32, 24), torch.tensor(ENDS, dtype=torch.int32)
    with inductor_flydsl.disabled():
        _, _, decided = compiled(grouped, a, b, offsets)
    assert decided == ()
    torch._dynamo.reset()
    inductor_flydsl.unregister()
    from torch._inductor.lowering import user_lowerings

    assert torch.ops.aten._grouped_mm.default not in user_lowerings
    _, _, decided = compiled(grouped, a, b, offsets)
    assert decided == ()


@pytest.mark.parametrize("form", ["rows", "columns", "columns, transposed", "gradient of weights"])
def test_one_kernel_for_every_number_of_tokens(compiled, real_kernels, form):
    """The total is only known at a launch."""
    fast = torch.compile(grouped, mode="max-autotune")
    # PyTorch compiles again for numbers of columns that are no multiples of 8.
    for count in (40, 24, 72) if "columns" in form else (40, 12, 75):
        a, b = {
            "rows": lambda n: (random(n, 32), random(4, 32, 24)),
            "columns": lambda n: (random(4, 16, 32), random(32, n)),
            "columns, transposed": lambda n: (random(4, 16, 32), transposed(n, 32)),
            "gradient of weights": lambda n: (random(n, 16).t(), random(n, 24)),
        }[form](count)
        for tensor in (a, b):
            if count in tensor.shape:
                torch._dynamo.mark_dynamic(tensor, tensor.shape.index(count))
        ends = torch.tensor([count // 4, count // 4, count // 2, count], dtype=torch.int32)
        with torch.no_grad():
            assert_close(fast(a, b, ends), product(a.double(), b.double(), ends))
    (decision,) = choices.decisions()
    assert decision.chosen == "FLYDSL" and decision.problem.grouping.groups == 4


def test_no_token_at_all_makes_gradients_of_zeros():
    problem = GemmProblem.dense(16, 24, 40, layout="TN", groups="k4")
    config = GemmConfig(tile_m=16, tile_n=16, tile_k=32, stages=2, waves_m=1, waves_n=1)
    launch = runtime.Launch(problem, config, "reference", "cpu", "gfx950", dynamic=("k",))
    c, ends = torch.full((4, 16, 24), torch.nan), torch.zeros(4, dtype=torch.int32)
    runtime.kernel(launch.to_text()).at(0)(c, random(0, 16).t(), random(0, 24), ends)
    assert (c == 0).all()
