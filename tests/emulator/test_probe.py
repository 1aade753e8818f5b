"""The first loads of workgroups, from which the clock tells what they share."""

from __future__ import annotations

import numpy as np
import pytest
from isa_text import HEAD, launch

# Every workgroup reads the same word and meets over it, then 4 KiB of its own.
OFFSETS = """
v_mov_b32_e32 v2, 0
global_load_dword v3, v2, s[4:5]
s_waitcnt vmcnt(0)
s_barrier
"""
OWN = """
s_lshl_b32 s6, s2, 12
v_lshlrev_b32_e32 v4, 4, v0
v_add_u32_e32 v4, s6, v4
global_load_dwordx4 v[8:11], v4, s[4:5]
s_waitcnt vmcnt(0)
s_barrier
"""
GROUPS = 16


@pytest.mark.parametrize("body", [OWN, OFFSETS + OWN], ids=["at once", "after a shared word"])
def test_a_word_that_all_read_first_does_not_hide_what_each_reads(body: str) -> None:
    memory = np.zeros(GROUPS * 1024, np.uint32)
    stats = launch(HEAD + body, [memory], grid=GROUPS, block=256).stats
    assert float(stats["hbm_part"]) > 0.95
    assert float(stats["l2_miss"]) > 0.95


def test_what_all_read_is_read_from_memory_once() -> None:
    memory = np.zeros(1024, np.uint32)
    stats = launch(HEAD + OWN.replace("12", "0"), [memory], grid=1, block=256).stats
    alone = float(stats["l2_read_bytes"])
    shared = "\n".join(line for line in OWN.splitlines() if "s6" not in line)
    stats = launch(HEAD + shared, [memory], grid=GROUPS, block=256).stats
    assert float(stats["hbm_part"]) == pytest.approx(1 / GROUPS, abs=0.01)
    assert float(stats["l2_read_bytes"]) == GROUPS * alone
