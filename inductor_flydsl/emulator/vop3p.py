"""Packed 16- and 32-bit math, dot products and mixed-precision FMA (VOP3P and its VOP2 kin).

The packed opcodes (kind "vop3p") are functions of one half; the engine splits and joins halves.
Dot products and v_fma_mix see whole registers (kind "valu"). Semantics: AMD "CDNA4 ISA" guide,
chapter "VOP3P Instructions".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .convert import insert_half
from .floats import F16, F32, f16_halves, fma, max_num, maximum, min_num, minimum
from .op import OpTable

Array = np.ndarray
OPS = OpTable("vop3p")
_add = OPS.add
U16, U32, I16, I32 = np.uint16, np.uint32, np.int16, np.int32

# --- packed math, per half ---------------------------------------------------------------------

for _t in ("i16", "u16"):
    _mad = lambda a, b, c: a * b + c  # noqa: E731
    _add(f"v_pk_mad_{_t}", _t, f"{_t} {_t} {_t}", _mad, exact=_mad)
    _add(f"v_pk_add_{_t}", _t, f"{_t} {_t}", np.add, exact=np.add)
    _add(f"v_pk_sub_{_t}", _t, f"{_t} {_t}", np.subtract, exact=np.subtract)
    _add(f"v_pk_min_{_t}", _t, f"{_t} {_t}", np.minimum)
    _add(f"v_pk_max_{_t}", _t, f"{_t} {_t}", np.maximum)
_add("v_pk_mul_lo_u16", "u16", "u16 u16", np.multiply)
_add("v_pk_lshlrev_b16", "u16", "u16 u16", lambda n, a: a << (n & U16(15)))
_add("v_pk_lshrrev_b16", "u16", "u16 u16", lambda n, a: a >> (n & U16(15)))
_add("v_pk_ashrrev_i16", "i16", "i16 i16", lambda n, a: a >> (n & I16(15)))
for _t in ("f16", "f32"):
    _add(f"v_pk_fma_{_t}", _t, f"{_t} {_t} {_t}", fma)
    _add(f"v_pk_add_{_t}", _t, f"{_t} {_t}", np.add)
    _add(f"v_pk_mul_{_t}", _t, f"{_t} {_t}", np.multiply)
_add("v_pk_fmac_f16", "f16", "f16 f16", fma, implicit_src="dst")
_add("v_pk_min_f16", "f16", "f16 f16", min_num)
_add("v_pk_max_f16", "f16", "f16 f16", max_num)
_add("v_pk_minimum3_f16", "f16", "f16 f16 f16", lambda a, b, c: minimum(minimum(a, b), c))
_add("v_pk_maximum3_f16", "f16", "f16 f16 f16", lambda a, b, c: maximum(maximum(a, b), c))

# --- whole registers ---------------------------------------------------------------------------


def _pk_mov(a: Array, b: Array, op_sel: int = 0) -> Array:
    """Low word from the word of ``a`` that op_sel[0] picks, high word from that of ``b``."""
    t = np.uint64
    low = a >> t(32 * (op_sel & 1)) & t(0xFFFFFFFF)
    return low | (b >> t(32 * (op_sel >> 1 & 1))) << t(32)


_add("v_pk_mov_b32", "b64", "b64 b64", _pk_mov, mods="op_sel", kind="valu")


def _signed(words: Array, bits: int) -> list[Array]:
    top = I32(32 - bits)
    signed = words.view(I32)
    return [(signed << (top - I32(i))) >> top for i in range(0, 32, bits)]


def _unsigned(words: Array, bits: int) -> list[Array]:
    mask = U32((1 << bits) - 1)
    return [words >> U32(i) & mask for i in range(0, 32, bits)]


def _wide_signed(words: Array, bits: int) -> list[Array]:
    top, low = np.int64(64 - bits), np.int64(bits)
    return [(words << (top - i * low)) >> top for i in range(32 // bits)]


def _wide_unsigned(words: Array, bits: int) -> list[Array]:
    mask = np.int64((1 << bits) - 1)
    return [words >> np.int64(i) & mask for i in range(0, 32, bits)]


def _dot_int(split: Callable[[Array, int], list[Array]], bits: int) -> Callable[..., Array]:
    """Sums the products of the elements that ``split`` finds; wraps as its integers do."""

    def run(a: Array, b: Array, c: Array) -> Array:
        for x, y in zip(split(a, bits), split(b, bits), strict=True):
            c = c + x * y
        return c

    return run


def _f16_pair(words: Array) -> tuple[Array, Array]:
    low, high = f16_halves(words)
    return low.astype(F32), high.astype(F32)


def _bf16_pair(words: Array) -> tuple[Array, Array]:
    return (words << U32(16)).view(F32), (words & U32(0xFFFF0000)).view(F32)


def _dot2_accumulate(pair: Callable[[Array], tuple[Array, Array]]) -> Callable[..., Array]:
    def run(a: Array, b: Array, c: Array) -> Array:
        (a0, a1), (b0, b1) = pair(a), pair(b)
        return (c + a0 * b0) + a1 * b1

    return run


def _dot2_f32_bf16(a: Array, b: Array, c: Array) -> Array:
    (a0, a1), (b0, b1) = _bf16_pair(a), _bf16_pair(b)
    return (a0 * b0 + a1 * b1) + c


for _n, _bits in ((2, 16), (4, 8), (8, 4)):
    _wide_i, _wide_u = _dot_int(_wide_signed, _bits), _dot_int(_wide_unsigned, _bits)
    _add(f"v_dot{_n}_i32_i{_bits}", "i32", "b32 b32 i32", _dot_int(_signed, _bits), kind="valu",
         exact=_wide_i)  # fmt: skip
    _add(f"v_dot{_n}_u32_u{_bits}", "u32", "b32 b32 u32", _dot_int(_unsigned, _bits),
         kind="valu", exact=_wide_u)  # fmt: skip
    _add(f"v_dot{_n}c_i32_i{_bits}", "i32", "b32 b32", _dot_int(_signed, _bits),
         implicit_src="dst", kind="valu", exact=_wide_i)  # fmt: skip
_add("v_dot2_f32_f16", "f32", "b32 b32 f32", _dot2_accumulate(_f16_pair), kind="valu")
_add("v_dot2_f32_bf16", "f32", "b32 b32 f32", _dot2_f32_bf16, kind="valu")
_add("v_dot2c_f32_f16", "f32", "b32 b32", _dot2_accumulate(_f16_pair), implicit_src="dst",
     kind="valu")  # fmt: skip
_add("v_dot2c_f32_bf16", "f32", "b32 b32", _dot2_accumulate(_bf16_pair), implicit_src="dst",
     kind="valu")  # fmt: skip

# --- mixed-precision FMA -----------------------------------------------------------------------


def _mix_sources(words: tuple[Array, ...], op_sel: int, op_sel_hi: int, neg: int, abs_: int) -> Any:
    """Each source as f32: all of the register, or with its op_sel_hi bit the half that op_sel
    picks, as f16; then |x|, then −x."""
    for i, word in enumerate(words):
        as_f16 = op_sel_hi >> i & 1
        value = _f16_pair(word)[op_sel >> i & 1] if as_f16 else word.view(F32)
        value = np.abs(value) if abs_ >> i & 1 else value
        yield np.negative(value) if neg >> i & 1 else value


def _mix(fused: bool, half: int | None) -> Callable[..., Array]:
    """``half`` None: f32 result; 0 or 1: an f16 result in that half of the destination."""

    def run(
        *words: Array, op_sel: int = 0, op_sel_hi: int = 0, neg: int = 0, abs: int = 0,
        clamp: int = 0,
    ) -> Array:  # fmt: skip
        a, b, c = _mix_sources(words[:3], op_sel, op_sel_hi, neg, abs)
        total = fma(a, b, c) if fused else a * b + c
        if clamp:  # a NaN clamps to 0
            total = np.where(total > 0, np.minimum(total, F32(1)), F32(0))
        if half is None:
            return total
        # Rounds twice, to f32 and to f16: LLVM selects it for fptrunc of an f32 fma.
        return insert_half(words[3], total.astype(F16).view(U16), half)

    return run


_MODS = "op_sel op_sel_hi neg abs clamp"
for _name, _fused in (("fma", True), ("mad", False)):
    _add(f"v_{_name}_mix_f32", "f32", "b32 b32 b32", _mix(_fused, None), mods=_MODS, kind="valu")
    for _half, _where in ((0, "lo"), (1, "hi")):
        _add(f"v_{_name}_mix{_where}_f16", "b32", "b32 b32 b32", _mix(_fused, _half), mods=_MODS,
             implicit_src="dst", kind="valu")  # fmt: skip
