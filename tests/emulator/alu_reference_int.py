"""Scalar references of the integer opcodes: plain Python integers, one lane at a time.

Every function takes raw unsigned bit patterns in the opcode's operand order and returns the raw
bit pattern of the result, or a tuple of them. Written from AMD's "CDNA4 ISA" guide.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Ref = Callable[..., Any]
REFERENCE: dict[str, Ref] = {}
M16, M32, M64 = (1 << 16) - 1, (1 << 32) - 1, (1 << 64) - 1
WIDTH = {"b16": 16, "u16": 16, "i16": 16, "b32": 32, "u32": 32, "i32": 32,
         "b64": 64, "u64": 64, "i64": 64}  # fmt: skip


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 & 1 else value


def number(value: int, kind: str) -> int:
    return signed(value, WIDTH[kind]) if kind[0] == "i" else value


def wrap(fn: Ref, kind: str, kinds: str | None = None) -> Ref:
    """``fn`` on Python numbers of the given types; the result wrapped to ``kind``."""
    names = (kinds or "").split()

    def run(*raw: int) -> int:
        types = names or [kind] * len(raw)
        values = (number(r, t) for r, t in zip(raw, types, strict=True))
        return fn(*values) & (1 << WIDTH[kind]) - 1

    return run


def with_scc(fn: Ref) -> Ref:
    return lambda *raw: (lambda r: (r, int(r != 0)))(fn(*raw))


def overflowing(fn: Ref) -> Ref:
    """i32 result and whether the exact one doesn't fit."""

    def run(*raw: int) -> tuple[int, int]:
        value = fn(*(signed(r, 32) for r in raw))
        return value & M32, int(not -(1 << 31) <= value < 1 << 31)

    return run


def carrying(fn: Ref) -> Ref:
    """u32 result and whether the exact one is outside [0, 2^32)."""

    def run(*raw: int) -> tuple[int, int]:
        value = fn(*raw)
        return value & M32, int(not 0 <= value <= M32)

    return run


# --- bits ---------------------------------------------------------------------------------------

LOGIC: dict[str, Ref] = {
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
    "andn2": lambda a, b: a & ~b, "orn2": lambda a, b: a | ~b, "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b), "xnor": lambda a, b: ~(a ^ b),
}  # fmt: skip


def bits_of(value: int, width: int) -> list[int]:
    return [value >> i & 1 for i in range(width)]


def from_bits(bits: list[int]) -> int:
    return sum(bit << i for i, bit in enumerate(bits))


def first_index(flags: list[int]) -> int:
    """Index of the first set flag as an i32 pattern, −1 where there is none."""
    return flags.index(1) if 1 in flags else M32


def leading_change(value: int, width: int) -> int:
    row = bits_of(value, width)[::-1]
    return first_index([int(b != row[0]) for b in row])


def bfe(a: int, offset: int, width: int, kind: str) -> int:
    bits = WIDTH[kind]
    field = number(a, kind) >> offset & (1 << width) - 1
    if kind[0] == "i" and width:
        field = signed(field, width)
    return field & (1 << bits) - 1


def bfm(width: int, offset: int, bits: int) -> int:
    return ((1 << width % bits) - 1 << offset % bits) & (1 << bits) - 1


def quads(a: int, bits: int) -> list[int]:
    return [int(a >> i & 15 != 0) for i in range(0, bits, 4)]


# --- SALU ---------------------------------------------------------------------------------------


def scalar_bits(t: str) -> None:
    n = WIDTH[t]
    full = (1 << n) - 1
    kind = "u32" if n == 32 else "u64"
    ref = REFERENCE
    ref[f"s_mov_{t}"] = lambda a: a
    ref[f"s_cmov_{t}"] = lambda a, scc, old: a if scc else old
    ref[f"s_cselect_{t}"] = lambda a, b, scc: a if scc else b
    ref[f"s_not_{t}"] = with_scc(lambda a: a ^ full)
    for name, fn in LOGIC.items():
        ref[f"s_{name}_{t}"] = with_scc(wrap(fn, kind))
    ref[f"s_lshl_{t}"] = with_scc(lambda a, s: a << s % n & full)
    ref[f"s_lshr_{t}"] = with_scc(lambda a, s: a >> s % n)
    ref[f"s_bfm_{t}"] = lambda w, o: bfm(w, o, n)
    ref[f"s_brev_{t}"] = lambda a: from_bits(bits_of(a, n)[::-1])
    ref[f"s_bcnt0_i32_{t}"] = with_scc(lambda a: bits_of(a, n).count(0))
    ref[f"s_bcnt1_i32_{t}"] = with_scc(lambda a: bits_of(a, n).count(1))
    ref[f"s_ff0_i32_{t}"] = lambda a: first_index([1 - b for b in bits_of(a, n)])
    ref[f"s_ff1_i32_{t}"] = lambda a: first_index(bits_of(a, n))
    ref[f"s_flbit_i32_{t}"] = lambda a: first_index(bits_of(a, n)[::-1])
    ref[f"s_bitset0_{t}"] = lambda s, old: old & ~(1 << s % n)
    ref[f"s_bitset1_{t}"] = lambda s, old: old | 1 << s % n
    ref[f"s_bitcmp0_{t}"] = lambda a, s: 1 - (a >> s % n & 1)
    ref[f"s_bitcmp1_{t}"] = lambda a, s: a >> s % n & 1
    ref[f"s_quadmask_{t}"] = with_scc(lambda a: from_bits(quads(a, n)))
    ref[f"s_wqm_{t}"] = with_scc(lambda a: from_bits([q for q in quads(a, n) for _ in range(4)]))


def saved(fn: Ref, keep: bool) -> Ref:
    def run(a: int, exec_: int) -> tuple[int, int, int]:
        new = fn(a, exec_) & M64
        return (exec_ if keep else new), new, int(new != 0)

    return run


scalar_bits("b32")
scalar_bits("b64")
EXEC_LOGIC = {**LOGIC, "andn1": lambda a, e: ~a & e, "orn1": lambda a, e: ~a | e}
REFERENCE.update({f"s_{n}_saveexec_b64": saved(f, True) for n, f in EXEC_LOGIC.items()})
REFERENCE.update({f"s_{n}_wrexec_b64": saved(EXEC_LOGIC[n], False) for n in ("andn1", "andn2")})
for _n in (1, 2, 3, 4):
    REFERENCE[f"s_lshl{_n}_add_u32"] = carrying(lambda a, b, n=_n: (a << n) + b)
for _t in ("u32", "i32", "u64", "i64"):
    REFERENCE[f"s_bfe_{_t}"] = with_scc(lambda a, f, t=_t: bfe(a, f % WIDTH[t], f >> 16 & 127, t))
for _t in ("i32", "u32"):
    REFERENCE[f"s_min_{_t}"] = lambda a, b, t=_t: (
        min(a, b, key=lambda x: number(x, t)), int(number(a, t) < number(b, t)))  # fmt: skip
    REFERENCE[f"s_max_{_t}"] = lambda a, b, t=_t: (
        max(a, b, key=lambda x: number(x, t)), int(number(a, t) >= number(b, t)))  # fmt: skip

COMPARE: dict[str, Ref] = {
    "eq": lambda a, b: a == b, "lg": lambda a, b: a != b, "ne": lambda a, b: a != b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b, "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}  # fmt: skip


def compares(name: str, t: str) -> Ref:
    return lambda a, b: int(COMPARE[name](number(a, t), number(b, t)))


for _name in ("eq", "lg", "gt", "ge", "lt", "le"):
    for _t in ("i32", "u32"):
        REFERENCE[f"s_cmp_{_name}_{_t}"] = compares(_name, _t)
    REFERENCE[f"s_cmpk_{_name}_i32"] = lambda a, k, n=_name: int(
        COMPARE[n](signed(a, 32), signed(k & M16, 16)))  # fmt: skip
    REFERENCE[f"s_cmpk_{_name}_u32"] = lambda a, k, n=_name: int(COMPARE[n](a, k & M16))
REFERENCE["s_cmp_eq_u64"] = compares("eq", "u64")
REFERENCE["s_cmp_lg_u64"] = compares("lg", "u64")

REFERENCE.update({
    "s_movk_i32": lambda k: signed(k & M16, 16) & M32,
    "s_cmovk_i32": lambda k, scc, old: signed(k & M16, 16) & M32 if scc else old,
    "s_sext_i32_i8": lambda a: signed(a & 255, 8) & M32,
    "s_sext_i32_i16": lambda a: signed(a & M16, 16) & M32,
    "s_add_u32": carrying(lambda a, b: a + b),
    "s_sub_u32": carrying(lambda a, b: a - b),
    "s_addc_u32": carrying(lambda a, b, c: a + b + c),
    "s_subb_u32": carrying(lambda a, b, c: a - b - c),
    "s_add_i32": overflowing(lambda a, b: a + b),
    "s_sub_i32": overflowing(lambda a, b: a - b),
    "s_addk_i32": lambda k, old: overflowing(lambda a, b: a + b)(old, signed(k & M16, 16) & M32),
    "s_mulk_i32": lambda k, old: signed(k & M16, 16) * old & M32,
    "s_mul_i32": wrap(lambda a, b: a * b, "i32"),
    "s_mul_hi_u32": lambda a, b: a * b >> 32,
    "s_mul_hi_i32": wrap(lambda a, b: a * b >> 32, "i32"),
    "s_abs_i32": with_scc(wrap(abs, "i32")),
    # The wrapped difference, then its magnitude.
    "s_absdiff_i32": with_scc(lambda a, b: abs(signed(a - b & M32, 32)) & M32),
    "s_ashr_i32": with_scc(lambda a, s: signed(a, 32) >> s % 32 & M32),
    "s_ashr_i64": with_scc(lambda a, s: signed(a, 64) >> s % 64 & M64),
    "s_flbit_i32": lambda a: leading_change(a, 32),
    "s_flbit_i32_i64": lambda a: leading_change(a, 64),
    "s_bitreplicate_b64_b32": lambda a: from_bits([b for b in bits_of(a, 32) for _ in (0, 1)]),
    "s_pack_ll_b32_b16": lambda a, b: (b & M16) << 16 | a & M16,
    "s_pack_lh_b32_b16": lambda a, b: b >> 16 << 16 | a & M16,
    "s_pack_hh_b32_b16": lambda a, b: b >> 16 << 16 | a >> 16,
})  # fmt: skip
