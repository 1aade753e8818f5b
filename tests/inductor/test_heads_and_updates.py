"""Epilogues of attention's products, whose batches count heads; updates of an input in place."""

import pytest
import torch
import torch.nn.functional as F

from inductor_flydsl.inductor import choices

from .conftest import random

B, H, M, N, K = 2, 3, 40, 48, 32
OWN = ("cpp_fused", "extern_kernels.")


def check(compiled, function, *inputs):
    """One kernel of ours and no other; its result against float64."""
    result, code, (decision,) = compiled(function, *inputs)
    exact = function(*(x.double() for x in inputs))
    torch.testing.assert_close(result.double(), exact, rtol=2**-7, atol=2e-2)
    assert decision.chosen == "FLYDSL" and not decision.apart, str(decision)
    assert not any(text in code for text in OWN) and code.count("    flydsl_kernel_") == 1
    assert result.stride() == exact.stride()
    return decision


def queries_and_keys():
    return random(B, H, M, K), random(B, H, N, K)


SHAPES = [(B, 1, M, N), (1, H, M, N), (B, H, 1, N), (B, 1, 1, N), (H, M, 1), (1, H, 1, N)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["mask", "bias"])
def test_a_tensor_that_some_heads_share(compiled, ours_is_fast, shape, kind):
    mask, bias = torch.rand(shape) > 0.5, random(*shape)

    def function(q, k):
        scores = q @ k.mT * 0.125
        return torch.where(mask, scores, -9.0) if kind == "mask" else scores + bias

    check(compiled, function, *queries_and_keys())


def test_a_mask_of_each_batch_and_a_bias_of_each_head(compiled, ours_is_fast):
    mask, bias = torch.rand(B, 1, M, N) > 0.5, random(H, 1, 1)

    def function(q, k):
        return torch.where(mask, q @ k.mT * 0.125 + bias, -9.0)

    check(compiled, function, *queries_and_keys())


def test_tensors_that_count_the_batch_differently_stay_apart(compiled, ours_is_fast):
    outer, inner = random(2, 1, 1, 1, 1), random(1, 1, 3, 1, 1)

    def function(q, k):
        scores = (q @ k.mT).view(2, 2, 3, M, N)
        return scores * outer + scores * inner

    x, y = random(4, 3, M, K), random(4, 3, N, K)
    result, _, _ = compiled(function, x, y)
    exact = function(x.double(), y.double())
    torch.testing.assert_close(result.double(), exact, rtol=2**-6, atol=5e-2)
    assert any("count the batch by 3 and by 6" in t for d in choices.decisions() for t in d.apart)


MERGED = {
    "transposed": lambda s, v: (s @ v).transpose(1, 2).contiguous(),
    "in one row": lambda s, v: (s @ v).transpose(1, 2).reshape(B, M, H * K),
    "scaled": lambda s, v: F.relu((s @ v).transpose(1, 2).reshape(B * M, H * K)) * 2,
}


@pytest.mark.parametrize("function", MERGED.values(), ids=MERGED)
def test_heads_are_stored_side_by_side(compiled, ours_is_fast, function):
    """What follows attention's second product is no copy of its own."""
    check(compiled, function, random(B, H, M, N), random(B, H, N, K))


def test_dynamic_batches_of_heads(compiled, ours_is_fast):
    def function(q, k, mask):
        return torch.where(mask, q @ k.mT * 0.125, -9.0)

    fast = torch.compile(function, mode="max-autotune")
    with torch.no_grad():
        for batches in (2, 5, 3):
            q, k = random(batches, H, M, K), random(batches, H, N, K)
            mask = torch.rand(batches, 1, M, N) > 0.5
            for x in (q, k, mask):
                torch._dynamo.mark_dynamic(x, 0)
            exact = function(q.double(), k.double(), mask)
            torch.testing.assert_close(fast(q, k, mask).double(), exact, rtol=2**-7, atol=2e-2)
    (decision,) = choices.decisions()
    assert "batch" in decision.dynamic and not decision.apart, str(decision)


@pytest.mark.usefixtures("real_kernels")
def test_attention_with_a_mask_on_the_emulator():
    from torch._inductor.utils import run_and_get_code

    mask = torch.rand(B, 1, M, N) > 0.25

    def function(q, k, v):
        shares = torch.where(mask, q @ k.mT * 0.125, -9.0).sigmoid()
        return (shares @ v).transpose(1, 2).reshape(B * M, H * K)

    inputs = *queries_and_keys(), random(B, H, N, K)
    fast = torch.compile(function, mode="max-autotune")
    with torch.no_grad():
        result, (code,) = run_and_get_code(fast, *inputs)
    exact = function(*(x.double() for x in inputs))
    torch.testing.assert_close(result.double(), exact, rtol=2**-6, atol=3e-2)
    assert code.count("    flydsl_kernel_") == 2 and not any(text in code for text in OWN)


# -- in place ------------------------------------------------------------------------------------

UPDATES = {
    "add": lambda y, x, w: y.add_(x @ w.t()),
    "scaled": lambda y, x, w: y.mul_(0.5).add_(2 * (x @ w.t())),
    "copy": lambda y, x, w: y.copy_(F.relu(x @ w.t())),
    "gate": lambda y, x, w: y.mul_(torch.sigmoid(x @ w.t())),
}


def updated(compiled, function, y, *inputs):
    """(y after the call, its exact value, code, decisions)."""
    exact = y.double()
    function(exact, *(x.double() for x in inputs))
    _, code, decisions = compiled(function, y, *inputs)
    return y, exact, code, decisions


@pytest.mark.parametrize("width", [N, N + 1], ids=["wide stores", "narrow stores"])
@pytest.mark.parametrize("function", UPDATES.values(), ids=UPDATES)
def test_an_update_in_place_is_one_kernel(compiled, ours_is_fast, function, width):
    inputs = random(M, width), random(M, K), random(width, K)
    y, exact, code, (decision,) = updated(compiled, function, *inputs)
    torch.testing.assert_close(y.double(), exact, rtol=2**-6, atol=4e-2)
    assert not any(text in code for text in OWN) and not decision.apart, (code, str(decision))
    body = code.split("def call")[1]
    assert body.count("    flydsl_kernel_") == 1 and "empty_strided" not in body


@pytest.mark.parametrize("shape", [(M, 1), (1, N)], ids=str)
def test_an_update_of_one_column_or_row_is_one_kernel(compiled, ours_is_fast, shape):
    rows, columns = shape
    inputs = random(*shape), random(rows, K), random(columns, K)
    y, exact, code, (decision,) = updated(compiled, UPDATES["add"], *inputs)
    torch.testing.assert_close(y.double(), exact, rtol=2**-6, atol=4e-2)
    assert not any(text in code for text in OWN) and not decision.apart, (code, str(decision))


def test_an_update_of_some_columns_says_why_it_stays_apart(compiled, ours_is_fast):
    def function(y, x, w):
        y[:, 3 : 3 + N] += x @ w.t()

    inputs = random(M, N + 8), random(M, K), random(N, K)
    y, exact, _, decisions = updated(compiled, function, *inputs)
    torch.testing.assert_close(y.double(), exact, rtol=2**-6, atol=4e-2)
    apart = [text for d in decisions for text in d.apart]
    assert apart and all("reads under a mask" in text for text in apart), apart


def test_an_update_and_the_product_itself(compiled, ours_is_fast):
    def function(y, x, w):
        product = x @ w.t()
        y.add_(product)
        return product

    inputs = random(M, N), random(M, K), random(N, K)
    y, exact, code, (decision,) = updated(compiled, function, *inputs)
    torch.testing.assert_close(y.double(), exact, rtol=2**-6, atol=4e-2)
    assert len(decision.stored) == 1 and "cpp_fused" not in code


APART = {
    "an operand of the product": lambda y, x, w: y.add_(y @ w),
    "at other elements": lambda y, x, w: y.add_(x @ w + y[:1]),
    "turned": lambda y, x, w: y.add_((x @ w) * y.t()),
}


@pytest.mark.parametrize("function", APART.values(), ids=APART)
def test_an_update_of_what_is_read_elsewhere_stays_apart(compiled, ours_is_fast, function):
    inputs = random(M, M), random(M, M), random(M, M) / 4
    y, exact, code, decisions = updated(compiled, function, *inputs)
    torch.testing.assert_close(y.double(), exact, rtol=2**-6, atol=6e-2)
    assert any("updated in place" in text for d in decisions for text in d.apart), decisions


def test_a_reader_of_the_old_value_comes_first(compiled, ours_is_fast):
    def function(y, x, w):
        before = y.sum(0)
        y.add_(x @ w.t())
        return before

    inputs = random(M, N), random(M, K), random(N, K)
    sums = inputs[0].double().sum(0)
    result, _, _ = compiled(function, *inputs)
    torch.testing.assert_close(result.double(), sums, rtol=2**-6, atol=5e-2)


@pytest.mark.usefixtures("real_kernels")
@pytest.mark.parametrize(
    "rows, width",
    [(M, N), (M, N + 1), (M, 1), (1, N)],
    ids=["wide stores", "through LDS", "one column", "one row"],
)
def test_an_update_on_the_emulator(rows, width):
    y, x, w = random(rows, width), random(rows, K), random(width, K)
    exact = y.double() + x.double() @ w.double().t()
    with torch.no_grad():
        torch.compile(UPDATES["add"], mode="max-autotune")(y, x, w)
    torch.testing.assert_close(y.double(), exact, rtol=2**-6, atol=4e-2)
    assert choices.decisions()[-1].fused
