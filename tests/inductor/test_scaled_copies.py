"""Scaled operands that do not run along K: a kernel for them as they lie, and one after copies."""

import dataclasses

import pytest
import torch
from torch.nn import functional

from inductor_flydsl import copies
from inductor_flydsl.inductor import caller

from .test_scaled_mm import E4M3, FP4, assert_close, elements, exact, mx

pytestmark = pytest.mark.skipif(
    not hasattr(functional, "scaled_mm"), reason=f"torch {torch.__version__} has no scaled_mm"
)
__all__ = ["mx"]
M, N, K = 32, 48, 128


def product(a, b, scale_a, scale_b):
    return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16)


def turned(rows):
    """The same matrix with rows as neighbours, in lines that no DMA could load."""
    wide = torch.zeros(rows.shape[1], rows.shape[0] + 1, dtype=torch.uint8)
    wide[:, :-1] = rows.view(torch.uint8).t()
    return wide.view(rows.dtype)[:, :-1].t()


def inputs(a_along_k=False, b_along_k=False):
    """A and B with rows as neighbours unless said, and a scale a row of A and a column of B."""
    generator = torch.Generator().manual_seed(8)
    a, b = elements(M, K, E4M3, generator), elements(N, K, E4M3, generator)
    a = a if a_along_k else turned(a)
    b = b.t() if b_along_k else turned(b).t()
    return a, b, torch.rand(M, 1, generator=generator), torch.rand(1, N, generator=generator)


def check(result, a, b, scale_a, scale_b):
    assert_close(result, a.double() @ b.double() * scale_a.double() * scale_b.double())


@pytest.fixture
def copies_take(monkeypatch):
    """``copies_take(us)``: what the model says of every copy."""
    along_k = copies.along_k

    def take(us):
        def made(problem, arch):
            found = along_k(problem, arch)
            return found and dataclasses.replace(found, us=us)

        monkeypatch.setattr(copies, "along_k", made)

    return take


@pytest.mark.parametrize("us", [0.001, 1e6])
def test_on_the_emulator_the_shorter_sum_is_taken(compiled, real_kernels, copies_take, us):
    copies_take(us)
    result, code, (*_, decision) = compiled(product, *inputs())
    check(result, *inputs())
    rows = [t.name for t in decision.times if t.clock == "emulated"]
    assert len(rows) == 2
    assert any(name.endswith("TN as operands lie") for name in rows)
    assert any(name.endswith(f"NT and copies ({us:.2f} us, predicted)") for name in rows)
    copied = us < 1
    assert decision.winner == rows[copied]
    assert decision.problem.layout.value == ("NT" if copied else "TN")
    assert ("cpp_fused" in code) == copied
    slow, fast = sorted((t.us for t in decision.times if t.us is not None), reverse=True)
    assert slow - fast > us / 2 if us > 1 else slow > fast


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("operand", ["a", "b", "ab"])
def test_where_choices_are_timed_the_copy_is_too(compiled, monkeypatch, copied, operand):
    ran = []
    benchmark = caller.FlyDSLBenchmarkRequest.benchmark

    def timed(self, *tensors, out=None):
        took = benchmark(self, *tensors, out=out)
        check(out, *tensors)
        ran.append((bool(self.copies), took))
        return 1e-9 if bool(self.copies) == copied else 1e-3

    monkeypatch.setattr(caller.FlyDSLBenchmarkRequest, "benchmark", timed)
    given = inputs(a_along_k="a" not in operand, b_along_k="b" not in operand)
    result, _, (*_, decision) = compiled(product, *given)
    check(result, *given)
    assert {copies for copies, _ in ran} == {True, False} and all(0 < t < 1e9 for _, t in ran)
    named = [t.name for t in decision.times if t.name.endswith(f"_after_copies_of_{operand}")]
    assert len(named) == 1 and len(decision.times) >= 2
    assert (decision.winner == named[0]) == copied and decision.chosen == "FLYDSL"
    assert (decision.problem.layout.value == "NT") == copied


def test_an_epilogue_joins_the_kernel_after_copies(compiled, real_kernels, copies_take):
    copies_take(0.001)
    result, code, (*_, decision) = compiled(lambda *x: torch.relu(product(*x)), *inputs())
    a, b, scale_a, scale_b = inputs()
    assert decision.fused and decision.problem.layout.value == "NT", code
    wide = a.double() @ b.double() * scale_a.double() * scale_b.double()
    assert_close(result, wide.relu())


@pytest.mark.parametrize("us", [0.001, 1e6])
@pytest.mark.parametrize("dtype", [E4M3, FP4], ids=str)
def test_mx_operands(mx, real_kernels, copies_take, dtype, us):
    from .test_scaled_mm import ScaleLayout, block_scales

    copies_take(us)
    generator = torch.Generator().manual_seed(9)
    a, b = (elements(rows, K, dtype, generator) for rows in (M, N))
    of_a, of_b = (block_scales(rows, K, ScaleLayout.PLAIN, generator) for rows in (M, N))
    result, _, (*_, decision) = mx(turned(a), b, of_a, of_b)
    assert decision.chosen == "FLYDSL"
    copied = us < 1 and dtype is not FP4
    assert decision.problem.layout.value == ("NT" if copied else "TT")
    assert_close(result, exact(a, b, of_a, of_b))


def test_operands_along_k_are_not_copied(compiled, monkeypatch):
    monkeypatch.setenv("INDUCTOR_FLYDSL_DEVICE", "emulator")
    given = inputs(a_along_k=True, b_along_k=True)
    result, _, (decision,) = compiled(product, *given)
    check(result, *given)
    assert not any("copies" in t.name for t in decision.times)
