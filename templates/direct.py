"""The direct pipeline: each wave has K slices of its own, for tiles of few rows.

Where memory sets the pace, a workgroup reads A and B once, and its waves have nothing to share. So
each wave multiplies the whole tile over its own slices of each K step, with its own loads in
flight. At the end of K the waves add up what they have in LDS, each some blocks of the tile, in the
order of the waves.

A lane's 16 bytes of a fragment are neighbours along K: an operand that lies along K comes from
memory straight to registers. Any other goes through a ring in LDS that only its wave knows, and
that no barrier guards.

The loop goes over a turn of the ring at a time: where a slot has been multiplied, the loads of the
next turn into it start. The last turn is apart: it loads nothing, and what lies past the end of K
is masked there.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import const_expr, range_constexpr

from ..config import MFMA_K, MFMA_M, MFMA_N, WAVE_SIZE
from . import ops
from .epilogue import Block
from .finish import finish
from .loads import Operand, masked, tail_masks
from .workgroup import TYPES, Workgroup

ELEMENTS, ELEMENT_BYTES = 8, 2
QUAD, QUAD_BYTES = 4, 16
BLOCK_BYTES = WAVE_SIZE * QUAD_BYTES


def body(wg: Workgroup) -> None:
    """Emit the kernel. Called while FlyDSL traces `templates.gemm`."""
    acc = multiply(wg)
    add_up(wg, acc)


class Registers:
    """An operand of a wave that comes straight to registers.

    Args:
        wg: the workgroup.
        name: ``a`` or ``b``.
    """

    def __init__(self, wg: Workgroup, name: str) -> None:
        config, place, sizes = wg.spec.config, wg.place, wg.sizes
        first, end, tile, stride = (
            (place.m0, place.m_end, config.tile_m, sizes.lda)
            if name == "a"
            else (place.n0, place.n_end, config.tile_n, sizes.ldb)
        )
        if name == "a":
            # Nothing of it is computed before B is on its way.
            first, end, stride = (ops.from_here(x) for x in (first, end, stride))
        self.tile_k, self.tail, self.k = config.tile_k, wg.spec.k_tail, wg.k
        self.fragments, self.slices = tile // MFMA_M, config.slices
        self.dtype = TYPES[wg.spec.dtype.value]
        skipped = fx.Int64(first) * fx.Int64(stride) + fx.Int64(place.k0)
        self.address = wg.addresses[name] + skipped * ELEMENT_BYTES
        lane = fx.thread_idx.x % WAVE_SIZE
        element = lane % MFMA_M * stride + lane // MFMA_M * ELEMENTS
        element = element + wave_k(wg) * (self.slices * MFMA_K)
        self.offset = element * ELEMENT_BYTES
        self.fragment_bytes = stride * (MFMA_M * ELEMENT_BYTES)
        left = end - first
        left = (left < tile).select(left, fx.Int32(tile))
        self.lines_bytes = (left - 1) * stride * ELEMENT_BYTES

    @property
    def loads(self) -> int:
        """Loads of a K step."""
        return self.fragments * self.slices

    def start(self, k_step: Any, slot: int) -> list[fx.Vector]:
        """Start loading a K step; zeros past the end.

        Returns:
            What will be there, slice major.
        """
        left = self.k - k_step * self.tile_k
        along = fx.Int32(self.tile_k)
        if self.tail:
            along = (left < self.tile_k).select(left, along)
        # Whole dwords: the range check of a buffer load works on dwords.
        span = (self.lines_bytes + along * ELEMENT_BYTES + 3) & -4
        span = (left > 0).select(span, fx.Int32(0))
        start = self.address + fx.Int64(k_step) * (self.tile_k * ELEMENT_BYTES)
        rsrc = ops.buffer(start, span)
        loaded = []
        for s in range(self.slices):
            offset = self.offset + s * (MFMA_K * ELEMENT_BYTES)
            for f in range(self.fragments):
                skipped = self.fragment_bytes * f
                kind = self.dtype
                loaded.append(ops.buffer_load_elements(rsrc, offset, ELEMENTS, kind, skipped))
        return loaded

    def take(self, loaded: list[fx.Vector], slot: int) -> list[fx.Vector]:
        """The fragments of a K step that was started, slice major."""
        return loaded


class Private:
    """An operand of a wave that goes through a ring in LDS of the wave's own.

    Args:
        wg: the workgroup.
        name: ``a`` or ``b``.
        lds: byte address of all waves' rings.
    """

    def __init__(self, wg: Workgroup, name: str, lds: Any) -> None:
        config, wave = wg.spec.config, wave_k(wg)
        self.operand: Operand = wg.private_operand(name)
        g = self.operand.g
        self.operand.lds = lds + wave * (config.stages * g.bytes)
        self.waves, self.wave, self.slices, self.fragments = (
            config.waves_k, wave, config.slices, g.fragments,
        )  # fmt: skip
        self.bases = self.operand.fragment_bases(fx.Int32(0))

    @property
    def loads(self) -> int:
        """Loads of a K step that are in flight until they are waited for."""
        return self.operand.dma_steps

    def start(self, k_step: Any, slot: int) -> list[fx.Vector]:
        """Start loading a K step into a slot; zeros past the end."""
        self.operand.load(k_step * self.waves + self.wave, fx.Int32(slot))
        return []

    def take(self, loaded: list[fx.Vector], slot: int) -> list[fx.Vector]:
        """The fragments of a K step that has landed in a slot, slice major."""
        return [
            self.operand.fragment(self.bases, fx.Int32(slot), s, f)
            for s in range(self.slices)
            for f in range(self.fragments)
        ]


def wave_k(wg: Workgroup) -> Any:
    """Index of the wave along K."""
    return wg.wave[0]


class Slices:
    """The slices of A and B that a wave multiplies, a turn of K steps at a time."""

    def __init__(self, wg: Workgroup) -> None:
        spec = wg.spec
        self.wg, self.turn, self.slices = wg, spec.config.stages, spec.config.slices
        self.lane = fx.thread_idx.x % WAVE_SIZE
        # The weights first, and nothing computed for A before they are on their way.
        self.b, begun_b = self._begin("b", wg.lds)
        self.a, begun_a = self._begin("a", wg.lds + spec.private_bytes("b"))
        self.begun = begun_b, begun_a
        self.through_lds = any(isinstance(x, Private) for x in (self.a, self.b))

    def _begin(self, name: str, lds: Any) -> tuple[Registers | Private, list[fx.Vector]]:
        wg = self.wg
        held = Registers(wg, name) if wg.spec.to_registers(name) else Private(wg, name, lds)
        loaded = held.start(fx.Int32(0), 0)
        ops.keep_order()
        return held, loaded

    def fill(self) -> tuple[list[Any], list[Any]]:
        """Start a whole turn; what is on its way of B and of A, a slot each."""
        of_b, of_a = [self.begun[0]], [self.begun[1]]
        for slot in range(1, self.turn):
            b, a = self.start(fx.Int32(slot), slot)
            of_b.append(b)
            of_a.append(a)
        return of_b, of_a

    def start(self, k_step: Any, slot: int) -> tuple[list[Any], list[Any]]:
        """Start loading a K step into a slot; what is on its way of B and of A."""
        loaded = self.b.start(k_step, slot), self.a.start(k_step, slot)
        ops.keep_order()
        return loaded

    def meet(self) -> None:
        """Wait for the other waves: one that fell behind would end alone, with few loads in flight.

        That took 6 % of the time of 16x128 tiles at 16x28672x4096 on the emulated clock.
        """
        if self.through_lds:
            # What is gathered writes LDS with DS operations, which must be done at a barrier.
            ops.wait(lgkmcnt=0)
        ops.barrier()

    def advance(
        self, acc: list[Any], loaded: tuple[Any, Any], slot: int, following: Any
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Multiply a slot, and start loading a later K step into it.

        Args:
            acc: row fragment major.
            loaded: of B and of A, from `start`.
            slot: where.
            following: the later K step.

        Returns:
            acc + A·B of the slot, and what is on its way of B and of A.
        """
        b, a = self._taken(loaded, slot, self.turn - 1)
        started: dict[int, list[Any]] = {}
        if self.through_lds:
            # A slot in LDS is free as soon as it is in registers.
            ops.wait(lgkmcnt=0)
        for now in (True, False):
            if not now:
                acc = self._products(acc, b, a)
            for i, part in enumerate((self.b, self.a)):
                if isinstance(part, Private) == now:
                    started[i] = part.start(following, slot)
                    ops.keep_order()
        return acc, started[0], started[1]

    def last(
        self, acc: list[Any], loaded: tuple[Any, Any], slot: int, k_step: Any = None
    ) -> list[Any]:
        """acc + A·B of a slot of the last turn; k_step: where it may be partial."""
        b, a = self._taken(loaded, slot, self.turn - 1 - slot)
        if k_step is not None:
            b, a = self._kept(b, k_step), self._kept(a, k_step)
        return self._products(acc, b, a)

    def _taken(self, loaded: tuple[Any, Any], slot: int, later: int) -> tuple[list[Any], list[Any]]:
        """Fragments of a slot; later: slots whose loads were started after it."""
        if self.through_lds:
            ops.wait(vmcnt=later * (self.a.loads + self.b.loads))
        return self.b.take(loaded[0], slot), self.a.take(loaded[1], slot)

    def _products(self, acc: list[Any], b: list[Any], a: list[Any]) -> list[Any]:
        acc = list(acc)
        columns, rows = self.b.fragments, self.a.fragments
        for s in range(self.slices):
            for m in range(rows):
                for n in range(columns):
                    i = m * columns + n
                    # B first: the result's rows are N, so a lane holds neighbours of C's row.
                    acc[i] = ops.mfma(b[s * columns + n], a[s * rows + m], acc[i])
        ops.keep_order()
        return acc

    def _kept(self, fragments: list[fx.Vector], k_step: Any) -> list[fx.Vector]:
        config = self.wg.spec.config
        left = self.wg.k - k_step * config.tile_k - wave_k(self.wg) * (self.slices * MFMA_K)
        masks = [tail_masks(left - s * MFMA_K, self.lane) for s in range(self.slices)]
        each = len(fragments) // self.slices
        return [masked(x, masks[i // each]) for i, x in enumerate(fragments)]


@flyc.jit
def multiply(wg: Workgroup) -> list[Any]:
    """This wave's share of the tile, row fragment major, 4 fp32 a lane each."""
    config = wg.spec.config
    turn = config.stages
    ring = Slices(wg)
    # Plain names: FlyDSL would carry an object whose method is called through the loop.
    advance, last, meet = ring.advance, ring.last, ring.meet
    of_b, of_a = ring.fill()
    acc = [wg.cleared() for _ in range(config.blocks)]
    step = config.tile_k * turn
    turns = ops.quotient(wg.k + (step - 1), step)
    for done in range(1, turns, 1):
        meet()
        for slot in range_constexpr(turn):
            loaded, following = (of_b[slot], of_a[slot]), done * turn + slot
            acc, of_b[slot], of_a[slot] = advance(acc, loaded, slot, following)
    first = (turns < 1).select(fx.Int32(0), turns - 1) * turn
    for slot in range_constexpr(turn):
        k_step = first + slot if const_expr(wg.spec.k_tail) else None
        acc = last(acc, (of_b[slot], of_a[slot]), slot, k_step)
    return acc


def add_up(wg: Workgroup, acc: list[Any]) -> None:
    """Add up the waves' shares, each wave some blocks of the tile, and bring them to C."""
    config = wg.spec.config
    if wg.spec.ring_bytes:
        # Where other waves may still read their rings.
        ops.wait(lgkmcnt=0)
        ops.barrier()
    mine = _shares(wg) + wave_k(wg) * (config.blocks * BLOCK_BYTES)
    for i, value in enumerate(acc):
        ops.lds_store(value, mine + i * BLOCK_BYTES, QUAD_BYTES)
    ops.wait(lgkmcnt=0)
    ops.barrier()
    if config.finishers == config.waves:
        finish(wg, _added(wg))
    else:
        _first_finish(wg)


@flyc.jit
def _first_finish(wg: Workgroup) -> None:
    """The first waves bring the tile to C, a block each; the others have ended."""
    if wave_k(wg) < wg.spec.config.finishers:
        finish(wg, _added(wg))


def _added(wg: Workgroup) -> list[Block]:
    """This wave's blocks, the sums over all waves."""
    config, wave = wg.spec.config, wave_k(wg)
    count, across = config.blocks // config.finishers, config.tile_n // MFMA_N
    base = _shares(wg) + wave * (count * BLOCK_BYTES)
    blocks = []
    for j in range(count):
        parts = [
            ops.lds_load(base + (w * config.blocks + j) * BLOCK_BYTES, QUAD, fx.Float32)
            for w in range(config.waves_k)
        ]
        index = wave * count + j
        row, column = ops.quotient(index, across), ops.modulo(index, across)
        value = functools.reduce(operator.add, parts)
        blocks.append(Block(value, row * MFMA_M, column * MFMA_N, (j // across, j % across)))
    return blocks


def _shares(wg: Workgroup) -> Any:
    """LDS address of a lane's part of what waves add up, in the place of their rings."""
    return wg.lds + fx.thread_idx.x % WAVE_SIZE * QUAD_BYTES
