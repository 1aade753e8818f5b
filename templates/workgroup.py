"""What every pipeline sets up first: the workgroup's tile, its operands and its waves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flydsl.expr as fx

from .loads import Geometry, Operand
from .tiles import group_along_m, remap_xcd


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The integers of a launch, as FlyDSL values; `signature.INTEGERS` names them."""

    m: Any
    n: Any
    k: Any
    lda: Any
    ldb: Any
    ldc: Any
    a_inner: Any
    b_inner: Any
    grid: Any


@dataclass(frozen=True, kw_only=True)
class Workgroup:
    """One workgroup of a launch.

    Attributes:
        spec: the KernelSpec.
        dtype, out_dtype: FlyDSL types.
        sizes: of the launch.
        c, a, b: byte addresses.
        m0, n0: first row and column of the tile of C.
        wave: (index along M, index along N).
        lds: byte address of the workgroup's LDS.
    """

    spec: Any
    dtype: Any
    out_dtype: Any
    sizes: Sizes
    c: Any
    a: Any
    b: Any
    m0: Any
    n0: Any
    wave: tuple[Any, Any]
    lds: Any

    @classmethod
    def start(cls, spec: Any, types: tuple[Any, Any], addresses: Any, sizes: Sizes) -> Workgroup:
        """Find this workgroup's place in the grid."""
        config = spec.config
        pid = fx.block_idx.x
        if config.xcd_remap:
            pid = remap_xcd(pid, sizes.grid)
        tiles_m = (sizes.m + (config.tile_m - 1)) // config.tile_m
        tiles_n = (sizes.n + (config.tile_n - 1)) // config.tile_n
        tile_m, tile_n = group_along_m(pid, tiles_m, tiles_n, config.group_m)
        wave = fx.thread_idx.x // 64
        storage = fx.SharedAllocator().allocate(lds_bytes(spec)).peek()
        return cls(
            spec=spec,
            dtype=types[0],
            out_dtype=types[1],
            sizes=sizes,
            c=addresses[0],
            a=addresses[1],
            b=addresses[2],
            m0=tile_m * config.tile_m,
            n0=tile_n * config.tile_n,
            wave=(wave // config.waves_n, wave % config.waves_n),
            lds=fx.Int32(fx.ptrtoint(storage.ptr)),
        )

    def operand_a(self, rows: int, first: int, lds: Any) -> Operand:
        """``rows`` rows of the tile of A from row ``first`` on, with a ring at LDS ``lds``."""
        s, spec = self.sizes, self.spec
        geometry = self._geometry(
            rows, spec.layout.a_k_contiguous, spec.a_load, spec.config.waves_m
        )
        strides = (s.lda, s.a_inner) if geometry.k_contiguous else (s.a_inner, s.lda)
        return Operand(geometry, lds, self.a, self.m0 + first, extents=(s.m, s.k), strides=strides)

    def operand_b(self, rows: int, first: int, lds: Any) -> Operand:
        """``rows`` columns of the tile of B from column ``first`` on, with a ring at ``lds``."""
        s, spec = self.sizes, self.spec
        geometry = self._geometry(
            rows, spec.layout.b_k_contiguous, spec.b_load, spec.config.waves_n
        )
        strides = (s.ldb, s.b_inner) if geometry.k_contiguous else (s.b_inner, s.ldb)
        return Operand(geometry, lds, self.b, self.n0 + first, extents=(s.n, s.k), strides=strides)

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


def lds_bytes(spec: Any) -> int:
    """LDS bytes of a kernel: the ring, or the tile of C that reuses its space."""
    config = spec.config
    return max(config.ring_bytes(spec.dtype.bytes), config.c_tile_bytes(spec.out_dtype.bytes))
