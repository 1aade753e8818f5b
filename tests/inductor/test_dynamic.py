"""Dynamic M, K and batch: one compile and one kernel for all sizes, right at each of them."""

import json

import pytest
import sympy
import torch
import torch.fx.experimental._config as symbolic_config
import torch.nn.functional as F
from torch._dynamo.utils import counters

from inductor_flydsl import compiler, space
from inductor_flydsl.config import GemmConfig
from inductor_flydsl.errors import ProblemError
from inductor_flydsl.inductor import choices, extents, runtime
from inductor_flydsl.problem import GemmProblem

from .conftest import random

N, K = 56, 72
SIZES = (64, 7, 127, 300)


def run(function, make, sizes, dims):
    """Call one compiled function at every size, and compare each with float64.

    Args:
        make: size → inputs; dims: of each input, the dimension that is dynamic, or None.

    Returns:
        The decisions and the number of graphs.
    """
    before = len(choices.decisions())
    torch._dynamo.reset()
    counters.clear()
    fast = torch.compile(function, mode="max-autotune")
    for size in sizes:
        inputs = make(size)
        for tensor, dim in zip(inputs, dims, strict=True):
            if dim is not None:
                torch._dynamo.mark_dynamic(tensor, dim)
        with torch.no_grad():
            result = fast(*inputs)
        exact = function(*(x.double() for x in inputs))
        assert result.shape == exact.shape
        torch.testing.assert_close(result.double(), exact, rtol=2**-7, atol=2e-2)
    return choices.decisions()[before:], counters["stats"]["unique_graphs"]


def kernels(monkeypatch):
    """Specs of the kernels that generated code loads from now on."""
    seen = set()
    real = compiler.compile_spec

    def compile_spec(spec, *rest):
        seen.add(spec)
        return real(spec, *rest)

    monkeypatch.setattr(compiler, "compile_spec", compile_spec)
    return seen


CASES = {
    "rows": (lambda a, b: a @ b, lambda m: (random(m, K), random(K, N)), (0, None)),
    "columns of A": (lambda a, b: a.t() @ b, lambda m: (random(K, m), random(K, N)), (1, None)),
    "a part of the rows": (
        lambda a, b: a[1:, 8:] @ b,
        lambda m: (random(m + 1, K + 8), random(K, N)),
        (0, None),
    ),
    "bias and chain": (
        lambda a, w, b, r: r + F.gelu(F.linear(a, w, b)),
        lambda m: (random(m, K), random(N, K), random(N), random(m, N)),
        (0, None, None, 0),
    ),
    "a value a row": (
        lambda a, w, r: F.linear(a, w) * r,
        lambda m: (random(m, K), random(N, K), random(m, 1)),
        (0, None, 0),
    ),
    "a turned residual": (
        lambda a, w, r: F.linear(a, w) + r.t(),
        lambda m: (random(m, K), random(N, K), random(N, m)),
        (0, None, 1),
    ),
    "three dimensions": (
        lambda a, w, r: F.silu(F.linear(a, w)) * r,
        lambda m: (random(2, m, K), random(N, K), random(2, m, N)),
        (1, None, 1),
    ),
    "rows of a batch": (
        lambda a, b, r: F.gelu(a @ b) + r,
        lambda m: (random(3, m, K), random(3, K, N), random(3, m, N)),
        (1, None, 1),
    ),
    "the batch": (
        lambda a, b, r: F.gelu(a @ b) + r,
        lambda m: (random(m, 17, K), random(m, K, N), random(m, 17, N)),
        (0, 0, 0),
    ),
    "the batch of one operand": (
        lambda a, b: torch.bmm(a, b.expand(a.shape[0], K, N)),
        lambda m: (random(m, 17, K), random(1, K, N)),
        (0, None),
    ),
    "bias of a batch": (
        torch.baddbmm,
        lambda m: (random(m, 17, N), random(m, 17, K), random(m, K, N)),
        (0, 0, 0),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_one_graph_for_all_sizes(ours_is_fast, name):
    sizes = (4, 7, 2) if "batch" in name and "rows" not in name else SIZES
    # A multiple of 8 would be one that is compiled for multiples.
    sizes = sizes if name != "columns of A" else (63, *SIZES)
    (decision,), graphs = run(*CASES[name][:2], sizes, CASES[name][2])
    assert (decision.chosen, graphs) == ("FLYDSL", 1)
    hint = sizes[0] * (2 if name == "three dimensions" else 1)
    assert hint in (decision.problem.m, decision.problem.batch)
    assert decision.dynamic and f"dynamic, tuned at {hint}" in str(decision)


def test_a_size_of_one_too_where_dynamo_is_told_not_to_fix_it(ours_is_fast):
    function, make, dims = CASES["bias and chain"]
    with symbolic_config.patch(backed_size_oblivious=True):
        (decision,), graphs = run(function, make, (64, 1, 7, 300), dims)
    assert (decision.chosen, graphs) == ("FLYDSL", 1)


def test_rows_that_nothing_is_known_of_none_too(ours_is_fast):
    """Unbacked sizes have no hint and no guard: one graph serves 0 and 1 as well."""
    before = len(choices.decisions())
    counters.clear()
    fast = torch.compile(lambda a, b, r: F.gelu(a @ b) + r, mode="max-autotune")
    for m in (64, 1, 0, 7, 300):
        a, b, r = random(m, K), random(K, N), random(m, N)
        for tensor in (a, r):
            torch._dynamo.decorators.mark_unbacked(tensor, 0)
        with torch.no_grad():
            result = fast(a, b, r)
        exact = F.gelu(a.double() @ b.double()) + r.double()
        torch.testing.assert_close(result.double(), exact, rtol=2**-7, atol=2e-2)
    (decision,) = choices.decisions()[before:]
    assert decision.chosen == "FLYDSL" and counters["stats"]["unique_graphs"] == 1


def test_alignment_holds_for_every_size(ours_is_fast):
    """Where columns of A are M apart, an M of 64 says nothing of the alignment at 7: multiples of
    8 have a kernel that loads 16 bytes at once, all others share another one."""
    function, make, dims = CASES["columns of A"]
    found, graphs = run(function, make, (64, 128, 7, 300, 72, 9), dims)
    assert [(d.problem.m, d.problem.a_align) for d in found] == [(64, 16), (7, 2)]
    assert graphs == 2
    (decision,), graphs = run(function, make, (7, 64, 300), dims)
    assert (decision.problem.a_align, graphs) == (2, 1)
    (decision,), _ = run(*CASES["rows"][:2], SIZES, (0, None))
    assert decision.problem.a_align == 16


def test_only_what_is_dynamic_is_named():
    s, t = sympy.symbols("s0 s1")
    assert extents.static_extents(n=48, k=sympy.Integer(64)) == {"n": 48, "k": 64}
    for asked, words in (
        ({"n": 48, "k": s}, r"K may not be dynamic \(K = s0\):"),
        ({"n": s, "k": 64}, r"N may not be dynamic \(N = s0\):"),
        ({"n": s, "k": t}, r"N and K may not be dynamic \(N = s0, K = s1\):"),
    ):
        with pytest.raises(extents.Declined, match=words):
            extents.static_extents(**asked)


SUMS = {
    "gradient of weights": (
        lambda dy, x: dy.t() @ x,
        lambda m: (random(m, 48), random(m, N)),
        (0, 0),
    ),
    "rows of K": (lambda a, b: a @ b, lambda k: (random(40, k), random(k, N)), (1, 0)),
    "bias": (
        lambda c, a, b: torch.addmm(c, a.t(), b).relu(),
        lambda k: (random(N), random(k, 40), random(k, N)),
        (None, 0, 0),
    ),
    "a batch": (
        lambda a, b: a.mT @ b,
        lambda k: (random(3, k, 40), random(3, k, N)),
        (1, 1),
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_a_dynamic_k_has_one_kernel_for_whole_steps_and_one_for_all(ours_is_fast, name):
    function, make, dims = SUMS[name]
    found, graphs = run(function, make, (128, 256, 7, 300, 512, 33), dims)
    assert [d.chosen for d in found] == ["FLYDSL"] * 2 and graphs == 2
    assert [d.problem.k for d in found] == [128, 7]
    assert found[0].problem.k % found[0].config.tile_k == 0
    assert "K dynamic, tuned at 7" in str(found[1])
    (_,), graphs = run(function, make, (63, 64, 1024, 2), dims)
    assert graphs == 1


UNKNOWN = {
    "weights' gradient": lambda c, a, b: a.t() @ b,
    "bias": lambda c, a, b: torch.addmm(c, a.t(), b).relu(),
    "a batch": lambda c, a, b: (a.view(-1, 2, 20).permute(1, 2, 0) @ b) + 1,
}


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.parametrize("device", ["reference", "emulator"])
def test_a_k_that_nothing_is_known_of(request, device, name):
    """The rows that a mask selects, as in routing to experts: any number of them, 0 too."""
    request.getfixturevalue("ours_is_fast" if device == "reference" else "real_kernels")
    before = len(choices.decisions())
    counters.clear()
    fast = torch.compile(UNKNOWN[name], mode="max-autotune")
    for k in (64, 1, 0, 7, 128, 33):
        c, a, b = random(N), random(k, 40), random(k, N)
        for tensor in (a, b):
            torch._dynamo.decorators.mark_unbacked(tensor, 0)
        with torch.no_grad():
            result = fast(c, a, b)
        exact = UNKNOWN[name](*(x.double() for x in (c, a, b)))
        torch.testing.assert_close(result.double(), exact, rtol=2**-7, atol=2e-2)
    (decision,) = choices.decisions()[before:]
    assert decision.chosen == "FLYDSL" and counters["stats"]["unique_graphs"] == 1, decision


def test_a_mask_of_indices_counts_dynamic_rows(ours_is_fast, monkeypatch):
    """One kernel for all M, up to where fp32 no longer counts them."""

    def function(a, b):
        rows = torch.arange(a.shape[0])[:, None]
        return torch.where(rows >= 3 * torch.arange(N) - 40, a @ b, float("-inf"))

    make = CASES["rows"][1]
    (decision,), graphs = run(function, make, SIZES, (0, None))
    assert (decision.chosen, graphs) == ("FLYDSL", 1) and decision.fused, decision
    monkeypatch.setattr(space, "INDEX_EXTENT", 100)
    found, graphs = run(function, make, (64, 7, 100, 101, 300), (0, None))
    assert [bool(d.fused) for d in found] == [True, False] and graphs == 2
    assert "counts rows and columns up to 100" in found[1].apart[0]


def test_a_size_beyond_the_limit_compiles_again(ours_is_fast, monkeypatch):
    monkeypatch.setattr(space, "INT32_MAX", 100)
    function, make, dims = CASES["rows"]
    found, graphs = run(function, make, (64, 7, 100, 101, 300), dims)
    assert [d.chosen for d in found] == ["FLYDSL", "ATEN"] and graphs == 2
    assert "m=101 does not fit" in found[1].reason


def launch():
    config = GemmConfig(tile_m=16, tile_n=16, tile_k=32, stages=2, waves_m=1, waves_n=1)
    made = runtime.Launch(
        problem=GemmProblem.dense(64, N, K),
        config=config,
        device="reference",
        torch_device="cpu",
        arch="gfx950",
        dynamic=("m",),
    )
    assert runtime.Launch.from_text(json.dumps(json.loads(made.to_text()))) == made
    return runtime.Kernel(made.to_text())


def test_sizes_that_no_launch_can_have_are_refused():
    with pytest.raises(ProblemError, match="m=2147483648 does not fit"):
        launch().at(2**31)


def test_a_size_of_zero_launches_nothing():
    c = torch.empty(0, N, dtype=torch.bfloat16)
    launch().at(0)(c, random(0, K), random(K, N))


def test_launches_are_kept_by_size(monkeypatch):
    kernel = launch()
    assert kernel.at(7) is kernel.at(7) and kernel.at(7) is not kernel.at(8)
    monkeypatch.setattr(runtime, "KEPT_SIZES", 2)
    kept = kernel.at(7)
    assert kernel.at(9) is kernel.at(9) and kernel.at(7) is not kept


@pytest.mark.usefixtures("real_kernels")
class TestEmulator:
    """The same with a real kernel: compiled once."""

    @pytest.mark.parametrize("sizes", [(64, 1, 7, 127, 300)])
    def test_rows(self, monkeypatch, sizes):
        seen = kernels(monkeypatch)
        with symbolic_config.patch(backed_size_oblivious=True):
            (decision,), graphs = run(*CASES["rows"][:2], sizes, (0, None))
        assert (decision.chosen, graphs, len(seen)) == ("FLYDSL", 1, 1)

    @pytest.mark.parametrize("name", ["columns of A", "rows of a batch", "bias and chain"])
    def test_others(self, monkeypatch, name):
        seen = kernels(monkeypatch)
        (decision,), graphs = run(*CASES[name][:2], (20, 7, 33), CASES[name][2])
        # The chain makes another kernel of the one that was tried.
        assert (decision.chosen, graphs) == ("FLYDSL", 1) and len(seen) <= 2

    @pytest.mark.parametrize("sizes", [(128, 256, 7, 33), (33, 64, 2, 200)])
    def test_k(self, monkeypatch, sizes):
        seen = kernels(monkeypatch)
        function, make, dims = SUMS["bias"]
        found, graphs = run(function, make, sizes, dims)
        assert {d.chosen for d in found} == {"FLYDSL"}
        assert graphs == len(found) == (2 if sizes[0] == 128 else 1) and len(seen) <= 4

    def test_the_workspace_of_split_k_is_shared(self, monkeypatch):
        from inductor_flydsl.devices import extras

        made = []
        real = extras.Workspace.on

        def on(self, *rest):
            pieces = real(self, *rest)
            made.extend(tensor.data_ptr() for tensor in pieces.values())
            return pieces

        monkeypatch.setattr(extras.Workspace, "on", on)
        every = space.candidates

        def split(*args):
            return [config for config in every(*args) if config.split_k > 1]

        monkeypatch.setattr(space, "candidates", split)
        function, _, dims = CASES["rows"]
        wide = 520
        (decision,), graphs = run(
            function, lambda m: (random(m, wide), random(wide, N)), (20, 17, 24), dims
        )
        assert decision.config.split_k > 1 and graphs == 1
        # The last launches need no more than the first, so they use its memory.
        assert len(set(made[-6:])) == 2


def test_a_dynamic_size_as_a_number_says_so(ours_is_fast):
    def function(a, b):
        return (a @ b) * a.shape[1] ** -0.5

    found, _ = run(function, lambda k: (random(48, k), random(k, N)), (64, 128), (1, 0))
    apart = [text for d in found for text in d.apart]
    assert apart and all("a dynamic size, is used as a number" in text for text in apart), apart
