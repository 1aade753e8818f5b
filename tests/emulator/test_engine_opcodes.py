"""Every opcode of the tables runs through the engine: operand types, shapes and results fit."""

from __future__ import annotations

import numpy as np
import pytest
from isa_text import HEAD, launch, store

from inductor_flydsl.emulator import Options, UnknownInstruction
from inductor_flydsl.emulator.alu import OPS
from inductor_flydsl.emulator.mfma_ops import MFMA
from inductor_flydsl.emulator.operands import width_of

QUIET = Options(findings=False)


def registers(bank: str, start: int, kind: str, packed: bool = False) -> str:
    """Operand text for a value of this type from register `start` on."""
    if kind == "mask":
        return f"s[{start % 32 // 2 * 2 + 16}:{start % 32 // 2 * 2 + 17}]"
    if kind == "imm16":
        return "0x12"
    width = width_of(kind) * (2 if packed and kind == "f32" else 1)
    return f"{bank}{start}" if width == 1 else f"{bank}[{start}:{start + width - 1}]"


def instruction(name: str) -> str:
    """`name` with register operands of its types."""
    op = OPS[name]
    bank = "s" if op.kind == "salu" else "v"
    packed = op.kind == "vop3p"
    first, step = (16, 4) if bank == "s" else (4, 40)
    operands = [
        registers(bank, first + step * i, kind, packed) for i, kind in enumerate(op.dst + op.src)
    ]
    return f"{name} {', '.join(operands)}"


# Loads a pseudo-random value into every register the instructions above touch.
SETUP = HEAD + "\n".join(
    [f"v_mul_u32_u24_e32 v{i}, {2654435 * (i + 3) % 16000000}, v0" for i in range(4, 256)]
    + [f"s_mov_b32 s{i}, {(i * 2654435761) & 0xFFFFFFFF:#x}" for i in range(16, 48)]
)


@pytest.mark.parametrize("exec_mask", ["-1", "0x00ff00ff00ff00ff"])
def test_every_opcode_runs(exec_mask: str) -> None:
    lines = []
    for name in OPS:
        if "_sr_" in name:  # stochastic rounding has no model
            continue
        lines += ["s_mov_b64 exec, -1", f"s_mov_b64 exec, {exec_mask}", instruction(name)]
    launch(SETUP + "\n" + "\n".join(lines), [np.zeros(1)], block=128, options=QUIET)


def test_an_opcode_without_a_model_is_an_unknown_instruction() -> None:
    for _ in range(2):
        with pytest.raises(UnknownInstruction, match="rounds stochastically"):
            launch(instruction("v_cvt_sr_fp8_f32"), [], options=QUIET)


def test_inactive_lanes_keep_their_vector_results() -> None:
    names = [
        n for n, op in OPS.items()
        if "_sr_" not in n and op.kind in ("valu", "vop3p") and len(op.dst) == 1
        and op.dst[0] in ("u32", "i32", "f32", "b32") and not op.implicit_dst
    ]  # fmt: skip
    assert len(names) > 100
    for first in range(0, len(names), 40):
        chunk = names[first : first + 40]
        out = np.zeros((len(chunk), 64), np.uint32)
        lines = []
        for i, name in enumerate(chunk):
            lines += [
                "v_mov_b32_e32 v4, 0x1234", "s_mov_b64 exec, 0xff", instruction(name),
                "s_mov_b64 exec, -1", f"global_store_dword v1, v4, s[4:5] offset:{i * 256 % 4096}",
                *(["s_add_u32 s4, s4, 0x1000", "s_addc_u32 s5, s5, 0"] if i % 16 == 15 else []),
            ]  # fmt: skip
        launch(SETUP + "\n" + "\n".join(lines), [out], options=QUIET)
        for name, row in zip(chunk, out, strict=True):
            assert (row[8:] == 0x1234).all(), name


@pytest.mark.parametrize("accumulator", ["v", "a"])
def test_every_matrix_opcode_runs(accumulator: str) -> None:
    lines = []
    for name, op in MFMA.items():
        c = registers(accumulator, 100, f"b{32 * op.cd_regs}")
        a, b = (
            registers("v", start, f"b{32 * n}") for start, n in ((4, op.a_regs), (24, op.b_regs))
        )
        text = f"{name} {c}, {a}, {b}, "
        if op.sparse:
            lines.append(text + "v60")
        elif op.scaled:
            lines.append(text + f"{c}, v60, v61 op_sel:[1,0,0] op_sel_hi:[0,1,0]")
            lines.append(text + "0, v60, v61 op_sel_hi:[0,0,0]")
        else:
            lines += [text + c, text + "0"]
    launch(SETUP + "\n" + "\n".join(lines), [np.zeros(1)], options=QUIET)


def test_scale_byte_is_chosen_by_op_sel() -> None:
    """Each byte of the scales is another power of two; all-one FP4 operands give 128·2^(i + j)."""
    ones = "\n".join(f"v_mov_b32_e32 v{r}, 0x22222222" for r in range(4, 12))
    scales = "v_mov_b32_e32 v12, 0x8281807f\nv_mov_b32_e32 v13, 0x8281807f\n"
    mfma = "v_mfma_scale_f32_16x16x128_f8f6f4 v[16:19], v[4:7], v[8:11], 0, v12, v13 "
    for i in range(4):
        for j in range(4):
            select = f"op_sel:[{i & 1},{j & 1},0] op_sel_hi:[{i >> 1},{j >> 1},0] cbsz:4 blgp:4\n"
            out = np.zeros(64, np.float32)
            launch(HEAD + ones + "\n" + scales + mfma + select + store("v16"), [out], options=QUIET)
            assert (out == 128.0 * 2.0 ** (i + j)).all()
