"""Assembly texts for the emulator's tests: small kernels around a body of instructions."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from inductor_flydsl import emulator
from inductor_flydsl.emulator import Memory, Options, RunResult

TEMPLATE = """\
\t.amdgcn_target "amdgcn-amd-amdhsa--{arch}"
\t.text
\t.globl\t{name}
{name}:
{body}
\ts_endpgm
.Lfunc_end0:
{tail}
\t.section\t.rodata,"a",@progbits
\t.amdhsa_kernel {name}
\t\t.amdhsa_group_segment_fixed_size {lds}
\t\t.amdhsa_private_segment_fixed_size {scratch}
\t\t.amdhsa_user_sgpr_count 2
\t\t.amdhsa_user_sgpr_kernarg_segment_ptr 1
\t\t.amdhsa_system_sgpr_workgroup_id_x 1
\t\t.amdhsa_system_sgpr_workgroup_id_y 1
\t\t.amdhsa_system_sgpr_workgroup_id_z 1
\t\t.amdhsa_next_free_vgpr 64
\t\t.amdhsa_next_free_sgpr 64
\t.end_amdhsa_kernel
\t.text
\t.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
{args}
    .group_segment_fixed_size: {lds}
    .kernarg_segment_align: 8
    .kernarg_segment_size: {kernarg}
    .max_flat_workgroup_size: 1024
    .name:           {name}
    .private_segment_fixed_size: {scratch}
    .sgpr_count:     64
    .sgpr_spill_count: 0
    .symbol:         {name}.kd
    .vgpr_count:     64
    .vgpr_spill_count: {spills}
    .wavefront_size: 64
amdhsa.target:   amdgcn-amd-amdhsa--{arch}
amdhsa.version:
  - 1
  - 2
...
\t.end_amdgpu_metadata
"""


def text_of(body: str, pointers: int = 1, **given: object) -> str:
    """A kernel whose arguments are `pointers` 8-byte pointers; keywords fill the template."""
    args = "\n".join(
        f"      - .address_space:  global\n        .offset:         {8 * i}\n"
        "        .size:           8\n        .value_kind:     global_buffer"
        for i in range(pointers)
    )
    lines = "\n".join(f"\t{line.strip()}" if ":" not in line.split(";")[0].split(" ")[0] else
                      line.strip() for line in body.strip().splitlines())  # fmt: skip
    values = {
        "name": "k", "arch": "gfx950", "lds": 0, "scratch": 0, "tail": "", "spills": 0,
        "kernarg": 8 * pointers,
    }  # fmt: skip
    return TEMPLATE.format(**{**values, **given, "body": lines, "args": args})


def launch(
    body: str,
    arrays: Sequence[np.ndarray],
    *,
    grid: object = 1,
    block: object = 64,
    options: Options | None = None,
    **given: object,
) -> RunResult:
    """Runs a body on arrays, whose addresses are the kernel's arguments in order."""
    memory = Memory()
    addresses = [memory.add_array(a, f"array{i}").base for i, a in enumerate(arrays)]
    kernel = emulator.load_program(text_of(body, len(arrays), **given)).kernel()
    kernarg = struct.pack(f"<{len(addresses)}Q", *addresses)
    return emulator.run(kernel, grid, block, kernarg, memory, options or Options())  # type: ignore[arg-type]


# v1 = 4·thread; s[4:5] = first pointer
HEAD = """
s_load_dwordx2 s[4:5], s[0:1], 0x0
v_and_b32_e32 v0, 0x3ff, v0
v_lshlrev_b32_e32 v1, 2, v0
s_waitcnt lgkmcnt(0)
"""
# s[8:9] = second pointer
TWO = HEAD + "s_load_dwordx2 s[8:9], s[0:1], 0x8\ns_waitcnt lgkmcnt(0)\n"
LANE = np.arange(64)
QUIET = Options(findings=False)
RNG = np.random.default_rng(11)


def store(register: str) -> str:
    """Instructions that store `register` of every thread to the first array, as dwords."""
    return f"global_store_dword v1, {register}, s[4:5]"


def evaluate(body: str, threads: int = 64, setup: str = "", **given: object) -> np.ndarray:
    """Runs `body`, which leaves its result in v10; returns it, uint32 [threads]."""
    out = np.zeros(threads, np.uint32)
    launch(HEAD + setup + body + "\n" + store("v10"), [out], block=threads, **given)
    return out


def kinds(result: RunResult) -> list[str]:
    """Kinds of a result's findings, in order."""
    return [finding.kind for finding in result.findings]


def random_bytes(count: int) -> np.ndarray:
    return RNG.integers(0, 256, count, np.uint8)
