"""Parts of the clock by themselves: loops, what workgroups share, bank phases, rounds."""

from __future__ import annotations

import numpy as np
import pytest
from isa_text import HEAD, launch

from inductor_flydsl.emulator import LaunchError, Options, timing
from inductor_flydsl.emulator.facts import GFX950
from inductor_flydsl.emulator.lds_timing import access_of, core_clocks
from inductor_flydsl.emulator.loops import find_loop, positions
from inductor_flydsl.emulator.traffic import measure_traffic

OUTER = [3, 4, 5, 4, 5, 4, 5, 9]
BODY = """
s_movk_i32 s8, {times}
v_and_b32_e32 v2, 63, v0
v_lshlrev_b32_e32 v2, 4, v2
.Lloop:
ds_read_b128 v[20:23], v2
v_add_u32_e32 v50, v51, v52
s_waitcnt lgkmcnt(0)
v_mfma_f32_16x16x32_bf16 v[4:7], v[20:23], v[24:27], v[4:7]
s_barrier
s_sub_i32 s8, s8, 1
s_cmp_lg_u32 s8, 0
s_cbranch_scc1 .Lloop
"""


@pytest.mark.parametrize(
    ("pcs", "expected"),
    [
        ([0, 1, 2, 3], None),
        ([0, 1, 2, 1, 2, 1, 2, 3], (1, 2, 2)),
        ([0, *OUTER, *OUTER, *OUTER, 10], (1, 8, 2)),
        ([0, 1, 2, 3, 1, 3, 1, 3, 1, 3, 1, 3, 4], (4, 2, 3)),
    ],
)
def test_finds_the_longest_stretch_of_equal_rounds(
    pcs: list[int], expected: tuple[int, int, int] | None
) -> None:
    loop = find_loop(np.array(pcs))
    assert (loop and (loop.start, loop.length, loop.rounds)) == expected


def test_leaves_out_whole_rounds_but_not_the_last() -> None:
    pcs = np.array([0, *[1, 2] * 10, 3])
    loop = find_loop(pcs)
    assert loop is not None
    kept = pcs[positions(len(pcs), loop, 4)]
    assert kept.tolist() == [0, *[1, 2] * 6, 3]


@pytest.mark.parametrize("block", [64, 256])
def test_left_out_rounds_are_made_up_for(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    def cycles() -> object:
        text = HEAD + BODY.format(times=400)
        options = Options(findings=False)
        return launch(text, [np.zeros(64)], block=block, lds=4096, options=options).stats["cycles"]

    whole = cycles()
    monkeypatch.setattr(timing, "EVENT_BUDGET", 400)
    assert cycles() == pytest.approx(whole, rel=0.01)


@pytest.mark.parametrize("inside", [2, 7, 20])
def test_loads_past_the_end_of_a_buffer_move_nothing(inside: int) -> None:
    """20 loads of 256 bytes each, of which the first `inside` reach memory."""
    text = f"""
s_mov_b32 s6, {256 * inside}
s_mov_b32 s7, 0x27000
s_movk_i32 s8, 20
.Lloop:
buffer_load_dword v3, v1, s[4:7], 0 offen
v_add_u32_e32 v1, 0x100, v1
s_sub_i32 s8, s8, 1
s_cmp_lg_u32 s8, 0
s_cbranch_scc1 .Lloop
s_waitcnt vmcnt(0)
"""
    result = launch(HEAD + text, [np.zeros(1024)], options=Options(findings=False))
    # An array need not start at a line.
    assert result.stats["l2_read_bytes"] - 256 * inside in (0, 64)


def test_workgroups_of_an_xcd_share_its_l2() -> None:
    """16 workgroups: each has a line of its own, one that its XCD shares, one that all share."""
    group = np.repeat(np.arange(16), 3)
    own, shared = 1000 + np.arange(16), np.arange(16) % 8
    segment = np.stack([own, shared, np.full(16, 500)], axis=1).reshape(-1)
    traffic = measure_traffic(np.stack([group, segment]), {0: 3e6}, 1e6, 16)
    assert traffic.l2_miss == pytest.approx((16 + 8 + 8) / 48)
    assert traffic.far == pytest.approx((16 + 8 + 1) / 48)
    assert traffic.hbm_us() == pytest.approx((3e6 * 25 / 48 + 1e6) / GFX950.hbm_bytes_per_us)


def test_an_operand_that_is_loaded_ahead_counts_no_more_than_what_is_read_of_it() -> None:
    """Region 0 is shared by all and loaded twice as far ahead as region 1, which nobody shares."""
    group = np.repeat(np.arange(8), 3)
    segment = np.stack([np.full(8, 0), np.full(8, 1), 100 + np.arange(8)], axis=1).reshape(-1)
    bases = np.array([0, 6400])
    lines = np.stack([group * 8, segment])
    traffic = measure_traffic(lines, {0: 5e5, 1: 5e5}, 0, 8, bases)
    assert traffic.read == 1e6
    assert traffic.far == pytest.approx(0.5 / 8 + 0.5)


def test_more_misses_are_slower_and_get_less() -> None:
    group, segment = np.repeat(np.arange(256), 4), np.arange(1024)
    apart = measure_traffic(np.stack([group, segment]), {0: 1e6}, 0, 256).share(2.0)
    alike = measure_traffic(np.stack([group, segment % 4]), {0: 1e6}, 0, 256).share(2.0)
    assert apart.latency > alike.latency + 500
    assert apart.bytes_per_clock < alike.bytes_per_clock == GFX950.l2_bytes_per_clock


@pytest.mark.parametrize(
    ("name", "stride", "clocks"),
    [
        ("ds_read_b128", 16, 4), ("ds_read_b128", 0, 4), ("ds_read_b64", 8, 2),
        ("ds_read_b64", 256, 64), ("ds_read_b32", 4, 1), ("ds_read_b32", 8, 2),
        ("ds_write_b64", 8, 4), ("ds_write_b128", 16, 8), ("ds_read_b64_tr_b16", 8, 2),
        ("ds_read_b96", 16, 8),
    ],
)  # fmt: skip
def test_phases_of_lds(name: str, stride: int, clocks: int) -> None:
    access = access_of(name)
    assert access is not None
    addr = (np.arange(64) * stride)[None]
    assert core_clocks(access, addr).tolist() == [clocks]


def test_lanes_that_are_off_meet_nobody() -> None:
    access = access_of("ds_read_b32")
    assert access is not None
    addr = (np.arange(64) * 256)[None]
    on = (np.arange(64) < 3)[None]
    assert core_clocks(access, addr).tolist() == [64]
    assert core_clocks(access, addr, on).tolist() == [3]


@pytest.mark.parametrize(("grid", "groups"), [(1, 1), (256, 1), (257, 2), (512, 2), (2048, 8)])
def test_the_busiest_cu(grid: int, groups: int) -> None:
    """With room for one workgroup of 128 KiB of LDS a CU, rounds follow one another."""
    text = HEAD + BODY.format(times=40)
    options = Options(findings=False, sample_workgroups=(0,))
    memory = [np.zeros(64)]

    def cycles(count: int) -> float:
        result = launch(text, memory, grid=count, block=64, lds=131072, options=options)
        assert result.stats["workgroups_per_cu"] == -(-count // 256)
        return float(result.stats["cycles"])

    assert cycles(grid) == pytest.approx(groups * cycles(1), rel=0.05)


def test_parts_of_a_grid_that_do_different_work() -> None:
    """256 workgroups loop 40 times, and 128 of a second round 4 times."""
    text = (
        HEAD
        + """
s_cmp_ge_u32 s2, 256
s_cselect_b32 s8, 4, 40
.Lloop:
v_mfma_f32_16x16x32_bf16 v[4:7], v[8:11], v[12:15], v[4:7]
s_sub_i32 s8, s8, 1
s_cmp_lg_u32 s8, 0
s_cbranch_scc1 .Lloop
"""
    )

    def result(grid: int, parts: tuple[int, ...], sample: tuple[int, ...]) -> dict[str, object]:
        options = Options(findings=False, sample_workgroups=sample, parts=parts)
        memory = [np.zeros(64)]
        return launch(text, memory, grid=grid, block=64, lds=131072, options=options).stats

    long, both = result(256, (0,), (0,)), result(384, (0, 256), (0, 256))
    short = result(384, (0, 256), (0, 300))
    spent = float(both["cycles"]) - float(long["cycles"])
    assert 4 * 16 < spent < 0.25 * float(long["cycles"])
    assert short["cycles"] == both["cycles"]
    executed = 256 * 40 + 128 * 4
    share = executed * 16 / (float(both["cycles"]) * 256 * 4)
    assert both["mfma_utilisation"] == pytest.approx(share)
    with pytest.raises(LaunchError, match="no workgroup of 256 to 383"):
        result(384, (0, 256), (0, 1))
