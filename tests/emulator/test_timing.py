"""The emulated clock against measured tables: LDS, matrix results, issue, barriers, memory."""

from __future__ import annotations

import numpy as np
import pytest
from isa_text import HEAD, TWO, launch

from inductor_flydsl.emulator import Options, RunResult
from inductor_flydsl.emulator.facts import GFX950
from inductor_flydsl.emulator.timing import frequency

QUIET = Options(findings=False)


def run(body: str, block: int = 64, **given: object) -> RunResult:
    room = np.zeros((1 << 16) + 32, np.uint32)
    start = -room.__array_interface__["data"][0] % 128 // 4  # a line's begin
    return launch(body, [room[start : start + (1 << 16)]], block=block, options=QUIET, **given)


def clocks(body: str, block: int = 64, **given: object) -> float:
    """Clocks of a launch's busiest CU."""
    return float(run(body, block, **given).stats["cycles"])


def steady(unit: str, block: int = 64, setup: str = "", end: str = "", **given: object) -> float:
    """Clocks that one more `unit` of each wave takes, in a long row of them."""
    few, many = 192, 320
    texts = [setup + unit * n + end for n in (few, many)]
    low, high = (clocks(text, block, **given) for text in texts)
    return (high - low) / (many - few)


# v1 = what a lane reads at, from its lane number
def lds_address(stride: int, shift: int) -> str:
    lane = "v_and_b32_e32 v1, 63, v0\n"
    return f"{lane}v_mul_u32_u24_e32 v1, {stride}, v1\nv_add_u32_e32 v1, {shift}, v1\n"


@pytest.mark.parametrize("waves", [1, 4])
@pytest.mark.parametrize(
    ("stride", "shift", "conflict"), [(16, 0, 1), (32, 0, 2), (64, 0, 4), (128, 0, 8), (16, 4, 16)]
)
def test_lds_read_b128(waves: int, stride: int, shift: int, conflict: int) -> None:
    """One wave: 8, 8, 16, 32, 64 clocks; four: 16, 32, 64, 128, 256."""
    measured = {1: {1: 8, 2: 8, 4: 16, 8: 32, 16: 64}, 4: {1: 16, 2: 32, 4: 64, 8: 128, 16: 256}}
    got = steady(
        "ds_read_b128 v[4:7], v1\n", 64 * waves, lds_address(stride, shift),
        "s_waitcnt lgkmcnt(0)\n", lds=16384,
    )  # fmt: skip
    assert got == pytest.approx(measured[waves][conflict], rel=0.02)


def test_lds_read_b64() -> None:
    got = steady(
        "ds_read_b64 v[4:5], v1\n", 256, lds_address(8, 0), "s_waitcnt lgkmcnt(0)\n", lds=16384
    )
    assert got == pytest.approx(8, rel=0.02)


def test_lds_latency() -> None:
    unit = "ds_read_b128 v[4:7], v1\ns_waitcnt lgkmcnt(0)\n"
    assert 50 <= steady(unit, 64, lds_address(16, 0), lds=16384) <= 72


DEPENDENT = {
    "2 passes": ("v_mfma_f32_4x4x4_16b_bf16 v[4:7], v[4:5], v[20:21], v[24:27]", 5),
    "4 passes": ("v_mfma_f32_16x16x32_bf16 v[4:7], v[4:7], v[20:23], v[24:27]", 8),
    "8 passes": ("v_mfma_f32_32x32x16_bf16 v[4:19], v[4:7], v[20:23], v[24:39]", 12),
    "16 passes": ("v_mfma_f32_32x32x64_f8f6f4 v[4:19], v[4:11], v[20:27], v[28:43]", 20),
}


@pytest.mark.parametrize(("text", "states"), DEPENDENT.values(), ids=DEPENDENT)
def test_matrix_result_as_operand(text: str, states: int) -> None:
    """Wait states between an MFMA and one that takes its result as A."""
    assert steady(text + "\n") / 4 - 1 == states


@pytest.mark.parametrize(
    ("text", "states"), [DEPENDENT["4 passes"], DEPENDENT["8 passes"]], ids=["4", "8"]
)
def test_matrix_result_in_vector_operation(text: str, states: int) -> None:
    unit = f"{text}\nv_add_f32_e32 v50, v4, v4\n"
    # The next MFMA starts a turn after the vector operation.
    free = steady(unit.replace(", v[4:7]", ", v[44:47]"))
    assert free / 4 - 2 == states


def test_no_stall_where_the_compiler_has_waited() -> None:
    text, states = DEPENDENT["4 passes"]
    assert steady(f"{text}\ns_nop {states - 1}\n") == 4 * (states + 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("v_mfma_f32_16x16x32_bf16 v[4:7], v[8:11], v[12:15], v[4:7]", 16),
        ("v_mfma_f32_16x16x32_f16 v[4:7], v[8:11], v[12:15], v[4:7]", 16),
        ("v_mfma_f32_32x32x16_bf16 v[4:19], v[20:23], v[24:27], v[4:19]", 32),
        ("v_mfma_f32_16x16x16_bf16 v[4:7], v[8:9], v[12:13], v[4:7]", 16),
        ("v_mfma_f32_16x16x32_fp8_fp8 v[4:7], v[8:9], v[12:13], v[4:7]", 16),
        ("v_mfma_f32_16x16x128_f8f6f4 v[4:7], v[8:15], v[16:23], v[4:7]", 32),
        ("v_mfma_f32_16x16x128_f8f6f4 v[4:7], v[8:15], v[16:19], v[4:7] blgp:4", 32),
        ("v_mfma_f32_16x16x128_f8f6f4 v[4:7], v[8:11], v[16:19], v[4:7] cbsz:4 blgp:4", 16),
        ("v_mfma_f32_32x32x64_f8f6f4 v[4:19], v[20:27], v[28:35], v[4:19]", 64),
        ("v_mfma_f32_32x32x64_f8f6f4 v[4:19], v[20:23], v[28:31], v[4:19] cbsz:4 blgp:4", 32),
    ],
)
def test_matrix_rate(text: str, expected: int) -> None:
    """Chained accumulators cost nothing; a SIMD has one matrix unit."""
    assert steady(text + "\n") == expected
    assert steady(text + "\n", 256) == expected
    assert steady(text + "\n", 512) == 2 * expected


SMALL = "v_mfma_f32_16x16x32_bf16 v[4:7], v[8:11], v[12:15], v[4:7]\n"
LARGE = "v_mfma_f32_32x32x16_bf16 v[4:19], v[20:23], v[24:27], v[4:19]\n"
ADD = "v_add_u32_e32 v50, v51, v52\n"


@pytest.mark.parametrize(
    ("unit", "expected"),
    [
        (SMALL + 2 * ADD, 16), (SMALL + 3 * ADD, 20), (LARGE + 6 * ADD, 32), (LARGE + 7 * ADD, 36),
        (ADD, 4), ("v_exp_f32_e32 v50, v51\n", 16), ("s_add_u32 s8, s9, s10\n", 4),
        ("s_nop 3\n", 16),
    ],
)  # fmt: skip
def test_vector_operations_fit_the_gaps(unit: str, expected: int) -> None:
    assert steady(unit) == expected


def test_another_wave_fills_the_gaps() -> None:
    """Waves 0-3 multiply and waves 4-7 add: on each SIMD one of each, at no cost to the other."""
    both = """
    v_readfirstlane_b32 s8, v0
    s_cmp_ge_u32 s8, 256
    s_cbranch_scc1 .Ladd
    """ + 200 * SMALL + "s_endpgm\n.Ladd:\n" + 200 * ADD  # fmt: skip
    assert clocks(both, 512) < clocks(200 * SMALL, 256) + 60


def test_priority_decides_who_multiplies() -> None:
    """The wave with the higher priority ends first, whatever its age."""

    def stall(first: int, second: int) -> float:
        text = f"""
        v_readfirstlane_b32 s8, v0
        s_cmp_ge_u32 s8, 256
        s_cbranch_scc1 .Lsecond
        s_setprio {first}
        {100 * SMALL}
        s_endpgm
        .Lsecond:
        s_setprio {second}
        {100 * SMALL}
        s_setprio 0
        {200 * ADD}
        """
        return clocks(text, 512)

    # Only the second has work left after its MFMAs, so it should have gone first.
    assert stall(0, 3) < stall(3, 0) - 700


def test_barrier_waits_for_the_last() -> None:
    slow = "v_readfirstlane_b32 s8, v0\ns_cmp_ge_u32 s8, 64\ns_cbranch_scc1 .Lmeet\n"
    text = slow + 300 * ADD + ".Lmeet:\ns_barrier\n" + 100 * ADD
    got = clocks(text, 256)
    assert 4 * 400 + GFX950.barrier <= got <= 4 * 400 + GFX950.barrier + 60


def test_load_round_trip() -> None:
    chain = "global_load_dword v4, v1, s[4:5]\ns_waitcnt vmcnt(0)\n"
    first = clocks(HEAD + chain) - clocks(HEAD)
    cold = GFX950.l2_latency + GFX950.nominal_ghz * (GFX950.l2_miss_ns + GFX950.far_miss_ns)
    assert first == pytest.approx(cold, abs=30)
    assert steady(chain, 64, HEAD) == pytest.approx(GFX950.l1_latency, abs=20)


@pytest.mark.parametrize(("width", "expected"), [("", 4), ("x2", 16), ("x4", 16)])
def test_address_clocks(width: str, expected: int) -> None:
    """Clocks a CU spends on an instruction whose lines are all in L1; four waves share it."""
    registers, shift = {"": ("v4", 2), "x2": ("v[4:5]", 3), "x4": ("v[4:7]", 4)}[width]
    load = f"global_load_dword{width} {registers}, v2, s[4:5]\n"
    setup = HEAD + f"v_and_b32_e32 v2, 63, v0\nv_lshlrev_b32_e32 v2, {shift}, v2\n"
    got = steady(load, 256, setup, "s_waitcnt vmcnt(0)\n")
    assert got == pytest.approx(4 * expected, rel=0.05)


def test_what_workgroups_leave_for_one_another_goes_past_l2() -> None:
    """256 workgroups write and read 64 KiB each; an atomic tells that they share it."""
    tell = "global_atomic_add v1, v0, s[4:5]\n"
    setup = TWO + "v_lshlrev_b32_e32 v2, 4, v0\n"
    step = "v_add_u32_e32 v2, 0x400, v2\n"
    written = 64 * ("global_store_dwordx4 v2, v[4:7], s[8:9]\n" + step)
    back = "s_waitcnt vmcnt(0)\nv_lshlrev_b32_e32 v2, 4, v0\n"
    read = 64 * ("global_load_dwordx4 v[4:7], v2, s[8:9]\n" + step) + "s_waitcnt vmcnt(0)\n"

    def result(text: str) -> RunResult:
        arrays = [np.zeros(64, np.uint32), np.zeros(1 << 15, np.uint32)]
        only = Options(findings=False, sample_workgroups=(0,))
        return launch(setup + text, arrays, grid=256, options=only)

    alone, shared = (result(text + back + read) for text in (written, tell + written))
    ghz = float(shared.stats["frequency_ghz"])
    rate = GFX950.infinity_cache_bytes_per_us / (1e3 * ghz * 256)
    least = 2 * 65536 / rate
    assert least < shared.stats["cycles"] < least + 2 * GFX950.l2_latency + 4 * 300 * ghz
    assert float(alone.stats["cycles"]) < 0.5 * least
    # What is only written, as C is, stays behind in L2.
    assert float(result(tell + written).stats["cycles"]) < 0.5 * least


def test_a_cu_with_more_workgroups_than_others_gets_more_of_the_memory() -> None:
    """Workgroups of four waves read 32 KiB each that nobody else reads, two at a time on a CU."""
    own = "v_lshlrev_b32_e32 v2, 4, v0\ns_lshl_b32 s6, s2, 15\nv_add_u32_e32 v2, s6, v2\n"
    step = "v_add_u32_e32 v2, 0x1000, v2\n"
    read = 8 * ("global_load_dwordx4 v[4:7], v2, s[4:5]\n" + step) + "s_waitcnt vmcnt(0)\n"
    room = np.zeros(512 << 13, np.uint32)

    def us(groups: int) -> float:
        only = Options(findings=False, sample_workgroups=(0, 1))
        stats = launch(HEAD + own + read, [room], grid=groups, block=256, options=only).stats
        return float(stats["body_us"])

    once, half, twice = us(256), us(384), us(512)
    assert once + 0.4 * (twice - once) < half < once + 0.6 * (twice - once)


@pytest.mark.parametrize(
    ("kind", "utilisation", "ghz"),
    [("half", 0.25, 1.98), ("half", 0.82, 1.65), ("half", 0.97, 1.52), ("fp8", 0.99, 1.6),
     ("fp4", 0.51, 2.02), ("fp4", 0.81, 1.44), ("fp4", 0.94, 1.33)],
)  # fmt: skip
def test_frequency_under_load(kind: str, utilisation: float, ghz: float) -> None:
    assert frequency(utilisation, kind) == pytest.approx(ghz)


def test_stats_name_what_bounds() -> None:
    result = run(256 * SMALL * 4, 256)
    assert result.clock == "emulated"
    assert result.stats["bound"] == "mfma"
    assert result.stats["waves_per_simd"] == 1
    ghz = result.stats["frequency_ghz"]
    assert isinstance(ghz, float) and 1.3 < ghz <= 2.4
    reading = lds_address(16, 0) + 256 * (4 * SMALL + "ds_read_b128 v[60:63], v1\n")
    read = run(reading, 256, lds=16384)
    assert result.stats["matrix_energy"] < read.stats["matrix_energy"]
    assert run("s_nop 0").stats["bound"] == "launch"


def test_the_same_launch_takes_the_same_time() -> None:
    times = {run(64 * SMALL + 32 * ADD, 512).time_us for _ in range(3)}
    assert len(times) == 1


def test_an_untimed_run_has_no_time() -> None:
    memory = [np.zeros(64, np.uint32)]
    result = launch("s_nop 0", memory, options=Options(timed=False))
    assert np.isnan(result.time_us)
