"""Emits a Fusion on vectors of 4 fp32: the arithmetic between the accumulators and C."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import flydsl.expr as fx
from flydsl._mlir.dialects import llvm, rocdl
from flydsl.expr.typing import as_ir_value

from ..activations import ERF_SCALE, LOG2_TAIL, TAIL_END, TANH_CUBE, TANH_SCALE
from ..fusion import ERF_SERIES, ERFC, LOG2_E, TANH_SERIES

TYPES = {"bfloat16": fx.BFloat16, "float16": fx.Float16, "float32": fx.Float32}
# How truths lie in memory.
TYPES |= {"bool": fx.Uint8}
QUAD = 4
E4M3_MAX = 448.0


def quad(value: float) -> fx.Vector:
    """Four copies of a constant."""
    return fx.Vector.filled(QUAD, value, fx.Float32)


def _intrinsic(name: str, *args: Any) -> fx.Vector:
    call = getattr(llvm, f"intr_{name}")
    return fx.Vector(call(*(as_ir_value(a) for a in args)))


def _fma(x: Any, y: Any, z: Any) -> fx.Vector:
    """x·y + z, rounded once: v_pk_fma_f32, half of the issues of a product and a sum."""
    return _intrinsic("fma", x, y, z)


def eight_bits(x: Any, dtype: Any) -> fx.Int32:
    """4 fp32 as four E4M3FN or E5M2 in a word, rounded to even.

    What is too large becomes the largest number in the one, infinite values too, and infinite in
    the other, as in torch 2.13 to 2.15; a NaN stays one.
    """
    convert = rocdl.cvt_pk_bf8_f32
    if dtype.value == "float8_e4m3fn":
        # Of what is larger the instruction makes NaN (CDNA4 ISA guide, 7.3, FP16_OVFL off).
        x = _intrinsic("minimum", _intrinsic("maximum", x, quad(-E4M3_MAX)), quad(E4M3_MAX))
        convert = rocdl.cvt_pk_fp8_f32
    word = as_ir_value(fx.Int32(0))
    for half in range(2):
        pair = (as_ir_value(x[2 * half + i]) for i in range(2))
        word = convert(fx.Int32.ir_type, *pair, word, bool(half))
    return fx.Int32(word)


def _each(operation: Any, x: Any) -> fx.Vector:
    """A machine instruction on each of the four; flushes subnormals."""
    kind = fx.Float32.ir_type
    values = [fx.Float32(operation(kind, as_ir_value(x[i]))) for i in range(QUAD)]
    return fx.Vector.from_elements(values, fx.Float32)


class QuadOps:
    """The operations of `fusion` on vectors of 4 fp32; conditions are vectors of 4 bits.

    Args:
        result: type of what the program gives, which decides how exact ``gelu`` is.
        index: name of one of `fusion.INDICES` → where the four elements lie along it.
    """

    def __init__(self, result: Any, index: Callable[[str], fx.Vector]) -> None:
        self.result = result
        self._index = index

    def index(self, name: str, acc: Any) -> fx.Vector:
        return self._index(name)

    def const(self, value: float) -> fx.Vector:
        return quad(value)

    def round(self, x: fx.Vector, dtype: Any) -> fx.Vector:
        kind = TYPES[dtype.value]
        return x if kind is fx.Float32 else x.to(kind).to(fx.Float32)

    def where(self, condition: Any, x: Any, y: Any) -> fx.Vector:
        return condition.select(x, y)

    # -- one argument ----------------------------------------------------------------------------

    def neg(self, x: Any) -> fx.Vector:
        return -x

    def abs(self, x: Any) -> fx.Vector:
        return _intrinsic("fabs", x)

    def exp2(self, x: Any) -> fx.Vector:
        return _each(rocdl.exp2, x)

    def exp(self, x: Any) -> fx.Vector:
        return self.exp2(x * quad(LOG2_E))

    def log2(self, x: Any) -> fx.Vector:
        return _each(rocdl.log, x)

    def log(self, x: Any) -> fx.Vector:
        return self.log2(x) * quad(1 / LOG2_E)

    def sqrt(self, x: Any) -> fx.Vector:
        return _intrinsic("sqrt", x)

    def rsqrt(self, x: Any) -> fx.Vector:
        return self.reciprocal(self.sqrt(x))

    def reciprocal(self, x: Any) -> fx.Vector:
        return quad(1.0) / x

    def relu(self, x: Any) -> fx.Vector:
        return self.maximum(x, quad(0.0))

    def sigmoid(self, x: Any) -> fx.Vector:
        return _each(rocdl.rcp, quad(1.0) + self.exp(-x))

    def floor(self, x: Any) -> fx.Vector:
        whole = self.trunc(x)
        return whole - (whole > x).select(quad(1.0), quad(0.0))

    def ceil(self, x: Any) -> fx.Vector:
        whole = self.trunc(x)
        return whole + (whole < x).select(quad(1.0), quad(0.0))

    def trunc(self, x: Any) -> fx.Vector:
        return _intrinsic("trunc", x)

    def isnan(self, x: Any) -> Any:
        return x != x

    def not_(self, x: Any) -> Any:
        return ~x

    def tanh(self, x: Any) -> fx.Vector:
        size = self.abs(x)
        small = x * self._polynomial(TANH_SERIES, x * x)
        falling = self.exp2(size * quad(-2 * LOG2_E))
        large = _intrinsic(
            "copysign", (quad(1.0) - falling) * _each(rocdl.rcp, quad(1.0) + falling), x
        )
        return (size < quad(0.25)).select(small, large)

    def erf(self, x: Any) -> fx.Vector:
        size = self.abs(x)
        small = x * quad(2 / math.sqrt(math.pi)) * self._polynomial(ERF_SERIES, x * x)
        large = _intrinsic("copysign", quad(1.0) - self._erfc(size), x)
        return (size < quad(0.5)).select(small, large)

    def _erfc(self, size: Any) -> fx.Vector:
        """1 - erf of numbers that are not negative."""
        # v_rcp_f32 is within an ulp; a division takes ten times as long.
        t = _each(rocdl.rcp, quad(1.0) + size * quad(0.5))
        return t * self.exp(_fma(-size, size, self._polynomial(ERFC, t)))

    def gelu(self, x: Any) -> fx.Vector:
        """Of -inf it is 0, its limit."""
        # x·Φ(x) = max(x, 0) - a·Φ(-a), a = |x|: no digits cancel on either side.
        size = self.minimum(self.abs(x), quad(TAIL_END[self.result]))
        if self.result in LOG2_TAIL:
            tail = self.exp2(self._polynomial(LOG2_TAIL[self.result], size))
        else:
            tail = quad(0.5) * self._erfc(size * quad(ERF_SCALE))
        return _fma(-size, tail, self.relu(x))

    def gelu_tanh(self, x: Any) -> fx.Vector:
        # x·(1 + tanh z) / 2 = x·sigmoid(2z), in which no digits cancel.
        scale = -2 * LOG2_E * TANH_SCALE
        power = x * _fma(x * x, quad(scale * TANH_CUBE), quad(scale))
        return x * _each(rocdl.rcp, quad(1.0) + self.exp2(power))

    @staticmethod
    def _polynomial(coefficients: tuple[float, ...], x: Any) -> fx.Vector:
        total = quad(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            total = _fma(total, x, quad(coefficient))
        return total

    # -- two arguments ---------------------------------------------------------------------------

    def add(self, x: Any, y: Any) -> fx.Vector:
        return x + y

    def sub(self, x: Any, y: Any) -> fx.Vector:
        return x - y

    def mul(self, x: Any, y: Any) -> fx.Vector:
        return x * y

    def div(self, x: Any, y: Any) -> fx.Vector:
        return x / y

    def maximum(self, x: Any, y: Any) -> fx.Vector:
        # A NaN in either wins, as in torch.
        return _intrinsic("maximum", x, y)

    def minimum(self, x: Any, y: Any) -> fx.Vector:
        return _intrinsic("minimum", x, y)

    def lt(self, x: Any, y: Any) -> Any:
        return x < y

    def le(self, x: Any, y: Any) -> Any:
        return x <= y

    def gt(self, x: Any, y: Any) -> Any:
        return x > y

    def ge(self, x: Any, y: Any) -> Any:
        return x >= y

    def eq(self, x: Any, y: Any) -> Any:
        return x == y

    def ne(self, x: Any, y: Any) -> Any:
        return x != y

    def and_(self, x: Any, y: Any) -> Any:
        return x & y

    def or_(self, x: Any, y: Any) -> Any:
        return x | y
