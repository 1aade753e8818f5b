"""What every pipeline sets up first: the workgroup's tile, its operands and its waves."""

from __future__ import annotations

import math
from dataclasses import dataclass, make_dataclass, replace
from typing import Any

import flydsl.expr as fx

from ..config import WAVE_SIZE
from ..config import start as start_of
from ..grouping import Axis
from ..scaling import BLOCK, TILE_BLOCKS, TILE_BYTES, TILE_ROWS
from ..signature import HEADS, INTEGERS, LONGS, POINTERS
from . import ops
from .loads import Geometry, Operand
from .scales import BlockScales, Source
from .tiles import divisor, in_turns, remap_xcd

TYPES = {"bfloat16": fx.BFloat16, "float16": fx.Float16, "float32": fx.Float32}
# Of an argument in memory.
LONG_BYTES, INTEGER_BYTES = 8, 4
# The integers of a launch, as FlyDSL values.
Sizes = make_dataclass(
    "Sizes", [(name, Any) for name in (*LONGS, *INTEGERS)], frozen=True, kw_only=True
)


@dataclass(frozen=True, kw_only=True)
class Launched:
    """What all workgroups of a launch share.

    Attributes:
        spec: the KernelSpec.
        sizes: of the launch.
        addresses: byte address of each of `signature.POINTERS`.
        lds: byte address of the workgroup's LDS.
    """

    spec: Any
    sizes: Any
    addresses: dict[str, Any]
    lds: Any

    @classmethod
    def of(cls, spec: Any, addresses: Any, sizes: Any) -> Launched:
        storage = fx.SharedAllocator().allocate(spec.lds_bytes).peek()
        return cls(
            spec=spec,
            sizes=sizes,
            addresses=addresses,
            lds=fx.Int32(fx.ptrtoint(storage.ptr)),
        )

    def again(self) -> Launched:
        """The same, its arguments to be read anew: kept over a loop they would fill registers."""
        at = ops.from_here(ops.kernel_arguments())
        longs, sizes = {}, {}
        for name in (*POINTERS, *LONGS):
            longs[name] = ops.load_constant(at, fx.Int64)
            at = at + LONG_BYTES
        for name in INTEGERS:
            sizes[name] = ops.load_constant(at)
            at = at + INTEGER_BYTES
        addresses = {name: longs.pop(name) for name in POINTERS}
        return replace(self, addresses=addresses, sizes=Sizes(**longs, **sizes))


@dataclass(frozen=True, kw_only=True)
class Place:
    """The share of a problem that a workgroup computes.

    Attributes:
        m0, n0: first row and column of the tile of C.
        m_end, n_end: where the rows and columns end that the tile may have.
        m_first, n_first: where they begin; None is at m0, n0.
        k0, k: first K element and K extent.
        k_head: elements from k0 on that are another group's; None is none.
        scale_shift: how many elements of the ragged extent later than the group its swizzled
            scales begin, because those of the groups before it are padded.
        spoiled: whether the group has no result, because it begins or ends inside of a block whose
            scale another one has too; None is never.
        shared: whether others have a share of the tile too; None is all tiles of the kernel, or
            none.
        batch: index of the batch or group.
        tile, split: index of the tile of C in the launch, and of the split of its K.
    """

    m0: Any
    n0: Any
    m_end: Any
    n_end: Any
    k0: Any
    k: Any
    batch: Any
    tile: Any
    split: Any
    m_first: Any = None
    n_first: Any = None
    k_head: Any = None
    scale_shift: Any = None
    spoiled: Any = None
    shared: Any = None


@dataclass(frozen=True, kw_only=True)
class Workgroup:
    """One workgroup at its place.

    Attributes:
        spec, sizes, lds: as in Launched.
        addresses: byte address of each of `signature.POINTERS`; C, A and B of this batch or group.
        place: what it computes; `m0`, `n0`, `k`, `tile` and `split` are short for its parts.
        wave: (index along M, index along N).
    """

    spec: Any
    sizes: Any
    addresses: dict[str, Any]
    lds: Any
    place: Place
    wave: tuple[Any, Any]

    @classmethod
    def start(cls, launched: Launched) -> Workgroup:
        """At the place that the grid gives this workgroup."""
        sizes, config = launched.sizes, launched.spec.config
        pid, batch = fx.block_idx.x, fx.block_idx.y
        tiles_m = ops.quotient(sizes.m + (config.tile_m - 1), config.tile_m)
        k0, k, split = fx.Int32(0), sizes.k, fx.Int32(0)
        if config.xcd_remap:
            pid = remap_xcd(pid, sizes.grid)
        if config.split_k > 1:
            split, pid = ops.divide_by(pid, divisor(sizes, "tiles"))
            k0 = split * sizes.k_split
            left = sizes.k - k0
            k = (left < sizes.k_split).select(left, sizes.k_split)
            k = (k > 0).select(k, fx.Int32(0))
        tile_m, tile_n = in_turns(pid, tiles_m, sizes, config.group_m)
        place = Place(
            m0=tile_m * config.tile_m,
            n0=tile_n * config.tile_n,
            m_end=sizes.m,
            n_end=sizes.n,
            k0=k0,
            k=k,
            batch=batch,
            tile=batch * sizes.tiles + pid,
            split=split,
        )
        return cls.at(launched, place)

    @classmethod
    def at(cls, launched: Launched, place: Place) -> Workgroup:
        """At a given place."""
        spec, wave = launched.spec, ops.uniform(fx.thread_idx.x // 64)
        config = spec.config
        if config.split_k > 1:
            # Older waves come first to what is issued. With other waves at a place in each split,
            # every split has waves that come last there, and their share of the reduction.
            turn = max(1, config.waves // config.shares)
            wave = ops.modulo(wave + place.split * turn, config.waves)
        return cls(
            spec=spec,
            sizes=launched.sizes,
            addresses=_of_batch(spec, launched.addresses, launched.sizes, place.batch),
            lds=launched.lds,
            place=place,
            wave=(wave // config.waves_n, wave % config.waves_n),
        )

    @property
    def m0(self) -> Any:
        return self.place.m0

    @property
    def n0(self) -> Any:
        return self.place.n0

    @property
    def k(self) -> Any:
        return self.place.k

    @property
    def tile(self) -> Any:
        return self.place.tile

    @property
    def split(self) -> Any:
        return self.place.split

    def cleared(self) -> Any:
        """What an accumulator starts with: zeros, or NaN where there can be no result."""
        if self.place.spoiled is None:
            return ops.filled(0.0)
        return ops.filled(self.place.spoiled.select(fx.Float32(math.nan), fx.Float32(0.0)))

    def operand_a(self, rows: int, lds: Any) -> Operand:
        """The first ``rows`` rows of the tile of A, with a ring at LDS ``lds``."""
        s, spec = self.sizes, self.spec
        along_k = spec.layout.a_k_contiguous
        geometry = self._geometry((rows, spec.config.tile_m), "a", spec.config.waves_m)
        inner = s.a_inner if geometry.load == "gather" else fx.Int32(1)
        strides = (s.lda, inner) if along_k else (inner, s.lda)
        return self._operand("a", geometry, lds, (self.m0, self.place.m_end), strides)

    def operand_b(self, rows: int, lds: Any) -> Operand:
        """The first ``rows`` columns of the tile of B, with a ring at LDS ``lds``."""
        s, spec = self.sizes, self.spec
        along_k = spec.layout.b_k_contiguous
        geometry = self._geometry((rows, spec.config.tile_n), "b", spec.config.waves_n)
        inner = s.b_inner if geometry.load == "gather" else fx.Int32(1)
        strides = (s.ldb, inner) if along_k else (inner, s.ldb)
        return self._operand("b", geometry, lds, (self.n0, self.place.n_end), strides)

    def private_operand(self, name: str) -> Operand:
        """The tile of A or B, ``a`` or ``b``, as each wave loads its slices of a K step alone."""
        s, c, place = self.sizes, self.spec.config, self.place
        rows, first, end = (
            (c.tile_m, place.m0, place.m_end) if name == "a" else (c.tile_n, place.n0, place.n_end)
        )
        geometry = self._geometry((rows, rows), name, 1)
        geometry = replace(geometry, threads=WAVE_SIZE, tile_k=c.tile_k // c.waves_k)
        inner = getattr(s, f"{name}_inner") if geometry.load == "gather" else fx.Int32(1)
        strides = (getattr(s, f"ld{name}"), inner)
        strides = strides if self.spec.k_contiguous(name) else strides[::-1]
        return self._operand(name, geometry, self.lds, (first, end), strides)

    def _operand(
        self, name: str, geometry: Geometry, lds: Any, rows: tuple[Any, Any], strides: Any
    ) -> Operand:
        packed = geometry.packed
        k0, k = (
            (self.place.k0, self.k) if packed == 1 else (self.place.k0 // packed, self.k // packed)
        )
        return Operand(
            geometry,
            lds,
            self.addresses[name],
            (rows[0], k0),
            extents=(rows[1], k),
            strides=strides,
        )

    def _geometry(self, rows: tuple[int, int], operand: str, waves: int) -> Geometry:
        """Of ``rows`` of the tile's, of A or of B."""
        spec = self.spec
        dtype = spec.dtype if operand == "a" else spec.b_type
        return Geometry(
            rows=rows[0],
            tile_rows=rows[1],
            tile_k=spec.config.tile_k // dtype.packed,
            k_contiguous=spec.k_contiguous(operand),
            load=getattr(spec, f"{operand}_load"),
            threads=spec.config.threads,
            waves=waves,
            dtype=fx.Int8 if dtype.scaled else TYPES[dtype.value],
            packed=dtype.packed,
            ends_anywhere=spec.ragged is Axis.K and not spec.block_scaled,
            start=start_of(spec) if spec.ragged is Axis.K else 1,
            k_tail=spec.k_tail,
        )

    def block_scales(self) -> BlockScales | None:
        """The block scales of A and B, in LDS behind the rings of the operands; None without."""
        if not self.spec.block_scaled:
            return None
        a = self._scales("a", Axis.M, (self.m0, self.place.m_end, self.sizes.m))
        b = self._scales("b", Axis.N, (self.n0, self.place.n_end, self.sizes.n))
        return BlockScales(self.spec, a, b, self.lds + self.spec.ring_bytes)

    def _scales(self, name: str, own: Axis, rows: tuple[Any, Any, Any]) -> Source:
        """Of A or B.

        Args:
            name: ``a`` or ``b``.
            own: the operand's axis beside K.
            rows: first and last of the tile's, and all.
        """
        layout, place = getattr(self.spec, f"{name}_scales"), self.place
        row, block = (getattr(self.sizes, f"{name}_scale_{of}") for of in ("row", "block"))
        # Nothing of it is computed before what the pipeline has done so far.
        address = ops.from_here(self.addresses[f"{name}_scale"])
        k0, blocks = ops.from_here(place.k0), ops.quotient(ops.from_here(self.k), BLOCK)
        (first, end), first_block = rows[:2], ops.quotient(k0, BLOCK)
        if layout == "swizzled" and self.spec.ragged is own:
            first, end = first + place.scale_shift, end + place.scale_shift
        elif layout == "swizzled" and self.spec.ragged is Axis.K:
            lines = ops.quotient(rows[2] + (TILE_ROWS - 1), TILE_ROWS)
            tiles = ops.quotient(k0 + place.scale_shift, TILE_BLOCKS * BLOCK)
            address = address + fx.Int64(tiles) * fx.Int64(lines * TILE_BYTES)
            first_block = fx.Int32(0)
            row = ops.quotient(blocks + (TILE_BLOCKS - 1), TILE_BLOCKS) * TILE_BYTES
        tile = (first, end, getattr(self.spec.config, f"tile_{own.value}"))
        return Source(layout, address, tile, (first_block, blocks), (row, block))


def _of_batch(spec: Any, addresses: dict[str, Any], sizes: Any, batch: Any) -> dict[str, Any]:
    """The addresses, with those of C, A and B, and of scales, moved to one batch or group."""
    moved = dict(addresses)
    for name, dtype in (("c", spec.out_dtype), ("a", spec.dtype), ("b", spec.b_type)):
        if name not in _of_each(spec):
            continue
        moved[name] = addresses[name] + batch_offset(spec, sizes, name, batch) * dtype.bytes
        if spec.block_scaled and name != "c":
            step = getattr(sizes, f"{name}_scale_batch")
            moved[f"{name}_scale"] = addresses[f"{name}_scale"] + fx.Int64(batch) * step
    return moved


def batch_offset(spec: Any, sizes: Any, name: str, batch: Any) -> Any:
    """Elements from the start of C, A, B or a tensor of the epilogue to a batch or group of it."""
    stride = getattr(sizes, f"{name}_batch")
    if not spec.heads or name in ("a", "b"):
        return fx.Int64(batch) * stride
    outer, head = ops.divide_by(batch, divisor(sizes, HEADS))
    return fx.Int64(outer) * getattr(sizes, f"{name}_outer") + fx.Int64(head) * stride


def _of_each(spec: Any) -> tuple[str, ...]:
    """Which of C, A and B each batch or group has for itself."""
    if spec.ragged is None:
        return ("c", "a", "b") if spec.batched else ()
    return ({Axis.M: "b", Axis.N: "a", Axis.K: "c"}[spec.ragged],)
