"""Published times and the kernels behind them: AITER's tables and PyTorch's, as typed rows.

Owns the reading of ``bench/data``, what a kernel's name says of its tile, and the kernels a
prediction may choose from. Knows nothing of fitting.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from inductor_flydsl.arch import GFX950
from inductor_flydsl.model import Tile, Workload

from .suites import Shape, group_rows

DATA = Path(__file__).parent / "data"
KINDS = ("bf16", "mxfp4")
BANDS = ("M<=16", "M 17-256", "M 257-2048", "M>2048")
WIDTHS = {"bf16": (16, 0.0), "mxfp8": (8, 0.25), "mxfp4": (4, 0.25)}
FITTED, HELD_OUT = 0, 1
# K elements of a step of the MXFP4 kernels, 128 bytes.
MX_TILE_K = 256


@dataclass(frozen=True)
class Row:
    """One published best time.

    Attributes:
        kind: ``bf16`` or ``mxfp4``.
        work: the problem.
        us: time of the fastest kernel found.
        library: who made that kernel.
        tile: what its name tells, None where it tells nothing.
    """

    kind: str
    work: Workload
    us: float
    library: str
    tile: Tile | None

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.work.m, self.work.n, self.work.k

    @property
    def band(self) -> str:
        m = self.work.m
        return BANDS[0 if m <= 16 else 1 if m <= 256 else 2 if m <= 2048 else 3]

    @property
    def half(self) -> int:
        """FITTED or HELD_OUT, by the parity of the first byte of SHA-256 of "M,N,K"."""
        return hashlib.sha256(",".join(map(str, self.shape)).encode()).digest()[0] & 1


def workload(kind: str, m: int, n: int, k: int) -> Workload:
    """The problem with bf16 output."""
    bits, scale_bits = WIDTHS[kind]
    return Workload(m, n, k, bits, scale_bits, 2)


def rows(kind: str) -> list[Row]:
    """AITER's rows of one kind, bf16 out; see SOURCES.md for what is left out and why."""
    found = []
    with (DATA / f"aiter_{kind}_gfx950.csv").open() as file:
        for line in csv.DictReader(file):
            if line.get("outdtype") != line.get("dtype"):
                continue
            work = workload(kind, *(int(line[name]) for name in "MNK"))
            library = line.get("libtype") or ("asm" if "f4gemm" in line["kernelName"] else "ck")
            tile = parse_tile(kind, line["kernelName"], int(line["splitK"]))
            found.append(Row(kind, work, float(line["us"]), library, tile))
    return found


_FLYDSL = re.compile(
    r"flydsl_gemm(\d+)_.*_t(\d+)x(\d+)x(\d+)_split_k(\d+)"
    r"_block_m_warp(\d+)_block_n_warp(\d+)_block_k_warp(\d+)_"
)
_OPUS = re.compile(r"opus_gemm_.*?(\d+)x(\d+)x(\d+)x(\d+)_(\d+)x(\d+)_16x16x32")
_BF16_ASM = re.compile(r"bf16gemm_\w*?tn_(\d+)x(\d+)")
_FP4_ASM = re.compile(r"f4gemm_\w*?_(\d+)x(\d+)E")
_FP4_CK = re.compile(r"a4w4_blockscale_\d+x(\d+)x(\d+)x\d+_")


def parse_tile(kind: str, name: str, split_k: int) -> Tile | None:
    """The tile that AITER's name of a kernel encodes, None if it encodes none."""
    if found := _FLYDSL.match(name):
        stages, m, n, k, split, waves_m, waves_n, waves_k = map(int, found.groups())
        waves = waves_m, waves_n, waves_k
        return Tile(m, n, k, stages, *waves, split, group_m=0, xcd_remap=False)
    if found := _OPUS.match(name):
        _, m, n, k, waves_m, waves_n = map(int, found.groups())
        stages, split = _stages(kind, m, n, k), max(1, split_k)
        return Tile(m, n, k, stages, waves_m, waves_n, 1, split, interleaved=m * n >= LARGE)
    if found := _BF16_ASM.search(name):
        return _tile(kind, int(found[1]), int(found[2]), 64, max(1, split_k))
    if found := _FP4_ASM.search(name) or _FP4_CK.match(name):
        return _tile(kind, int(found[1]), int(found[2]), MX_TILE_K)
    return None


# Tiles from here on have hand-interleaved loops in AITER's assembly and in hipBLASLt; so have all
# of the MXFP4 kernels. FlyDSL's generic kernel reads LDS, multiplies, and reads again.
LARGE = 128 * 192


def _stages(kind: str, tile_m: int, tile_n: int, tile_k: int) -> int:
    bits, scale_bits = WIDTHS[kind]
    step = (tile_m + tile_n) * tile_k * (bits + scale_bits) / 8
    return min(8 if bits == 16 else 4, int(GFX950.lds_bytes // step))


def _tile(kind: str, tile_m: int, tile_n: int, tile_k: int, split_k: int = 1) -> Tile:
    """A kernel of which only the tile is known, with usual waves and the deepest ring."""
    waves = 8 if kind == "bf16" and tile_m * tile_n >= 192 * 192 else 4
    waves_m = 1 if tile_m < 64 or tile_m % 32 else 2
    return Tile(
        tile_m,
        tile_n,
        tile_k,
        max(2, _stages(kind, tile_m, tile_n, tile_k)),
        waves_m,
        min(waves // waves_m, tile_n // 16),
        split_k=split_k,
        interleaved=kind != "bf16" or tile_m * tile_n >= LARGE,
    )


_MX_TILES = {
    32: (128, 256, 384, 512, 640, 768, 896, 1024),
    64: (128, 256, 384, 512, 640, 768, 896, 1024),
    96: (128, 256, 384, 512, 640),
    128: (128, 256, 384, 512),
    160: (128, 256, 384),
    192: (128, 256),
    224: (128, 256),
    256: (128, 256),
}
_SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12)


def space(kind: str) -> list[Tile]:
    """Kernels that a prediction may choose from without knowing AITER's choice.

    For bf16 a grid that holds the tiles of AITER's FlyDSL, opus and assembly kernels and
    hipBLASLt's usual ones; for MX the tiles of AITER's assembly, none of which splits K.
    """
    if kind != "bf16":
        return [_tile(kind, m, n, MX_TILE_K) for m, columns in _MX_TILES.items() for n in columns]
    found = []
    for tile_m in (16, 32, 48, 64, 80, 96, 128, 160, 192, 224, 256):
        for tile_n in (64, 128, 192, 256):
            for tile_k in (64, 128, 256):
                if _stages(kind, tile_m, tile_n, tile_k) >= 2:
                    found += [_tile(kind, tile_m, tile_n, tile_k, split) for split in _SPLITS]
    return found


def usable(work: Workload, tile: Tile) -> bool:
    """Whether a tuner would try it: no tile far beyond M, and K split only to fill the CUs."""
    if tile.tile_m > max(96, 2 * work.m + 15):
        return False
    tiles = -(-work.m // tile.tile_m) * -(-work.n // tile.tile_n)
    return tile.split_k == 1 or (
        tile.split_k * tile.tile_k <= work.k and tiles <= GFX950.compute_units
    )


def flydsl_tiles(found: list[Row]) -> list[tuple[int, int, int]]:
    """(tile_m, tile_n, tile_k) that occur among FlyDSL's winners, sorted."""
    return sorted({row.tile[:3] for row in found if row.library == "flydsl" and row.tile})


def flydsl_variants(work: Workload, tile: tuple[int, int, int]) -> Iterator[Tile]:
    """Splits, stages and waves with which AITER's FlyDSL kernel has `tile` for `work`.

    Its rules: whole tiles along N and K, at most 256 tiles where K is split, LDS for the ring,
    loads and stores of 16 bytes a lane; of the ring depths the deepest and half of it are tried.
    """
    tile_m, tile_n, tile_k = tile
    if work.n % tile_n or work.k % tile_k or tile_m > max(96, -(-2 * work.m // 16) * 16):
        return
    deepest = _stages("bf16", *tile)
    tiles = -(-work.m // tile_m) * (work.n // tile_n)
    for split in range(1, 14):
        if work.k % (split * tile_k) or (split > 1 and tiles > GFX950.compute_units):
            continue
        for stages in sorted({deepest, max(2, deepest // 2)}):
            if stages == 2 or work.k // (split * tile_k) >= stages - 1:
                for waves in _wave_grids(*tile):
                    yield Tile(*tile, stages, *waves, split, group_m=0, xcd_remap=False)


def _wave_grids(tile_m: int, tile_n: int, tile_k: int) -> list[tuple[int, int, int]]:
    sizes = (1, 2, 4)
    grids = [(m, n, k) for m in sizes for n in sizes for k in sizes if m * n * k <= 8]
    return [
        (m, n, k)
        for m, n, k in grids
        if tile_m % (16 * m) == 0
        and tile_n % (16 * n) == 0
        and tile_k // k >= 32
        and all(
            area % (512 * m * n * k) == 0
            for area in (tile_m * tile_k, tile_n * tile_k, tile_m * tile_n)
        )
    ]


@dataclass(frozen=True)
class Independent:
    """A published time that no constant was fitted to, of PyTorch's benchmarks.

    Attributes:
        kind, work: as in Row; ``mxfp8`` too.
        us: the fastest of the backends that the table names.
        backend: which one.
    """

    kind: str
    work: Workload
    us: float
    backend: str


BACKENDS = ("aten", "triton", "ck", "aiter", "flydsl")


def _times(line: dict[str, str]) -> dict[str, float]:
    """µs by backend, of one line of PyTorch's table."""
    flops = 2e-6 * math.prod(int(line[name]) for name in "MNK")
    given = {name: float(line[name]) for name in BACKENDS if line[name]}
    return {name: x if line["metric"] == "us" else flops / x for name, x in given.items()}


def _pytorch() -> list[dict[str, str]]:
    with (DATA / "published_pytorch.csv").open() as file:
        return list(csv.DictReader(file))


def independent() -> list[Independent]:
    """PyTorch's dense and MX rows, the last published of each shape."""
    found: dict[tuple[str, Workload], Independent] = {}
    for line in _pytorch():
        if line["op"] not in ("mm", "addmm (bias)", "scaled_mm_v2 BlockWise1x32"):
            continue
        if line["id"] == "mxfp_196719_early":
            continue
        m, n, k = (int(line[name]) for name in "MNK")
        work, times = workload(line["dtype_in"], m, n, k), _times(line)
        backend = min(times, key=lambda name: times[name])
        row = Independent(line["dtype_in"], work, times[backend], backend)
        found[line["dtype_in"], work] = row
    return list(found.values())


# What PyTorch's pull requests show of the kernels that 2.15 has, the later after the earlier.
IN_TREE = ("dense_bf16_190903", "mxfp_196719_early", "mxfp_196719_final",
           "grouped_bf16_194032_standard", "grouped_bf16_194032_kn",
           "grouped_bf16_194032_ragged")  # fmt: skip


@functools.cache
def in_tree() -> dict[Shape, dict[str, float]]:
    """µs by backend that PyTorch's pull requests show of a shape, ``flydsl`` its own kernel.

    They let FlyDSL and Triton search exhaustively for dense shapes. Where a table came out
    twice the later one counts.
    """
    found: dict[Shape, dict[str, float]] = {}
    for line in sorted(_pytorch(), key=lambda line: line["id"] in IN_TREE[2:]):
        if line["id"] in IN_TREE:
            m, n, k = (int(line[name]) for name in "MNK")
            rows = group_rows(int(line["G"]), line["group_sizes"]) if line["G"] else ()
            kind = line["dtype_in"]
            op = "grouped" if rows else "mm" if kind == "bf16" else "scaled"
            shape = Shape(op, kind, m, n, k, "NN" if rows else "NT", rows)
            found[shape] = found.get(shape, {}) | _times(line)
    return found


@functools.cache
def _aiter(kind: str) -> dict[tuple[int, int, int], float]:
    found: dict[tuple[int, int, int], float] = {}
    for row in rows(kind):
        found[row.shape] = min(row.us, found.get(row.shape, math.inf))
    return found


def figures(shape: Shape) -> dict[str, float]:
    """Published µs of a shape by who took it: `in_tree`, and ``aiter tuned`` of AITER's tables."""
    found = dict(in_tree().get(shape, {}))
    if shape.kind in KINDS and not shape.rows:
        us = _aiter(shape.kind).get((shape.m, shape.n, shape.k))
        found |= {} if us is None else {"aiter tuned": us}
    return found
