"""Analytic cost model: what a configuration would take on the hardware, and what bounds it.

Owns the closed form and its constants. Runs nothing, measures nothing and reads no record: its
times are predictions, labelled with the clock ``model``, to rank candidates before any of them
is compiled. Nothing here was fitted on an AMD GPU; the constants are published measurements of
MI350X/MI355X, named below.

The form, per CU: a K step takes as long as its slowest resource (matrix unit, LDS, delivery of
the next tiles), and a little longer where two of them are near each other. Tiles are dealt to the
CUs in rounds of workgroups that fit at once, the last round is the tail, and no launch beats the
traffic it needs at each level of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .arch import Arch
from .config import MFMA_K, MFMA_M, MFMA_N, GemmConfig, load_kind, store_width
from .problem import GemmProblem

CLOCK = "model"

# Clocks of one v_mfma_f32_16x16x32_{bf16,f16} (AMD matrix instruction calculator, CDNA4).
MFMA_CLOCKS = 16
# LDS service of b128 and b64 reads, and of DMA writes, in bytes a clock and CU.
LDS_READ_BYTES = 256
LDS_WRITE_BYTES = 128
# Bytes a CU keeps in flight to the vector memory, and the round trip of one in clocks. With T
# matrix clocks a K step, a tile is compute-bound if T·44 KiB / (bytes a K step) exceeds it.
IN_FLIGHT_BYTES = 44 * 1024
ROUND_TRIP_CLOCKS = 1000
# Bytes a clock and CU at which vector-memory instructions issue: 64 lanes of 16 bytes in 16
# clocks, of 4 bytes in 4, of 2 bytes in 4, the last with an address and an LDS write for each.
ISSUE_BYTES = {"dma16": 64.0, "dma4": 64.0, "gather": 8.0}
# Clocks of a workgroup barrier and its waits in a K step, hidden by other resident workgroups.
BARRIER_CLOCKS = 60
# Registers beside accumulators and fragments: addresses, descriptors, loop state.
OTHER_REGISTERS = 40
# Infinity Cache, TB/s: between the two published bandwidths (6.0 and 8.5).
INFINITY_CACHE_TB_S = 7.0
# Exponent of the soft maximum over a K step's resources. With it the published utilisations of
# the matrix unit, 96, 83, 69 and 47 % for tiles from 256x256 to 128x64, are met within 3 points.
SOFTNESS = 6.0
# Clock (GHz) under load against utilisation of the matrix unit, bf16 and fp16.
POWER_CLOCK = ((0.0, 2.4), (0.25, 1.98), (0.82, 1.65), (0.97, 1.52), (1.0, 1.5))
# A list of this many candidates a tile shape holds one more of each.
LIST_PER_TILE = 6


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted launch, in µs of the clock ``model``.

    The parts are what each resource would take alone, but for ``latency``, ``tail`` and
    ``launch``, which come on top of the largest of the others.

    Attributes:
        us: the whole.
        compute: matrix unit.
        lds: LDS reads and writes.
        l2: bringing tiles from L2 to the CUs, limited by bytes in flight and by L2's bandwidth.
        hbm: traffic past L2, to Infinity Cache and HBM.
        latency: filling the ring, barriers, and the store of C.
        tail: CUs idle in the last round of workgroups.
        launch: the floor of any launch.
        bound: name of the largest part.
    """

    us: float
    compute: float
    lds: float
    l2: float
    hbm: float
    latency: float
    tail: float
    launch: float
    bound: str

    @property
    def parts(self) -> dict[str, float]:
        """The breakdown by name, in µs."""
        return {name: getattr(self, name) for name in PARTS}


PARTS = ("compute", "lds", "l2", "hbm", "latency", "tail", "launch")


def predict(problem: GemmProblem, config: GemmConfig, arch: Arch) -> Prediction:
    """The time of one launch of `config` on `problem`.

    Args:
        problem, config: a pair that `space.why_not` finds nothing against.
        arch: the hardware.
    """
    tiles_m, tiles_n = config.tiles(problem)
    resident = resident_workgroups(problem, config, arch)
    slots = arch.compute_units * resident
    full, rest = divmod(tiles_m * tiles_n, slots)
    last = -(-rest // arch.compute_units)
    share = rest / (last * arch.compute_units) if rest else 0.0
    steps = -(-problem.k // config.tile_k)

    first, final = _step(problem, config, resident), _step(problem, config, last or resident)
    fixed = ROUND_TRIP_CLOCKS + _store_clocks(problem, config)
    loop, final_loop = steps * _soft_max(first), steps * _soft_max(final)
    clocks = full * (loop + fixed) + (final_loop + fixed if rest else 0.0)
    mfma = steps * (full * first[0] + share * final[0])
    lds = steps * (full * first[1] + share * final[1])
    mem = steps * (full * first[2] + share * final[2])

    per_us = 1e3 * _clock_ghz(mfma / clocks, arch)
    near, far = _traffic_us(problem, config, arch, slots)
    tail = (1.0 - share) * final_loop / per_us if rest else 0.0
    latency = (clocks - max(mfma, lds, mem)) / per_us - tail
    us = arch.launch_floor_us + max(clocks / per_us, near, far)
    delivery = max(mem / per_us, near)
    parts = (mfma / per_us, lds / per_us, delivery, far, latency, tail, arch.launch_floor_us)
    return Prediction(us, *parts, bound=PARTS[parts.index(max(parts))])


def rank(
    problem: GemmProblem, configs: Sequence[GemmConfig], arch: Arch, keep: int | None = None
) -> list[tuple[GemmConfig, Prediction]]:
    """Configurations with their predictions, the fastest first.

    Args:
        problem: the GEMM.
        configs: legal ones, in the order that decides ties.
        arch: the hardware.
        keep: how many to return; None is all. A short list holds few of one tile shape (one in
            up to 11, two in 12) while others are left, because variants of a tile differ by less
            than the model errs.
    """
    ranked = [(config, predict(problem, config, arch)) for config in configs]
    ranked.sort(key=lambda pair: pair[1].us)
    if keep is None or keep >= len(ranked):
        return ranked
    chosen: list[tuple[GemmConfig, Prediction]] = []
    spare: list[tuple[GemmConfig, Prediction]] = []
    seen: dict[tuple[int, int], int] = {}
    most = max(1, keep // LIST_PER_TILE)
    for pair in ranked:
        tile = pair[0].tile_m, pair[0].tile_n
        seen[tile] = seen.get(tile, 0) + 1
        (chosen if seen[tile] <= most else spare).append(pair)
    return sorted((chosen + spare)[:keep], key=lambda pair: pair[1].us)


def resident_workgroups(problem: GemmProblem, config: GemmConfig, arch: Arch) -> int:
    """Workgroups that fit on one CU at once, by LDS and by registers; at least 1."""
    size = problem.dtype.bytes
    lds = max(config.ring_bytes(size), config.c_tile_bytes(problem.out_dtype.bytes))
    lds = -(-lds // arch.lds_granule) * arch.lds_granule
    # A 16x32 fragment of 16-bit elements is 4 registers a lane; two K slices are held.
    fragments = config.tile_m // (MFMA_M * config.waves_m) + config.tile_n // (
        MFMA_N * config.waves_n
    )
    registers = config.accumulators + 8 * fragments + OTHER_REGISTERS
    per_simd = max(1, min(arch.max_waves_per_simd, arch.registers_per_lane // registers))
    return max(1, min(arch.lds_bytes // lds, arch.simds_per_cu * per_simd // config.waves))


def _step(
    problem: GemmProblem, config: GemmConfig, count: int
) -> tuple[float, float, float, float]:
    """Clocks of a K step of `count` resident workgroups: matrix, LDS, delivery, barrier."""
    c, size = config, problem.dtype.bytes
    waves = c.waves * count
    products = (c.tile_m // MFMA_M) * (c.tile_n // MFMA_N) * (c.tile_k // MFMA_K)
    mfma = products * MFMA_CLOCKS * count / min(4, waves)

    reads = (c.tile_m * c.waves_n + c.tile_n * c.waves_m) * c.tile_k * size
    a_bytes, b_bytes = c.tile_m * c.tile_k * size, c.tile_n * c.tile_k * size
    # Half of the LDS hangs on each pair of SIMDs, so one wave gets half of the reads.
    lds = reads / (LDS_READ_BYTES if waves > 1 else LDS_READ_BYTES // 2)
    lds = count * (lds + (a_bytes + b_bytes) / LDS_WRITE_BYTES)

    issue = a_bytes / ISSUE_BYTES[load_kind(problem.a_align, problem.a_inner)]
    issue += b_bytes / ISSUE_BYTES[load_kind(problem.b_align, problem.b_inner)]
    # Rows past the operand are answered without a trip to memory.
    live = (min(c.tile_m, problem.m) + min(c.tile_n, problem.n)) * c.tile_k * size
    in_flight = min(IN_FLIGHT_BYTES, count * (c.stages - 1) * live)
    delivery = count * live * ROUND_TRIP_CLOCKS / in_flight
    return mfma, lds, max(count * issue, delivery), BARRIER_CLOCKS / count


def _soft_max(cost: tuple[float, float, float, float]) -> float:
    """Clocks of a K step from `_step`'s parts."""
    mfma, lds, mem, sync = cost
    top = max(mfma, lds, mem)
    spread = (mfma / top) ** SOFTNESS + (lds / top) ** SOFTNESS + (mem / top) ** SOFTNESS
    return top * spread ** (1.0 / SOFTNESS) + sync


def _store_clocks(problem: GemmProblem, config: GemmConfig) -> float:
    """Clocks to bring a tile of C through LDS and to issue its stores."""
    data = config.tile_m * config.tile_n * problem.out_dtype.bytes
    issue = ISSUE_BYTES["dma16"] * store_width(problem) / 16
    return data / LDS_WRITE_BYTES + data / LDS_READ_BYTES + data / issue


def _clock_ghz(utilisation: float, arch: Arch) -> float:
    """The clock that power leaves at this utilisation of the matrix unit (0 to 1)."""
    for (u0, f0), (u1, f1) in zip(POWER_CLOCK, POWER_CLOCK[1:], strict=False):
        if utilisation <= u1:
            clock = f0 + (f1 - f0) * (utilisation - u0) / (u1 - u0)
            return min(clock, arch.max_clock_ghz)
    return POWER_CLOCK[-1][1]


def _traffic_us(
    problem: GemmProblem, config: GemmConfig, arch: Arch, slots: int
) -> tuple[float, float]:
    """µs that the launch's traffic takes at L2, and past it."""
    tiles_m, tiles_n = config.tiles(problem)
    tiles = tiles_m * tiles_n
    line = problem.k * problem.dtype.bytes
    c_bytes = problem.m * problem.n * problem.out_dtype.bytes
    near = (problem.m * tiles_n + problem.n * tiles_m) * line + c_bytes

    # Tiles that one XCD works on at a time, as a block of rows and columns of tiles.
    width = max(1, min(slots, tiles) // arch.xcds)
    if config.xcd_remap and config.group_m:
        rows = min(config.group_m, tiles_m, width)
        columns = min(tiles_n, -(-width // rows))
    else:
        rows = min(width, tiles_m, -(-min(slots, tiles) // tiles_n))
        scattered = tiles_n % arch.xcds != 0
        columns = min(tiles_n, width) if scattered else max(1, tiles_n // arch.xcds)
    block = min(rows * config.tile_m, problem.m) + min(columns * config.tile_n, problem.n)
    rounds = -(-tiles // slots)
    far = min(near, max(problem.bytes, arch.xcds * rounds * block * line + c_bytes))
    past_cache = far if problem.bytes > arch.infinity_cache_bytes else problem.bytes
    far_us = max(far / INFINITY_CACHE_TB_S, past_cache / arch.hbm_tb_s) * 1e-6
    return near / arch.l2_tb_s * 1e-6, far_us
