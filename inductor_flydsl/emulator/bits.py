"""Bit counting, searching and reversal on unsigned or signed integer arrays of 32 or 64 bits.

Owns the vectorised bit tricks that scalar and vector opcodes share; knows no opcode.
"""

from __future__ import annotations

import numpy as np

_REVERSE_STEPS = (
    (1, 0x5555555555555555),
    (2, 0x3333333333333333),
    (4, 0x0F0F0F0F0F0F0F0F),
)


def _unsigned(a: np.ndarray) -> np.ndarray:
    return a.view(f"u{a.dtype.itemsize}")


def count_ones(a: np.ndarray) -> np.ndarray:
    """Number of set bits of each element, uint8."""
    words = _unsigned(a)
    if hasattr(np, "bitwise_count"):  # numpy 2.0 on
        return np.bitwise_count(words)
    octets = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, words.itemsize)
    return np.unpackbits(octets, axis=-1).sum(axis=-1, dtype=np.uint8)


def bit_reverse(a: np.ndarray) -> np.ndarray:
    """Each element with its bits in the opposite order; dtype u32 or u64."""
    t = a.dtype.type
    full = (1 << a.dtype.itemsize * 8) - 1
    for shift, mask in _REVERSE_STEPS:
        a = (a >> t(shift)) & t(mask & full) | (a & t(mask & full)) << t(shift)
    return a.byteswap()


def _smear_down(a: np.ndarray) -> np.ndarray:
    a = _unsigned(a)
    t = a.dtype.type
    shift = 1
    while shift < a.dtype.itemsize * 8:
        a = a | a >> t(shift)
        shift *= 2
    return a


def _none_is_minus_one(found: np.ndarray, bits: int) -> np.ndarray:
    result = found.astype(np.int32)
    result[result == bits] = -1
    return result


def find_first_one(a: np.ndarray) -> np.ndarray:
    """Index of the lowest set bit as int32, −1 where there is none."""
    a = np.atleast_1d(_unsigned(a))
    one = a.dtype.type(1)
    return _none_is_minus_one(count_ones(~a & (a - one)), a.dtype.itemsize * 8)


def find_last_one_from_top(a: np.ndarray) -> np.ndarray:
    """Number of zeros above the highest set bit as int32, −1 where there is none."""
    a = np.atleast_1d(a)
    bits = a.dtype.itemsize * 8
    return _none_is_minus_one(count_ones(~_smear_down(a)), bits)


def find_sign_change_from_top(a: np.ndarray) -> np.ndarray:
    """Number of leading bits equal to the sign bit as int32, −1 where all bits are equal.

    ``a`` is signed. 0x7FFFFFFF gives 1: the search starts at the bit below the sign.
    """
    a = np.atleast_1d(a)
    bits = a.dtype.itemsize * 8
    return find_last_one_from_top(a ^ (a >> a.dtype.type(bits - 1)))
