"""Dynamic N: one compile and one kernel for all sizes that no guard tells apart."""

import math

import pytest
import torch
import torch.fx.experimental._config as symbolic_config
import torch.nn.functional as F
from torch._dynamo.utils import counters

from inductor_flydsl import space
from inductor_flydsl.inductor import choices

from .conftest import random
from .test_dynamic import kernels, run

M, K = 40, 72
# The first is no multiple of 8: all share one kernel.
SIZES = (63, 64, 7, 130, 301, 2)

CASES = {
    "columns": (lambda a, b: a @ b, lambda n: (random(M, K), random(K, n)), (None, 1)),
    "rows of weights": (F.linear, lambda n: (random(M, K), random(n, K)), (None, 0)),
    "columns of A too": (
        lambda a, b: a.t() @ b,
        lambda n: (random(K, M), random(K, n)),
        (None, 1),
    ),
    "one row": (lambda a, b: torch.mm(a, b), lambda n: (random(1, K), random(K, n)), (None, 1)),
    "bias and chain": (
        lambda a, w, b, r: r + F.gelu(F.linear(a, w, b)),
        lambda n: (random(M, K), random(n, K), random(n), random(M, n)),
        (None, 0, 0, 1),
    ),
    "a bias a row": (
        lambda a, w, b: torch.addmm(b, a, w.t(), beta=0.5, alpha=2),
        lambda n: (random(M, K), random(n, K), random(M, 1)),
        (None, 0, None),
    ),
    "a part of the columns": (
        lambda a, b: a @ b[:, 3:],
        lambda n: (random(M, K), random(K, n + 3)),
        (None, 1),
    ),
    "a batch": (
        lambda a, b, r: F.silu(a @ b) * r,
        lambda n: (random(3, M, K), random(3, K, n), random(3, M, n)),
        (None, 2, 2),
    ),
    "bias of a batch": (
        torch.baddbmm,
        lambda n: (random(1, 1, n), random(3, M, K), random(3, K, n)),
        (2, None, 2),
    ),
    "scores": (
        lambda q, k: q @ k.mT * 0.125,
        lambda n: (random(2, 3, n, 64), random(2, 3, n, 64)),
        (2, 2),
    ),
    "masked scores": (
        lambda q, k, m: q @ k.mT + m,
        lambda n: (random(2, 3, n, 64), random(2, 3, n, 64), random(1, 1, n, n)),
        (2, 2, (2, 3)),
    ),
    "scores of one query": (
        lambda q, k: torch.bmm(q, k.mT).relu(),
        lambda n: (random(3, 5, 64), random(3, n, 64)),
        (None, 1),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_graph_for_all_sizes(ours_is_fast, name):
    (decision,), graphs = run(*CASES[name][:2], SIZES, CASES[name][2])
    assert (decision.chosen, graphs) == ("FLYDSL", 1), decision
    assert decision.problem.n == SIZES[0] and "N dynamic, tuned at 63" in str(decision)
    assert not decision.apart, decision
    assert decision.problem.c_align == decision.problem.out_dtype.bytes


@pytest.mark.parametrize("name", ["columns", "bias and chain", "masked scores"])
def test_multiples_of_8_have_a_kernel_of_their_own(ours_is_fast, name):
    """Stores of 16 bytes would cover what follows a row of 63."""
    function, make, dims = CASES[name]
    found, graphs = run(function, make, (64, 128, 63, 72, 301, 8), dims)
    assert graphs == 2 and [d.chosen for d in found] == ["FLYDSL"] * 2
    assert [(d.problem.n, d.problem.c_align) for d in found] == [(64, 16), (63, 2)]


def test_columns_that_nothing_is_known_of_none_too(ours_is_fast):
    """Unbacked sizes have no hint and no guard: one graph serves 0 and 1 as well."""
    before = len(choices.decisions())
    counters.clear()
    fast = torch.compile(lambda a, w: F.gelu(F.linear(a, w)), mode="max-autotune")
    for n in (64, 1, 0, 7, 300):
        a, w = random(M, K), random(n, K)
        torch._dynamo.decorators.mark_unbacked(w, 0)
        with torch.no_grad():
            result = fast(a, w)
        exact = F.gelu(F.linear(a.double(), w.double()))
        torch.testing.assert_close(result.double(), exact, rtol=2**-7, atol=2e-2)
    (decision,) = choices.decisions()[before:]
    assert decision.chosen == "FLYDSL" and counters["stats"]["unique_graphs"] == 1
    assert decision.problem.c_align == 2


def attention(q, k, v, mask=None):
    """With capped scores, so that Inductor finds no pattern of a fused kernel in it."""
    scores = 3 * torch.tanh(q @ k.mT / math.sqrt(q.shape[-1]))
    if mask is not None:
        scores = scores + mask
    return torch.softmax(scores, -1) @ v / 2


HEADS = 3


def heads(length, queries=None, batch=2):
    """q, k and v as a model has them: heads behind the positions in memory."""
    shapes = [(batch, x, HEADS, 16) for x in (queries or length, length, length)]
    return tuple(random(*shape) for shape in shapes)


def turned(*tensors):
    return (t.transpose(1, 2) for t in tensors)


ATTENTION = {
    "whole": (lambda q, k, v: attention(*turned(q, k, v)), heads, (1, 1, 1)),
    "masked": (
        lambda q, k, v, m: attention(*turned(q, k, v), m),
        lambda n: (*heads(n), random(1, 1, n, n)),
        (1, 1, 1, (2, 3)),
    ),
    "causal": (
        lambda q, k, v: attention(*turned(q, k, v), above(q.shape[1], q.dtype)),
        heads,
        (1, 1, 1),
    ),
    "one token against a cache": (
        lambda q, k, v: attention(*turned(q, k, v)),
        lambda n: heads(n, 4),
        (None, 1, 1),
    ),
}


def above(length, dtype):
    """A causal mask."""
    places = torch.arange(length)
    return torch.where(places[None] > places[:, None], float("-inf"), 0.0).to(dtype)


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_of_any_length(ours_is_fast, name):
    """Scores have N dynamic, and what they weigh K."""
    found, graphs = run(*ATTENTION[name][:2], (63, 64, 7, 130, 33, 301), ATTENTION[name][2])
    assert [d.chosen for d in found] == ["FLYDSL"] * 2 and graphs == 1
    assert ("n" in found[0].dynamic, "k" in found[1].dynamic) == (True, True)


def test_every_extent_of_a_batch(ours_is_fast):
    """Nothing of the product is known when it is compiled, as with ``dynamic=True``."""

    def make(n):
        return random(n % 5 + 2, n, n + 8), random(n % 5 + 2, n + 8, n + 3)

    sizes = (63, 64, 7, 130, 33)
    (decision,), graphs = run(torch.bmm, make, sizes, ((0, 1, 2), (0, 1, 2)))
    assert (decision.chosen, graphs) == ("FLYDSL", 1), decision
    assert set(decision.dynamic) >= {"batch", "m", "n", "k"}


def test_a_size_beyond_the_limit_compiles_again(ours_is_fast, monkeypatch):
    monkeypatch.setattr(space, "INT32_MAX", 100)
    function, make, dims = CASES["rows of weights"]
    found, graphs = run(function, make, (63, 7, 100, 101, 300), dims)
    assert [d.chosen for d in found] == ["FLYDSL", "ATEN"] and graphs == 2
    assert "n=101 does not fit" in found[1].reason


def test_scaled_products_too(compiled, ours_is_fast):
    """FP8 weights of any number of rows, a scale each."""

    def function(a, w, scale_a, scale_w):
        return torch._scaled_mm(a, w.t(), scale_a, scale_w.t(), out_dtype=torch.bfloat16)

    fast = torch.compile(function, mode="max-autotune")
    torch._dynamo.reset()
    counters.clear()
    for n in (48, 80, 112):
        a, w = (random(r, 64).to(torch.float8_e4m3fn) for r in (32, n))
        scales = torch.rand(32, 1) + 0.5, torch.rand(n, 1) + 0.5
        torch._dynamo.mark_dynamic(w, 0)
        torch._dynamo.mark_dynamic(scales[1], 0)
        result = fast(a, w, *scales)
        exact = (a.double() * scales[0]) @ (w.double() * scales[1]).t()
        torch.testing.assert_close(result.double(), exact, rtol=2**-7, atol=1e-3)
    assert {d.chosen for d in choices.decisions()} == {"FLYDSL"}, choices.decisions()
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.usefixtures("real_kernels")
@pytest.mark.parametrize("sizes", [(63, 1, 16, 130), (64, 8, 200)])
@pytest.mark.parametrize("name", ["columns", "bias and chain", "masked scores"])
def test_on_the_emulator(monkeypatch, name, sizes):
    """The same with a real kernel: compiled once, and once more with its epilogue."""
    seen = kernels(monkeypatch)
    function, make, dims = CASES[name]
    # One row of scores meets a mask of one number, which is another graph.
    sizes = [n for n in sizes if n > 1 or name != "masked scores"]
    with symbolic_config.patch(backed_size_oblivious=True):
        (decision,), graphs = run(function, make, sizes, dims)
    assert (decision.chosen, graphs) == ("FLYDSL", 1) and len(seen) <= 2
    assert not decision.apart


@pytest.mark.usefixtures("real_kernels")
def test_attention_on_the_emulator():
    found, graphs = run(*ATTENTION["causal"][:2], (33, 7, 50), ATTENTION["causal"][2])
    assert [d.chosen for d in found] == ["FLYDSL"] * 2 and graphs == 1
