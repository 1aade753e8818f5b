"""A small double-buffered GEMM with direct-to-LDS loads, as text whose waits tests can break.

C (32 × 32, f32) = A (32 × K) · B (32 × K)ᵀ in bf16: waves 0-1 load A's tile and 2-3 load B's, each
wave multiplies one 16 × 16 quarter. A stage is 4 KiB: A's 32 rows of 64 bytes, then B's.
"""

from __future__ import annotations

import numpy as np
from isa_text import launch

from inductor_flydsl.emulator import Options, RunResult

BODY = """
s_load_dwordx2 s[4:5], s[0:1], 0x0
s_load_dwordx4 s[8:11], s[0:1], 0x8
v_lshrrev_b32_e32 v1, 6, v0
v_and_b32_e32 v2, 63, v0
v_and_b32_e32 v3, 0x7f, v0
v_lshrrev_b32_e32 v4, 2, v3
v_and_b32_e32 v5, 3, v3
v_mul_u32_u24_e32 v4, {row_bytes}, v4
v_lshl_add_u32 v4, v5, 4, v4
v_readfirstlane_b32 s6, v1
{wait_scalar}
s_cmp_lt_u32 s6, 2
s_cselect_b32 s12, s8, s10
s_cselect_b32 s13, s9, s11
s_mov_b32 s14, -1
s_mov_b32 s15, 0x27000
s_lshl_b32 s7, s6, 10
v_lshrrev_b32_e32 v6, 1, v1
v_and_b32_e32 v7, 1, v1
v_and_b32_e32 v8, 15, v2
v_lshrrev_b32_e32 v9, 4, v2
v_lshl_add_u32 v10, v6, 4, v8
v_lshlrev_b32_e32 v10, 6, v10
v_lshl_add_u32 v10, v9, 4, v10
v_lshl_add_u32 v11, v7, 4, v8
v_lshlrev_b32_e32 v11, 6, v11
v_lshl_add_u32 v11, v9, 4, v11
v_mov_b32_e32 v20, 0
v_mov_b32_e32 v21, 0
v_mov_b32_e32 v22, 0
v_mov_b32_e32 v23, 0
s_mov_b32 s16, 0
s_mov_b32 s17, 0
s_mov_b32 m0, s7
s_nop 0
buffer_load_dwordx4 v4, s[12:15], 0 offen lds
.Lloop:
{wait_tile}
{barrier}
s_add_i32 s16, s16, 1
s_cmp_ge_u32 s16, {steps}
s_cbranch_scc1 .Llast
s_xor_b32 s18, s17, 0x1000
s_add_i32 m0, s18, s7
v_add_u32_e32 v4, 64, v4
buffer_load_dwordx4 v4, s[12:15], 0 offen lds
.Llast:
v_add_u32_e32 v12, s17, v10
v_add_u32_e32 v13, s17, v11
ds_read_b128 v[24:27], v12
ds_read_b128 v[28:31], v13 offset:2048
{wait_fragment}
v_mfma_f32_16x16x32_bf16 v[20:23], v[24:27], v[28:31], v[20:23]
s_xor_b32 s17, s17, 0x1000
s_cmp_lt_u32 s16, {steps}
s_cbranch_scc1 .Lloop
v_lshlrev_b32_e32 v6, 4, v6
v_lshl_add_u32 v6, v9, 2, v6
v_lshlrev_b32_e32 v6, 7, v6
v_lshl_add_u32 v7, v7, 4, v8
v_lshl_add_u32 v6, v7, 2, v6
s_nop 7
global_store_dword v6, v20, s[4:5]
global_store_dword v6, v21, s[4:5] offset:128
global_store_dword v6, v22, s[4:5] offset:256
global_store_dword v6, v23, s[4:5] offset:384
"""

GOOD = {
    "wait_scalar": "s_waitcnt lgkmcnt(0)",
    "wait_tile": "s_waitcnt vmcnt(0)",
    "barrier": "s_barrier",
    "wait_fragment": "s_waitcnt lgkmcnt(0)",
}
# What each broken kernel lacks, and the kind of finding that says so.
MUTATIONS = {
    "no tile wait": ({"wait_tile": ""}, "read-before-landing"),
    "weak tile wait": ({"wait_tile": "s_waitcnt vmcnt(1)"}, "read-before-landing"),
    "no barrier": ({"barrier": "s_nop 0"}, "lds-race"),
    "wait behind barrier": (
        {"wait_tile": "s_barrier", "barrier": "s_waitcnt vmcnt(0)"}, "lds-race",
    ),
    "no fragment wait": ({"wait_fragment": ""}, "read-before-landing"),
    "weak fragment wait": ({"wait_fragment": "s_waitcnt lgkmcnt(1)"}, "read-before-landing"),
    "no scalar wait": ({"wait_scalar": ""}, "read-before-landing"),
    "weak scalar wait": ({"wait_scalar": "s_waitcnt lgkmcnt(1)"}, "read-before-landing"),
}  # fmt: skip


def run_gemm(depth: int, options: Options, changes: dict[str, str] | None = None,
             groups: int = 1) -> tuple[RunResult, np.ndarray, np.ndarray]:  # fmt: skip
    """(result, got, float64 product) of random bf16 matrices with K = depth."""
    rng = np.random.default_rng(depth)
    a, b = (rng.standard_normal((32, depth)).astype(np.float32) for _ in range(2))
    bits = [(x.view(np.uint32) >> 16).astype(np.uint16) for x in (a, b)]
    out = np.full((32, 32), np.nan, np.float32)
    body = BODY.format(**{**GOOD, **(changes or {})}, row_bytes=2 * depth, steps=depth // 32)
    result = launch(body, [out, *bits], block=256, grid=groups, lds=8192, options=options)
    exact = [(x.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for x in bits]
    return result, out, exact[0] @ exact[1].T
