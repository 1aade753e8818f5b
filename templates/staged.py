"""The staged pipeline: a ring of K steps in LDS, filled by DMA while MFMAs read an older one.

One wait and one barrier a K step. The wait leaves the DMAs of the younger stages in flight; the
barrier makes every wave's share of the oldest stage visible, and says that every wave is done
with the stage that the next DMAs overwrite.
"""

from __future__ import annotations

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import const_expr, range_constexpr

from . import ops
from .epilogue import store_tile
from .loads import Geometry, Operand, masked, tail_masks
from .tiles import group_along_m, remap_xcd


def geometries(spec: Any, dtype: Any) -> tuple[Geometry, Geometry]:
    """Tile geometry of A and of B for a KernelSpec."""
    c = spec.config
    common = {"tile_k": c.tile_k, "threads": c.threads, "dtype": dtype}
    a = Geometry(
        rows=c.tile_m,
        k_contiguous=spec.layout.a_k_contiguous,
        load=spec.a_load,
        waves=c.waves_m,
        **common,
    )
    b = Geometry(
        rows=c.tile_n,
        k_contiguous=spec.layout.b_k_contiguous,
        load=spec.b_load,
        waves=c.waves_n,
        **common,
    )
    return a, b


class Stage:
    """One K step of the ring, as the waves read it: fragments in, products out."""

    def __init__(self, a: Operand, b: Operand, waves: tuple[Any, Any]) -> None:
        self.a, self.b = a, b
        self.a_bases = a.fragment_bases(waves[0])
        self.b_bases = b.fragment_bases(waves[1])

    def multiply(self, acc: list[Any], stage: Any, remaining: Any = None) -> list[Any]:
        """acc + A·B of one stage.

        Args:
            acc: accumulators, fragment of M major. Each holds 4 neighbours along N.
            stage: index in the ring.
            remaining: K elements of the step, where it is partial; None where it is full.
        """
        a, b = self.a, self.b
        acc = list(acc)
        for kk in range(a.g.tile_k // 32):
            left = [
                b.fragment(self.b_bases, stage * b.g.bytes, kk, n) for n in range(b.g.fragments)
            ]
            right = [
                a.fragment(self.a_bases, stage * a.g.bytes, kk, m) for m in range(a.g.fragments)
            ]
            if remaining is not None:
                masks = tail_masks(remaining - kk * 32, a.lane)
                left = [masked(f, masks) for f in left]
                right = [masked(f, masks) for f in right]
            for m in range(a.g.fragments):
                for n in range(b.g.fragments):
                    i = m * b.g.fragments + n
                    # B first: the result's rows are N, so a lane holds neighbours of C's row.
                    acc[i] = ops.mfma(left[n], right[m], acc[i])
        return acc


def body(spec: Any, dtype: Any, out_dtype: Any, pointers: Any, sizes: Any) -> None:
    """Emit the kernel. Called while FlyDSL traces `templates.gemm`.

    Args:
        spec: the KernelSpec.
        dtype, out_dtype: FlyDSL types.
        pointers: byte addresses of C, A and B.
        sizes: m, n, k, lda, ldb, ldc, a_inner, b_inner, grid.
    """
    c_address, a_address, b_address = pointers
    m, n, k, lda, ldb, ldc, a_inner, b_inner, grid = sizes
    config = spec.config
    ga, gb = geometries(spec, dtype)
    pid = fx.block_idx.x
    if config.xcd_remap:
        pid = remap_xcd(pid, grid)
    tiles_m = (m + (config.tile_m - 1)) // config.tile_m
    tiles_n = (n + (config.tile_n - 1)) // config.tile_n
    tile_m, tile_n = group_along_m(pid, tiles_m, tiles_n, config.group_m)
    m0, n0 = tile_m * config.tile_m, tile_n * config.tile_n

    lds = fx.Int32(fx.ptrtoint(fx.SharedAllocator().allocate(lds_bytes(spec)).peek().ptr))
    a = Operand(
        ga,
        lds,
        a_address,
        m0,
        extents=(m, k),
        strides=(lda, a_inner) if ga.k_contiguous else (a_inner, lda),
    )
    b = Operand(
        gb,
        lds + config.stages * ga.bytes,
        b_address,
        n0,
        extents=(n, k),
        strides=(ldb, b_inner) if gb.k_contiguous else (b_inner, ldb),
    )
    wave = fx.thread_idx.x // 64
    waves = (wave // config.waves_n, wave % config.waves_n)
    acc = multiply_ring(spec, a, b, waves, k)
    store_tile(spec, out_dtype, acc, waves, (c_address, m0, n0, m, n, ldc, lds))


def lds_bytes(spec: Any) -> int:
    """LDS bytes of the kernel: the ring, or the tile of C that reuses its space."""
    c = spec.config
    return max(c.ring_bytes(spec.dtype.bytes), c.c_tile_bytes(spec.out_dtype.bytes))


@flyc.jit
def multiply_ring(spec: Any, a: Operand, b: Operand, waves: Any, k: Any) -> list[Any]:
    """Run the ring over K.

    Returns:
        The accumulators, fragment of M major, 4 fp32 a lane each.
    """
    stages, tile_k = spec.config.stages, spec.config.tile_k
    reader = Stage(a, b, waves)
    acc = [fx.Vector.filled(4, 0.0, fx.Float32) for _ in range(a.g.fragments * b.g.fragments)]
    younger = (stages - 2) * (a.g.dma_steps + b.g.dma_steps)

    # Plain names: FlyDSL would carry an object whose method is called through the loop.
    multiply = reader.multiply

    def fill(step: Any, stage: Any) -> None:
        a.load(step, stage)
        b.load(step, stage)

    for stage in range_constexpr(stages - 1):
        fill(fx.Int32(stage), fx.Int32(stage))
    full = k // tile_k
    for step in range(0, full, 1):
        ops.wait(vmcnt=younger, lgkmcnt=0)
        ops.barrier()
        ahead = step + (stages - 1)
        fill(ahead, ahead % stages)
        acc = multiply(acc, step % stages)
    if const_expr(spec.k_tail):
        ops.wait(vmcnt=younger, lgkmcnt=0)
        ops.barrier()
        acc = multiply(acc, full % stages, remaining=k - full * tile_k)
    return acc
