"""Bias and pointwise chains join the kernel of their product; what cannot stays apart and right."""

import logging

import pytest
import torch
import torch.nn.functional as F

from inductor_flydsl import logs
from inductor_flydsl.fusion import Fusion, TorchOps
from inductor_flydsl.inductor import choices, epilogue, handlers

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
    assert ("cpp_fused" not in code) == fused, (decisions, code)
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
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_a_cast_is_part_of_it(compiled, ours_is_fast, kind, out):
    def function(x, w):
        y = F.relu(x @ w.t())
        return y - 0.5 if x.dtype is torch.float64 else (y.to(torch.float32) - 0.5).to(out)

    check(compiled, function, random(M, K, dtype=kind), random(N, K, dtype=kind))


MASKS = {
    "full": (M, N), "row": (N,), "column": (M, 1), "one": (1, 1), "batched rows": (1, N)
}  # fmt: skip


@pytest.mark.parametrize("shape", MASKS.values(), ids=MASKS)
def test_a_stored_mask_is_read_by_the_kernel(compiled, ours_is_fast, shape):
    mask = torch.rand(shape) > 0.5

    def function(x, w):
        y = torch.where(mask, x @ w.t(), -1.5)
        return y.masked_fill(~mask & (y < -2), 3.0)

    check(compiled, function, random(M, K), random(N, K))


def test_a_mask_that_was_dropped_out_with(compiled, ours_is_fast):
    mask = torch.rand(M, N) > 0.25
    check(compiled, lambda x, w: (x @ w.t()) * mask * (1 / 0.75), random(M, K), random(N, K))


INDEXED = {
    "tril": lambda x, w: torch.tril(x @ w.t()),
    "triu": lambda x, w: torch.triu(x @ w.t(), 3),
    "arange": lambda x, w: torch.where(
        torch.arange(M)[:, None] >= 2 * torch.arange(N) - 7, x @ w.t(), float("-inf")
    ),
    "window": lambda x, w: torch.where(
        (torch.arange(M)[:, None] - torch.arange(N)).abs() < 8, x @ w.t(), 0.0
    ),
    "positions": lambda x, w: (x @ w.t()) * 0.5 + torch.arange(N),
    "heads": lambda x, w: torch.where(
        torch.arange(20)[:, None] >= torch.arange(N), (x @ w.t()).view(2, 20, N), 0.0
    ),
}


@pytest.mark.parametrize("function", INDEXED.values(), ids=INDEXED)
def test_a_mask_of_indices_is_computed_in_the_kernel(compiled, ours_is_fast, function):
    if function is INDEXED["heads"]:
        # Rows of C count through the batches, so a row of a batch is no sum of them.
        check(compiled, function, random(M, K), random(N, K), fused=False)
        assert "do not follow" in choices.decisions()[-1].apart[0]
        return
    check(compiled, function, random(M, K), random(N, K))


def test_a_causal_mask_of_attention(compiled, ours_is_fast):
    def function(q, k):
        seen = torch.arange(40)[:, None] >= torch.arange(48)
        return torch.where(seen, q @ k.mT * 0.125, float("-inf"))

    check(compiled, function, random(3, 40, 64), random(3, 48, 64))


def test_whole_numbers_that_fp32_does_not_hold_stay_apart(compiled, ours_is_fast):
    def function(x, w):
        far = torch.arange(N) * 1_000_003 > 20 * 1_000_003
        return torch.where(far, x @ w.t(), 0.0)

    check(compiled, function, random(M, K), random(N, K), fused=False)
    assert "not exact in float32" in choices.decisions()[-1].apart[0]


@pytest.mark.parametrize("name", ["log1p", "expm1"])
def test_operations_that_are_composed_keep_small_numbers(name):
    """In fp32, against float64, from numbers that 1 + x or exp(x) - 1 would lose."""
    chain = epilogue.Program((1, 8, 8))
    product = handlers.Value(chain.emit("acc"))
    getattr(handlers.Handler(chain, None), name)(product)
    x = torch.cat([torch.logspace(-30, 4, 2000), torch.tensor([0.0, float("inf"), -0.0])])
    x = torch.cat([x, -x[x < (0.99 if name == "log1p" else 1e9)]])
    got = Fusion(nodes=tuple(chain.nodes)).evaluate(TorchOps(), x, [])
    torch.testing.assert_close(got, getattr(torch, name)(x), rtol=1e-6, atol=0)
    special = torch.tensor([float("nan"), -1.0, float("-inf")])
    got = Fusion(nodes=tuple(chain.nodes)).evaluate(TorchOps(), special, [])
    torch.testing.assert_close(got, getattr(torch, name)(special), equal_nan=True)


@pytest.mark.parametrize("activation", [F.softplus, F.elu, F.mish])
def test_activations_of_composed_operations(compiled, ours_is_fast, activation):
    check(compiled, lambda x, w: activation(x @ w.t() * 0.25), random(M, K), random(N, K))


FOLLOWERS = {
    "is a reduction": lambda y: torch.softmax(y, 1),
    "gathers": lambda y: y[torch.tensor([3, 1, 2])],
    "not stored row by row": lambda y: y.t().contiguous(),
    "do not follow": lambda y: y.view(2, 20, 7, 8).transpose(1, 2).contiguous(),
    "not element by element": lambda y: F.silu(y[:, :28]) * y[:, 28:],
    "kernels store": lambda y: y > 0,
    "mutates or aliases": lambda y: torch.cat([y, y * 2], 1),
}


@pytest.mark.parametrize("reason", FOLLOWERS)
def test_whatever_runs_apart_has_a_reason(compiled, ours_is_fast, caplog, reason):
    """Reductions, gathers and views too, for which Inductor never asks whether they fuse."""
    function = FOLLOWERS[reason]
    with caplog.at_level(logging.INFO, "inductor_flydsl"):
        compiled(lambda x, w: function(x @ w.t()), random(M, K), random(N, K))
    apart = [text for d in choices.decisions() for text in d.apart]
    assert any(reason in text for text in apart), apart
    assert reason in caplog.text and "stays apart" in caplog.text


def test_a_library_call_after_the_product_is_not_told(compiled, ours_is_fast):
    def function(x, w, v):
        return (x @ w.t()) @ v

    inputs = random(M, K), random(N, K), random(N, 24)
    _, _, decisions = compiled(function, *inputs)
    assert [d.apart for d in decisions] == [(), ()]


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
