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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from . import microscaling
from .config import WAVE_SIZE, GemmConfig, KernelSpec
from .devices.base import Device
from .dtypes import DType
from .errors import WrongNumbers
from .fusion import Fusion, TorchOps
from .grouping import Axis, Split
from .grouping import offsets as group_ends
from .problem import GemmProblem
from .scaling import BLOCK

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
GUARD_ELEMENTS = 256
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
        written = int(_buffer(output).isnan().logical_not().sum())
        if written > output.numel():
            extra = written - output.numel()
            raise WrongNumbers(f"{extra} elements outside of an output were written")
    return max(found, key=lambda accuracy: accuracy.max_ulp)


def operands(
    problem: GemmProblem,
    torch_device: str = "cpu",
    *,
    seed: int = 0,
    split: Split = Split.SPARSE,
) -> tuple[torch.Tensor, ...]:
    """Tensors for a problem, no better aligned than it says.

    Returns:
        C[M, N] of ``out_dtype``, its whole buffer NaN; A[M, K] and B[K, N] of their types, normal
        (FP4: any code, [M, K/2] and [K/2, N]); the ends of the groups where there are any, int32,
        as `split` has them, multiples of 32 where blocks of K are shared; block scales, if any,
        flat float8_e8m0fnu around 1; then the tensors that the epilogue reads, of C's shape each,
        normal, and those that it stores, NaN.
        What there is more than one of (`copies`), and a tensor that each group has its own of,
        has that index in front. Each is a view of a flat buffer with the problem's strides.
    """
    import torch

    p = problem
    generator = torch.Generator(device=torch_device).manual_seed(seed)

    def view(
        sizes: tuple[int, ...], strides: tuple[int, ...], dtype: DType, align: int, copies: int
    ) -> Any:
        if copies:
            sizes = (copies, *sizes)
        else:
            strides = strides[1:]
        # A 16-byte aligned base would hide a kernel that assumes more than it was promised.
        offset = align // dtype.bytes if align < 16 else 0
        span = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) + 1
        kind = getattr(torch, dtype.value)
        flat = torch.empty(span + offset + GUARD_ELEMENTS, dtype=kind, device=torch_device)
        return flat.as_strided(sizes, strides, offset)

    a_strides = (p.lda, p.a_inner) if p.layout.a_k_contiguous else (p.a_inner, p.lda)
    b_strides = (p.b_inner, p.ldb) if p.layout.b_k_contiguous else (p.ldb, p.b_inner)
    # A group has an index even where it is the only one; a batch of one has none.
    axis = p.grouping.axis if p.grouping else None
    only = (axis is Axis.K, axis is Axis.N, axis is Axis.M)
    count_c, count_a, count_b = (
        n if n > 1 or own else 0 for n, own in zip(p.copies, only, strict=True)
    )
    c = view((p.m, p.n), (p.c_batch, p.ldc, 1), p.out_dtype, p.c_align, count_c)
    read = [
        view((p.m, p.k // p.dtype.packed), (p.a_batch, *a_strides), p.dtype, p.a_align, count_a),
        view((p.k // p.b_type.packed, p.n), (p.b_batch, *b_strides), p.b_type, p.b_align, count_b),
    ]
    scales = [
        _random_scales(held.align, p.scale_bytes(name), generator)
        for name, held in (("a", p.a_scales), ("b", p.b_scales))
        if held is not None
    ]
    for tensor, strides in zip(p.fusion.tensors if p.fusion else (), p.tensors, strict=False):
        count = count_c or (p.grouping.groups if p.grouping and strides[0] else 0)
        read.append(view((p.m, p.n), strides, tensor.dtype, 16, count))
    stores = p.fusion.stores if p.fusion else ()
    stored = [
        view((p.m, p.n), strides, store.dtype, store.width, count_c)
        for store, strides in zip(stores, p.tensors[len(p.tensors) - len(stores) :], strict=True)
    ]
    for output in (c, *stored):
        _buffer(output).fill_(math.nan)
    for operand in read:
        _fill(_buffer(operand), generator)
    offsets = [_offsets(p, torch_device, split)] if p.grouping is not None else []
    return (c, *read[:2], *offsets, *scales, *read[2:], *stored)


def _offsets(problem: GemmProblem, torch_device: str, split: Split) -> torch.Tensor:
    import torch

    assert problem.grouping is not None
    axis, groups = problem.grouping.axis.value, problem.grouping.groups
    unit = BLOCK if axis == "k" and problem.block_scaled else 1
    ends = [end * unit for end in group_ends(getattr(problem, axis) // unit, groups, split)]
    return torch.tensor(ends, dtype=torch.int32, device=torch_device)


def _fill(flat: torch.Tensor, generator: torch.Generator) -> None:
    """Random values of any type: normal, truths, or any code of a packed one."""
    import torch

    if flat.dtype is torch.bool:
        flat.view(torch.uint8).random_(0, 2, generator=generator)
    elif flat.dtype.itemsize > 1:
        flat.normal_(generator=generator)
    elif flat.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        wide = torch.empty(flat.shape, device=flat.device).normal_(generator=generator)
        flat.copy_(wide)
    else:
        flat.view(torch.uint8).random_(0, 256, generator=generator)


def _random_scales(align: int, count: int, generator: torch.Generator) -> torch.Tensor:
    import torch

    # 2^-3 to 2^4, so that fp16 holds the result; an address no better aligned than promised.
    offset = align if align < 16 else 0
    flat = torch.empty(count + offset + GUARD_ELEMENTS, dtype=torch.uint8, device=generator.device)
    flat.random_(124, 132, generator=generator)
    return flat.view(torch.float8_e8m0fnu)[offset:]


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


def _buffer(view: torch.Tensor) -> torch.Tensor:
    """The whole flat buffer that a view of `operands` looks into."""
    size = view.untyped_storage().nbytes() // view.element_size()
    return view.as_strided((size,), (1,), 0)


def operand_bytes(problem: GemmProblem) -> int:
    """Bytes of one set of operands with the gaps between their rows."""
    p = problem
    a_k, b_k = p.k // p.dtype.packed, p.k // p.b_type.packed
    a_lines, a_length = (p.m, a_k) if p.layout.a_k_contiguous else (a_k, p.m)
    b_lines, b_length = (p.n, b_k) if p.layout.b_k_contiguous else (b_k, p.n)
    count_c, count_a, count_b = p.copies
    a = (a_lines - 1) * p.lda + (a_length - 1) * p.a_inner + (count_a - 1) * p.a_batch + 1
    b = (b_lines - 1) * p.ldb + (b_length - 1) * p.b_inner + (count_b - 1) * p.b_batch + 1
    c = (p.m - 1) * p.ldc + p.n + (count_c - 1) * p.c_batch
    size = a * p.dtype.bytes + b * p.b_type.bytes + c * p.out_dtype.bytes
    size += p.scale_bytes("a") + p.scale_bytes("b")
    f = p.fusion
    kinds = [*(t.dtype for t in f.tensors), *(s.dtype for s in f.stores)] if f else []
    for kind, strides in zip(kinds, p.tensors, strict=True):
        steps = zip((count_c, p.m, p.n), strides, strict=True)
        size += (sum((n - 1) * s for n, s in steps) + 1) * kind.bytes
    return size


def check_bytes(problem: GemmProblem) -> int:
    """Memory that `check` takes on the whole problem: operands, and float64 copies of them."""
    p = problem
    c, a, b = p.copies
    wide = 8 * (2 * (p.m * p.k * a + p.k * p.n * b) + 6 * p.m * p.n * c)
    return operand_bytes(p) + wide


def launches(problem: GemmProblem, torch_device: str, *, seed: int) -> list[tuple[Any, ...]]:
    """Operands of the launches whose mean time is the problem's: one, or one a `Split`.

    They share all memory but the offsets.
    """
    first = operands(problem, torch_device, seed=seed)
    if problem.grouping is None:
        return [first]
    made = [_offsets(problem, torch_device, split) for split in Split]
    return [(*first[:3], offsets, *first[4:]) for offsets in made]
