"""Findings: each kind on a kernel that has it, and none on kernels that don't."""

from __future__ import annotations

import numpy as np
import pytest
from gemm_text import MUTATIONS, run_gemm
from isa_text import HEAD, kinds, launch, store

from inductor_flydsl.emulator import Options, RunResult


def hazards_of(body: str, block: int = 128, **given: object) -> RunResult:
    """Runs `body` on one array of 1024 dwords."""
    return launch(HEAD + body, [np.zeros(1024, np.uint32)], block=block, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("landing", ["lazy", "eager"])
@pytest.mark.parametrize("name", MUTATIONS)
def test_every_broken_gemm_has_its_finding(name: str, landing: str) -> None:
    changes, kind = MUTATIONS[name]
    options = Options(landing=landing, max_instructions=100_000)
    result, _, _ = run_gemm(128, options, changes)
    found = {"read-before-landing", "lds-race"} & set(kinds(result))
    assert kind in found
    assert all(f.severity == "error" for f in result.findings if f.kind in found)


def test_no_findings_with_many_groups_and_a_partial_machine() -> None:
    for order in ("lockstep", "reverse"):
        result, _, _ = run_gemm(96, Options(order=order, max_waves=12), groups=7)
        assert result.findings == ()


def test_register_finding_says_what_is_missing() -> None:
    body = """
    global_load_dword v4, v1, s[4:5]
    global_load_dword v5, v1, s[4:5]
    v_add_u32_e32 v6, v4, v0
    s_waitcnt vmcnt(0)
    """
    (finding,) = hazards_of(body).findings
    assert finding.kind == "read-before-landing"
    assert finding.what == "v4"
    assert "s_waitcnt vmcnt(1) is missing" in finding.message
    assert "global_load_dword v4" in finding.message
    assert finding.text == "v_add_u32_e32 v6, v4, v0"
    assert finding.waves == ("workgroup 0 wave 0", "workgroup 0 wave 1")
    assert "read-before-landing" in str(finding)


def test_scalar_finding_wants_zero() -> None:
    (finding,) = hazards_of("s_load_dword s8, s[4:5], 0x0\ns_add_u32 s9, s8, 1").findings
    assert (finding.kind, finding.what) == ("read-before-landing", "s8")
    assert "lgkmcnt(0)" in finding.message


def test_overwriting_a_register_in_flight() -> None:
    body = "global_load_dword v4, v1, s[4:5]\nv_mov_b32_e32 v4, 0\ns_waitcnt vmcnt(0)"
    assert kinds(hazards_of(body)) == ["write-before-landing"]
    twice = "global_load_dword v4, v1, s[4:5]\nglobal_load_dword v4, v1, s[4:5]\ns_waitcnt vmcnt(0)"
    assert kinds(hazards_of(twice)) == []


def test_findings_are_counted_not_repeated() -> None:
    body = """
    s_mov_b32 s8, 10
    .Lloop:
    global_load_dword v4, v1, s[4:5]
    v_add_u32_e32 v6, v4, v0
    s_waitcnt vmcnt(0)
    s_sub_i32 s8, s8, 1
    s_cmp_lg_u32 s8, 0
    s_cbranch_scc1 .Lloop
    """
    (finding,) = hazards_of(body, grid=3).findings
    assert finding.count == 10 * 2 * 3


# v2 = 4·(thread ^ 64): the other wave's dword
EXCHANGE = """
v_xor_b32_e32 v2, 0x100, v1
ds_write_b32 v1, v0
{}
ds_read_b32 v4, v2
s_waitcnt lgkmcnt(0)
{}
"""


def test_lds_read_after_write() -> None:
    def exchange(between: str) -> list[str]:
        return kinds(hazards_of(EXCHANGE.format(between, ""), lds=512))

    assert exchange("s_waitcnt lgkmcnt(0)\ns_barrier") == []
    assert "lds-race" in exchange("s_waitcnt lgkmcnt(0)")
    late = hazards_of(EXCHANGE.format("s_barrier", ""), lds=512).findings
    assert late[0].kind == "read-before-landing"
    assert "hasn't waited" in late[0].message


def test_lds_write_after_read() -> None:
    good = EXCHANGE.format("s_waitcnt lgkmcnt(0)\ns_barrier", "s_barrier\nds_write_b32 v1, v1")
    assert kinds(hazards_of(good, lds=512)) == []
    bad = hazards_of(good.replace("s_barrier\nds_write", "ds_write"), lds=512).findings
    assert [f.kind for f in bad] == ["lds-race"]
    assert "writes LDS byte" in bad[0].message
    assert "no s_barrier" in bad[0].message


def test_lds_write_after_a_read_that_a_barrier_overtook() -> None:
    body = """
    v_xor_b32_e32 v2, 0x100, v1
    ds_write_b32 v1, v0
    s_waitcnt lgkmcnt(0)
    s_barrier
    ds_read_b32 v4, v2
    s_barrier
    ds_write_b32 v1, v1
    s_waitcnt lgkmcnt(0)
    """
    found = hazards_of(body, lds=512).findings
    assert [(f.kind, f.severity) for f in found] == [("lds-overlap", "warning")]


def test_waves_may_share_a_dword() -> None:
    """Halves of one dword by different waves don't race."""
    body = """
    v_and_b32_e32 v2, 63, v0
    v_lshrrev_b32_e32 v3, 6, v0
    v_lshlrev_b32_e32 v2, 2, v2
    v_lshl_add_u32 v2, v3, 1, v2
    ds_write_b16 v2, v0
    """
    assert kinds(hazards_of(body, lds=256)) == []
    same = body.replace("v_lshl_add_u32 v2, v3, 1, v2", "")
    for order in ("lockstep", "forward"):
        assert kinds(hazards_of(same, lds=256, options=Options(order=order))) == ["lds-race"]
    reads = body.replace(
        "ds_write_b16 v2, v0",
        """ds_write_b16 v2, v0
    s_waitcnt lgkmcnt(0)
    s_barrier
    s_cmp_eq_u32 s8, 1
    s_cbranch_scc1 .Lwrite
    ds_read_u16 v4, v2
    s_branch .Lend
    .Lwrite:
    ds_write_b16 v2, v0
    .Lend:
    """,
    )
    halves = "v_readfirstlane_b32 s8, v3\n".join(reads.split("v_lshlrev_b32_e32 v2, 2, v2\n"))
    halves = halves.replace("v_lshl_add_u32", "v_lshlrev_b32_e32 v2, 2, v2\nv_lshl_add_u32")
    assert kinds(hazards_of(halves, lds=256)) == []


def test_lds_atomics_of_several_waves_are_no_race() -> None:
    body = "v_mov_b32_e32 v2, 0\nds_add_u32 v2, v0\ns_waitcnt lgkmcnt(0)"
    assert kinds(hazards_of(body, lds=256)) == []


def test_reads_of_unwritten_lds_are_warnings() -> None:
    (finding,) = hazards_of("ds_read_b32 v4, v1", lds=512).findings
    assert (finding.kind, finding.severity) == ("uninitialised-lds", "warning")


def test_misaligned_lds() -> None:
    body = "v_add_u32_e32 v2, 2, v1\nds_write_b32 v2, v0"
    assert kinds(hazards_of(body, lds=1024)) == ["misaligned"]


def test_barrier_that_not_all_waves_reach() -> None:
    body = """
    v_lshrrev_b32_e32 v4, 6, v0
    s_nop 0
    v_readfirstlane_b32 s8, v4
    s_cmp_eq_u32 s8, 1
    s_cbranch_scc1 .Lend
    s_barrier
    .Lend:
    """
    (finding,) = hazards_of(body, block=256).findings
    assert finding.kind == "barrier-divergence"
    assert "waves 1 ended without this barrier" in finding.message


def test_spills_come_from_the_metadata() -> None:
    (finding,) = hazards_of("s_nop 0", spills=12, scratch=48).findings
    assert (finding.kind, finding.count) == ("spill", 12)


MFMA = "v_mfma_f32_16x16x32_bf16 v[8:11], v[12:15], v[16:19], "
DEFINE = "\n".join(f"v_mov_b32_e32 v{i}, 0" for i in range(4, 32)) + "\ns_nop 7\n"


@pytest.mark.parametrize(
    ("user", "needed"),
    [
        ("v_mov_b32_e32 v20, v9", 7),
        ("v_mov_b32_e32 v11, 0", 7),
        ("global_store_dword v1, v8, s[4:5]", 7),
        ("v_mfma_f32_16x16x32_bf16 v[24:27], v[8:11], v[16:19], 0", 7),
        ("v_mfma_f32_16x16x32_bf16 v[10:13], v[14:17], v[16:19], v[10:13]", 4),
        (MFMA + "v[8:11]", 0),
        ("v_mov_b32_e32 v20, v12", 0),
    ],
)
def test_wait_states_behind_a_matrix_instruction(user: str, needed: int) -> None:
    def found(states: int) -> list[str]:
        gap = f"s_nop {states - 1}\n" if states else ""
        return kinds(hazards_of(DEFINE + MFMA + "0\n" + gap + user + "\ns_nop 7\ns_nop 7"))

    assert found(needed) == []
    if needed:
        assert found(needed - 1) == ["wait-states"]


def test_wait_states_of_longer_instructions_and_over_branches() -> None:
    wide = "v_mfma_f32_32x32x16_bf16 v[32:47], v[12:15], v[16:19], 0\n"  # 8 passes
    body = DEFINE + wide + "s_nop {}\ns_branch .Lfar\n.Lfar:\nv_mov_b32_e32 v20, v40"
    assert kinds(hazards_of(body.format(9))) == []
    (finding,) = hazards_of(body.format(8)).findings
    assert finding.severity == "error"
    assert "10 wait states behind it; 11 are needed: put an s_nop 0 between" in finding.message
    assert finding.text == "v_mov_b32_e32 v20, v40"


def test_findings_off_reports_nothing() -> None:
    body = "global_load_dword v4, v1, s[4:5]\nv_add_u32_e32 v6, v4, v0\n" + store("v6")
    assert hazards_of(body, options=Options(findings=False)).findings == ()


@pytest.mark.parametrize("access, kind", [
    ("ds_write_b32 v1, v0", "write-before-landing"),
    ("ds_read_b32 v9, v1", "read-before-landing"),
])  # fmt: skip
def test_ds_operations_are_not_ordered_with_the_own_dma(access: str, kind: str) -> None:
    load = "s_mov_b32 m0, 0\nglobal_load_lds_dword v1, s[4:5]\n"
    broken = f"{load}{access}\ns_waitcnt vmcnt(0) lgkmcnt(0)"
    (finding,) = hazards_of(broken, lds=256, block=64).findings
    assert (finding.kind, "s_waitcnt vmcnt is missing" in finding.message) == (kind, True)
    right = f"{load}s_waitcnt vmcnt(0)\n{access}"
    assert not hazards_of(right, lds=256, block=64).findings


# Lane l of every wave writes dword l.
SAME_PLACE = "v_and_b32_e32 v9, 63, v0\nv_lshlrev_b32_e32 v9, 2, v9\n"


@pytest.mark.parametrize("order", ["lockstep", "random"])
@pytest.mark.parametrize("access", ["b32 v9, v3", "b16 v9, v3", "b8 v9, v3"])
def test_equal_values_written_by_several_waves_do_not_race(access: str, order: str) -> None:
    options = Options(order=order)
    equal = f"{SAME_PLACE}v_mul_u32_u24_e32 v3, 5, v9\nds_write_{access}"
    assert not hazards_of(equal, lds=256, options=options).findings
    differing = f"{SAME_PLACE}v_lshrrev_b32_e32 v3, 6, v0\nds_write_{access}"
    assert "lds-race" in kinds(hazards_of(differing, lds=256, options=options))


def test_equal_values_race_with_an_open_dma() -> None:
    body = f"""{SAME_PLACE}
    v_mov_b32_e32 v3, 0
    s_mov_b32 m0, 0
    global_load_lds_dword v9, s[4:5]
    ds_write_b32 v9, v3
    """
    assert "write-before-landing" in kinds(hazards_of(body, lds=256, block=64))
