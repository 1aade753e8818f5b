"""What operands of 8 bits and fewer, and their block scales, mean as float64.

Written from the OCP specifications (8-bit Floating Point 1.0; Microscaling Formats 1.0) and from
nothing that computes them here: neither torch's conversions nor the emulator's tables.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from .dtypes import DType
from .scaling import BLOCK, TILE_BLOCKS, TILE_BYTES, TILE_ROWS, ScaleLayout, Scales

if TYPE_CHECKING:
    import torch

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


def decode_scales(held: torch.Tensor, scales: Scales, rows: int, k: int) -> torch.Tensor:
    """float64 factors [rows, K] of one operand from its scale bytes.

    Args:
        held: uint8 or float8_e8m0fnu; its first element is the first scale, whatever its shape.
        scales: how they lie from there.
        rows: of A, or columns of B; k: elements along K.
    """
    import torch

    at = scale_offsets(scales, rows, k // BLOCK, held.device)
    raw = held.view(torch.uint8)
    flat = raw.as_strided((int(at.max()) + 1,), (1,), raw.storage_offset())
    codes = flat[at].double()
    factors = torch.exp2(codes - E8M0_BIAS)
    factors = torch.where(codes == E8M0_NAN, math.nan, factors)
    return factors.repeat_interleave(BLOCK, dim=1)


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
