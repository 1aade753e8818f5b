"""Scalar references of the floating-point opcodes, with exact fractions.

Same conventions as ``alu_reference_int``. ``APPROXIMATE`` names the opcodes that the hardware
only promises to an ulp; their references come from double-precision ``math``.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import alu_softfloat as sf
from alu_reference_int import M16, M32, Ref, signed
from alu_reference_valu import split
from alu_softfloat import BY_NAME, F16, F32, F64, Fmt, Num, pack, rounded, two, unpack

REFERENCE: dict[str, Ref] = {}
APPROXIMATE: set[str] = set()


# --- arithmetic ---------------------------------------------------------------------------------


def twice(fmt: Fmt) -> Ref:
    """a·b rounded, then + c rounded."""
    return lambda a, b, c: rounded(sf.add, fmt)(rounded(sf.mul, fmt)(a, b), c)


def quieted(bits: int, fmt: Fmt) -> int:
    return bits | 1 << fmt.mantissa - 1


def num_order(a: int, b: int, fmt: Fmt, larger: bool) -> int:
    """minNum or maxNum in IEEE mode on bits."""
    for x in (a, b):
        if unpack(x, fmt).signaling:
            return quieted(x, fmt)
    x, y = unpack(a, fmt), unpack(b, fmt)
    if x.nan:
        return b
    if y.nan:
        return a
    order = sf.compare(x, y) or int(y.negative) - int(x.negative)
    return a if (order > 0) == larger else b


def propagating(a: int, b: int, fmt: Fmt, larger: bool) -> int:
    if unpack(a, fmt).nan or unpack(b, fmt).nan:
        return fmt.nan
    return num_order(a, b, fmt, larger)


def fold(fn: Ref, fmt: Fmt, larger: bool) -> Ref:
    return lambda a, b, c: fn(fn(a, b, fmt, larger), c, fmt, larger)


def med3(fmt: Fmt) -> Ref:
    def run(a: int, b: int, c: int) -> int:
        if any(unpack(x, fmt).nan for x in (a, b, c)):
            return fold(num_order, fmt, False)(a, b, c)
        low, high = (num_order(a, b, fmt, larger) for larger in (False, True))
        return num_order(low, num_order(high, c, fmt, False), fmt, True)

    return run


def legacy_mul(a: int, b: int) -> int:
    if unpack(a, F32).zero or unpack(b, F32).zero:
        return 0
    return rounded(sf.mul, F32)(a, b)


def frexp_exp(num: Num) -> int:
    if num.kind != "finite" or num.zero:
        return 0
    power = num.value.numerator.bit_length() - num.value.denominator.bit_length()
    return power + 1 if num.value >= two(power) else power


def frexp_mant(num: Num) -> Num:
    if num.kind != "finite" or num.zero:
        return num
    return Num("finite", num.negative, num.value / two(frexp_exp(num)))


def fract(fmt: Fmt) -> Ref:
    def run(a: int) -> int:
        x = unpack(a, fmt)
        if x.kind != "finite":
            return fmt.nan
        part = x.signed - (x.signed.numerator // x.signed.denominator)
        return min(pack(sf.exact(part), fmt), pack(sf.exact(Fraction(1)), fmt) - 1)

    return run


def ldexp(fmt: Fmt, bits: int) -> Ref:
    def run(a: int, n: int) -> int:
        x = unpack(a, fmt)
        power = max(min(signed(n, bits), 5000), -5000)
        return pack(Num(x.kind, x.negative, x.value * two(power)), fmt)

    return run


for _t in ("f16", "f32", "f64"):
    _f = BY_NAME[_t]
    _sub = rounded(lambda a, b: sf.add(a, sf.neg(b)), _f)
    REFERENCE.update({
        f"v_add_{_t}": rounded(sf.add, _f),
        f"v_mul_{_t}": rounded(sf.mul, _f),
        f"v_fma_{_t}": rounded(sf.fma, _f),
        f"v_min_{_t}": lambda a, b, f=_f: num_order(a, b, f, False),
        f"v_max_{_t}": lambda a, b, f=_f: num_order(a, b, f, True),
        f"v_fract_{_t}": fract(_f),
        f"v_frexp_mant_{_t}": rounded(frexp_mant, _f),
        f"v_ldexp_{_t}": ldexp(_f, 16 if _t == "f16" else 32),
    })  # fmt: skip
    for _mode in ("trunc", "ceil", "floor", "rndne"):
        REFERENCE[f"v_{_mode}_{_t}"] = rounded(lambda a, m=_mode: sf.integral(a, m), _f)
    if _t != "f64":
        REFERENCE[f"v_sub_{_t}"] = _sub
        REFERENCE[f"v_subrev_{_t}"] = lambda a, b, s=_sub: s(b, a)
        for _name, _larger in (("min", False), ("max", True)):
            REFERENCE[f"v_{_name}3_{_t}"] = fold(num_order, _f, _larger)
        REFERENCE[f"v_med3_{_t}"] = med3(_f)
        REFERENCE[f"v_pk_add_{_t}"] = REFERENCE[f"v_add_{_t}"]
        REFERENCE[f"v_pk_mul_{_t}"] = REFERENCE[f"v_mul_{_t}"]
        REFERENCE[f"v_pk_fma_{_t}"] = REFERENCE[f"v_fma_{_t}"]
    if _t != "f16":
        REFERENCE[f"v_fmac_{_t}"] = REFERENCE[f"v_fma_{_t}"]
REFERENCE.update({
    "v_fmamk_f32": REFERENCE["v_fma_f32"],
    "v_fmaak_f32": REFERENCE["v_fma_f32"],
    "v_fma_legacy_f16": REFERENCE["v_fma_f16"],
    "v_pk_fmac_f16": REFERENCE["v_fma_f16"],
    "v_pk_min_f16": REFERENCE["v_min_f16"],
    "v_pk_max_f16": REFERENCE["v_max_f16"],
    "v_mul_legacy_f32": legacy_mul,
    "v_minimum3_f32": fold(propagating, F32, False),
    "v_maximum3_f32": fold(propagating, F32, True),
    "v_pk_minimum3_f16": fold(propagating, F16, False),
    "v_pk_maximum3_f16": fold(propagating, F16, True),
    "v_frexp_exp_i16_f16": lambda a: frexp_exp(unpack(a, F16)) & M16,
    "v_frexp_exp_i32_f32": lambda a: frexp_exp(unpack(a, F32)) & M32,
    "v_frexp_exp_i32_f64": lambda a: frexp_exp(unpack(a, F64)) & M32,
})  # fmt: skip
for _name in ("v_mad_f16", "v_mad_legacy_f16", "v_mac_f16", "v_madmk_f16", "v_madak_f16"):
    REFERENCE[_name] = twice(F16)

# --- transcendentals ----------------------------------------------------------------------------


def as_double(num: Num) -> float:
    if num.kind == "finite":
        try:
            return math.copysign(num.value.numerator / num.value.denominator,
                                 -1.0 if num.negative else 1.0)  # fmt: skip
        except OverflowError:
            return math.inf
    return math.nan if num.nan else math.copysign(math.inf, -1.0 if num.negative else 1.0)


def of_double(value: float) -> Num:
    return unpack(struct.unpack("<Q", struct.pack("<d", value))[0], F64)


def guarded(fn: Ref) -> Ref:
    """C semantics where Python's math raises: domain errors are NaN, poles infinite."""

    def run(x: float) -> float:
        try:
            return fn(x)
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan

    return run


def rsq(x: float) -> float:
    return math.copysign(math.inf, x) if x == 0 else 1 / math.sqrt(x)


def turns(fn: Ref, outside: float, zeros: tuple[int, int]) -> Ref:
    def run(x: float) -> float:
        if abs(x) > 256 and math.isfinite(x):
            return outside
        if math.isfinite(x) and Fraction(x) * 4 % 4 in zeros:
            return math.copysign(0.0, x)
        return fn(2 * math.pi * math.remainder(x, 1.0))

    return run


_MATH: dict[str, Ref] = {
    "rcp": lambda x: math.copysign(math.inf, x) if x == 0 else 1 / x,
    "rsq": rsq,
    "sqrt": lambda x: x if x == 0 else math.sqrt(x),
    "exp": lambda x: 2.0**x,
    "log": lambda x: -math.inf if x == 0 else math.log2(x),
    "sin": turns(math.sin, 0.0, (0, 2)),
    "cos": turns(math.cos, 1.0, (1, 3)),
}


def flushed(num: Num, fmt: Fmt) -> Num:
    if num.kind == "finite" and num.value < two(1 - fmt.bias):
        return Num("finite", num.negative)
    return num


def transcendental(fn: Ref, fmt: Fmt, flush: bool) -> Ref:
    def run(bits: int) -> int:
        x = unpack(bits, fmt)
        value = of_double(guarded(fn)(as_double(flushed(x, fmt) if flush else x)))
        return pack(flushed(value, fmt) if flush else value, fmt)

    return run


for _name, _fn in _MATH.items():
    REFERENCE[f"v_{_name}_f32"] = transcendental(_fn, F32, True)
    REFERENCE[f"v_{_name}_f16"] = transcendental(_fn, F16, False)
    APPROXIMATE |= {f"v_{_name}_f32", f"v_{_name}_f16"}
REFERENCE["v_rcp_iflag_f32"] = REFERENCE["v_rcp_f32"]
for _name in ("rcp", "rsq", "sqrt"):
    REFERENCE[f"v_{_name}_f64"] = transcendental(_MATH[_name], F64, False)
APPROXIMATE |= {"v_rcp_iflag_f32", "v_rcp_f64", "v_rsq_f64", "v_sqrt_f64"}

# --- division helpers ---------------------------------------------------------------------------

_STEP = {F32: (64, 96, 23), F64: (128, 768, 53)}


def biased(bits: int, fmt: Fmt) -> int:
    return bits >> fmt.mantissa & (1 << fmt.exponent) - 1


def div_scale(fmt: Fmt) -> Ref:
    step, far, tiny = _STEP[fmt]

    def run(value: int, den: int, num: int) -> tuple[int, int]:
        if unpack(num, fmt).zero or unpack(den, fmt).zero:
            return fmt.nan, 1
        n, d = biased(num, fmt), biased(den, fmt)
        scale = lambda power: ldexp(fmt, 32)(value, power & M32)  # noqa: E731
        tiny_quotient, tiny_reciprocal = n - d <= 1 - fmt.bias, d >= 2 * fmt.bias - 1
        if n - d >= far:
            return scale(step if value == den else 0), 1
        if d == 0:
            return scale(step), 0
        if tiny_reciprocal and tiny_quotient:
            return scale(-step if value == den else 0), 1
        if tiny_reciprocal:
            return scale(-step), 0
        if tiny_quotient:
            return scale(step if value == num else 0), 1
        return scale(step if n <= tiny else 0), 0

    return run


def div_fmas(fmt: Fmt) -> Ref:
    step = _STEP[fmt][0]

    def run(a: int, b: int, c: int, vcc: int) -> int:
        total = sf.fma(*(unpack(x, fmt) for x in (a, b, c)))
        power = (step if biased(c, fmt) > fmt.bias else -step) if vcc else 0
        return pack(Num(total.kind, total.negative, total.value * two(power)), fmt)

    return run


def div_fixup(fmt: Fmt, underflow: int | None) -> Ref:
    def run(quotient: int, den: int, num: int) -> int:
        q, d, n = (unpack(x, fmt) for x in (quotient, den, num))
        sign = int(d.negative != n.negative) << fmt.width - 1
        for x, bits in ((n, num), (d, den)):
            if x.nan:
                return quieted(bits, fmt)
        if (n.zero and d.zero) or (n.kind == d.kind == "inf"):
            return fmt.nan
        if d.zero or n.kind == "inf":
            return sign | fmt.inf
        if n.zero or d.kind == "inf":
            return sign
        if underflow is not None:
            if biased(num, fmt) - biased(den, fmt) < underflow:
                return sign
            if q.nan:
                return sign | fmt.inf
        return sign | quotient & (1 << fmt.width - 1) - 1

    return run


for _t, _f, _u in (("f16", F16, None), ("f32", F32, -150), ("f64", F64, -1075)):
    REFERENCE[f"v_div_fixup_{_t}"] = div_fixup(_f, _u)
    if _u is not None:
        REFERENCE[f"v_div_scale_{_t}"] = div_scale(_f)
        REFERENCE[f"v_div_fmas_{_t}"] = div_fmas(_f)
REFERENCE["v_div_fixup_legacy_f16"] = REFERENCE["v_div_fixup_f16"]

# --- dot products and mixed FMA -----------------------------------------------------------------


def dot2(fmt: Fmt, addend_first: bool) -> Ref:
    add, exact_mul = rounded(sf.add, F32), sf.mul

    def run(a: int, b: int, c: int) -> int:
        pairs = zip(split(a, 16, 2), split(b, 16, 2), strict=True)
        first, second = (pack(exact_mul(unpack(x, fmt), unpack(y, fmt)), F32) for x, y in pairs)
        if addend_first:
            return add(add(c, first), second)
        return add(add(first, second), c)

    return run


REFERENCE["v_dot2_f32_f16"] = REFERENCE["v_dot2c_f32_f16"] = dot2(F16, True)
REFERENCE["v_dot2c_f32_bf16"] = dot2(BY_NAME["bf16"], True)
REFERENCE["v_dot2_f32_bf16"] = dot2(BY_NAME["bf16"], False)


def mix(fused: bool, half: int | None) -> Ref:
    def run(*words: int, clamp: int = 0, **mods: int) -> int:
        values = []
        for i, word in enumerate(words[:3]):
            bit = {name: value >> i & 1 for name, value in mods.items()}
            x = unpack(word, F32)
            if bit.get("op_sel_hi"):
                x = unpack(split(word, 16, 2)[bit.get("op_sel", 0)], F16)
            if bit.get("abs"):
                x = Num(x.kind, False, x.value)
            values.append(sf.neg(x) if bit.get("neg") else x)
        if fused:
            total = pack(sf.fma(*values), F32)
        else:
            product = unpack(pack(sf.mul(values[0], values[1]), F32), F32)
            total = pack(sf.add(product, values[2]), F32)
        if clamp:  # to [0, 1]; NaN and whatever has a sign give 0
            number = total > 0 and total <= F32.inf
            total = min(total, 0x3F800000) if number else 0
        if half is None:
            return total
        halves = split(words[3], 16, 2)
        halves[half] = pack(unpack(total, F32), F16)
        return halves[1] << 16 | halves[0]

    return run


for _name, _fused in (("fma", True), ("mad", False)):
    REFERENCE[f"v_{_name}_mix_f32"] = mix(_fused, None)
    REFERENCE[f"v_{_name}_mixlo_f16"] = mix(_fused, 0)
    REFERENCE[f"v_{_name}_mixhi_f16"] = mix(_fused, 1)
