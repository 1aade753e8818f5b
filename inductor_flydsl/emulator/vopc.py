"""Vector compares (VOPC): one bool per lane.

A ``v_cmpx`` result is also the new EXEC, given again as the implicit destination. Semantics: AMD
"CDNA4 ISA" guide, chapter "VOPC Instructions".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .floats import MANTISSA_BITS, bits_of
from .op import DTYPES, OpTable

Array = np.ndarray
OPS = OpTable("vopc")


def _never(a: Array, b: Array) -> Array:
    return np.zeros(np.broadcast_shapes(a.shape, b.shape), np.bool_)


def _always(a: Array, b: Array) -> Array:
    return np.ones(np.broadcast_shapes(a.shape, b.shape), np.bool_)


def _ordered(a: Array, b: Array) -> Array:
    return (a == a) & (b == b)


def _less_or_greater(a: Array, b: Array) -> Array:
    return (a < b) | (a > b)


def _not(fn: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: ~fn(a, b)


_FLOAT: dict[str, Any] = {
    "f": _never, "lt": np.less, "eq": np.equal, "le": np.less_equal, "gt": np.greater,
    "lg": _less_or_greater, "ge": np.greater_equal, "o": _ordered, "u": _not(_ordered),
    "nge": _not(np.greater_equal), "nlg": _not(_less_or_greater), "ngt": _not(np.greater),
    "nle": _not(np.less_equal), "neq": np.not_equal, "nlt": _not(np.less), "tru": _always,
}  # fmt: skip
_INTEGER: dict[str, Any] = {
    "f": _never, "lt": np.less, "eq": np.equal, "le": np.less_equal, "gt": np.greater,
    "ne": np.not_equal, "ge": np.greater_equal, "t": _always,
}  # fmt: skip


def _class(a: Array, mask: Array) -> Array:
    """Whether ``a`` is of a class set in ``mask``: bit 0 signaling NaN, 1 quiet NaN, 2 −inf,
    3 −normal, 4 −subnormal, 5 −0, 6 +0, 7 +subnormal, 8 +normal, 9 +inf."""
    bits = bits_of(a)
    t = bits.dtype.type
    mantissa = MANTISSA_BITS[a.dtype]
    width = bits.dtype.itemsize * 8
    exponent = bits >> t(mantissa) & t((1 << width - 1 - mantissa) - 1)
    fraction = bits & t((1 << mantissa) - 1)
    top = t((1 << width - 1 - mantissa) - 1)
    negative = bits >> t(width - 1) != 0
    quiet = fraction >> t(mantissa - 1) != 0
    # Distance from the zeros (bits 5 and 6) outwards: 0 zero, 1 subnormal, 2 normal, 3 infinite.
    size = np.where(exponent == top, 3, np.where(exponent != 0, 2, fraction != 0))
    index = np.where(negative, 5 - size, 6 + size)
    index = np.where((exponent == top) & (fraction != 0), quiet, index).astype(np.uint32)
    return (mask >> index) & np.uint32(1) != 0


def _both(name: str, dtype: str, mask_type: str, fn: Any) -> None:
    def with_exec(a: Array, b: Array) -> tuple[Array, Array]:
        result = fn(a, b)
        return result, result

    src = f"{dtype} {mask_type}"
    OPS.add(f"v_cmp_{name}_{dtype}", "mask", src, fn)
    OPS.add(f"v_cmpx_{name}_{dtype}", "mask", src, with_exec, implicit_dst="exec")


for _dtype in ("f16", "f32", "f64", "i16", "u16", "i32", "u32", "i64", "u64"):
    for _name, _fn in (_FLOAT if DTYPES[_dtype].kind == "f" else _INTEGER).items():
        _both(_name, _dtype, _dtype, _fn)
for _dtype in ("f16", "f32", "f64"):
    _both("class", _dtype, "u32", _class)
