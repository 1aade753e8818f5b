"""What the clock takes gfx950 to be: rates, depths, latencies and power, each with its source.

Owns constants alone, one frozen record. None depends on a kernel or a problem size; none was
measured on an AMD GPU by this project. Sources: [ISA] AMD "CDNA4 ISA" guide; [WP] AMD CDNA4 white
paper; [LLVM] LLVM's AMDGPU hazard recogniser; [G] ROCm/gfx950-gluon-tutorials, measurements of
LDS, vector memory, tiles and clocks under load; [HK] HazyResearch/HipKittens and its paper; [D]
derived from those, the derivation beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Curve = tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """gfx950. Clocks unless the name says otherwise; sizes in bytes."""

    # The chip [WP].
    cus: int = 256
    xcds: int = 8
    simds: int = 4
    registers: int = 512
    max_waves: int = 8
    lds_bytes: int = 160 * 1024
    lds_granule: int = 1280
    l2_bytes: int = 4 << 20
    infinity_cache_bytes: int = 256 << 20
    nominal_ghz: float = 2.4

    # Issue: a SIMD has its turn every 4 clocks [ISA]; a wave64 VALU operation takes one turn,
    # a transcendental four. An MFMA keeps VALU out for 8 clocks of its 16 or 32 [G].
    turn: int = 4
    transcendental: int = 16
    mfma_blocks_valu: int = 8
    branch_taken: int = 16
    branch_not_taken: int = 8
    # A barrier between waves that take turns at the matrix unit is hidden behind the last MFMA's
    # 16 clocks: such a kernel keeps the unit 99.8 % busy [G]. So it takes 12 or less [D].
    barrier: int = 8
    # MFMA result to an A, B or VALU operand, in wait states of one turn, by passes [LLVM].
    mfma_wait_states: Mapping[int, int] = field(default_factory=lambda: {2: 5, 4: 8, 8: 12, 16: 20})

    # LDS [G]: a phase a clock; a write port, at which LDS-DMA goes first; a pair of SIMDs has a
    # bus of 128 B a clock and a FIFO of 8. Data is back 50 to 70 clocks after the issue: 60 with
    # a free b128 read's 8 clocks of bus.
    lds_bus_bytes: int = 128
    lds_fifo: int = 8
    lds_latency: int = 48
    lds_write_bytes: int = 128
    scalar_latency: int = 200

    # Vector memory [G]: entries of the address queue, bytes in flight a CU, 64 B a clock and CU.
    vmem_queue: int = 12
    vmem_in_flight: int = 44 * 1024
    vmem_issue: Mapping[int, int] = field(default_factory=lambda: {4: 4, 8: 16, 12: 16, 16: 16})
    l1_bytes: int = 32 * 1024
    l1_latency: int = 200
    # The round trip of 1000 clocks that tiles see of L2 [G] is that of a full queue: 44 KiB in
    # flight at 45 bytes a clock take 1000. An unloaded hit takes about half of it [D: published
    # launches below 10 us]; a request that misses 300 ns more, past the Infinity Cache 500 [HK].
    l2_latency: int = 500
    l2_miss_ns: float = 300.0
    far_miss_ns: float = 200.0
    # Bytes a clock and CU that L2 gives: the port is 64 wide; tiles of 128x128 and 128x64, which it
    # bounds, get 44 and 45 of them [G, D].
    l2_bytes_per_clock: float = 45.0
    # A kernel of 192x256 tiles runs at 900 TFLOP/s where L2 hits 36 % of the time and the Infinity
    # Cache 76 %, and at 1068 where they serve it better [HK]: memory bounds it. This rate makes an
    # emulated kernel with that traffic run at 900 [D].
    infinity_cache_bytes_per_us: float = 5.4e6
    hbm_bytes_per_us: float = 6.8e6

    # The smallest kernel's time [G].
    launch_us: float = 2.4
    # Clock in GHz by MFMA utilisation [G], of kernels that move about 96 B over the LDS buses of a
    # CU for a clock of its matrix units (256x256 tiles, 8 waves). One that moves half as much more
    # was seen to run 8 % slower at the same utilisation [G], or no slower [HK], so an operation's
    # energy grows by 0 to 0.6 of the relative traffic; 0.45 fits 128x128 against 256x256 tiles [D].
    lds_traffic: float = 96.0
    lds_energy: float = 0.45
    ghz_half: Curve = ((0.0, 2.4), (0.25, 1.98), (0.82, 1.65), (0.97, 1.52), (1.0, 1.5))
    ghz_fp8: Curve = ((0.0, 2.4), (0.25, 2.05), (0.82, 1.72), (0.99, 1.6), (1.0, 1.59))
    ghz_fp4: Curve = ((0.0, 2.4), (0.51, 2.02), (0.81, 1.44), (0.94, 1.33), (1.0, 1.28))


GFX950 = Facts()
