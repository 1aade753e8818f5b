"""The helper opcodes of IEEE division: v_div_scale, v_div_fmas, v_div_fixup.

Semantics: AMD "CDNA4 ISA" guide, VOP3 opcodes. Where its pseudo-code can't be read literally, this
is the reading that makes LLVM's expansion of fdiv (AMDGPULegalizerInfo, legalizeFDIV32/64) round
correctly: a denominator whose reciprocal is subnormal is scaled by 2^−64 (2^−128 for f64), and
v_div_fmas undoes a scaled quotient up or down by the exponent of its third source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .floats import F16, F32, F64, MANTISSA_BITS, bits_of, exact_fma, fma, quiet, sum_to_round
from .op import OpTable

Array = np.ndarray
OPS = OpTable("valu")


@dataclass(frozen=True)
class _Limits:
    bias: int
    top: int
    far: int  # quotient exponent from which it is near overflow
    step: int  # log2 of the scale factor
    tiny: int  # numerator exponent at or below which it is scaled
    underflow: int  # quotient exponent below which the quotient rounds to zero


_LIMITS = {
    np.dtype(F32): _Limits(bias=127, top=255, far=96, step=64, tiny=23, underflow=-150),
    np.dtype(F64): _Limits(bias=1023, top=2047, far=768, step=128, tiny=53, underflow=-1075),
}


def _exponent(a: Array) -> Array:
    mantissa = MANTISSA_BITS[a.dtype]
    width = a.dtype.itemsize * 8 - 1 - mantissa
    kind = bits_of(a).dtype.type
    return (bits_of(a) >> kind(mantissa) & kind((1 << width) - 1)).astype(np.int32)


def _div_scale(value: Array, denominator: Array, numerator: Array) -> tuple[Array, Array]:
    """Scaled ``value``, which is one of the other two, and whether the quotient is scaled."""
    value, denominator, numerator = np.broadcast_arrays(value, denominator, numerator)
    lim = _LIMITS[value.dtype]
    num, den = _exponent(numerator), _exponent(denominator)
    is_den = bits_of(value) == bits_of(denominator)
    is_num = bits_of(value) == bits_of(numerator)
    zero = (numerator == 0) | (denominator == 0)
    quotient_far = num - den >= lim.far
    reciprocal_tiny = den >= 2 * lim.bias - 1
    quotient_tiny = num - den <= 1 - lim.bias
    cases = [
        zero,
        quotient_far,
        den == 0,
        reciprocal_tiny & quotient_tiny,
        reciprocal_tiny,
        quotient_tiny,
        num <= lim.tiny,
    ]
    up, down = lim.step, -lim.step
    power = np.select(cases, [0, is_den * up, up, is_den * down, down, is_num * up, up], 0)
    scaled = np.select(cases, [True, True, False, True, False, True, False], False)
    result = np.where(zero, value.dtype.type(np.nan), np.ldexp(value, power.astype(np.int32)))
    return result, scaled


def _div_fmas_f32(a: Array, b: Array, c: Array, scaled: Array) -> Array:
    if not scaled.any():
        return fma(a, b, c)
    # Scale before the one rounding to f32: the result may be subnormal.
    total = sum_to_round(np.multiply(a, b, dtype=F64), c)
    power = np.where(scaled, np.where(_exponent(c) > 127, 64, -64), 0)
    return np.ldexp(total, power).astype(F32)


def _div_fmas_f64(a: Array, b: Array, c: Array, scaled: Array) -> Array:
    result = fma(a, b, c)
    if scaled.any():
        a, b, c, lanes = np.broadcast_arrays(a, b, c, scaled)
        result = np.array(result)
        power = np.where(_exponent(c) > 1023, 128, -128)
        for i in zip(*np.nonzero(lanes), strict=True):
            result[i] = exact_fma(float(a[i]), float(b[i]), float(c[i]), int(power[i]))
    return result


def _div_fixup(quotient: Array, denominator: Array, numerator: Array) -> Array:
    """The special cases of numerator / denominator; otherwise |quotient| with its sign."""
    t = quotient.dtype.type
    magnitude = np.abs(quotient)
    if t is not F16:
        lim = _LIMITS[quotient.dtype]
        # A NaN quotient of ordinary operands means that an intermediate overflowed.
        magnitude = np.where(np.isnan(quotient), t(np.inf), magnitude)
        below = _exponent(numerator) - _exponent(denominator) < lim.underflow
        magnitude = np.where(below, t(0), magnitude)
    num_zero, den_zero = numerator == 0, denominator == 0
    num_inf, den_inf = np.isinf(numerator), np.isinf(denominator)
    magnitude = np.where(den_inf | num_zero, t(0), magnitude)
    magnitude = np.where(den_zero | num_inf, t(np.inf), magnitude)
    negative = np.signbit(numerator) ^ np.signbit(denominator)
    result = np.where(negative, -magnitude, magnitude)
    invalid = (num_zero & den_zero) | (num_inf & den_inf)
    result = np.where(invalid, -np.abs(t(np.nan)), result)
    result = np.where(np.isnan(denominator), quiet(denominator), result)
    return np.where(np.isnan(numerator), quiet(numerator), result)


_FMAS: dict[str, Any] = {"f32": _div_fmas_f32, "f64": _div_fmas_f64}
for _t, _fmas in _FMAS.items():
    _three = f"{_t} {_t} {_t}"
    OPS.add(f"v_div_scale_{_t}", f"{_t} mask", _three, _div_scale)
    OPS.add(f"v_div_fmas_{_t}", _t, _three, _fmas, implicit_src="vcc")
    OPS.add(f"v_div_fixup_{_t}", _t, _three, _div_fixup)
OPS.add("v_div_fixup_f16", "f16", "f16 f16 f16", _div_fixup)
OPS.add("v_div_fixup_legacy_f16", "f16", "f16 f16 f16", _div_fixup)
