"""Block scales as OCP Microscaling (MX) defines them: where they lie in memory.

Owns the description of the scales of A and B. What the numbers mean is `microscaling`'s; scales
of whole tensors and rows are fp32 factors on the result and part of a `Fusion`.
"""

from __future__ import annotations

import enum
from dataclasses import asdict, dataclass
from typing import Any

from .dtypes import DType
from .errors import ProblemError
from .fusion import Fusion, Node, Tensor

# Elements along K that share a scale (OCP Microscaling Formats 1.0, table 1).
BLOCK = 32
# The swizzled layout is made of tiles of 128 rows by 4 blocks, 512 bytes each.
TILE_ROWS, TILE_BLOCKS, TILE_BYTES = 128, 4, 512


class ScaleLayout(enum.Enum):
    """How the E8M0 bytes of one operand lie.

    PLAIN: [rows, K/32] with strides. SWIZZLED: torch's SWIZZLE_32_4_4, tiles of 128 rows by 4
    blocks, row by row of tiles; within one, byte ``16·(row % 32) + 4·(row // 32) + block``. Rows
    and blocks are padded to whole tiles.
    """

    PLAIN = "plain"
    SWIZZLED = "swizzled"


@dataclass(frozen=True, kw_only=True)
class Scales:
    """The scales of one operand, a byte each.

    Attributes:
        layout: how they lie.
        row: PLAIN: bytes from one row (of A, or column of B) to the next; SWIZZLED: from one row
            of tiles to the next.
        block: PLAIN: bytes from one block along K to the next; SWIZZLED: 1.
        align: bytes (a power of two up to 16) that divide the address of every row start.
        batch: bytes from the scales of one batch's or group's matrix to the next one's; 0 where
            the operand is one matrix.

    Of a matrix that groups share, PLAIN scales lie as if there were no groups. SWIZZLED ones are
    those of each group by itself, padded to whole tiles, one group after another, as torch has
    them (`_scaled_grouped_mm` in aten/native/cuda/GroupedBlas.cpp); `row` is then not used where
    groups share K, because it is each group's own.
    """

    layout: ScaleLayout = ScaleLayout.PLAIN
    row: int
    block: int = 1
    align: int = 16
    batch: int = 0

    def __post_init__(self) -> None:
        for name in ("row", "block", "batch"):
            if getattr(self, name) < 0:
                raise ProblemError(name, getattr(self, name), "is not a stride", "pass bytes")
        if self.align not in (1, 2, 4, 8, 16):
            raise ProblemError("align", self.align, "is not an alignment", "pass 1, 2, 4, 8 or 16")

    @classmethod
    def contiguous(cls, k: int, layout: ScaleLayout = ScaleLayout.PLAIN) -> Scales:
        """Scales of an operand with K elements a row that fill their tensor."""
        blocks = -(-k // BLOCK)
        if layout is ScaleLayout.SWIZZLED:
            return cls(layout=layout, row=-(-blocks // TILE_BLOCKS) * TILE_BYTES)
        align = next(a for a in (16, 8, 4, 2, 1) if blocks % a == 0)
        return cls(row=blocks, align=align)

    def bytes(self, rows: int, k: int) -> int:
        """From the first scale to the last one of ``rows`` rows, inclusive."""
        blocks = -(-k // BLOCK)
        if self.layout is ScaleLayout.SWIZZLED:
            tiles = -(-rows // TILE_ROWS)
            return (tiles - 1) * self.row + -(-blocks // TILE_BLOCKS) * TILE_BYTES
        return (rows - 1) * self.row + (blocks - 1) * self.block + 1

    @property
    def load(self) -> str:
        """How they reach LDS, as a kernel is specialised: ``dma`` by dwords, or ``gather``."""
        if self.layout is ScaleLayout.SWIZZLED:
            return "swizzled"
        return "dma" if self.block == 1 and self.align >= 4 else "gather"

    def to_json(self) -> dict[str, Any]:
        data = asdict(self) | {"layout": self.layout.value}
        # Left out where there is one matrix, so that the keys of earlier records still match.
        return data if self.batch else {k: v for k, v in data.items() if k != "batch"}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Scales:
        """Inverse of `to_json`."""
        return cls(**(data | {"layout": ScaleLayout(data["layout"])}))


def factors(along_m: bool, along_n: bool) -> Fusion:
    """The result times t0 (of A) and t1 (of B), fp32: tensor-wise or row-wise scaling.

    Args:
        along_m: A has a factor a row. along_n: B has one a column.
    """
    tensors = (
        Tensor(dtype=DType.FP32, along_m=along_m, along_n=False),
        Tensor(dtype=DType.FP32, along_m=False, along_n=along_n),
    )
    scaled_by_a = (Node(op="acc"), Node(op="tensor", value=0), Node(op="mul", args=(0, 1)))
    by_both = (Node(op="tensor", value=1), Node(op="mul", args=(2, 3)))
    return Fusion(nodes=(*scaled_by_a, *by_both), tensors=tensors)
