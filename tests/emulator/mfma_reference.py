"""Scalar reference of the matrix opcodes: element → lane and item, one element at a time.

Formulas: AMD "CDNA4 ISA" guide, sections 7.1.4 (layouts), 7.1.5 (f8f6f4 tables), 7.1.6
(broadcasts), 7.2 (scales), 7.5 (sparsity). Values are exact Python numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from alu_reference_int import signed
from alu_softfloat import BY_NAME, unpack

from inductor_flydsl.emulator.mfma import MfmaOp

SELECTOR = ("fp8", "bf8", "fp6", "bf6", "fp4")
BITS = {"f64": 64, "f32": 32, "f16": 16, "bf16": 16, "i8": 8,
        "fp8": 8, "bf8": 8, "fp6": 6, "bf6": 6, "fp4": 4}  # fmt: skip
Registers = list[list[int]]  # [register][lane] of one wave


@dataclass
class Call:
    """One wave's operands and modifiers."""

    a: Registers
    b: Registers
    c: Registers
    mods: dict[str, int] = field(default_factory=dict)
    scale_a: list[int] | None = None
    scale_b: list[int] | None = None
    index: list[int] | None = None

    @cached_property
    def a_lanes(self) -> list[int]:
        return lanes_of(self.a)

    @cached_property
    def b_lanes(self) -> list[int]:
        return lanes_of(self.b)


def lanes_of(registers: Registers) -> list[int]:
    """Each lane's registers as one integer, low register in the low bits."""
    return [sum(word << 32 * r for r, word in enumerate(lane))
            for lane in zip(*registers, strict=True)]  # fmt: skip


def item(lane: int, number: int, bits: int) -> int:
    """Item ``number`` of ``bits`` bits in a lane, packed little-endian."""
    return lane >> bits * number & (1 << bits) - 1


@lru_cache(maxsize=100_000)
def value(code: int, kind: str) -> float:
    """Exact: every element has few bits."""
    if kind in ("i8", "i32"):
        return float(signed(code, 8 if kind == "i8" else 32))
    num = unpack(code, BY_NAME[kind])
    if num.nan:
        return float("nan")
    if num.kind == "inf":
        return float("-inf") if num.negative else float("inf")
    return float(num.signed)


def dense_place(size: int, op: MfmaOp) -> Callable[[int, int, int], tuple[int, int]]:
    """(block, row, k) → (lane, item) of A; with n for m, of B."""
    depth = op.k * size * op.blocks // 64

    def place(block: int, row: int, k: int) -> tuple[int, int]:
        return row + size * (block + op.blocks * (k // depth)), k % depth

    return place


def mixed_place(size: int, op: MfmaOp, kind: str) -> Callable[[int, int, int], tuple[int, int]]:
    """f8f6f4: 8-bit operands come as two halves of K in runs of 16, narrower ones in runs of 32."""

    def place(block: int, row: int, k: int) -> tuple[int, int]:
        if BITS[kind] == 8:
            half, rest = divmod(k, op.k // 2)
            return row + size * (rest // 16), 16 * half + rest % 16
        return row + size * (k // 32), k % 32

    return place


def permute_a(lane: int, mods: dict[str, int]) -> int:
    size = 64 >> mods.get("cbsz", 0)
    return lane % size + size * mods.get("abid", 0) if mods.get("cbsz") else lane


def permute_b(lane: int, mods: dict[str, int]) -> int:
    groups = (lane, lane % 32, lane % 32 + 32, (lane + 16) % 64,
              lane % 16, lane % 16 + 16, lane % 16 + 32, lane % 16 + 48)  # fmt: skip
    return groups[mods.get("blgp", 0)]


def output_place(op: MfmaOp, block: int, i: int, j: int) -> tuple[int, int]:
    """(lane, item) of D[block][i][j]."""
    if op.cd == "f64" and op.m == 4:  # AMD's calculator
        return j + 4 * block + 16 * i, 0
    height = 1 if op.cd == "f64" else 4
    block_items = max(1, -(-64 // (op.n * op.m // height)))
    rows = 64 // block_items // op.n
    groups = op.m // (height * rows)
    number = i % height + height * (i // (height * rows) + groups * (block // block_items))
    return j + op.n * (i // height % rows + rows * (block % block_items)), number


def sparse_element(op: MfmaOp, call: Call, row: int, k: int) -> float:
    """A[row][k] of a 4:2 sparse A, zero where the index doesn't name k.

    B's item numbers within a lane are A's uncompressed ones: item t is in group t // 4.
    """
    bits = BITS[op.a]
    lane, number = sparse_place(op.m, op)(0, row, k)
    kept = op.k // 2 * op.m // 64  # items of A a lane
    sets = 32 // (2 * kept)
    chosen = call.mods.get("abid", 0) % sets if call.mods.get("cbsz", 0) & 3 == 0 else 0
    assert call.index is not None
    index = call.index[lane] >> 2 * kept * chosen
    for j in (2 * (number // 4), 2 * (number // 4) + 1):
        if index >> 2 * j & 3 == number % 4:
            return value(item(call.a_lanes[lane], j, bits), op.a)
    return 0.0


def sparse_place(size: int, op: MfmaOp) -> Callable[[int, int, int], tuple[int, int]]:
    """The wide gfx950 forms hold two halves of K, each laid out as the narrow form."""
    lanes = 64 // size
    depth = op.k // lanes
    run = 8 if BITS[op.b] == 16 else 16
    assert depth in (run, 2 * run)

    def place(block: int, row: int, k: int) -> tuple[int, int]:
        half, rest = divmod(k, run * lanes)
        return row + size * (rest // run), run * half + rest % run

    return place


def elements(op: MfmaOp, call: Call) -> tuple[Callable[..., float], Callable[..., float]]:
    """Functions (block, i, k) and (block, k, j) of A's and B's elements."""
    mods = call.mods
    if op.mixed:
        kinds = [SELECTOR[mods.get(n, 0)] for n in ("cbsz", "blgp")]
        places = [mixed_place(s, op, k) for s, k in zip((op.m, op.n), kinds, strict=True)]
        mods = {}
    elif op.sparse:
        at = sparse_place(op.n, op)

        def b_of(block: int, k: int, j: int) -> float:
            lane, number = at(block, j, k)
            return value(item(call.b_lanes[lane], number, BITS[op.b]), op.b)

        return (lambda block, i, k: sparse_element(op, call, i, k)), b_of
    else:
        kinds = [op.a, op.b]
        places = [dense_place(s, op) for s in (op.m, op.n)]
        mods = {} if op.cd == "f64" else mods

    def a(block: int, i: int, k: int) -> float:
        lane, number = places[0](block, i, k)
        code = item(call.a_lanes[permute_a(lane, mods)], number, BITS[kinds[0]])
        return value(code, kinds[0])

    def b(block: int, k: int, j: int) -> float:
        lane, number = places[1](block, j, k)
        code = item(call.b_lanes[permute_b(lane, mods)], number, BITS[kinds[1]])
        return value(code, kinds[1])

    return a, b


def scale(call: Call, op: MfmaOp, row: int, col: int, k: int) -> float:
    """2^(scale_a + scale_b − 254) of the 32-block that k is in, NaN where either code is 255."""
    if not op.scaled:
        return 1.0
    total = 0
    for codes, which, place in ((call.scale_a, "opsel_a", row), (call.scale_b, "opsel_b", col)):
        assert codes is not None
        code = codes[place + op.m * (k // 32)] >> 8 * call.mods.get(which, 0) & 255
        if code == 255:
            return float("nan")
        total += code - 127
    return 2.0**total


def reference(op: MfmaOp, call: Call) -> dict[tuple[int, int], float]:
    """(register item, lane) → D, summed in double precision (exact for the tests' integers)."""
    a_of, b_of = elements(op, call)
    signs = [1.0, 1.0, 1.0]
    if op.cd == "f64":
        signs = [-1.0 if call.mods.get("blgp", 0) >> i & 1 else 1.0 for i in range(3)]
    out: dict[tuple[int, int], float] = {}
    c_lanes = lanes_of(call.c)
    for block in range(op.blocks):
        rows = [[a_of(block, i, k) for k in range(op.k)] for i in range(op.m)]
        cols = [[b_of(block, k, j) for k in range(op.k)] for j in range(op.n)]
        for i, row in enumerate(rows):
            for j, col in enumerate(cols):
                dot = 0.0
                for start in range(0, op.k, 32):
                    part = sum(map(float.__mul__, row[start : start + 32], col[start : start + 32]))
                    dot += part * scale(call, op, i, j, start)
                lane, at = output_place(op, block, i, j)
                old = value(item(c_lanes[lane], at, 64 if op.cd == "f64" else 32), op.cd)
                out[at, lane] = signs[0] * signs[1] * dot + signs[2] * old
    return out
