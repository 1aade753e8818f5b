"""What compiled kernels occupy: registers, LDS, and how many of their waves share a SIMD.

Owns the reading of a code object's figures against an architecture's limits. Compiles nothing: a
kernel that was never compiled here has no figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import compiler
from .arch import Arch
from .compiler import Resources
from .config import GemmConfig, KernelSpec
from .errors import MissingDependency
from .problem import GemmProblem

# Registers are handed out in blocks of this many a lane (CDNA4 ISA guide, VGPR allocation).
REGISTER_GRANULE = 8
# Where a compiled kernel may lie: what a GPU runs first, else its twin for the emulator.
BACKENDS = ("rocm", "emulator")


@dataclass(frozen=True, kw_only=True)
class Occupancy:
    """What one kernel occupies.

    Attributes:
        resources: of its code object. There ``vgprs`` counts the accumulation registers too: both
            kinds share a file.
        waves_per_simd: waves of it that a SIMD holds at once; below 1 where a workgroup has fewer
            waves than a compute unit has SIMDs.
        bound: what keeps another workgroup out: ``registers``, ``LDS`` or ``waves``.
    """

    resources: Resources
    waves_per_simd: float
    bound: str

    def to_json(self) -> dict[str, Any]:
        r = self.resources
        return {
            "vgprs": r.vgprs - r.agprs,
            "agprs": r.agprs,
            "sgprs": r.sgprs,
            "spills": r.spills,
            "scratch_bytes": r.scratch_bytes,
            "lds_bytes": r.lds_bytes,
            "waves_per_simd": self.waves_per_simd,
            "bound": self.bound,
        }


COLUMNS = ("VGPR", "AGPR", "SGPR", "SPILLS", "SCRATCH B", "LDS B", "WAVES/SIMD", "BOUND BY")


def occupancy(resources: Resources, waves: int, arch: Arch) -> Occupancy:
    """Occupancy of a kernel whose workgroups have so many waves."""
    registers = max(1, -(-resources.vgprs // REGISTER_GRANULE)) * REGISTER_GRANULE
    lds = -(-resources.lds_bytes // arch.lds_granule) * arch.lds_granule
    groups = {
        "waves": arch.max_waves_per_simd * arch.simds_per_cu // waves,
        "registers": arch.registers_per_lane // registers * arch.simds_per_cu // waves,
    }
    if lds:
        groups["LDS"] = arch.lds_bytes // lds
    bound = min(groups, key=groups.__getitem__)
    held = groups[bound] * waves / arch.simds_per_cu
    return Occupancy(resources=resources, waves_per_simd=held, bound=bound)


def compiled(problem: GemmProblem, config: GemmConfig, arch: Arch) -> Occupancy | None:
    """Occupancy of the kernel of a problem, or None if it was never compiled here."""
    spec = KernelSpec.of(problem, config)
    for backend in BACKENDS:
        try:
            artifact = compiler.find(spec, arch.name, backend)
        except MissingDependency:
            return None
        if artifact is not None and artifact.resources is not None:
            return occupancy(artifact.resources, config.threads // arch.wave_size, arch)
    return None


def cells(found: Occupancy) -> tuple[object, ...]:
    """A row of a table under COLUMNS."""
    *counts, waves, bound = found.to_json().values()
    return (*counts, f"{waves:g}", bound)
