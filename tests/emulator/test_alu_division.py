"""The division opcodes together: LLVM's expansion of fdiv must round correctly.

Sequences: LLVM AMDGPULegalizerInfo, legalizeFDIV32 and legalizeFDIV64, subnormals enabled.
"""

from __future__ import annotations

import random
import struct
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from alu_softfloat import F32, F64, Fmt, Num, pack, unpack

from inductor_flydsl.emulator.alu import OPS

Array = np.ndarray


def op(name: str, *args: Any) -> Any:
    return OPS[name].fn(*args)


def divide_f32(a: Array, b: Array, rcp: Any) -> Array:
    den, _ = op("v_div_scale_f32", b, b, a)
    num, scaled = op("v_div_scale_f32", a, b, a)
    r = op("v_rcp_f32", den) if rcp is None else rcp(den)
    error = op("v_fma_f32", -den, r, np.ones_like(r))
    r = op("v_fma_f32", error, r, r)
    q = op("v_mul_f32", num, r)
    q = op("v_fma_f32", op("v_fma_f32", -den, q, num), r, q)
    error = op("v_fma_f32", -den, q, num)
    return op("v_div_fixup_f32", op("v_div_fmas_f32", error, r, q, scaled), b, a)


def divide_f64(a: Array, b: Array, rcp: Any) -> Array:
    den, _ = op("v_div_scale_f64", b, b, a)
    num, scaled = op("v_div_scale_f64", a, b, a)
    r = op("v_rcp_f64", den) if rcp is None else rcp(den)
    for _ in range(2):
        r = op("v_fma_f64", r, op("v_fma_f64", -den, r, np.ones_like(r)), r)
    q = op("v_mul_f64", num, r)
    error = op("v_fma_f64", -den, q, num)
    return op("v_div_fixup_f64", op("v_div_fmas_f64", error, r, q, scaled), b, a)


def quotient(a: int, b: int, fmt: Fmt) -> int:
    x, y = unpack(a, fmt), unpack(b, fmt)
    negative = x.negative != y.negative
    if x.nan or y.nan or (x.zero and y.zero) or (x.kind == y.kind == "inf"):
        return fmt.nan
    if x.kind == "inf" or y.zero:
        return pack(Num("inf", negative), fmt)
    if y.kind == "inf":
        return pack(Num("finite", negative), fmt)
    return pack(Num("finite", negative, x.value / y.value), fmt)


def operands(fmt: Fmt, count: int, rng: random.Random) -> list[tuple[int, int]]:
    """Random bits, near-overflow and near-underflow quotients, ties of subnormal results."""
    top = fmt.inf
    step = 1 << fmt.mantissa
    edges = [0, 1, 3, step - 1, step, top >> 1, (top >> 1) + 1, top - 1, top - step]
    edges += [top - 2 * step, top, top + 1]
    rows = [(a, b) for a in edges for b in edges]
    while len(rows) < count:
        a, b = rng.getrandbits(fmt.width), rng.getrandbits(fmt.width)
        if len(rows) % 3 == 0:
            b = rng.choice(edges) ^ rng.getrandbits(3)
        if len(rows) % 3 == 1:  # a quotient near the subnormals
            low = rng.randint(0, 40) << fmt.mantissa | rng.getrandbits(fmt.mantissa)
            high = top - (rng.randint(1, 160) << fmt.mantissa) | rng.getrandbits(fmt.mantissa)
            a, b = (low, fmt.bias + rng.randint(-40, 40) << fmt.mantissa | b & 0xFFF)
            a = a if rng.random() < 0.5 else high
        rows.append((a, b))
    return rows


def one_ulp_off(den: Array) -> Array:
    """A reciprocal as inexact as the hardware's may be."""
    return np.nextafter(np.reciprocal(den), den.dtype.type(np.inf))


@pytest.mark.parametrize("rcp", [None, one_ulp_off], ids=["nearest", "one ulp off"])
@pytest.mark.parametrize("fmt", [F32, F64], ids=["f32", "f64"])
def test_expansion_of_fdiv_rounds_correctly(fmt: Fmt, rcp: Any) -> None:
    rng = random.Random(fmt.width)
    ones = (1 << fmt.mantissa) - 1
    rows = operands(fmt, 1500, rng)
    if rcp is not None:
        # Markstein's theorem asks for the nearest reciprocal where the mantissa is all ones.
        rows = [row for row in rows if row[1] & ones != ones]
    code, divide = ("I", divide_f32) if fmt is F32 else ("Q", divide_f64)
    dtype = np.float32 if fmt is F32 else np.float64
    a, b = (
        np.frombuffer(struct.pack(f"<{len(rows)}{code}", *column), dtype).reshape(-1, 1)
        for column in zip(*rows, strict=True)
    )
    with np.errstate(all="ignore"):
        result = divide(a, b, rcp)
    got = struct.unpack(f"<{len(rows)}{code}", result.astype(dtype).tobytes())
    for (x, y), g in zip(rows, got, strict=True):
        want = quotient(x, y, fmt)
        both_nan = unpack(g, fmt).nan and unpack(want, fmt).nan
        assert g == want or both_nan, f"{x:#x} / {y:#x}: got {g:#x}, expected {want:#x}"


def test_reference_quotient_of_a_tie() -> None:
    """3·2^−150 lies between the two smallest subnormals' neighbours: the reference rounds it up."""
    assert quotient(3, 0x40000000, F32) == 2
    assert quotient(1, 0x40000000, F32) == 0
    assert unpack(3, F32).value == Fraction(3, 2**149)
