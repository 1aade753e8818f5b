"""What every pipeline sets up first: the workgroup's tile, its operands and its waves."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from typing import Any

import flydsl.expr as fx

from ..grouping import Axis
from ..signature import INTEGERS
from .loads import Geometry, Operand
from .tiles import group_along_m, remap_xcd

# The integers of a launch, as FlyDSL values.
Sizes = make_dataclass("Sizes", [(name, Any) for name in INTEGERS], frozen=True, kw_only=True)


@dataclass(frozen=True, kw_only=True)
class Launched:
    """What all workgroups of a launch share.

    Attributes:
        spec: the KernelSpec.
        dtype, out_dtype: FlyDSL types.
        sizes: of the launch.
        addresses: byte address of each of `signature.POINTERS`.
        lds: byte address of the workgroup's LDS.
    """

    spec: Any
    dtype: Any
    out_dtype: Any
    sizes: Any
    addresses: dict[str, Any]
    lds: Any

    @classmethod
    def of(cls, spec: Any, types: tuple[Any, Any], addresses: Any, sizes: Any) -> Launched:
        storage = fx.SharedAllocator().allocate(lds_bytes(spec)).peek()
        return cls(
            spec=spec,
            dtype=types[0],
            out_dtype=types[1],
            sizes=sizes,
            addresses=addresses,
            lds=fx.Int32(fx.ptrtoint(storage.ptr)),
        )


@dataclass(frozen=True, kw_only=True)
class Place:
    """The share of a problem that a workgroup computes.

    Attributes:
        m0, n0: first row and column of the tile of C.
        m_end, n_end: where the rows and columns end that the tile may have.
        m_first, n_first: where they begin; None is at m0, n0.
        k0, k: first K element and K extent.
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


@dataclass(frozen=True, kw_only=True)
class Workgroup:
    """One workgroup at its place.

    Attributes:
        spec, dtype, out_dtype, sizes, lds: as in Launched.
        addresses: byte address of each of `signature.POINTERS`; C, A and B of this batch or group.
        place: what it computes; `m0`, `n0`, `k`, `tile` and `split` are short for its parts.
        wave: (index along M, index along N).
    """

    spec: Any
    dtype: Any
    out_dtype: Any
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
        tiles_m = (sizes.m + (config.tile_m - 1)) // config.tile_m
        tiles_n = (sizes.n + (config.tile_n - 1)) // config.tile_n
        k0, k, split = fx.Int32(0), sizes.k, fx.Int32(0)
        if config.xcd_remap:
            pid = remap_xcd(pid, sizes.grid)
        if config.split_k > 1:
            split, pid = pid // (tiles_m * tiles_n), pid % (tiles_m * tiles_n)
            k0 = split * sizes.k_split
            left = sizes.k - k0
            k = (left < sizes.k_split).select(left, sizes.k_split)
            k = (k > 0).select(k, fx.Int32(0))
        tile_m, tile_n = group_along_m(pid, tiles_m, tiles_n, config.group_m)
        place = Place(
            m0=tile_m * config.tile_m,
            n0=tile_n * config.tile_n,
            m_end=sizes.m,
            n_end=sizes.n,
            k0=k0,
            k=k,
            batch=batch,
            tile=batch * (tiles_m * tiles_n) + pid,
            split=split,
        )
        return cls.at(launched, place)

    @classmethod
    def at(cls, launched: Launched, place: Place) -> Workgroup:
        """At a given place."""
        spec, wave = launched.spec, fx.thread_idx.x // 64
        return cls(
            spec=spec,
            dtype=launched.dtype,
            out_dtype=launched.out_dtype,
            sizes=launched.sizes,
            addresses=_of_batch(spec, launched.addresses, launched.sizes, place.batch),
            lds=launched.lds,
            place=place,
            wave=(wave // spec.config.waves_n, wave % spec.config.waves_n),
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

    def operand_a(self, rows: int, first: int, lds: Any) -> Operand:
        """``rows`` rows of the tile of A from row ``first`` on, with a ring at LDS ``lds``."""
        s, spec = self.sizes, self.spec
        geometry = self._geometry(
            rows, spec.layout.a_k_contiguous, spec.a_load, spec.config.waves_m
        )
        strides = (s.lda, s.a_inner) if geometry.k_contiguous else (s.a_inner, s.lda)
        return self._operand("a", geometry, lds, (self.m0 + first, self.place.m_end), strides)

    def operand_b(self, rows: int, first: int, lds: Any) -> Operand:
        """``rows`` columns of the tile of B from column ``first`` on, with a ring at ``lds``."""
        s, spec = self.sizes, self.spec
        geometry = self._geometry(
            rows, spec.layout.b_k_contiguous, spec.b_load, spec.config.waves_n
        )
        strides = (s.ldb, s.b_inner) if geometry.k_contiguous else (s.b_inner, s.ldb)
        return self._operand("b", geometry, lds, (self.n0 + first, self.place.n_end), strides)

    def _operand(
        self, name: str, geometry: Geometry, lds: Any, rows: tuple[Any, Any], strides: Any
    ) -> Operand:
        return Operand(
            geometry,
            lds,
            self.addresses[name],
            (rows[0], self.place.k0),
            extents=(rows[1], self.k),
            strides=strides,
        )

    def _geometry(self, rows: int, k_contiguous: bool, load: str, waves: int) -> Geometry:
        return Geometry(
            rows=rows,
            tile_k=self.spec.config.tile_k,
            k_contiguous=k_contiguous,
            load=load,
            threads=self.spec.config.threads,
            waves=waves,
            dtype=self.dtype,
        )


def _of_batch(spec: Any, addresses: dict[str, Any], sizes: Any, batch: Any) -> dict[str, Any]:
    """The addresses, with those of C, A and B moved to one batch or group."""
    moved = dict(addresses)
    for name, size in (("c", spec.out_dtype.bytes), ("a", 2), ("b", 2)):
        if name not in _of_each(spec):
            continue
        stride = fx.Int64(getattr(sizes, f"{name}_batch"))
        moved[name] = addresses[name] + fx.Int64(batch) * stride * size
    return moved


def _of_each(spec: Any) -> tuple[str, ...]:
    """Which of C, A and B each batch or group has for itself."""
    if spec.ragged is None:
        return ("c", "a", "b") if spec.batched else ()
    return ({Axis.M: "b", Axis.N: "a", Axis.K: "c"}[spec.ragged],)


def lds_bytes(spec: Any) -> int:
    """LDS bytes of a kernel: the ring, or the tile of C that reuses its space."""
    config = spec.config
    return max(config.ring_bytes(spec.dtype.bytes), config.c_tile_bytes(spec.out_dtype.bytes))
