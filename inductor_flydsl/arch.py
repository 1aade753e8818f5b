"""Hardware facts, one frozen record an architecture. Knows nothing of kernels or problems."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import BadArgument


@dataclass(frozen=True, kw_only=True)
class Arch:
    """What a kernel generator, a cost model and an emulator must know of one GPU.

    Sizes are in bytes, clocks in GHz, bandwidths in TB/s, times in µs.
    """

    name: str
    compute_units: int
    xcds: int
    simds_per_cu: int
    wave_size: int
    max_waves_per_simd: int
    max_waves_per_workgroup: int
    registers_per_lane: int
    lds_bytes: int
    lds_granule: int
    l2_bytes_per_xcd: int
    infinity_cache_bytes: int
    max_clock_ghz: float
    hbm_tb_s: float
    l2_tb_s: float
    launch_floor_us: float
    dma_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        for field in ("compute_units", "xcds", "simds_per_cu", "wave_size", "lds_bytes"):
            if getattr(self, field) <= 0:
                raise BadArgument(field, getattr(self, field), "is not positive", "give the count")
        if self.compute_units % self.xcds:
            raise BadArgument(
                "compute_units", self.compute_units, "is not a multiple of xcds", "check both"
            )


# AMD Instinct MI350X/MI355X: CDNA4 ISA guide (LDS, registers, waves), CDNA4 white paper (CUs,
# XCDs, caches, HBM). The bandwidths are the best published measurements, not the peaks.
GFX950 = Arch(
    name="gfx950",
    compute_units=256,
    xcds=8,
    simds_per_cu=4,
    wave_size=64,
    max_waves_per_simd=8,
    max_waves_per_workgroup=16,
    registers_per_lane=512,
    lds_bytes=160 * 1024,
    lds_granule=1280,
    l2_bytes_per_xcd=4 << 20,
    infinity_cache_bytes=256 << 20,
    max_clock_ghz=2.4,
    hbm_tb_s=6.8,
    l2_tb_s=17.0,
    launch_floor_us=2.4,
    dma_bytes=(4, 16),
)

ARCHS: dict[str, Arch] = {GFX950.name: GFX950}


def get_arch(name: str) -> Arch:
    """Look an architecture up by its LLVM name, with or without feature flags.

    Args:
        name: for example ``gfx950`` or ``gfx950:sramecc+:xnack-``.

    Raises:
        BadArgument: the architecture has no kernels here.
    """
    base = name.split(":", 1)[0]
    if base not in ARCHS:
        raise BadArgument("arch", name, "has no kernels here", f"use one of {sorted(ARCHS)}")
    return ARCHS[base]
