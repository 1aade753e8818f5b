"""A value on the way that others use too is stored by the same kernel, as the last one is."""

import logging

import pytest
import torch
import torch.nn.functional as F

from inductor_flydsl.inductor import choices

from .conftest import random

M, N, K = 40, 56, 72


def check(compiled, function, *inputs, fused=1, stored=1, kernels=0):
    """Compile, compare every result with float64, and see what the one decision says."""
    results, code, decisions = compiled(function, *inputs)
    exact = function(*(x.double() for x in inputs))
    for result, value in zip(results, exact, strict=True):
        torch.testing.assert_close(result.double(), value, rtol=2**-7, atol=2e-2)
    (decision,) = decisions
    assert decision.chosen == "FLYDSL"
    assert (len(decision.fused), len(decision.stored)) == (fused, stored), str(decision)
    assert code.count("    flydsl_kernel_") == 1 and code.count("= async_compile.") == kernels, code
    return decision


def product_and(*functions):
    """The product itself, and functions of it."""

    def function(x, w):
        y = x @ w.t()
        return y, *(f(y) for f in functions)

    return function


def test_a_product_and_its_activation(compiled, ours_is_fast, caplog):
    with caplog.at_level(logging.INFO, "inductor_flydsl"):
        decision = check(compiled, product_and(F.gelu), random(M, K), random(N, K))
    assert decision.stored == ("buf0 (mm)",) and not decision.apart
    assert "stored too: buf0 (mm)" in str(decision)


@pytest.mark.parametrize("narrow", [True, False])
def test_types_may_differ(compiled, ours_is_fast, narrow):
    def function(x, w):
        y = (x @ w.t()).float() * 0.5
        if x.dtype is torch.float64:
            return y.double(), F.relu(y).double()
        return y, F.relu(y).to(torch.bfloat16 if narrow else torch.float32)

    x, w = random(M, K), random(N, K)
    results, _, (decision,) = compiled(function, x, w)
    exact = (x.double() @ w.double().t()) * 0.5
    torch.testing.assert_close(results[0].double(), exact, rtol=2**-7, atol=2e-2)
    torch.testing.assert_close(results[1].double(), exact.relu(), rtol=2**-7, atol=2e-2)
    assert len(decision.stored) == 1 and not decision.apart


def test_two_users_that_are_both_results(compiled, ours_is_fast):
    """relu(h) and sigmoid(h) of a product that nobody keeps: one is C, the other beside it."""

    def function(x, w):
        y = x @ w.t()
        return F.relu(y), torch.sigmoid(y)

    check(compiled, function, random(M, K), random(N, K), fused=2)


def test_three_results_of_a_chain(compiled, ours_is_fast):
    def function(x, w, b):
        y = F.linear(x, w, b)
        z = F.relu(y)
        return y, z, torch.tanh(z) * y

    check(compiled, function, random(M, K), random(N, K), random(N), fused=2, stored=2)


def test_a_result_that_is_a_copy_in_another_type(compiled, ours_is_fast):
    def function(x, w):
        y = x @ w.t()
        return y, y.to(torch.float16 if x.dtype is torch.bfloat16 else x.dtype)

    check(compiled, function, random(M, K), random(N, K))


def test_a_user_that_cannot_join_reads_what_is_stored(compiled, ours_is_fast):
    picked = product_and(F.relu, lambda y: y[torch.tensor([3, 1, 2])])
    decision = check(compiled, picked, random(M, K), random(N, K), kernels=1)
    (text,) = decision.apart
    assert "it gathers" in text


def test_more_tensors_than_a_kernel_takes_stay_apart(compiled, ours_is_fast):
    def function(x, w, a, b, c, d):
        y = x @ w.t()
        return y, y * a + b, c * d * y

    others = (random(M, N) for _ in range(4))
    results, _, (decision,) = compiled(function, random(M, K), random(N, K), *others)
    assert any("tensors are read and" in text for text in decision.apart), decision
    torch.testing.assert_close(results[1].isfinite().all(), torch.tensor(True))


def test_rows_that_stores_do_not_fit(compiled, ours_is_fast):
    """57 columns: neither output has rows at multiples of more than an element."""
    check(compiled, product_and(F.gelu), random(M, K), random(57, K))


def test_a_batch(compiled, ours_is_fast):
    def function(x, w):
        y = x @ w
        return y, F.silu(y)

    check(compiled, function, random(3, M, K), random(3, K, N))


def test_dynamic_rows_are_one_kernel(compiled, ours_is_fast):
    def function(x, w, b):
        y = F.linear(x, w, b)
        return y, F.gelu(y)

    fast = torch.compile(function, mode="max-autotune")
    w, b = random(N, K), random(N)
    with torch.no_grad():
        for rows in (40, 17, 64):
            x = random(rows, K)
            torch._dynamo.mark_dynamic(x, 0)
            y, z = fast(x, w, b)
            exact = F.linear(x.double(), w.double(), b.double())
            torch.testing.assert_close(y.double(), exact, rtol=2**-7, atol=2e-2)
            torch.testing.assert_close(z.double(), F.gelu(exact), rtol=2**-7, atol=2e-2)
    (decision,) = choices.decisions()
    assert decision.dynamic == ("m",) and len(decision.stored) == 1


def mlp(x, up, bias, down):
    return F.gelu(F.linear(x, up, bias)) @ down.t()


def gradients(function, inputs, grad):
    inputs = [t.detach().clone().requires_grad_() for t in inputs]
    result = function(*inputs)
    return [result, *torch.autograd.grad(result, inputs, grad.to(result.dtype))]


@pytest.mark.usefixtures("real_kernels")
def test_a_trained_layer_and_its_activation_are_one_kernel():
    """On the emulator: forward of linear, bias, GELU and linear is two kernels and no other."""
    from torch._inductor.utils import run_and_get_code

    inputs = random(48, 64), random(96, 64) / 8, random(96), random(64, 96) / 8
    grad = random(48, 64)
    exact = gradients(mlp, [t.double() for t in inputs], grad)
    eager = gradients(mlp, inputs, grad)
    fast = torch.compile(mlp, mode="max-autotune")
    ours, (forward, backward) = run_and_get_code(gradients, fast, inputs, grad)
    assert forward.count("    flydsl_kernel_") == 2 and "cpp_fused" not in forward
    assert backward.count("    flydsl_kernel_") == 4
    first = choices.decisions()[0]
    assert first.stored == ("buf0 (addmm)",) and not first.apart
    assert any("gelu" in text or "erf" in text for text in first.fused)
    for value, got, other in zip(exact, ours, eager, strict=True):
        error, allowed = (got - value).norm(), (other - value).norm()
        assert error <= 2 * allowed + 1e-3 * value.norm()


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_a_cast_to_eight_bits_is_the_last_step(compiled, ours_is_fast, kind):
    """With the value that it is made of beside it, and alone."""

    def function(x, w):
        y = F.relu(x @ w.t()) * 0.25
        return y, y.to(kind)

    x, w = random(M, K), random(N, K)
    (y, z), code, (decision,) = compiled(function, x, w)
    exact = F.relu(x.double() @ w.double().t()) * 0.25
    assert z.dtype is kind and "cpp_fused" not in code and len(decision.stored) == 1
    torch.testing.assert_close(y.double(), exact, rtol=2**-7, atol=2e-2)
    torch.testing.assert_close(z.double(), exact, rtol=2**-2, atol=2e-2)
    alone, code, (decision,) = compiled(lambda x, w: function(x, w)[1], x, w)
    assert "cpp_fused" not in code and not decision.stored and not decision.apart
    torch.testing.assert_close(alone.double(), exact, rtol=2**-2, atol=2e-2)


def test_what_is_computed_with_eight_bits_stays_apart(compiled, ours_is_fast):
    def function(x, w):
        return (x @ w.t()).to(torch.float8_e4m3fn).to(torch.bfloat16) * 3

    result, _, (decision,) = compiled(function, random(M, K), random(N, K))
    assert any("computes with torch.float8_e4m3fn" in text for text in decision.apart), decision
    assert result.isfinite().all()


def test_a_cast_to_float64_stays_apart(compiled, ours_is_fast):
    x, w = random(M, K), random(N, K)
    result, _, (decision,) = compiled(lambda x, w: (x @ w.t()).double(), x, w)
    assert result.dtype is torch.float64 and len(decision.apart) == 1, decision
