"""Kernel entry points: a KernelSpec in, a FlyDSL launcher out.

Every kernel takes the same arguments, so that one host wrapper serves all of them.
"""

from __future__ import annotations

from typing import Any

import flydsl.compiler as flyc
import flydsl.expr as fx

from . import hti, staged
from .signature import INTEGERS, POINTERS
from .workgroup import Sizes, Workgroup

BODIES = {"staged": staged.body, "hti": hti.body}
TYPES = {"bfloat16": fx.BFloat16, "float16": fx.Float16, "float32": fx.Float32}


def build(spec: Any) -> Any:
    """The FlyDSL launcher of a KernelSpec.

    Returns:
        A ``flyc.jit`` function of POINTERS, INTEGERS (Int32) and a Stream.
    """
    body = BODIES[spec.config.pipeline]
    types = TYPES[spec.dtype.value], TYPES[spec.out_dtype.value]
    threads = spec.config.threads

    @flyc.kernel(name=spec.name, known_block_size=[threads, 1, 1])
    def kernel(
        c: fx.Pointer,
        a: fx.Pointer,
        b: fx.Pointer,
        m: fx.Int32,
        n: fx.Int32,
        k: fx.Int32,
        lda: fx.Int32,
        ldb: fx.Int32,
        ldc: fx.Int32,
        a_inner: fx.Int32,
        b_inner: fx.Int32,
        grid: fx.Int32,
    ):
        integers = (m, n, k, lda, ldb, ldc, a_inner, b_inner, grid)
        sizes = Sizes(**dict(zip(INTEGERS, integers, strict=True)))
        addresses = tuple(fx.Int64(fx.ptrtoint(p)) for p in (c, a, b))
        body(Workgroup.start(spec, types, addresses, sizes))

    @flyc.jit
    def launch(
        c: fx.Pointer,
        a: fx.Pointer,
        b: fx.Pointer,
        m: fx.Int32,
        n: fx.Int32,
        k: fx.Int32,
        lda: fx.Int32,
        ldb: fx.Int32,
        ldc: fx.Int32,
        a_inner: fx.Int32,
        b_inner: fx.Int32,
        grid: fx.Int32,
        stream: fx.Stream,
    ):
        kernel(c, a, b, m, n, k, lda, ldb, ldc, a_inner, b_inner, grid).launch(
            grid=(grid, 1, 1), block=(threads, 1, 1), stream=stream
        )

    return launch


def placeholders() -> tuple[Any, ...]:
    """Arguments that compile a launcher without launching it."""
    integers = tuple(fx.Int32(1) for _ in INTEGERS)
    return (*(flyc.from_c_void_p(fx.Uint8, None) for _ in POINTERS), *integers, fx.Stream(None))
