"""Exactly rounded floating-point helpers that numpy lacks: fused multiply-add, minNum/maxNum,
truncating and saturating conversions, subnormal flushing.

Knows no opcode. Arrays are any broadcastable shapes of one float dtype.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

Array = np.ndarray

F16, F32, F64 = np.float16, np.float32, np.float64
_BITS: dict[np.dtype, Any] = {
    np.dtype(F16): np.uint16,
    np.dtype(F32): np.uint32,
    np.dtype(F64): np.uint64,
}
MANTISSA_BITS = {np.dtype(F16): 10, np.dtype(F32): 23, np.dtype(F64): 52}


def bits_of(a: Array) -> Array:
    """The same memory as unsigned integers."""
    return a.view(_BITS[a.dtype])


def is_signaling(a: Array) -> Array:
    """True where ``a`` is a NaN whose quiet bit (top mantissa bit) is clear."""
    quiet = _BITS[a.dtype](1 << MANTISSA_BITS[a.dtype] - 1)
    return np.isnan(a) & (bits_of(a) & quiet == 0)


def quiet(a: Array) -> Array:
    """``a`` with the quiet bit set wherever it is NaN."""
    bit = _BITS[a.dtype](1 << MANTISSA_BITS[a.dtype] - 1)
    return np.where(np.isnan(a), (bits_of(a) | bit).view(a.dtype), a)


def flush_subnormal(a: Array) -> Array:
    """``a`` with subnormals replaced by zero of the same sign."""
    tiny = np.abs(a) < np.finfo(a.dtype).tiny
    return np.copysign(np.where(tiny, a.dtype.type(0), a), a) if tiny.any() else a


# --- fused multiply-add ------------------------------------------------------------------------


def _add_round_to_odd(p: Array, c: Array) -> Array:
    """p + c in float64 rounded to odd, so that one further rounding to ≤ 51 bits is exact.

    Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using
    rounding to odd", IEEE Trans. Computers 57(4), 2008.
    """
    total = p + c
    back = total - p
    error = (p - (total - back)) + (c - back)
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(error) & (bits & 1 == 0)
    if inexact.any():
        # Step one ulp towards the error; the even neighbour becomes odd.
        step = np.where((error > 0) == (total > 0), 1, -1)
        total = np.where(inexact, bits + step, bits).view(F64)
    return total


def fma_f32(a: Array, b: Array, c: Array) -> Array:
    """a·b + c rounded once to float32."""
    product = np.multiply(a, b, dtype=F64)  # 24 + 24 bits: exact
    total = product + c
    # Rounding through float64 is only wrong where the 53-bit sum is a tie of the 24-bit result,
    # or the result is subnormal and the tie sits at another bit.
    low = total.view(np.uint64) & np.uint64(0x1FFFFFFF)
    if (low == 0x10000000).any() or (np.abs(total) < np.finfo(F32).tiny).any():
        total = sum_to_round(product, c)
    return total.astype(F32)


def sum_to_round(product: Array, c: Array) -> Array:
    """product + c as a float64 that rounds further to any narrower float as the exact sum does."""
    product, addend = np.broadcast_arrays(product, c)
    return _add_round_to_odd(product, addend.astype(F64))


def fma_f16(a: Array, b: Array, c: Array) -> Array:
    """a·b + c rounded once to float16."""
    return sum_to_round(np.multiply(a, b, dtype=F64), c).astype(F16)


def _split(x: Array) -> tuple[Array, Array]:
    big = x * 134217729.0  # 2^27 + 1, Veltkamp
    high = big - (big - x)
    return high, x - high


def exact_fma(a: float, b: float, c: float, power: int = 0) -> float:
    """(a·b + c) · 2^power rounded once to float64, by integer arithmetic."""
    product = a * b + c
    if not all(map(math.isfinite, (a, b, c))):
        return product
    exact = (Fraction(a) * Fraction(b) + Fraction(c)) * Fraction(2) ** power
    if exact == 0:
        return product if a * b == 0 else 0.0
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return -math.inf if exact < 0 else math.inf


def fma_f64(a: Array, b: Array, c: Array) -> Array:
    """a·b + c rounded once to float64; elements near the exponent limits go through integers."""
    a, b, c = np.broadcast_arrays(a, b, c)
    a_hi, a_lo = _split(a)
    b_hi, b_lo = _split(b)
    high = a * b
    low = ((a_hi * b_hi - high) + a_hi * b_lo + a_lo * b_hi) + a_lo * b_lo
    t = c + low
    back = t - c
    t_low = (c - (t - back)) + (low - back)
    v = high + t
    back = v - high
    v_low = (high - (v - back)) + (t - back)
    result = v + _add_round_to_odd(t_low, v_low)
    sizes = (np.abs(x) for x in (a, b, high, c))
    safe = np.logical_and.reduce([(x > 2.0**-400) & (x < 2.0**400) for x in sizes])
    if not safe.all():
        result = np.array(result)
        for i in zip(*np.nonzero(~safe), strict=True):
            result[i] = exact_fma(float(a[i]), float(b[i]), float(c[i]))
    return result


def fma(a: Array, b: Array, c: Array) -> Array:
    """a·b + c rounded once to the dtype of ``a`` (float16, float32 or float64)."""
    return _FMA[a.dtype](a, b, c)


_FMA = {np.dtype(F16): fma_f16, np.dtype(F32): fma_f32, np.dtype(F64): fma_f64}

# --- minimum and maximum -----------------------------------------------------------------------


def _numeric(pick: Any, zero_sign: Any, a: Array, b: Array) -> Array:
    result = pick(a, b)
    zero = result == 0
    if zero.any():
        # Both operands are zero, or one is NaN: then its bits must not take part.
        x, y = np.where(np.isnan(a), b, a), np.where(np.isnan(b), a, b)
        both = zero & (x == y)
        signed = zero_sign(bits_of(x), bits_of(y)).view(a.dtype)
        result = np.where(both, signed, result)
    if np.isnan(a + b).any():
        for operand in (b, a):
            loud = is_signaling(operand)
            result = np.where(loud, quiet(operand), result)
    return result


def min_num(a: Array, b: Array) -> Array:
    """IEEE-754-2008 minNum in IEEE mode: a number beats a quiet NaN, a signaling NaN becomes the
    quiet result, −0 < +0 (CDNA4 ISA, V_MIN_F32)."""
    return _numeric(np.fmin, np.bitwise_or, a, b)


def max_num(a: Array, b: Array) -> Array:
    """IEEE-754-2008 maxNum in IEEE mode, with −0 < +0 (CDNA4 ISA, V_MAX_F32)."""
    return _numeric(np.fmax, np.bitwise_and, a, b)


def _propagating(pick: Any, zero_sign: Any, a: Array, b: Array) -> Array:
    result = pick(a, b)
    zero = (result == 0) & (a == b)
    if zero.any():
        result = np.where(zero, zero_sign(bits_of(a), bits_of(b)).view(a.dtype), result)
    return result


def minimum(a: Array, b: Array) -> Array:
    """IEEE-754-2019 minimum: NaN if either is NaN, −0 < +0 (CDNA4 ISA, V_MINIMUM3_F32)."""
    return _propagating(np.minimum, np.bitwise_or, a, b)


def maximum(a: Array, b: Array) -> Array:
    """IEEE-754-2019 maximum: NaN if either is NaN, −0 < +0."""
    return _propagating(np.maximum, np.bitwise_and, a, b)


# --- conversions -------------------------------------------------------------------------------


def to_integer(a: Array, dtype: Any) -> Array:
    """``a`` truncated towards zero and saturated to ``dtype``; NaN gives 0.

    CDNA4 ISA, V_CVT_U32_F32, V_CVT_I32_F32: out-of-range inputs saturate, NaN converts to 0.
    """
    info = np.iinfo(dtype)
    # float64 holds both limits of every 32-bit and narrower dtype.
    bounded = np.fmax(a, float(info.min), dtype=F64)
    np.minimum(bounded, float(info.max), out=bounded)
    if info.min < 0:
        np.multiply(bounded, a == a, out=bounded)
    return bounded.astype(dtype)


def truncate_to_f16(a: Array) -> Array:
    """float32 → float16 rounded towards zero; finite overflow gives 65504."""
    nearest = a.astype(F16)
    beyond = np.abs(nearest.astype(F32)) > np.abs(a)
    return (bits_of(nearest) - beyond).view(F16)


def bf16_bits(a: Array) -> Array:
    """float32 → bfloat16 as uint32 holding the 16 bits in its *high* half, low half unspecified.

    Round to nearest even; NaN stays NaN and becomes quiet.
    """
    bits = a.view(np.uint32)
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits
    nan = np.isnan(a)
    if nan.any():
        rounded = np.where(nan, bits | np.uint32(0x00400000), rounded)
    return rounded


def bf16_to_f32(a: Array) -> Array:
    """bfloat16 bits (uint16) → float32, exact."""
    return np.left_shift(a, np.uint32(16), dtype=np.uint32).view(F32)


def f16_halves(words: Array) -> tuple[Array, Array]:
    """The f16 in the low and the one in the high half of each uint32."""
    low = (words & np.uint32(0xFFFF)).astype(np.uint16)
    high = (words >> np.uint32(16)).astype(np.uint16)
    return low.view(F16), high.view(F16)
