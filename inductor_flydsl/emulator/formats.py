"""Small floating-point formats of gfx950: exact decode and round-to-nearest-even encode.

Formats: OCP E4M3FN ("fp8"), E5M2 ("bf8"), E2M3 ("fp6"), E3M2 ("bf6"), E2M1 ("fp4") and the scale
format E8M0; bf16 and f16 live in ``floats`` and numpy. Overflow follows AMD "CDNA4 ISA" guide
section 7.3 with MODE.FP16_OVFL = 0: fp8 gives NaN, bf8 gives infinity, fp6/bf6/fp4 give their
largest value. Knows no opcode and no register layout.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray


@dataclass(frozen=True)
class Format:
    """A format of at most 8 bits: sign, ``exponent`` bits, ``mantissa`` bits.

    ``overflow`` and ``nan`` are the unsigned codes that a too large value and a NaN encode to;
    ``largest`` is the code of the largest finite value.
    """

    name: str
    exponent: int
    mantissa: int
    bias: int
    largest: int
    overflow: int
    nan: int
    values: Array = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        magnitudes = np.array([self._magnitude(code) for code in range(1 << self.bits - 1)])
        values = np.concatenate([magnitudes, -magnitudes]).astype(np.float32)
        object.__setattr__(self, "values", values)

    @property
    def bits(self) -> int:
        """Width of a code, sign included."""
        return 1 + self.exponent + self.mantissa

    def _magnitude(self, code: int) -> float:
        if code > self.largest:
            return np.inf if self.name == "bf8" and code == self.overflow else np.nan
        exponent, mantissa = code >> self.mantissa, code & ((1 << self.mantissa) - 1)
        implied = mantissa | (exponent > 0) << self.mantissa
        return float(np.ldexp(implied, max(exponent, 1) - self.bias - self.mantissa))

    def decode(self, codes: Array) -> Array:
        """Codes (any unsigned dtype, already masked to ``bits``) → float32, exact."""
        return self.values.take(codes)

    def encode(self, values: Array) -> Array:
        """float64 (or narrower) → uint8 codes, rounded to nearest even.

        Pass values that are exact: rounding happens once, here. A NaN keeps its sign.
        """
        wide = np.asarray(values, np.float64)
        size = np.abs(wide)
        # Binades above the lowest normal one; subnormals share that one's grid.
        binade = np.maximum((size.view(np.int64) >> 52) - (1024 - self.bias), 0)
        scale = (self.bias + self.mantissa + 1022 - binade) << 52
        with np.errstate(invalid="ignore"):  # infinity · 0 in a format of one mantissa bit
            steps = np.rint(size * scale.view(np.float64))
        # Steps run from 2^mantissa to 2^(mantissa+1) in a binade, so codes are consecutive.
        codes = np.fmin(steps + (binade << self.mantissa), self.largest + 1).astype(np.uint8)
        codes[codes > self.largest] = self.overflow
        codes[np.isnan(wide)] = self.nan
        return codes | np.signbit(wide).astype(np.uint8) << np.uint8(self.bits - 1)


FP8 = Format("fp8", 4, 3, bias=7, largest=0x7E, overflow=0x7F, nan=0x7F)
BF8 = Format("bf8", 5, 2, bias=15, largest=0x7B, overflow=0x7C, nan=0x7E)
# NaN → largest magnitude: HIP amd_hip_ocp_host.hpp, nan<E2M1>, nan<E2M3>, nan<E3M2>.
FP6 = Format("fp6", 2, 3, bias=1, largest=0x1F, overflow=0x1F, nan=0x1F)
BF6 = Format("bf6", 3, 2, bias=3, largest=0x1F, overflow=0x1F, nan=0x1F)
FP4 = Format("fp4", 2, 1, bias=1, largest=0x7, overflow=0x7, nan=0x7)
FORMATS = {f.name: f for f in (FP8, BF8, FP6, BF6, FP4)}

SELECTOR = (FP8, BF8, FP6, BF6, FP4)
"""Formats by their CBSZ/BLGP code in V_MFMA_*_F8F6F4 (CDNA4 ISA, section 7.1.5)."""

E8M0_NAN = 255


def e8m0_scale(codes: Array) -> Array:
    """E8M0 codes → float64 2^(code − 127); 255 is NaN. Code 0 is 2^−127, not zero."""
    return _E8M0.take(codes)


_E8M0 = np.append(np.ldexp(1.0, np.arange(255) - 127), np.nan)


def exponent_field(scale: Array) -> Array:
    """Biased exponent of a float32 as the E8M0 code that V_CVT_SCALEF32_* use, uint8."""
    return (scale.view(np.uint32) >> np.uint32(23)).astype(np.uint8)


def unpack_codes(words: Array, bits: int) -> Array:
    """Little-endian ``bits``-wide codes of uint32 [R, …] → uint8 [R·32/bits, …].

    ``bits`` is 4, 6 or 8; a 6-bit code may cross a register boundary, and R is then 3 or 6.
    """
    if bits == 6:
        return _unpack_six(words)
    per_word = 32 // bits
    mask = np.uint32((1 << bits) - 1)
    shifts = np.arange(0, 32, bits, dtype=np.uint32).reshape(1, per_word, *[1] * (words.ndim - 1))
    codes = words[:, None] >> shifts & mask
    return codes.astype(np.uint8).reshape(-1, *words.shape[1:])


def _unpack_six(words: Array) -> Array:
    count = words.shape[0] * 32 // 6
    codes = np.empty((count, *words.shape[1:]), np.uint8)
    for i in range(count):
        word, shift = divmod(6 * i, 32)
        bits = words[word] >> np.uint32(shift)
        if shift > 26:
            bits = bits | words[word + 1] << np.uint32(32 - shift)
        codes[i] = bits & np.uint32(0x3F)
    return codes


def pack_codes(codes: Array, bits: int) -> Array:
    """uint8 [N, …] → uint32 [N·bits/32, …], the inverse of ``unpack_codes``."""
    words = np.zeros((codes.shape[0] * bits // 32, *codes.shape[1:]), np.uint32)
    for i, code in enumerate(codes):
        word, shift = divmod(bits * i, 32)
        wide = code.astype(np.uint32)
        words[word] |= wide << np.uint32(shift)
        if shift + bits > 32:
            words[word + 1] |= wide >> np.uint32(32 - shift)
    return words
