"""Exact floating-point arithmetic on bit patterns with Python integers and fractions.

The tests' independent reference: it shares no code and no method with the emulator (which works
on numpy floats). A value is NaN, an infinity or a Fraction with a sign.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Fmt:
    """An IEEE-like binary format; ``top`` is "inf" (IEEE), "nan" (E4M3FN) or "finite"."""

    exponent: int
    mantissa: int
    top: str = "inf"

    @property
    def width(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def bias(self) -> int:
        return (1 << self.exponent - 1) - 1

    @property
    def nan(self) -> int:
        ones = (1 << self.width - 1) - 1
        return ones if self.top != "inf" else self.inf | 1 << self.mantissa - 1

    @property
    def inf(self) -> int:
        return ((1 << self.exponent) - 1) << self.mantissa


F16, BF16, F32, F64 = Fmt(5, 10), Fmt(8, 7), Fmt(8, 23), Fmt(11, 52)
FP8, BF8 = Fmt(4, 3, "nan"), Fmt(5, 2)
FP6, BF6, FP4 = Fmt(2, 3, "finite"), Fmt(3, 2, "finite"), Fmt(2, 1, "finite")
BY_NAME = {"f16": F16, "bf16": BF16, "f32": F32, "f64": F64,
           "fp8": FP8, "bf8": BF8, "fp6": FP6, "bf6": BF6, "fp4": FP4}  # fmt: skip


@dataclass(frozen=True)
class Num:
    """kind "nan", "inf" or "finite"; ``value`` is the magnitude of a finite one."""

    kind: str
    negative: bool
    value: Fraction = Fraction(0)
    signaling: bool = False

    @property
    def signed(self) -> Fraction:
        return -self.value if self.negative else self.value

    @property
    def nan(self) -> bool:
        return self.kind == "nan"

    @property
    def zero(self) -> bool:
        return self.kind == "finite" and self.value == 0


NAN = Num("nan", False)


def two(power: int) -> Fraction:
    return Fraction(2) ** power


def unpack(bits: int, fmt: Fmt) -> Num:
    negative = bool(bits >> fmt.width - 1 & 1)
    exponent = bits >> fmt.mantissa & (1 << fmt.exponent) - 1
    mantissa = bits & (1 << fmt.mantissa) - 1
    full = exponent == (1 << fmt.exponent) - 1
    if full and fmt.top == "inf":
        if mantissa:
            return Num("nan", negative, signaling=not mantissa >> fmt.mantissa - 1)
        return Num("inf", negative)
    if full and fmt.top == "nan" and mantissa == (1 << fmt.mantissa) - 1:
        return Num("nan", negative)
    if exponent:
        mantissa |= 1 << fmt.mantissa
    else:
        exponent = 1
    return Num("finite", negative, mantissa * two(exponent - fmt.bias - fmt.mantissa))


def _largest(fmt: Fmt) -> int:
    """Code of the largest finite magnitude."""
    top = (1 << fmt.width - 1) - 1
    return {"finite": top, "nan": top - 1, "inf": fmt.inf - 1}[fmt.top]


def pack(num: Num, fmt: Fmt, toward_zero: bool = False) -> int:
    """Bits of ``num``, rounded to nearest even (or towards zero).

    Overflow: infinity where there is one, else NaN, else the largest value.
    """
    sign = int(num.negative) << fmt.width - 1
    if num.nan:
        return sign | fmt.nan
    over = {"inf": fmt.inf, "nan": fmt.nan, "finite": _largest(fmt)}[fmt.top]
    if num.kind == "inf":
        return sign | over
    if num.value == 0:
        return sign
    exponent = num.value.numerator.bit_length() - num.value.denominator.bit_length()
    if num.value < two(exponent):
        exponent -= 1
    exponent = max(exponent, 1 - fmt.bias)
    scaled = num.value / two(exponent - fmt.mantissa)
    whole = scaled.numerator // scaled.denominator
    rest = scaled - whole
    half = Fraction(1, 2)
    if not toward_zero and (rest > half or (rest == half and whole & 1)):
        whole += 1
    # A carry out of the mantissa falls into the exponent by itself.
    code = whole + (exponent + fmt.bias - 1 << fmt.mantissa)
    if code > _largest(fmt):
        return sign | (_largest(fmt) if toward_zero else over)
    return sign | code


def exact(value: Fraction, zero_negative: bool = False) -> Num:
    return Num("finite", value < 0 or (value == 0 and zero_negative), abs(value))


def add(a: Num, b: Num) -> Num:
    if a.nan or b.nan:
        return NAN
    if a.kind == "inf" or b.kind == "inf":
        if a.kind == b.kind and a.negative != b.negative:
            return NAN
        return a if a.kind == "inf" else b
    return exact(a.signed + b.signed, a.negative and b.negative)


def neg(a: Num) -> Num:
    return Num(a.kind, not a.negative, a.value, a.signaling)


def mul(a: Num, b: Num) -> Num:
    if a.nan or b.nan:
        return NAN
    negative = a.negative != b.negative
    if a.kind == "inf" or b.kind == "inf":
        return NAN if a.zero or b.zero else Num("inf", negative)
    return Num("finite", negative, a.value * b.value)


def fma(a: Num, b: Num, c: Num) -> Num:
    return add(mul(a, b), c)


def compare(a: Num, b: Num) -> int | None:
    """−1, 0 or 1; None where either is NaN."""
    if a.nan or b.nan:
        return None
    rank = {("inf", True): -1, ("inf", False): 1}
    x, y = rank.get((a.kind, a.negative), 0), rank.get((b.kind, b.negative), 0)
    if x or y:
        return (x > y) - (x < y)
    return (a.signed > b.signed) - (a.signed < b.signed)


def rounded(fn: Callable[..., Num], fmt: Fmt) -> Callable[..., int]:
    """A function of exact numbers as a function of bits, rounded once."""
    return lambda *bits: pack(fn(*(unpack(b, fmt) for b in bits)), fmt)


def integral(num: Num, mode: str) -> Num:
    """trunc, floor, ceil or rndne of a number, sign of zero kept."""
    if num.kind != "finite":
        return num
    value = num.signed
    whole = value.numerator // value.denominator
    if mode == "ceil" or (mode == "trunc" and value < 0):
        whole = -(-value.numerator // value.denominator)
    elif mode == "rndne":
        whole = round(value)  # Python rounds fractions to even
    return exact(Fraction(whole), num.negative)


def to_int(num: Num, bits: int, signed: bool) -> int:
    """Truncated and saturated; NaN gives 0. Returns the bit pattern."""
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    if num.nan:
        return 0
    if num.kind == "inf":
        whole = low if num.negative else high
    else:
        whole = min(max(int(num.signed), low), high)
    return whole & (1 << bits) - 1
