"""Every opcode against a scalar reference on edge values and random bits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import alu_reference_convert
import alu_reference_float
import alu_reference_int
import alu_reference_valu
import numpy as np
import pytest
from alu_softfloat import BY_NAME, Fmt, unpack

from inductor_flydsl.emulator.alu import DTYPES, OPS, NotSupported, Op

REFERENCE = {
    **alu_reference_int.REFERENCE,
    **alu_reference_valu.REFERENCE,
    **alu_reference_float.REFERENCE,
    **alu_reference_convert.REFERENCE,
}
STOCHASTIC = {name for name in OPS if "_sr_" in name}
WAVES = 3
MODS = {"bitop3": 256, "op_sel": 16, "op_sel_hi": 8, "neg": 8, "abs": 8, "clamp": 2}

SMALL_SHIFTS = [0, 1, 4, 7, 8, 15, 16, 31, 32, 33, 63, 64, 0x80000000, 0xFFFFFFFF]
FIELDS = [w << 16 | o for w in (0, 1, 5, 31, 32, 33, 64, 127) for o in (0, 3, 31, 32, 63)]


@pytest.fixture(autouse=True)
def machine_arithmetic() -> Iterator[None]:
    """Overflow and NaN are ordinary results on the machine."""
    with np.errstate(all="ignore"):
        yield


def float_edges(fmt: Fmt) -> list[int]:
    one = fmt.bias << fmt.mantissa
    top = fmt.inf
    magnitudes = [
        0, 1, 2, (1 << fmt.mantissa) - 1, 1 << fmt.mantissa, one - 1, one, one + 1,
        one + (1 << fmt.mantissa - 1), one + (3 << fmt.mantissa - 1), one - (1 << fmt.mantissa),
        top - 1, top, top + 1, fmt.nan, fmt.nan | 5, one + (5 << fmt.mantissa),
        one + (16 << fmt.mantissa) - 1, one + (31 << fmt.mantissa), (one >> 1),
    ]  # fmt: skip
    magnitudes = [m & (1 << fmt.width - 1) - 1 for m in magnitudes]
    return magnitudes + [m | 1 << fmt.width - 1 for m in magnitudes]


def width_of(kind: str) -> int:
    if kind == "mask":
        return 1
    if kind == "imm16":
        return 16
    return int(kind.lstrip("biuf"))


def edges(kind: str) -> list[int]:
    width = width_of(kind)
    if kind == "mask":
        return [0, 1]
    if kind in BY_NAME:
        return float_edges(BY_NAME[kind])
    full = (1 << width) - 1
    values = [0, 1, full, 1 << width - 1, full >> 1, 0x55555555, 0x80808080, 0x7F7F7F7F]
    values += SMALL_SHIFTS + FIELDS + [0x0C0D0E08, 0x0B0A0908, 0x07030605]
    values += [b * 0x01010101 for b in (0x7E, 0x7F, 0x7B, 0x7C, 0x7D, 0xFF, 0x80)]
    values += [m << 16 | 0x7C00 for m in float_edges(BY_NAME["f16"])[:8]]
    return [v & full for v in values]


def random_value(kind: str, rng: random.Random) -> int:
    """Random bits; floats half of the time near one another, so that sums and ties matter."""
    width = width_of(kind)
    if width > 64:
        # Registers of floats of one of the formats that wide operands hold.
        inner = rng.choice(["f32", "f16", "bf16", "u32"])
        step = width_of(inner)
        return sum(random_value(inner, rng) << i for i in range(0, width, step))
    bits = rng.getrandbits(width)
    if kind not in BY_NAME or rng.random() < 0.4:
        return bits
    fmt = BY_NAME[kind]
    exponent = fmt.bias + rng.randint(-3, 3)
    mantissa = bits & (1 << fmt.mantissa) - 1
    if rng.random() < 0.5:
        mantissa &= -1 << rng.randint(fmt.mantissa // 2, fmt.mantissa)
    return (bits >> fmt.width - 1) << fmt.width - 1 | exponent << fmt.mantissa | mantissa


def cases(kinds: tuple[str, ...], count: int, rng: random.Random) -> list[tuple[int, ...]]:
    """``count`` operand tuples: each operand's edges against random others' edges, then random
    values, some of them equal."""
    pools = [edges(k) if width_of(k) <= 64 else [random_value(k, rng) for _ in range(40)]
             for k in kinds]  # fmt: skip
    rows: list[tuple[int, ...]] = []
    for i in range(count):
        if i < count * 2 // 3:
            row = [pool[i % len(pool)] if i % len(kinds) == j else rng.choice(pool)
                   for j, pool in enumerate(pools)]  # fmt: skip
        else:
            row = [random_value(k, rng) for k in kinds]
        same = [j for j in range(1, len(kinds)) if kinds[j] == kinds[0]]
        if same and rng.random() < 0.15:
            row[rng.choice(same)] = row[0]
        rows.append(tuple(row))
    return rows


def to_array(values: list[int], kind: str, shape: tuple[int, ...]) -> np.ndarray:
    if kind == "mask":
        return np.array(values, np.bool_).reshape(shape)
    if kind == "imm16":
        return np.array(values, np.int32).reshape(shape)
    width = width_of(kind)
    if width > 64:
        words = [[v >> 32 * i & 0xFFFFFFFF for v in values] for i in range(width // 32)]
        return np.array(words, np.uint32).reshape(-1, *shape)
    return np.array(values, f"u{width // 8}").view(DTYPES[kind]).reshape(shape)


def to_ints(array: np.ndarray, kind: str, count: int, shape: tuple[int, ...]) -> list[int]:
    """Raw bits of a result of the engine's type ``kind``; its dtype must be that type's."""
    width = width_of(kind)
    if width > 64:
        assert array.dtype == np.uint32, f"result {array.dtype}, expected uint32"
        flat = np.broadcast_to(array, (width // 32, *shape)).reshape(width // 32, -1)[:, :count]
        return [sum(int(w) << 32 * i for i, w in enumerate(column)) for column in flat.T]
    array = np.broadcast_to(array, shape).reshape(-1)[:count]
    if kind == "mask":
        assert array.dtype == np.bool_, f"result {array.dtype}, expected bool"
        return [int(x) for x in array]
    assert array.dtype.itemsize * 8 == width, f"result {array.dtype}, expected {kind}"
    return [int(x) for x in np.ascontiguousarray(array).view(f"u{width // 8}")]


def implicit_kind(name: str, op: Op) -> str:
    if name in ("exec", "vcc"):
        return "b64" if op.kind == "salu" else "mask"
    return {"scc": "mask", "lane": "u32", "dst": op.dst[0] if op.dst else ""}[name]


def agrees(got: int, want: int, kind: str, name: str) -> bool:
    if got == want:
        return True
    if kind in BY_NAME:
        fmt = BY_NAME[kind]
        x, y = unpack(got, fmt), unpack(want, fmt)
        if x.nan and y.nan:
            return True
        if name in alu_reference_float.APPROXIMATE and not x.nan and not y.nan:
            if x.zero and y.zero and ("_sin_" in name or "_cos_" in name):
                return True
            return x.negative == y.negative and abs(got - want) <= 1
    return packed_nans_agree(got, want, kind, name)


PACKED = {"v_cvt_pk_bf16_f32": "bf16", "v_cvt_pk_f16_f32": "f16", "v_cvt_pkrtz_f16_f32": "f16"}


def packed_format(name: str) -> str | None:
    """Element format of a result that packs several floats in registers."""
    if name in PACKED:
        return PACKED[name]
    if "_mixlo_" in name or "_mixhi_" in name:
        return "f16"
    for kind in ("f32", "f16", "bf16"):
        if name.startswith((f"v_cvt_scalef32_pk_{kind}_", f"v_cvt_scalef32_pk32_{kind}_",
                            f"v_cvt_pk_{kind}_", f"v_cvt_scalef32_{kind}_")):  # fmt: skip
            return kind
    for kind in ("fp8", "bf8"):
        if f"_{kind}_" in name:
            return kind
    return None


def packed_nans_agree(got: int, want: int, kind: str, name: str) -> bool:
    """Element by element: equal bits, or a NaN for a NaN."""
    element = packed_format(name)
    if element is None or kind in BY_NAME:
        return False
    fmt = BY_NAME[element]
    for i in range(0, width_of(kind), fmt.width):
        x, y = (v >> i & (1 << fmt.width) - 1 for v in (got, want))
        if x != y and not (unpack(x, fmt).nan and unpack(y, fmt).nan):
            return False
    return True


def run(op: Op, rows: list[tuple[int, ...]], mods: dict[str, int]) -> list[tuple[int, ...]]:
    """The opcode on all rows at once, as the engine calls it; results as raw bits."""
    shape = (len(rows),) if op.kind == "salu" else (-(-len(rows) // 64), 64)
    kinds = [*op.src, *(implicit_kind(n, op) for n in op.implicit_src)]
    padded = list(itertools.islice(itertools.cycle(rows), int(np.prod(shape))))
    arrays = [to_array([row[i] for row in padded], k, shape) for i, k in enumerate(kinds)]
    if "lane" in op.implicit_src:
        arrays[-1] = np.arange(64, dtype=np.uint32).reshape(1, 64)
    before = [a.copy() for a in arrays]
    result = op.fn(*arrays, **mods)
    for old, new in zip(before, arrays, strict=True):
        assert old.tobytes() == new.tobytes(), "an opcode must not write to its sources"
    results = result if isinstance(result, tuple) else (result,)
    out_kinds = [*op.dst, *(implicit_kind(n, op) for n in op.implicit_dst)]
    assert len(results) == len(out_kinds), f"{len(results)} results, expected {out_kinds}"
    columns = [
        to_ints(np.asarray(r), k, len(rows), shape) for r, k in zip(results, out_kinds, strict=True)
    ]
    return list(zip(*columns, strict=True))


def check(name: str, mods: dict[str, int], rng: random.Random) -> None:
    op = OPS[name]
    kinds = (*op.src, *(implicit_kind(n, op) for n in op.implicit_src))
    wide = any(width_of(k) > 64 for k in (*kinds, *op.dst))
    rows = cases(kinds, 24 if wide else WAVES * 64, rng)
    if "lane" in op.implicit_src:
        rows = [(*row[:-1], i % 64) for i, row in enumerate(rows)]
    check_rows(name, rows, mods)


def check_rows(name: str, rows: list[tuple[int, ...]], mods: dict[str, int]) -> None:
    op, reference = OPS[name], REFERENCE[name]
    out_kinds = [*op.dst, *(implicit_kind(n, op) for n in op.implicit_dst)]
    for row, got in zip(rows, run(op, rows, mods), strict=True):
        want = reference(*row, **mods)
        want = want if isinstance(want, tuple) else (want,)
        ok = all(agrees(g, w, k, name) for g, w, k in zip(got, want, out_kinds, strict=True))
        assert ok, (
            f"{name} {mods} of {[hex(v) for v in row]}: "
            f"got {[hex(v) for v in got]}, expected {[hex(v) for v in want]}"
        )


def test_every_opcode_has_a_reference() -> None:
    assert set(OPS) - set(REFERENCE) - STOCHASTIC == set()
    assert set(REFERENCE) - set(OPS) == set()


@pytest.mark.parametrize("name", sorted(set(OPS) - STOCHASTIC))
def test_opcode(name: str) -> None:
    rng = random.Random(name)
    op = OPS[name]
    check(name, {}, rng)
    for _ in range(6 if op.mods else 0):
        check(name, {m: rng.randrange(MODS[m]) for m in op.mods}, rng)


@pytest.mark.parametrize("name", [n for n, op in OPS.items()
                                  if len(op.src) == 2 and set(op.src) <= {"f16", "f32", "f64"}
                                  and len(set(op.src)) == 1 and not op.implicit_src])  # fmt: skip
def test_every_pair_of_float_edges(name: str) -> None:
    values = edges(OPS[name].src[0])
    check_rows(name, [(a, b) for a in values for b in values], {})


# (1 + 2^-p)(1 + 2^-q) is a tie of the format; the addend breaks it, too small for a wider float.
@pytest.mark.parametrize(
    ("name", "a", "b", "addends"),
    [
        ("v_fma_f32", 0x3F800800, 0x3F800800, [0, 1, 0x80000001, 0x0D800000, 0x8D800000]),
        ("v_fma_f64", 0x3FF0000004000000, 0x3FF0000002000000, [0, 1, 1 << 63 | 1, 0x3370 << 48]),
        # A subnormal addend of 2^−127 and more hides 2^−196 from float64.
        ("v_fma_f32", 0x1A000001, 0x19FFFFFE, [0x400001, 0x400002, 0x400003, 0x80400001]),
        ("v_fma_f16", 0x3C20, 0x3C10, [0, 1, 0x8001]),
    ],
)
def test_fma_breaks_ties_by_a_tiny_addend(name: str, a: int, b: int, addends: list[int]) -> None:
    rows = [(a | sign, b, c) for c in addends for sign in (0, 1 << width_of(OPS[name].src[0]) - 1)]
    check_rows(name, rows, {})


@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
def test_fma_rounds_subnormal_results_once(kind: str) -> None:
    fmt, rng = BY_NAME[kind], random.Random(kind)
    rows = []
    for _ in range(1500):
        power = rng.randint(2, fmt.bias - 2)
        a = power << fmt.mantissa | rng.getrandbits(fmt.mantissa)
        other = max(fmt.bias - power + rng.randint(-fmt.mantissa - 2, 3), 1)
        b = other << fmt.mantissa | rng.getrandbits(fmt.mantissa)
        c = rng.getrandbits(fmt.mantissa + 1) | rng.getrandbits(1) << fmt.width - 1
        if rng.random() < 0.3:  # few bits: ties
            a, b = (x & -1 << fmt.mantissa - 3 for x in (a, b))
        rows.append((a, b, c))
    check_rows(f"v_fma_{kind}", rows, {})


@pytest.mark.parametrize("table", range(256))
def test_bitop3_truth_tables(table: int) -> None:
    rng = random.Random(table)
    check("v_bitop3_b32", {"bitop3": table}, rng)


@pytest.mark.parametrize("name", sorted(STOCHASTIC))
def test_stochastic_rounding_is_refused(name: str) -> None:
    op = OPS[name]
    row = [0] * (len(op.src) + len(op.implicit_src))
    with pytest.raises(NotSupported, match=name):
        op.fn(*row)


@pytest.mark.parametrize("name", ["v_mad_u64_u32", "v_lshl_add_u32", "v_cndmask_b32",
                                  "v_cvt_pk_bf16_f32", "v_fma_f32", "v_max_f32", "v_perm_b32",
                                  "v_add_co_u32", "v_cmp_class_f32", "v_med3_f32",
                                  "v_div_scale_f32", "v_bfe_i32"])  # fmt: skip
def test_scalar_operands_broadcast(name: str) -> None:
    """Scalar operands come as (W, 1); the result is the one of the spread operands."""
    op, rng = OPS[name], random.Random(name)
    rows = cases(op.src, WAVES * 64, rng)
    full = [to_array([row[i] for row in rows], k, (WAVES, 64)) for i, k in enumerate(op.src)]
    for column in range(len(full)):
        narrow = list(full)
        narrow[column] = full[column][:, :1]
        spread = list(full)
        spread[column] = np.broadcast_to(full[column][:, :1], (WAVES, 64))
        got, want = op.fn(*narrow), op.fn(*(np.ascontiguousarray(s) for s in spread))
        pairs = zip(got, want, strict=True) if isinstance(got, tuple) else [(got, want)]
        for x, y in pairs:
            assert np.array_equal(np.broadcast_to(x, y.shape), y, equal_nan=y.dtype.kind == "f")


@pytest.mark.parametrize(
    "select", [0x07060302, 0x05040100, 0x00010203, 0x03020706, 0x06050403, 0x07030501, 0x0C060C04,
               0x03040302, 0x0D0B0A08, 0x0C0C0C0C]
)  # fmt: skip
def test_perm_by_one_selector(select: int) -> None:
    """The selector is mostly one constant for all lanes; some selectors are only byte moves."""
    rng = random.Random(select)
    rows = [(rng.getrandbits(32), rng.getrandbits(32), select) for _ in range(128)]
    op = OPS["v_perm_b32"]
    a, b = (to_array([row[i] for row in rows], "u32", (2, 64)) for i in (0, 1))
    got = op.fn(a, b, np.array([[select]], np.uint32))
    want = [REFERENCE["v_perm_b32"](*row) for row in rows]
    assert np.broadcast_to(got, (2, 64)).reshape(-1).tolist() == want
    assert np.array_equal(got, op.fn(a, b, np.full((2, 1), select, np.uint32)))
