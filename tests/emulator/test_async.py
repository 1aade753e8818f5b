"""Asynchrony: what is read before a wait is old, counters are in order, and broken waits show."""

from __future__ import annotations

import numpy as np
import pytest
from gemm_text import MUTATIONS, run_gemm
from isa_text import HEAD, evaluate, launch, store

from inductor_flydsl.emulator import Options

LANE = np.arange(64)
LAZY = Options(findings=False)
EAGER = Options(landing="eager", findings=False)


@pytest.mark.parametrize("landing", ["eager", "lazy", "random"])
@pytest.mark.parametrize("order", ["lockstep", "forward", "reverse", "random"])
def test_correct_gemm_in_every_order(landing: str, order: str) -> None:
    for findings in (False, True):
        options = Options(landing=landing, order=order, findings=findings, seed=7)
        result, got, want = run_gemm(128, options)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)
        assert result.findings == ()


@pytest.mark.parametrize("name", MUTATIONS)
def test_broken_gemm_is_wrong_in_some_order(name: str) -> None:
    """Every mutation passes if all operations land at once and waves go in step."""
    changes, _ = MUTATIONS[name]
    wrong = 0
    for order in ("lockstep", "forward", "reverse"):
        try:
            _, got, want = run_gemm(128, Options(order=order, findings=False), changes)
        except Exception:  # a pointer read too early faults
            wrong += 1
            continue
        wrong += not np.allclose(got, want, rtol=1e-3, atol=1e-2)
    assert wrong
    _, got, want = run_gemm(128, EAGER, changes)
    if name != "no barrier":
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-4)


LOADED = """
v_mov_b32_e32 v10, 0x11
v_mov_b32_e32 v11, 0x22
s_mov_b32 s8, 0x33
"""


def read_back(body: str, landing: str = "lazy") -> np.ndarray:
    """The first array holds 1000 + lane and receives v10."""
    out = (1000 + LANE).astype(np.uint32)
    launch(HEAD + LOADED + body + store("v10"), [out],
           options=Options(landing=landing, findings=False))  # fmt: skip
    return out


def test_a_register_is_old_until_its_wait() -> None:
    load = "global_load_dword v11, v1, s[4:5]\n{}\nv_mov_b32_e32 v10, v11\n"
    assert (read_back(load.format("s_waitcnt vmcnt(1)")) == 0x22).all()
    assert (read_back(load.format("s_waitcnt vmcnt(0)")) == 1000 + LANE).all()
    assert (read_back(load.format(""), "eager") == 1000 + LANE).all()


def test_vmcnt_lands_the_oldest_first_and_counts_stores() -> None:
    body = """
    global_load_dword v11, v1, s[4:5]
    global_store_dword v1, v0, s[4:5]
    global_load_dword v12, v1, s[4:5]
    s_waitcnt vmcnt({})
    v_mov_b32_e32 v10, {}
    """
    assert (read_back(body.format(2, "v11")) == 1000 + LANE).all()
    assert (read_back(body.format(0, "v12")) == LANE).all()  # behind its own store


def test_a_load_takes_memory_as_it_is_when_it_lands_and_a_store_its_data_at_issue() -> None:
    body = """
    global_store_dword v1, v0, s[4:5]
    v_mov_b32_e32 v0, 0x77
    global_load_dword v10, v1, s[4:5]
    s_waitcnt vmcnt(0)
    """
    assert (read_back(body) == LANE).all()


def test_lgkmcnt_above_zero_covers_no_scalar_load() -> None:
    body = """
    s_load_dword s8, s[4:5], 0x0
    ds_read_b32 v11, v1
    s_waitcnt lgkmcnt({})
    v_mov_b32_e32 v10, s8
    """
    got = evaluate("v_mov_b32_e32 v10, 1", lds=256)
    assert (got == 1).all()
    out = (1000 + LANE).astype(np.uint32)
    launch(HEAD + LOADED + body.format(1) + store("v10"), [out], lds=256, options=LAZY)
    assert (out == 0x33).all()
    out = (1000 + LANE).astype(np.uint32)
    launch(HEAD + LOADED + body.format(0) + store("v10"), [out], lds=256, options=LAZY)
    assert (out == 1000).all()


def test_lds_operations_of_a_wave_are_in_order() -> None:
    body = """
    ds_write_b32 v1, v0
    ds_read_b32 v10, v1
    ds_write_b32 v1, v1
    ds_read_b32 v11, v1
    s_waitcnt lgkmcnt({})
    v_lshl_add_u32 v10, v10, 16, v11
    """
    setup = "v_mov_b32_e32 v10, 0x55\nv_mov_b32_e32 v11, 0x66\n"
    got = evaluate(body.format(0), setup=setup, lds=256, options=LAZY)
    assert (got == (LANE << 16) + 4 * LANE).all()
    early = evaluate(body.format(1), setup=setup, lds=256, options=LAZY)
    assert (early == (LANE << 16) + 0x66).all()


def test_stores_land_at_the_end() -> None:
    out = np.zeros(64, np.uint32)
    launch(HEAD + store("v0"), [out], options=LAZY)
    assert (out == LANE).all()


def test_a_full_counter_makes_the_oldest_land() -> None:
    """vmcnt has 6 bits: the 64th load can't issue before the first has landed."""
    loads = "\n".join(f"global_load_dword v{12 + i % 2}, v1, s[4:5]" for i in range(63))
    body = "global_load_dword v11, v1, s[4:5]\n{}\nv_mov_b32_e32 v10, v11\n"
    assert (read_back(body.format(loads)) == 1000 + LANE).all()
    fewer = loads.split("\n", 1)[1]
    assert (read_back(body.format(fewer)) == 0x22).all()


def test_counters_follow_waves_that_part_and_meet() -> None:
    """Wave 1 issues one load more than wave 0; a later common wait is right for both."""
    body = """
    v_lshrrev_b32_e32 v4, 6, v0
    global_load_dword v11, v1, s[4:5]
    v_readfirstlane_b32 s8, v4
    s_cmp_eq_u32 s8, 0
    s_cbranch_scc1 .Lsame
    global_load_dword v12, v1, s[4:5] offset:4
    .Lsame:
    v_mov_b32_e32 v10, 5
    s_waitcnt vmcnt(1)
    v_mov_b32_e32 v10, v11
    """
    out = np.arange(1000, 1129, dtype=np.uint32)
    launch(HEAD + LOADED + body + store("v10"), [out], block=128, options=LAZY)
    assert (out[:64] == 0x22).all()
    assert (out[64:128] == np.arange(1064, 1128)).all()


def test_direct_to_lds_lands_with_its_wait_and_uses_m0_of_its_issue() -> None:
    out = (1000 + LANE).astype(np.uint32)
    body = """
    s_mov_b32 m0, 0
    v_mov_b32_e32 v4, 9
    ds_write_b32 v1, v4
    s_waitcnt lgkmcnt(0)
    global_load_lds_dword v1, s[4:5]
    s_mov_b32 m0, 0x80
    ds_read_b32 v10, v1
    s_waitcnt vmcnt(0)
    ds_read_b32 v11, v1
    s_waitcnt lgkmcnt(0)
    v_lshl_add_u32 v10, v10, 16, v11
    """
    launch(HEAD + body + store("v10"), [out], lds=512, options=LAZY)
    assert (out == (9 << 16) + 1000 + LANE).all()


def test_random_landing_is_reproducible() -> None:
    changes, _ = MUTATIONS["no tile wait"]
    runs = [
        run_gemm(
            256, Options(landing="random", order="random", seed=seed, findings=False), changes
        )[1]
        for seed in (1, 1, 2, 3, 4)
    ]
    assert np.array_equal(runs[0], runs[1], equal_nan=True)
    assert any(not np.array_equal(runs[0], other, equal_nan=True) for other in runs[2:])
