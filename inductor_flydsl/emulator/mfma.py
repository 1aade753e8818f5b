"""Matrix multiply-accumulate of gfx950: register layouts, formats, block scales, sparsity.

Owns how the lanes' registers form A, B, C and D; shapes are in ``mfma_ops``, element formats in
``formats``. Pure functions of arrays. Layouts: AMD "CDNA4 ISA" guide sections 7.1.4, 7.1.5 and 7.2,
agreeing with AMD's matrix instruction calculator.

Numerics: products of f16, bf16 and narrower elements are exact in f32; they are summed in f32
in BLAS order and C is added last, each step rounded to nearest even. The hardware's order and
intermediate width aren't published, so results may differ from silicon in the last bits.
Subnormals of every type are kept (CDNA4 ISA, section 7.4). EXEC is ignored, as on hardware.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial

import numpy as np

from .formats import FORMATS, SELECTOR, Format, e8m0_scale, unpack_codes
from .mfma_ops import LANES, MFMA, MfmaOp
from .op import NotSupported

Array = np.ndarray
U32, I32, F32, F64 = np.uint32, np.int32, np.float32, np.float64

__all__ = ["MFMA", "MfmaOp", "mfma"]


Keep = Callable[[str, Hashable, Callable[[], Array]], Array]
"""(operand, how it is unpacked, build) → the unpacked operand."""


def _no_cache(which: str, kind: Hashable, build: Callable[[], Array]) -> Array:
    return build()


def mfma(
    op: MfmaOp,
    a: Array,
    b: Array,
    c: Array | None,
    *,
    cbsz: int = 0,
    abid: int = 0,
    blgp: int = 0,
    scale_a: Array | None = None,
    scale_b: Array | None = None,
    opsel_a: int = 0,
    opsel_b: int = 0,
    index: Array | None = None,
    keep: Keep = _no_cache,
) -> Array:
    """D = A·B + C for W waves at once, uint32 [op.cd_regs, W, 64].

    a, b: uint32 [registers, W, 64]; f8f6f4 formats narrower than 8 bits read only the registers
    they need. c: uint32 [op.cd_regs, W, 64] or a broadcast of it; None is zero. scale_a, scale_b:
    uint32 [W, 64] or a broadcast, one E8M0 code in byte opsel_a (opsel_b) of each lane; an inline
    constant must come as its float's exponent field. index: uint32 [W, 64], sparse opcodes only.

    Raises NotSupported for a broadcast modifier that the opcode doesn't have on CDNA3 or later,
    ValueError if ``index`` is missing for a sparse opcode or a scale for a scaled one.
    """
    if op.mixed:
        product = _mixed(op, (a, b), (cbsz, blgp), (scale_a, scale_b), (opsel_a, opsel_b), keep)
    elif op.sparse:
        product = _sparse(op, a, b, index, abid if cbsz & 3 == 0 else 0)
    else:
        _check_modifiers(op, cbsz, blgp)
        a_lanes = _broadcast_lanes(cbsz, abid) if cbsz else None
        b_lanes = _LANE_GROUPS[blgp] if blgp and op.cd != "f64" else None
        left = _fragment(a, op.a, (op.m, op.blocks), a_lanes, partial(keep, "a"))
        right = _fragment(b, op.b, (op.n, op.blocks), b_lanes, partial(keep, "b"))
        if op.blocks == 1:  # three axes are faster than four
            product = np.matmul(left[:, 0].transpose(0, 2, 1), right[:, 0])[:, None]
        else:
            product = np.matmul(left.swapaxes(2, 3), right)
        if op.cd == "f64" and blgp:
            return _accumulate_negated(op, product, c, blgp)
    return _accumulate(op, product, c)


# --- modifiers ---------------------------------------------------------------------------------

# Lane that supplies B for each BLGP (CDNA4 ISA, table 29).
_L = np.arange(LANES)
_LANE_GROUPS = (
    _L, _L % 32, _L % 32 + 32, (_L + 16) % 64, _L % 16, _L % 16 + 16, _L % 16 + 32, _L % 16 + 48,
)  # fmt: skip


def _broadcast_lanes(cbsz: int, abid: int) -> Array:
    size = LANES >> cbsz
    return _L % size + size * abid


def _check_modifiers(op: MfmaOp, cbsz: int, blgp: int) -> None:
    if op.cd == "f64":
        return
    if cbsz and (op.blocks == 1 or 1 << cbsz > op.blocks):
        raise NotSupported(f"{op.name} with cbsz:{cbsz}; it has {op.blocks} block(s); use cbsz:0")
    if blgp and op.blocks == 1 and op.b != "f32":
        raise NotSupported(f"{op.name} with blgp:{blgp}: no lane groups there; use blgp:0")


# --- operands → matrices -----------------------------------------------------------------------


def _planes(words: Array, kind: str) -> Array:
    """Elements as float [S, R, W, 64]: element s of register r. Registers hold S elements each."""
    if kind == "f64":
        pairs = np.stack([words[0::2], words[1::2]], axis=-1)
        return pairs.view(F64)[..., 0][None]
    if kind == "f32":
        return words.view(F32)[None]
    if kind == "bf16":
        planes = np.empty((2, *words.shape), U32)
        np.left_shift(words, U32(16), out=planes[0])
        np.bitwise_and(words, U32(0xFFFF0000), out=planes[1])
        return planes.view(F32)
    if kind == "f16":
        return _f16_planes(words)
    if kind == "i8":
        shifts = np.arange(24, -8, -8, dtype=U32).reshape(4, 1, 1, 1)
        return ((words << shifts).view(I32) >> I32(24)).astype(F32)
    shifts = np.arange(0, 32, 8, dtype=U32).reshape(4, 1, 1, 1)
    return FORMATS[kind].decode(words >> shifts & U32(0xFF))


_F16_MAGIC = F32(2.0**112)


def _f16_planes(words: Array) -> Array:
    """f16 → f32 by moving the bits and scaling; twice as fast as numpy's conversion."""
    bits = np.empty((2, *words.shape), I32)
    np.left_shift(words, U32(16), out=bits[0].view(U32))
    bits[1] = words.view(I32)
    bits >>= I32(3)
    bits &= I32(-0x70002000)  # sign, exponent and mantissa: 0x8FFFE000
    planes = bits.view(F32)
    planes *= _F16_MAGIC
    if planes.max() >= 65536 or planes.min() <= -65536:
        # Exponent 31 came out as 2^16 and more: infinity and NaN need their f32 exponent.
        special = np.abs(planes) >= 65536
        bits[special] |= I32(0x7F800000)
    return planes


def _arrange(planes: Array, m: int, blocks: int) -> Array:
    """[S, R, W, 64] → [W, blocks, K, m]. Rows along K are in (s, r, lane group) order, which is
    the same permutation of K for A and B and leaves the product as it is."""
    s, r, waves, _ = planes.shape
    groups = LANES // (m * blocks)
    out = np.empty((waves, blocks, s, r, groups, m), planes.dtype)
    split = planes.reshape(s, r, waves, groups, blocks, m)
    for i in range(s):
        out[:, :, i] = split[i].transpose(1, 3, 0, 2, 4)
    return out.reshape(waves, blocks, s * r * groups, m)


def _fragment(words: Array, kind: str, shape: tuple[int, int], lanes: Array | None,
              keep: Callable[[Hashable, Callable[[], Array]], Array]) -> Array:  # fmt: skip
    """Registers of A (or of B) → float [W, blocks, K, m]; shape: m (or n) and blocks."""
    m, blocks = shape

    def build() -> Array:
        if kind == "bf16" and blocks == 1 and lanes is None:
            return _bf16_rows(words, m)
        planes = _planes(words, kind)
        return _arrange(planes if lanes is None else planes[..., lanes], m, blocks)

    return build() if lanes is not None else keep((kind, m, blocks), build)


def _bf16_rows(words: Array, m: int) -> Array:
    """What `_arrange` makes of bf16 planes, in one pass."""
    regs, waves, _ = words.shape
    rows = words.transpose(1, 0, 2)
    both = np.empty((waves, 2, regs, LANES), U32)
    np.left_shift(rows, U32(16), out=both[:, 0])
    np.bitwise_and(rows, U32(0xFFFF0000), out=both[:, 1])
    return both.view(F32).reshape(waves, 1, 2 * regs * (LANES // m), m)


# --- sparse A ----------------------------------------------------------------------------------


def _sparse(op: MfmaOp, a: Array, b: Array, index: Array | None, chosen: int) -> Array:
    """A holds two of every four elements along K; ``index`` holds their positions, two bits an
    element, lowest element first, in set ``chosen`` (CDNA4 ISA, section 7.5)."""
    if index is None:
        raise ValueError(f"{op.name} needs index: the register of its third source")
    planes = _planes(a, op.a)
    s, r, waves, _ = planes.shape
    items = planes.swapaxes(0, 1).reshape(s * r, waves, LANES)
    sets = 32 // (2 * len(items))
    index = np.broadcast_to(index, (waves, LANES)) >> U32(2 * len(items) * (chosen % sets))
    dense = np.zeros((2 * len(items), waves, LANES), items.dtype)
    for i, item in enumerate(items):
        where = (index >> U32(2 * i)) & U32(3)
        for position in range(4):
            np.copyto(dense[i // 2 * 4 + position], item, where=where == position)
    full = dense.reshape(2 * r, s, waves, LANES).swapaxes(0, 1)
    left = _arrange(full, op.m, 1)
    right = _fragment(b, op.b, (op.n, 1), None, partial(_no_cache, "b"))
    return np.matmul(left.swapaxes(2, 3), right)


# --- f8f6f4 ------------------------------------------------------------------------------------


def _mixed(
    op: MfmaOp,
    words: tuple[Array, Array],
    selectors: tuple[int, int],
    scales: tuple[Array | None, Array | None],
    bytes_: tuple[int, int],
    keep: Keep,
) -> Array:
    for which, selector in zip(("cbsz", "blgp"), selectors, strict=True):
        if selector >= len(SELECTOR):
            raise NotSupported(f"{op.name} with {which}:{selector}; formats are 0 to 4")
    if op.scaled and any(s is None for s in scales):
        raise ValueError(f"{op.name} needs scale_a and scale_b, one E8M0 code a lane")
    if not op.scaled:
        scales = (None, None)
    present = [_codes(s, n) for s, n in zip(scales, bytes_, strict=True) if s is not None]
    wide = not all(map(_moderate, present))
    left, right = (
        _mixed_operand(w, SELECTOR[f], scale, (n, op.m, wide), partial(keep, which))
        for which, w, f, scale, n in zip("ab", words, selectors, scales, bytes_, strict=True)
    )
    return np.matmul(left.swapaxes(1, 2), right)[:, None]


def _codes(scale: Array, byte: int) -> Array:
    return (scale >> U32(8 * byte)).astype(np.uint8)


def _moderate(codes: Array) -> bool:
    """Whether scaled elements and their products stay normal in f32: within 2^±40. A NaN scale
    (255) needs no exact products."""
    finite = (codes > 86) & (codes < 168)
    return bool((finite | (codes == 255)).all())


def _mixed_operand(
    words: Array, fmt: Format, scale: Array | None, form: tuple[int, int, bool],
    keep: Callable[[Hashable, Callable[[], Array]], Array],
) -> Array:  # fmt: skip
    """Registers → [W, K, m] in true K order, each 32-block multiplied by its scale.

    The scale of a block is a power of two, so scaling elements and scaling the block's dot
    product are the same unless f32 overflows; ``form`` is the scale's byte, m, and whether to use
    float64 for that.
    """
    used = words[: fmt.bits]
    byte, m, wide = form

    def build() -> Array:
        return _mixed_values(used, fmt, None if scale is None else _codes(scale, byte), m, wide)

    return keep((fmt.name, form, scale is None), build)


def _mixed_values(words: Array, fmt: Format, scale: Array | None, m: int, wide: bool) -> Array:
    waves, groups = words.shape[1], LANES // m
    values = fmt.decode(unpack_codes(words, fmt.bits)).reshape(32, waves, groups, m)
    out = np.empty((waves, groups * 32, m), F64 if wide else F32)
    if fmt.bits == 8:
        # Registers 0–3 hold K = 16g…16g+15, registers 4–7 the same plus half of K.
        halves = out.reshape(waves, 2, groups, 16, m)
        halves[:, 0] = values[:16].transpose(1, 2, 0, 3)
        halves[:, 1] = values[16:].transpose(1, 2, 0, 3)
    else:
        out.reshape(waves, groups, 32, m)[...] = values.transpose(1, 2, 0, 3)
    if scale is not None:
        factor = np.broadcast_to(e8m0_scale(scale), (waves, LANES)).astype(out.dtype)
        blocks = out.reshape(waves, groups, 32, m)
        blocks *= factor.reshape(waves, groups, 1, m)
    return out


# --- results → registers -----------------------------------------------------------------------


def _to_registers(op: MfmaOp, d: Array) -> Array:
    """[W, blocks, m, n] → a view [registers…, W, lanes…] in register order.

    Four consecutive rows share a lane, one per register (H = 4); f64 has H = 1.
    """
    waves = len(d)
    if op.m == 32:
        rows = d.reshape(waves, op.blocks, 4, 2, 4, 32)
        return rows.transpose(1, 2, 4, 0, 3, 5)
    if op.cd == "f64" and op.m == 16:
        return d.reshape(waves, 4, 4, 16).transpose(1, 0, 2, 3)
    if op.m == 16:
        return d.reshape(waves, op.blocks, 4, 4, 16).transpose(1, 3, 0, 2, 4)
    if op.cd == "f64":
        # Lane j + 4b + 16i by AMD's calculator; the ISA guide's formula reads j + 4i + 16b.
        return d.transpose(0, 2, 1, 3)[None]
    return d.transpose(2, 0, 1, 3)


def _accumulate(op: MfmaOp, product: Array, c: Array | None) -> Array:
    view = _to_registers(op, product)
    shape = (op.cd_regs, len(product), LANES)
    if op.cd == "f64":
        return _accumulate_f64(op, view, c)
    dtype = I32 if op.cd == "i32" else F32
    out = np.empty(view.shape, dtype)
    if c is None:
        out[...] = view
    else:
        if op.cd == "i32":
            view = view.astype(I32)
        old = c if c.shape == shape else np.broadcast_to(c, shape)
        np.add(old.view(dtype).reshape(view.shape), view, out=out, casting="same_kind")
    return out.view(U32).reshape(shape)


def _accumulate_f64(op: MfmaOp, view: Array, c: Array | None) -> Array:
    waves = view.size * 2 // (op.cd_regs * LANES)
    total = np.ascontiguousarray(view).reshape(op.cd_regs // 2, waves, LANES)
    if c is not None:
        total = total + _planes(np.broadcast_to(c, (op.cd_regs, waves, LANES)), "f64")[0]
    halves = total.view(U32).reshape(op.cd_regs // 2, waves, LANES, 2)
    return halves.transpose(0, 3, 1, 2).reshape(op.cd_regs, waves, LANES)


def _accumulate_negated(op: MfmaOp, product: Array, c: Array | None, blgp: int) -> Array:
    """f64: BLGP bits 0, 1, 2 negate A, B, C (CDNA4 ISA, section 7.1.6.4)."""
    if (blgp & 1) != (blgp >> 1 & 1):
        product = -product
    if c is not None and blgp & 4:
        flip = np.zeros((op.cd_regs, 1, 1), U32)
        flip[1::2] = 0x80000000
        c = c ^ flip
    return _accumulate(op, product, c)
