"""Scalar ALU opcodes (SOP1, SOP2, SOPC, SOPK) as functions on one value per wave.

Arrays are (W,). Control flow, program counter, hardware registers and M0-relative moves belong to
the engine. Semantics: AMD "CDNA4 ISA" guide, chapters "SOP2/SOPK/SOP1/SOPC Instructions".
"""

from __future__ import annotations

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

OPS = OpTable("salu")
_add = OPS.add
U32, U64 = np.uint32, np.uint64


def _simm16(imm: Any) -> np.ndarray:
    return ((np.asarray(imm, np.int64) & 0xFFFF ^ 0x8000) - 0x8000).astype(np.int32)


def _uimm16(imm: Any) -> np.ndarray:
    return (np.asarray(imm, np.int64) & 0xFFFF).astype(U32)


def _nonzero(result: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return result, result != 0


# --- moves -------------------------------------------------------------------------------------

for _t in ("b32", "b64"):
    _add(f"s_mov_{_t}", _t, _t, lambda a: a)
    _add(f"s_cmov_{_t}", _t, _t, lambda a, scc, old: np.where(scc, a, old), implicit_src="scc dst")
    _add(f"s_cselect_{_t}", _t, f"{_t} {_t}", lambda a, b, scc: np.where(scc, a, b),
         implicit_src="scc")  # fmt: skip
_add("s_movk_i32", "i32", "imm16", _simm16)
_add("s_cmovk_i32", "i32", "imm16", lambda k, scc, old: np.where(scc, _simm16(k), old),
     implicit_src="scc dst")  # fmt: skip
_add("s_sext_i32_i8", "i32", "i32", lambda a: (a << np.int32(24)) >> np.int32(24))
_add("s_sext_i32_i16", "i32", "i32", lambda a: (a << np.int32(16)) >> np.int32(16))

# --- bitwise logic; SCC = result is not zero ---------------------------------------------------

_LOGIC = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}
# Only these combine a mask with EXEC; n1 complements the operand, n2 complements EXEC.
_EXEC_LOGIC = {
    **_LOGIC,
    "andn1": lambda a, b: ~a & b,
    "orn1": lambda a, b: ~a | b,
}


def _logic(fn: Any) -> Any:
    return lambda a, b: _nonzero(fn(a, b))


def _saveexec(fn: Any) -> Any:
    def run(a: np.ndarray, exec_: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        new = fn(a, exec_)
        return exec_, new, new != 0

    return run


def _wrexec(fn: Any) -> Any:
    def run(a: np.ndarray, exec_: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        new = fn(a, exec_)
        return new, new, new != 0

    return run


for _name, _fn in _LOGIC.items():
    for _t in ("b32", "b64"):
        _add(f"s_{_name}_{_t}", _t, f"{_t} {_t}", _logic(_fn), implicit_dst="scc")
for _name, _fn in _EXEC_LOGIC.items():
    _add(f"s_{_name}_saveexec_b64", "b64", "b64", _saveexec(_fn), implicit_src="exec",
         implicit_dst="exec scc")  # fmt: skip
for _name in ("andn1", "andn2"):
    _add(f"s_{_name}_wrexec_b64", "b64", "b64", _wrexec(_EXEC_LOGIC[_name]), implicit_src="exec",
         implicit_dst="exec scc")  # fmt: skip
for _t in ("b32", "b64"):
    _add(f"s_not_{_t}", _t, _t, lambda a: _nonzero(~a), implicit_dst="scc")

# --- integer arithmetic ------------------------------------------------------------------------


def _add_u32(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = a + b
    return total, total < a


def _sub_u32(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return a - b, b > a


def _addc_u32(a: np.ndarray, b: np.ndarray, scc: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = a.astype(U64) + b + scc
    return total.astype(U32), total >> U64(32) != 0


def _subb_u32(a: np.ndarray, b: np.ndarray, scc: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return a - b - scc, b.astype(U64) + scc > a


def _add_i32(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    total = a + b
    return total, ((a ^ total) & (b ^ total)) < 0


def _sub_i32(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    diff = a - b
    return diff, ((a ^ b) & (a ^ diff)) < 0


def _absdiff(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _nonzero(np.abs(a - b))


def _lshl_add(shift: int) -> Any:
    def run(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        total = (a.astype(U64) << U64(shift)) + b
        return total.astype(U32), total >> U64(32) != 0

    return run


_add("s_add_u32", "u32", "u32 u32", _add_u32, implicit_dst="scc")
_add("s_sub_u32", "u32", "u32 u32", _sub_u32, implicit_dst="scc")
_add("s_addc_u32", "u32", "u32 u32", _addc_u32, implicit_src="scc", implicit_dst="scc")
_add("s_subb_u32", "u32", "u32 u32", _subb_u32, implicit_src="scc", implicit_dst="scc")
_add("s_add_i32", "i32", "i32 i32", _add_i32, implicit_dst="scc")
_add("s_sub_i32", "i32", "i32 i32", _sub_i32, implicit_dst="scc")
_add("s_addk_i32", "i32", "imm16", lambda k, old: _add_i32(old, _simm16(k)), implicit_src="dst",
     implicit_dst="scc")  # fmt: skip
_add("s_mulk_i32", "i32", "imm16", lambda k, old: old * _simm16(k), implicit_src="dst")
_add("s_mul_i32", "i32", "i32 i32", lambda a, b: a * b)
_add("s_mul_hi_u32", "u32", "u32 u32", lambda a, b: (a.astype(U64) * b >> U64(32)).astype(U32))
_add("s_mul_hi_i32", "i32", "i32 i32",
     lambda a, b: (a.astype(np.int64) * b >> np.int64(32)).astype(np.int32))  # fmt: skip
_add("s_abs_i32", "i32", "i32", lambda a: _nonzero(np.abs(a)), implicit_dst="scc")
_add("s_absdiff_i32", "i32", "i32 i32", _absdiff, implicit_dst="scc")
for _n in (1, 2, 3, 4):
    _add(f"s_lshl{_n}_add_u32", "u32", "u32 u32", _lshl_add(_n), implicit_dst="scc")
for _t in ("i32", "u32"):
    _add(f"s_min_{_t}", _t, f"{_t} {_t}", lambda a, b: (np.minimum(a, b), a < b),
         implicit_dst="scc")  # fmt: skip
    _add(f"s_max_{_t}", _t, f"{_t} {_t}", lambda a, b: (np.maximum(a, b), a >= b),
         implicit_dst="scc")  # fmt: skip

# --- shifts and bit fields ---------------------------------------------------------------------


def _bfe(a: np.ndarray, field: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Offset in field[4:0] (field[5:0] for 64 bits), width in field[22:16]; width 0 gives 0.

    A field that runs past the top bit is extended with the zeros or signs the shift brings in.
    """
    bits = a.dtype.itemsize * 8
    offset = (field & U32(bits - 1)).astype(a.dtype)
    width = field >> U32(16) & U32(0x7F)
    drop = np.maximum(bits - width.astype(np.int64), 0).astype(a.dtype)
    some = np.where(width == 0, a.dtype.type(0), a >> offset)
    return _nonzero((some << np.minimum(drop, a.dtype.type(bits - 1))) >> np.minimum(
        drop, a.dtype.type(bits - 1)))  # fmt: skip


def _bfm(dtype: type) -> Any:
    last = U32(np.dtype(dtype).itemsize * 8 - 1)

    def run(width: np.ndarray, offset: np.ndarray) -> np.ndarray:
        one = dtype(1)
        return ((one << (width & last).astype(dtype)) - one) << (offset & last).astype(dtype)

    return run


for _t, _s in (("b32", "u32"), ("b64", "u64")):
    _last = np.uint32(31 if _t == "b32" else 63)
    _add(f"s_lshl_{_t}", _s, f"{_s} u32", lambda a, n, m=_last: _nonzero(a << (n & m)),
         implicit_dst="scc")  # fmt: skip
    _add(f"s_lshr_{_t}", _s, f"{_s} u32", lambda a, n, m=_last: _nonzero(a >> (n & m)),
         implicit_dst="scc")  # fmt: skip
_add("s_ashr_i32", "i32", "i32 i32", lambda a, n: _nonzero(a >> (n & 31)), implicit_dst="scc")
_add("s_ashr_i64", "i64", "i64 i32", lambda a, n: _nonzero(a >> (n & 63)), implicit_dst="scc")
_add("s_bfm_b32", "u32", "u32 u32", _bfm(U32))
_add("s_bfm_b64", "u64", "u32 u32", _bfm(U64))
for _t in ("u32", "i32", "u64", "i64"):
    _add(f"s_bfe_{_t}", _t, f"{_t} u32", _bfe, implicit_dst="scc")

# --- counting and rearranging bits -------------------------------------------------------------


def _spread(a: np.ndarray) -> np.ndarray:
    """Each of the 32 bits becomes two adjacent bits of 64 (Morton spreading, then doubling)."""
    x = a.astype(U64)
    for shift, mask in ((16, 0x0000FFFF0000FFFF), (8, 0x00FF00FF00FF00FF),
                        (4, 0x0F0F0F0F0F0F0F0F), (2, 0x3333333333333333),
                        (1, 0x5555555555555555)):  # fmt: skip
        x = (x | x << U64(shift)) & U64(mask)
    return x | x << U64(1)


def _quad_any(a: np.ndarray) -> np.ndarray:
    """Bit 4k of the result is the OR of bits 4k…4k+3."""
    t = a.dtype.type
    a = a | a >> t(1)
    a = a | a >> t(2)
    return a & t(0x1111111111111111 & (1 << a.dtype.itemsize * 8) - 1)


def _wqm(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _nonzero(_quad_any(a) * a.dtype.type(15))


def _quadmask(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x = _quad_any(a).astype(U64)
    for shift, mask in ((3, 0x0303030303030303), (6, 0x000F000F000F000F), (12, 0x000000FF000000FF),
                        (24, 0xFFFF)):  # fmt: skip
        x = (x | x >> U64(shift)) & U64(mask)
    return _nonzero(x.astype(a.dtype))


def _count(invert: bool) -> Any:
    return lambda a: _nonzero(count_ones(~a if invert else a).astype(np.int32))


def _set_bit(old: np.ndarray, n: np.ndarray) -> np.ndarray:
    t = old.dtype.type
    return t(1) << (n & U32(old.dtype.itemsize * 8 - 1)).astype(old.dtype)


for _t, _s in (("b32", "u32"), ("b64", "u64")):
    _add(f"s_brev_{_t}", _s, _s, bit_reverse)
    _add(f"s_bcnt0_i32_{_t}", "i32", _s, _count(True), implicit_dst="scc")
    _add(f"s_bcnt1_i32_{_t}", "i32", _s, _count(False), implicit_dst="scc")
    _add(f"s_ff0_i32_{_t}", "i32", _s, lambda a: find_first_one(~a))
    _add(f"s_ff1_i32_{_t}", "i32", _s, find_first_one)
    _add(f"s_flbit_i32_{_t}", "i32", _s, find_last_one_from_top)
    _add(f"s_bitset0_{_t}", _s, "u32", lambda n, old: old & ~_set_bit(old, n), implicit_src="dst")
    _add(f"s_bitset1_{_t}", _s, "u32", lambda n, old: old | _set_bit(old, n), implicit_src="dst")
    _add(f"s_quadmask_{_t}", _s, _s, _quadmask, implicit_dst="scc")
    _add(f"s_wqm_{_t}", _s, _s, _wqm, implicit_dst="scc")
    _add(f"s_bitcmp0_{_t}", "", f"{_s} u32", lambda a, n: a & _set_bit(a, n) == 0,
         implicit_dst="scc")  # fmt: skip
    _add(f"s_bitcmp1_{_t}", "", f"{_s} u32", lambda a, n: a & _set_bit(a, n) != 0,
         implicit_dst="scc")  # fmt: skip
_add("s_flbit_i32", "i32", "i32", find_sign_change_from_top)
_add("s_flbit_i32_i64", "i32", "i64", find_sign_change_from_top)
_add("s_bitreplicate_b64_b32", "u64", "u32", _spread)
_add("s_pack_ll_b32_b16", "u32", "u32 u32", lambda a, b: a & U32(0xFFFF) | b << U32(16))
_add("s_pack_lh_b32_b16", "u32", "u32 u32", lambda a, b: a & U32(0xFFFF) | b & U32(0xFFFF0000))
_add("s_pack_hh_b32_b16", "u32", "u32 u32", lambda a, b: a >> U32(16) | b & U32(0xFFFF0000))

# --- compares ----------------------------------------------------------------------------------

_COMPARES = {
    "eq": np.equal,
    "lg": np.not_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lt": np.less,
    "le": np.less_equal,
}
_IMMEDIATE = {"i32": _simm16, "u32": _uimm16}
for _name, _ufunc in _COMPARES.items():
    for _t in ("i32", "u32"):
        _add(f"s_cmp_{_name}_{_t}", "", f"{_t} {_t}", _ufunc, implicit_dst="scc")
        _add(f"s_cmpk_{_name}_{_t}", "", f"{_t} imm16",
             lambda a, k, f=_ufunc, extend=_IMMEDIATE[_t]: f(a, extend(k)),
             implicit_dst="scc")  # fmt: skip
_add("s_cmp_eq_u64", "", "u64 u64", np.equal, implicit_dst="scc")
_add("s_cmp_lg_u64", "", "u64 u64", np.not_equal, implicit_dst="scc")
