"""Operands on their way from memory to LDS and to fragments.

One `Operand` owns the LDS geometry of A or B for a pipeline: how a K step is loaded (16- or
4-byte DMA, or element by element), and how fragments are read back. It knows nothing of the order
in which a pipeline does these things, and waits for nothing.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import flydsl.expr as fx

from ..config import LOAD_BYTES, WAVE_SIZE
from . import ops
from .swizzle import CHUNK_BYTES, chunk_order, chunk_xor, groups_apart, place_of


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Compile-time shape of an operand's tile.

    Attributes:
        rows: extent along M (of A) or N (of B).
        tile_rows: the same of the whole tile, of which the operand's may be a part.
        tile_k: extent along K, in what is stored: elements, or pairs of FP4.
        k_contiguous: neighbours along K are neighbours in LDS, and in memory but for gathers.
        load: one of LOAD_BYTES.
        threads: of the workgroup.
        waves: waves along the operand's own axis.
        dtype: the FlyDSL type of what is stored, a 16-bit one, or Int8 for the f8f6f4 types.
        packed: elements that are stored as one.
        ends_anywhere: K of 8-bit elements may end inside of 16 bytes.
        start: at whose multiples along K, in elements, a tile's first K step begins.
        k_tail: the last K step may be partial.
    """

    rows: int
    tile_rows: int
    tile_k: int
    k_contiguous: bool
    load: str
    threads: int
    waves: int
    dtype: Any
    packed: int = 1
    ends_anywhere: bool = False
    start: int = 1
    k_tail: bool = True

    @property
    def head_chunks(self) -> int:
        """16-byte pieces of a line along K that `start` elements take."""
        return max(1, self.start * self.size // (self.packed * CHUNK_BYTES))

    @property
    def size(self) -> int:
        """Bytes of what is stored."""
        return int(self.dtype.width // 8)

    @property
    def lines(self) -> int:
        return self.rows if self.k_contiguous else self.tile_k

    @property
    def chunks(self) -> int:
        return (self.tile_k if self.k_contiguous else self.rows) * self.size // CHUNK_BYTES

    @property
    def pitch(self) -> int:
        """LDS bytes from one line to the next."""
        return self.chunks * CHUNK_BYTES

    @property
    def bytes(self) -> int:
        """LDS bytes of one stage."""
        return self.rows * self.tile_k * self.size

    @property
    def steps(self) -> int:
        """Loads a thread issues for one stage."""
        return self.bytes // (self.threads * LOAD_BYTES[self.load])

    @property
    def slices(self) -> int:
        """Pieces of 64 bytes along K: what the four lane groups read at once, 16 each."""
        return self.tile_k * self.size // 64

    @property
    def k_chunks(self) -> int:
        """Pieces of 16 bytes along K."""
        return self.tile_k * self.size // CHUNK_BYTES

    def xor(self, line: Any) -> Any:
        """What the chunk index of a line is XORed with."""
        bytes_ = self.size == 1 and not self.k_contiguous
        apart = groups_apart(self.k_chunks, self.packed) if bytes_ else 0
        return chunk_xor(line, self.chunks, self.k_contiguous, apart)

    def k_chunk_at(self, place: Any) -> Any:
        """The piece along K that belongs at a place of a line, before the XOR against conflicts."""
        return place if self.size > 1 else chunk_order(place, self.k_chunks, self.packed)

    @property
    def fragments(self) -> int:
        """16-row fragments of one wave."""
        return self.rows // (16 * self.waves)


class Operand:
    """A or B of one workgroup.

    Args:
        geometry: its compile-time shape.
        lds: LDS byte address of stage 0.
        address: global byte address of the operand.
        origin: (row, k) at which the tile begins.
        extents: rows of the whole operand and the K extent from the origin on.
        strides: (row stride, k stride).

    Along K all of these count what is stored, as `Geometry.tile_k` does.

    Addresses are of 64 bits up to the tile and the K step; what one step spans must be less than
    2 GiB (`space.why_not`).
    """

    def __init__(
        self,
        geometry: Geometry,
        lds: Any,
        address: Any,
        origin: tuple[Any, Any],
        *,
        extents: tuple[Any, Any],
        strides: tuple[Any, Any],
    ) -> None:
        self.g = geometry
        self.lds = lds
        self.first = 0
        self.rows_left = extents[0] - origin[0]
        self.k = extents[1]
        self.row_stride, self.k_stride = strides
        rows, k0 = (fx.Int64(o) for o in origin)
        skipped = rows * fx.Int64(self.row_stride) + k0 * fx.Int64(self.k_stride)
        self.address = address + skipped * geometry.size
        self.step_bytes = fx.Int64(self.k_stride) * (geometry.tile_k * geometry.size)
        # Bytes that a K step spans, where it is whole and where it is the partial last one.
        self.whole = self._span(fx.Int32(geometry.tile_k))
        if geometry.k_tail:
            self.partial = self._span(ops.modulo(self.k, geometry.tile_k))
        # Where a wave loads for itself, its lanes are all threads.
        alone = geometry.threads == WAVE_SIZE
        self.thread = fx.thread_idx.x % WAVE_SIZE if alone else fx.thread_idx.x
        self.lane = fx.thread_idx.x % WAVE_SIZE
        self.wave_bytes = ops.uniform(self.thread // 64) * (64 * LOAD_BYTES[geometry.load])
        self.offsets = self._dma_offsets() if geometry.load != "gather" else []

    @property
    def dma_steps(self) -> int:
        """Loads of one stage that vmcnt counts until the pipeline waits for them."""
        return 0 if self.g.load == "gather" else self.g.steps

    def _span(self, k: Any) -> Any:
        rows = (self.rows_left < self.g.tile_rows).select(
            self.rows_left, fx.Int32(self.g.tile_rows)
        )
        last = (rows - 1) * self.row_stride + (k - 1) * self.k_stride
        # Whole dwords: the range check of a buffer load works on dwords.
        return (rows > 0).select(((last + 1) * self.g.size + 3) & -4, fx.Int32(0))

    def from_row(self, first: int, lds: Any) -> Operand:
        """The same operand's rows from ``first`` of the tile on, with a ring of their own.

        Both have the same descriptors, which costs less than two of them would.
        """
        later = copy.copy(self)
        later.first, later.lds = first, lds
        skipped = first * (self.row_stride if self.g.k_contiguous else 1) * self.g.size
        later.offsets = [offset + skipped for offset in self.offsets]
        return later

    # -- memory to LDS ---------------------------------------------------------------------------

    def _place(self, unit: Any, size: int) -> tuple[Any, Any]:
        """(line, element in the line) that belongs at LDS position ``unit`` of ``size`` bytes."""
        g = self.g
        slot = unit * size // CHUNK_BYTES
        line = slot // g.chunks
        place = (slot % g.chunks) ^ g.xor(line)
        inside = (unit * size % CHUNK_BYTES) // g.size
        chunk = g.k_chunk_at(place) if g.k_contiguous else place
        return line, chunk * (CHUNK_BYTES // g.size) + inside

    def _dma_offsets(self) -> list[Any]:
        stride = self.row_stride if self.g.k_contiguous else self.k_stride
        offsets = []
        for step in range(self.g.steps):
            line, element = self._place(
                self.thread + step * self.g.threads, LOAD_BYTES[self.g.load]
            )
            offsets.append((line * stride + element) * self.g.size)
        return offsets

    def load(self, k_step: Any, stage: Any) -> None:
        """Start loading K step ``k_step`` into ``stage``; past the end, zeros are loaded."""
        for start in self.loads(k_step, stage):
            start()

    def loads(self, k_step: Any, stage: Any) -> list[Callable[[], None]]:
        """`load` in parts that each start a DMA, or all that is gathered."""
        base = self.lds + stage * self.g.bytes
        k_left = self.k - k_step * self.g.tile_k
        span = self.whole
        if self.g.k_tail:
            span = (k_left >= self.g.tile_k).select(span, self.partial)
        span = (k_left > 0).select(span, fx.Int32(0))
        rsrc = ops.buffer(self.address + fx.Int64(k_step) * self.step_bytes, span)
        if self.g.load == "gather":
            return [lambda: self._gather(rsrc, k_left, base)]
        size = LOAD_BYTES[self.g.load]

        def start(step: int, offset: Any) -> None:
            to = base + self.wave_bytes + step * self.g.threads * size
            ops.load_to_lds(rsrc, to, offset, size)

        return [partial(start, step, offset) for step, offset in enumerate(self.offsets)]

    def _gather(self, rsrc: Any, k_left: Any, base: Any) -> None:
        g = self.g
        # Masks of lanes that are known before the loop would stay in SGPRs, two for each element.
        rows_left, k_left = ops.from_here(self.rows_left), ops.from_here(k_left)
        for step in range(g.steps):
            unit = self.thread + step * g.threads
            line, element = self._place(unit, CHUNK_BYTES)
            values = []
            for i in range(CHUNK_BYTES // g.size):
                row, k = (line, element + i) if g.k_contiguous else (element + i, line)
                row = row + self.first
                inside = (row < rows_left) & (k < k_left)
                offset = (row * self.row_stride + k * self.k_stride) * g.size
                offset = inside.select(offset, fx.Int32(ops.OUT_OF_RANGE))
                values.append(ops.buffer_load(rsrc, offset, g.dtype))
            vector = fx.Vector.from_elements(values, g.dtype)
            ops.lds_store(vector, base + unit * CHUNK_BYTES, CHUNK_BYTES)

    @property
    def _head_units(self) -> int:
        """16-byte units of the first stage that hold what may be before a group's K."""
        g = self.g
        return g.rows * g.head_chunks if g.k_contiguous else g.start // g.packed * g.chunks

    def clear_head(self, count: Any, index: int) -> None:
        """Make the first K elements of stage 0 zeros: they are another group's.

        Args:
            count: of them, fewer than `Geometry.start`.
            index: this thread's share, of `head_shares`.
        """
        g = self.g
        unit, cleared = self.thread + index * g.threads, ops.quotient(count, g.packed)
        if not g.k_contiguous:
            # Lines of K; in each, everything or nothing.
            kept = (unit // g.chunks >= cleared).select(fx.Int32(-1), fx.Int32(0))
            self._keep(self.lds + unit * CHUNK_BYTES, [kept] * 4)
            return
        row, chunk = unit // g.head_chunks, unit % g.head_chunks
        place = chunk if g.size > 1 else place_of(chunk, g.k_chunks, g.packed)
        address = self.lds + row * g.pitch + (place ^ g.xor(row)) * CHUNK_BYTES
        cleared = cleared * g.size - chunk * CHUNK_BYTES
        masks = [upto(cleared - dword * 4) ^ -1 for dword in range(4)]
        self._keep(address, masks)

    @property
    def head_shares(self) -> int:
        """Units that each thread clears at most."""
        return -(-self._head_units // self.g.threads)

    def has_share(self, index: int) -> Any:
        """Whether this thread has a unit to clear."""
        return self.thread + index * self.g.threads < self._head_units

    def _keep(self, address: Any, masks: list[Any]) -> None:
        words = ops.lds_load(address, 4, fx.Int32)
        kept = fx.Vector.from_elements([words[i] & masks[i] for i in range(4)], fx.Int32)
        ops.lds_store(kept, address, CHUNK_BYTES)

    # -- LDS to fragments ------------------------------------------------------------------------

    def fragment_bases(self, wave: Any) -> list[Any]:
        """Loop-invariant LDS addresses (stage 0) from which `fragment` counts.

        Args:
            wave: the wave's index along this operand's axis.
        """
        g = self.g
        group = self.lane // 16
        first_row = wave * (g.fragments * 16)
        if g.k_contiguous:
            row = first_row + self.lane % 16
            xor = g.xor(row)
            return [
                self.lds + row * g.pitch + ((group + kk * 4) ^ xor) * CHUNK_BYTES
                for kk in range(g.slices)
            ]
        # Of 16-bit elements, 4 lanes bring a 32-byte piece of K line 8·group + lane % 16 // 4 to a
        # transpose of 16 lanes; of bytes, 2 lanes 16 bytes of line 16·chunk + lane % 16 // 2.
        lanes = 2 * g.size
        k = self.lane % 16 // lanes
        k = k + (group * 8 if g.size > 1 else g.k_chunk_at(group) * CHUNK_BYTES)
        bases = []
        for fragment in range(g.fragments):
            piece = (first_row // 16 + fragment) * g.size
            inside = (piece ^ g.xor(k)) * CHUNK_BYTES + self.lane % lanes * 8
            bases.append(self.lds + k * g.pitch + inside)
        return bases

    def fragment(self, bases: list[Any], stage: Any, kk: int, index: int) -> fx.Vector:
        """The 16 bytes of slice ``kk`` of ``stage`` that a lane holds of row fragment ``index``."""
        g = self.g
        stage_offset = stage * g.bytes
        if g.k_contiguous:
            address = bases[kk] + stage_offset + index * 16 * g.pitch
            kind = g.dtype if g.size > 1 else fx.Int32
            return ops.lds_load(address, CHUNK_BYTES * 8 // kind.width, kind)
        if g.size == 1:
            # Of all lane groups the chunks are as far from those of slice 0.
            k = (g.k_chunk_at(kk * 4) - g.k_chunk_at(0)) * CHUNK_BYTES
            address = bases[index] + stage_offset + k * g.pitch
            low, high = (ops.lds_load_transposed_bytes(address + i * g.pitch) for i in (0, 8))
            return low.shuffle(high, list(range(4)))
        address = bases[index] + stage_offset + kk * 32 * g.pitch
        low = ops.lds_load_transposed(address, g.dtype)
        high = ops.lds_load_transposed(address + 4 * g.pitch, g.dtype)
        return low.shuffle(high, list(range(8)))

    def chunk_masks(self, remaining: Any, kk: int) -> list[Any]:
        """Masks of the 4 dwords of a fragment of slice ``kk`` of a step with a partial K.

        Args:
            remaining: K elements left from the step's first one; a multiple of what 16 bytes hold,
                unless K `ends_anywhere`.
            kk: slice, as in `fragment`.
        """
        g = self.g
        first = g.k_chunk_at(kk * 4 + self.lane // 16) * (CHUNK_BYTES * g.packed)
        if g.ends_anywhere:
            return [upto(remaining - first - dword * 4) for dword in range(4)]
        mask = (first < remaining).select(fx.Int32(-1), fx.Int32(0))
        return [mask] * 4


def upto(count: Any) -> Any:
    """Mask of the first bytes of a dword: none from 0 down, all from 4 up."""
    bits = (count > 0).select(count * 8, fx.Int32(0))
    # A shift by a whole dword is no shift.
    return (bits < 32).select((fx.Int32(-1) << (bits & 31)) ^ -1, fx.Int32(-1))


def tail_masks(remaining: Any, lane: Any) -> list[Any]:
    """Masks of the 4 dwords of a fragment whose K range ends early.

    Args:
        remaining: K elements left from the fragment's first one.
        lane: lane index in the wave.
    """
    left = remaining - lane // 16 * 8
    masks = []
    for dword in range(4):
        count = left - 2 * dword
        half = (count == 1).select(fx.Int32(0xFFFF), fx.Int32(0))
        masks.append((count >= 2).select(fx.Int32(-1), half))
    return masks


def masked(fragment: fx.Vector, masks: list[Any]) -> fx.Vector:
    """The fragment with the elements past the end of K set to zero."""
    words = fragment.bitcast(fx.Int32)
    kept = fx.Vector.from_elements([words[i] & masks[i] for i in range(4)], fx.Int32)
    return kept.bitcast(fragment.dtype)
