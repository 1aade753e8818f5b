"""Every configuration that there is, whatever the problem.

Owns which tiles, stages, waves, splits and orders are listed, and why no others. Knows nothing of
problems: what is legal for one is `space`'s.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from . import direct
from .config import MFMA_K_F8F6F4, MFMA_M, MFMA_N, GemmConfig

TILE_K = (32, 64, 128)
# Multiples of the 128 of an f8f6f4 instruction.
TILE_K_SCALED = (128, 256, 512)
# Beyond, workgroups that sum two tiles in turn spill (256x256 tiles of 8 waves, by 18 registers).
TWO_PLACES_ACCUMULATORS = 64
_TILES: tuple[tuple[int, int], ...] = (
    (256, 256),
    (256, 128),
    (128, 256),
    (128, 128),
    (128, 64),
    (64, 128),
    (64, 64),
)
_TILES += ((32, 128), (32, 64), (16, 128), (16, 64), (64, 32), (64, 16), (32, 32), (16, 32))
_TILES += ((32, 16), (16, 16))


def every_config() -> list[GemmConfig]:
    """The whole space, legal or not for any one problem, in a fixed order."""
    return list(dict.fromkeys([*_space(False), *_space(True)]))


def _space(scaled: bool) -> list[GemmConfig]:
    """The space of 16-bit operands, or of narrower ones, whose K steps are longer."""
    tiles_k = TILE_K_SCALED if scaled else TILE_K
    whole = [*_staged_configs(tiles_k), *_hti_configs((128, 256) if scaled else (32, 64))]
    whole += _rolled_configs() if scaled else []
    split = _split_configs(whole, shortest=tiles_k[0])
    streams = _stream_configs(whole)
    return [*whole, *split, *streams, *([] if scaled else direct.configs(_SPLITS[:2]))]


_SPLITS = (2, 4, 8, 16)
# (group_m, xcd_remap)
_ORDERS = ((0, False), (8, True))


def _split_configs(configs: list[GemmConfig], shortest: int) -> Iterator[GemmConfig]:
    """Split-K pays where a launch has few tiles. Splits of a tile read what others read too, so
    each XCD takes a run of one split's tiles."""
    for config, split in itertools.product(configs, _SPLITS):
        deep = config.pipeline == "hti" or (config.pipeline == "staged" and config.stages > 3)
        area = config.tile_m * config.tile_n
        small = config.pipeline == "hti" or area <= 128 * 128
        worth = area >= 32 * 32 or config.stages <= 4
        # With more, the reduction spills: 256x256 tiles in 8, by 25 registers.
        few = config.accumulators * split <= 512
        if config.xcd_remap and deep and small and worth and few and config.tile_k > shortest:
            yield replace(config, split_k=split)


# (workgroups, tiles that they share)
_STREAMS = ((2, 1), (3, 1), (4, 1), (6, 1), (8, 1), (3, 2), (4, 3))


def _stream_configs(configs: list[GemmConfig]) -> Iterator[GemmConfig]:
    """Stream-K pays where rounds are long: with large tiles, one a compute unit at a time."""
    for config, (split, tiles) in itertools.product(configs, _STREAMS):
        large = config.pipeline == "hti" and config.tile_m * config.tile_n > 128 * 128
        few = config.accumulators * split <= 1024
        alone = tiles == 1 or config.accumulators <= TWO_PLACES_ACCUMULATORS
        if config.xcd_remap and large and few and alone and config.tile_k > TILE_K[0]:
            yield replace(config, split_k=split, stream_k=tiles)


def _staged_configs(tiles_k: tuple[int, ...]) -> Iterator[GemmConfig]:
    for (tile_m, tile_n), tile_k in itertools.product(_TILES, tiles_k):
        for stages, grid in itertools.product(
            _stages(tile_m * tile_n, tile_k == tiles_k[-1]), _wave_grids(tile_m, tile_n)
        ):
            for group_m, xcd_remap in _ORDERS:
                yield GemmConfig(
                    tile_m=tile_m,
                    tile_n=tile_n,
                    tile_k=tile_k,
                    stages=stages,
                    waves_m=grid[0],
                    waves_n=grid[1],
                    group_m=group_m,
                    xcd_remap=xcd_remap,
                )


def _stages(area: int, longest: bool) -> tuple[int, ...]:
    """Stages of a ring: small tiles need many to keep enough bytes in flight. Where the model
    sees no difference the first is the better.

    Args:
        area: of the tile.
        longest: the K step is the longest of the space.
    """
    if area > 128 * 128:
        return (2, 3, 4)
    if area > 64 * 64:
        return (5, 2, 3, 4)
    return (6, 2, 3, 4, 8) if longest else (8, 2, 3, 4, 6)


def _hti_configs(tiles_k: tuple[int, ...]) -> Iterator[GemmConfig]:
    tiles = ((256, 256), (256, 128), (128, 256), (128, 128))
    for tile, tile_k in itertools.product(tiles, tiles_k):
        yield from _in_orders("hti", tile, tile_k, stages=2, waves_m=2, waves_n=4)


def _rolled_configs() -> Iterator[GemmConfig]:
    for tile in _ROLLED_TILES:
        yield from _in_orders("rolled", tile, MFMA_K_F8F6F4, stages=4, waves_m=2, waves_n=2)


def _in_orders(
    pipeline: str, tile: tuple[int, int], tile_k: int, **fields: int
) -> Iterator[GemmConfig]:
    """One kernel in every order of tiles."""
    for group_m, xcd_remap in _ORDERS:
        yield GemmConfig(
            pipeline=pipeline,
            tile_m=tile[0],
            tile_n=tile[1],
            tile_k=tile_k,
            group_m=group_m,
            xcd_remap=xcd_remap,
            **fields,
        )


_ROLLED_TILES = ((256, 256), (256, 128), (128, 256))
# Twice as many waves as `_wave_grids` gives, where more waves hide more latency.
_MORE_WAVES = {
    (128, 128): (2, 4), (128, 64): (2, 4), (64, 128): (2, 4), (32, 64): (2, 2), (64, 32): (2, 2),
    (32, 32): (2, 2), (16, 64): (1, 4), (16, 128): (1, 4), (16, 32): (1, 2), (32, 16): (2, 1),
}  # fmt: skip


def _wave_grids(tile_m: int, tile_n: int) -> list[tuple[int, int]]:
    area = tile_m * tile_n
    waves = 8 if area >= 256 * 256 else 4 if area >= 64 * 64 else 2 if area >= 32 * 32 else 1
    grids = [(wm, waves // wm) for wm in (1, 2, 4) if waves % wm == 0]
    grids += [_MORE_WAVES[tile_m, tile_n]] if (tile_m, tile_n) in _MORE_WAVES else []
    return [g for g in grids if tile_m // g[0] >= MFMA_M and tile_n // g[1] >= MFMA_N]
