"""Every matrix opcode against a scalar reference of its layout, formats, scales and modifiers."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from alu_softfloat import BY_NAME, exact, pack
from mfma_reference import BITS, SELECTOR, Call, reference

from inductor_flydsl.emulator.mfma import MFMA, MfmaOp, mfma
from inductor_flydsl.emulator.op import NotSupported

WAVES = 2
NAMES = sorted(op.name for op in set(MFMA.values()))


@pytest.fixture(autouse=True)
def machine_arithmetic() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def small(kind: str, rng: random.Random) -> int:
    """Bits of a number with few of them: sums of their products are exact in f32."""
    if kind == "i8":
        return rng.getrandbits(8)
    return pack(exact(Fraction(rng.randint(-6, 6), rng.choice((1, 1, 2)))), BY_NAME[kind])


def words(kind: str, registers: int, draw: Callable[[], int]) -> list[list[int]]:
    """[register][lane] of packed elements."""
    out = [[0] * 64 for _ in range(registers)]
    for lane in range(64):
        whole = 0
        for i in range(registers * 32 // BITS[kind]):
            whole |= draw() << BITS[kind] * i
        for r in range(registers):
            out[r][lane] = whole >> 32 * r & 0xFFFFFFFF
    return out


def ordered_pairs(count: int, rng: random.Random) -> int:
    """A sparse index: for every two kept elements, two different positions in order."""
    index = 0
    for i in range(count):
        low, high = sorted(rng.sample(range(4), 2))
        index |= (low | high << 2) << 4 * i
    return index


def random_call(op: MfmaOp, rng: random.Random, **mods: int) -> Call:
    kinds = (op.a, op.b)
    if op.mixed:
        kinds = (SELECTOR[mods.get("cbsz", 0)], SELECTOR[mods.get("blgp", 0)])
    registers = [BITS[k] if op.mixed else r
                 for k, r in zip(kinds, (op.a_regs, op.b_regs), strict=True)]  # fmt: skip
    a, b = (words(k, r, lambda k=k: small(k, rng)) for k, r in zip(kinds, registers, strict=True))
    if op.cd == "i32":
        c = [[rng.getrandbits(32) for _ in range(64)] for _ in range(op.cd_regs)]
    else:
        c = words(op.cd, op.cd_regs, lambda: small(op.cd, rng))
    call = Call(a, b, c, mods)
    if op.scaled:
        call.scale_a, call.scale_b = (
            [sum(rng.randint(125, 129) << 8 * i for i in range(4)) for _ in range(64)]
            for _ in range(2)
        )
    if op.sparse:
        call.index = [ordered_pairs(8, rng) for _ in range(64)]
    return call


def stacked(rows: list[Any]) -> np.ndarray:
    """One array of the waves' registers: waves are the second axis."""
    return np.ascontiguousarray(np.array(rows, np.uint32).swapaxes(0, 1))


def run(op: MfmaOp, calls: list[Call]) -> np.ndarray:
    extra: dict[str, Any] = dict(calls[0].mods)
    for name in ("scale_a", "scale_b", "index"):
        if getattr(calls[0], name) is not None:
            extra[name] = np.array([getattr(c, name) for c in calls], np.uint32)
    a, b, c = (stacked([getattr(call, n) for call in calls]) for n in "abc")
    d = mfma(op, a, b, c, **extra)
    assert d.shape == (op.cd_regs, len(calls), 64) and d.dtype == np.uint32
    return d


def item_of(op: MfmaOp, d: np.ndarray, wave: int, at: int, lane: int) -> float:
    if op.cd == "f64":
        raw = struct.pack("<II", d[2 * at, wave, lane], d[2 * at + 1, wave, lane])
        return struct.unpack("<d", raw)[0]
    return struct.unpack("<i" if op.cd == "i32" else "<f", struct.pack("<I", d[at, wave, lane]))[0]


def check(op: MfmaOp, calls: list[Call]) -> None:
    d = run(op, calls)
    for wave, call in enumerate(calls):
        for (at, lane), want in reference(op, call).items():
            got = item_of(op, d, wave, at, lane)
            if op.cd == "i32":
                want = (int(want) + 2**31) % 2**32 - 2**31
            same = got == want or (math.isnan(got) and math.isnan(want))
            assert same, f"{op.name} wave {wave} item {at} lane {lane}: {got}, expected {want}"


@pytest.mark.parametrize("name", NAMES)
def test_opcode(name: str) -> None:
    op, rng = MFMA[name], random.Random(name)
    check(op, [random_call(op, rng) for _ in range(WAVES)])


@pytest.mark.parametrize("name", [n for n in NAMES if MFMA[n].scaled])
@pytest.mark.parametrize("cbsz", range(5))
@pytest.mark.parametrize("blgp", range(5))
def test_mixed_formats(name: str, cbsz: int, blgp: int) -> None:
    op, rng = MFMA[name], random.Random(f"{name}{cbsz}{blgp}")
    mods = {"cbsz": cbsz, "blgp": blgp, "opsel_a": rng.randrange(4), "opsel_b": rng.randrange(4)}
    check(op, [random_call(op, rng, **mods)])


@pytest.mark.parametrize("name", [n for n in NAMES if MFMA[n].mixed and not MFMA[n].scaled])
@pytest.mark.parametrize(("cbsz", "blgp"), [(0, 4), (4, 1), (2, 3), (4, 4)])
def test_mixed_formats_without_scales(name: str, cbsz: int, blgp: int) -> None:
    op = MFMA[name]
    check(op, [random_call(op, random.Random(name), cbsz=cbsz, blgp=blgp)])


@pytest.mark.parametrize("name", [n for n in NAMES if MFMA[n].blocks > 1 and MFMA[n].cd != "f64"])
def test_broadcasts(name: str) -> None:
    op, rng = MFMA[name], random.Random(name)
    for cbsz in range(1, op.blocks.bit_length()):
        check(op, [random_call(op, rng, cbsz=cbsz, abid=rng.randrange(1 << cbsz))])
    for blgp in range(1, 8):
        check(op, [random_call(op, rng, blgp=blgp)])


@pytest.mark.parametrize("name", ["v_mfma_f64_16x16x4_f64", "v_mfma_f64_4x4x4_4b_f64"])
@pytest.mark.parametrize("blgp", range(8))
def test_f64_negation(name: str, blgp: int) -> None:
    op = MFMA[name]
    check(op, [random_call(op, random.Random(blgp), blgp=blgp)])


@pytest.mark.parametrize("name", [n for n in NAMES if MFMA[n].sparse])
@pytest.mark.parametrize("mods", [{"abid": 1}, {"abid": 3}, {"cbsz": 1, "abid": 1}])
def test_sparse_index_sets(name: str, mods: dict[str, int]) -> None:
    op = MFMA[name]
    check(op, [random_call(op, random.Random(name), **mods)])


# --- numbers -----------------------------------------------------------------------------------


def fill(op: MfmaOp, a: int, b: int) -> Call:
    """All of A is the element ``a``, all of B is ``b``, C is zero."""
    kinds = (op.a, op.b)
    zero = [[0] * 64 for _ in range(op.cd_regs)]
    return Call(words(kinds[0], op.a_regs, lambda: a), words(kinds[1], op.b_regs, lambda: b), zero)


@pytest.mark.parametrize(
    ("name", "a", "b"),
    [
        # Subnormal inputs aren't flushed (CDNA4 ISA, section 7.4; unlike gfx90a).
        ("v_mfma_f32_16x16x32_f16", 0x0001, 0x3C00), ("v_mfma_f32_32x32x16_f16", 0x03FF, 0x8001),
        ("v_mfma_f32_16x16x32_bf16", 0x0001, 0x4B00), ("v_mfma_f32_16x16x32_bf16", 0x0040, 0x4000),
        ("v_mfma_f32_16x16x32_f16", 0x7C00, 0x3C00), ("v_mfma_f32_16x16x32_f16", 0xFC00, 0x3C00),
        ("v_mfma_f32_16x16x32_f16", 0x7C00, 0x0000), ("v_mfma_f32_16x16x32_f16", 0x7C01, 0x3C00),
        ("v_mfma_f32_16x16x32_f16", 0xFE00, 0x3C00), ("v_mfma_f32_16x16x32_f16", 0x7BFF, 0x3C00),
        ("v_mfma_f32_16x16x32_bf16", 0x7F80, 0xBF80), ("v_mfma_f32_16x16x32_bf16", 0x7FC0, 0x3F80),
        ("v_mfma_f32_16x16x32_bf16", 0x7F7F, 0x7F7F),
        ("v_mfma_f32_16x16x32_fp8_fp8", 0x7F, 0x38), ("v_mfma_f32_16x16x32_bf8_fp8", 0x7C, 0x38),
        ("v_mfma_f32_16x16x32_fp8_fp8", 0x01, 0x01), ("v_mfma_f32_16x16x32_fp8_fp8", 0x7E, 0x7E),
        ("v_mfma_i32_16x16x64_i8", 0x80, 0x80), ("v_mfma_i32_32x32x32_i8", 0x80, 0x7F),
    ],
)  # fmt: skip
def test_special_elements(name: str, a: int, b: int) -> None:
    op = MFMA[name]
    call = fill(op, a, b)
    want = reference(op, call)
    d = run(op, [call])
    for (at, lane), value in want.items():
        got = item_of(op, d, 0, at, lane)
        expected = float(np.float32(value)) if op.cd == "f32" else value
        assert got == expected or (math.isnan(got) and math.isnan(expected))


def test_infinity_meets_nan_of_either_half() -> None:
    """Special values in one lane only touch their row, whichever half holds them."""
    op, rng = MFMA["v_mfma_f32_16x16x32_f16"], random.Random(5)
    for half in (0, 16):
        for code in (0x7C00, 0x7E01, 0xFC00):
            call = random_call(op, rng)
            call.a[2][21] = call.a[2][21] & ~(0xFFFF << half) | code << half
            check(op, [call])


@pytest.mark.parametrize("codes", [(0, 254), (0, 0), (254, 254), (255, 127), (127, 255), (1, 200),
                                   (87, 167), (86, 168), (127, 127)])  # fmt: skip
@pytest.mark.parametrize("fmt", [0, 1, 4])
def test_extreme_scales(codes: tuple[int, int], fmt: int) -> None:
    """E8M0 0 is 2^−127 and 255 is NaN; a scale multiplies its block's dot product, not C."""
    op, rng = MFMA["v_mfma_scale_f32_16x16x128_f8f6f4"], random.Random(fmt)
    call = random_call(op, rng, cbsz=fmt, blgp=fmt)
    call.scale_a = [codes[0] ^ (lane % 3 == 0) for lane in range(64)]
    call.scale_b = [codes[1] ^ (lane % 5 == 0) for lane in range(64)]
    d = run(op, [call])
    for (at, lane), value in reference(op, call).items():
        got, want = item_of(op, d, 0, at, lane), float(np.float32(value))
        close = math.isclose(got, want, rel_tol=1e-6, abs_tol=1e-37)
        assert close or (math.isnan(got) and math.isnan(want)), (at, lane, got, want)


@pytest.mark.parametrize("name", ["v_mfma_f32_16x16x32_bf16", "v_mfma_f32_32x32x16_f16"])
def test_random_bits_stay_within_the_error_of_f32_sums(name: str) -> None:
    op, rng = MFMA[name], np.random.default_rng(3)
    kind = op.a
    values = rng.standard_normal((8, WAVES, 64, 2)).astype(np.float32)
    if kind == "f16":
        regs = values.astype(np.float16).view(np.uint32)[..., 0]
    else:
        regs = values.view(np.uint32)[..., 0] >> 16 | values.view(np.uint32)[..., 1] & 0xFFFF0000
    c = rng.standard_normal((op.cd_regs, WAVES, 64)).astype(np.float32).view(np.uint32)
    d = mfma(op, regs[:4], regs[4:], c)
    for wave in range(WAVES):
        call = Call(regs[:4, wave].tolist(), regs[4:, wave].tolist(), c[:, wave].tolist())
        for (at, lane), want in reference(op, call).items():
            assert abs(item_of(op, d, wave, at, lane) - want) < 2e-5


# --- calling -----------------------------------------------------------------------------------


def test_registers_that_change_are_read_again() -> None:
    """Unpacked operands are cached by address: a write in between must show."""
    op, rng = MFMA["v_mfma_f32_16x16x32_bf16"], random.Random(1)
    file = np.zeros((16, 1, 64), np.uint32)
    for _ in range(4):
        call = random_call(op, rng)
        file[0:4, 0], file[4:8, 0], file[8:12, 0] = call.a, call.b, call.c
        for _ in range(2):
            d = mfma(op, file[0:4], file[4:8], file[8:12])
            for (at, lane), want in reference(op, call).items():
                assert item_of(op, d, 0, at, lane) == want


@pytest.mark.parametrize("name", ["v_mfma_f32_16x16x32_bf16", "v_mfma_f64_16x16x4_f64",
                                  "v_mfma_i32_16x16x64_i8"])  # fmt: skip
def test_accumulator_may_be_absent_or_broadcast(name: str) -> None:
    op = MFMA[name]
    call = random_call(op, random.Random(2))
    a, b = stacked([call.a]), stacked([call.b])
    zero = np.zeros((op.cd_regs, 1, 64), np.uint32)
    want = mfma(op, a, b, zero)
    assert np.array_equal(mfma(op, a, b, None), want)
    assert np.array_equal(mfma(op, a, b, np.zeros((1, 1, 1), np.uint32)), want)


def test_older_spellings_name_the_same_opcodes() -> None:
    assert MFMA["v_mfma_f32_32x32x8f16"] is MFMA["v_mfma_f32_32x32x8_f16"]
    assert MFMA["v_mfma_f32_16x16x16bf16_1k"] is MFMA["v_mfma_f32_16x16x16_bf16"]
    assert MFMA["v_mfma_f32_4x4x1f32"] is MFMA["v_mfma_f32_4x4x1_16b_f32"]
    assert MFMA["v_mfma_f64_16x16x4f64"] is MFMA["v_mfma_f64_16x16x4_f64"]


@pytest.mark.parametrize(
    ("name", "regs", "cycles"),
    [
        ("v_mfma_f32_16x16x32_bf16", (4, 4, 4), 16), ("v_mfma_f32_32x32x16_f16", (4, 4, 16), 32),
        ("v_mfma_f32_32x32x1_2b_f32", (1, 1, 32), 64), ("v_mfma_f32_16x16x16_bf16", (2, 2, 4), 16),
        ("v_mfma_f64_16x16x4_f64", (2, 2, 8), 64), ("v_mfma_i32_32x32x32_i8", (4, 4, 16), 32),
        ("v_mfma_f32_16x16x32_fp8_bf8", (2, 2, 4), 16), ("v_mfma_f32_4x4x4_16b_f16", (2, 2, 4), 8),
        ("v_smfmac_f32_16x16x64_bf16", (4, 8, 4), 16), ("v_smfmac_i32_32x32x32_i8", (2, 4, 16), 32),
        ("v_mfma_scale_f32_32x32x64_f8f6f4", (8, 8, 16), 32),
    ],
)  # fmt: skip
def test_registers_and_cycles(name: str, regs: tuple[int, int, int], cycles: int) -> None:
    op = MFMA[name]
    assert (op.a_regs, op.b_regs, op.cd_regs) == regs
    assert op.cycles == cycles


@pytest.mark.parametrize(("cbsz", "blgp", "passes"), [(0, 0, 8), (4, 1, 8), (4, 4, 4), (2, 3, 4)])
def test_eight_bit_operands_halve_the_rate(cbsz: int, blgp: int, passes: int) -> None:
    assert MFMA["v_mfma_f32_16x16x128_f8f6f4"].passes_for(cbsz, blgp) == passes


@pytest.mark.parametrize(
    ("name", "mods"),
    [
        ("v_mfma_f32_16x16x32_bf16", {"cbsz": 1}), ("v_mfma_f32_16x16x32_bf16", {"blgp": 1}),
        ("v_mfma_f32_32x32x1_2b_f32", {"cbsz": 2}), ("v_mfma_f32_16x16x128_f8f6f4", {"cbsz": 5}),
    ],
)  # fmt: skip
def test_undefined_modifiers_are_refused(name: str, mods: dict[str, int]) -> None:
    op = MFMA[name]
    zeros = np.zeros((32, 1, 64), np.uint32)
    with pytest.raises(NotSupported, match=name):
        mfma(op, zeros[: op.a_regs], zeros[: op.b_regs], zeros[: op.cd_regs], **mods)


@pytest.mark.parametrize(
    ("name", "missing"),
    [("v_smfmac_f32_16x16x32_f16", "index"), ("v_mfma_scale_f32_16x16x128_f8f6f4", "scale_a")],
)
def test_missing_operands_are_named(name: str, missing: str) -> None:
    op = MFMA[name]
    zeros = np.zeros((32, 1, 64), np.uint32)
    with pytest.raises(ValueError, match=missing):
        mfma(op, zeros[: op.a_regs], zeros[: op.b_regs], zeros[: op.cd_regs])
