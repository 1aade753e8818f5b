"""Operands, the comparison with the float64 product, and what becomes of failures."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from inductor_flydsl import compiler
from inductor_flydsl.arch import GFX950
from inductor_flydsl.config import GemmConfig, KernelSpec
from inductor_flydsl.devices import get_device
from inductor_flydsl.devices.base import Clock, Kernel, Timing
from inductor_flydsl.errors import LaunchFailed, WrongNumbers
from inductor_flydsl.measure import accuracy, compare, measure, operands, reduced
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.space import candidates

CONFIG = GemmConfig(tile_m=64, tile_n=64, tile_k=64, stages=3, waves_m=2, waves_n=2)
PROBLEM = GemmProblem.dense(96, 80, 128)


class Faulty:
    """A device whose kernel is the given function of (c, a, b)."""

    name, clock, backend, torch_device = "emulator:gfx950", Clock.EMULATED, "reference", "cpu"
    arch = GFX950

    def __init__(self, kernel: Kernel, us: float = 7.0) -> None:
        self.kernel, self.us = kernel, us
        self.shapes: list[tuple[int, int, int]] = []

    def environment(self) -> dict[str, str]:
        return {}

    def load(self, artifact: Any, problem: GemmProblem, config: GemmConfig) -> Kernel:
        self.shapes.append((problem.m, problem.n, problem.k))
        return self.kernel

    def time(self, call: Callable[[], None]) -> Timing:
        return Timing(us=self.us, spread_us=0.25, rounds=3)

    def synchronize(self) -> None:
        pass


def right(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    c.copy_((a.float() @ b.float()).to(c.dtype))


def _measure(device: Any, problem: GemmProblem = PROBLEM, config: GemmConfig = CONFIG) -> Any:
    spec = KernelSpec.of(problem, config)
    artifact = compiler.compile_spec(spec, "gfx950", "reference")
    return measure(device, artifact, problem, config)


def _odd_problems() -> list[GemmProblem]:
    rng = random.Random(4)
    problems = []
    for _ in range(12):
        m, n, k = (rng.choice((1, 2, 7, 33, 80)) for _ in range(3))
        layout, dtype = rng.choice(("NN", "NT", "TN", "TT")), rng.choice(("bf16", "fp16"))
        dense = GemmProblem.dense(m, n, k, layout=layout, dtype=dtype)
        problems.append(
            replace(
                dense,
                lda=dense.lda * 3 + rng.randint(0, 5),
                ldb=rng.choice((0, dense.ldb * 2 + 1)),
                ldc=n + rng.randint(0, 3),
                a_inner=rng.choice((1, 2, 3)),
                b_inner=rng.choice((0, 1)),
                a_align=2,
                b_align=2,
                c_align=2,
            )
        )
    return problems


@pytest.mark.parametrize("problem", _odd_problems(), ids=str)
def test_operands_have_the_strides_and_no_better_alignment(problem: GemmProblem) -> None:
    c, a, b = operands(problem, seed=1)
    p = problem
    assert (c.shape, a.shape, b.shape) == ((p.m, p.n), (p.m, p.k), (p.k, p.n))
    k_of_a, k_of_b = a.stride(1), b.stride(0)
    assert k_of_a == (p.a_inner if p.layout.a_k_contiguous else p.lda)
    assert k_of_b == (p.b_inner if p.layout.b_k_contiguous else p.ldb)
    assert c.stride() == (p.ldc, 1)
    for tensor in (a, b, c):
        assert tensor.data_ptr() % 4 == 2
    assert c.isnan().all() and not a.isnan().any() and not b.isnan().any()
    assert a.abs().max() > 0
    right(c, a, b)
    assert compare(c, a, b).outliers == 0


def test_operands_follow_the_seed() -> None:
    first, again, other = (operands(PROBLEM, seed=s)[1] for s in (5, 5, 6))
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.mark.parametrize("align", [4, 8, 16])
def test_rows_are_aligned_as_promised(align: int) -> None:
    problem = replace(PROBLEM, a_align=align, b_align=align, c_align=align)
    for tensor in operands(problem):
        assert tensor.data_ptr() % align == 0
        assert align == 16 or tensor.data_ptr() % (2 * align) == align


@pytest.mark.parametrize("out", ["bf16", "fp16", "fp32"])
def test_sums_in_another_order_are_right(out: str) -> None:
    dtype = "fp16" if out == "fp16" else "bf16"
    for k in (1, 33, 1000, 4095):
        c, a, b = operands(GemmProblem.dense(64, 48, k, dtype=dtype, out_dtype=out), seed=k)
        total = torch.zeros(64, 48)
        step = max(1, k // 9)
        for start in reversed(range(0, k, step)):
            total += a[:, start : start + step].float() @ b[start : start + step].float()
        c.copy_(total.to(c.dtype))
        assert compare(c, a, b).max_abs < 1.5


def _drop_last_k(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    right(c, a[:, :-1], b[:-1])


def _one_element(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    right(c, a, b)
    c[17, 3] += 8 * c[17, 3].abs() + 8


def _unwritten(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    right(c[:-1], a[:-1], b)


def _low_precision_sums(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    half = a.shape[1] // 2
    c.copy_((a[:, :half] @ b[:half]) + (a[:, half:] @ b[half:]))


def _beyond_c(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
    right(c, a, b)
    torch.as_strided(c, (c.shape[0] + 1, c.shape[1]), c.stride(), c.storage_offset())[-1, 0] = 1


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (_drop_last_k, "elements are"),
        (_one_element, "1 of 7680 elements are wrong, worst at [17, 3]"),
        (_unwritten, "80 of 7680 elements are NaN or unwritten, first [95, 0]"),
        (_low_precision_sums, "elements are"),
        (_beyond_c, "1 elements outside of an output were written"),
    ],
)
@pytest.mark.parametrize("out", ["bf16", "fp32"])
def test_wrong_kernels_are_rejected_with_the_place(kernel: Kernel, words: str, out: str) -> None:
    found = _measure(Faulty(kernel), GemmProblem.dense(96, 80, 128, out_dtype=out))
    assert found.failure is not None and found.failure.startswith("WrongNumbers: ")
    assert words in found.failure
    assert math.isinf(found.us)


def test_right_kernels_are_timed() -> None:
    found = _measure(Faulty(right))
    assert (found.us, found.spread_us, found.rounds, found.failure) == (7.0, 0.25, 3, None)
    assert found.max_error is not None and found.max_error <= 1
    assert found.clock is Clock.EMULATED and found.device == "emulator:gfx950"


@pytest.mark.parametrize("error", [LaunchFailed("fault at 0x10"), RuntimeError(), MemoryError("m")])
def test_every_exception_is_a_failure(error: Exception) -> None:
    def kernel(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        raise error

    found = _measure(Faulty(kernel))
    assert found.failure == f"{type(error).__name__}: {str(error) or 'no message'}"


def test_an_interrupt_is_no_failure() -> None:
    def kernel(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _measure(Faulty(kernel))


@pytest.mark.parametrize("us", [0.0, math.inf, math.nan])
def test_an_impossible_time_is_a_failure(us: float) -> None:
    found = _measure(Faulty(right, us))
    assert found.failure is not None and "emulated clock read" in found.failure
    assert found.max_error is not None


def test_large_problems_are_checked_small_and_timed_whole() -> None:
    problem = GemmProblem.dense(1000, 1000, 1000)
    device = Faulty(right)
    assert _measure(device, problem).ok
    assert device.shapes == [(64 + 1000 % 64, 64 + 1000 % 64, 5 * 64 + 1000 % 64), (1000,) * 3]
    small = Faulty(right)
    _measure(small)
    assert small.shapes == [(96, 80, 128)] * 2


def test_a_reduced_problem_runs_the_same_kernel() -> None:
    rng = random.Random(6)
    for _ in range(10):
        m, n, k = (rng.randint(500, 5000) for _ in range(3))
        problem = GemmProblem.dense(m, n, k, layout=rng.choice(("NN", "NT", "TN", "TT")))
        for config in rng.sample(candidates(problem, GFX950), 8):
            small = reduced(problem, config)
            assert small.flops < problem.flops
            assert KernelSpec.of(small, config) == KernelSpec.of(problem, config)
            assert config.tiles(small) == (2, 2)
            for extent, tile in (("m", config.tile_m), ("n", config.tile_n), ("k", config.tile_k)):
                assert (getattr(small, extent) - getattr(problem, extent)) % tile == 0


def test_accuracy_counts_units_in_the_last_place() -> None:
    exact = torch.tensor([1.0, -1.0, 0.0, 3.0, 2.0], dtype=torch.float64)
    c = torch.tensor([1.0, -1.0, 0.0, 3.0, 2.0], dtype=torch.bfloat16)
    assert accuracy(c, exact).max_ulp == 0
    c[0] += 2.0**-7
    c[4] -= 2.0**-7 * 2
    found = accuracy(c, exact)
    assert (found.max_ulp, found.outliers, found.elements) == (2, 1, 5)
    assert found.max_abs == 2.0**-6
    c[1] = math.nan
    assert math.isinf(accuracy(c, exact).max_ulp)


def test_many_small_errors_are_wrong_where_few_are_not() -> None:
    c, a, b = operands(GemmProblem.dense(64, 64, 512), seed=2)
    right(c, a, b)
    step = torch.nextafter(c, torch.tensor(math.inf, dtype=c.dtype))
    far = (c.float() + 2.5 * (step.float() - c.float())).to(c.dtype)
    # Where the product nearly cancels, the order of K alone explains a few units.
    small = c.abs() < 0.05
    assert 4 < int(small.sum()) < 40
    with pytest.raises(WrongNumbers, match="more than 1 ulp off"):
        compare(torch.where(small, far, c), a, b)
    few = small & (small.flatten().cumsum(0).view_as(small) <= 3)
    assert compare(torch.where(few, far, c), a, b).outliers == 3


def test_the_reference_device_measures() -> None:
    found = _measure(get_device("reference"))
    assert found.ok and found.clock is Clock.WALL and found.us > 0
