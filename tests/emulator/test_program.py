"""Parsing: directives, metadata, operands, modifiers, and errors that name the line."""

from __future__ import annotations

import pytest
from isa_text import launch, text_of

from inductor_flydsl.emulator import (
    LaunchError,
    Memory,
    Options,
    ProgramError,
    TruncatedProgram,
    UnknownInstruction,
    WrongArch,
    load_program,
    run,
)
from inductor_flydsl.emulator.asm import parse_instruction, parse_operand
from inductor_flydsl.emulator.metadata import parse_metadata
from inductor_flydsl.emulator.timing import groups_per_cu


def test_kernel_record() -> None:
    kernel = load_program(text_of("s_nop 0", 3, lds=4096, spills=2, scratch=64)).kernel()
    assert kernel.name == "k"
    assert kernel.kernarg_size == 24
    assert [(a.offset, a.size, a.kind) for a in kernel.args] == [
        (0, 8, "global_buffer"), (8, 8, "global_buffer"), (16, 8, "global_buffer"),
    ]  # fmt: skip
    assert kernel.resources.lds == 4096
    assert kernel.resources.vgpr_spills == 2
    assert kernel.resources.scratch == 64
    assert kernel.hsa["user_sgpr_count"] == 2


def test_wrong_arch_names_the_target() -> None:
    with pytest.raises(WrongArch, match="gfx942.*gfx950"):
        load_program(text_of("s_nop 0", arch="gfx942"))


def test_no_target() -> None:
    text = "\n".join(text_of("s_nop 0").splitlines()[1:])
    with pytest.raises(WrongArch, match="amdgcn_target"):
        load_program(text)


@pytest.mark.parametrize("cut", [".end_amdgpu_metadata", ".amdgpu_metadata", ".end_amdhsa_kernel"])
def test_truncated(cut: str) -> None:
    text = text_of("s_nop 0")
    with pytest.raises(TruncatedProgram):
        load_program(text[: text.index(cut)])


@pytest.mark.parametrize("text", ["", "  \n"])
def test_empty(text: str) -> None:
    with pytest.raises(ProgramError, match="empty"):
        load_program(text)


def test_accumulation_registers_are_counted_once() -> None:
    """Metadata's count of vector registers includes them; they share a SIMD's file."""
    text = text_of("s_nop 0")
    text = text.replace(".agpr_count:     0", ".agpr_count:     96")
    text = text.replace(".vgpr_count:     64", ".vgpr_count:     256")
    resources = load_program(text).kernel("k").resources
    assert (resources.vgpr, resources.agpr) == (160, 96)
    assert groups_per_cu(resources, waves=4, lds=0) == 2


def test_undefined_label_names_the_line() -> None:
    text = text_of("s_nop 0\ns_branch .LBB9_9")
    line = next(i for i, row in enumerate(text.splitlines(), 1) if "LBB9_9" in row)
    with pytest.raises(ProgramError, match=rf"line {line}: label '.LBB9_9'"):
        load_program(text)


def test_kernel_without_code_or_descriptor() -> None:
    with pytest.raises(ProgramError, match="no label"):
        load_program(text_of("s_nop 0").replace("\nk:", "\nother:"))
    with pytest.raises(ProgramError, match="no .amdhsa_kernel"):
        load_program(text_of("s_nop 0").replace(".amdhsa_kernel k", ".amdhsa_kernel z"))


def test_unknown_kernel_lists_names() -> None:
    with pytest.raises(ProgramError, match=r"\['k'\]"):
        load_program(text_of("s_nop 0")).kernel("other")


def test_unknown_instruction_names_mnemonic_text_and_line() -> None:
    text = text_of("v_frobnicate_b32 v0, v1, s[2:3] foo:1")
    line = next(i for i, row in enumerate(text.splitlines(), 1) if "frobnicate" in row)
    with pytest.raises(UnknownInstruction) as caught:
        run(text, 1, 64, b"\0" * 8, Memory())
    assert caught.value.mnemonic == "v_frobnicate_b32"
    assert caught.value.line == line
    assert "v0, v1, s[2:3] foo:1" in str(caught.value)


def test_instructions_that_never_run_need_no_model() -> None:
    launch("s_branch .Lend\nv_frobnicate_b32 v0\n.Lend:", [])


@pytest.mark.parametrize(
    ("text", "kind", "index", "count"),
    [
        ("v7", "v", 7, 1), ("v[4:7]", "v", 4, 4), ("a[0:3]", "a", 0, 4),
        ("v[0x10:0x11]", "v", 16, 2),
        ("s[2:3]", "s", 2, 2), ("vcc", "s", 106, 2), ("exec_hi", "s", 127, 1), ("m0", "s", 124, 1),
        ("ttmp[4:5]", "s", 112, 2), ("[s4, s5]", "s", 4, 2),
    ],
)  # fmt: skip
def test_register_operands(text: str, kind: str, index: int, count: int) -> None:
    operand = parse_operand(text)
    assert (operand.kind, operand.index, operand.count) == (kind, index, count)


@pytest.mark.parametrize(
    ("text", "neg", "magnitude"),
    [("-v1", True, False), ("|v1|", False, True), ("-|v1|", True, True), ("neg(v1)", True, False),
     ("abs(v1)", False, True)],
)  # fmt: skip
def test_source_modifiers(text: str, neg: bool, magnitude: bool) -> None:
    operand = parse_operand(text)
    assert (operand.neg, operand.abs, operand.index) == (neg, magnitude, 1)


def test_constants() -> None:
    assert parse_operand("-16").value == -16
    assert parse_operand("0x4f7ffffe").value == 0x4F7FFFFE
    assert parse_operand("0.15915494").value == pytest.approx(0.15915494)
    assert parse_operand("0.15915494").kind == "float"


def test_modifiers() -> None:
    inst = parse_instruction("buffer_load_dwordx4 v3, s[20:23], 0 offen offset:16 sc0 lds", 1)
    assert [o.text for o in inst.operands] == ["v3", "s[20:23]", "0"]
    assert inst.mods == {"offen": 1, "offset": 16, "sc0": 1, "lds": 1}
    packed = parse_instruction("v_pk_fma_f32 v[0:1], v[2:3], s[4:5], 1.0 op_sel_hi:[1,0,0]", 1)
    assert packed.mods["op_sel_hi"] == (1, 0, 0)
    assert len(packed.operands) == 4
    shifted = parse_instruction("v_add_f32_dpp v1, v2, v3 quad_perm:[1,0,3,2] row_mask:0xf", 1)
    assert (shifted.base, shifted.encoding) == ("v_add_f32", "dpp")
    assert shifted.mods["quad_perm"] == (1, 0, 3, 2)


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("vmcnt(3)", {"vmcnt": 3}),
        ("vmcnt(28) lgkmcnt(0)", {"vmcnt": 28, "lgkmcnt": 0}),
        ("vmcnt(0) & lgkmcnt(7)", {"vmcnt": 0, "lgkmcnt": 7}),
        ("0", {"vmcnt": 0, "lgkmcnt": 0}),
        ("0xcf7f", {}),  # all counters full: waits for nothing
        ("0x4f71", {"vmcnt": 17}),
    ],
)
def test_waitcnt(text: str, counts: dict[str, int]) -> None:
    found = parse_instruction(f"s_waitcnt {text}", 1).extra
    assert {k: v for k, v in found.items() if k != "expcnt"} == counts


def test_source_locations() -> None:
    body = '.file 1 "dir" "gemm.py"\n.loc 1 42 7\ns_nop 0\n.loc 1 43 1 ; gemm.py:43:1\ns_nop 1'
    program = load_program(text_of(body))
    assert [i.source for i in program.instructions[:2]] == ["gemm.py:42", "gemm.py:43"]


def test_metadata_nesting() -> None:
    lines = (
        "a:\n  - .x: 1\n    .list:\n      - 2\n      - 'three'\n  - .x: 0x10\nb: true".splitlines()
    )
    assert parse_metadata(lines) == {
        "a": [{".x": 1, ".list": [2, "three"]}, {".x": 16}], "b": True,
    }  # fmt: skip


def test_metadata_error_names_the_line() -> None:
    with pytest.raises(ProgramError, match="line 12"):
        parse_metadata(["a: 1", "no colon here"], 11)


@pytest.mark.parametrize(
    ("grid", "block", "message"),
    [(0, 64, "grid"), (1, 2048, "block"), ((1, 1, 1, 1), 64, "grid"), (1, (64, 32), "work-items")],
)
def test_launch_errors(grid: object, block: object, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        launch("s_nop 0", [], grid=grid, block=block)


def test_launch_checks_kernarg_and_lds() -> None:
    kernel = load_program(text_of("s_nop 0", 2)).kernel()
    with pytest.raises(LaunchError, match="kernarg has 8 bytes; k needs 16"):
        run(kernel, 1, 64, b"\0" * 8, Memory())
    with pytest.raises(LaunchError, match="dynamic_lds"):
        run(kernel, 1, 64, b"\0" * 16, Memory(), dynamic_lds=200_000)


def test_required_workgroup_size() -> None:
    size = "    .reqd_workgroup_size:\n      - 128\n      - 1\n      - 1\n"
    text = text_of("s_nop 0").replace("    .sgpr_count:", size + "    .sgpr_count:", 1)
    with pytest.raises(LaunchError, match=r"compiled for \(128, 1, 1\)"):
        run(text, 1, 64, b"\0" * 8, Memory())


@pytest.mark.parametrize("options", [{"landing": "never"}, {"order": "sideways"}, {"max_waves": 0}])
def test_options_are_checked(options: dict[str, object]) -> None:
    with pytest.raises(LaunchError, match=next(iter(options))):
        Options(**options)  # type: ignore[arg-type]
