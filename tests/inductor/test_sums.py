"""The sum of two products: two kernels, the second of which adds the first one's result."""

import pytest
import torch
import torch.nn.functional as F

import inductor_flydsl

from .conftest import random


@pytest.fixture(params=["reference", "emulator"])
def device(request):
    request.getfixturevalue("ours_is_fast" if request.param == "reference" else "real_kernels")
    return request.param


def test_both_are_ours_and_the_sum_is_fused(device, compiled):
    a, b, c, d = random(40, 72), random(72, 56), random(40, 72), random(72, 56)
    result, _, decisions = compiled(lambda a, b, c, d: torch.relu(a @ b + c @ d), a, b, c, d)
    assert [(x.op, x.chosen) for x in decisions] == [("mm", "FLYDSL")] * 2
    assert decisions[1].fused and not decisions[0].fused, decisions
    assert not any(x.apart for x in decisions)
    exact = (a.double() @ b.double() + c.double() @ d.double()).relu()
    torch.testing.assert_close(result.double(), exact, rtol=2**-6, atol=0.1)


def test_the_gradient_of_what_two_layers_share(ours_is_fast):
    """dx = dg @ wg + du @ wu of a gated unit."""

    def function(x, gate, up):
        return F.silu(F.linear(x, gate)) * F.linear(x, up)

    inputs = [random(40, 64), random(96, 64), random(96, 64)]
    inputs = [(t / 4).requires_grad_() for t in inputs]
    leaves = [t.detach().clone().requires_grad_() for t in inputs]
    exact = [t.detach().double().requires_grad_() for t in inputs]
    torch.compile(function, mode="max-autotune")(*leaves).sum().backward()
    function(*exact).sum().backward()
    assert {d.chosen for d in inductor_flydsl.decisions()} == {"FLYDSL"}
    assert {d.op for d in inductor_flydsl.decisions()} == {"mm"}
    for leaf, right in zip(leaves, exact, strict=True):
        torch.testing.assert_close(leaf.grad.double(), right.grad, rtol=2**-5, atol=0.05)


def test_it_stays_one_op_where_none_is_ours(compiled):
    a, b = (random(32, 32, dtype=torch.float32) for _ in range(2))
    _, _, (decision,) = compiled(lambda a, b: a @ b + b @ a, a, b)
    assert (decision.op, decision.chosen) == ("mm_plus_mm", "ATEN")
    with inductor_flydsl.disabled():
        narrow = [random(32, 32) for _ in range(2)]
        torch._dynamo.reset()
        _, code, none = compiled(lambda a, b: a @ b + b @ a, *narrow)
    assert none == () and "mm_plus_mm" in code
    torch._dynamo.reset()
    inductor_flydsl.unregister()
    _, code, none = compiled(lambda a, b: a @ b + b @ a, *narrow)
    assert none == () and "mm_plus_mm" in code
