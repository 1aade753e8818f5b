"""Does a kernel give the right numbers? Operands, the float64 product, and the comparison.

Knows nothing of time, and nothing of how candidates are found or stored.

On a CPU (the emulator, or the reference device there) the float64 product and an emulated launch
of a large problem would take minutes. There the numbers are checked on a reduced problem: M and N
are cut to one whole tile and the last, K to a few steps and the partial one, so that the very same
kernel runs, with the same tails and leading dimensions. What this cannot see is an error that
needs more tiles or more K steps than that: an index that overflows, or a workgroup order that is
not a permutation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .config import GemmConfig, KernelSpec
from .devices.base import Device
from .errors import WrongNumbers
from .problem import DType, GemmProblem

if TYPE_CHECKING:
    import torch

    from .compiler import Artifact

CPU_CHECK_FLOPS = 2 * 256**3 * 8
# Steps beyond the ring that a reduced problem keeps: the steady state of the loop runs.
STEADY_STEPS = 2
# Share of elements that may be off by more than one unit in the last place, for the order in
# which fp32 accumulates; none may be off by more than that order can explain.
OUTLIER_SHARE = 1e-3
GUARD_ELEMENTS = 256


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """How far a result is from the float64 product rounded to the output type.

    Attributes:
        max_ulp: largest distance in units in the last place of the output type.
        max_abs: largest absolute distance from the unrounded product.
        outliers: elements more than one unit off.
        elements: elements compared.
    """

    max_ulp: float
    max_abs: float
    outliers: int
    elements: int

    @property
    def allowed(self) -> int:
        """Outliers that the order of accumulation may cause."""
        return max(1, int(OUTLIER_SHARE * self.elements))


def reduced(problem: GemmProblem, config: GemmConfig) -> GemmProblem:
    """The smallest problem that runs the same kernel, if `problem` is a large one.

    Returns:
        `problem` itself up to CPU_CHECK_FLOPS, or where cutting it would select another kernel.
    """
    if problem.flops <= CPU_CHECK_FLOPS:
        return problem
    small = replace(
        problem,
        m=_cut(problem.m, config.tile_m, 1),
        n=_cut(problem.n, config.tile_n, 1),
        k=_cut(problem.k, config.tile_k, config.stages + STEADY_STEPS),
    )
    same = KernelSpec.of(small, config) == KernelSpec.of(problem, config)
    return small if same else problem


def _cut(extent: int, tile: int, whole: int) -> int:
    """`extent`, cut to at most `whole` tiles and its last one."""
    tail = extent % tile or tile
    return min(extent, whole * tile + tail)


def check(
    device: Device,
    artifact: Artifact,
    problem: GemmProblem,
    config: GemmConfig,
    *,
    seed: int = 0,
) -> Accuracy:
    """Run a kernel once on random operands and compare with the float64 product.

    Raises:
        WrongNumbers: the result is not the product; the message says where it is worst.
        InductorFlyDSLError: what the device raised.
    """
    c, a, b = operands(problem, device.torch_device, seed=seed)
    kernel = device.load(artifact, problem, config)
    kernel(c, a, b)
    device.synchronize()
    found = compare(c, a, b)
    written = int(_buffer(c).isnan().logical_not().sum())
    if written > c.numel():
        raise WrongNumbers(f"{written - c.numel()} elements outside of C were written")
    return found


def operands(
    problem: GemmProblem, torch_device: str = "cpu", *, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tensors for a problem, no better aligned than it says.

    Returns:
        C[M, N] of ``out_dtype``, its whole buffer NaN; A[M, K] and B[K, N] of ``dtype``, normal.
        Each is a view of a flat buffer with the problem's strides.
    """
    import torch

    p = problem
    generator = torch.Generator(device=torch_device).manual_seed(seed)
    kinds = {d: getattr(torch, d.value) for d in (p.dtype, p.out_dtype)}

    def view(rows: int, cols: int, strides: tuple[int, int], **what: Any) -> torch.Tensor:
        dtype: DType = what["dtype"]
        # A 16-byte aligned base would hide a kernel that assumes more than it was promised.
        offset = what["align"] // dtype.bytes if what["align"] < 16 else 0
        span = (rows - 1) * strides[0] + (cols - 1) * strides[1] + 1
        flat = torch.empty(span + offset + GUARD_ELEMENTS, dtype=kinds[dtype], device=torch_device)
        if what["poison"]:
            flat.fill_(math.nan)
        else:
            flat.normal_(generator=generator)
        return flat.as_strided((rows, cols), strides, offset)

    a_strides = (p.lda, p.a_inner) if p.layout.a_k_contiguous else (p.a_inner, p.lda)
    b_strides = (p.b_inner, p.ldb) if p.layout.b_k_contiguous else (p.ldb, p.b_inner)
    c = view(p.m, p.n, (p.ldc, 1), dtype=p.out_dtype, align=p.c_align, poison=True)
    a = view(p.m, p.k, a_strides, dtype=p.dtype, align=p.a_align, poison=False)
    b = view(p.k, p.n, b_strides, dtype=p.dtype, align=p.b_align, poison=False)
    return c, a, b


def accuracy(c: torch.Tensor, exact: torch.Tensor) -> Accuracy:
    """How far C is from exact values.

    Args:
        c: any shape, fp16, bf16 or fp32; a NaN counts as infinitely far.
        exact: float64, the shape of `c`.
    """
    ulps = _ulp_distance(c, exact)
    return Accuracy(
        max_ulp=float(ulps.max()),
        max_abs=float((c.double() - exact).abs().nan_to_num(nan=math.inf).max()),
        outliers=int((ulps > 1).sum()),
        elements=c.numel(),
    )


def compare(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Accuracy:
    """Compare C with the float64 product of A and B.

    An element may differ from the rounded product by one unit in the last place. Elements beyond
    that are counted: for 16-bit outputs at most 0.1 % (and one) of them may be, and every element
    must be within K·2⁻²³·Σ|a·b| of the exact product plus half a unit, the bound of K fp32 sums
    in any order (Higham, Accuracy and Stability of Numerical Algorithms, §4.2). For fp32 outputs,
    where order alone moves most elements by several units, the bound is 8·√K roundings of the
    root of Σ(a·b)², what random signs leave of it.

    Args:
        c: [M, N]; a: [M, K]; b: [K, N]; any floating types and strides, one device.

    Raises:
        WrongNumbers: an element is NaN or out of bounds, or too many are more than a unit off.
    """
    import torch

    wide_a, wide_b = a.double(), b.double()
    exact = wide_a @ wide_b
    missing = c.isnan()
    if missing.any():
        at = [int(i) for i in missing.nonzero()[0]]
        count = int(missing.sum())
        raise WrongNumbers(f"{count} of {c.numel()} elements are NaN or unwritten, first {at}")
    k, narrow = a.shape[1], c.dtype is not torch.float32
    if narrow:
        bound = k * 2.0**-23 * (wide_a.abs() @ wide_b.abs())
    else:
        bound = 8 * math.sqrt(k) * 2.0**-23 * (wide_a.square() @ wide_b.square()).sqrt()
    bound += 0.5 * _spacing(exact, c.dtype)
    excess = (c.double() - exact).abs() - bound
    found = accuracy(c, exact)
    row, col = divmod(int(excess.argmax()), c.shape[1])
    worst = f"worst at [{row}, {col}]: got {float(c[row, col]):.6g}, "
    worst += f"expected {float(exact[row, col]):.6g}"
    wrong = int((excess > 0).sum())
    if wrong:
        raise WrongNumbers(f"{wrong} of {c.numel()} elements are wrong, {worst}")
    if narrow and found.outliers > found.allowed:
        raise WrongNumbers(
            f"{found.outliers} of {c.numel()} elements are more than 1 ulp off, {worst}"
        )
    return found


def _ulp_distance(c: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Steps of C's type between C and the rounded exact values, elementwise; float64."""
    import torch

    def ordered(t: torch.Tensor) -> torch.Tensor:
        kind, top = (torch.int32, 31) if t.element_size() == 4 else (torch.int16, 15)
        bits = t.contiguous().view(kind).long()
        return torch.where(bits < 0, -(bits & ((1 << top) - 1)), bits)

    steps = (ordered(c) - ordered(exact.to(c.dtype))).abs().double()
    return torch.where(c.isnan(), math.inf, steps)


def _spacing(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The unit in the last place of `dtype` at each value, float64."""
    import torch

    info = torch.finfo(dtype)
    _, exponent = torch.frexp(exact.abs().clamp_min(info.tiny))
    return torch.ldexp(torch.full_like(exact, info.eps), exponent - 1)


def _buffer(view: torch.Tensor) -> torch.Tensor:
    """The whole flat buffer that a view of `operands` looks into."""
    size = view.untyped_storage().nbytes() // view.element_size()
    return view.as_strided((size,), (1,), 0)


def operand_bytes(problem: GemmProblem) -> int:
    """Bytes of one set of A, B and C with the gaps between their rows."""
    p = problem

    def span(rows: int, cols: int, ld: int, inner: int) -> int:
        return (rows - 1) * ld + (cols - 1) * inner + 1

    a = span(p.m, p.k, p.lda, p.a_inner) if p.layout.a_k_contiguous else None
    b = span(p.n, p.k, p.ldb, p.b_inner) if p.layout.b_k_contiguous else None
    a = span(p.k, p.m, p.lda, p.a_inner) if a is None else a
    b = span(p.k, p.n, p.ldb, p.b_inner) if b is None else b
    return (a + b) * p.dtype.bytes + span(p.m, p.n, p.ldc, 1) * p.out_dtype.bytes


def check_bytes(problem: GemmProblem) -> int:
    """Memory that `check` takes on the whole problem: operands, and float64 copies of them."""
    p = problem
    wide = 8 * (2 * (p.m * p.k + p.k * p.n) + 6 * p.m * p.n)
    return operand_bytes(p) + wide
