"""Products with a batch: `aten.bmm`, `aten.baddbmm` and what becomes one of them."""

import pytest
import torch
import torch._inductor.config as inductor_config
import torch.nn.functional as F

from .conftest import assert_product, random

BATCH, M, N, K = 3, 40, 56, 72


def calls(code):
    return [line for line in code.splitlines() if "flydsl_kernel_" in line and "= " not in line]


def check(compiled, function, *inputs, fused=True):
    """Compile, compare with float64, and see that one kernel of ours is all there is."""
    result, code, decisions = compiled(function, *inputs)
    exact = function(*(x.double() for x in inputs))
    assert result.shape == exact.shape and result.stride() == function(*inputs).stride()
    torch.testing.assert_close(result.double(), exact, rtol=2**-7, atol=2e-2)
    assert [d.chosen for d in decisions] == ["FLYDSL"], decisions
    assert len(calls(code)) == 1 and "extern_kernels." not in code
    assert ("cpp_fused" not in code) == fused, code
    return decisions[0].problem


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_every_layout_and_dtype(compiled, ours_is_fast, layout, dtype):
    a = random(BATCH, M, K) if layout[0] == "N" else random(BATCH, K, M).mT
    b = random(BATCH, K, N) if layout[1] == "N" else random(BATCH, N, K).mT
    a, b = a.to(dtype), b.to(dtype)
    problem = check(compiled, torch.bmm, a, b)
    assert (problem.layout.value, problem.batch) == (layout, BATCH)
    assert (problem.a_batch, problem.b_batch, problem.c_batch) == (M * K, K * N, M * N)


def test_a_batch_of_one_is_a_plain_product(compiled, ours_is_fast):
    problem = check(compiled, torch.bmm, random(1, M, K), random(1, K, N))
    assert (problem.batch, problem.a_batch, problem.c_batch) == (1, 0, 0)


VIEWS = {
    "offset": (lambda x: x[1:, 3:37, 5:], (BATCH + 1, M, K)),
    "every second batch": (lambda x: x[::2], (2 * BATCH, M, K)),
    "every second row": (lambda x: x[:, ::2], (BATCH, M, K)),
    "batch inside": (lambda x: x.permute(1, 0, 2), (M, BATCH, K)),
    "batch innermost": (lambda x: x.permute(2, 0, 1).contiguous(), (M, K, BATCH)),
    "one for all": (lambda x: x.expand(BATCH, M, K), (1, M, K)),
    "one of them for all": (lambda x: x[1:2].expand(BATCH, M, K), (2, M, K)),
    "overlapping windows": (lambda x: x.as_strided((BATCH, M, K), (8, 16, 1), 3), (2, M, K)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(compiled, ours_is_fast, name):
    view, shape = VIEWS[name]
    x = random(*shape)
    batch, rows, k = view(x).shape
    made = "innermost" in name
    check(compiled, lambda x, b: view(x) @ b, x, random(batch, k, N), fused=not made)
    # The other operand, through the transposed product.
    check(compiled, lambda x, b: b @ view(x).mT, x, random(batch, N, k), fused=not made)


@pytest.mark.parametrize(
    "shape", [(N,), (M, 1), (M, N), (1, N), (BATCH, 1, N), (BATCH, M, 1), (BATCH, 1, 1), (1, 1, N)]
)
def test_baddbmm_reads_its_bias(compiled, ours_is_fast, shape):
    bias = random(*shape)
    problem = check(compiled, torch.baddbmm, bias, random(BATCH, M, K), random(BATCH, K, N))
    ((batch, row, column),) = problem.tensors
    sizes = [1] * (3 - bias.dim()) + list(bias.shape)
    assert [step != 0 for step in (batch, row, column)] == [size != 1 for size in sizes]


@pytest.mark.parametrize("alpha, beta", [(0.5, 1), (2, -0.25), (1, 0)])
def test_alpha_and_beta(compiled, ours_is_fast, alpha, beta):
    def function(bias, a, b):
        return F.relu(torch.baddbmm(bias, a, b, alpha=alpha, beta=beta))

    check(compiled, function, random(N), random(BATCH, M, K), random(BATCH, K, N))


CHAINS = {
    "gelu": lambda a, b, r: F.gelu(a @ b),
    "residual": lambda a, b, r: r + a @ b,
    "per batch": lambda a, b, r: (a @ b) * r[:, :1, :1],
    "per row": lambda a, b, r: (a @ b) + r[:, :, :1],
    "row of one batch": lambda a, b, r: (a @ b) + r[1, 3],
    "matrix of one batch": lambda a, b, r: F.silu(a @ b) * r[2],
    "flattened": lambda a, b, r: F.gelu(a @ b).view(-1, N) + r.view(-1, N),
    "split rows": lambda a, b, r: (a @ b).view(BATCH, 4, -1, N) * r.view(BATCH, 4, -1, N),
    "permuted": lambda a, b, r: (a @ b).permute(1, 0, 2) + r.permute(1, 0, 2),
    "cast": lambda a, b, r: (a @ b).to(r.dtype) * 3,
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_is_one_kernel(compiled, ours_is_fast, name):
    function = CHAINS[name]
    kind = torch.float32 if name == "cast" else torch.bfloat16
    inputs = (random(BATCH, M, K), random(BATCH, K, N), random(BATCH, M, N, dtype=kind))
    check(compiled, function, *inputs)


def test_heads_of_attention(compiled, ours_is_fast):
    def function(q, k, mask):
        return torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.125 + mask

    inputs = (random(2, 20, 3, 32), random(2, 28, 3, 32), random(20, 28))
    # Batches and heads are no one batch index: Inductor copies the operands into ones that have it.
    check(compiled, function, *inputs, fused=False)


@pytest.mark.parametrize("name", ["matmul", "einsum", "linear", "broadcast matmul"])
def test_what_becomes_a_product(compiled, ours_is_fast, name):
    functions = {
        "matmul": (torch.matmul, (2, 3, M, K), (2, 3, K, N)),
        "einsum": (lambda a, b: torch.einsum("bmk,bnk->bmn", a, b), (BATCH, M, K), (BATCH, N, K)),
        "linear": (F.linear, (BATCH, M, K), (N, K)),
        "broadcast matmul": (torch.matmul, (1, M, K), (BATCH, K, N)),
    }
    function, *shapes = functions[name]
    check(compiled, function, *(random(*shape) for shape in shapes))


def test_alone_and_declined_it_still_compiles(compiled):
    a, b, r = torch.randn(BATCH, M, K), torch.randn(BATCH, K, N), torch.randn(N)
    with inductor_config.patch(max_autotune_gemm_backends="FLYDSL"):
        for function, inputs in ((torch.bmm, (a, b)), (torch.baddbmm, (r, a, b))):
            result, code, (decision,) = compiled(function, *inputs)
            assert decision.chosen == "ATEN" and "float32 has no kernel" in decision.reason
            torch.testing.assert_close(result, function(*inputs))


@pytest.mark.usefixtures("real_kernels")
class TestEmulator:
    """The same with real kernels."""

    @pytest.mark.parametrize("shape", [(3, 33, 24, 40), (2, 7, 9, 33), (5, 17, 130, 8)])
    def test_odd_sizes(self, compiled, shape):
        batch, m, n, k = shape
        a, b = random(batch, m, k), random(batch, n, k).mT
        result, _, (decision,) = compiled(torch.bmm, a, b)
        assert decision.chosen == "FLYDSL"
        assert_product(result, a, b)

    @pytest.mark.parametrize("name", ["offset", "one for all", "batch inside"])
    def test_views(self, compiled, name):
        view, shape = VIEWS[name]
        x = random(*shape)
        b = random(view(x).shape[0], view(x).shape[2], 24)
        result, _, (decision,) = compiled(lambda x, b: view(x) @ b, x, b)
        assert decision.chosen == "FLYDSL"
        assert_product(result, view(x), b)

    @pytest.mark.parametrize("shape", [(24,), (33, 1), (3, 33, 24)])
    def test_a_bias_and_a_chain(self, compiled, shape):
        def function(bias, a, b, r):
            return F.silu(torch.baddbmm(bias, a, b, alpha=0.5, beta=2)) * r

        inputs = (random(*shape), random(3, 33, 40), random(3, 40, 24), random(3, 33, 24))
        check(compiled, function, *inputs)
