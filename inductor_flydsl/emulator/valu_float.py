"""Floating-point vector opcodes (VOP1, VOP2, VOP3) in f16, f32 and f64.

Rounding is to nearest even and f32/f16/f64 subnormals are kept in arithmetic: the mode FlyDSL and
Triton kernels run in. Semantics: AMD "CDNA4 ISA" guide, chapters "VOP1/VOP2/VOP3 Instructions".
Transcendentals return the float nearest a good libm result; the hardware is within 1 ulp of that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .floats import (
    F16,
    F32,
    F64,
    flush_subnormal,
    fma,
    max_num,
    maximum,
    min_num,
    minimum,
    quiet,
)
from .op import OpTable

Array = np.ndarray
OPS = OpTable("valu")
_add = OPS.add
_DTYPE: dict[str, Any] = {"f16": F16, "f32": F32, "f64": F64}

# --- add, multiply, fused multiply-add ---------------------------------------------------------

for _t in ("f16", "f32", "f64"):
    _two, _three = f"{_t} {_t}", f"{_t} {_t} {_t}"
    _add(f"v_add_{_t}", _t, _two, np.add)
    _add(f"v_mul_{_t}", _t, _two, np.multiply)
    _add(f"v_fma_{_t}", _t, _three, fma)
    _add(f"v_min_{_t}", _t, _two, min_num)
    _add(f"v_max_{_t}", _t, _two, max_num)
for _t in ("f16", "f32"):
    _add(f"v_sub_{_t}", _t, f"{_t} {_t}", np.subtract)
    _add(f"v_subrev_{_t}", _t, f"{_t} {_t}", lambda a, b: b - a)
for _t in ("f32", "f64"):
    _add(f"v_fmac_{_t}", _t, f"{_t} {_t}", fma, implicit_src="dst")
_add("v_fmamk_f32", "f32", "f32 f32 f32", fma)  # assembly order a, constant, b: a·K + b
_add("v_fmaak_f32", "f32", "f32 f32 f32", fma)
_add("v_fma_legacy_f16", "f16", "f16 f16 f16", fma)


def _mul_legacy(a: Array, b: Array) -> Array:
    return np.where((a == 0) | (b == 0), F32(0), a * b)


_add("v_mul_legacy_f32", "f32", "f32 f32", _mul_legacy)
# MAD rounds the product before the sum.
_add("v_mad_f16", "f16", "f16 f16 f16", lambda a, b, c: a * b + c)
_add("v_mad_legacy_f16", "f16", "f16 f16 f16", lambda a, b, c: a * b + c)
_add("v_mac_f16", "f16", "f16 f16", lambda a, b, old: a * b + old, implicit_src="dst")
_add("v_madmk_f16", "f16", "f16 f16 f16", lambda a, k, b: a * k + b)
_add("v_madak_f16", "f16", "f16 f16 f16", lambda a, b, k: a * b + k)

# --- three-way minimum, maximum, median --------------------------------------------------------


def _min3(a: Array, b: Array, c: Array) -> Array:
    return min_num(min_num(a, b), c)


def _max3(a: Array, b: Array, c: Array) -> Array:
    return max_num(max_num(a, b), c)


def _med3(a: Array, b: Array, c: Array) -> Array:
    """Median; with any NaN it is V_MIN3 of the three (CDNA4 ISA, V_MED3_F32)."""
    largest = _max3(a, b, c)
    middle = np.where(largest == a, max_num(b, c), max_num(a, np.where(largest == b, c, b)))
    some_nan = np.isnan(a) | np.isnan(b) | np.isnan(c)
    return np.where(some_nan, _min3(a, b, c), middle) if some_nan.any() else middle


for _t in ("f16", "f32"):
    _three = f"{_t} {_t} {_t}"
    _add(f"v_min3_{_t}", _t, _three, _min3)
    _add(f"v_max3_{_t}", _t, _three, _max3)
    _add(f"v_med3_{_t}", _t, _three, _med3)
_add("v_minimum3_f32", "f32", "f32 f32 f32", lambda a, b, c: minimum(minimum(a, b), c))
_add("v_maximum3_f32", "f32", "f32 f32 f32", lambda a, b, c: maximum(maximum(a, b), c))

# --- rounding and splitting --------------------------------------------------------------------


def _fract(a: Array) -> Array:
    # Never 1: LLVM folds min(x − floor(x), 1 − ulp) into V_FRACT (AMDGPUCodeGenPrepare).
    below_one = np.nextafter(a.dtype.type(1), a.dtype.type(0))
    return np.minimum(a - np.floor(a), below_one)


def _frexp_mant(a: Array) -> Array:
    return np.where(np.isfinite(a), np.frexp(a)[0], quiet(a))


def _frexp_exp(dtype: Any) -> Callable[[Array], Array]:
    return lambda a: (np.frexp(a)[1] * np.isfinite(a)).astype(dtype)


for _t in ("f16", "f32", "f64"):
    _add(f"v_trunc_{_t}", _t, _t, np.trunc)
    _add(f"v_ceil_{_t}", _t, _t, np.ceil)
    _add(f"v_floor_{_t}", _t, _t, np.floor)
    _add(f"v_rndne_{_t}", _t, _t, np.rint)
    _add(f"v_fract_{_t}", _t, _t, _fract)
    _add(f"v_frexp_mant_{_t}", _t, _t, _frexp_mant)
_add("v_frexp_exp_i16_f16", "i16", "f16", _frexp_exp(np.int16))
_add("v_frexp_exp_i32_f32", "i32", "f32", _frexp_exp(np.int32))
_add("v_frexp_exp_i32_f64", "i32", "f64", _frexp_exp(np.int32))
_add("v_ldexp_f16", "f16", "f16 i16", lambda a, n: np.ldexp(a, n.astype(np.int32)))
_add("v_ldexp_f32", "f32", "f32 i32", np.ldexp)
_add("v_ldexp_f64", "f64", "f64 i32", np.ldexp)

# --- transcendentals ---------------------------------------------------------------------------


def _rsq(a: Array) -> Array:
    return (1.0 / np.sqrt(a, dtype=F64)).astype(a.dtype)


def _sin(a: Array) -> Array:
    """sin of a count of turns; exact zeros at half turns."""
    x = a.astype(F64)
    part = np.fmod(x, 1.0)  # exact, and −0 stays −0
    part = part - np.rint(part) if (np.abs(part) > 0.5).any() else part
    # sin(2πp) = sin(2π(½ − p)): fold into a quarter turn.
    part = np.where(np.abs(part) > 0.25, np.copysign(0.5, part) - part, part)
    return _in_domain(x, np.sin(part * (2 * np.pi)), 0.0).astype(a.dtype)


def _cos(a: Array) -> Array:
    """cos of a count of turns; exact zeros at odd quarter turns."""
    x = a.astype(F64)
    part = 0.25 - np.abs(x - np.rint(x))
    return _in_domain(x, np.sin(part * (2 * np.pi)), 1.0).astype(a.dtype)


def _in_domain(x: Array, result: Array, outside: float) -> Array:
    """A constant past ±256 turns (GCN3 ISA, V_SIN_F32: valid input domain [−256, 256])."""
    return np.where((np.abs(x) > 256) & np.isfinite(x), outside, result)


_UNARY: dict[str, Callable[[Array], Array]] = {
    "rcp": np.reciprocal,
    "rsq": _rsq,
    "sqrt": np.sqrt,
    "exp": np.exp2,
    "log": np.log2,
    "sin": _sin,
    "cos": _cos,
}


def _flushing(fn: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """The f32 transcendentals flush subnormal inputs and results whatever the mode register says:
    LLVM's expansions of fdiv, fsqrt, flog2 and fexp2 scale around it (AMDGPULegalizerInfo)."""
    return lambda a: flush_subnormal(fn(flush_subnormal(a)))


for _name, _fn in _UNARY.items():
    _add(f"v_{_name}_f32", "f32", "f32", _flushing(_fn))
    _add(f"v_{_name}_f16", "f16", "f16", lambda a, f=_fn: f(a.astype(F32)).astype(F16))
_add("v_rcp_iflag_f32", "f32", "f32", _flushing(np.reciprocal))
for _name in ("rcp", "rsq", "sqrt"):
    _add(f"v_{_name}_f64", "f64", "f64", _UNARY[_name])
