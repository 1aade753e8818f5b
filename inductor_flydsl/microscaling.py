"""What operands of 8 bits and fewer, and their block scales, mean as float64.

Written from the OCP specifications (8-bit Floating Point 1.0; Microscaling Formats 1.0) and from
nothing that computes them here: neither torch's conversions nor the emulator's tables.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .dtypes import DType
from .grouping import Axis
from .scaling import BLOCK, TILE_BLOCKS, TILE_BYTES, TILE_ROWS, ScaleLayout, Scales

if TYPE_CHECKING:
    import torch

    from .problem import GemmProblem

# (exponent bits, mantissa bits, bias)
FIELDS = {DType.FP8_E4M3: (4, 3, 7), DType.FP8_E5M2: (5, 2, 15), DType.FP4: (2, 1, 1)}
# E8M0: 2^(code - 127), and one code that is NaN.
E8M0_BIAS, E8M0_NAN = 127, 255


@functools.cache
def values(dtype: DType) -> tuple[float, ...]:
    """The value of every code of an element type."""
    exponent_bits, mantissa_bits, _ = FIELDS[dtype]
    return tuple(_value(dtype, code) for code in range(2 << (exponent_bits + mantissa_bits)))


def _value(dtype: DType, code: int) -> float:
    exponent_bits, mantissa_bits, bias = FIELDS[dtype]
    mantissa = code & ((1 << mantissa_bits) - 1)
    exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1)
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    last = exponent == (1 << exponent_bits) - 1
    if dtype is DType.FP8_E5M2 and last:
        return math.nan if mantissa else sign * math.inf
    if dtype is DType.FP8_E4M3 and last and mantissa == (1 << mantissa_bits) - 1:
        return math.nan
    leading = 0 if exponent == 0 else 1 << mantissa_bits
    return sign * math.ldexp(leading + mantissa, max(exponent, 1) - bias - mantissa_bits)


def decode(tensor: torch.Tensor, dtype: DType, k_axis: int) -> torch.Tensor:
    """float64 of a tensor of any element type here.

    Args:
        tensor: of torch's type of that name.
        k_axis: axis along K, which a packed type doubles: the low half of a byte comes first.
    """
    import torch

    if not dtype.scaled:
        return tensor.double()
    table = torch.tensor(values(dtype), dtype=torch.float64, device=tensor.device)
    # A view of packed bytes keeps its strides; torch has no gather of these types.
    codes = tensor.view(torch.uint8).long()
    if dtype.packed == 2:
        axis = k_axis % tensor.dim()
        codes = torch.stack([codes & 15, codes >> 4], dim=axis + 1).flatten(axis, axis + 1)
    return table[codes]


def decode_scales(
    held: torch.Tensor, scales: Scales, rows: int, k: int, first: int = 0
) -> torch.Tensor:
    """float64 factors [rows, K] of one matrix from its scale bytes.

    Args:
        held: uint8 or float8_e8m0fnu, of any shape.
        scales: how they lie from the first one on.
        rows: of A, or columns of B; k: elements along K.
        first: bytes from the first element of ``held`` to the first scale.
    """
    import torch

    at = scale_offsets(scales, rows, k // BLOCK, held.device)
    raw = held.view(torch.uint8)
    flat = raw.as_strided((int(at.max()) + 1,), (1,), raw.storage_offset() + first)
    codes = flat[at].double()
    factors = torch.exp2(codes - E8M0_BIAS)
    factors = torch.where(codes == E8M0_NAN, math.nan, factors)
    return factors.repeat_interleave(BLOCK, dim=1)


def decode_cut_scales(
    held: torch.Tensor, scales: Scales, rows: int, k: int, *, ends: Sequence[int], along_k: bool
) -> torch.Tensor:
    """As `decode_scales`, of a matrix whose rows or K groups share; 1 past the last group.

    Args:
        held, scales, rows, k: as there.
        ends: where each group ends; of K at multiples of 32.
        along_k: groups share K, not rows.
    """
    import torch

    if scales.layout is ScaleLayout.PLAIN:
        return decode_scales(held, scales, rows, k)
    factors = torch.ones(rows, k, dtype=torch.float64, device=held.device)
    first = 0
    for start, end in zip([0, *ends], ends, strict=False):
        extent = end - start
        if extent <= 0:
            continue
        if along_k:
            own = Scales.contiguous(extent, scales.layout)
            factors[:, start:end] = decode_scales(held, own, rows, extent, first)
            first += own.bytes(rows, extent)
        else:
            factors[start:end] = decode_scales(held, scales, extent, k, first)
            first += -(-extent // TILE_ROWS) * scales.row
    return factors


def decode_operand(
    tensor: torch.Tensor,
    problem: GemmProblem,
    name: str,
    held: torch.Tensor | None = None,
    ends: Sequence[int] = (),
) -> torch.Tensor:
    """float64 of A[…, M, K] or B[…, K, N], times its block scales.

    Args:
        tensor: of the operand's type; its sizes count, the problem's may be hints.
        problem: the GEMM; name: ``a`` or ``b``.
        held: the operand's block scales, where there are any.
        ends: where groups end.
    """
    import torch

    axis = -1 if name == "a" else -2
    wide = decode(tensor, problem.dtype if name == "a" else problem.b_type, axis)
    if held is None:
        return wide
    scales: Scales = getattr(problem, f"{name}_scales")
    rows, k = wide.shape[-3 - axis], wide.shape[axis]
    cut = problem.grouping.axis if problem.grouping else None
    if wide.dim() == 3:
        firsts = [index * scales.batch for index in range(wide.shape[0])]
        made = [decode_scales(held, scales, rows, k, first) for first in firsts]
        factors = torch.stack(made)
    elif cut is None:
        factors = decode_scales(held, scales, rows, k)
    else:
        factors = decode_cut_scales(held, scales, rows, k, ends=ends, along_k=cut is Axis.K)
    return wide * (factors if name == "a" else factors.mT)


def scale_offsets(scales: Scales, rows: int, blocks: int, device: Any = "cpu") -> torch.Tensor:
    """Bytes from the first scale to that of each (row, block), int64 [rows, blocks]."""
    import torch

    row = torch.arange(rows, device=device)[:, None]
    block = torch.arange(blocks, device=device)[None, :]
    if scales.layout is ScaleLayout.PLAIN:
        return row * scales.row + block * scales.block
    tile = row // TILE_ROWS * scales.row + block // TILE_BLOCKS * TILE_BYTES
    inside = row % TILE_ROWS
    return tile + inside % 32 * 16 + inside // 32 * 4 + block % TILE_BLOCKS
