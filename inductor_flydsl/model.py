"""Analytic cost model: what a configuration would take on the hardware, and what bounds it.

Owns the closed form and its constants. Runs nothing, measures nothing and reads no record: its
times are predictions, labelled with the clock ``model``, to rank candidates before any of them is
compiled. No constant was measured here on a GPU. ``bench.calibrate`` compares the form with
published times of MI355X kernels; `calibration.MODELLED` is the error it finds.

The form. A workgroup is a chain: in each K step its waves issue loads, read LDS and multiply, one
after the other unless other waves of the SIMD fill in or the loop interleaves them. A step takes
as long as that chain, or as the busiest shared resource of the CU (matrix unit, LDS, bytes in
flight), or as the share of L2 that is left. Workgroups are dealt to the CUs in rounds, the last of
which is the tail; the clock falls with the utilisation of the matrix unit; and no launch beats the
traffic it needs past L2, nor the floor of any launch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from . import stream
from .arch import Arch
from .config import (
    MFMA_M,
    MFMA_N,
    WAVE_SIZE,
    GemmConfig,
    c_pad_bytes,
    operand_load,
    store_width,
    through_lds,
)
from .constants import (
    BYTE_GATHER_FRACTION,
    CONSTANTS,
    DIRECT,
    DIRECT_REDUCE_NS,
    DIRECT_SPLITS,
    FIRST_GHZ,
    GATHER_FRACTION,
    INTERLEAVED,
    MFMA_MACS,
    OTHER_REGISTERS,
    OUR_REDUCE_NS,
    OUR_SPLITS,
    PAIR,
    POWER_CLOCK,
    ROLLED_ENERGY,
    STAGE_WAITED,
    STEP_ISSUE,
    ModelConstants,
)
from .grouping import Split, pieces
from .problem import GemmProblem
from .scaling import BLOCK

CLOCK = "model"


class Workload(NamedTuple):
    """What is computed, for every element width: C[M, N] = A[M, K] · B[K, N].

    Attributes:
        m, n, k: extents in elements.
        bits: of an element of A and of B: 16, 8 or 4.
        scale_bits: of block scales, for each element (8/32 for MX).
        out_bytes: of an element of C.
        batch: such products in one launch.
        tiles: of C in all of them; 0 is as many as the extents say.
    """

    m: int
    n: int
    k: int
    bits: int = 16
    scale_bits: float = 0.0
    out_bytes: int = 2
    batch: int = 1
    tiles: int = 0

    @property
    def element_bytes(self) -> float:
        """Bytes of an element of A or B with its share of the scales."""
        return (self.bits + self.scale_bits) / 8


class Tile(NamedTuple):
    """How it is computed: what the form needs of a kernel, ours or another's.

    Attributes:
        tile_m, tile_n, tile_k, stages, waves_m, waves_n, group_m, xcd_remap: as in GemmConfig.
        waves_k: waves that share a K step and add their results up in LDS.
        split_k: workgroups that share a tile of C, of a part of it as many as would share all.
        stream_k: as in GemmConfig.
        partial: bytes of a partial sum that are moved, of an element.
        reduce_ns: from the last share until it is known who sums them.
        a_issue, b_issue: rate of loads of A and B relative to 16-byte DMA.
        store: bytes of one store of C.
        at_once: workgroups that a compute unit holds at most; 0 is as many as fit.
        interleaved: a wave overlaps its own loads, LDS reads and MFMAs.
        in_flight: K steps whose loads are on their way on average; 0 is all stages but one.
        fill: K steps until the first loads are there and after the last are.
        step_issue: clocks in which a wave issues what a K step needs whatever its tile.
        energy: of an operation of the matrix unit with the LDS reads that feed it, relative to
            that of the kernels that POWER_CLOCK is of.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    waves_m: int
    waves_n: int
    waves_k: int = 1
    split_k: float = 1
    stream_k: int = 0
    partial: float = 4.0
    reduce_ns: float = 0.0
    group_m: int = 8
    xcd_remap: bool = True
    a_issue: float = 1.0
    b_issue: float = 1.0
    store: int = 16
    interleaved: bool = False
    at_once: int = 0
    in_flight: float = 0.0
    fill: int = 0
    step_issue: float = 0.0
    energy: float = 1.0


class Prediction(NamedTuple):
    """A predicted launch, in µs of the clock ``model``.

    ``compute``, ``lds``, ``l2`` and ``hbm`` are what each resource would take alone. The largest
    of them, ``latency``, ``tail`` and ``launch`` add up to ``us``.

    Attributes:
        us: the whole.
        compute: matrix unit, at the clock that power leaves.
        lds: LDS reads and writes.
        l2: bringing tiles from L2 to the CUs, limited by bytes in flight and by L2's bandwidth.
        hbm: traffic past L2, to Infinity Cache and HBM.
        latency: what hides behind nothing: the first loads, each step's chain and barrier, the
            store of C and split-K's reduction.
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
        return dict(zip(PARTS, self[1:8], strict=True))


PARTS = ("compute", "lds", "l2", "hbm", "latency", "tail", "launch")


def predict(problem: GemmProblem, config: GemmConfig, arch: Arch) -> Prediction:
    """The time of one launch of `config` on `problem`, its operands cold.

    Of a grouped problem it is the mean over the splits that it is measured on.

    Args:
        problem, config: a pair that `space.why_not` finds nothing against.
        arch: the hardware.
    """
    tile = _tile(problem, config)
    if problem.grouping is None:
        whole, split = (DIRECT, DIRECT_SPLITS) if config.direct else (CONSTANTS, OUR_SPLITS)
        ours = split if config.split_k > 1 else whole
        return estimate(_workload(problem), tile, arch, ours)
    found = [estimate(_split(problem, config, split), tile, arch) for split in Split]
    us = sum(prediction.us for prediction in found) / len(found)
    parts = {name: sum(p.parts[name] for p in found) / len(found) for name in PARTS}
    return Prediction(us, **parts, bound=max(parts, key=parts.__getitem__))


def best_us(problem: GemmProblem, configs: Sequence[GemmConfig], arch: Arch) -> float:
    """The shortest predicted time of any of `configs`; infinite without any."""
    return min((predict(problem, config, arch).us for config in configs), default=math.inf)


def resident_workgroups(problem: GemmProblem, config: GemmConfig, arch: Arch) -> int:
    """Workgroups that fit on one CU at once, by LDS and by registers; at least 1."""
    return _resident(_workload(problem), _tile(problem, config), arch)


def estimate(
    work: Workload, tile: Tile, arch: Arch, constants: ModelConstants = CONSTANTS
) -> Prediction:
    """`predict` for any kernel that a `Tile` describes, our own or a published one.

    Args:
        work, tile: what is computed, and how.
        arch: the hardware.
        constants: another calibration.
    """
    c, cus = constants, arch.compute_units
    deal = _dealt(work, tile, arch, c)
    full, rest, resident, slots = deal.full, deal.rest, deal.resident, deal.resident * cus
    last = -(-rest // cus)
    ends = _round(deal.end, last, rest, arch, c) if rest else None
    final = ends or _round(deal.one, resident, slots, arch, c)
    whole = _round(deal.one, resident, slots, arch, c) if full and rest else final
    share = rest / (last * cus) if rest else 0.0
    matrix = full * whole.matrix + share * final.matrix

    # Utilisation, in clocks, hardly depends on the clock: one pass finds it.
    end_ns = final.ns(FIRST_GHZ, c) if rest else 0.0
    ns = full * whole.ns(FIRST_GHZ, c) + end_ns if full else end_ns
    ghz = _clock_ghz(tile.energy * matrix / (FIRST_GHZ * ns), work.bits, arch, c)
    end_ns = final.ns(ghz, c) if rest else 0.0
    ns = full * whole.ns(ghz, c) + end_ns if full else end_ns

    far_ns = _far_ns(work, tile, slots, arch, c)
    first_ns = c.l2_clocks / arch.max_clock_ghz + c.miss_ns
    body = _join(ns, far_ns + first_ns, c.overlap)
    if deal.partial:
        body += tile.reduce_ns + deal.partial * 1e-3 / c.reduce_tb_s
    compute = matrix / ghz
    lds = (full * whole.lds + share * final.lds) / ghz
    near = (full * whole.delivery(ghz, c) + share * final.delivery(ghz, c)) / ghz
    top = max(compute, lds, near, far_ns)
    tail = min((1.0 - share) * end_ns, body - top)
    launch = c.launch_us * 1e3
    parts = (compute, lds, near, far_ns, body - top - tail, tail, launch)
    return Prediction(
        (body + launch) * 1e-3,
        compute * 1e-3,
        lds * 1e-3,
        near * 1e-3,
        far_ns * 1e-3,
        parts[4] * 1e-3,
        tail * 1e-3,
        c.launch_us,
        PARTS[parts.index(max(parts))],
    )


class _Group(NamedTuple):
    """One workgroup: clocks of a K step, bytes of a step and of its tile of C."""

    steps: int
    waves: int
    matrix: float  # were one SIMD to do all
    lds: float
    issue: float
    chain: float
    live: float
    ahead: float  # bytes in flight
    out: float
    store: float  # clocks
    fill: float  # steps


def _group(work: Workload, tile: Tile, arch: Arch, c: ModelConstants) -> _Group:
    t, size, simds = tile, work.element_bytes, arch.simds_per_cu
    waves, line = t.waves_m * t.waves_n * t.waves_k, t.tile_k * size
    matrix = t.tile_m * t.tile_n * t.tile_k / MFMA_MACS[work.bits]
    # Half of the LDS hangs on each pair of SIMDs, so one wave gets half of the reads.
    reads = (t.tile_m * t.waves_n + t.tile_n * t.waves_m) * line / c.lds_read_bytes
    reads = reads if waves > 1 else 2 * reads
    # Rows past the operand are answered without a trip to memory.
    rows, columns = min(t.tile_m, work.m), min(t.tile_n, work.n)
    issue = (rows / t.a_issue + columns / t.b_issue) * line / c.issue_bytes
    alone = matrix / min(simds, waves)
    chain = max(reads, issue, alone)
    if not t.interleaved:
        chain += (reads + issue + alone - chain) / max(1.0, waves / simds)
    chain += t.step_issue
    live, out = (rows + columns) * line, rows * columns * work.out_bytes
    return _Group(
        math.ceil(work.k / (t.tile_k * t.split_k)),
        waves,
        matrix,
        reads + (t.tile_m + t.tile_n) * line / c.lds_write_bytes,
        issue,
        chain,
        live,
        min(c.workgroup_flight, (t.in_flight or t.stages - 1) * live),
        out,
        out * 16 / (t.store * c.issue_bytes),
        # A wave is stuck at a load for which there is no room, and multiplies nothing meanwhile.
        t.fill + max(0.0, t.stages - 1 - c.workgroup_flight / live) if t.fill else 0.0,
    )


class _Deal(NamedTuple):
    """How workgroups are dealt to the CUs.

    full, rest: rounds that fill the device, and workgroups of the last one, if it does not.
    resident: workgroups of a CU in a round. one, end: a workgroup of the full rounds, and of the
    last. partial: bytes of partial sums that are moved.
    """

    full: int
    rest: int
    resident: int
    one: _Group
    end: _Group
    partial: float


def _dealt(work: Workload, tile: Tile, arch: Arch, c: ModelConstants) -> _Deal:
    tiles = -(-work.m // tile.tile_m) * -(-work.n // tile.tile_n) * work.batch
    tiles = work.tiles or tiles
    resident, cus, split = _resident(work, tile, arch), arch.compute_units, int(tile.split_k)
    if not tile.stream_k:
        one = _group(work, tile, arch, c)
        full, rest = divmod(tiles * split, cus * resident)
        shared = split * work.m * work.n * work.batch if split > 1 else 0
        return _Deal(full, rest, resident, one, one, shared * tile.partial)
    full, left = divmod(tiles, cus)
    shared = left * stream.shares(split, tile.stream_k) * tile.tile_m * tile.tile_n
    # The busiest workgroups leave and sum two shares.
    shared *= min(2, tile.stream_k)
    one = _group(work, tile._replace(split_k=1), arch, c)
    end = _group(work, tile._replace(split_k=split / tile.stream_k), arch, c)
    rest = split * stream.chains(left, tile.stream_k)
    return _Deal(full, rest, resident, one, end, shared * tile.partial)


class _Round(NamedTuple):
    """Workgroups that share a CU for all of their K steps; in clocks, but for ``_ns``."""

    steps: int
    matrix: float
    lds: float
    busiest: float  # of a step: one workgroup's chain, or the busiest resource of the CU
    trips: float  # of a step: bytes to bring, over bytes in flight
    l2_ns: float  # of a step, at the bandwidth of L2
    barrier: float  # of a step
    store: float
    store_ns: float
    start_ns: float
    fill: float  # steps

    def delivery(self, ghz: float, c: ModelConstants) -> float:
        """Clocks in which the tiles of all steps arrive."""
        return self.steps * max((c.l2_clocks + c.miss_ns * ghz) * self.trips, self.l2_ns * ghz)

    def ns(self, ghz: float, c: ModelConstants) -> float:
        """Time from start to end."""
        arrival = (c.l2_clocks + c.miss_ns * ghz) * self.trips
        step = max(self.busiest, arrival, self.l2_ns * ghz) + self.barrier
        fill = self.fill * self.busiest
        return (
            (self.steps * step + fill) / ghz + max(self.store / ghz, self.store_ns) + self.start_ns
        )


def _round(group: _Group, count: int, groups: int, arch: Arch, c: ModelConstants) -> _Round:
    """`count` workgroups on the busiest CU, `groups` on the device."""
    g, simds = group, arch.simds_per_cu
    matrix, lds = g.matrix * count / min(simds, g.waves * count), count * g.lds
    active = min(arch.compute_units, groups)
    return _Round(
        g.steps,
        g.steps * matrix,
        g.steps * lds,
        max(g.chain, matrix, lds, count * g.issue),
        max(g.live / g.ahead, count * g.live / c.cu_flight),
        groups * g.live / (c.l2_tb_s or arch.l2_tb_s) * 1e-3,
        c.barrier_clocks / count,
        count * g.store,
        count * g.out * active / c.write_tb_s * 1e-3,
        c.start_ns + c.miss_ns + c.l2_clocks / arch.max_clock_ghz,
        g.fill,
    )


def _resident(work: Workload, tile: Tile, arch: Arch) -> int:
    t, size, waves = tile, work.element_bytes, tile.waves_m * tile.waves_n * tile.waves_k
    ring = t.stages * (t.tile_m + t.tile_n) * t.tile_k * size
    lds = ring
    if t.waves_k > 1 or through_lds(t.store, work.out_bytes):
        row = t.tile_n * work.out_bytes + c_pad_bytes(work.out_bytes)
        lds = max(ring, t.waves_k * t.tile_m * row)
    lds = -(-lds // arch.lds_granule) * arch.lds_granule
    # A 16x32 fragment of 16-bit elements is 4 registers a lane; two K slices are held.
    fragments = t.tile_m // (MFMA_M * t.waves_m) + t.tile_n // (MFMA_N * t.waves_n)
    accumulators = t.tile_m * t.tile_n // (WAVE_SIZE * t.waves_m * t.waves_n)
    registers = accumulators + 8 * fragments + OTHER_REGISTERS
    per_simd = max(1, min(arch.max_waves_per_simd, arch.registers_per_lane // registers))
    fit = max(1, min(int(arch.lds_bytes // lds), arch.simds_per_cu * per_simd // waves))
    return min(fit, t.at_once) if t.at_once else fit


def _clock_ghz(utilisation: float, bits: int, arch: Arch, c: ModelConstants) -> float:
    """The clock that power leaves at this utilisation of the matrix unit (0 to 1)."""
    curve = POWER_CLOCK[bits]
    u0, f0 = curve[0]
    for u1, f1 in curve[1:]:
        if utilisation <= u1:
            f0 += (f1 - f0) * (utilisation - u0) / (u1 - u0)
            break
        u0, f0 = u1, f1
    return min(f0 * c.power, arch.max_clock_ghz)


def _far_ns(work: Workload, tile: Tile, slots: int, arch: Arch, c: ModelConstants) -> float:
    """ns that the launch's traffic takes past L2, to Infinity Cache and to HBM."""
    t = tile
    tiles_m, tiles_n = -(-work.m // t.tile_m), -(-work.n // t.tile_n)
    tiles = tiles_m * tiles_n
    split = 1 if t.stream_k else t.split_k
    groups = tiles * split * work.batch
    line = work.k * work.element_bytes
    out = work.m * work.n * work.out_bytes * work.batch
    once = (work.m + work.n) * line * work.batch
    near = (work.m * tiles_n + work.n * tiles_m) * line * work.batch

    # Tiles that one XCD works on at a time, as a block of rows and columns of tiles; with split-K
    # its workgroups share K too.
    share = min(slots, groups) / (arch.xcds * split)
    width = max(1, int(share))
    if t.xcd_remap and t.group_m:
        rows = min(t.group_m, tiles_m, width)
        columns = min(tiles_n, -(-width // rows))
    else:
        rows = max(1, min(width, tiles_m, -(-min(slots, tiles) // tiles_n)))
        scattered = tiles_n % arch.xcds != 0
        columns = min(tiles_n, width) if scattered else max(1, tiles_n // arch.xcds)
    block = min(rows * t.tile_m, work.m) + min(columns * t.tile_n, work.n)
    block *= max(1, width // tiles)
    rounds = -(-groups // slots)
    far = min(near, max(once, arch.xcds * rounds * block * line * min(1.0, share))) + out
    unique = once + out
    past_cache = far if unique > arch.infinity_cache_bytes else unique
    return max(far / c.cache_tb_s, past_cache / arch.hbm_tb_s) * 1e-3


def _join(a: float, b: float, exponent: float) -> float:
    """A maximum that exceeds both where they are near each other."""
    top = max(a, b)
    return float(top * ((a / top) ** exponent + (b / top) ** exponent) ** (1.0 / exponent))


def _workload(problem: GemmProblem) -> Workload:
    p = problem
    # The wider of two types sets the rate of the matrix unit.
    bits = max(p.dtype.bits, p.b_type.bits)
    scales = 8 / BLOCK if p.block_scaled else 0.0
    return Workload(p.m, p.n, p.k, bits, scales, p.out_dtype.bytes, p.batch)


def _split(problem: GemmProblem, config: GemmConfig, split: Split) -> Workload:
    """A grouped problem as a batch of what a group has on average, with the tiles of all."""
    assert problem.grouping is not None
    axis, groups = problem.grouping.axis.value, problem.grouping.groups
    total, tile = getattr(problem, axis), getattr(config, f"tile_{axis}")
    live, cut = pieces(total, groups, split, tile)
    across = {"m": (problem.n, config.tile_n), "n": (problem.m, config.tile_m)}.get(axis)
    # Each group has all tiles of C where K is shared.
    tiles = cut * -(-across[0] // across[1]) if across else 0
    work = _workload(problem)._replace(batch=live if across else groups, tiles=tiles)
    return work._replace(**{axis: -(-total // live)})


def _tile(problem: GemmProblem, config: GemmConfig) -> Tile:
    p, c = problem, config
    kinds = (operand_load(p, "a"), operand_load(p, "b"))
    gathered = BYTE_GATHER_FRACTION if p.dtype.scaled else GATHER_FRACTION
    waited = p.dtype.scaled and c.pipeline == "staged"
    a_issue, b_issue = (gathered if kind == "gather" else 1.0 for kind in kinds)
    return Tile(
        tile_m=c.tile_m,
        tile_n=c.tile_n,
        tile_k=c.tile_k,
        stages=c.stages,
        waves_m=c.waves_m,
        waves_n=c.waves_n,
        waves_k=c.waves_k,
        split_k=c.split_k,
        stream_k=c.stream_k,
        partial=4.0 * (PAIR if c.shares == 2 else 1.0),
        reduce_ns=DIRECT_REDUCE_NS if c.direct else OUR_REDUCE_NS,
        group_m=c.group_m,
        xcd_remap=c.xcd_remap,
        a_issue=a_issue,
        b_issue=b_issue,
        store=store_width(p),
        interleaved=c.pipeline in INTERLEAVED,
        # Stream-K counts on one workgroup a compute unit.
        at_once=1 if c.stream_k else c.persistent,
        in_flight=c.stages - STAGE_WAITED if waited else c.stages if c.direct else 0.0,
        fill=int(waited),
        step_issue=STEP_ISSUE if waited else 0.0,
        energy=ROLLED_ENERGY if c.pipeline == "rolled" else 1.0,
    )
