"""Small formats: every code, every tie and the overflow rules, against exact fractions."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
from alu_softfloat import BY_NAME, F32, F64, Num, pack, unpack

from inductor_flydsl.emulator.formats import (
    FORMATS,
    SELECTOR,
    e8m0_scale,
    exponent_field,
    pack_codes,
    unpack_codes,
)

NAMES = sorted(FORMATS)


def double(num: Num) -> float:
    return float("nan") if num.nan else float("inf") if num.kind == "inf" else float(num.value)


@pytest.mark.parametrize("name", NAMES)
def test_every_code_decodes_exactly(name: str) -> None:
    fmt, exact = FORMATS[name], BY_NAME[name]
    codes = np.arange(1 << fmt.bits, dtype=np.uint8)
    values = fmt.decode(codes)
    assert values.dtype == np.float32
    for code, value in zip(codes, values, strict=True):
        want = unpack(int(code), exact)
        assert np.signbit(value) == want.negative or want.nan
        assert abs(float(value)) == double(want) or (np.isnan(value) and want.nan)


@pytest.mark.parametrize("name", NAMES)
def test_every_code_survives_a_round_trip(name: str) -> None:
    fmt = FORMATS[name]
    codes = np.arange(1 << fmt.bits, dtype=np.uint8)
    values = fmt.decode(codes)
    again = fmt.encode(values)
    number = ~np.isnan(values)
    assert np.array_equal(again[number], codes[number])
    assert np.isnan(fmt.decode(again[~number])).all()


@pytest.mark.parametrize("name", NAMES)
def test_encode_rounds_to_nearest_even(name: str) -> None:
    """All values, all midpoints and their neighbours, and random doubles around the range."""
    fmt, exact, rng = FORMATS[name], BY_NAME[name], random.Random(name)
    finite = sorted({float(v) for v in fmt.values if np.isfinite(v)})
    points = [*finite, *((a + b) / 2 for a, b in zip(finite, finite[1:], strict=False))]
    top = finite[-1]
    points += [top * (1 + k / 64) for k in range(80)]
    points += [float(np.nextafter(p, s)) for p in points for s in (-np.inf, np.inf)]
    points += [rng.choice((1, -1)) * 2.0 ** rng.uniform(-20, 18) for _ in range(500)]
    points += [5e-324, -5e-324, 0.0, -0.0, 1e300, -1e300, float("inf"), float("-inf")]
    bits = np.array(points).view(np.uint64)
    codes = fmt.encode(np.array(points))
    for point, raw, code in zip(points, bits, codes, strict=True):
        want = pack(unpack(int(raw), F64), exact)
        assert code == want, f"{name} of {point!r}: got {code:#x}, expected {want:#x}"


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("fp8", 448.0, 0x7E), ("fp8", 464.0, 0x7E), ("fp8", 464.1, 0x7F), ("fp8", -1e9, 0xFF),
        ("fp8", 2.0**-10, 0x00), ("fp8", 1.5 * 2.0**-10, 0x01), ("bf8", 57344.0, 0x7B),
        ("bf8", 61439.0, 0x7B), ("bf8", 61440.0, 0x7C), ("bf8", float("-inf"), 0xFC),
        ("fp4", 6.0, 7), ("fp4", 5.0, 6), ("fp4", 1e9, 7), ("fp4", -1e9, 15), ("fp4", 0.25, 0),
        ("fp4", 0.75, 2), ("fp6", 7.75, 0x1F), ("fp6", 100.0, 0x1F), ("bf6", 1e5, 0x1F),
        ("bf6", -0.0, 0x20),
    ],
)  # fmt: skip
def test_limits(name: str, value: float, code: int) -> None:
    assert FORMATS[name].encode(np.array([value])).tolist() == [code]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sign", [0, 1])
def test_nan_encodes_to_nan_or_the_largest(name: str, sign: int) -> None:
    bits = np.array([0x7FC00000 | sign << 31], np.uint32).view(np.float32)
    fmt = FORMATS[name]
    code = int(fmt.encode(bits)[0])
    assert code >> fmt.bits - 1 == sign
    value = fmt.decode(np.array([code & (1 << fmt.bits - 1) - 1]))[0]
    assert np.isnan(value) if name in ("fp8", "bf8") else value == np.nanmax(fmt.values)


def test_e8m0() -> None:
    scales = e8m0_scale(np.arange(256, dtype=np.uint8))
    assert np.isnan(scales[255])
    assert [Fraction(float(s)) for s in scales[:255]] == [
        Fraction(2) ** (e - 127) for e in range(255)
    ]


def test_exponent_field_ignores_sign_and_mantissa() -> None:
    rng = random.Random(0)
    raw = [rng.getrandbits(32) for _ in range(200)] + [0, 1 << 31, 0x7F800000, 0x3F800000]
    got = exponent_field(np.array(raw, np.uint32).view(np.float32))
    assert got.tolist() == [r >> F32.mantissa & 255 for r in raw]


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_codes_unpack_little_endian(bits: int) -> None:
    rng = random.Random(bits)
    registers = 3 if bits == 6 else 4
    columns = [[rng.getrandbits(32) for _ in range(5)] for _ in range(registers)]
    words = np.array(columns, np.uint32)
    codes = unpack_codes(words, bits)
    for lane in range(5):
        whole = sum(columns[r][lane] << 32 * r for r in range(registers))
        want = [whole >> bits * i & (1 << bits) - 1 for i in range(32 * registers // bits)]
        assert codes[:, lane].tolist() == want
    assert np.array_equal(pack_codes(codes, bits), words)


def test_selector_order() -> None:
    """CBSZ/BLGP: 0 E4M3, 1 E5M2, 2 E2M3, 3 E3M2, 4 E2M1."""
    shapes = [(f.exponent, f.mantissa) for f in SELECTOR]
    assert shapes == [(4, 3), (5, 2), (2, 3), (3, 2), (2, 1)]
