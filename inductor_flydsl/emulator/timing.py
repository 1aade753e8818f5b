"""A simple clock: instruction counts and bytes of a run → an estimated time on an MI355X.

Owns the estimate and its constants; it ranks kernels against each other under the clock
"emulated" and says nothing of real microseconds. Throughputs: AMD "CDNA4 ISA" guide and white
paper, public microbenchmarks of gfx950. Knows nothing of registers or memory contents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .asm import Instruction
from .launch import Launch
from .mfma_ops import MFMA
from .program import Resources
from .vector import mod_int

CLOCK = "emulated"
CLOCK_MHZ = 2400.0
CUS, SIMDS = 256, 4
LDS_BYTES = 160 * 1024
REGISTERS = 512
LAUNCH_US = 2.4
HBM_BYTES_PER_US = 6.8e6
CACHE_BYTES_PER_US = 17e6
LATENCY_CLOCKS = 1000.0
"""Round trip of a vector load that hits L2."""
_LDS_WIDE = {"b96": 12, "b128": 8, "b64": 4}
_VMEM_CLOCKS = {"x2": 16, "x3": 16, "x4": 16}


@dataclass(frozen=True)
class Estimate:
    """time_us, and the clocks a wave and a CU spend by class."""

    time_us: float
    stats: dict[str, float]


def instruction_class(inst: Instruction) -> tuple[str, float]:
    """(class, issue clocks) of one wave-instruction: mfma, valu, salu, lds, vmem or wait."""
    base = inst.base
    op = MFMA.get(base)
    if op is not None:
        return "mfma", 4.0 * op.passes_for(mod_int(inst.mods, "cbsz"), mod_int(inst.mods, "blgp"))
    if base.startswith("ds_"):
        wide = next((c for name, c in _LDS_WIDE.items() if name in base), 4)
        return "lds", float(wide * (2 if "read2" in base or "write2" in base else 1))
    if base.startswith(("buffer_", "global_", "flat_", "scratch_")):
        return "vmem", float(next((c for k, c in _VMEM_CLOCKS.items() if base.endswith(k)), 4))
    if base.startswith(("s_waitcnt", "s_barrier")):
        return "wait", 1.0
    if base.startswith("s_"):
        return "salu", 4.0
    if base.startswith(("v_exp", "v_log", "v_rcp", "v_rsq", "v_sqrt", "v_sin", "v_cos")):
        return "valu", 16.0
    return "valu", 4.0


def waves_per_simd(resources: Resources, waves_per_group: int, lds: int) -> int:
    """Waves resident on a SIMD: limited by registers, LDS and the workgroup's size."""
    registers = max(8, -(-(resources.vgpr + resources.agpr) // 8) * 8)
    by_registers = min(8, REGISTERS // min(registers, REGISTERS))
    groups = max(1, by_registers * SIMDS // waves_per_group)
    if lds:
        groups = min(groups, max(1, LDS_BYTES // (-(-lds // 1280) * 1280)))
    return max(1, groups * waves_per_group // SIMDS)


def estimate(counts: Sequence[tuple[Instruction, int]], launch: Launch, groups_run: int,
             moved: tuple[int, int]) -> Estimate:  # fmt: skip
    """Time of the whole grid from the wave-instructions of `groups_run` of its workgroups.

    moved: bytes read from and written to memory by those workgroups.
    """
    clocks: dict[str, float] = {}
    issued: dict[str, float] = {}
    for inst, n in counts:
        name, cost = instruction_class(inst)
        clocks[name] = clocks.get(name, 0.0) + cost * n
        issued[name] = issued.get(name, 0.0) + n
    waves = groups_run * launch.waves
    per_wave = {name: total / waves for name, total in clocks.items()}
    resident = waves_per_simd(launch.kernel.resources, launch.waves, launch.lds)
    slots = CUS * max(1, resident * SIMDS // launch.waves)
    rounds = math.ceil(launch.groups / slots)
    in_flight = min(launch.groups, slots)
    groups_per_cu = math.ceil(in_flight / CUS)
    waves_per_cu = groups_per_cu * launch.waves
    per_simd = math.ceil(waves_per_cu / SIMDS)

    # Matrix and vector pipes overlap; a wave alone pays its own latencies one after another.
    mfma, valu = per_wave.get("mfma", 0.0), per_wave.get("valu", 0.0)
    pipe = max(mfma, valu, per_wave.get("salu", 0.0)) + 0.25 * min(mfma, valu)
    simd = per_simd * pipe
    shared = waves_per_cu * max(per_wave.get("lds", 0.0) / 2, per_wave.get("vmem", 0.0) / SIMDS)
    waits = issued.get("wait", 0.0) / waves
    alone = pipe + sum(per_wave.get(k, 0.0) for k in ("lds", "vmem")) + 20.0 * waits
    body = max(simd, shared, alone) + LATENCY_CLOCKS
    scale = launch.groups / groups_run
    total_bytes = scale * (moved[0] + moved[1])
    compute_us = rounds * body / CLOCK_MHZ
    share = min(1.0, in_flight / CUS)
    memory_us = total_bytes / (CACHE_BYTES_PER_US * share)
    stats = {f"{name}_instructions": scale * n for name, n in issued.items()}
    stats |= {"bytes_read": scale * moved[0], "bytes_written": scale * moved[1],
              "rounds": float(rounds), "workgroups_run": float(groups_run),
              "compute_us": compute_us, "memory_us": memory_us,
              "waves_per_simd": float(resident)}  # fmt: skip
    return Estimate(LAUNCH_US + max(compute_us, memory_us), stats)
