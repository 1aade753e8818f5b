"""Source signs, clamps and packed selections through the engine, against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest
from isa_text import HEAD, evaluate, launch, store

from inductor_flydsl.emulator import Options, UnknownInstruction
from inductor_flydsl.emulator.alu import OPS

RNG = np.random.default_rng(3)
EDGES = [0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x7FFFFF, 0x800000, 0xFFFFFF, 0x80008000]


def operands(count: int) -> list[np.ndarray]:
    """uint32 [64] each: edges against edges, then random bits."""
    out = []
    for i in range(count):
        values = RNG.integers(0, 1 << 32, 64, np.uint32)
        values[: len(EDGES)] = np.roll(np.array(EDGES, np.uint32), i)
        values[16 : 16 + len(EDGES)] = np.array(EDGES, np.uint32)
        out.append(values)
    return out


def run(instruction: str, sources: list[np.ndarray]) -> np.ndarray:
    """v10 of `instruction` on v2, v3, v4 = sources."""
    loads = "\n".join(
        f"s_load_dwordx2 s[8:9], s[0:1], {8 * i + 8:#x}\ns_waitcnt lgkmcnt(0)\n"
        f"global_load_dword v{i + 2}, v1, s[8:9]\ns_waitcnt vmcnt(0)"
        for i in range(len(sources))
    )
    out = np.zeros(64, np.uint32)
    body = f"{HEAD}{loads}\n{instruction}\n{store('v10')}"
    launch(body, [out, *sources], options=Options(findings=False))
    return out


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def parts(word: int, bits: int, sign: bool) -> list[int]:
    fields = [word >> i & (1 << bits) - 1 for i in range(0, 32, bits)]
    return [signed(f, bits) for f in fields] if sign else fields


def dot(bits: int, sign: bool):
    def exact(a: int, b: int, c: int) -> int:
        total = signed(c, 32) if sign else c
        return total + sum(
            x * y for x, y in zip(parts(a, bits, sign), parts(b, bits, sign), strict=True)
        )

    return exact


def sad(bits: int):
    def exact(a: int, b: int, c: int) -> int:
        pairs = zip(parts(a, bits, False), parts(b, bits, False), strict=True)
        return c + sum(abs(x - y) for x, y in pairs)

    return exact


EXACT = {
    "v_add_u32": (lambda a, b: a + b, False),
    "v_sub_u32": (lambda a, b: a - b, False),
    "v_add_i32": (lambda a, b: signed(a, 32) + signed(b, 32), True),
    "v_sub_i32": (lambda a, b: signed(a, 32) - signed(b, 32), True),
    "v_mad_u32_u24": (lambda a, b, c: (a & 0xFFFFFF) * (b & 0xFFFFFF) + c, False),
    "v_mad_i32_i24": (lambda a, b, c: signed(a, 24) * signed(b, 24) + signed(c, 32), True),
    "v_mad_u32_u16": (lambda a, b, c: (a & 0xFFFF) * (b & 0xFFFF) + c, False),
    "v_mad_i32_i16": (lambda a, b, c: signed(a, 16) * signed(b, 16) + signed(c, 32), True),
    "v_dot2_i32_i16": (dot(16, True), True), "v_dot2_u32_u16": (dot(16, False), False),
    "v_dot4_i32_i8": (dot(8, True), True), "v_dot4_u32_u8": (dot(8, False), False),
    "v_dot8_i32_i4": (dot(4, True), True), "v_dot8_u32_u4": (dot(4, False), False),
    "v_sad_u8": (sad(8), False), "v_sad_u16": (sad(16), False), "v_sad_u32": (sad(32), False),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_integer_clamp_is_of_the_exact_result(name: str) -> None:
    exact, sign = EXACT[name]
    low, high = (-(1 << 31), (1 << 31) - 1) if sign else (0, (1 << 32) - 1)
    sources = operands(len(OPS[name].src))
    names = ", ".join(f"v{i + 2}" for i in range(len(sources)))
    got = run(f"{name} v10, {names} clamp", sources)
    values = [exact(*map(int, row)) for row in zip(*sources, strict=True)]
    want = [min(max(v, low), high) & 0xFFFFFFFF for v in values]
    assert got.tolist() == want
    assert any(not low <= v <= high for v in values), "no case clamps"


@pytest.mark.parametrize("text, value", [
    ("v2, v3, v4", lambda a, b, c: a[0] * b[0] + c[0]),
    ("-v2, v3, v4", lambda a, b, c: -a[0] * b[0] + c[0]),
    ("v2, |v3|, -|v4|", lambda a, b, c: a[0] * abs(b[0]) - abs(c[0])),
    ("-v2, v3, v4 op_sel_hi:[1,0,1]", lambda a, b, c: -a[1] * b[0] + c[1]),
    ("v2, -v3, |v4| op_sel:[1,1,1] op_sel_hi:[1,1,1]", lambda a, b, c: -a[2] * b[2] + abs(c[2])),
])  # fmt: skip
def test_signs_of_mixed_fma_are_of_the_chosen_format(text: str, value) -> None:
    halves = RNG.integers(-6, 7, (3, 64, 2)).astype(np.float16)
    words = [np.ascontiguousarray(h).view(np.uint32)[:, 0] for h in halves]
    if "op_sel_hi" not in text:  # whole f32 operands
        whole = [h[:, 0].astype(np.float32) for h in halves]
        words = [w.view(np.uint32) for w in whole]
        kinds = [(w.astype(np.float64),) for w in whole]
    else:
        kinds = [
            (w.view(np.float32).astype(np.float64), h[:, 0].astype(float), h[:, 1].astype(float))
            for w, h in zip(words, halves, strict=True)
        ]
    got = run(f"v_fma_mix_f32 v10, {text}", words).view(np.float32)
    assert np.array_equal(got, value(*kinds).astype(np.float32), equal_nan=True)


def test_packed_accumulation_keeps_its_halves_apart() -> None:
    a, b, c = RNG.integers(-6, 7, (3, 64, 2)).astype(np.float16)
    words = [np.ascontiguousarray(x).view(np.uint32)[:, 0] for x in (a, b, c)]
    got = run("v_mov_b32_e32 v10, v4\nv_pk_fmac_f16 v10, v2, v3", words).view(np.float16)
    assert (got.reshape(64, 2) == a * b + c).all()


@pytest.mark.parametrize("text", [
    "v_cvt_scalef32_pk_fp8_f16 v10, -v2, v3",
    "v_cvt_scalef32_pk_fp4_bf16 v10, |v2|, v3",
    "v_dot2_f32_bf16 v10, -v2, v3, v4",
    "v_dot2_f32_f16 v10, v2, v3, v4 neg_lo:[1,0,0]",
    "v_dot4_u32_u8 v10, v2, v3, v4 op_sel:[1,0,0]",
    "v_bfe_u32 v10, v2, v3, v4 clamp",
])  # fmt: skip
def test_modifiers_without_a_meaning_are_refused(text: str) -> None:
    with pytest.raises(UnknownInstruction, match="form|operand|opcode|clamp"):
        evaluate(text)
