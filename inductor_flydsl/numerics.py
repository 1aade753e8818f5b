"""Does a kernel give the right numbers? The float64 product, and the comparison.

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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from . import microscaling
from .config import WAVE_SIZE, GemmConfig, KernelSpec
from .devices.base import Device
from .errors import WrongNumbers
from .fusion import Fusion, TorchOps
from .problem import GemmProblem
from .samples import buffer, operand_bytes, operands

if TYPE_CHECKING:
    import torch

    from .compiler import Artifact

CPU_CHECK_FLOPS = 2 * 256**3 * 8
# Groups, and tiles along their extent, that a reduced grouped problem keeps.
CPU_CHECK_GROUPS = 8
GROUPED_TILES = 3
# Steps beyond the ring that a reduced problem keeps: the steady state of the loop runs.
STEADY_STEPS = 2
# Share of elements that may be off by more than one unit in the last place, for the order in
# which fp32 accumulates; none may be off by more than that order can explain.
OUTLIER_SHARE = 1e-3
# Strides of batches, in elements: those over FAR are measured as multiples of NEAR.
FAR, NEAR = 2**28, 2**16
# fp32 roundings that the operations of a fused program may add up to, elementary functions of
# one to two units each among them.
FUSED_ROUNDINGS = 32


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
    steps = config.stages + STEADY_STEPS
    extents: dict[str, Any] = {
        "m": _cut(problem.m, config.tile_m, 1),
        "n": _cut(problem.n, config.tile_n, 1),
        "k": _cut(problem.k, config.tile_k, steps),
    }
    grouping = problem.grouping
    if grouping is not None:
        # A few tiles or, along K, rings are left for the groups to share.
        axis = grouping.axis.value
        unit = getattr(config, f"tile_{axis}") * (steps if axis == "k" else 1)
        extents[axis] = _cut(getattr(problem, axis), unit, GROUPED_TILES)
        groups = min(grouping.groups, CPU_CHECK_GROUPS)
        waves = -(-grouping.groups // WAVE_SIZE)
        # As many waves of offsets are looked through, though most groups may be empty.
        groups = max(groups, (waves - 1) * WAVE_SIZE + 1)
        grouping = replace(grouping, groups=groups)
    small = replace(problem, **extents, batch=min(problem.batch, 2), grouping=grouping)
    same = KernelSpec.of(small, config) == KernelSpec.of(problem, config)
    return small if same else problem


def nearer(problem: GemmProblem) -> GemmProblem:
    """`problem` with batches that lie far apart moved together: the same kernel does the same, and
    memory for the gaps is not asked for."""
    p = problem
    a_k, b_k = p.k // p.dtype.packed, p.k // p.b_type.packed
    found = {}
    for name, along_k, (rows, k), ld, inner in (
        ("a_batch", p.layout.a_k_contiguous, (p.m, a_k), p.lda, p.a_inner),
        ("b_batch", p.layout.b_k_contiguous, (p.n, b_k), p.ldb, p.b_inner),
        ("c_batch", False, (p.n, p.m), p.ldc, 1),
    ):
        lines, length = (rows, k) if along_k else (k, rows)
        extent = (lines - 1) * ld + (length - 1) * inner + 1
        near = -(-extent // NEAR) * NEAR
        if getattr(p, name) > FAR and near < getattr(p, name):
            found[name] = near
    return problem.at(found) if found else problem


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

    Returns:
        Of C, or of the output that is further off.

    Raises:
        WrongNumbers: the result is not the product; the message says where it is worst.
        InductorFlyDSLError: what the device raised.
    """
    c, a, b, *others = operands(problem, device.torch_device, seed=seed)
    kernel = device.load(artifact, problem, config)
    kernel(c, a, b, *others)
    device.synchronize()
    offsets = others.pop(0) if problem.grouping else None
    exact = exact_operands(problem, a, b, others, offsets)
    tensors = others[2:] if problem.block_scaled else others
    read = len(problem.fusion.tensors) if problem.fusion else 0
    tensors, stored = tensors[:read], tensors[read:]
    programs = problem.fusion.alone if problem.fusion else (None,)
    found = []
    for output, program in zip((c, *stored), programs, strict=True):
        found.append(compare(output, *exact, program, tensors, offsets=offsets))
        written = int(buffer(output).isnan().logical_not().sum())
        if written > output.numel():
            extra = written - output.numel()
            raise WrongNumbers(f"{extra} elements outside of an output were written")
    return max(found, key=lambda accuracy: accuracy.max_ulp)


def exact_operands(
    problem: GemmProblem,
    a: torch.Tensor,
    b: torch.Tensor,
    scales: Sequence[torch.Tensor],
    offsets: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B as float64, times their block scales.

    Args:
        problem: the GEMM.
        a, b: its operands.
        scales: of A and of B, first, where there are any.
        offsets: where groups end.
    """
    held = scales[:2] if problem.block_scaled else (None, None)
    ends = offsets.tolist() if offsets is not None else ()
    pairs = zip((a, b), "ab", held, strict=True)
    wide_a, wide_b = (
        microscaling.decode_operand(x, problem, name, own, ends) for x, name, own in pairs
    )
    return wide_a, wide_b


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


def compare(
    c: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    fusion: Fusion | None = None,
    tensors: Sequence[torch.Tensor] = (),
    *,
    offsets: torch.Tensor | None = None,
) -> Accuracy:
    """Compare C with the float64 product of A and B, or with what a fused program makes of it.

    An element may differ from the rounded product by one unit in the last place. Elements beyond
    that are counted: for 16-bit outputs at most 0.1 % (and one) of them may be, and every element
    must be within K·2⁻²³·Σ|a·b| of the exact product plus half a unit, the bound of K fp32 sums
    in any order (Higham, Accuracy and Stability of Numerical Algorithms, §4.2). For fp32 outputs,
    where order alone moves most elements by several units, the bound is 8·√K roundings of the
    root of Σ(a·b)², what random signs leave of it. Through a fused program the bound is what the
    program makes of it on either side, and a few roundings of its own.

    Args:
        c: [M, N]; a: [M, K]; b: [K, N]; any floating types and strides, one device; all with a
            batch index in front, or none.
        fusion, tensors: the epilogue and what it reads, each of C's shape, or with an index of
            groups in front that C has not.
        offsets: where the groups of a grouped product end, which A and B then have an index of
            in front as `torch.nn.functional.grouped_mm` has it.

    Raises:
        WrongNumbers: an element is NaN or out of bounds, or too many are more than a unit off.
    """
    import torch

    wide_a, wide_b = a.double(), b.double()
    exact = product(wide_a, wide_b, offsets)
    k, narrow = a.shape[-1], c.dtype is not torch.float32
    if narrow:
        bound = k * 2.0**-23 * product(wide_a.abs(), wide_b.abs(), offsets)
    else:
        bound = 8 * math.sqrt(k) * 2.0**-23 * product(wide_a**2, wide_b**2, offsets).sqrt()
    if fusion is not None:
        read = [_of_groups(t, c, b.dim() == 3, offsets).double() for t in tensors]
        exact, bound = _through(fusion, exact, bound, read)
    # What the program itself makes NaN, such as the logarithm of a negative number, must be NaN.
    # Where the last rounding decides whether it is, nothing can be said.
    undefined = (exact.isnan() & c.isnan()) | (bound.isnan() & ~exact.isnan())
    got, exact = (torch.where(undefined, 0.0, t) for t in (c, exact))
    missing = got.isnan()
    if missing.any():
        at = [int(i) for i in missing.nonzero()[0]]
        count = int(missing.sum())
        raise WrongNumbers(f"{count} of {c.numel()} elements are NaN or unwritten, first {at}")
    bound = bound + 0.5 * _spacing(exact, c.dtype)
    excess = torch.where(got == exact.to(c.dtype), -1.0, (got.double() - exact).abs() - bound)
    excess = excess.nan_to_num(nan=math.inf)
    found = accuracy(got, exact)
    place = tuple(int(i) for i in torch.unravel_index(excess.argmax(), c.shape))
    worst = f"worst at {list(place)}: got {float(got[place]):.6g}, "
    worst += f"expected {float(exact[place]):.6g}"
    wrong = int((excess > 0).sum())
    if wrong:
        raise WrongNumbers(f"{wrong} of {c.numel()} elements are wrong, {worst}")
    # A fused program may be steep, or have steps, where the order of the sums shows.
    if narrow and found.outliers > found.allowed and fusion is None:
        raise WrongNumbers(
            f"{found.outliers} of {c.numel()} elements are more than 1 ulp off, {worst}"
        )
    return found


def product(a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor | None) -> torch.Tensor:
    """A @ B; with offsets, group by group in a loop, in any of the grouped forms.

    Args:
        a, b: with offsets [M, K] and [G, K, N], [G, M, K] and [K, N], or [M, K] and [K, N], where
            M, N and K respectively are what the groups share.
        offsets: int [G], where each group ends; None for a plain or batched product.

    Returns:
        [M, N], or [G, M, N] where K is shared; zero past the last group.
    """
    import torch

    if offsets is None:
        return a @ b
    ends = offsets.tolist()
    pieces = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    if a.dim() == b.dim() == 2:
        return torch.stack([a[:, piece] @ b[piece] for piece in pieces])
    result = a.new_zeros(a.shape[-2], b.shape[-1])
    for index, piece in enumerate(pieces):
        if b.dim() == 3:
            result[piece] = a[piece] @ b[index]
        else:
            result[:, piece] = a[index] @ b[:, piece]
    return result


def _of_groups(
    tensor: torch.Tensor, c: torch.Tensor, rows: bool, offsets: torch.Tensor | None
) -> torch.Tensor:
    """A tensor of C's shape from one that has a matrix a group, of whose rows or columns each
    group has its own part."""
    import torch

    if offsets is None or tensor.dim() == c.dim():
        return tensor
    ends = offsets.tolist()
    extents = [max(0, end - start) for start, end in zip([0, *ends], ends, strict=False)]
    at = torch.tensor([group for group, extent in enumerate(extents) for _ in range(extent)])
    line = torch.arange(len(at))
    whole = tensor.new_zeros(c.shape)
    if rows:
        whole[: len(at)] = tensor[at, line]
    else:
        whole[:, : len(at)] = tensor[at, :, line].T
    return whole


def _through(
    fusion: Fusion, exact: torch.Tensor, bound: torch.Tensor, tensors: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Exact values after a program, and how far fp32 may be from them."""
    import torch

    below, value, above = (
        fusion.evaluate(TorchOps(), acc, tensors) for acc in (exact - bound, exact, exact + bound)
    )
    moved = torch.maximum(*(torch.where(x == value, 0.0, x - value).abs() for x in (below, above)))
    # The roundings of the program's own operations, on values up to the result's size; where it
    # rounds to a 16-bit type on the way, a neighbour there is as good.
    narrowest = max((torch.finfo(getattr(torch, d)).eps for d in _rounded_to(fusion)), default=0.0)
    scale = FUSED_ROUNDINGS * 2.0**-23 + narrowest
    size = torch.stack([value.abs(), exact.abs(), *(t.abs() for t in tensors)]).amax(0)
    return value, moved + scale * size


def _rounded_to(fusion: Fusion) -> set[str]:
    return {node.dtype.value for node in fusion.nodes if node.dtype is not None}


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


def check_bytes(problem: GemmProblem) -> int:
    """Memory that `check` takes on the whole problem: operands, and float64 copies of them."""
    p = problem
    c, a, b = p.copies
    wide = 8 * (2 * (p.m * p.k * a + p.k * p.n * b) + 6 * p.m * p.n * c)
    return operand_bytes(p) + wide
