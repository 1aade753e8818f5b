"""V_CVT_SCALEF32_*: conversions between f32/f16/bf16 and block-scaled fp8, bf8, fp6, bf6, fp4.

The scale is the exponent field of an f32 operand read as E8M0: 2^(e − 127), NaN for e = 255. Going
down a value is divided by it and rounded once to nearest even; going up it is multiplied, and an
overflow is infinity. Semantics: AMD "CDNA4 ISA" guide section 7.3 and its VOP3 opcodes; NaN and
overflow also HIP's amd_hip_ocp_host.hpp. The stochastically rounding opcodes aren't modelled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .convert import insert_half, pack_pair
from .floats import F16, F32, F64, bf16_bits, f16_halves
from .formats import (
    BF6,
    BF8,
    FP4,
    FP6,
    FP8,
    Format,
    e8m0_scale,
    exponent_field,
    pack_codes,
    unpack_codes,
)
from .op import NotSupported, OpTable

Array = np.ndarray
OPS = OpTable("valu")
_add = OPS.add
U16, U32 = np.uint16, np.uint32


def _factor(scale: Array) -> Array:
    return e8m0_scale(exponent_field(scale))


def _down(fmt: Format, value: Array, scale: Array) -> Array:
    """Codes of value / scale. The sign is the value's even where the scale is NaN."""
    return fmt.encode(np.copysign(value.astype(F64) / _factor(scale), value))


def _up(fmt: Format, codes: Array, scale: Array) -> Array:
    """code · scale in float64: exact, to be rounded once by the caller."""
    return fmt.decode(codes) * _factor(scale)


def _halves(kind: str, words: Array) -> tuple[Array, Array]:
    """Low and high 16-bit floats of each word."""
    if kind == "f16":
        return f16_halves(words)
    return (words << U32(16)).view(F32), (words & U32(0xFFFF0000)).view(F32)


def _pack(kind: str, low: Array, high: Array) -> Array:
    """Two float64 arrays rounded to ``kind`` and packed; f32 gives 64 bits."""
    if kind == "bf16":
        # float64 → f32 → bf16 rounds once: the values have at most 4 significant bits.
        low, high = bf16_bits(low.astype(F32)), bf16_bits(high.astype(F32))
        return low >> U32(16) | high & U32(0xFFFF0000)
    return pack_pair(low, high, F32 if kind == "f32" else F16)


# --- one or two values -------------------------------------------------------------------------


def _insert(fmt: Format, codes: tuple[Array, Array], old: Array, op_sel: int, half: int) -> Array:
    """Two codes into the destination: fp8/bf8 into the half that op_sel element ``half`` selects,
    fp4 into the byte of elements 2 and 3."""
    low, high = codes
    if fmt.bits == 8:
        return insert_half(old, pack_pair(low, high, np.uint8), op_sel >> half & 1)
    shift = U32(8 * (op_sel >> 2 & 3))
    both = (low | high << np.uint8(4)).astype(U32)
    return (old & ~(U32(0xFF) << shift)) | both << shift


def _pair_down_f32(fmt: Format) -> Callable[..., Array]:
    def run(a: Array, b: Array, scale: Array, old: Array, op_sel: int = 0) -> Array:
        return _insert(fmt, (_down(fmt, a, scale), _down(fmt, b, scale)), old, op_sel, half=3)

    return run


def _pair_down(fmt: Format, kind: str) -> Callable[..., Array]:
    def run(a: Array, scale: Array, old: Array, op_sel: int = 0) -> Array:
        low, high = (_down(fmt, x, scale) for x in _halves(kind, a))
        return _insert(fmt, (low, high), old, op_sel, half=2)

    return run


def _pair_up(fmt: Format, kind: str) -> Callable[..., Array]:
    mask = U32((1 << fmt.bits) - 1)

    def run(a: Array, scale: Array, op_sel: int = 0) -> Array:
        source = a >> U32(16 * (op_sel & 1) if fmt.bits == 8 else 8 * (op_sel & 3))
        low, high = source & mask, source >> U32(fmt.bits) & mask
        return _pack(kind, _up(fmt, low, scale), _up(fmt, high, scale))

    return run


def _single_up_f32(fmt: Format) -> Callable[..., Array]:
    def run(a: Array, scale: Array, op_sel: int = 0) -> Array:
        return _up(fmt, a >> U32(8 * (op_sel & 3)) & U32(0xFF), scale).astype(F32)

    return run


def _single_up_f16(fmt: Format) -> Callable[..., Array]:
    def run(a: Array, scale: Array, old: Array, op_sel: int = 0) -> Array:
        half = _up(fmt, a >> U32(8 * (op_sel & 3)) & U32(0xFF), scale).astype(F16)
        return insert_half(old, half.view(U16), op_sel >> 2 & 1)

    return run


for _fmt in (FP8, BF8, FP4):
    _add(f"v_cvt_scalef32_pk_{_fmt.name}_f32", "b32", "f32 f32 f32", _pair_down_f32(_fmt),
         mods="op_sel", implicit_src="dst")  # fmt: skip
    for _kind in ("f16", "bf16"):
        _add(f"v_cvt_scalef32_pk_{_fmt.name}_{_kind}", "b32", "b32 f32", _pair_down(_fmt, _kind),
             mods="op_sel", implicit_src="dst")  # fmt: skip
    for _kind, _dst in (("f32", "b64"), ("f16", "b32"), ("bf16", "b32")):
        _add(f"v_cvt_scalef32_pk_{_kind}_{_fmt.name}", _dst, "b32 f32", _pair_up(_fmt, _kind),
             mods="op_sel")  # fmt: skip
for _fmt in (FP8, BF8):
    _add(f"v_cvt_scalef32_f32_{_fmt.name}", "f32", "b32 f32", _single_up_f32(_fmt), mods="op_sel")
    _add(f"v_cvt_scalef32_f16_{_fmt.name}", "b32", "b32 f32", _single_up_f16(_fmt), mods="op_sel",
         implicit_src="dst")  # fmt: skip

# --- 32 values of 6 bits -----------------------------------------------------------------------


def _six_from_f32(fmt: Format) -> Callable[[Array, Array, Array], Array]:
    def run(a: Array, b: Array, scale: Array) -> Array:
        a, b = np.broadcast_arrays(a, b)
        both = np.stack([a, b], axis=1).reshape(32, *a.shape[1:])  # the sources interleave
        return pack_codes(_down(fmt, both.view(F32), scale), 6)

    return run


def _six_from_half(fmt: Format, kind: str) -> Callable[[Array, Array], Array]:
    def run(a: Array, scale: Array) -> Array:
        values = np.stack(_halves(kind, a), axis=1).reshape(32, *a.shape[1:])
        return pack_codes(_down(fmt, values, scale), 6)

    return run


def _six_up(fmt: Format, kind: str) -> Callable[[Array, Array], Array]:
    def run(a: Array, scale: Array) -> Array:
        values = _up(fmt, unpack_codes(a, 6), scale)
        if kind == "f32":
            return values.astype(F32).view(U32)
        return _pack(kind, values[0::2], values[1::2])

    return run


for _fmt in (FP6, BF6):
    _add(f"v_cvt_scalef32_2xpk16_{_fmt.name}_f32", "b192", "b512 b512 f32", _six_from_f32(_fmt))
    _add(f"v_cvt_scalef32_pk32_f32_{_fmt.name}", "b1024", "b192 f32", _six_up(_fmt, "f32"))
    for _kind in ("f16", "bf16"):
        _add(f"v_cvt_scalef32_pk32_{_fmt.name}_{_kind}", "b192", "b512 f32",
             _six_from_half(_fmt, _kind))  # fmt: skip
        _add(f"v_cvt_scalef32_pk32_{_kind}_{_fmt.name}", "b512", "b192 f32",
             _six_up(_fmt, _kind))  # fmt: skip

# --- stochastic rounding -----------------------------------------------------------------------


def _stochastic(name: str) -> Callable[..., Any]:
    def run(*_sources: Array, **_mods: int) -> Any:
        raise NotSupported(f"{name} rounds stochastically, which the emulator doesn't model; "
                           "use the round-to-nearest form")  # fmt: skip

    return run


def _add_stochastic(suffix: str, dst: str, src: str) -> None:
    name = f"v_cvt_{suffix}"
    extra: dict[str, Any] = {}
    if dst == "b32":
        extra = {"implicit_src": "dst", "mods": "op_sel"}
    _add(name, dst, src, _stochastic(name), **extra)


for _kind in ("fp8", "bf8", "f16", "bf16"):
    _add_stochastic(f"sr_{_kind}_f32", "b32", "f32 u32")
for _kind, _pair, _many in (("f32", "b64", "b1024"), ("f16", "b32", "b512"),
                            ("bf16", "b32", "b512")):  # fmt: skip
    _add_stochastic(f"scalef32_sr_fp8_{_kind}", "b32", "b32 u32 f32")
    _add_stochastic(f"scalef32_sr_bf8_{_kind}", "b32", "b32 u32 f32")
    _add_stochastic(f"scalef32_sr_pk_fp4_{_kind}", "b32", f"{_pair} u32 f32")
    _add_stochastic(f"scalef32_sr_pk32_fp6_{_kind}", "b192", f"{_many} u32 f32")
    _add_stochastic(f"scalef32_sr_pk32_bf6_{_kind}", "b192", f"{_many} u32 f32")
