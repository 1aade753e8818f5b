"""Global, buffer and scratch accesses: widths, bounds, atomics."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from isa_text import HEAD, LANE, QUIET, TWO, kinds, launch, random_bytes, store

from inductor_flydsl.emulator import LaunchError, Memory, MemoryFault

# --- registered memory ------------------------------------------------------------------------


def test_raw_memory_is_wrapped_without_a_copy() -> None:
    buffer = (ctypes.c_uint8 * 256)()
    memory = Memory()
    region = memory.add(ctypes.addressof(buffer), 256, "raw")
    assert region.base == ctypes.addressof(buffer)
    memory.scatter(np.array([[region.base + 4]]), 4, np.array([[[0x04030201]]], np.uint32), None)
    assert bytes(buffer[4:8]) == b"\1\2\3\4"


def test_regions_may_repeat_but_not_overlap() -> None:
    array = np.zeros(64, np.uint8)
    memory = Memory()
    memory.add_array(array[:32], "first")
    assert memory.add_array(array[8:16], "inside").base == memory.regions[0].base + 8
    with pytest.raises(LaunchError, match="'second'.*overlaps 'first'"):
        memory.add_array(array[16:48], "second")
    with pytest.raises(LaunchError, match="C-contiguous"):
        memory.add_array(np.zeros((8, 8))[:, ::2], "strided")


def test_lanes_in_several_regions() -> None:
    first, second = random_bytes(512), random_bytes(512)
    memory = Memory()
    a, b = memory.add_array(first, "a").base, memory.add_array(second, "b").base
    addr = np.where(LANE % 2, a + 4 * LANE, b + 8 * LANE)[None]
    got = memory.gather(addr, 4, None)[0, 0]
    want = np.where(LANE % 2, first.view(np.uint32)[LANE], second.view(np.uint32)[2 * LANE])
    assert (got == want).all()


# --- loads and stores ---------------------------------------------------------------------------

WIDTHS = {
    "ubyte": lambda b: b[:, 0].astype(np.uint32),
    "sbyte": lambda b: b[:, 0].view(np.int8).astype(np.int32).view(np.uint32),
    "ushort": lambda b: b[:, :2].copy().view(np.uint16)[:, 0].astype(np.uint32),
    "sshort": lambda b: b[:, :2].copy().view(np.int16)[:, 0].astype(np.int32).view(np.uint32),
    "short_d16": lambda b: 0xABCD0000 | b[:, :2].copy().view(np.uint16)[:, 0].astype(np.uint32),
    "short_d16_hi": lambda b: (
        0x1234 | b[:, :2].copy().view(np.uint16)[:, 0].astype(np.uint32) << 16
    ),
    "ubyte_d16_hi": lambda b: 0x1234 | b[:, 0].astype(np.uint32) << 16,
    "dword": lambda b: b[:, :4].copy().view(np.uint32)[:, 0],
}


@pytest.mark.parametrize("space", ["global", "buffer"])
@pytest.mark.parametrize("width", WIDTHS)
def test_load_widths(space: str, width: str) -> None:
    data = random_bytes(64 * 16)
    out = np.zeros(64, np.uint32)
    load = {
        "global": f"v_add_u32_e32 v2, 16, v2\nglobal_load_{width} v10, v2, s[8:9] offset:-16",
        "buffer": f"buffer_load_{width} v10, v2, s[8:11], 0 offen",
    }[space]
    body = f"""
    s_mov_b32 s10, 1024
    s_mov_b32 s11, 0
    v_lshlrev_b32_e32 v2, 4, v0
    v_mov_b32_e32 v10, 0xabcd1234
    {load}
    s_waitcnt vmcnt(0)
    """
    launch(TWO + body + store("v10"), [out, data])
    assert (out == WIDTHS[width](data.reshape(64, 16))).all()


@pytest.mark.parametrize("words", [1, 2, 3, 4])
@pytest.mark.parametrize("stride", [16, 20])
def test_wide_loads_and_stores(words: int, stride: int) -> None:
    """Also where 16-byte accesses are only dword-aligned."""
    data = random_bytes(64 * stride)
    out = np.zeros(64 * stride, np.uint8)
    suffix = "" if words == 1 else f"x{words}"
    register = "v10" if words == 1 else f"v[10:{9 + words}]"
    body = f"""
    v_mul_u32_u24_e32 v2, {stride}, v0
    global_load_dword{suffix} {register}, v2, s[8:9]
    s_waitcnt vmcnt(0)
    global_store_dword{suffix} v2, {register}, s[4:5]
    """
    launch(TWO + body, [out, data])
    rows, want = out.reshape(64, stride), data.reshape(64, stride)
    assert (rows[:, : 4 * words] == want[:, : 4 * words]).all()
    assert not rows[:, 4 * words :].any()


def test_narrow_stores() -> None:
    out = np.zeros(256, np.uint8)
    body = """
    v_mul_u32_u24_e32 v4, 0x01010101, v0
    v_or_b32_e32 v4, 0x80000080, v4
    global_store_byte v1, v4, s[4:5]
    global_store_short_d16_hi v1, v4, s[4:5] offset:2
    """
    launch(HEAD + body, [out])
    word = 0x010101 * LANE | 0x80000080  # v_mul_u32_u24 reads 24 bits of each factor
    assert (out.reshape(64, 4)[:, 0] == (word & 0xFF)).all()
    assert (out.reshape(64, 4)[:, 1] == 0).all()
    high = out.reshape(64, 4)[:, 2:].copy().view(np.uint16)[:, 0]
    assert (high == word >> 16).all()


def test_vector_address_and_exec_mask() -> None:
    out = np.zeros(64, np.uint32)
    body = """
    v_mov_b32_e32 v5, s5
    v_add_co_u32_e32 v4, vcc, s4, v1
    v_addc_co_u32_e32 v5, vcc, 0, v5, vcc
    v_cmp_lt_u32_e32 vcc, 9, v0
    s_and_saveexec_b64 s[8:9], vcc
    global_store_dword v[4:5], v0, off
    """
    launch(HEAD + body, [out])
    assert (out == np.where(LANE > 9, LANE, 0)).all()


# --- buffer bounds --------------------------------------------------------------------------------


@pytest.mark.parametrize("soffset", [0, 8])
def test_buffer_reads_past_its_end_give_zero_per_dword(soffset: int) -> None:
    """num_records cuts a dwordx4 in its middle; soffset counts towards the end."""
    data = random_bytes(2048).view(np.uint32)
    out = np.zeros(256, np.uint32)
    records = 600
    body = f"""
    s_mov_b32 s10, {records}
    s_mov_b32 s11, 0x27000
    s_mov_b32 s12, {soffset}
    v_lshlrev_b32_e32 v2, 4, v0
    buffer_load_dwordx4 v[10:13], v2, s[8:11], s12 offen
    s_waitcnt vmcnt(0)
    global_store_dwordx4 v2, v[10:13], s[4:5]
    """
    result = launch(TWO + body, [out, data])
    index = np.arange(256) + soffset // 4
    assert (out == np.where(4 * index + 4 <= records, data[index], 0)).all()
    assert result.findings == ()


def test_buffer_writes_past_its_end_vanish() -> None:
    out, other = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    body = """
    s_mov_b32 s10, 102
    s_mov_b32 s11, 0
    buffer_store_dword v0, v1, s[8:11], 0 offen
    """
    launch(TWO + body, [out, other])
    assert (other == np.where(4 * LANE + 4 <= 102, LANE, 0)).all()


def test_structured_buffer_checks_the_index() -> None:
    data, out = random_bytes(64 * 12).view(np.uint32), np.zeros(64, np.uint32)
    body = """
    s_or_b32 s9, s9, 0xc0000
    s_mov_b32 s10, 50
    s_mov_b32 s11, 0
    buffer_load_dword v10, v0, s[8:11], 0 idxen offset:4
    s_waitcnt vmcnt(0)
    """
    launch(TWO + body + store("v10"), [out, data])
    assert (out == np.where(LANE < 50, data[3 * LANE + 1], 0)).all()


# --- faults -------------------------------------------------------------------------------------


def test_fault_names_kernel_line_wave_and_address() -> None:
    out = np.zeros(60, np.uint32)  # lanes 60 to 63 have no memory
    with pytest.raises(MemoryFault, match=r"workgroup 0 wave 0, lane 60, 4 lanes") as caught:
        launch(HEAD + store("v0"), [out], options=QUIET)
    assert "global_store_dword v1, v0, s[4:5]" in str(caught.value)
    assert caught.value.kernel == "k"


def test_fault_is_a_finding_where_findings_are_on() -> None:
    out = np.zeros(60, np.uint32)
    result = launch(HEAD + store("v0"), [out])
    assert kinds(result) == ["out-of-bounds"]
    assert result.findings[0].count == 4
    assert (out == LANE[:60]).all()


def test_scalar_load_outside_faults() -> None:
    with pytest.raises(MemoryFault, match="s_load_dword"):
        launch("s_mov_b64 s[8:9], 64\ns_load_dword s4, s[8:9], 0x0\ns_waitcnt lgkmcnt(0)", [],
               options=QUIET)  # fmt: skip


def test_kernarg_is_read_only() -> None:
    with pytest.raises(MemoryFault, match="outside every region"):
        launch("v_mov_b32_e32 v1, 0\nglobal_store_dword v1, v0, s[0:1]", [], options=QUIET)


# --- scratch ------------------------------------------------------------------------------------


def test_scratch_is_private_to_lane_and_wave() -> None:
    out = np.zeros(192, np.uint32)
    body = """
    v_add_u32_e32 v4, 5, v0
    scratch_store_dword off, v0, off offset:8
    scratch_store_dwordx2 off, v[0:1], off offset:16
    s_mov_b32 s8, 4
    v_mov_b32_e32 v5, 4
    s_waitcnt vmcnt(0)
    scratch_load_dword v10, v5, s8 offset:0
    scratch_load_dword v11, off, s8 offset:16
    s_waitcnt vmcnt(0)
    v_add_u32_e32 v10, v10, v11
    """
    launch(HEAD + body + store("v10"), [out], block=192, scratch=32)
    assert (out == 5 * np.arange(192)).all()  # item + 4·item


def test_scratch_bounds() -> None:
    with pytest.raises(MemoryFault, match="16 bytes of scratch"):
        launch("scratch_store_dword off, v0, off offset:16", [], scratch=16)


# --- atomics --------------------------------------------------------------------------------------


def test_clashing_atomic_adds_return_old_values_in_lane_order() -> None:
    out, counter = np.zeros(128, np.uint32), np.full(1, 100, np.uint32)
    body = """
    v_mov_b32_e32 v3, 0
    v_mov_b32_e32 v4, 3
    global_atomic_add v10, v3, v4, s[8:9] sc0
    s_waitcnt vmcnt(0)
    """
    launch(TWO + body + store("v10"), [out, counter], block=128)
    assert counter[0] == 100 + 3 * 128
    assert (np.sort(out) == 100 + 3 * np.arange(128)).all()


def test_packed_bf16_atomics_round_each_sum() -> None:
    """256 additions of 1.0 to 256.0: bf16 can't hold 257, so each sum rounds back to even."""
    out, target = np.zeros(1, np.uint32), np.array([0x43804380], np.uint32)  # (256, 256)
    body = """
    s_mov_b32 s10, -1
    s_mov_b32 s11, 0
    v_mov_b32_e32 v3, 0
    v_mov_b32_e32 v4, 0x40003f80
    buffer_atomic_pk_add_bf16 v4, v3, s[8:11], 0 offen
    """
    launch(TWO + body, [out, target])
    assert target[0] & 0xFFFF == 0x4380  # +1.0 is lost 64 times
    assert target[0] >> 16 == 0x43C0  # +2.0 counts: 256 + 64·2 = 384


def test_compare_swap_and_f32_add() -> None:
    out, cells = np.zeros(1, np.uint32), np.arange(64, dtype=np.uint32)
    body = """
    v_mov_b32_e32 v4, 0x777
    v_and_b32_e32 v5, 0xfe, v0
    global_atomic_cmpswap v1, v[4:5], s[8:9]
    """
    launch(TWO + body, [out, cells])
    assert (cells == np.where(LANE % 2 == 0, 0x777, LANE)).all()
    total = np.zeros(1, np.float32)
    body = "v_mov_b32_e32 v3, 0\nv_cvt_f32_u32_e32 v4, v0\nglobal_atomic_add_f32 v3, v4, s[8:9]"
    launch(TWO + body, [out, total])
    assert total[0] == LANE.sum()
