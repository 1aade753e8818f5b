"""Scalar references of the conversions, scaled ones included, with exact fractions.

Same conventions as ``alu_reference_int``; a register stack (b192 and wider) is one large integer,
low register in the low bits.
"""

from __future__ import annotations

from fractions import Fraction

import alu_softfloat as sf
from alu_reference_int import M16, Ref, signed
from alu_reference_valu import join, saturate, split
from alu_softfloat import BF8, BF16, BY_NAME, F16, F32, FP8, Fmt, Num, pack, two, unpack

REFERENCE: dict[str, Ref] = {}


def float_to_float(src: Fmt, dst: Fmt) -> Ref:
    return lambda a: pack(unpack(a, src), dst)


def int_to_float(bits: int, is_signed: bool, dst: Fmt) -> Ref:
    return lambda a: pack(sf.exact(Fraction(signed(a, bits) if is_signed else a)), dst)


def float_to_int(src: Fmt, bits: int, is_signed: bool) -> Ref:
    return lambda a: sf.to_int(unpack(a, src), bits, is_signed)


for _dst, _src in (("f16", "f32"), ("f32", "f16"), ("f32", "f64"), ("f64", "f32"),
                   ("f32", "bf16")):  # fmt: skip
    REFERENCE[f"v_cvt_{_dst}_{_src}"] = float_to_float(BY_NAME[_src], BY_NAME[_dst])
for _f, _bits in (("f32", 32), ("f64", 32), ("f16", 16)):
    for _sign in (True, False):
        _i = f"{'i' if _sign else 'u'}{_bits}"
        REFERENCE[f"v_cvt_{_f}_{_i}"] = int_to_float(_bits, _sign, BY_NAME[_f])
        REFERENCE[f"v_cvt_{_i}_{_f}"] = float_to_int(BY_NAME[_f], _bits, _sign)


def floor_to_int(num: Num) -> int:
    return sf.to_int(sf.integral(num, "floor"), 32, True)


HALF = Num("finite", False, Fraction(1, 2))
REFERENCE["v_cvt_flr_i32_f32"] = lambda a: floor_to_int(unpack(a, F32))
REFERENCE["v_cvt_rpi_i32_f32"] = lambda a: floor_to_int(
    unpack(pack(sf.add(unpack(a, F32), HALF), F32), F32))  # fmt: skip
REFERENCE["v_cvt_off_f32_i4"] = lambda a: pack(sf.exact(Fraction(signed(a & 15, 4), 16)), F32)
for _n in range(4):
    REFERENCE[f"v_cvt_f32_ubyte{_n}"] = lambda a, n=_n: pack(
        sf.exact(Fraction(split(a, 8, 4)[n])), F32)  # fmt: skip


def pair(fmt: Fmt, toward_zero: bool = False) -> Ref:
    return lambda a, b: join([pack(unpack(x, F32), fmt, toward_zero) for x in (a, b)], 16)


REFERENCE.update({
    "v_cvt_pk_bf16_f32": pair(BF16),
    "v_cvt_pk_f16_f32": pair(F16),
    "v_cvt_pkrtz_f16_f32": pair(F16, toward_zero=True),
    "v_cvt_pk_u16_u32": lambda a, b: join([min(x, M16) for x in (a, b)], 16),
    "v_cvt_pk_i16_i32": lambda a, b: join(
        [saturate(signed(x, 32), -32768, 32767) for x in (a, b)], 16),
})  # fmt: skip


def replaced(old: int, value: int, at: int, width: int) -> int:
    return old & ~((1 << width) - 1 << at) | value << at


def eight(name: str, fmt: Fmt) -> None:
    def pack_two(a: int, b: int, old: int, op_sel: int = 0) -> int:
        both = join([pack(unpack(x, F32), fmt) for x in (a, b)], 8)
        return replaced(old, both, 16 if op_sel >> 2 & 1 else 0, 16)

    up = float_to_float(fmt, F32)
    REFERENCE[f"v_cvt_pk_{name}_f32"] = pack_two
    REFERENCE[f"v_cvt_f32_{name}"] = lambda a, op_sel=0: up(split(a, 8, 4)[op_sel & 3])
    REFERENCE[f"v_cvt_pk_f32_{name}"] = lambda a, op_sel=0: join(
        [up(x) for x in split(split(a, 16, 2)[op_sel & 1], 8, 2)], 32)  # fmt: skip


eight("fp8", FP8)
eight("bf8", BF8)

# --- with a scale -------------------------------------------------------------------------------


def scaled_by(num: Num, scale: int, sign: int) -> Num:
    """num · 2^(±(e − 127)) for the exponent field e of the f32 ``scale``; NaN for 255."""
    exponent = scale >> 23 & 255
    if exponent == 255:
        return Num("nan", num.negative)
    return Num(num.kind, num.negative, num.value * two(sign * (exponent - 127)))


def down(src: Fmt, dst: Fmt) -> Ref:
    return lambda bits, scale: pack(scaled_by(unpack(bits, src), scale, -1), dst)


def up(src: Fmt, dst: Fmt) -> Ref:
    return lambda bits, scale: pack(scaled_by(unpack(bits, src), scale, 1), dst)


def place(codes: list[int], fmt: Fmt, old: int, op_sel: int, half: int) -> int:
    if fmt.width == 8:
        return replaced(old, join(codes, 8), 16 * (op_sel >> half & 1), 16)
    return replaced(old, join(codes, 4), 8 * (op_sel >> 2 & 3), 8)


def pair_forms(name: str, fmt: Fmt) -> None:
    def from_f32(a: int, b: int, scale: int, old: int, op_sel: int = 0) -> int:
        return place([down(F32, fmt)(x, scale) for x in (a, b)], fmt, old, op_sel, 3)

    REFERENCE[f"v_cvt_scalef32_pk_{name}_f32"] = from_f32

    def from_halves(kind: str) -> Ref:
        def run(a: int, scale: int, old: int, op_sel: int = 0) -> int:
            codes = [down(BY_NAME[kind], fmt)(x, scale) for x in split(a, 16, 2)]
            return place(codes, fmt, old, op_sel, 2)

        return run

    for kind in ("f16", "bf16"):
        REFERENCE[f"v_cvt_scalef32_pk_{name}_{kind}"] = from_halves(kind)

    def to(kind: str) -> Ref:
        wide = BY_NAME[kind]

        def run(a: int, scale: int, op_sel: int = 0) -> int:
            at = 16 * (op_sel & 1) if fmt.width == 8 else 8 * (op_sel & 3)
            codes = split(a >> at, fmt.width, 2)
            return join([up(fmt, wide)(c, scale) for c in codes], wide.width)

        return run

    for kind in ("f32", "f16", "bf16"):
        REFERENCE[f"v_cvt_scalef32_pk_{kind}_{name}"] = to(kind)


for _name in ("fp8", "bf8", "fp4"):
    pair_forms(_name, BY_NAME[_name])
for _name in ("fp8", "bf8"):
    _fmt = BY_NAME[_name]
    REFERENCE[f"v_cvt_scalef32_f32_{_name}"] = lambda a, s, op_sel=0, f=_fmt: up(f, F32)(
        split(a, 8, 4)[op_sel & 3], s)  # fmt: skip
    REFERENCE[f"v_cvt_scalef32_f16_{_name}"] = lambda a, s, old, op_sel=0, f=_fmt: replaced(
        old, up(f, F16)(split(a, 8, 4)[op_sel & 3], s), 16 * (op_sel >> 2 & 1), 16)  # fmt: skip
for _name in ("fp6", "bf6"):
    _fmt = BY_NAME[_name]
    REFERENCE[f"v_cvt_scalef32_2xpk16_{_name}_f32"] = lambda a, b, s, f=_fmt: join(
        [down(F32, f)(x, s) for both in zip(split(a, 32, 16), split(b, 32, 16), strict=True)
         for x in both], 6)  # fmt: skip
    for _kind in ("f32", "f16", "bf16"):
        _wide = BY_NAME[_kind]
        REFERENCE[f"v_cvt_scalef32_pk32_{_kind}_{_name}"] = lambda a, s, f=_fmt, w=_wide: join(
            [up(f, w)(x, s) for x in split(a, 6, 32)], w.width)  # fmt: skip
        if _kind != "f32":
            REFERENCE[f"v_cvt_scalef32_pk32_{_name}_{_kind}"] = lambda a, s, f=_fmt, w=_wide: join(
                [down(w, f)(x, s) for x in split(a, 16, 32)], 6)  # fmt: skip
