"""Undefined register bits: free to be computed with, reported where they come to matter."""

from __future__ import annotations

import re

import numpy as np
import pytest
from isa_text import HEAD, kinds, launch, store

from inductor_flydsl.emulator import Options, RunResult

OUT = np.zeros(1024, np.uint32)
STORE = store("v10")


def run(body: str, block: int = 64, **given: object) -> RunResult:
    return launch(HEAD + body, [OUT.copy(), OUT.copy()], block=block, **given)


# Each computes v10 from v30, which nothing writes, and stores it.
HARMLESS = {
    "high half of a 64-bit sum": """
        v_mov_b32_e32 v30, 7
        v_mad_u64_u32 v[10:11], s[8:9], v1, v0, v[30:31]
    """,
    "masked away": "v_mov_b32_e32 v2, 0\nv_and_b32_e32 v10, v30, v2",
    "or with ones": "v_or_b32_e32 v10, -1, v30",
    "shifted out": "v_and_b32_e32 v2, 0xffff, v0\nv_perm_b32 v3, v30, v2, v2\n"
                   "v_lshlrev_b32_e32 v2, 16, v30\nv_and_b32_e32 v10, 0xffff, v2",
    "xor with itself": "v_xor_b32_e32 v10, v30, v30",
    "not selected": "s_mov_b64 vcc, 0\nv_cndmask_b32_e32 v10, v0, v30, vcc",
    "other lanes": """
        v_mov_b32_e32 v10, v30
        s_mov_b64 exec, 0xff
        v_mov_b32_e32 v10, 1
    """,
    "two halves, one after the other": """
        v_mov_b32_e32 v2, 0
        global_load_short_d16 v10, v2, s[4:5]
        s_waitcnt vmcnt(0)
        global_load_short_d16_hi v10, v2, s[4:5]
        s_waitcnt vmcnt(0)
    """,
    "carry that nothing reads": "v_add_co_u32_e32 v2, vcc, v30, v0\nv_mov_b32_e32 v10, v0",
    "row of a matrix product that isn't stored": """
        v_mov_b32_e32 v2, 0
        v_mov_b32_e32 v3, 0
        v_mov_b32_e32 v4, 0
        v_mov_b32_e32 v5, 0
        s_mov_b32 exec_lo, 0xfffffffe
        v_mov_b32_e32 v20, 0
        v_mov_b32_e32 v21, 0
        v_mov_b32_e32 v22, 0
        v_mov_b32_e32 v23, 0
        s_mov_b64 exec, -1
        v_mfma_f32_16x16x32_bf16 v[10:13], v[2:5], v[20:23], 0
        s_nop 7
        s_mov_b32 exec_lo, 0xfffefffe
        s_mov_b32 exec_hi, 0xfffefffe
    """,
}  # fmt: skip
# Each lets a bit of v30 matter; the instruction that is to be blamed, and what it says.
HARMFUL = {
    "stored": ("v_mov_b32_e32 v10, v30", "global_store_dword", "v10 reaches memory.*v30"),
    "high half stored": (
        "v_mov_b32_e32 v30, 7\nv_mad_u64_u32 v[2:3], s[8:9], v1, v0, v[30:31]\n"
        "v_mov_b32_e32 v10, v3", "global_store_dword", "depends on v31",
    ),
    "carry into the high half": (
        "v_mov_b32_e32 v31, 7\nv_mad_u64_u32 v[2:3], s[8:9], -1, v0, v[30:31]\n"
        "v_mov_b32_e32 v10, v3", "global_store_dword", "depends on v30",
    ),
    "an address": (
        "v_and_b32_e32 v2, 0xfc, v30\nglobal_load_dword v10, v2, s[4:5]\ns_waitcnt vmcnt(0)",
        "global_load_dword", "v2 reaches memory",
    ),
    "a branch by comparison": (
        "v_cmp_gt_f32_e32 vcc, 0, v30\ns_cbranch_vccz .Lnext\n.Lnext:\nv_mov_b32_e32 v10, 0",
        "s_cbranch_vccz", "vcc_lo.* reaches the branch",
    ),
    "a branch by a scalar": (
        "v_readfirstlane_b32 s8, v30\ns_cmp_eq_u32 s8, 0\ns_cbranch_scc1 .Lnext\n.Lnext:\n"
        "v_mov_b32_e32 v10, 0", "s_cbranch_scc1", "scc reaches the branch",
    ),
    "exec": (
        "v_cmp_lt_i32_e32 vcc, 5, v30\ns_and_saveexec_b64 s[8:9], vcc\ns_mov_b64 exec, -1\n"
        "v_mov_b32_e32 v10, 0", "s_and_saveexec_b64", "exec_lo reaches EXEC",
    ),
    "selected": ("s_mov_b64 vcc, 4\nv_cndmask_b32_e32 v10, v0, v30, vcc",
                 "global_store_dword", "v30"),
    "other lane": ("v_mov_b32_dpp v10, v30 row_shl:1 row_mask:0xf bank_mask:0xf bound_ctrl:1",
                   "global_store_dword", "v30"),
    "through bpermute": ("ds_bpermute_b32 v10, v1, v30\ns_waitcnt lgkmcnt(0)",
                         "global_store_dword", "v30"),
    "through a matrix product": (
        "v_mov_b32_e32 v2, 0x3f803f80\nv_mov_b32_e32 v3, v2\nv_mov_b32_e32 v4, v2\n"
        "v_mov_b32_e32 v5, v2\nv_mfma_f32_16x16x32_bf16 v[10:13], v[2:5], v[30:33], 0",
        "global_store_dword", "v30",
    ),
    "upper half of a register": (
        "v_mov_b32_e32 v2, 0\nglobal_load_short_d16 v10, v2, s[4:5]\ns_waitcnt vmcnt(0)",
        "global_store_dword", "v10 reaches memory",
    ),
}  # fmt: skip


@pytest.mark.parametrize("order", ["lockstep", "random"])
@pytest.mark.parametrize("body", HARMLESS.values(), ids=HARMLESS)
def test_undefined_bits_that_do_not_matter(body: str, order: str) -> None:
    result = run(body + "\n" + STORE, block=256, options=Options(order=order))
    assert not kinds(result), result.findings[0]


@pytest.mark.parametrize("order", ["lockstep", "random"])
@pytest.mark.parametrize(("body", "blamed", "says"), HARMFUL.values(), ids=HARMFUL)
def test_undefined_bits_that_matter(body: str, blamed: str, says: str, order: str) -> None:
    result = run(body + "\n" + store("v10"), block=256, options=Options(order=order))
    found = [f for f in result.findings if f.kind == "uninitialised-vgpr"]
    assert [f.text.split()[0] for f in found] == [blamed]
    assert found[0].severity == "warning"
    assert re.search(says, found[0].message), found[0].message


@pytest.mark.parametrize("bits, size", [("byte", 1), ("short", 2)])
def test_narrow_stores_need_their_bits_alone(bits: str, size: int) -> None:
    kind = "short" if size == 2 else "ubyte"
    load = f"v_mov_b32_e32 v2, 0\nglobal_load_{kind}_d16 v10, v2, s[4:5]"
    body = f"{load}\ns_waitcnt vmcnt(0)\nglobal_store_{bits} v1, v10, s[4:5]"
    assert not kinds(run(body))
    assert kinds(run(f"{load}\ns_waitcnt vmcnt(0)\nglobal_store_dword v1, v10, s[4:5]"))


def test_the_waves_that_lack_the_value_are_named() -> None:
    body = """
    v_lshrrev_b32_e32 v4, 6, v0
    s_nop 0
    v_readfirstlane_b32 s8, v4
    s_cmp_eq_u32 s8, 0
    s_cbranch_scc1 .Lskip
    v_mov_b32_e32 v9, 1
    .Lskip:
    v_mov_b32_e32 v10, v9
    """
    (finding,) = run(body + STORE, block=256).findings
    assert (finding.kind, finding.waves) == ("uninitialised-vgpr", ("workgroup 0 wave 0",))
    assert finding.count == 64


def test_results_do_not_depend_on_the_checks() -> None:
    """The instructions that are executed again leave registers, EXEC and SCC as once."""
    body = """
    v_mov_b32_e32 v30, 3
    v_mad_u64_u32 v[10:11], s[8:9], v1, v0, v[30:31]
    v_cmp_lt_u32_e32 vcc, 20, v0
    s_and_saveexec_b64 s[10:11], vcc
    v_add_u32_e32 v10, v10, v0
    s_mov_b64 exec, s[10:11]
    """
    got = []
    for findings in (False, True):
        out = np.zeros(64, np.uint32)
        result = launch(HEAD + body + STORE, [out], options=Options(findings=findings))
        assert not result.findings
        got.append(out)
    thread = np.arange(64)
    assert (got[0] == 4 * thread * thread + 3 + thread * (thread > 20)).all()
    assert (got[0] == got[1]).all()
