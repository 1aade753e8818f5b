"""What a matrix instruction takes of an operand, and the instruction: 16-bit types, or f8f6f4.

Owns the difference between the two kinds, so that a pipeline is written once. Knows nothing of
loads, stages or waits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from . import ops
from .loads import Operand, masked, tail_masks
from .scales import BlockScales

# Values of CBSZ and BLGP (CDNA4 ISA guide, 7.1.5).
FORMATS = {"float8_e4m3fn": 0, "float8_e5m2": 1, "float4_e2m1fn_x2": 4}
SLICE_BYTES = 64


class Piece(NamedTuple):
    """What one row fragment brings to one instruction.

    Attributes:
        value: its elements.
        scales: Int32 of which the instruction takes one byte; None without block scales.
        format: a value of FORMATS; None for 16-bit types.
    """

    value: Any
    scales: Any
    format: int | None


class Reader:
    """One operand as the instructions of a wave take it.

    Args:
        operand: where it is in LDS.
        dtype: its DType.
        wave: the wave's index along the operand's axis.
        scales: its block scales and which operand of them it is, 0 for A and 1 for B; or None.
        first_row: of the operand's tile in the workgroup's.
    """

    def __init__(
        self,
        operand: Operand,
        dtype: Any,
        wave: Any,
        scales: tuple[BlockScales, int] | None = None,
        first_row: int = 0,
    ) -> None:
        self.operand = operand
        self.format = FORMATS.get(dtype.value)
        self.bases = operand.fragment_bases(wave)
        # Slices of 64 bytes along K that one instruction takes.
        self.slices = 2 if dtype.bits == 8 else 1
        self.instructions = operand.g.slices // self.slices
        self.scales = None if scales is None else scales[0]
        if scales is not None:
            row = first_row + wave * (operand.g.fragments * 16)
            self.scale_base = scales[0].bases(scales[1], row)

    @property
    def scale_reads(self) -> int:
        """Reads of `step_scales`."""
        return 0 if self.scales is None else self.operand.g.fragments

    def step_scales(self, k_step: Any) -> list[Any]:
        """The scales of a K step, a row fragment each; none without."""
        if self.scales is None:
            return []
        return [self.scales.read(self.scale_base, k_step, i) for i in range(self.scale_reads)]

    def read(self, stage: Any, instruction: int) -> list[Any]:
        """Slices of all row fragments for an instruction of a K step, row fragment major.

        Args:
            stage: index in the ring.
            instruction: of the step.
        """
        first = instruction * self.slices
        return [
            self.operand.fragment(self.bases, stage, first + s, index)
            for index in range(self.operand.g.fragments)
            for s in range(self.slices)
        ]

    def read_fragment(self, stage: Any, index: int, k_step: Any) -> tuple[list[Any], list[Any]]:
        """Slices and scales of a row fragment for the first instruction of a K step.

        Args:
            stage: of the step in the ring.
            index: of the fragment.
            k_step: index of the step.
        """
        slices = [self.operand.fragment(self.bases, stage, s, index) for s in range(self.slices)]
        if self.scales is None:
            return slices, []
        return slices, [self.scales.read(self.scale_base, k_step, index)]

    @property
    def reads(self) -> int:
        """Slices of `read`."""
        return self.operand.g.fragments * self.slices

    def pieces(
        self, read: list[Any], instruction: int, scales: list[Any], remaining: Any = None
    ) -> list[Piece]:
        """What all row fragments bring to an instruction of a K step.

        Args:
            read: the slices, of `read`.
            instruction: of the step.
            scales: of `step_scales`.
            remaining: K elements of the step, where it is partial; None where it is full.
        """
        if remaining is not None:
            first = instruction * self.slices
            if self.scales is not None:
                scales = [s & self.scales.tail_mask(remaining) for s in scales]
            masks = [self._masks(first + s, remaining) for s in range(self.slices)]
            read = [masked(value, masks[i % self.slices]) for i, value in enumerate(read)]
        if self.slices == 2:
            read = [
                low.shuffle(high, list(range(8)))
                for low, high in zip(read[::2], read[1::2], strict=True)
            ]
        held = scales or [None] * len(read)
        return [Piece(v, s, self.format) for v, s in zip(read, held, strict=True)]

    def _masks(self, kk: int, remaining: Any) -> list[Any]:
        if self.format is None:
            return tail_masks(remaining - kk * 32, self.operand.lane)
        return self.operand.chunk_masks(remaining, kk)


def product(left: Piece, right: Piece, acc: Any, instruction: int, *, agprs: bool = False) -> Any:
    """acc + left·right of one instruction of a K step.

    Args:
        left, right: row fragments.
        acc: 4 fp32 a lane.
        instruction: of the step.
        agprs: the accumulators are kept in AGPRs; what follows the last must `ops.settle`.
    """
    if left.format is None or right.format is None:
        return ops.mfma(left.value, right.value, acc)
    values, formats = (left.value, right.value), (left.format, right.format)
    scales = None if left.scales is None else (left.scales, right.scales)
    if agprs and scales is not None:
        return ops.mfma_f8f6f4_agprs(values, acc, formats, scales, instruction)
    return ops.mfma_f8f6f4(values, acc, formats, scales, instruction)
