"""What the cost model knows of the hardware and of our kernels, each number with its evidence.

`model` holds the form that they go into, `arch` what is no matter of fitting.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class ModelConstants:
    """What the form needs beside `Arch`. ``bench/fit_model.py`` finds those marked fitted.

    Published figures are of MI300X/MI355X: [ISA] AMD CDNA4 ISA guide and matrix instruction
    calculator, [GT] ROCm/gfx950-gluon-tutorials, [WP] AMD CDNA3 and CDNA4 white papers.
    """

    launch_us: float = 2.409  # fitted; the smallest published kernel takes 2.4
    l2_clocks: float = 1000.0  # [GT] round trip of a load from L2
    miss_ns: float = 348.6  # fitted, added to it when memory is cold; [GT] 300 past L2
    workgroup_flight: float = 47820.0  # fitted: bytes in flight of one workgroup; [GT] 32 to 48 KiB
    cu_flight: float = 85370.0  # fitted: the same with several, which wait at their own barriers
    barrier_clocks: float = 33.88  # fitted: a barrier and its waits, less with more workgroups
    start_ns: float = 291.5  # fitted: kernel arguments and addresses, once a workgroup
    reduce_tb_s: float = 1.127  # fitted: split-K's partial sums, 4 bytes each
    write_tb_s: float = 3.455  # fitted: stores of C, all CUs together
    power: float = 1.015  # fitted: clock under load relative to POWER_CLOCK
    overlap: float = 2.461  # fitted: exponent that joins the CUs' time and traffic past L2
    cache_tb_s: float = 17.2  # [WP] Infinity Cache, peak
    lds_read_bytes: float = 256.0  # [ISA] a clock and CU; half of it for one wave
    lds_write_bytes: float = 128.0  # [ISA] DMA and ds_write, a clock and CU
    issue_bytes: float = 64.0  # [GT] a clock and CU at which loads and stores of 16 bytes issue
    l2_tb_s: float = 0.0  # [GT] all CUs together, at 45 bytes a clock each; 0: `Arch.l2_tb_s`


CONSTANTS = ModelConstants()
# Published kernels add their partial sums up with atomics; ours are read back by the waves that
# come last, all over the chip, where of two shares each reads the other's only. On the emulated
# clock that takes about this much, and 1800 ns until a wave knows that it is the last.
OUR_SPLITS = ModelConstants(reduce_tb_s=5.5)
PAIR, OUR_REDUCE_NS, DIRECT_REDUCE_NS = 0.75, 1800.0, 1900.0
# The direct pipeline waits for memory alone. On the emulated clock (60 kernels of 13 problems:
# within 7 %, standard deviation) it has as much in flight as a CU takes, which 45 bytes a clock of
# L2 bound.
DIRECT = replace(CONSTANTS, workgroup_flight=95e3, cu_flight=95e3, start_ns=0.0, overlap=10.0,
                 l2_tb_s=27.0)  # fmt: skip
DIRECT_SPLITS = replace(DIRECT, reduce_tb_s=6.0)

# Clock in GHz under load against utilisation of the matrix unit, by bits of an element: published
# for 16 and 4 bits at several utilisations, for 8 bits at 99 %.
POWER_CLOCK = {
    16: ((0.0, 2.4), (0.25, 1.98), (0.82, 1.65), (0.97, 1.52), (1.0, 1.5)),
    8: ((0.0, 2.4), (0.25, 1.98), (0.99, 1.6), (1.0, 1.59)),
    4: ((0.0, 2.4), (0.51, 2.02), (0.81, 1.44), (0.94, 1.33), (1.0, 1.29)),
}
# Multiply-adds a clock and SIMD: v_mfma_f32_16x16x32 in 16 clocks, v_mfma_scale_f32_16x16x128 in
# 32 with an 8-bit operand and in 16 with two of 4 bits [ISA].
MFMA_MACS = {16: 512.0, 8: 1024.0, 4: 2048.0}
# Element-wise gathers issue an address and an LDS write for every 2 bytes of a lane, so an eighth
# of the rate of DMA.
GATHER_FRACTION = 1 / 8
# Of single bytes there are twice as many; the emulated clock finds 4000 clocks more a K step of
# 256 for 32 columns (FP8, B along N), four times what an eighth gives.
BYTE_GATHER_FRACTION = 1 / 32
# Registers beside accumulators and fragments: addresses, descriptors, loop state.
OTHER_REGISTERS = 40
# Pipelines whose loop places loads, LDS reads and MFMAs between one another by hand.
INTERLEAVED = frozenset({"hti", "rolled", "direct"})
# Tiles of 4 waves read two thirds of what those of 8 do from LDS, which is 0.45 of the energy that
# moves with it, as `emulator.facts` has it.
ROLLED_ENERGY = 0.85
# A staged loop waits for a stage to be whole before it asks for another, so with two stages nothing
# is on its way for a part of each step: on the emulated clock 32x64 tiles of MXFP8 with a step of
# 512 take 1.37 times what they do with six stages of 128 (32x14336x4096). Nor is anything loaded
# beside the last step: 64x128 tiles of MXFP4 take 1.16 times as long with a step of 512 as with one
# of 256 (512x4096x4096).
STAGE_WAITED = 1.4
# Addresses, descriptors, scales and the loop: about 60 instructions.
STEP_ISSUE = 240.0
# The clock that the utilisation is found at; it sets the clock that the launch is priced at.
FIRST_GHZ = 2.0
