"""Conversions between ordinary number formats, and to and from fp8/bf8 without a scale.

Semantics: AMD "CDNA4 ISA" guide, opcodes V_CVT_*, and section 7.3 for fp8/bf8 (MODE.FP16_OVFL = 0:
overflow gives NaN or infinity, as the compiler's saturating code clamps beforehand).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .floats import F16, F32, F64, bf16_bits, bf16_to_f32, to_integer, truncate_to_f16
from .formats import BF8, FP8, Format
from .op import OpTable

Array = np.ndarray
OPS = OpTable("valu")
_add = OPS.add
U16, U32, I16, I32 = np.uint16, np.uint32, np.int16, np.int32


def pack_pair(low: Array, high: Array, dtype: Any) -> Array:
    """Two arrays of 16- or 32-bit ``dtype`` → one of 32 or 64 bits, ``low`` in the low half."""
    pair = np.empty((*np.broadcast_shapes(low.shape, high.shape), 2), dtype)
    pair[..., 0] = low
    pair[..., 1] = high
    return pair.view(f"u{2 * pair.dtype.itemsize}")[..., 0]


def _cast(dtype: Any) -> Callable[[Array], Array]:
    return lambda a: a.astype(dtype)


def _integer(dtype: Any) -> Callable[[Array], Array]:
    return lambda a: to_integer(a, dtype)


_TO_FLOAT: tuple[tuple[str, str, Any], ...] = (
    ("f32", "i32", F32), ("f32", "u32", F32), ("f64", "i32", F64), ("f64", "u32", F64),
    ("f16", "f32", F16), ("f32", "f16", F32), ("f32", "f64", F32), ("f64", "f32", F64),
    ("f16", "u16", F16), ("f16", "i16", F16),
)  # fmt: skip
_TO_INTEGER: tuple[tuple[str, str, Any], ...] = (
    ("u32", "f32", U32), ("i32", "f32", I32), ("u32", "f64", U32), ("i32", "f64", I32),
    ("u16", "f16", U16), ("i16", "f16", I16),
)  # fmt: skip
for _dst, _src, _dtype in _TO_FLOAT:
    _add(f"v_cvt_{_dst}_{_src}", _dst, _src, _cast(_dtype))
for _dst, _src, _dtype in _TO_INTEGER:
    _add(f"v_cvt_{_dst}_{_src}", _dst, _src, _integer(_dtype))
_add("v_cvt_f32_bf16", "f32", "bf16", bf16_to_f32)
_add("v_cvt_rpi_i32_f32", "i32", "f32", lambda a: to_integer(np.floor(a + F32(0.5)), I32))
_add("v_cvt_flr_i32_f32", "i32", "f32", lambda a: to_integer(np.floor(a), I32))
# 4-bit signed sixteenths: −0.5 … 0.4375 (GCN3 ISA, V_CVT_OFF_F32_I4).
_add("v_cvt_off_f32_i4", "f32", "u32",
     lambda a: ((a << U32(28)).view(I32) >> I32(28)).astype(F32) * F32(0.0625))  # fmt: skip
for _i in range(4):
    _add(f"v_cvt_f32_ubyte{_i}", "f32", "u32",
         lambda a, i=_i: (a >> U32(8 * i) & U32(0xFF)).astype(F32))  # fmt: skip

# --- packed ------------------------------------------------------------------------------------


def _pk_bf16(a: Array, b: Array) -> Array:
    low = bf16_bits(a)
    low >>= U32(16)
    high = bf16_bits(b)
    high &= U32(0xFFFF0000)
    return low | high


_add("v_cvt_pk_bf16_f32", "b32", "f32 f32", _pk_bf16)
_add("v_cvt_pk_f16_f32", "b32", "f32 f32", lambda a, b: pack_pair(a, b, F16))
_add("v_cvt_pkrtz_f16_f32", "b32", "f32 f32",
     lambda a, b: pack_pair(truncate_to_f16(a), truncate_to_f16(b), F16))  # fmt: skip
# Both saturate: Mesa's ac_build_cvt_pk_{i,u}16 clamps by hand only for narrower than 16 bits.
_add("v_cvt_pk_u16_u32", "b32", "u32 u32",
     lambda a, b: pack_pair(np.minimum(a, U32(65535)), np.minimum(b, U32(65535)), U16))  # fmt: skip
_add("v_cvt_pk_i16_i32", "b32", "i32 i32",
     lambda a, b: pack_pair(np.clip(a, -32768, 32767), np.clip(b, -32768, 32767), I16))  # fmt: skip

# --- fp8 and bf8 -------------------------------------------------------------------------------


def insert_half(old: Array, half: Array, high: int) -> Array:
    """``old`` with its low (or high) 16 bits replaced by those of ``half`` (uint16 or uint32)."""
    wide = half.astype(U32)
    if high:
        return (old & U32(0xFFFF)) | wide << U32(16)
    return (old & U32(0xFFFF0000)) | wide


def _to_eight(fmt: Format) -> Callable[..., Array]:
    def run(a: Array, b: Array, old: Array, op_sel: int = 0) -> Array:
        both = pack_pair(fmt.encode(a), fmt.encode(b), np.uint8)
        return insert_half(old, both, op_sel & 4)

    return run


def _from_eight(fmt: Format) -> Callable[..., Array]:
    def run(a: Array, op_sel: int = 0) -> Array:
        return fmt.decode(a >> U32(8 * (op_sel & 3)) & U32(0xFF))

    return run


def _pair_from_eight(fmt: Format) -> Callable[..., Array]:
    def run(a: Array, op_sel: int = 0) -> Array:
        word = a >> U32(16 * (op_sel & 1))
        return pack_pair(fmt.decode(word & U32(0xFF)), fmt.decode(word >> U32(8) & U32(0xFF)), F32)

    return run


# SDWA's byte and word selects reach these as an already shifted source. Of two sources, op_sel
# element 2 is OPSEL[3], the half of the destination that is written.
for _fmt in (FP8, BF8):
    _add(f"v_cvt_pk_{_fmt.name}_f32", "b32", "f32 f32", _to_eight(_fmt), mods="op_sel",
         implicit_src="dst")  # fmt: skip
    _add(f"v_cvt_f32_{_fmt.name}", "f32", "b32", _from_eight(_fmt), mods="op_sel")
    _add(f"v_cvt_pk_f32_{_fmt.name}", "b64", "b32", _pair_from_eight(_fmt), mods="op_sel")
