"""Scalar references of the integer vector opcodes and compares: plain Python integers.

Same conventions as ``alu_reference_int``. Compares return 0 or 1; a v_cmpx returns it twice.
"""

from __future__ import annotations

from alu_reference_int import (
    COMPARE,
    LOGIC,
    M16,
    M32,
    M64,
    WIDTH,
    Ref,
    bfe,
    bfm,
    bits_of,
    carrying,
    compares,
    first_index,
    from_bits,
    leading_change,
    number,
    signed,
    wrap,
)
from alu_softfloat import BY_NAME, compare, unpack

REFERENCE: dict[str, Ref] = {}


def split(value: int, width: int, count: int) -> list[int]:
    return [value >> width * i & (1 << width) - 1 for i in range(count)]


def join(parts: list[int], width: int) -> int:
    return sum((p & (1 << width) - 1) << width * i for i, p in enumerate(parts))


def truth_table(a: int, b: int, c: int, table: int, width: int) -> int:
    return sum(
        (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i
        for i in range(width)
    )


def perm(a: int, b: int, select: int) -> int:
    data = split(b, 8, 4) + split(a, 8, 4)

    def pick(s: int) -> int:
        if s >= 13:
            return 0xFF
        if s == 12:
            return 0
        if s >= 8:
            return 0xFF * (data[2 * (s - 8) + 1] >> 7)
        return data[s]

    return join([pick(s) for s in split(select, 8, 4)], 8)


def sad(a: int, b: int, c: int, width: int, masked: bool = False) -> int:
    pairs = zip(split(a, width, 32 // width), split(b, width, 32 // width), strict=True)
    return sum(abs(x - y) for x, y in pairs if y or not masked) + c & M32


def saturate(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


def i24(a: int) -> int:
    return signed(a & 0xFFFFFF, 24)


def u24(a: int) -> int:
    return a & 0xFFFFFF


def below(lane: int, high: bool) -> int:
    return ((1 << lane) - 1) >> (32 if high else 0) & M32


def mad_wide(a: int, b: int, c: int) -> tuple[int, int]:
    total = a * b + c
    return total & M64, total >> 64 & 1


REFERENCE.update({
    "v_mov_b32": lambda a: a,
    "v_mov_b64": lambda a: a,
    "v_cndmask_b32": lambda a, b, m: b if m else a,
    "v_not_b32": lambda a: a ^ M32,
    "v_and_or_b32": lambda a, b, c: a & b | c,
    "v_or3_b32": lambda a, b, c: a | b | c,
    "v_xad_u32": lambda a, b, c: (a ^ b) + c & M32,
    "v_bfi_b32": lambda m, a, b: from_bits(
        [y if x else z for x, y, z in zip(bits_of(m, 32), bits_of(a, 32), bits_of(b, 32),
                                          strict=True)]),
    "v_bitop3_b32": lambda a, b, c, bitop3=0: truth_table(a, b, c, bitop3, 32),
    "v_bitop3_b16": lambda a, b, c, bitop3=0: truth_table(a, b, c, bitop3, 16),
    "v_add_u32": lambda a, b: a + b & M32,
    "v_sub_u32": lambda a, b: a - b & M32,
    "v_subrev_u32": lambda a, b: b - a & M32,
    "v_add3_u32": lambda a, b, c: a + b + c & M32,
    "v_lshl_add_u32": lambda a, n, c: (a << n % 32) + c & M32,
    "v_add_lshl_u32": lambda a, b, n: a + b << n % 32 & M32,
    "v_lshl_or_b32": lambda a, n, c: (a << n % 32 | c) & M32,
    "v_lshl_add_u64": lambda a, n, c: (a << n % 8) + c & M64,
    "v_add_co_u32": carrying(lambda a, b: a + b),
    "v_sub_co_u32": carrying(lambda a, b: a - b),
    "v_subrev_co_u32": carrying(lambda a, b: b - a),
    "v_addc_co_u32": carrying(lambda a, b, c: a + b + c),
    "v_subb_co_u32": carrying(lambda a, b, c: a - b - c),
    "v_subbrev_co_u32": carrying(lambda a, b, c: b - a - c),
    "v_add_i32": lambda a, b: a + b & M32,
    "v_sub_i32": lambda a, b: a - b & M32,
    "v_mul_lo_u32": lambda a, b: a * b & M32,
    "v_mul_hi_u32": lambda a, b: a * b >> 32,
    "v_mul_hi_i32": wrap(lambda a, b: a * b >> 32, "i32"),
    "v_mad_u64_u32": mad_wide,
    "v_mad_i64_i32": lambda a, b, c: mad_wide(signed(a, 32), signed(b, 32), signed(c, 64)),
    "v_mul_u32_u24": lambda a, b: u24(a) * u24(b) & M32,
    "v_mul_i32_i24": lambda a, b: i24(a) * i24(b) & M32,
    "v_mul_hi_u32_u24": lambda a, b: u24(a) * u24(b) >> 32 & M32,
    "v_mul_hi_i32_i24": lambda a, b: i24(a) * i24(b) >> 32 & M32,
    "v_mad_u32_u24": lambda a, b, c: u24(a) * u24(b) + c & M32,
    "v_mad_i32_i24": lambda a, b, c: i24(a) * i24(b) + c & M32,
    "v_mad_u32_u16": lambda a, b, c: a * b + c & M32,
    "v_mad_i32_i16": lambda a, b, c: signed(a, 16) * signed(b, 16) + c & M32,
    "v_ashrrev_i32": lambda n, a: signed(a, 32) >> n % 32 & M32,
    "v_ashrrev_i64": lambda n, a: signed(a, 64) >> n % 64 & M64,
    "v_ashrrev_i16": lambda n, a: signed(a, 16) >> n % 16 & M16,
    "v_alignbit_b32": lambda a, b, n: (a << 32 | b) >> n % 32 & M32,
    "v_alignbyte_b32": lambda a, b, n: (a << 32 | b) >> 8 * (n % 4) & M32,
    "v_bfe_u32": lambda a, o, w: bfe(a, o % 32, w % 32, "u32"),
    "v_bfe_i32": lambda a, o, w: bfe(a, o % 32, w % 32, "i32"),
    "v_bfm_b32": lambda w, o: bfm(w, o, 32),
    "v_bfrev_b32": lambda a: from_bits(bits_of(a, 32)[::-1]),
    "v_ffbh_u32": lambda a: first_index(bits_of(a, 32)[::-1]),
    "v_ffbl_b32": lambda a: first_index(bits_of(a, 32)),
    "v_ffbh_i32": lambda a: leading_change(a, 32),
    "v_bcnt_u32_b32": lambda a, b: bin(a).count("1") + b & M32,
    "v_mbcnt_lo_u32_b32": lambda m, b, lane: bin(m & below(lane, False)).count("1") + b & M32,
    "v_mbcnt_hi_u32_b32": lambda m, b, lane: bin(m & below(lane, True)).count("1") + b & M32,
    "v_prng_b32": lambda a: (a << 1 & M32) ^ (197 if a >> 31 else 0),
    "v_subrev_u16": lambda a, b: b - a & M16,
    "v_mul_lo_u16": lambda a, b: a * b & M16,
    "v_sad_u8": lambda a, b, c: sad(a, b, c, 8),
    "v_msad_u8": lambda a, b, c: sad(a, b, c, 8, masked=True),
    "v_sad_hi_u8": lambda a, b, c: (sad(a, b, 0, 8) << 16) + c & M32,
    "v_sad_u16": lambda a, b, c: sad(a, b, c, 16),
    "v_sad_u32": lambda a, b, c: abs(a - b) + c & M32,
    "v_lerp_u8": lambda a, b, c: join(
        [x + y + (z & 1) >> 1 for x, y, z in zip(split(a, 8, 4), split(b, 8, 4), split(c, 8, 4),
                                                 strict=True)], 8),
    "v_perm_b32": perm,
    "v_pack_b32_f16": lambda a, b: b << 16 | a,
    "v_sat_pk_u8_i16": lambda a: join([saturate(signed(x, 16), 0, 255) for x in split(a, 16, 2)],
                                      8),
    "v_ashr_pk_i8_i32": lambda a, b, n: join(
        [saturate(signed(x, 32) >> n % 32, -128, 127) for x in (a, b)], 8),
    "v_ashr_pk_u8_i32": lambda a, b, n: join(
        [saturate(signed(x, 32) >> n % 32, 0, 255) for x in (a, b)], 8),
    "v_pk_mov_b32": lambda a, b, op_sel=0: (
        split(b, 32, 2)[op_sel >> 1 & 1] << 32 | split(a, 32, 2)[op_sel & 1]),
})  # fmt: skip
for _name in ("and", "or", "xor", "xnor"):
    REFERENCE[f"v_{_name}_b32"] = wrap(LOGIC[_name], "u32")
for _t in ("b16", "b32", "b64"):
    _n = WIDTH[_t]
    REFERENCE[f"v_lshlrev_{_t}"] = lambda s, a, n=_n: a << s % n & (1 << n) - 1
    REFERENCE[f"v_lshrrev_{_t}"] = lambda s, a, n=_n: a >> s % n
REFERENCE["v_pk_lshlrev_b16"] = REFERENCE["v_lshlrev_b16"]
REFERENCE["v_pk_lshrrev_b16"] = REFERENCE["v_lshrrev_b16"]
REFERENCE["v_pk_ashrrev_i16"] = REFERENCE["v_ashrrev_i16"]
REFERENCE["v_pk_mul_lo_u16"] = REFERENCE["v_mul_lo_u16"]


def ordered(t: str) -> None:
    key = lambda x: number(x, t)  # noqa: E731
    REFERENCE[f"v_min_{t}"] = lambda a, b: min(a, b, key=key)
    REFERENCE[f"v_max_{t}"] = lambda a, b: max(a, b, key=key)
    REFERENCE[f"v_min3_{t}"] = lambda a, b, c: min(a, b, c, key=key)
    REFERENCE[f"v_max3_{t}"] = lambda a, b, c: max(a, b, c, key=key)
    REFERENCE[f"v_med3_{t}"] = lambda a, b, c: sorted((a, b, c), key=key)[1]


for _t in ("i32", "u32", "i16", "u16"):
    ordered(_t)
for _t in ("i16", "u16"):
    REFERENCE[f"v_add_{_t}"] = REFERENCE[f"v_pk_add_{_t}"] = lambda a, b: a + b & M16
    REFERENCE[f"v_sub_{_t}"] = REFERENCE[f"v_pk_sub_{_t}"] = lambda a, b: a - b & M16
    for _name in ("v_mad", "v_mad_legacy", "v_pk_mad"):
        REFERENCE[f"{_name}_{_t}"] = lambda a, b, c: a * b + c & M16
    REFERENCE[f"v_pk_min_{_t}"] = REFERENCE[f"v_min_{_t}"]
    REFERENCE[f"v_pk_max_{_t}"] = REFERENCE[f"v_max_{_t}"]


def dot(width: int, is_signed: bool) -> Ref:
    def run(a: int, b: int, c: int) -> int:
        parts = (split(x, width, 32 // width) for x in (a, b))
        x, y = ([signed(p, width) if is_signed else p for p in row] for row in parts)
        return sum(p * q for p, q in zip(x, y, strict=True)) + c & M32

    return run


for _n, _w in ((2, 16), (4, 8), (8, 4)):
    REFERENCE[f"v_dot{_n}_i32_i{_w}"] = REFERENCE[f"v_dot{_n}c_i32_i{_w}"] = dot(_w, True)
    REFERENCE[f"v_dot{_n}_u32_u{_w}"] = dot(_w, False)

# --- compares -----------------------------------------------------------------------------------

_FLOAT: dict[str, Ref] = {
    "f": lambda r: False, "lt": lambda r: r == -1, "eq": lambda r: r == 0,
    "le": lambda r: r in (-1, 0), "gt": lambda r: r == 1, "lg": lambda r: r in (-1, 1),
    "ge": lambda r: r in (0, 1), "o": lambda r: r is not None, "u": lambda r: r is None,
    "nge": lambda r: r not in (0, 1), "nlg": lambda r: r not in (-1, 1), "ngt": lambda r: r != 1,
    "nle": lambda r: r not in (-1, 0), "neq": lambda r: r != 0, "nlt": lambda r: r != -1,
    "tru": lambda r: True,
}  # fmt: skip


def classify(bits: int, t: str) -> int:
    x = unpack(bits, BY_NAME[t])
    if x.nan:
        return 0 if x.signaling else 1
    if x.kind == "inf":
        return 2 if x.negative else 9
    if x.zero:
        return 5 if x.negative else 6
    fmt = BY_NAME[t]
    normal = bits >> fmt.mantissa & (1 << fmt.exponent) - 1 != 0
    return {(True, True): 3, (True, False): 4, (False, False): 7, (False, True): 8}[
        x.negative, normal
    ]


def both(name: str, fn: Ref) -> None:
    REFERENCE[f"v_cmp_{name}"] = fn
    REFERENCE[f"v_cmpx_{name}"] = lambda a, b: (fn(a, b),) * 2


for _t in ("f16", "f32", "f64"):
    for _name, _fn in _FLOAT.items():
        both(f"{_name}_{_t}", lambda a, b, f=_fn, t=BY_NAME[_t]: int(
            f(compare(unpack(a, t), unpack(b, t)))))  # fmt: skip
    both(f"class_{_t}", lambda a, m, t=_t: m >> classify(a, t) & 1)
for _t in ("i16", "u16", "i32", "u32", "i64", "u64"):
    for _name in COMPARE:
        if _name != "lg":
            both(f"{_name}_{_t}", compares(_name, _t))
    both(f"f_{_t}", lambda a, b: 0)
    both(f"t_{_t}", lambda a, b: 1)
