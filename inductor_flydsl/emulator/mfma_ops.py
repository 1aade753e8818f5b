"""The matrix opcodes of gfx950 and their shapes, types, register counts and clocks.

Data only: how operands are laid out and multiplied is in ``mfma``. Shapes and cycles: AMD "CDNA4
ISA" guide, chapter 7, tables of MFMA and SMFMAC opcodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from .formats import SELECTOR

_BITS = {"f64": 64, "f32": 32, "i32": 32, "f16": 16, "bf16": 16, "i8": 8, "fp8": 8, "bf8": 8}
LANES = 64


@dataclass(frozen=True)
class MfmaOp:
    """One matrix opcode: D[b] = A[b] (m × k) · B[b] (k × n) + C[b] for each of ``blocks`` b.

    ``a`` and ``b`` are element types; "f8f6f4" means that CBSZ and BLGP choose one of fp8, bf8,
    fp6, bf6, fp4. ``passes`` counts 4-clock passes; for f8f6f4 see ``passes_for``.
    """

    name: str
    m: int
    n: int
    k: int
    blocks: int
    a: str
    b: str
    cd: str
    passes: int
    sparse: bool = False
    scaled: bool = False

    @property
    def mixed(self) -> bool:
        """Whether CBSZ and BLGP choose the element formats."""
        return self.a == "f8f6f4"

    @property
    def a_regs(self) -> int:
        """Registers of A; 8, the most, for f8f6f4."""
        k = self.k // 2 if self.sparse else self.k
        return 8 if self.mixed else self.m * self.blocks * k * _BITS[self.a] // (32 * LANES)

    @property
    def b_regs(self) -> int:
        """Registers of B; 8, the most, for f8f6f4."""
        return 8 if self.mixed else self.n * self.blocks * self.k * _BITS[self.b] // (32 * LANES)

    @property
    def cd_regs(self) -> int:
        """Registers of C and of D."""
        return self.m * self.n * self.blocks * _BITS[self.cd] // (32 * LANES)

    @property
    def cycles(self) -> int:
        """Clocks the matrix core is busy; f8f6f4 with both operands narrower than 8 bits."""
        return 4 * self.passes

    def passes_for(self, cbsz: int = 0, blgp: int = 0) -> int:
        """4-clock passes; an f8f6f4 opcode takes twice as long if either operand is 8 bits."""
        if self.mixed and 8 in (SELECTOR[cbsz].bits, SELECTOR[blgp].bits):
            return 2 * self.passes
        return self.passes


def _dense(shape: str, types: str, cd: str, passes: int) -> MfmaOp:
    """``shape`` is MxNxK with an optional _BLOCKSb; ``types`` is A's type, or A's and B's."""
    size, _, blocks = shape.partition("_")
    m, n, k = (int(x) for x in size.split("x"))
    a, _, b = types.partition("_")
    name = f"v_mfma_{cd}_{shape}_{types}"
    return MfmaOp(name, m, n, k, int(blocks[:-1]) if blocks else 1, a, b or a, cd, passes)


def _sparse(shape: str, types: str, cd: str, passes: int) -> MfmaOp:
    m, n, k = (int(x) for x in shape.split("x"))
    a, _, b = types.partition("_")
    return MfmaOp(f"v_smfmac_{cd}_{shape}_{types}", m, n, k, 1, a, b or a, cd, passes, sparse=True)


_DENSE = [
    ("32x32x1_2b", "f32", "f32", 16), ("16x16x1_4b", "f32", "f32", 8),
    ("4x4x1_16b", "f32", "f32", 2), ("32x32x2", "f32", "f32", 16), ("16x16x4", "f32", "f32", 8),
    ("32x32x4_2b", "i8", "i32", 16), ("16x16x4_4b", "i8", "i32", 8), ("4x4x4_16b", "i8", "i32", 2),
    ("32x32x16", "i8", "i32", 8), ("16x16x32", "i8", "i32", 4),
    ("32x32x32", "i8", "i32", 8), ("16x16x64", "i8", "i32", 4),
    # Half of gfx942's rate: 128 f64 FLOP per clock and CU.
    ("16x16x4", "f64", "f64", 16), ("4x4x4_4b", "f64", "f64", 4),
]  # fmt: skip
_DENSE += [
    (shape, t, "f32", passes)
    for t in ("f16", "bf16")
    for shape, passes in (
        ("32x32x4_2b", 16), ("16x16x4_4b", 8), ("4x4x4_16b", 2), ("32x32x8", 8), ("16x16x16", 4),
        ("32x32x16", 8), ("16x16x32", 4),
    )
]  # fmt: skip
_EIGHT_BIT = ("bf8_bf8", "bf8_fp8", "fp8_bf8", "fp8_fp8")
_DENSE += [(s, t, "f32", p) for t in _EIGHT_BIT for s, p in (("16x16x32", 4), ("32x32x16", 8))]
_SPARSE = [
    (shape, t, "f32", passes)
    for t in ("f16", "bf16")
    for shape, passes in (("16x16x32", 4), ("32x32x16", 8), ("16x16x64", 4), ("32x32x32", 8))
]
_WIDE_SPARSE = (("16x16x64", 4), ("32x32x32", 8), ("16x16x128", 4), ("32x32x64", 8))
_SPARSE += [(s, t, "f32", p) for t in _EIGHT_BIT for s, p in _WIDE_SPARSE]
_SPARSE += [(s, "i8", "i32", p) for s, p in _WIDE_SPARSE]

_F8F6F4 = [
    MfmaOp(f"v_mfma_{scale}f32_{m}x{m}x{k}_f8f6f4", m, m, k, 1, "f8f6f4", "f8f6f4", "f32", passes,
           scaled=bool(scale))
    for m, k, passes in ((16, 128, 4), (32, 64, 8))
    for scale in ("", "scale_")
]  # fmt: skip

_OPS = [_dense(*row) for row in _DENSE] + [_sparse(*row) for row in _SPARSE] + _F8F6F4

MFMA: dict[str, MfmaOp] = {op.name: op for op in _OPS}
"""Matrix opcodes by mnemonic."""


def _older_name(op: MfmaOp) -> str:
    """The spelling before gfx940, which assemblers still take: v_mfma_f32_32x32x8f16."""
    head = f"v_mfma_{op.cd}_{op.m}x{op.n}x{op.k}"
    return head + (op.a if op.a != "bf16" else "bf16_1k")


MFMA.update({
    _older_name(op): op
    for op in _OPS
    if op.a == op.b in ("f32", "f16", "bf16", "i8", "f64") and not op.sparse
    and (op.m, op.k, op.a) not in {(16, 32, "f16"), (16, 32, "bf16"), (32, 16, "f16"),
                                   (32, 16, "bf16"), (16, 64, "i8"), (32, 32, "i8")}
})  # fmt: skip
