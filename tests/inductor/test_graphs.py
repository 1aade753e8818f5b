"""Our kernel among the rest of a graph: pointwise neighbours, backward, several uses."""

import logging

import pytest
import torch

from .conftest import assert_product, random

CALL = "flydsl_kernel_"


def calls(code):
    return sum(line.strip().startswith(CALL) and "(buf" in line for line in code.splitlines())


def test_pointwise_before_and_after(compiled, ours_is_fast):
    a, b, scale = random(48, 64), random(64, 40), random(40)

    def f(a, b, scale):
        return torch.relu((a * 2) @ b) * scale

    result, code, (decision,) = compiled(f, a, b, scale)
    assert decision.chosen == "FLYDSL" and calls(code) == 1
    # The product is rounded to bf16 before what follows it, as in eager.
    torch.testing.assert_close(result, f(a, b, scale), rtol=2**-7, atol=2**-7)


def test_the_scheduler_says_why_nothing_fused(compiled, ours_is_fast, caplog):
    with caplog.at_level(logging.INFO, "inductor_flydsl"):
        compiled(lambda a, b: torch.cos(a @ b), random(48, 64), random(64, 40))
    assert any("operation cos has no kernel" in r.message for r in caplog.records)


def test_the_product_is_used_twice(compiled, ours_is_fast):
    a, b = random(48, 64), random(64, 64)

    def f(a, b):
        c = a @ b
        return c, c @ b

    (c, d), code, decisions = compiled(f, a, b)
    assert calls(code) == 2 and [x.chosen for x in decisions] == ["FLYDSL", "FLYDSL"]
    assert_product(c, a, b)
    assert_product(d, c, b)


def test_a_transposed_result(compiled, ours_is_fast):
    a, b = random(48, 64), random(64, 40)
    result, code, _ = compiled(lambda a, b: (a @ b).t(), a, b)
    assert calls(code) == 1
    assert_product(result.t(), a, b)


def test_concatenated_inputs_and_outputs(compiled, ours_is_fast):
    """An operand that is also half of a concatenation keeps the strides it was measured with."""
    a, b = random(48, 64), random(64, 40)

    def f(a, b):
        x = a + 1
        return x @ b, torch.cat([x, x], 1)

    (c, _), code, _ = compiled(f, a, b)
    assert calls(code) == 1
    assert_product(c, a + 1, b)
    result, code, _ = compiled(lambda a, b: torch.cat([a @ b, (a @ b) * 2], 1), a, b)
    assert_product(result[:, :40], a, b)


def test_forward_and_backward(compiled, ours_is_fast):
    """Three products: the forward one, and A·Bᵀ-like ones in other layouts for the gradients."""
    a = random(48, 64).requires_grad_()
    w = random(40, 64).requires_grad_()
    out = random(48, 40)

    def f(a, w):
        return torch.nn.functional.linear(a, w)

    torch._dynamo.reset()
    result = torch.compile(f, mode="max-autotune")(a, w)
    result.backward(out)
    from inductor_flydsl.inductor import choices

    found = [(d.chosen, d.problem.layout.value) for d in choices.decisions()]
    assert sorted(found) == [("FLYDSL", "NN"), ("FLYDSL", "NT"), ("FLYDSL", "TN")]
    with torch.no_grad():
        assert_product(result, a, w.t())
        assert_product(a.grad, out, w)
        assert_product(w.grad, out.t(), a)


def test_a_module_trains_through_several_steps(ours_is_fast):
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 48, bias=False), torch.nn.Linear(48, 8, bias=False)
    ).bfloat16()
    compiled_model = torch.compile(model, mode="max-autotune")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    x, y = random(32, 64), random(32, 8)
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = (compiled_model(x) - y).float().square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_an_expression_that_mutates_an_input(compiled, ours_is_fast, dtype):
    a, b = random(48, 64, dtype=dtype), random(64, 40, dtype=dtype)
    target = torch.zeros(48, 40, dtype=dtype)

    def f(a, b, target):
        target.copy_(a @ b)
        return target + 1

    result, _, _ = compiled(f, a, b, target)
    assert_product(target, a, b)
    # The kernel adds before it rounds, as Inductor's own do.
    torch.testing.assert_close(result, target + 1, rtol=torch.finfo(dtype).eps, atol=1e-2)
