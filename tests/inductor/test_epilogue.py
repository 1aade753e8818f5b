"""Bias and pointwise chains join the kernel of their product; what cannot stays apart and right."""

import logging

import pytest
import torch
import torch.nn.functional as F

from inductor_flydsl import logs
from inductor_flydsl.inductor import choices

from .conftest import random

M, N, K = 40, 56, 72


def calls(code):
    return [line for line in code.splitlines() if "flydsl_kernel_" in line and "= " not in line]


def check(compiled, function, *inputs, fused=True):
    """Compile, compare with float64, and see that no kernel of Inductor's own is left."""
    result, code, decisions = compiled(function, *inputs)
    exact = function(*(x.double() for x in inputs))
    assert result.dtype is not torch.float64
    torch.testing.assert_close(result.double(), exact, rtol=2**-7, atol=2e-2)
    assert [d.chosen for d in decisions] == ["FLYDSL"], decisions
    assert len(calls(code)) == 1
    assert ("cpp_fused" not in code) == fused, code
    return code


CHAINS = {
    "relu": lambda x, w, r: F.relu(x @ w.t()),
    "gelu": lambda x, w, r: F.gelu(x @ w.t()),
    "gelu tanh": lambda x, w, r: F.gelu(x @ w.t(), approximate="tanh"),
    "silu": lambda x, w, r: F.silu(x @ w.t()),
    "sigmoid": lambda x, w, r: torch.sigmoid(x @ w.t()),
    "tanh": lambda x, w, r: torch.tanh((x @ w.t()) * 0.125),
    "clamp": lambda x, w, r: (x @ w.t()).clamp(-1.5, 2),
    "abs neg": lambda x, w, r: -(x @ w.t()).abs(),
    "leaky": lambda x, w, r: F.leaky_relu(x @ w.t(), 0.25),
    "where": lambda x, w, r: torch.where(r > 0, x @ w.t(), r),
    "residual": lambda x, w, r: r + x @ w.t(),
    "product": lambda x, w, r: (x @ w.t()) * r,
    "column": lambda x, w, r: (x @ w.t()) * r[:, :1],
    "row": lambda x, w, r: (x @ w.t()) + r[3],
    "turned": lambda x, w, r: (x @ w.t()) + r.t().contiguous().t(),
    "scaled": lambda x, w, r: (x @ w.t()) * 0.5 + 1,
    "chained": lambda x, w, r: F.silu(F.relu(x @ w.t()) * 2 - r) + r,
    "twice the same": lambda x, w, r: F.relu(x @ w.t()) * r + r,
    "a part of a wider one": lambda x, w, r: x @ w.t() + torch.cat([r, r], 1)[:, N:],
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS)
def test_a_chain_is_one_kernel(compiled, ours_is_fast, chain):
    inputs = (random(M, K), random(N, K), random(M, N))
    # A tensor made on the way has a kernel of its own.
    made = chain in (CHAINS["turned"], CHAINS["a part of a wider one"])
    check(compiled, chain, *inputs, fused=not made)


@pytest.mark.parametrize("out", [torch.float32, torch.float16])
def test_a_cast_is_part_of_it(compiled, ours_is_fast, out):
    def function(x, w):
        y = F.relu(x @ w.t())
        return y if x.dtype is torch.float64 else y.to(out)

    result = check(compiled, function, random(M, K), random(N, K), fused=out is torch.float32)
    assert result


@pytest.mark.parametrize("shape", [(N,), (1, N), (M, N), (M, 1), (1,)])
def test_addmm_reads_its_bias(compiled, ours_is_fast, shape):
    def function(bias, x, w):
        return torch.addmm(bias, x, w.t())

    check(compiled, function, random(*shape), random(M, K), random(N, K))


@pytest.mark.parametrize("alpha, beta", [(1, 0), (0.5, 1), (2, -0.25)])
def test_alpha_and_beta(compiled, ours_is_fast, alpha, beta):
    def function(bias, x, w):
        return F.relu(torch.addmm(bias, x, w.t(), alpha=alpha, beta=beta))

    check(compiled, function, random(N), random(M, K), random(N, K))


def test_a_bias_that_does_not_count_is_not_read(compiled, ours_is_fast):
    def function(x, w):
        return torch.addmm(torch.full((N,), float("nan")).to(x.dtype), x, w.t(), beta=0)

    result, _, _ = compiled(function, random(M, K), random(N, K))
    assert not result.isnan().any()


def test_a_linear_layer_on_three_dimensions(compiled, ours_is_fast):
    def function(x, w, b, r):
        return r + F.gelu(F.linear(x, w, b))

    inputs = (random(2, 20, K), random(N, K), random(N), random(2, 20, N))
    check(compiled, function, *inputs)


def test_a_product_that_is_used_twice_keeps_its_buffer(compiled, ours_is_fast, caplog):
    def function(x, w):
        y = x @ w.t()
        return y, F.relu(y)

    x, w = random(M, K), random(N, K)
    with caplog.at_level(logging.INFO, "inductor_flydsl"):
        (y, z), code, _ = compiled(function, x, w)
    exact = x.double() @ w.double().t()
    torch.testing.assert_close(y.double(), exact, rtol=2**-7, atol=2e-2)
    assert torch.equal(z, F.relu(y))
    assert "used elsewhere" in caplog.text


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: torch.softmax(x @ w.t(), 1),
        lambda x, w: (x @ w.t()) + (x @ w.t()).sum(0),
        lambda x, w: ((x @ w.t()) > 0).to(x.dtype),
        lambda x, w: (x @ w.t()).t() + 1,
        lambda x, w: torch.cos(x @ w.t()),
        lambda x, w: F.relu(x @ w.t()).flatten()[5:],
    ],
)
def test_what_cannot_join_is_right(compiled, ours_is_fast, function):
    x, w = random(M, K), random(N, K)
    result, _, _ = compiled(function, x, w)
    exact = function(x, w)
    torch.testing.assert_close(result.double(), exact.double(), rtol=2**-6, atol=5e-2)


def test_a_gated_unit_is_two_kernels(compiled, ours_is_fast):
    """silu(x W1) · (x W3): the second product's kernel reads what the first one's wrote."""

    def function(x, w1, w3):
        return F.silu(x @ w1.t()) * (x @ w3.t())

    inputs = (random(M, K), random(N, K), random(N, K))
    result, code, decisions = compiled(function, *inputs)
    exact = function(*(x.double() for x in inputs))
    torch.testing.assert_close(result.double(), exact, rtol=2**-6, atol=5e-2)
    assert [d.chosen for d in decisions] == ["FLYDSL", "FLYDSL"]
    assert len(calls(code)) == 2 and "cpp_fused" not in code, code
    assert sum(len(d.fused) for d in choices.decisions()[-2:]) == 1


def test_what_joined_and_what_did_not_is_told(compiled, ours_is_fast, tmp_path, caplog):
    with caplog.at_level(logging.DEBUG, "inductor_flydsl"):
        _, _, (decision,) = compiled(
            lambda x, w: torch.cos(F.relu(x @ w.t()) + 1), random(M, K), random(N, K)
        )
    (text,) = decision.apart
    assert "operation cos has no kernel" in text and "cos" in text.partition(":")[0]
    assert not decision.fused and f"apart: {text}" in str(decision)
    _, _, (other,) = compiled(lambda x, w: F.relu(x @ w.t()) + 1, random(M, K), random(N, K))
    assert "relu" in other.fused[0] and not other.apart
    (told,), _ = logs.parse(r.getMessage() for r in caplog.records if r.levelname == "DEBUG")
    assert (told.apart, told.fused, told.chosen) == ([text], [], "FLYDSL")


def test_epilogue_fusion_can_be_turned_off(compiled, ours_is_fast):
    import torch._inductor.config as config

    with config.patch(epilogue_fusion=False):
        check(compiled, CHAINS["relu"], random(M, K), random(N, K), random(M, N), fused=False)


def test_a_trained_layer_has_right_gradients(compiled, ours_is_fast):
    x, w, b = (t.requires_grad_() for t in (random(M, K), random(N, K), random(N)))
    result, _, decisions = compiled(lambda x, w, b: F.gelu(F.linear(x, w, b)), x, w, b)
    grad = random(M, N)
    got = torch.autograd.grad(result, (x, w, b), grad)
    wide = [t.detach().double().requires_grad_() for t in (x, w, b)]
    exact = torch.autograd.grad(F.gelu(F.linear(*wide)), wide, grad.double())
    for g, e in zip(got, exact, strict=True):
        torch.testing.assert_close(g.double(), e, rtol=2**-5, atol=0.15)
    assert decisions


def test_on_the_emulator(compiled, monkeypatch):
    monkeypatch.setenv("INDUCTOR_FLYDSL_DEVICE", "emulator")

    def function(x, w, b, r):
        return r + F.gelu(F.linear(x, w, b), approximate="tanh") * 0.5

    check(compiled, function, random(2, 20, K), random(N, K), random(N), random(2, 20, N))
