"""Control flow, EXEC, operand forms, lane exchange and launch state, each through real text."""

from __future__ import annotations

import numpy as np
import pytest
from isa_text import HEAD, evaluate, launch, store, text_of

from inductor_flydsl.emulator import Deadlock, ExecutionError, Memory, Options, Trap, run

LANE = np.arange(64)
OFF = Options(findings=False)


def floats(words: np.ndarray) -> np.ndarray:
    return words.view(np.float32)


# --- operands -------------------------------------------------------------------------------


def test_inline_constants_take_the_operands_type() -> None:
    assert floats(evaluate("v_add_f32_e32 v10, 1.0, v0"))[3] == np.float32(1.0)  # v0 = 3: subnormal
    assert (evaluate("v_add_u32_e32 v10, -1, v0") == (LANE - 1).astype(np.uint32)).all()
    assert (evaluate("v_mov_b32_e32 v10, 0.15915494") == 0x3E22F983).all()
    assert (evaluate("v_mov_b32_e32 v10, 0.5") == 0x3F000000).all()
    assert (evaluate("v_add_f16_e32 v10, 1.0, v0") == (0x3C00 + 0 * LANE)).all()


def test_f64_literal_is_the_high_half() -> None:
    body = "v_mov_b32_e32 v4, 0\nv_mov_b32_e32 v5, 0x40000000\n"  # 2.0
    got = evaluate(body + "v_add_f64 v[8:9], v[4:5], 1.0\nv_mov_b32_e32 v10, v9")
    assert (got == 0x40080000).all()  # 3.0


def test_source_and_result_modifiers() -> None:
    setup = "v_cvt_f32_u32_e32 v4, v0\n"
    assert (floats(evaluate("v_mul_f32_e64 v10, -v4, 0.5", setup=setup)) == -LANE / 2).all()
    assert (floats(evaluate("v_add_f32_e64 v10, |v4|, -|v4|", setup=setup)) == 0).all()
    clamped = floats(evaluate("v_mul_f32_e64 v10, v4, 0.5 clamp", setup=setup))
    assert (clamped == np.clip(LANE / 2, 0, 1)).all()
    assert (floats(evaluate("v_add_f32_e64 v10, v4, 1.0 mul:4", setup=setup)) == 4 * LANE + 4).all()
    assert (
        floats(evaluate("v_add_f32_e64 v10, v4, 1.0 div:2", setup=setup)) == (LANE + 1) / 2
    ).all()


def test_negation_of_an_untyped_select() -> None:
    setup = "v_cvt_f32_u32_e32 v4, v0\nv_cmp_gt_u32_e32 vcc, 10, v0\n"
    got = floats(evaluate("v_cndmask_b32_e64 v10, -v4, v4, vcc", setup=setup))
    assert (got == np.where(LANE < 10, LANE, -LANE)).all()


def test_integer_clamp_saturates() -> None:
    setup = "v_mov_b32_e32 v4, 0xfffffff0\n"
    got = evaluate("v_add_u32_e64 v10, v4, v0 clamp", setup=setup)
    assert (got == np.minimum(0xFFFFFFF0 + LANE, 0xFFFFFFFF)).all()


def test_16_bit_halves() -> None:
    setup = "v_mov_b32_e32 v4, 0x40003c00\nv_mov_b32_e32 v10, 0x7777aaaa\n"  # (1.0, 2.0) as f16
    assert (evaluate("v_add_f16_e64 v10, v4, v4", setup=setup) == 0x4000).all()
    got = evaluate("v_add_f16_e64 v10, v4, v4 op_sel:[1,0,1]", setup=setup)
    assert (got == 0x4200AAAA).all()  # 2 + 1 = 3 into the upper half


def test_packed_f16_swaps_halves() -> None:
    setup = "v_mov_b32_e32 v4, 0x40003c00\nv_mov_b32_e32 v5, 0x44004200\n"  # (1, 2), (3, 4)
    assert (evaluate("v_pk_add_f16 v10, v4, v5", setup=setup) == 0x46004400).all()
    swapped = evaluate("v_pk_mul_f16 v10, v4, v5 op_sel:[1,0] op_sel_hi:[0,1]", setup=setup)
    assert (swapped == 0x44004600).all()  # lo 2·3, hi 1·4
    assert (evaluate("v_pk_add_f16 v10, v4, v5 neg_lo:[1,0] neg_hi:[0,1]", setup=setup)
            == 0xC0004000).all()  # fmt: skip


def test_packed_f32_pairs() -> None:
    setup = """
    v_cvt_f32_u32_e32 v4, v0
    v_mov_b32_e32 v5, 2.0
    v_mov_b32_e32 v6, 3.0
    v_mov_b32_e32 v7, 4.0
    """
    low = floats(evaluate("v_pk_mul_f32 v[10:11], v[4:5], v[6:7]", setup=setup))
    assert (low == 3 * LANE).all()
    crossed = "v_pk_fma_f32 v[8:9], v[4:5], v[6:7], v[4:5] op_sel_hi:[0,1,0]\nv_mov_b32_e32 v10, v9"
    assert (floats(evaluate(crossed, setup=setup)) == 4 * LANE + LANE).all()


def test_sdwa_selects() -> None:
    setup = "v_mov_b32_e32 v4, 0x80402010\nv_mov_b32_e32 v10, 0x11223344\n"
    move = "v_mov_b32_sdwa v10, v4 dst_sel:{} dst_unused:{} src0_sel:{}"
    assert (evaluate(move.format("DWORD", "UNUSED_PAD", "BYTE_3"), setup=setup) == 0x80).all()
    assert (evaluate(move.format("BYTE_1", "UNUSED_PRESERVE", "BYTE_2"), setup=setup)
            == 0x11224044).all()  # fmt: skip
    signed = "v_mov_b32_sdwa v10, sext(v4) dst_sel:DWORD dst_unused:UNUSED_PAD src0_sel:WORD_1"
    assert (evaluate(signed, setup=setup) == 0xFFFF8040).all()


# --- lanes ----------------------------------------------------------------------------------

DPP_SOURCES = {
    "quad_perm:[3,2,1,0]": (LANE & ~3) + 3 - (LANE & 3),
    "row_shr:1": np.where(LANE % 16 >= 1, LANE - 1, -1),
    "row_shl:3": np.where(LANE % 16 < 13, LANE + 3, -1),
    "row_ror:4": (LANE & ~15) + (LANE - 4) % 16,
    "row_mirror": (LANE & ~15) + 15 - LANE % 16,
    "row_half_mirror": (LANE & ~7) + 7 - LANE % 8,
    "row_newbcast:5": (LANE & ~15) + 5,
    "wave_shr:1": LANE - 1,
}


@pytest.mark.parametrize("control", DPP_SOURCES)
def test_dpp_permutations(control: str) -> None:
    source = DPP_SOURCES[control]
    setup = "v_mov_b32_e32 v10, 0x99\nv_mul_u32_u24_e32 v4, 7, v0\n"
    masks = "row_mask:0xf bank_mask:0xf"
    kept = evaluate(f"v_mov_b32_dpp v10, v4 {control} {masks}", setup=setup)
    assert (kept == np.where(source < 0, 0x99, 7 * source)).all()
    zeroed = evaluate(f"v_mov_b32_dpp v10, v4 {control} {masks} bound_ctrl:0", setup=setup)
    assert (zeroed == np.where(source < 0, 0, 7 * source)).all()


def test_dpp_masks_and_row_broadcast() -> None:
    setup = "v_mov_b32_e32 v10, 0x99\n"
    got = evaluate("v_mov_b32_dpp v10, v0 row_bcast:15 row_mask:0xa bank_mask:0xf", setup=setup)
    row = LANE // 16
    assert (got == np.where(row % 2 == 1, row * 16 - 1, 0x99)).all()
    banked = evaluate(
        "v_mov_b32_dpp v10, v0 row_newbcast:0 row_mask:0xf bank_mask:0x1", setup=setup
    )
    assert (banked == np.where(LANE % 16 < 4, LANE & ~15, 0x99)).all()


def test_dpp_reads_no_inactive_lane() -> None:
    body = """
    s_mov_b64 exec, 0x55555555
    v_mov_b32_dpp v10, v0 quad_perm:[1,0,3,2] row_mask:0xf bank_mask:0xf
    s_mov_b64 exec, -1
    """
    got = evaluate(body, setup="v_mov_b32_e32 v10, 0x99\n")
    assert (got == 0x99).all()


def test_permlane_swaps() -> None:
    setup = "v_mov_b32_e32 v10, v0\nv_add_u32_e32 v11, 0x100, v0\n"
    first = evaluate("v_permlane16_swap_b32_e32 v10, v11", setup=setup)
    assert (first == np.where(LANE // 16 % 2, 0x100 + LANE - 16, LANE)).all()
    second = evaluate("v_permlane32_swap_b32_e32 v11, v10", setup=setup)
    assert (second == np.where(LANE < 32, 0x100 + LANE + 32, LANE)).all()


def test_readlane_writelane() -> None:
    body = """
    v_readlane_b32 s8, v0, 17
    s_mov_b32 s9, 5
    v_mov_b32_e32 v10, 0
    v_writelane_b32 v10, s8, s9
    """
    assert (evaluate(body) == np.where(LANE == 5, 17, 0)).all()
    first = """
    v_cmp_lt_u32_e32 vcc, 20, v0
    s_and_saveexec_b64 s[8:9], vcc
    v_readfirstlane_b32 s10, v0
    s_mov_b64 exec, s[8:9]
    v_mov_b32_e32 v10, s10
    """
    assert (evaluate(first) == 21).all()


def test_agpr_moves() -> None:
    body = "v_accvgpr_write_b32 a3, v0\nv_accvgpr_mov_b32 a1, a3\nv_accvgpr_read_b32 v10, a1"
    assert (evaluate(body) == LANE).all()


# --- EXEC and branches ------------------------------------------------------------------------


def test_exec_masks_writes_and_compares() -> None:
    body = """
    v_mov_b32_e32 v10, 7
    v_cmp_gt_u32_e32 vcc, 40, v0
    s_and_saveexec_b64 s[8:9], vcc
    v_mov_b32_e32 v10, v0
    v_cmp_lt_u32_e64 s[10:11], 10, v0
    s_or_b64 exec, exec, s[8:9]
    v_cndmask_b32_e64 v10, v10, -1, s[10:11]
    """
    want = np.where((LANE > 10) & (LANE < 40), 0xFFFFFFFF, np.where(LANE < 40, LANE, 7))
    assert (evaluate(body) == want).all()


def test_waves_diverge_loop_and_meet_again() -> None:
    """Wave w loops w + 1 times; all pass the same tail."""
    body = """
    v_lshrrev_b32_e32 v4, 6, v0
    s_nop 0
    v_readfirstlane_b32 s8, v4
    s_mov_b32 s9, 0
    .Lloop:
    s_addk_i32 s9, 10
    s_sub_i32 s8, s8, 1
    s_cmp_ge_i32 s8, 0
    s_cbranch_scc1 .Lloop
    v_mov_b32_e32 v10, s9
    """
    got = evaluate(body, threads=320)
    assert (got == 10 * (np.arange(320) // 64 + 1)).all()


def test_lanes_diverge_by_exec_loop() -> None:
    """Lane l counts l % 5 iterations: the loop ends when EXEC is empty."""
    body = """
    v_mov_b32_e32 v10, 0
    v_mul_hi_u32 v4, v0, 0x33333334
    v_mul_lo_u32 v4, v4, 5
    v_sub_u32_e32 v4, v0, v4
    s_mov_b64 s[8:9], exec
    .Lloop:
    v_cmp_ne_u32_e32 vcc, v10, v4
    s_and_b64 exec, exec, vcc
    s_cbranch_execz .Ldone
    v_add_u32_e32 v10, 1, v10
    s_branch .Lloop
    .Ldone:
    s_mov_b64 exec, s[8:9]
    """
    assert (evaluate(body) == LANE % 5).all()


def test_call_and_return_through_label_arithmetic() -> None:
    body = """
    s_getpc_b64 s[8:9]
    .Lpost:
    s_add_u32 s8, s8, .Lfunction-.Lpost
    s_addc_u32 s9, s9, 0
    s_swappc_b64 s[30:31], s[8:9]
    s_branch .Lout
    .Lfunction:
    v_lshlrev_b32_e32 v10, 3, v0
    s_setpc_b64 s[30:31]
    .Lout:
    """
    assert (evaluate(body) == 8 * LANE).all()


def test_scalar_relative_move() -> None:
    body = "s_mov_b32 s22, 0x77\ns_mov_b32 m0, 2\ns_movrels_b32 s8, s20\nv_mov_b32_e32 v10, s8"
    assert (evaluate(body) == 0x77).all()


# --- launch state -----------------------------------------------------------------------------


def test_workgroup_ids_and_packed_items() -> None:
    """out[linear item] = item fields | workgroup ids, for a 3-D launch."""
    grid, block = (3, 2, 2), (8, 4, 5)
    out = np.zeros((12, 160), np.uint32)
    body = """
    s_load_dwordx2 s[8:9], s[0:1], 0x0
    v_and_b32_e32 v4, 0x3ff, v0
    v_bfe_u32 v5, v0, 10, 10
    v_bfe_u32 v6, v0, 20, 10
    v_lshl_add_u32 v7, v6, 2, v5
    v_lshl_add_u32 v7, v7, 3, v4
    s_mul_i32 s10, s4, 2
    s_add_i32 s10, s10, s3
    s_mul_i32 s10, s10, 3
    s_add_i32 s10, s10, s2
    s_mul_i32 s10, s10, 640
    s_waitcnt lgkmcnt(0)
    s_add_u32 s8, s8, s10
    s_addc_u32 s9, s9, 0
    v_lshlrev_b32_e32 v1, 2, v7
    s_lshl_b32 s11, s2, 4
    s_lshl_b32 s12, s3, 8
    s_or_b32 s11, s11, s12
    s_lshl_b32 s12, s4, 12
    s_or_b32 s11, s11, s12
    v_or_b32_e32 v8, s11, v6
    global_store_dword v1, v8, s[8:9]
    """
    launch(body, [out], grid=grid, block=block)
    group = np.arange(12)[:, None]
    ids = (group % 3) << 4 | (group // 3 % 2) << 8 | (group // 6) << 12
    z = np.arange(160)[None] // 32
    assert (out == (ids | z)).all()


def test_last_wave_has_lanes_off() -> None:
    out = np.zeros(128, np.uint32)
    launch(HEAD + "v_mov_b32_e32 v10, 1\n" + store("v10"), [out], block=100)
    assert (out == (np.arange(128) < 100)).all()


def test_hidden_arguments_are_filled_in() -> None:
    out = np.zeros(64, np.uint32)
    body = HEAD + "s_load_dword s8, s[0:1], 0x8\ns_waitcnt lgkmcnt(0)\nv_mov_b32_e32 v10, s8\n"
    hidden = (
        "      - .offset:         8\n        .size:           4\n"
        "        .value_kind:     hidden_block_count_x\n"
    )
    anchor = "    .group_segment_fixed_size:"
    text = text_of(body + store("v10"), 1, kernarg=16).replace(anchor, hidden + anchor, 1)
    memory = Memory()
    pointer = memory.add_array(out, "out").base
    run(text, 5, 64, pointer.to_bytes(8, "little"), memory, OFF)
    assert (out == 5).all()


def test_sampled_workgroups_run_alone() -> None:
    out = np.zeros(256, np.uint32)
    body = HEAD + "v_lshl_add_u32 v1, s2, 8, v1\nv_mov_b32_e32 v10, 1\n" + store("v10")
    result = launch(body, [out], grid=4, options=Options(sample_workgroups=(1, 3)))
    assert (out.reshape(4, 64).any(axis=1) == [False, True, False, True]).all()
    assert result.stats["workgroups_run"] == 2


def test_counts_wave_instructions() -> None:
    out = np.zeros(64, np.uint32)
    result = launch(HEAD + "v_mov_b32_e32 v10, 1\n" + store("v10"), [out], grid=3)
    assert result.instructions == 3 * 7
    assert (result.clock, result.time_us > 2.4) == ("emulated", True)


def test_poison_shows_in_what_is_never_written() -> None:
    out = np.zeros(64, np.float32)
    launch(HEAD + store("v20"), [out])
    assert np.isnan(out).all()
    launch(HEAD + store("v20"), [out], options=Options(poison=False))
    assert (out == 0).all()


# --- waiting for each other ---------------------------------------------------------------------

# Workgroup 0 waits until the last of `grid` workgroups has set the flag.
SPIN = """
s_load_dwordx2 s[4:5], s[0:1], 0x0
s_load_dwordx2 s[6:7], s[0:1], 0x8
v_mov_b32_e32 v3, 0
v_mov_b32_e32 v4, 1
s_waitcnt lgkmcnt(0)
s_cmp_eq_u32 s2, 0
s_cbranch_scc0 .Lsignal
.Lspin:
global_load_dword v5, v3, s[6:7] sc1
s_waitcnt vmcnt(0)
v_cmp_eq_u32_e32 vcc, 0, v5
s_cbranch_vccnz .Lspin
v_mov_b32_e32 v6, 0x55
global_store_dword v3, v6, s[4:5]
s_endpgm
.Lsignal:
s_cmp_eq_u32 s2, {last}
s_cbranch_scc0 .Lend
global_store_dword v3, v4, s[6:7]
.Lend:
"""


@pytest.mark.parametrize("order", ["lockstep", "forward", "reverse", "random"])
@pytest.mark.parametrize("max_waves", [1, 512])
def test_workgroups_that_wait_for_each_other_get_on(order: str, max_waves: int) -> None:
    out, flag = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    options = Options(order=order, max_waves=max_waves, findings=False)
    launch(SPIN.format(last=3), [out, flag], grid=4, options=options)
    assert out[0] == 0x55


@pytest.mark.parametrize("max_waves", [1, 512])
def test_deadlock_names_the_place(max_waves: int) -> None:
    """Nobody sets the flag: no wave's registers change any more."""
    out, flag = np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    options = Options(findings=False, max_waves=max_waves)
    with pytest.raises(Deadlock, match="workgroup 0 wave 0") as caught:
        launch(SPIN.format(last=9), [out, flag], grid=4, options=options)
    assert "loop for something" in str(caught.value)
    assert caught.value.line > 0


def test_instruction_limit() -> None:
    body = "s_mov_b32 s8, 0\n.Lloop:\ns_add_u32 s8, s8, 1\ns_branch .Lloop"
    with pytest.raises(Deadlock, match="max_instructions"):
        launch(body, [], options=Options(max_instructions=50_000))


def test_a_long_loop_is_no_deadlock() -> None:
    body = """
    s_mov_b32 s8, 30000
    v_mov_b32_e32 v10, 0
    .Lloop:
    v_add_u32_e32 v10, 1, v10
    s_sub_i32 s8, s8, 1
    s_cmp_lg_u32 s8, 0
    s_cbranch_scc1 .Lloop
    """
    assert (evaluate(body, options=OFF) == 30000).all()


def test_trap_and_running_off_the_end() -> None:
    with pytest.raises(Trap, match="s_trap 2"):
        launch("s_trap 2", [])
    with pytest.raises(ExecutionError, match="past the last instruction"):
        launch("s_branch .Lfunc_end0", [])


# --- matrix products ----------------------------------------------------------------------------


@pytest.mark.parametrize("register_file", ["v", "a"])
def test_mfma_reads_either_register_file(register_file: str) -> None:
    """bf16 16x16x32 on random bits of each lane's own, against float64."""
    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal((16, 32)).astype(np.float32) for _ in range(2))
    bits = [(x.view(np.uint32) >> 16).astype(np.uint16) for x in (a, b)]
    # Lane l holds row l % 16, k = 8·(l // 16) + 0…7.
    lanes = [np.stack([x[i % 16, 8 * (i // 16) : 8 * (i // 16) + 8] for i in range(64)])
             for x in bits]  # fmt: skip
    out = np.zeros((16, 16), np.float32)
    moves = "\n".join(f"v_accvgpr_write_b32 a{i}, v{i}" for i in range(4, 12))
    body = f"""
    s_load_dwordx2 s[4:5], s[0:1], 0x0
    s_load_dwordx4 s[8:11], s[0:1], 0x8
    v_lshlrev_b32_e32 v1, 4, v0
    s_waitcnt lgkmcnt(0)
    global_load_dwordx4 v[4:7], v1, s[8:9]
    global_load_dwordx4 v[8:11], v1, s[10:11]
    s_waitcnt vmcnt(0)
    {moves}
    v_mfma_f32_16x16x32_bf16 v[12:15], {register_file}[4:7], {register_file}[8:11], 1.0
    v_mfma_f32_16x16x32_bf16 v[12:15], {register_file}[4:7], {register_file}[8:11], v[12:15]
    s_nop 7
    v_and_b32_e32 v2, 15, v0
    v_lshrrev_b32_e32 v3, 4, v0
    v_lshlrev_b32_e32 v3, 8, v3
    v_lshl_add_u32 v3, v2, 2, v3
    global_store_dword v3, v12, s[4:5]
    global_store_dword v3, v13, s[4:5] offset:64
    global_store_dword v3, v14, s[4:5] offset:128
    global_store_dword v3, v15, s[4:5] offset:192
    """
    result = launch(body, [out, *lanes])
    exact = [(x.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for x in bits]
    np.testing.assert_allclose(out, 2 * exact[0] @ exact[1].T + 1, rtol=1e-5, atol=1e-5)
    assert result.findings == ()
