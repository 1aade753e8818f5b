"""Random tensors for a problem, no better aligned than it says, and the memory that they take.

Knows nothing of what is done with them: `numerics` compares, `measure` times.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .dtypes import DType
from .grouping import Axis, Split
from .grouping import offsets as group_ends
from .problem import GemmProblem
from .scaling import BLOCK

if TYPE_CHECKING:
    import torch

GUARD_ELEMENTS = 256


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
        buffer(output).fill_(math.nan)
    for operand in read:
        _fill(buffer(operand), generator)
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


def buffer(view: torch.Tensor) -> torch.Tensor:
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


def launches(problem: GemmProblem, torch_device: str, *, seed: int) -> list[tuple[Any, ...]]:
    """Operands of the launches whose mean time is the problem's: one, or one a `Split`.

    They share all memory but the offsets.
    """
    first = operands(problem, torch_device, seed=seed)
    if problem.grouping is None:
        return [first]
    made = [_offsets(problem, torch_device, split) for split in Split]
    return [(*first[:3], offsets, *first[4:]) for offsets in made]
