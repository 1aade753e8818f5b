"""LDS: widths, bounds, atomics, permutes across lanes, direct-to-LDS loads."""

from __future__ import annotations

import numpy as np
import pytest
from isa_text import HEAD, LANE, QUIET, TWO, evaluate, kinds, launch, random_bytes, store

from inductor_flydsl.emulator import MemoryFault
from inductor_flydsl.emulator.lds import transpose_elements

RNG = np.random.default_rng(11)


# --- LDS ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [32, 64, 96, 128])
@pytest.mark.parametrize("pad", [0, 4])
def test_lds_widths(bits: int, pad: int) -> None:
    """Each lane reads what its neighbour wrote; also where only dwords are aligned."""
    words = bits // 32
    last = 9 + words
    register = "v10" if words == 1 else f"v[10:{last}]"
    fill = "\n".join(f"v_add_u32_e32 v{10 + i}, {100 * i}, v0" for i in range(words))
    body = f"""
    v_mul_u32_u24_e32 v2, {4 * words + pad}, v0
    v_xor_b32_e32 v3, 1, v0
    v_mul_u32_u24_e32 v3, {4 * words + pad}, v3
    {fill}
    ds_write_b{bits} v2, {register} offset:16
    s_waitcnt lgkmcnt(0)
    ds_read_b{bits} {register}, v3 offset:16
    s_waitcnt lgkmcnt(0)
    v_mov_b32_e32 v10, v{last}
    """
    assert (evaluate(body, lds=4096) == (LANE ^ 1) + 100 * (words - 1)).all()


def test_lds_pairs() -> None:
    body = """
    v_lshlrev_b32_e32 v2, 2, v0
    v_add_u32_e32 v4, 0x100, v0
    v_add_u32_e32 v5, 0x200, v0
    ds_write2_b32 v2, v4, v5 offset0:1 offset1:80
    s_waitcnt lgkmcnt(0)
    ds_read2_b32 v[6:7], v2 offset0:80 offset1:1
    ds_read2st64_b32 v[8:9], v2 offset0:0 offset1:1
    s_waitcnt lgkmcnt(0)
    v_sub_u32_e32 v10, v6, v7
    """
    assert (evaluate(body, lds=1024, options=QUIET) == 0x100).all()
    st64 = body.replace("v_sub_u32_e32 v10, v6, v7", "v_mov_b32_e32 v10, v9")
    got = evaluate(st64, lds=1024, options=QUIET)
    assert (got[17:] == 0x200 + LANE[17:] - 16).all()  # dword 64 + l holds v5 of lane l - 16


def test_lds_narrow_forms() -> None:
    body = """
    v_mul_u32_u24_e32 v4, 0x010101, v0
    v_or_b32_e32 v4, 0x80400080, v4
    v_mov_b32_e32 v10, 0x5555aaaa
    ds_write_b8 v1, v4
    ds_write_b8_d16_hi v1, v4 offset:1
    ds_write_b16_d16_hi v1, v4 offset:2
    s_waitcnt lgkmcnt(0)
    {read}
    s_waitcnt lgkmcnt(0)
    """
    word = (0x010101 * LANE) | 0x80400080
    low, high = word & 0xFF, word >> 16
    assert (evaluate(body.format(read="ds_read_b32 v10, v1"), lds=256)
            == (low | (high & 0xFF) << 8 | high << 16)).all()  # fmt: skip
    signed = np.where(low > 127, low - 256, low).astype(np.uint32)
    assert (evaluate(body.format(read="ds_read_i8 v10, v1"), lds=256) == signed).all()
    half = evaluate(body.format(read="ds_read_u16_d16_hi v10, v1 offset:2"), lds=256)
    assert (half == (high << 16 | 0xAAAA)).all()


@pytest.mark.parametrize("bits", [16, 8, 4, 6])
def test_transposing_reads(bits: int) -> None:
    """16 lanes hold rows of 16 columns; lane i gets column i, element e from row e."""
    words = 3 if bits == 6 else 2
    per_lane = words * 32 // bits
    elements = RNG.integers(0, 1 << bits, (1, 4, per_lane, 16))  # [wave, group, row, column]
    flat = elements.reshape(1, 64, per_lane)

    def packed(rows: np.ndarray) -> np.ndarray:
        value = [sum(int(x) << bits * i for i, x in enumerate(row)) for row in rows]
        return np.array(
            [[v >> 32 * w & 0xFFFFFFFF for v in value] for w in range(words)], np.uint32
        )

    got = transpose_elements(packed(flat[0])[:, None, :], bits)
    want = packed(elements.transpose(0, 1, 3, 2).reshape(64, per_lane))
    assert (got[:, 0] == want).all()


def test_lds_atomics() -> None:
    body = """
    v_and_b32_e32 v2, 4, v1
    v_mov_b32_e32 v4, 0
    ds_write_b32 v2, v4
    s_waitcnt lgkmcnt(0)
    ds_add_u32 v2, v0
    ds_add_rtn_u32 v5, v2, v4
    ds_max_u32 v2, v0 offset:8
    s_waitcnt lgkmcnt(0)
    v_mov_b32_e32 v10, v5
    """
    got = evaluate(body, lds=64, options=QUIET)
    assert (got == np.where(LANE % 2, LANE[1::2].sum(), LANE[::2].sum())).all()


def test_lds_bounds() -> None:
    body = "v_mov_b32_e32 v2, 252\nds_write_b64 v2, v[0:1]"
    with pytest.raises(MemoryFault, match="LDS byte 252 of 256"):
        launch(HEAD + body, [np.zeros(1)], lds=256, options=QUIET)
    result = launch(HEAD + body, [np.zeros(1)], lds=256)
    assert kinds(result) == ["out-of-bounds"]
    got = evaluate("v_lshl_add_u32 v2, v0, 2, 64\nds_write_b32 v1, v0\nds_read_b32 v10, v2\n"
                   "s_waitcnt lgkmcnt(0)", lds=256)  # fmt: skip
    assert (got == np.where(LANE < 48, LANE + 16, 0)).all()


def test_workgroups_have_lds_of_their_own() -> None:
    out = np.zeros(256, np.uint32)
    body = """
    v_lshl_add_u32 v4, s2, 8, v0
    ds_write_b32 v1, v4
    s_waitcnt lgkmcnt(0)
    v_xor_b32_e32 v5, 4, v1
    ds_read_b32 v10, v5
    v_lshl_add_u32 v1, s2, 8, v1
    s_waitcnt lgkmcnt(0)
    """
    launch(HEAD + body + store("v10"), [out], grid=4, lds=256)
    group, lane = np.divmod(np.arange(256), 64)
    assert (out == 256 * group + (lane ^ 1)).all()


def test_lane_permutes() -> None:
    setup = "v_sub_u32_e32 v4, 63, v0\nv_lshlrev_b32_e32 v4, 2, v4\nv_mul_u32_u24_e32 v5, 3, v0\n"
    wait = "\ns_waitcnt lgkmcnt(0)"
    assert (evaluate(setup + "ds_bpermute_b32 v10, v4, v5" + wait) == 3 * (63 - LANE)).all()
    forward = setup + "v_and_b32_e32 v4, 0x7c, v4\nds_permute_b32 v10, v4, v5" + wait
    assert (evaluate(forward)[:32] == 3 * (63 - LANE[:32])).all()
    xor = setup + "ds_swizzle_b32 v10, v5 offset:0x041f" + wait
    assert (evaluate(xor) == 3 * (LANE ^ 1)).all()


# --- direct-to-LDS loads --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "size", "form"),
    [("dword", 4, "global"), ("dwordx3", 12, "global"), ("dwordx4", 16, "global"),
     ("dword", 4, "buffer"), ("dwordx4", 16, "buffer"), ("ubyte", 1, "buffer"),
     ("ushort", 2, "buffer")],
)  # fmt: skip
@pytest.mark.parametrize("exec_mask", ["-1", "0x7ffffffffffffff0"])
def test_direct_to_lds(name: str, size: int, form: str, exec_mask: str) -> None:
    """Lane l lands at M0 + offset + l·max(size, 4); lanes that EXEC turns off write nothing."""
    stride = max(4, size)
    data = random_bytes(64 * 16 + 64)
    out = np.zeros(64 * stride // 4, np.uint32)
    dma = {
        "global": f"global_load_lds_{name} v2, s[8:9] offset:32",
        "buffer": f"buffer_load_{name} v2, s[8:11], 0 offen offset:32 lds",
    }[form]
    words = stride // 4
    reads = "\n".join(
        f"ds_read_b32 v10, v3 offset:{256 * i}\ns_waitcnt lgkmcnt(0)\n"
        f"global_store_dword v1, v10, s[4:5] offset:{256 * i}" for i in range(words)
    )  # fmt: skip
    body = f"""
    s_mov_b32 s10, -1
    s_mov_b32 s11, 0
    v_mov_b32_e32 v4, 0
    v_xor_b32_e32 v2, 5, v0
    v_lshlrev_b32_e32 v2, 4, v2
    v_add_u32_e32 v3, 0x120, v1
    {"".join(f"ds_write_b32 v3, v4 offset:{256 * i}" + chr(10) for i in range(words))}
    s_waitcnt lgkmcnt(0)
    s_mov_b64 exec, {exec_mask}
    s_mov_b32 m0, 0x100
    {dma}
    s_mov_b64 exec, -1
    s_waitcnt vmcnt(0)
    {reads}
    """
    launch(TWO + body, [out, data], lds=2048)
    rows = data[32:][((LANE[:, None] ^ 5) * 16 + np.arange(size))]
    want = np.zeros((64, stride), np.uint8)
    want[:, :size] = rows
    mask = int(exec_mask, 0) & (1 << 64) - 1
    want[[lane for lane in range(64) if not mask >> lane & 1]] = 0
    assert (out == want.reshape(-1).view(np.uint32)).all()


def test_direct_to_lds_past_a_buffers_end_writes_zero() -> None:
    data, out = random_bytes(1024), np.zeros(64, np.uint32)
    body = """
    s_mov_b32 s10, 128
    s_mov_b32 s11, 0
    s_mov_b32 m0, 0
    buffer_load_dword v1, s[8:11], 0 offen lds
    s_waitcnt vmcnt(0)
    ds_read_b32 v10, v1
    s_waitcnt lgkmcnt(0)
    """
    launch(TWO + body + store("v10"), [out, data], lds=256)
    assert (out == np.where(LANE < 32, data.view(np.uint32)[:64], 0)).all()


@pytest.mark.parametrize("base", [0, -64, -4096])
def test_lds_address_and_offset_are_summed_in_32_bits(base: int) -> None:
    body = f"""
    v_add_u32_e32 v9, {base}, v1
    ds_write_b32 v9, v0 offset:{128 - base}
    s_waitcnt lgkmcnt(0)
    ds_read_b32 v10, v1 offset:128
    s_waitcnt lgkmcnt(0)
    """
    assert (evaluate(body, lds=1024) == LANE).all()
