"""Which configurations are legal for a problem, and in words why the others are not.

`why_not` and `problem_limit` hold every legality rule: the pruner, the Inductor hook, the tests
and ``explain`` all call them.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

from . import direct
from .arch import Arch
from .arguments import launch_arguments
from .config import (
    LOAD_BYTES,
    MFMA_K_F8F6F4,
    MFMA_M,
    MFMA_N,
    VMCNT_MAX,
    WAVE_SIZE,
    GemmConfig,
    KernelSpec,
    store_width,
)
from .fusion import INDEX_EXTENT
from .grouping import Axis
from .problem import BATCH_STRIDES, DType, GemmProblem
from .scaling import BLOCK, ScaleLayout
from .variants import TILE_K, TILE_K_SCALED, TWO_PLACES_ACCUMULATORS, every_config

INT32_MAX = 2**31 - 1
# Of user space on x86-64, which HIP shares.
ADDRESSES_MAX = 2**47 - 1
# A buffer descriptor counts bytes in 32 bits (CDNA4 ISA guide, buffer resource descriptor), and
# per-lane offsets are kept signed.
BUFFER_BYTES = 2**31 - 1
# With more, kernels that gather an operand spill registers (256x256 tiles of 8 waves, by 61).
GATHER_ACCUMULATORS = 64
# Registers of a staged kernel that are neither accumulators nor fragments, at the least.
ADDRESSES = 16
# Waves of a workgroup that are one a SIMD.
WAVES_ALONE = 4
# K is a multiple of this for 8-bit operands, as in torch: a 16-byte piece never has K's end inside.
SCALED_K = 16
OUT_TYPES = (DType.BF16, DType.FP16, DType.FP32)
# What an epilogue may give beside those.
NARROW_TYPES = (DType.FP8_E4M3, DType.FP8_E5M2)
OPS = ("mm", "addmm", "bmm", "baddbmm", "grouped_mm", "scaled_mm", "scaled_grouped_mm")
# Offsets of a grouped problem are held a lane each, in registers of every wave.
GROUPS = 16 * WAVE_SIZE
# Bytes of the narrowest store of 8-bit results.
NARROW_BYTES = 4
# Workgroups of a launch along the second axis of the grid (HIP's limit).
GRID_Y = 65535
# Scratch memory a split-K launch may ask for.
WORKSPACE_BYTES = 256 << 20


def k_multiple(problem: GemmProblem) -> int:
    """What K must be a multiple of."""
    if problem.block_scaled:
        return BLOCK
    return SCALED_K if problem.dtype.scaled else 1


def problem_limit(problem: GemmProblem, arch: Arch) -> str | None:
    """Why no kernel here serves `problem` on `arch`, or None if one does."""
    p = problem
    if p.op not in OPS:
        return f"op {p.op} has no kernel yet; supported: {', '.join(OPS)}"
    limit = _type_limit(p)
    if limit:
        return limit
    if p.batch > GRID_Y:
        return f"batch={p.batch} exceeds the {GRID_Y} of a launch"
    limit = _grouping_limit(p)
    if limit:
        return limit
    if p.fusion is not None and p.fusion.indexed:
        if p.grouping is not None:
            return "an epilogue that asks where an element lies has no grouped kernel"
        if max(p.batch, p.m, p.n) > INDEX_EXTENT:
            return f"an epilogue counts rows and columns up to {INDEX_EXTENT}"
    strides = [stride for _, *steps in p.tensors for stride in steps]
    if any(stride > INT32_MAX for stride in strides):
        return f"a stride of the epilogue's tensors ({max(strides)}) does not fit in 32 bits"
    for name in ("m", "n", "k", "lda", "ldb", "ldc", "a_inner", "b_inner"):
        if getattr(p, name) > INT32_MAX:
            return f"{name}={getattr(p, name)} does not fit in 32 bits"
    apart = [*(getattr(p, name) for name in BATCH_STRIDES), *(t[0] for t in p.tensors), *p.outer]
    apart += [scales.batch for scales in (p.a_scales, p.b_scales) if scales is not None]
    if max(apart) > ADDRESSES_MAX:
        return f"batches {max(apart)} elements apart are over the {ADDRESSES_MAX} of an address"
    for name, rows, scales in (("A", p.m, p.a_scales), ("B", p.n, p.b_scales)):
        if scales is None:
            continue
        if scales.bytes(rows, p.k) > BUFFER_BYTES:
            return f"the scales of {name} span over the {BUFFER_BYTES} bytes of a descriptor"
    return None


def _grouping_limit(p: GemmProblem) -> str | None:
    if p.op.endswith("grouped_mm") != (p.grouping is not None):
        return f"op {p.op} with grouping={p.grouping}: a grouped_mm has one, and no other op"
    if p.grouping is None:
        return None
    if p.grouping.groups > GROUPS:
        return f"groups={p.grouping.groups} exceed the {GROUPS} whose offsets a wave holds"
    swizzled = p.b_scales is not None and p.b_scales.layout is ScaleLayout.SWIZZLED
    if swizzled and p.grouping.axis is Axis.N:
        return "swizzled block scales of columns that groups share have no kernel"
    return None


def _type_limit(p: GemmProblem) -> str | None:
    wide = (DType.BF16, DType.FP16)
    if p.dtype.scaled:
        if not p.b_type.scaled:
            return f"A of {p.dtype.value} and B of {p.b_type.value} have no kernel"
        limit = _out_limit(p)
        if limit:
            return limit
        if p.k % k_multiple(p):
            return f"k={p.k} is not a multiple of {SCALED_K}, which {p.dtype.value} needs"
        if DType.FP4 in (p.dtype, p.b_type) and not p.block_scaled:
            return "FP4 without block scales has no kernel"
        return None
    if p.b_dtype:
        return (
            f"A of {p.dtype.value} and B of {p.b_dtype.value} have no kernel: they differ in type, "
            "which only 8- and 4-bit types may"
        )
    if p.dtype not in wide:
        return dtype_limit(p.dtype.value)
    if p.block_scaled:
        return f"block scales of {p.dtype.value} have no kernel"
    return _out_limit(p)


def dtype_limit(name: str) -> str:
    """That operands of a type have no kernel, in words."""
    return (
        f"dtype {name} has no kernel; supported: bfloat16, float16, and the 8- and 4-bit types of "
        "scaled_mm"
    )


def _out_limit(p: GemmProblem) -> str | None:
    outputs = [(p.out_dtype, store_width(p))]
    if p.fusion is not None:
        outputs += [(store.dtype, store.width) for store in p.fusion.stores]
    for dtype, width in outputs:
        if dtype in OUT_TYPES:
            continue
        if dtype not in NARROW_TYPES or p.fusion is None:
            return f"output {dtype.value} has no kernel; supported: bfloat16, float16, float32"
        if width < NARROW_BYTES or (p.grouping is not None and p.grouping.axis is Axis.N):
            return f"{dtype.value} is stored four neighbours of a row at a time"
    return None


def why_not(problem: GemmProblem, config: GemmConfig, arch: Arch) -> str | None:
    """Why `config` cannot run `problem` on `arch`, or None if it can."""
    return (
        problem_limit(problem, arch)
        or _tile_limit(problem, config)
        or _pipeline_limit(config)
        or _room_limit(problem, config, arch)
        or _split_limit(problem, config, arch)
        or _span_limit(problem, config)
        or _group_limit(problem, config, arch)
        or _load_limit(KernelSpec.of(problem, config))
    )


def _tile_limit(problem: GemmProblem, config: GemmConfig) -> str | None:
    steps = TILE_K_SCALED if problem.dtype.scaled else TILE_K
    if config.tile_k not in steps and not config.direct:
        what = f" of {problem.dtype.value}" if problem.dtype.scaled else ""
        return f"tile_k={config.tile_k}{what} has no LDS layout; use one of {steps}"
    for name, waves in (("tile_m", config.waves_m), ("tile_n", config.waves_n)):
        tile = getattr(config, name)
        if tile & (tile - 1):
            return f"{name}={tile} is not a power of two"
        if tile % (MFMA_M * waves * config.parts):
            return f"{name}={tile} is not a multiple of {MFMA_M * waves * config.parts}"
    return None


def _pipeline_limit(config: GemmConfig) -> str | None:
    if config.pipeline == "hti":
        if config.stages != 2:
            return f"stages={config.stages}: the hti pipeline has 2"
        if config.waves_m != 2 or config.waves_n < 2:
            grid = f"{config.waves_m} by {config.waves_n}"
            return f"waves {grid}: hti needs two wave groups, 2 by 2 or more"
    if config.waves_k > 1 and not config.direct:
        return f"waves_k={config.waves_k}: only waves of the direct pipeline share a K step"
    if config.pipeline == "rolled":
        limit = _rolled_limit(config)
        if limit:
            return limit
    if config.direct:
        limit = direct.limit(config)
        if limit:
            return limit
    if config.stages < 2:
        return f"stages={config.stages}: the LDS ring needs at least 2"
    return None


def _rolled_limit(config: GemmConfig) -> str | None:
    if config.stages < 4 or config.stages & (config.stages - 1):
        return f"stages={config.stages}: the rolled pipeline has a power of two of them, 4 or more"
    if config.tile_k != MFMA_K_F8F6F4:
        return f"tile_k={config.tile_k}: a step of the rolled pipeline is one instruction's"
    if config.split_k > 1:
        return f"split_k={config.split_k}: the rolled pipeline has no registers left to reduce with"
    if config.waves_m * config.waves_n != WAVES_ALONE:
        return f"{config.waves} waves: rolled needs {WAVES_ALONE}, one a SIMD"
    return None


def _span_limit(problem: GemmProblem, config: GemmConfig) -> str | None:
    """Kernels address tiles with 64 bits, and what lies in a tile with a descriptor's."""
    p, c = problem, config
    m, n = min(p.m, c.tile_m), min(p.n, c.tile_n)
    a_k, b_k = (min(p.k, c.tile_k) // t.packed for t in (p.dtype, p.b_type))
    for name, along_k, (rows, cols), (ld, inner), size in (
        ("A", p.layout.a_k_contiguous, (m, a_k), (p.lda, p.a_inner), p.dtype.bytes),
        ("B", p.layout.b_k_contiguous, (n, b_k), (p.ldb, p.b_inner), p.b_type.bytes),
        ("C", True, (m, n), (p.ldc, 1), p.out_dtype.bytes),
    ):
        lines, along = (rows, cols) if along_k else (cols, rows)
        extent = ((lines - 1) * ld + (along - 1) * inner + 1) * size
        if extent > BUFFER_BYTES:
            return (
                f"a K step of a tile of {name} spans {extent} bytes, over the {BUFFER_BYTES} of a "
                "descriptor"
                if name != "C"
                else f"a tile of C spans {extent} bytes, over the {BUFFER_BYTES} of a descriptor"
            )
    for index, (_, row, column) in enumerate(p.tensors):
        extent = ((m - 1) * row + (n - 1) * column + 1) * 4
        if extent > BUFFER_BYTES:
            return f"a tile of the epilogue's tensor {index} spans {extent} bytes"
    return None


def _split_limit(problem: GemmProblem, config: GemmConfig, arch: Arch) -> str | None:
    steps = -(-problem.k // config.tile_k)
    if config.split_k > steps:
        return f"split_k={config.split_k} exceeds the {steps} K steps of {config.tile_k}"
    return _stream_limit(problem, config, arch) or _workspace_limit(problem, config, arch)


def _stream_limit(problem: GemmProblem, config: GemmConfig, arch: Arch) -> str | None:
    if not config.stream_k:
        return None
    given = f"stream_k={config.stream_k} with split_k={config.split_k}"
    if config.split_k <= config.stream_k:
        return f"{given}: more workgroups than tiles share them"
    if not config.shares:
        return f"{given}: some tiles would be shared by more workgroups than others"
    if config.stream_k > 1 and config.accumulators > TWO_PLACES_ACCUMULATORS:
        return (
            f"{given}: {config.accumulators} accumulators leave too few registers for a workgroup "
            f"that has two tiles in turn, {TWO_PLACES_ACCUMULATORS} at most"
        )
    tiles_m, tiles_n = config.tiles(problem)
    tiles = tiles_m * tiles_n * problem.batch
    if tiles == config.whole(problem, arch.compute_units):
        return (
            f"{given}: no round is partial, {tiles} tiles fill {arch.compute_units} compute units"
        )
    if config.stream_k == 1 and not config.whole(problem, arch.compute_units):
        return f"{given}: no round is full, so that it would be split-K"
    return None


def _workspace_limit(problem: GemmProblem, config: GemmConfig, arch: Arch) -> str | None:
    workspace, _ = config.workspace(problem, arch.compute_units)
    if workspace > WORKSPACE_BYTES:
        return (
            f"split_k={config.split_k} needs {workspace} bytes of scratch, over {WORKSPACE_BYTES}"
        )
    return None


def _group_limit(problem: GemmProblem, config: GemmConfig, arch: Arch) -> str | None:
    if problem.grouping is not None and config.direct:
        return "the direct pipeline has no groups"
    if problem.grouping is None:
        if config.persistent:
            return f"persistent={config.persistent}: only grouped problems have tiles in turn"
        return None
    if config.split_k > 1:
        return f"split_k={config.split_k}: grouped kernels do not split K"
    if config.pipeline == "rolled":
        return "the rolled pipeline has no registers left for groups"
    grid = launch_arguments(problem, config, arch.compute_units)["grid"]
    if grid > INT32_MAX // WAVE_SIZE // config.waves:
        return f"{grid} workgroups of {config.threads} threads exceed a launch's 2^31"
    lds = KernelSpec.of(problem, config).lds_bytes * config.persistent
    waves = config.waves * config.persistent
    registers = arch.registers_per_lane * arch.simds_per_cu // max(1, waves)
    if lds > arch.lds_bytes or config.accumulators * 3 // 2 > registers:
        return f"persistent={config.persistent}: so many workgroups do not fit on a CU at a time"
    return None


def size_limit(problem: GemmProblem, config: GemmConfig, arch: Arch) -> str | None:
    """Why a kernel of `config` cannot be launched with the sizes of `problem`, or None.

    For problems whose sizes are only known then: what a kernel is specialised on is not asked.
    """
    return (
        problem_limit(problem, arch)
        or _span_limit(problem, config)
        or _workspace_limit(problem, config, arch)
        or _group_limit(problem, config, arch)
    )


def _room_limit(problem: GemmProblem, config: GemmConfig, arch: Arch) -> str | None:
    c = config
    if c.waves > arch.max_waves_per_workgroup:
        return f"{c.waves} waves exceed the {arch.max_waves_per_workgroup} of a workgroup"
    lds = KernelSpec.of(problem, config).lds_bytes
    if lds > arch.lds_bytes:
        return f"{lds} bytes of LDS exceed the {arch.lds_bytes} of a CU"
    waves_per_simd = -(-c.waves // arch.simds_per_cu)
    registers = arch.registers_per_lane // waves_per_simd
    if c.pipeline == "staged":
        across = c.tile_m // (MFMA_M * c.waves_m) + c.tile_n // (MFMA_N * c.waves_n)
        # Of the instruction under way and of the next: 32 bytes a lane and row fragment of FP8,
        # else 16; and addresses. A 256x256 tile of 16 waves spills 13 registers.
        bits = max(problem.dtype.bits, problem.b_type.bits)
        held = 2 * across * bits if problem.dtype.scaled else 2 * across * bits // 4 + ADDRESSES
        if c.accumulators + held > registers:
            return f"{c.accumulators} accumulators and {held} of fragments exceed {registers}"
    if c.accumulators > registers // 2:
        return f"{c.accumulators} accumulators take over half of a wave's {registers} registers"
    return None


def _load_limit(spec: KernelSpec) -> str | None:
    config = spec.config
    if config.direct:
        return direct.load_limit(spec)
    for name, tile, load, dtype in (
        ("A", config.tile_m, spec.a_load, spec.dtype),
        ("B", config.tile_n, spec.b_load, spec.b_type),
    ):
        rows = tile // config.parts
        size = LOAD_BYTES[load]
        # Along M or N what is stored are pairs of FP4 along K.
        along_k = spec.k_contiguous(name.lower())
        line = config.tile_k * dtype.bits // 8 if along_k else rows * dtype.bytes
        if line % LOAD_BYTES["dma16"]:
            return f"a {line}-byte line of {name} in LDS is not a multiple of 16 bytes"
        if rows * config.tile_k * dtype.bits // 8 % (config.threads * size):
            return f"{config.threads} threads of {size}-byte loads do not tile {name} in LDS evenly"
    if "gather" in (spec.a_load, spec.b_load) and config.accumulators > GATHER_ACCUMULATORS:
        return (
            f"{config.accumulators} accumulators leave too few registers for loads element by "
            f"element, {GATHER_ACCUMULATORS} at most"
        )
    younger = config.loads_ahead * dma_per_stage(spec)
    if younger > VMCNT_MAX:
        return f"{younger:.0f} loads in flight exceed the wait counter's {VMCNT_MAX}"
    return None


def dma_per_stage(spec: KernelSpec) -> int:
    """DMA instructions a wave issues to fill one stage of the ring; gathers are no DMA."""
    config = spec.config
    total = 0
    for rows, load, dtype in (
        (config.tile_m, spec.a_load, spec.dtype),
        (config.tile_n, spec.b_load, spec.b_type),
    ):
        if load != "gather":
            bits = rows * config.tile_k * dtype.bits
            total += bits // (8 * config.threads * LOAD_BYTES[load])
    if spec.block_scaled and "gather" not in (spec.a_scales, spec.b_scales):
        total += spec.scale_ring.dma_steps
    return total


def candidates(problem: GemmProblem, arch: Arch) -> list[GemmConfig]:
    """Every legal configuration for `problem` on `arch`, in a fixed order.

    An empty list always has its reason in `problem_limit` or, config by config, in `why_not`.
    """
    return [c for c in configs(problem) if why_not(problem, c, arch) is None]


def configs(problem: GemmProblem) -> list[GemmConfig]:
    """The space that a problem of this kind is given, legal or not, in a fixed order."""
    # K steps of other types are no news in a list of what is not legal.
    steps = TILE_K_SCALED if problem.dtype.scaled else TILE_K
    everything = [config for config in every_config() if config.tile_k in steps]
    if problem.grouping is None:
        return everything
    return [
        replace(config, persistent=count)
        for config, count in itertools.product(everything, _PERSISTENT)
        if config.split_k == 1 and config.xcd_remap
    ]


# Workgroups a compute unit that take the tiles of a grouped problem in turn. One a tile (0) needs
# a launch for the most tiles that groups may have, and the surplus of it costs rounds: on the
# emulated clock up to 1.7 times the time (8 groups of 4096x4096x4096 in all).
_PERSISTENT = (1, 2, 4)


def usual_limit(problem: GemmProblem, arch: Arch) -> str:
    """In words why no configuration is legal: one reason of the rule that forbids most of them."""
    found: dict[str, list[str]] = {}
    for config in configs(problem):
        reason = why_not(problem, config, arch)
        if reason is not None:
            found.setdefault(re.sub(r"\d+", "#", reason), []).append(reason)
    reasons = max(found.values(), key=len)
    return f"no configuration is legal, {len(reasons)} of them because {reasons[0]}"
