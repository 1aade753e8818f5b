"""Integer, bitwise and bit-field vector opcodes (VOP1, VOP2, VOP3) on (W, 64) lane arrays.

Cross-lane moves (readlane, permlane, DPP) belong to the engine. Semantics: AMD "CDNA4 ISA" guide,
chapters "VOP1/VOP2/VOP3 Instructions".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .bits import (
    bit_reverse,
    count_ones,
    find_first_one,
    find_last_one_from_top,
    find_sign_change_from_top,
)
from .op import OpTable

Array = np.ndarray
OPS = OpTable("valu")
_add = OPS.add
U8, U16, U32, U64 = np.uint8, np.uint16, np.uint32, np.uint64
I32, I64 = np.int32, np.int64


def _reverse(fn: Callable[[Array, Array], Any]) -> Callable[[Array, Array], Any]:
    return lambda a, b: fn(b, a)


# --- moves and logic ---------------------------------------------------------------------------


def _cndmask(a: Array, b: Array, select: Array) -> Array:
    # a ^ ((a ^ b) · select): three ufuncs, a third of np.where's time on 256 × 64 lanes.
    picked = np.multiply(a ^ b, select)
    return np.bitwise_xor(picked, a, out=picked)


for _t in ("b32", "b64"):
    _add(f"v_mov_{_t}", _t, _t, lambda a: a)
_add("v_cndmask_b32", "b32", "b32 b32 mask", _cndmask)
_add("v_not_b32", "u32", "u32", np.bitwise_not)
_add("v_and_b32", "u32", "u32 u32", np.bitwise_and)
_add("v_or_b32", "u32", "u32 u32", np.bitwise_or)
_add("v_xor_b32", "u32", "u32 u32", np.bitwise_xor)
_add("v_xnor_b32", "u32", "u32 u32", lambda a, b: ~(a ^ b))
_add("v_and_or_b32", "u32", "u32 u32 u32", lambda a, b, c: (a & b) | c)
_add("v_or3_b32", "u32", "u32 u32 u32", lambda a, b, c: a | b | c)
_add("v_xad_u32", "u32", "u32 u32 u32", lambda a, b, c: (a ^ b) + c)
_add("v_bfi_b32", "u32", "u32 u32 u32", lambda m, a, b: b ^ (m & (a ^ b)))

# Truth tables with a cheaper form than the sum of their minterms. Bit (4a + 2b + c) of the table
# is the result for source bits a, b, c.
_TT_A, _TT_B, _TT_C = 0xF0, 0xCC, 0xAA
_TRUTH: dict[int, Callable[[Array, Array, Array], Array]] = {
    _TT_A ^ _TT_B ^ _TT_C: lambda a, b, c: a ^ b ^ c,
    (_TT_A ^ _TT_B) & _TT_C: lambda a, b, c: (a ^ b) & c,
    (_TT_A & _TT_B) ^ _TT_C: lambda a, b, c: (a & b) ^ c,
    (_TT_A | _TT_B) ^ _TT_C: lambda a, b, c: (a | b) ^ c,
    (_TT_A | _TT_C) ^ _TT_B: lambda a, b, c: (a | c) ^ b,
    (_TT_A & _TT_C) ^ _TT_B: lambda a, b, c: (a & c) ^ b,
    (_TT_A ^ _TT_C) & _TT_B: lambda a, b, c: (a ^ c) & b,
    (_TT_A & _TT_C) | _TT_B: lambda a, b, c: (a & c) | b,
    (_TT_A | _TT_C) & _TT_B: lambda a, b, c: (a | c) & b,
    _TT_A & _TT_B & _TT_C: lambda a, b, c: a & b & c,
    _TT_A | _TT_B | _TT_C: lambda a, b, c: a | b | c,
    (_TT_A & _TT_B) | _TT_C: lambda a, b, c: (a & b) | c,
    (_TT_A | _TT_B) & _TT_C: lambda a, b, c: (a | b) & c,
}


def _bitop3(a: Array, b: Array, c: Array, bitop3: int = 0) -> Array:
    """Bitwise function of three sources given by the 8-bit truth table ``bitop3``."""
    known = _TRUTH.get(bitop3)
    if known is not None:
        return known(a, b, c)
    # Shannon expansion on a, then b: each leaf is 0, ~0, c or ~c.
    high, low = _two_source(bitop3 >> 4, b, c), _two_source(bitop3 & 15, b, c)
    return low ^ (a & (high ^ low))


def _two_source(table: int, b: Array, c: Array) -> Array:
    zero = c.dtype.type(0)
    leaf = (zero, ~c, c, ~zero)
    high, low = leaf[table >> 2], leaf[table & 3]
    return low ^ (b & (high ^ low))


_add("v_bitop3_b32", "u32", "u32 u32 u32", _bitop3, mods="bitop3")
_add("v_bitop3_b16", "u16", "u16 u16 u16", _bitop3, mods="bitop3")

# --- 32- and 64-bit arithmetic -----------------------------------------------------------------


def _carry_add(a: Array, b: Array) -> tuple[Array, Array]:
    total = a + b
    return total, total < a


def _borrow_sub(a: Array, b: Array) -> tuple[Array, Array]:
    return a - b, a < b


def _addc(a: Array, b: Array, carry: Array) -> tuple[Array, Array]:
    partial = a + b
    total = partial + carry
    return total, (partial < a) | (total < partial)


def _subb(a: Array, b: Array, borrow: Array) -> tuple[Array, Array]:
    partial = a - b
    return partial - borrow, (a < b) | (borrow & (a == b))


def _mad_u64_u32(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    total = np.multiply(a, b, dtype=U64) + c
    return total, total < c


def _mad_i64_i32(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    product = np.multiply(a, b, dtype=I64)
    total = product + c
    # Bit 64 of the 65-bit sum: the sign of the exact sum.
    overflow = (product ^ total) & (c ^ total)
    return total, (total ^ overflow) < 0


def _high(a: Array, b: Array, wide: type) -> Array:
    return (np.multiply(a, b, dtype=wide) >> wide(32)).astype(a.dtype)


def _mul_hi_u32(a: Array, b: Array) -> Array:
    return _high(a, b, U64)


def _mul_hi_i32(a: Array, b: Array) -> Array:
    return _high(a, b, I64)


_add("v_add_u32", "u32", "u32 u32", np.add, exact=np.add)
_add("v_sub_u32", "u32", "u32 u32", np.subtract, exact=np.subtract)
_add("v_subrev_u32", "u32", "u32 u32", _reverse(np.subtract), exact=_reverse(np.subtract))
_add("v_add3_u32", "u32", "u32 u32 u32", lambda a, b, c: a + b + c)
_add("v_lshl_add_u32", "u32", "u32 u32 u32", lambda a, n, c: (a << (n & U32(31))) + c)
_add("v_add_lshl_u32", "u32", "u32 u32 u32", lambda a, b, n: (a + b) << (n & U32(31)))
_add("v_lshl_or_b32", "u32", "u32 u32 u32", lambda a, n, c: (a << (n & U32(31))) | c)
_add("v_lshl_add_u64", "u64", "u64 u32 u64", lambda a, n, c: (a << (n & U32(7))) + c)
_add("v_add_co_u32", "u32 mask", "u32 u32", _carry_add)
_add("v_sub_co_u32", "u32 mask", "u32 u32", _borrow_sub)
_add("v_subrev_co_u32", "u32 mask", "u32 u32", _reverse(_borrow_sub))
_add("v_addc_co_u32", "u32 mask", "u32 u32 mask", _addc)
_add("v_subb_co_u32", "u32 mask", "u32 u32 mask", _subb)
_add("v_subbrev_co_u32", "u32 mask", "u32 u32 mask", lambda a, b, c: _subb(b, a, c))
_add("v_add_i32", "i32", "i32 i32", np.add, exact=np.add)
_add("v_sub_i32", "i32", "i32 i32", np.subtract, exact=np.subtract)
_add("v_mul_lo_u32", "u32", "u32 u32", np.multiply)
_add("v_mul_hi_u32", "u32", "u32 u32", _mul_hi_u32)
_add("v_mul_hi_i32", "i32", "i32 i32", _mul_hi_i32)
_add("v_mad_u64_u32", "u64 mask", "u32 u32 u64", _mad_u64_u32)
_add("v_mad_i64_i32", "i64 mask", "i32 i32 i64", _mad_i64_i32)

# 24-bit operands: the low 24 bits, zero- or sign-extended.


def _u24(a: Array) -> Array:
    return a & U32(0xFFFFFF)


def _i24(a: Array) -> Array:
    return (a << I32(8)) >> I32(8)


def _exact_mad(cut: Callable[[Array], Array]) -> Callable[[Array, Array, Array], Array]:
    """a · b + c of operands that ``cut`` narrows, on int64."""
    return lambda a, b, c: cut(a) * cut(b) + c


def _wide_u24(a: Array) -> Array:
    return a & I64(0xFFFFFF)


def _wide_i24(a: Array) -> Array:
    return (a << I64(40)) >> I64(40)


def _whole(a: Array) -> Array:
    return a


_add("v_mul_u32_u24", "u32", "u32 u32", lambda a, b: _u24(a) * _u24(b))
_add("v_mul_i32_i24", "i32", "i32 i32", lambda a, b: _i24(a) * _i24(b))
_add("v_mul_hi_u32_u24", "u32", "u32 u32", lambda a, b: _mul_hi_u32(_u24(a), _u24(b)))
_add("v_mul_hi_i32_i24", "i32", "i32 i32", lambda a, b: _mul_hi_i32(_i24(a), _i24(b)))
_add("v_mad_u32_u24", "u32", "u32 u32 u32", lambda a, b, c: _u24(a) * _u24(b) + c,
     exact=_exact_mad(_wide_u24))  # fmt: skip
_add("v_mad_i32_i24", "i32", "i32 i32 i32", lambda a, b, c: _i24(a) * _i24(b) + c,
     exact=_exact_mad(_wide_i24))  # fmt: skip
_add("v_mad_u32_u16", "u32", "u16 u16 u32", lambda a, b, c: np.multiply(a, b, dtype=U32) + c,
     exact=_exact_mad(_whole))  # fmt: skip
_add("v_mad_i32_i16", "i32", "i16 i16 i32", lambda a, b, c: np.multiply(a, b, dtype=I32) + c,
     exact=_exact_mad(_whole))  # fmt: skip

# --- shifts ------------------------------------------------------------------------------------

for _t, _u, _n, _m in (("b32", "u32", "u32", 31), ("b64", "u64", "u32", 63),
                       ("b16", "u16", "u16", 15)):  # fmt: skip
    _mask = {"u32": U32, "u16": U16}[_n](_m)
    _add(f"v_lshlrev_{_t}", _u, f"{_n} {_u}", lambda n, a, m=_mask: a << (n & m))
    _add(f"v_lshrrev_{_t}", _u, f"{_n} {_u}", lambda n, a, m=_mask: a >> (n & m))
_add("v_ashrrev_i32", "i32", "i32 i32", lambda n, a: a >> (n & I32(31)))
_add("v_ashrrev_i64", "i64", "i32 i64", lambda n, a: a >> (n & I32(63)))
_add("v_ashrrev_i16", "i16", "i16 i16", lambda n, a: a >> (n & np.int16(15)))


def _alignbit(high: Array, low: Array, n: Array) -> Array:
    n = n & U32(31)
    # The two-step shift of the high word keeps its count below 32 when n is 0.
    return (low >> n) | (high << U32(1)) << (U32(31) - n)


_add("v_alignbit_b32", "u32", "u32 u32 u32", _alignbit)
_add("v_alignbyte_b32", "u32", "u32 u32 u32",
     lambda a, b, n: _alignbit(a, b, (n & U32(3)) << U32(3)))  # fmt: skip

# --- bit fields and bit counts -----------------------------------------------------------------


def _bfe_u32(a: Array, offset: Array, width: Array) -> Array:
    one = U32(1)
    return (a >> (offset & U32(31))) & ((one << (width & U32(31))) - one)


def _bfe_i32(a: Array, offset: Array, width: Array) -> Array:
    width = width & U32(31)
    drop = (U32(32) - width & U32(31)).view(I32)
    field = ((a >> (offset & U32(31)).view(I32)) << drop) >> drop
    return field * (width != 0)


_add("v_bfe_u32", "u32", "u32 u32 u32", _bfe_u32)
_add("v_bfe_i32", "i32", "i32 u32 u32", _bfe_i32)
_add("v_bfm_b32", "u32", "u32 u32",
     lambda w, n: ((U32(1) << (w & U32(31))) - U32(1)) << (n & U32(31)))  # fmt: skip
_add("v_bfrev_b32", "u32", "u32", bit_reverse)
_add("v_ffbh_u32", "i32", "u32", find_last_one_from_top)
_add("v_ffbl_b32", "i32", "u32", find_first_one)
_add("v_ffbh_i32", "i32", "i32", find_sign_change_from_top)
_add("v_bcnt_u32_b32", "u32", "u32 u32", lambda a, b: count_ones(a) + b)

# Bits below each lane, split at lane 32 (CDNA4 ISA, V_MBCNT_LO/HI_U32_B32).
_LANE = np.arange(64, dtype=U64)
_BELOW_LO = ((U64(1) << np.minimum(_LANE, U64(32))) - U64(1)).astype(U32)
_BELOW_HI = ((U64(1) << np.maximum(_LANE, U64(32)) - U64(32)) - U64(1)).astype(U32)
_add("v_mbcnt_lo_u32_b32", "u32", "u32 u32",
     lambda m, b, lane: count_ones(m & _BELOW_LO[lane]) + b, implicit_src="lane")  # fmt: skip
_add("v_mbcnt_hi_u32_b32", "u32", "u32 u32",
     lambda m, b, lane: count_ones(m & _BELOW_HI[lane]) + b, implicit_src="lane")  # fmt: skip

# Linear feedback step of the generator behind stochastic rounding (CDNA4 ISA, V_PRNG_B32).
_add("v_prng_b32", "u32", "u32", lambda a: (a << U32(1)) ^ (a >> U32(31)) * U32(197))

# --- minimum, maximum, median ------------------------------------------------------------------


def _med3(a: Array, b: Array, c: Array) -> Array:
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


for _t in ("i32", "u32", "i16", "u16"):
    _three = f"{_t} {_t} {_t}"
    _add(f"v_min_{_t}", _t, f"{_t} {_t}", np.minimum)
    _add(f"v_max_{_t}", _t, f"{_t} {_t}", np.maximum)
    _add(f"v_min3_{_t}", _t, _three, lambda a, b, c: np.minimum(np.minimum(a, b), c))
    _add(f"v_max3_{_t}", _t, _three, lambda a, b, c: np.maximum(np.maximum(a, b), c))
    _add(f"v_med3_{_t}", _t, _three, _med3)

# --- 16-bit arithmetic -------------------------------------------------------------------------

for _t in ("u16", "i16"):
    _add(f"v_add_{_t}", _t, f"{_t} {_t}", np.add, exact=np.add)
    _add(f"v_sub_{_t}", _t, f"{_t} {_t}", np.subtract, exact=np.subtract)
    for _legacy in ("", "legacy_"):
        _add(f"v_mad_{_legacy}{_t}", _t, f"{_t} {_t} {_t}", lambda a, b, c: a * b + c,
             exact=_exact_mad(_whole))  # fmt: skip
_add("v_subrev_u16", "u16", "u16 u16", _reverse(np.subtract), exact=_reverse(np.subtract))
_add("v_mul_lo_u16", "u16", "u16 u16", np.multiply)

# --- bytes -------------------------------------------------------------------------------------


def as_bytes(a: Array) -> Array:
    """Bytes of each element on a new last axis, lowest first; ``a`` may be a broadcast view."""
    return np.ascontiguousarray(a).view(U8).reshape(*a.shape, a.dtype.itemsize)


def _absdiff(x: Array, y: Array) -> Array:
    return np.maximum(x, y) - np.minimum(x, y)


def _sum(parts: Array, c: Array) -> Array:
    return parts.sum(axis=-1, dtype=U32) + c


def _sad_u8(a: Array, b: Array, c: Array) -> Array:
    return _sum(_absdiff(as_bytes(a), as_bytes(b)), c)


def _msad_u8(a: Array, b: Array, c: Array) -> Array:
    ref = as_bytes(b)
    return _sum(_absdiff(as_bytes(a), ref) * (ref != 0), c)


def _sad_u16(a: Array, b: Array, c: Array) -> Array:
    low, high = U32(0xFFFF), U32(16)
    return _absdiff(a & low, b & low) + _absdiff(a >> high, b >> high) + c


def _lerp_u8(a: Array, b: Array, c: Array) -> Array:
    half = (as_bytes(a).astype(U16) + as_bytes(b) + (as_bytes(c) & U8(1))) >> U16(1)
    return half.astype(U8).view(U32)[..., 0]


def _perm_fixed(a: Array, b: Array, select: int) -> Array | None:
    """Byte permute by one selector for all lanes; None if it takes more than moves and zeros."""
    picks = select.to_bytes(4, "little")
    if any(pick > 7 and pick != 12 for pick in picks):
        return None
    total: Array | None = None
    at = 0
    while at < 4:
        pick, run = picks[at], 1
        while at + run < 4 and picks[at + run] == pick + run != 4:
            run += 1
        if pick < 8:
            source, shift = (a if pick > 3 else b), 8 * (pick % 4 - at)
            moved = source >> U32(shift) if shift >= 0 else source << U32(-shift)
            part = moved & U32(((1 << 8 * run) - 1) << 8 * at)
            total = part if total is None else total | part
        at += run
    return total


def _perm(a: Array, b: Array, select: Array) -> Array:
    """Byte permute of {a, b}: 0–7 pick a byte (b's first), 8–11 spread the sign of b's high half
    and low half and a's likewise, 12 gives 0x00, 13 and above 0xFF."""
    first = select.flat[0]
    if select.shape[-1] == 1 and (select == first).all():
        fixed = _perm_fixed(a, b, int(first))
        if fixed is not None:
            return fixed
    a, b, select = np.broadcast_arrays(a, b, select)
    pool = np.empty((*a.shape, 14), U8)
    pool[..., 0:4], pool[..., 4:8] = as_bytes(b), as_bytes(a)
    pool[..., 8:12] = (pool[..., 1:8:2] >> U8(7)) * U8(255)
    pool[..., 12], pool[..., 13] = 0, 255
    index = np.minimum(as_bytes(select), U8(13)).astype(np.intp)
    return np.take_along_axis(pool, index, axis=-1).view(U32)[..., 0]


def _exact_sad(fn: Callable[..., Array]) -> Callable[[Array, Array, Array], Array]:
    """The differences fit 32 bits without the addend; their sum with it needs more."""

    def run(a: Array, b: Array, c: Array) -> Array:
        parts: Array = fn(a.astype(U32), b.astype(U32), np.zeros(c.shape, U32))
        return parts.astype(I64) + c

    return run


for _name, _fn in (("sad_u8", _sad_u8), ("msad_u8", _msad_u8), ("sad_u16", _sad_u16)):
    _add(f"v_{_name}", "u32", "u32 u32 u32", _fn, exact=_exact_sad(_fn))
_add("v_sad_hi_u8", "u32", "u32 u32 u32",
     lambda a, b, c: (_sad_u8(a, b, np.zeros_like(c)) << U32(16)) + c)  # fmt: skip
_add("v_sad_u32", "u32", "u32 u32 u32", lambda a, b, c: _absdiff(a, b) + c,
     exact=lambda a, b, c: _absdiff(a, b) + c)  # fmt: skip
_add("v_lerp_u8", "u32", "u32 u32 u32", _lerp_u8)
_add("v_perm_b32", "u32", "u32 u32 u32", _perm)
_add("v_pack_b32_f16", "b32", "f16 f16",
     lambda a, b: a.view(U16) | np.left_shift(b.view(U16), U32(16), dtype=U32))  # fmt: skip


def _sat_pk_u8_i16(a: Array) -> Array:
    halves = np.ascontiguousarray(a).view(np.int16).reshape(*a.shape, 2)
    return np.clip(halves, 0, 255).astype(U8).view(U16)[..., 0]


_add("v_sat_pk_u8_i16", "b16", "b32", _sat_pk_u8_i16)


def _ashr_pk(low: int, high: int) -> Callable[[Array, Array, Array], Array]:
    def run(a: Array, b: Array, n: Array) -> Array:
        n = (n & U32(31)).astype(I32)
        first = np.clip(a >> n, low, high) & I32(255)
        second = np.clip(b >> n, low, high) & I32(255)
        return (first | second << I32(8)).astype(U16)

    return run


_add("v_ashr_pk_i8_i32", "b16", "i32 i32 u32", _ashr_pk(-128, 127))
_add("v_ashr_pk_u8_i32", "b16", "i32 i32 u32", _ashr_pk(0, 255))
