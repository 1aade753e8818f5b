"""What the direct pipeline can do, and which of its configurations are worth listing.

Owns the legality that is its own; what all pipelines share is `space`'s. Its kernels are in
``templates/direct.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .config import LOAD_BYTES, MFMA_K, MFMA_M, MFMA_N, VMCNT_MAX, WAVE_SIZE, GemmConfig, KernelSpec

# Registers of a wave, at most, so that two fit on a SIMD; those that are neither accumulators nor
# loads.
REGISTERS, ADDRESSES = 240, 16
# With more accumulators, kernels that gather an operand spill registers.
GATHER_ACCUMULATORS = 64
TILES: tuple[tuple[int, int], ...] = (
    (64, 128),
    (128, 64),
    (64, 64),
    (32, 128),
    (32, 64),
    (64, 32),
    (16, 128),
)
TILES += ((32, 32), (16, 64), (64, 16), (16, 32), (32, 16), (16, 16))
WAVES = 4
# Tiles, of rows and columns together, of which four K steps are in flight, and not two.
SMALL = 96
# Splits add what takes longer than memory does for smaller tiles.
SPLIT_AREA = 32 * 32


def limit(config: GemmConfig) -> str | None:
    """Why no kernel of the pipeline has this configuration, or None."""
    if config.stream_k:
        return f"stream_k={config.stream_k}: the direct pipeline has one tile a workgroup"
    if config.waves_m * config.waves_n > 1:
        grid = f"{config.waves_m} by {config.waves_n}"
        return f"waves {grid}: those of the direct pipeline all share the tile"
    if config.waves_k < 2 or config.waves_k & (config.waves_k - 1):
        return f"waves_k={config.waves_k}: the direct pipeline has a power of two, 2 or more"
    share = config.waves_k * MFMA_K
    if config.tile_k not in (share, 2 * share, 4 * share):
        return f"tile_k={config.tile_k}: direct takes 1, 2 or 4 times {share} for its waves"
    if config.stages & (config.stages - 1):
        return f"stages={config.stages}: a turn of the direct pipeline is a power of two"
    loads = loads_in_flight(config)
    if loads > VMCNT_MAX:
        return f"{loads} loads in flight exceed the wait counter's {VMCNT_MAX}"
    registers = config.accumulators + 4 * loads + ADDRESSES
    if registers > REGISTERS:
        return f"{registers} registers for a turn's loads and accumulators exceed {REGISTERS}"
    return None


def loads_in_flight(config: GemmConfig) -> int:
    """Loads that a wave of the direct pipeline has in flight at most."""
    fragments = config.tile_m // MFMA_M + config.tile_n // MFMA_N
    return config.stages * fragments * config.tile_k // (config.waves_k * MFMA_K)


def load_limit(spec: KernelSpec) -> str | None:
    """Why its waves cannot load the operands of a kernel, or None."""
    config = spec.config
    if spec.dtype.scaled:
        return f"the direct pipeline has no matrix instruction for {spec.dtype.value}"
    share = config.tile_k // config.waves_k
    for name, rows in (("a", config.tile_m), ("b", config.tile_n)):
        size = LOAD_BYTES[getattr(spec, f"{name}_load")]
        if not spec.to_registers(name) and rows * share * spec.dtype.bytes % (WAVE_SIZE * size):
            return f"a wave's {size}-byte loads do not tile its part of {name.upper()} evenly"
    few = config.finishers < config.waves
    if few and any(spec.through_lds(output) for output in spec.outputs):
        return f"{config.blocks} blocks of C go through LDS, which takes one for each wave"
    gathers = "gather" in (spec.a_load, spec.b_load)
    if gathers and config.accumulators > GATHER_ACCUMULATORS:
        return f"{config.accumulators} accumulators leave too few registers to gather"
    return None


def configs(splits: tuple[int, ...]) -> Iterator[GemmConfig]:
    """The configurations that are listed, in a fixed order.

    The waves of a compute unit have 32 to 96 KiB of loads in flight, which is what its memory pipe
    holds or more; other numbers of waves and of K steps take the same time within 2 % on the
    emulated clock.

    Args:
        splits: of K, beside none.
    """
    for tile_m, tile_n in TILES:
        whole = GemmConfig(
            pipeline="direct",
            tile_m=tile_m,
            tile_n=tile_n,
            tile_k=WAVES * MFMA_K,
            stages=4 if tile_m + tile_n <= SMALL else 2,
            waves_m=1,
            waves_n=1,
            waves_k=WAVES,
        )
        yield whole
        grouped = replace(whole, group_m=8, xcd_remap=True)
        yield grouped
        if tile_m * tile_n >= SPLIT_AREA:
            yield from (replace(grouped, split_k=split) for split in splits)
