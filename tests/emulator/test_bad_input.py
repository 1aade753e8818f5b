"""Bad text and bad launches end in the emulator's own errors, which name the place."""

from __future__ import annotations

import random
import re
import struct

import numpy as np
import pytest
from gemm_text import BODY, GOOD
from isa_text import HEAD, launch, text_of

from inductor_flydsl.emulator import (
    EmulatorError,
    LaunchError,
    Memory,
    Options,
    ProgramError,
    TruncatedProgram,
    WrongArch,
    load_program,
    run,
)

QUICK = Options(max_instructions=20_000)
TEXT = text_of(BODY.format(**GOOD, row_bytes=128, steps=2), pointers=3, lds=8192)


@pytest.mark.parametrize("arch", ["gfx942", "gfx90a", "gfx1250", "gfx950x"])
def test_text_for_another_arch(arch: str) -> None:
    with pytest.raises(WrongArch, match=f"line 1: .*{arch}.*compile the kernel for gfx950"):
        load_program(TEXT.replace("gfx950", arch))


def test_text_cut_anywhere_is_truncated_or_the_same_program() -> None:
    whole = load_program(TEXT)
    cut = 0
    for end in range(0, len(TEXT), 37):
        try:
            program = load_program(TEXT[:end])
        except EmulatorError as error:
            cut += isinstance(error, TruncatedProgram)
            continue
        assert program.instructions == whole.instructions
    assert cut > 50
    for missing in (".end_amdgpu_metadata", "\t.amdgpu_metadata"):
        with pytest.raises(TruncatedProgram, match="cut off"):
            load_program(TEXT[: TEXT.index(missing)])


def test_damaged_text_never_ends_in_another_error() -> None:
    rng = random.Random(5)
    lines = TEXT.splitlines()
    refused = 0
    for _ in range(400):
        damaged = list(lines)
        at = rng.randrange(len(lines))
        line = damaged[at]
        kind = rng.randrange(4)
        if kind == 0:
            del damaged[at]
        elif kind == 1 and line:
            damaged[at] = line[: rng.randrange(len(line))]
        elif kind == 2 and line:
            i = rng.randrange(len(line))
            damaged[at] = line[:i] + rng.choice("[],:x9-$ ") + line[i + 1 :]
        else:
            damaged[at] = line.replace(",", " , ,").replace(":", "::", 1)
        try:
            program = load_program("\n".join(damaged))
            memory = Memory()
            arrays = [np.zeros(1 << 14, np.uint8) for _ in range(3)]
            pointers = [memory.add_array(a, f"array{i}").base for i, a in enumerate(arrays)]
            run(program, 1, 256, struct.pack("<3Q", *pointers), memory, QUICK)
        except EmulatorError as error:
            refused += 1
            assert str(error)
    assert refused > 50


def test_missing_metadata_names_the_key() -> None:
    with pytest.raises(ProgramError, match="no amdhsa.kernels"):
        load_program(TEXT.replace("amdhsa.kernels:", "amdhsa.others:"))
    with pytest.raises(ProgramError, match=r"\.name"):
        load_program(re.sub(r"\.name: +k\n", "\n", TEXT))
    with pytest.raises(ProgramError, match=r"metadata key \.size of .* is 'eight'"):
        load_program(TEXT.replace(".size:           8", ".size:           eight", 1))


@pytest.mark.parametrize("register", ["v256", "v[250:257]", "a300", "s[101:102]", "v[5:4]"])
def test_registers_that_do_not_exist(register: str) -> None:
    text = text_of(f"s_nop 0\nv_mov_b32_e32 v1, {register}")
    line = next(i for i, t in enumerate(text.splitlines(), 1) if register in t)
    with pytest.raises(ProgramError, match=rf"line {line}: there is no register"):
        load_program(text)


@pytest.mark.parametrize("grid, message", [
    ((0, 1, 1), "every dimension must be in 1"),
    ((1, -3), "every dimension must be in 1"),
    ((2**31, 1, 1), "every dimension must be in 1"),
    ((2**26 + 1, 1, 1), "work-items in x; at most 4294967295"),
    ((1, 1, 1, 1), "4 dimensions"),
])  # fmt: skip
def test_grids_over_the_limits(grid: tuple[int, ...], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        launch("s_nop 0", [np.zeros(4)], grid=grid)


@pytest.mark.parametrize("block, message", [
    ((1025, 1, 1), "every dimension must be in 1..1024"),
    ((64, 64, 1), "4096 work-items; k takes at most 1024"),
])  # fmt: skip
def test_blocks_over_the_limits(block: tuple[int, ...], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        launch("s_nop 0", [np.zeros(4)], block=block)


def test_too_few_kernargs_and_too_much_lds() -> None:
    kernel = load_program(TEXT).kernel()
    with pytest.raises(LaunchError, match=r"kernarg has 16 bytes; k needs 24 \(3 arguments\)"):
        run(kernel, 1, 256, bytes(16), Memory())
    with pytest.raises(LaunchError, match="gfx950 has 163840"):
        launch(HEAD, [np.zeros(4)], lds=163840 + 4)


class _Tensor:
    """As much of a torch tensor as the emulator looks at."""

    device = "cpu"

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def data_ptr(self) -> int:
        return self.array.ctypes.data

    def numel(self) -> int:
        return self.array.size

    def element_size(self) -> int:
        return self.array.itemsize

    def is_contiguous(self) -> bool:
        return self.array.flags.c_contiguous

    def stride(self) -> tuple[int, ...]:
        return tuple(s // self.array.itemsize for s in self.array.strides)


def test_a_tensor_that_is_not_contiguous_is_refused() -> None:
    from inductor_flydsl.emulator.arguments import _check_tensor

    _check_tensor("x", _Tensor(np.zeros(8)))
    with pytest.raises(LaunchError, match="contiguous"):
        _check_tensor("x", _Tensor(np.zeros((8, 2))[:, 0]))
    elsewhere = _Tensor(np.zeros(8))
    elsewhere.device = "cuda:0"
    with pytest.raises(LaunchError, match="CPU"):
        _check_tensor("x", elsewhere)


@pytest.mark.parametrize("grid", ["3", 3.0, None, (2, 2.5), (1, 2, 3, 4), (65535, 65535)])
def test_grids_that_are_no_grids(grid: object) -> None:
    from inductor_flydsl.emulator.launch import make_launch

    kernel = load_program(TEXT).kernel()
    with pytest.raises(LaunchError, match="grid"):
        make_launch(kernel, grid, 64, bytes(kernel.kernarg_size))
    assert make_launch(kernel, np.int64(3), 64, bytes(kernel.kernarg_size)).groups == 3
