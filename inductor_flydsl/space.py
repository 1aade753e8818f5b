"""Which configurations are legal for a problem, and in words why the others are not.

`why_not` and `problem_limit` hold every legality rule: the pruner, the Inductor hook, the tests
and ``explain`` all call them.
"""

from __future__ import annotations

import itertools

from .arch import Arch
from .config import LOAD_BYTES, MFMA_M, MFMA_N, GemmConfig, KernelSpec
from .problem import DType, GemmProblem

INT32_MAX = 2**31 - 1
# A buffer descriptor counts bytes in 32 bits (CDNA4 ISA guide, buffer resource descriptor), and
# per-lane offsets are kept signed.
BUFFER_BYTES = 2**31 - 1
VMCNT_MAX = 63


def problem_limit(problem: GemmProblem, arch: Arch) -> str | None:
    """Why no kernel here serves `problem` on `arch`, or None if one does."""
    p = problem
    if p.op != "mm":
        return f"op {p.op} has no kernel yet; supported: mm"
    if p.dtype not in (DType.BF16, DType.FP16):
        return f"dtype {p.dtype.value} has no kernel; supported: bfloat16, float16"
    if p.out_dtype not in (p.dtype, DType.FP32):
        return f"output {p.out_dtype.value} from {p.dtype.value} has no kernel"
    for name in ("m", "n", "k", "lda", "ldb", "ldc", "a_inner", "b_inner"):
        if getattr(p, name) > INT32_MAX:
            return f"{name}={getattr(p, name)} does not fit in 32 bits"
    for name, rows, cols, ld, inner in (
        ("A", p.m, p.k, p.lda, p.a_inner)
        if p.layout.a_k_contiguous
        else ("A", p.k, p.m, p.lda, p.a_inner),
        ("B", p.n, p.k, p.ldb, p.b_inner)
        if p.layout.b_k_contiguous
        else ("B", p.k, p.n, p.ldb, p.b_inner),
        ("C", p.m, p.n, p.ldc, 1),
    ):
        size = p.out_dtype.bytes if name == "C" else p.dtype.bytes
        extent = ((rows - 1) * ld + (cols - 1) * inner + 1) * size
        if extent > BUFFER_BYTES:
            return f"operand {name} spans {extent} bytes, over the {BUFFER_BYTES} of a descriptor"
    return None


def _load_limit(name: str, spec: KernelSpec, load: str, k_contiguous: bool) -> str | None:
    config = spec.config
    rows = config.tile_m if name == "A" else config.tile_n
    line = (config.tile_k if k_contiguous else rows) * spec.dtype.bytes
    size = LOAD_BYTES[load]
    if line % LOAD_BYTES["dma16"]:
        return f"a {line}-byte line of {name} in LDS is not a multiple of 16 bytes"
    if rows * config.tile_k * spec.dtype.bytes % (config.threads * size):
        return f"{config.threads} threads of {size}-byte loads do not tile {name} in LDS evenly"
    return None


def why_not(problem: GemmProblem, config: GemmConfig, arch: Arch) -> str | None:
    """Why `config` cannot run `problem` on `arch`, or None if it can."""
    limit = problem_limit(problem, arch)
    if limit:
        return limit
    c = config
    size = problem.dtype.bytes
    if c.stages < 2:
        return f"stages={c.stages}: the LDS ring needs at least 2"
    if c.waves > arch.max_waves_per_workgroup:
        return f"{c.waves} waves exceed the {arch.max_waves_per_workgroup} of a workgroup"
    if c.tile_m % (MFMA_M * c.waves_m):
        return f"tile_m={c.tile_m} is not a multiple of {MFMA_M}·waves_m={MFMA_M * c.waves_m}"
    if c.tile_n % (MFMA_N * c.waves_n):
        return f"tile_n={c.tile_n} is not a multiple of {MFMA_N}·waves_n={MFMA_N * c.waves_n}"
    if c.tile_k not in (32, 64, 128):
        return f"tile_k={c.tile_k} has no LDS layout; use 32, 64 or 128"
    for name in ("tile_m", "tile_n"):
        if getattr(c, name) & (getattr(c, name) - 1):
            return f"{name}={getattr(c, name)} is not a power of two"
    lds = max(c.ring_bytes(size), c.c_tile_bytes(problem.out_dtype.bytes))
    if lds > arch.lds_bytes:
        return f"{lds} bytes of LDS exceed the {arch.lds_bytes} of a CU"
    if c.accumulators > arch.registers_per_lane // 2:
        return f"{c.accumulators} accumulators leave no registers of {arch.registers_per_lane}"
    spec = KernelSpec.of(problem, config)
    reason = _load_limit("A", spec, spec.a_load, problem.layout.a_k_contiguous)
    reason = reason or _load_limit("B", spec, spec.b_load, problem.layout.b_k_contiguous)
    return reason or _wait_limit(spec)


def _wait_limit(spec: KernelSpec) -> str | None:
    younger = (spec.config.stages - 2) * dma_per_stage(spec)
    if younger > VMCNT_MAX:
        return f"{younger} loads in flight exceed the wait counter's {VMCNT_MAX}"
    return None


def dma_per_stage(spec: KernelSpec) -> int:
    """DMA instructions a wave issues to fill one stage of the ring; gathers are no DMA."""
    config = spec.config
    total = 0
    for rows, load in ((config.tile_m, spec.a_load), (config.tile_n, spec.b_load)):
        if load != "gather":
            total += rows * config.tile_k * spec.dtype.bytes // (config.threads * LOAD_BYTES[load])
    return total


_TILES = ((256, 256), (256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
_TILES += ((32, 128), (32, 64), (16, 128), (16, 64), (64, 32), (64, 16), (32, 32), (16, 16))


def every_config() -> list[GemmConfig]:
    """The whole space, legal or not for any one problem, in a fixed order."""
    configs = []
    for (tile_m, tile_n), tile_k, stages in itertools.product(_TILES, (32, 64, 128), (2, 3, 4)):
        for waves_m, waves_n in _wave_grids(tile_m, tile_n):
            for group_m, xcd_remap in ((0, False), (8, True)):
                configs.append(
                    GemmConfig(
                        tile_m=tile_m,
                        tile_n=tile_n,
                        tile_k=tile_k,
                        stages=stages,
                        waves_m=waves_m,
                        waves_n=waves_n,
                        group_m=group_m,
                        xcd_remap=xcd_remap,
                    )
                )
    return configs


def _wave_grids(tile_m: int, tile_n: int) -> list[tuple[int, int]]:
    area = tile_m * tile_n
    waves = 8 if area >= 256 * 256 else 4 if area >= 64 * 64 else 2 if area >= 32 * 32 else 1
    grids = [(wm, waves // wm) for wm in (1, 2, 4) if waves % wm == 0]
    return [g for g in grids if tile_m // g[0] >= MFMA_M and tile_n // g[1] >= MFMA_N]


def candidates(problem: GemmProblem, arch: Arch) -> list[GemmConfig]:
    """Every legal configuration for `problem` on `arch`, in a fixed order.

    An empty list always has its reason in `problem_limit` or, config by config, in `why_not`.
    """
    return [c for c in every_config() if why_not(problem, c, arch) is None]
