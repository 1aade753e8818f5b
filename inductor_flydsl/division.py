"""Divisors that a launch knows, so that its kernels divide by multiplying.

Owns the numbers; `templates.ops.divide_by` uses them. A quotient of unknown integers takes gfx950
some twenty instructions, at the start of every workgroup, before its first load.
"""

from __future__ import annotations

BITS = 31


def divider(divisor: int) -> tuple[int, int]:
    """(multiplier, shift) with which x // divisor is (2·x·multiplier >> 32) >> shift.

    Exact for 0 ≤ x < 2**31: with 2**shift the power of two at or above the divisor, multiplier ·
    divisor exceeds 2**(31 + shift) by less than 2**shift (Granlund and Montgomery, "Division by
    Invariant Integers using Multiplication").

    Args:
        divisor: from 1 to 2**31 - 1.

    Returns:
        The multiplier as a signed 32-bit integer, and the shift.
    """
    shift = (divisor - 1).bit_length()
    multiplier = -(-(1 << (BITS + shift)) // divisor)
    return multiplier - (1 << 32 if multiplier >> BITS else 0), shift
