"""Kernel entry points: a KernelSpec in, a FlyDSL launcher out.

Every kernel takes the same arguments, so that one host wrapper serves all of them.
"""

from __future__ import annotations

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx
from flydsl.expr import const_expr

from ..signature import INTEGERS, LONGS, POINTERS
from . import direct, grouped, hti, ops, rolled, staged, stream_k
from .workgroup import Launched, Sizes, Workgroup

BODIES = {
    "staged": staged.body,
    "hti": hti.body,
    "rolled": rolled.body,
    "direct": direct.body,
}


def build(spec: Any) -> Any:
    """The FlyDSL launcher of a KernelSpec.

    Returns:
        A ``flyc.jit`` function of POINTERS, LONGS (Int64), INTEGERS (Int32) and a Stream.
    """
    body = BODIES[spec.config.pipeline]
    threads = spec.config.threads

    def layers(batch: Any) -> Any:
        # Stream-K has one list of the tiles of all batches.
        return fx.Int32(1) if spec.config.stream_k else batch

    @flyc.kernel(name=spec.name, known_block_size=[threads, 1, 1])
    def kernel(
        c: fx.Pointer,
        a: fx.Pointer,
        b: fx.Pointer,
        t0: fx.Pointer,
        t1: fx.Pointer,
        t2: fx.Pointer,
        t3: fx.Pointer,
        a_scale: fx.Pointer,
        b_scale: fx.Pointer,
        workspace: fx.Pointer,
        counters: fx.Pointer,
        offsets: fx.Pointer,
        a_batch: fx.Int64,
        b_batch: fx.Int64,
        c_batch: fx.Int64,
        t0_batch: fx.Int64,
        t1_batch: fx.Int64,
        t2_batch: fx.Int64,
        t3_batch: fx.Int64,
        a_scale_batch: fx.Int64,
        b_scale_batch: fx.Int64,
        c_outer: fx.Int64,
        t0_outer: fx.Int64,
        t1_outer: fx.Int64,
        t2_outer: fx.Int64,
        t3_outer: fx.Int64,
        m: fx.Int32,
        n: fx.Int32,
        k: fx.Int32,
        lda: fx.Int32,
        ldb: fx.Int32,
        ldc: fx.Int32,
        a_inner: fx.Int32,
        b_inner: fx.Int32,
        grid: fx.Int32,
        k_split: fx.Int32,
        whole: fx.Int32,
        batch: fx.Int32,
        groups: fx.Int32,
        tiles: fx.Int32,
        tiles_multiplier: fx.Int32,
        tiles_shift: fx.Int32,
        turn: fx.Int32,
        turn_multiplier: fx.Int32,
        turn_shift: fx.Int32,
        rest: fx.Int32,
        rest_multiplier: fx.Int32,
        rest_shift: fx.Int32,
        t0_row: fx.Int32,
        t0_column: fx.Int32,
        t1_row: fx.Int32,
        t1_column: fx.Int32,
        t2_row: fx.Int32,
        t2_column: fx.Int32,
        t3_row: fx.Int32,
        t3_column: fx.Int32,
        heads: fx.Int32,
        heads_multiplier: fx.Int32,
        heads_shift: fx.Int32,
        a_scale_row: fx.Int32,
        a_scale_block: fx.Int32,
        b_scale_row: fx.Int32,
        b_scale_block: fx.Int32,
    ):
        pointers = (
            c,
            a,
            b,
            t0,
            t1,
            t2,
            t3,
            a_scale,
            b_scale,
            workspace,
            counters,
            offsets,
        )
        longs = (
            a_batch,
            b_batch,
            c_batch,
            t0_batch,
            t1_batch,
            t2_batch,
            t3_batch,
            a_scale_batch,
            b_scale_batch,
            c_outer,
            t0_outer,
            t1_outer,
            t2_outer,
            t3_outer,
        )
        integers = (
            m,
            n,
            k,
            lda,
            ldb,
            ldc,
            a_inner,
            b_inner,
            grid,
            k_split,
            whole,
            batch,
            groups,
            tiles,
            tiles_multiplier,
            tiles_shift,
            turn,
            turn_multiplier,
            turn_shift,
            rest,
            rest_multiplier,
            rest_shift,
            t0_row,
            t0_column,
            t1_row,
            t1_column,
            t2_row,
            t2_column,
            t3_row,
            t3_column,
            heads,
            heads_multiplier,
            heads_shift,
            a_scale_row,
            a_scale_block,
            b_scale_row,
            b_scale_block,
        )
        addresses = {n: fx.Int64(fx.ptrtoint(p)) for n, p in zip(POINTERS, pointers, strict=True)}
        if const_expr(spec.ragged is None):
            # Loaded together with the integers, not one by one where they are first used.
            addresses |= {n: ops.from_here(addresses[n]) for n in spec.pointers}
            ops.keep_order()
        numbers = zip((*LONGS, *INTEGERS), (*longs, *integers), strict=True)
        sizes = Sizes(**dict(numbers))
        launched = Launched.of(spec, addresses, sizes)
        if const_expr(spec.ragged is not None):
            grouped.walk(launched, body)
        elif const_expr(spec.config.stream_k > 0):
            stream_k.walk(launched, body)
        else:
            body(Workgroup.start(launched))

    @flyc.jit
    def launch(
        c: fx.Pointer,
        a: fx.Pointer,
        b: fx.Pointer,
        t0: fx.Pointer,
        t1: fx.Pointer,
        t2: fx.Pointer,
        t3: fx.Pointer,
        a_scale: fx.Pointer,
        b_scale: fx.Pointer,
        workspace: fx.Pointer,
        counters: fx.Pointer,
        offsets: fx.Pointer,
        a_batch: fx.Int64,
        b_batch: fx.Int64,
        c_batch: fx.Int64,
        t0_batch: fx.Int64,
        t1_batch: fx.Int64,
        t2_batch: fx.Int64,
        t3_batch: fx.Int64,
        a_scale_batch: fx.Int64,
        b_scale_batch: fx.Int64,
        c_outer: fx.Int64,
        t0_outer: fx.Int64,
        t1_outer: fx.Int64,
        t2_outer: fx.Int64,
        t3_outer: fx.Int64,
        m: fx.Int32,
        n: fx.Int32,
        k: fx.Int32,
        lda: fx.Int32,
        ldb: fx.Int32,
        ldc: fx.Int32,
        a_inner: fx.Int32,
        b_inner: fx.Int32,
        grid: fx.Int32,
        k_split: fx.Int32,
        whole: fx.Int32,
        batch: fx.Int32,
        groups: fx.Int32,
        tiles: fx.Int32,
        tiles_multiplier: fx.Int32,
        tiles_shift: fx.Int32,
        turn: fx.Int32,
        turn_multiplier: fx.Int32,
        turn_shift: fx.Int32,
        rest: fx.Int32,
        rest_multiplier: fx.Int32,
        rest_shift: fx.Int32,
        t0_row: fx.Int32,
        t0_column: fx.Int32,
        t1_row: fx.Int32,
        t1_column: fx.Int32,
        t2_row: fx.Int32,
        t2_column: fx.Int32,
        t3_row: fx.Int32,
        t3_column: fx.Int32,
        heads: fx.Int32,
        heads_multiplier: fx.Int32,
        heads_shift: fx.Int32,
        a_scale_row: fx.Int32,
        a_scale_block: fx.Int32,
        b_scale_row: fx.Int32,
        b_scale_block: fx.Int32,
        stream: fx.Stream,
    ):
        kernel(
            c,
            a,
            b,
            t0,
            t1,
            t2,
            t3,
            a_scale,
            b_scale,
            workspace,
            counters,
            offsets,
            a_batch,
            b_batch,
            c_batch,
            t0_batch,
            t1_batch,
            t2_batch,
            t3_batch,
            a_scale_batch,
            b_scale_batch,
            c_outer,
            t0_outer,
            t1_outer,
            t2_outer,
            t3_outer,
            m,
            n,
            k,
            lda,
            ldb,
            ldc,
            a_inner,
            b_inner,
            grid,
            k_split,
            whole,
            batch,
            groups,
            tiles,
            tiles_multiplier,
            tiles_shift,
            turn,
            turn_multiplier,
            turn_shift,
            rest,
            rest_multiplier,
            rest_shift,
            t0_row,
            t0_column,
            t1_row,
            t1_column,
            t2_row,
            t2_column,
            t3_row,
            t3_column,
            heads,
            heads_multiplier,
            heads_shift,
            a_scale_row,
            a_scale_block,
            b_scale_row,
            b_scale_block,
        ).launch(grid=(grid, layers(batch), 1), block=(threads, 1, 1), stream=stream)

    return launch


def placeholders() -> tuple[Any, ...]:
    """Arguments that compile a launcher without launching it."""
    pointers = (flyc.from_c_void_p(fx.Uint8, None) for _ in POINTERS)
    longs, integers = (fx.Int64(1) for _ in LONGS), (fx.Int32(1) for _ in INTEGERS)
    return (*pointers, *longs, *integers, fx.Stream(None))
