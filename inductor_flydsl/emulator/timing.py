"""The clock: what some workgroups of a launch executed → the time of the launch on an MI355X.

Owns rounds of workgroups over the CUs, the tail, the frequency under load and what bounds a
launch. Cycle-approximate and calibrated on published measurements (`facts`), never on a GPU by
this project: it ranks kernels against each other under the clock "emulated".
"""

from __future__ import annotations

import functools
import hashlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .asm import Instruction
from .cu import CU
from .facts import GFX950, Curve, Facts
from .formats import SELECTOR
from .launch import Launch
from .loops import Loop, find_loop, positions
from .mfma_ops import MFMA
from .program import Program, Resources
from .trace import GroupTrace, VmemCost, is_vmem
from .traffic import Traffic, measure_traffic, regions_of
from .uops import Uop, Uops
from .vector import mod_int
from .vmem_timing import SEGMENT

CLOCK = "emulated"
CLOCK_MHZ = 1000.0 * GFX950.nominal_ghz
LAUNCH_US = GFX950.launch_us
EVENT_BUDGET = 60_000
"""Instructions that one simulation of a CU may take before rounds of the loop are left out."""
KEPT_ROUNDS = 14
BUSY = 0.8
"""Share of the time above which a resource is said to bound a launch."""


_SOURCES = ("facts", "timing", "cu", "uops", "loops", "trace", "probe", "traffic", "lds_timing",
            "vmem_timing", "mfma_ops")  # fmt: skip


@functools.cache
def fingerprint() -> str:
    """Hex digest of the clock's source: a changed clock makes other times."""
    digest = hashlib.sha256()
    for name in _SOURCES:
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Estimate:
    """time_us of the whole launch, and figures by name (see `RunResult.stats`)."""

    time_us: float
    stats: dict[str, float | str]


def groups_at_once(launch: Launch, facts: Facts = GFX950) -> int:
    """Workgroups of a launch that the chip runs at the same time."""
    per_cu = groups_per_cu(launch.kernel.resources, launch.waves, launch.lds, facts)
    return min(launch.groups, facts.cus * per_cu)


def instruction_class(inst: Instruction) -> str:
    """mfma, valu, salu, lds, vmem or wait."""
    base = inst.base
    if base in MFMA:
        return "mfma"
    if base.startswith("ds_"):
        return "lds"
    if base.startswith(("s_waitcnt", "s_barrier")):
        return "wait"
    if base.startswith("s_"):
        return "salu"
    return "vmem" if is_vmem(inst) else "valu"


def groups_per_cu(resources: Resources, waves: int, lds: int, facts: Facts = GFX950) -> int:
    """Workgroups that a CU holds at a time: limited by registers, LDS and wave slots."""
    registers = max(8, -(-(resources.vgpr + resources.agpr) // 8) * 8)
    per_simd = min(facts.max_waves, facts.registers // min(registers, facts.registers))
    groups = max(1, per_simd * facts.simds // waves)
    if lds:
        granules = -(-lds // facts.lds_granule) * facts.lds_granule
        groups = min(groups, max(1, facts.lds_bytes // granules))
    return groups


# --- programs ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Prepared:
    """A workgroup to simulate: micro-operations of its waves; `dropped` rounds were left out.

    traffic: of which it gets its share.
    """

    waves: list[list[Uop]]
    dropped: int
    traffic: Traffic


def _prepare(trace: GroupTrace, traffic: Traffic, uops: Uops, budget: int) -> _Prepared:
    """budget: instructions to keep of the workgroup."""
    known: dict[bytes, Loop | None] = {}
    loops = []
    for wave in trace.waves:
        key = wave.pcs.tobytes()
        if key not in known:
            known[key] = find_loop(wave.pcs)
        loops.append(known[key])
    dropped = _dropped(trace, loops, budget)
    waves = [
        uops.wave(wave, positions(len(wave.pcs), loop, dropped), loop)
        for wave, loop in zip(trace.waves, loops, strict=True)
    ]
    return _Prepared(waves, dropped, traffic)


def _representative(traces: Sequence[GroupTrace], per_cu: int, one_round: bool) -> list[GroupTrace]:
    """Traces in the order to simulate them: of a launch of one round the longest decides, or the
    busiest CU where all the workgroups of one were traced: some may find nothing to do."""
    if not one_round:
        return list(traces)
    of_cus: dict[int, list[GroupTrace]] = {}
    for trace in traces:
        of_cus.setdefault(trace.group % GFX950.cus, []).append(trace)
    whole = [own for own in of_cus.values() if len(own) == per_cu > 1]
    if whole:
        return max(whole, key=lambda own: sum(map(_length, own)))
    return sorted(traces, key=lambda trace: -_length(trace))


def _length(trace: GroupTrace) -> int:
    return max(len(wave.pcs) for wave in trace.waves)


def _dropped(trace: GroupTrace, loops: Sequence[Loop | None], budget: int) -> int:
    """Rounds to leave out: the same of each wave, and none where the waves' loops differ."""
    rounds = {loop.rounds for loop in loops if loop is not None}
    if len(rounds) != 1 or any(loop is None for loop in loops):
        return 0
    total = sum(len(wave.pcs) for wave in trace.waves)
    a_round = sum(loop.length for loop in loops if loop is not None)
    spare = rounds.pop() - KEPT_ROUNDS
    return max(0, min(spare, -(-(total - budget) // a_round)))


# --- one CU -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Body:
    """Workgroups that ran one after another on a CU.

    clocks: until the last ended, rounds that were left out included. loop_utilisation: of the
    matrix units in the main loop. cu: the simulation, for what was busy and what waited.
    """

    clocks: float
    loop_utilisation: float
    cu: CU


def _simulate(prepared: Sequence[_Prepared], count: int, resident: int, ghz: float) -> _Body:
    facts = GFX950
    cu = CU(facts)
    chosen = [prepared[i % len(prepared)] for i in range(count)]
    groups = [(group.waves, group.traffic.share(ghz, facts)) for group in chosen]
    clocks = float(cu.run(groups, resident))
    first, slopes, used = 0, [], []
    for group in chosen:
        marks = cu.waves[first].marks
        first += len(group.waves)
        slope, busy = _slope(marks)
        slopes.append(slope * group.dropped)
        if slope:
            used.append(busy / (facts.simds * slope))
    for start in range(0, count, resident):
        # Not of workgroups that had nothing to do beside others.
        generation = [slope for slope in slopes[start : start + resident] if slope]
        clocks += sum(generation) / max(1, len(generation))
    return _Body(clocks, float(np.mean(used)) if used else 0.0, cu)


def _slope(marks: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Clocks and busy matrix clocks a round, over the later rounds that were simulated."""
    if len(marks) < 4:
        return 0.0, 0.0
    first = len(marks) // 2 if len(marks) < 12 else 6
    last = len(marks) - 2
    if last <= first:
        first, last = 1, len(marks) - 1
    rounds = last - first
    return ((marks[last][0] - marks[first][0]) / rounds,
            (marks[last][1] - marks[first][1]) / rounds)  # fmt: skip


# --- the launch -------------------------------------------------------------------------------


def frequency(utilisation: float, kind: str, facts: Facts = GFX950) -> float:
    """GHz at a utilisation of the chip's matrix units; kind: "half", "fp8" or "fp4"."""
    curve: Curve = {"half": facts.ghz_half, "fp8": facts.ghz_fp8, "fp4": facts.ghz_fp4}[kind]
    return float(np.interp(utilisation, [x for x, _ in curve], [y for _, y in curve]))


def energy(cu: CU) -> float:
    """Energy of a matrix operation with the LDS traffic that feeds it; 1 where that is usual."""
    facts, busy = cu.facts, cu.busy
    if not busy["mfma"]:
        return 1.0
    traffic = busy["bus"] * facts.lds_bus_bytes / (busy["mfma"] / facts.simds)
    return 1.0 + facts.lds_energy * (min(4.0, traffic / facts.lds_traffic) - 1.0)


def matrix_clocks(program: Program, pcs: np.ndarray) -> dict[str, float]:
    """Matrix clocks of executed instructions by type, as `frequency` takes it."""
    clocks = {"half": 0.0, "fp8": 0.0, "fp4": 0.0}
    for pc, count in zip(*np.unique(pcs, return_counts=True), strict=True):
        inst = program.instructions[pc]
        op = MFMA.get(inst.base)
        if op is None:
            continue
        formats = [mod_int(inst.mods, name) for name in ("cbsz", "blgp")]
        bits = 16
        if op.mixed:
            bits = max(SELECTOR[code].bits for code in formats)
        elif op.a in ("fp8", "bf8", "i8"):
            bits = 8
        kind = "half" if bits == 16 else "fp8" if bits == 8 else "fp4"
        clocks[kind] += 4.0 * op.passes_for(*formats) * int(count)
    return clocks


@dataclass(frozen=True)
class Part:
    """Workgroups of a launch that do the same work.

    first, groups: id of the first, and how many there are. traces: what at least one of them
    executed. lines: int64 [2, n], workgroup and 64-byte segment of their first loads, as
    `probe.Probe.run` gives them.
    """

    first: int
    groups: int
    traces: Sequence[GroupTrace]
    lines: np.ndarray

    @property
    def scale(self) -> float:
        """Workgroups that a trace stands for."""
        return self.groups / len(self.traces)


class _Clock:
    """One launch being timed."""

    def __init__(self, launch: Launch, parts: Sequence[Part], bases: np.ndarray | None) -> None:
        self.launch, self.facts = launch, GFX950
        program = launch.kernel.program
        self.resident = groups_per_cu(launch.kernel.resources, launch.waves, launch.lds)
        self.per_cu = -(-launch.groups // self.facts.cus)
        self.at_once = min(self.resident, self.per_cu)
        uops = Uops(program)
        traces = [trace for part in parts for trace in part.traces]
        uops.exchanged = exchanged(traces, uops, bases)
        # What is in flight shares the memory: a CU with more workgroups than others asks for more.
        most = self.per_cu if self.per_cu <= self.resident else 0
        self.traffic = [_traffic(part, uops, bases, most) for part in parts]
        # Of parts that differ, a CU's workgroups are simulated to the last.
        self.differ = len(parts) > 1
        chosen = self._of_rounds(parts) if self.differ else self._alike(parts[0])
        budget = EVENT_BUDGET // max(2 * self.at_once, self.per_cu * self.differ)
        self.prepared = [
            _prepare(trace, traffic, uops, budget) for trace, traffic in chosen
        ]  # fmt: skip
        executed: dict[str, float] = {}
        for part in parts:
            pcs = np.concatenate([wave.pcs for trace in part.traces for wave in trace.waves])
            for kind, clocks in matrix_clocks(program, pcs).items():
                executed[kind] = executed.get(kind, 0.0) + part.scale * clocks
        self.kind = max(executed, key=lambda kind: executed[kind])
        self.matrix = sum(executed.values())

    def _alike(self, part: Part) -> list[tuple[GroupTrace, Traffic]]:
        one_round = self.per_cu <= self.resident
        chosen = _representative(part.traces, self.per_cu, one_round)[: 2 * self.at_once]
        return [(trace, self.traffic[0]) for trace in chosen]

    def _of_rounds(self, parts: Sequence[Part]) -> list[tuple[GroupTrace, Traffic]]:
        """What a CU executes in turn: the longest of each round's part."""
        chosen = []
        for first in range(0, self.launch.groups, self.facts.cus):
            index = max(i for i, part in enumerate(parts) if part.first <= first)
            chosen.append((max(parts[index].traces, key=_length), self.traffic[index]))
        return chosen

    def time(self) -> tuple[float, float, _Body]:
        """(clocks of the busiest CU, GHz, the simulation of a full CU)."""
        count = self.per_cu if self.differ else self.at_once
        ghz = 2.0
        for _ in range(2):
            body = _simulate(self.prepared, count, self.resident, ghz)
            before, ghz = ghz, self._frequency(body, count)
            if abs(before - ghz) < 0.02 * ghz:
                break
        clocks = body.clocks if self.differ else self._rounds(body, ghz)
        return clocks, ghz, body

    def _frequency(self, body: _Body, count: int) -> float:
        rounds = self.per_cu / count
        spent = body.clocks * rounds * self.facts.cus * self.facts.simds
        return frequency(self.matrix / spent * energy(body.cu), self.kind)

    def _rounds(self, body: _Body, ghz: float) -> float:
        """Clocks of all the workgroups that the busiest CU gets, one round following another."""
        at_once = self.at_once
        full, rest = divmod(self.per_cu, at_once)
        clocks = body.clocks
        if full > 1:
            more = _simulate(self.prepared, 2 * at_once, self.resident, ghz)
            clocks += (full - 1) * (more.clocks - body.clocks)
        if rest:
            more = _simulate(self.prepared, at_once + rest, self.resident, ghz)
            clocks += more.clocks - body.clocks
        return clocks


def _traffic(part: Part, uops: Uops, bases: np.ndarray | None, most: int) -> Traffic:
    """What a part's workgroups ask of the memory.

    most: workgroups that a CU has, where all run at once; else 0.
    """
    read, written = moved_bytes(part.traces, uops, bases)
    whole = {region: size * part.scale for region, size in read.items()}
    sharers = float(min(part.groups, GFX950.cus))
    if most:
        sharers = min(sharers, part.groups / most)
    return measure_traffic(part.lines, whole, written * part.scale, sharers, bases)


def exchanged(traces: Sequence[GroupTrace], uops: Uops,
              bases: np.ndarray | None) -> Callable[[int], bool]:  # fmt: skip
    """Whether a segment is of a region through which workgroups exchange data.

    Such are, of a launch with atomics, the regions that are both written and read. What is released
    at the scope of the device leaves the XCD's L2, and others read it past theirs (LLVM AMDGPU
    usage, memory model of gfx942).
    """
    used: dict[bool, set[int]] = {True: set(), False: set()}
    atomics = False
    for trace in traces:
        for wave in trace.waves:
            for pc, costs in wave.costs.items():
                found = [cost.segment for cost in costs if isinstance(cost, VmemCost)]
                used[uops.writes(pc)].update(found)
                atomics = atomics or bool(found) and uops.is_atomic(pc)
    if not atomics or bases is None:
        return lambda segment: False
    both = [set(regions_of(np.array(sorted(s), np.int64), bases).tolist()) for s in used.values()]
    shared = both[0] & both[1] - {-1}
    starts = bases.tolist()
    return lambda segment: bisect_right(starts, (segment + 1) * SEGMENT - 1) - 1 in shared


def moved_bytes(traces: Sequence[GroupTrace], uops: Uops,
                bases: np.ndarray | None = None) -> tuple[dict[int, float], float]:  # fmt: skip
    """Bytes that the traced workgroups read past their L1s, by region, and bytes they wrote."""
    reads: list[tuple[int, float]] = []
    written = 0.0
    for trace in traces:
        for wave in trace.waves:
            pcs, counts = np.unique(wave.pcs, return_counts=True)
            times = dict(zip(pcs.tolist(), counts.tolist(), strict=True))
            for pc, costs in wave.costs.items():
                for visit in range(len(costs)):
                    cost = costs[visit]
                    if not isinstance(cost, VmemCost):
                        break
                    last = visit == len(costs) - 1
                    repeats = times[pc] - visit if last else 1
                    if uops.writes(pc):
                        written += repeats * cost.moved
                    elif cost.missed:
                        reads.append((cost.segment, repeats * cost.missed))
    where = regions_of(np.array([segment for segment, _ in reads], np.int64), bases)
    read: dict[int, float] = {}
    for region, (_, size) in zip(where.tolist(), reads, strict=True):
        read[region] = read.get(region, 0.0) + size
    return read, written


def _bound(body: _Body, us: Mapping[str, float]) -> str:
    """What a launch waits for most."""
    if us["launch"] > 0.5 * us["total"]:
        return "launch"
    if us["hbm"] > 0.9 * us["body"]:
        return "hbm"
    if body.loop_utilisation > BUSY:
        return "mfma"
    cu, end = body.cu, max(1, body.cu.end)
    shares = {"lds": max(cu.busy["lds"], cu.busy["lds write"], cu.busy["bus"] / 2) / end,
              "l2": cu.busy["memory"] / end, "vmem issue": cu.busy["vmem"] / end,
              "issue": cu.busy["valu"] / (end * 4)}  # fmt: skip
    name = max(shares, key=lambda key: shares[key])
    if shares[name] > BUSY:
        return name
    stalls = {("vmem latency" if k == "vmem" else k): v for k, v in cu.stalls.items()}
    alone = {k: v for k, v in stalls.items() if k != "barrier"} or stalls or {"issue": 1}
    return max(alone, key=lambda key: alone[key])


def time_launch(launch: Launch, parts: Sequence[Part], bases: np.ndarray | None = None) -> Estimate:
    """Time of a whole launch from some of its workgroups.

    parts: of the launch, in order of their workgroups; one where all do the same work. bases:
    first addresses of the memory's regions, ascending; None where it is taken as one.
    """
    clock = _Clock(launch, parts, bases)
    clocks, ghz, body = clock.time()
    facts, traffic = clock.facts, clock.traffic
    body_us = 1e-3 * clocks / ghz
    hbm_us = sum(part.hbm_us() for part in traffic)
    total = facts.launch_us + max(body_us, hbm_us)
    us = {"total": total, "body": body_us, "hbm": hbm_us, "launch": facts.launch_us}
    waves = min(clock.resident, clock.per_cu) * launch.waves / facts.simds
    whole = clock.matrix / (clocks * facts.cus * facts.simds)
    read = sum(part.read for part in traffic)
    stats: dict[str, float | str] = {
        "bound": _bound(body, us), "cycles": clocks, "frequency_ghz": ghz,
        "mfma_utilisation": min(1.0, whole),
        "mfma_utilisation_loop": min(1.0, body.loop_utilisation), "waves_per_simd": waves,
        "workgroups_per_cu": float(clock.per_cu), "resident_workgroups": float(clock.resident),
        "launch_us": facts.launch_us, "body_us": body_us, "hbm_us": hbm_us,
        "l2_read_bytes": read, "written_bytes": sum(part.written for part in traffic),
        "l2_miss": sum(part.l2_miss * part.read for part in traffic) / max(1.0, read),
        "hbm_part": sum(part.far * part.read for part in traffic) / max(1.0, read),
        "matrix_energy": energy(body.cu),
    }  # fmt: skip
    return Estimate(total, stats)
