"""A launch → machines whose registers hold what the kernel's ABI promises.

Owns kernarg and dispatch-packet contents, user and system SGPRs, work-item ids and scratch. Knows
nothing of instructions. ABI: LLVM "User Guide for AMDGPU Backend", "Initial Kernel Execution
State" and "Code Object V5 Metadata" (hidden arguments).
"""

from __future__ import annotations

import operator
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from .asm import EXEC
from .errors import LaunchError
from .memory import Memory
from .program import Kernel
from .state import LANES, Machine

MAX_LDS = 160 * 1024
MAX_ITEMS = 2**32 - 1
MAX_GROUPS = 2**26
"""What this emulator numbers in memory; a hundred times any launch that ends in a day."""
"""Work-items along an axis of a grid: the dispatch packet's field has 32 bits."""


@dataclass(frozen=True)
class Launch:
    """A checked launch: grid in workgroups, block in work-items, LDS in bytes."""

    kernel: Kernel
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    lds: int
    dynamic_lds: int
    kernarg: np.ndarray
    packet: np.ndarray

    @property
    def groups(self) -> int:
        """Workgroups of the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """Work-items of a workgroup."""
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def waves(self) -> int:
        """Waves of a workgroup."""
        return -(-self.threads // LANES)


def _triple(value: object, name: str, top: int) -> tuple[int, int, int]:
    given: list[Any] = list(value) if isinstance(value, (tuple, list)) else [value]
    try:
        items = [operator.index(x) for x in given]
    except TypeError:
        way = f"{name} {value!r}: give an int, or a tuple of one to three"
        raise LaunchError(way) from None
    if not 1 <= len(items) <= 3:
        raise LaunchError(f"{name} {value!r} has {len(items)} dimensions; give one to three")
    sizes = [*items, *[1] * (3 - len(items))]
    if any(size < 1 or size > top for size in sizes):
        raise LaunchError(f"{name} {value!r}: every dimension must be in 1..{top}")
    return sizes[0], sizes[1], sizes[2]


def make_launch(kernel: Kernel, grid: object, block: object, kernarg: bytes,
                dynamic_lds: int = 0) -> Launch:  # fmt: skip
    """Checks a launch and builds its kernarg segment. Raises LaunchError naming the argument."""
    groups, items = _triple(grid, "grid", 2**31 - 1), _triple(block, "block", 1024)
    threads = items[0] * items[1] * items[2]
    for axis, size in zip("xyz", (g * i for g, i in zip(groups, items, strict=True)), strict=True):
        if size > MAX_ITEMS:
            raise LaunchError(f"grid {grid!r}: {size} work-items in {axis}; at most {MAX_ITEMS}")
    if groups[0] * groups[1] * groups[2] > MAX_GROUPS:
        raise LaunchError(f"grid {grid!r}: over {MAX_GROUPS} workgroups, more than are emulated")
    required = kernel.reqd_workgroup_size
    if required is not None and items != required:
        raise LaunchError(f"block {items} but kernel {kernel.name} was compiled for {required}")
    if threads > kernel.max_workgroup_size:
        raise LaunchError(
            f"block {items} has {threads} work-items; {kernel.name} takes at most "
            f"{kernel.max_workgroup_size}"
        )
    lds = kernel.resources.lds + dynamic_lds
    if dynamic_lds < 0 or lds > MAX_LDS:
        raise LaunchError(f"dynamic_lds {dynamic_lds}: {lds} bytes in all, gfx950 has {MAX_LDS}")
    segment = _kernarg(kernel, groups, items, bytes(kernarg), dynamic_lds)
    return Launch(kernel, groups, items, lds, dynamic_lds, segment, _packet(groups, items, lds))


def _aligned(raw: bytes) -> np.ndarray:
    """uint8 array at a 64-byte boundary with spare room: scalar loads may run past the end."""
    room = np.zeros(len(raw) + 192, np.uint8)
    start = -room.__array_interface__["data"][0] % 64
    room[start : start + len(raw)] = np.frombuffer(raw, np.uint8)
    return room[start : start + len(raw) + 64]


def _kernarg(kernel: Kernel, grid: tuple[int, int, int], block: tuple[int, int, int],
             given: bytes, dynamic_lds: int) -> np.ndarray:  # fmt: skip
    explicit = max(
        (a.offset + a.size for a in kernel.args if not a.kind.startswith("hidden_")), default=0
    )
    if len(given) < explicit:
        raise LaunchError(
            f"kernarg has {len(given)} bytes; {kernel.name} needs {explicit} "
            f"({len(kernel.args)} arguments)"
        )
    data = bytearray(given.ljust(kernel.kernarg_size, b"\0"))
    hidden = _hidden_values(grid, block, dynamic_lds)
    for arg in kernel.args:
        if arg.kind in hidden:
            data[arg.offset : arg.offset + arg.size] = hidden[arg.kind].to_bytes(arg.size, "little")
    return _aligned(bytes(data))


def _hidden_values(grid: tuple[int, int, int], block: tuple[int, int, int],
                   dynamic_lds: int) -> dict[str, int]:  # fmt: skip
    values = {"hidden_dynamic_lds_size": dynamic_lds}
    for axis, name in enumerate("xyz"):
        values[f"hidden_block_count_{name}"] = grid[axis]
        values[f"hidden_group_size_{name}"] = block[axis]
        values[f"hidden_remainder_{name}"] = 0
    values["hidden_grid_dims"] = 3 if grid[2] * block[2] > 1 else 2 if grid[1] * block[1] > 1 else 1
    return values


def _packet(grid: tuple[int, int, int], block: tuple[int, int, int], lds: int) -> np.ndarray:
    """hsa_kernel_dispatch_packet_t: header, setup, workgroup and grid sizes, segment sizes."""
    items = [g * b for g, b in zip(grid, block, strict=True)]
    raw = struct.pack("<6H5I", 2, 3, *block, 0, *(min(i, 2**32 - 1) for i in items), 0, lds)
    return _aligned(raw.ljust(64, b"\0"))


def make_machine(launch: Launch, groups: np.ndarray, poisoned: bool, memory: Memory) -> Machine:
    """A machine for workgroups `groups` (linear ids) of the launch."""
    m = Machine(launch.kernel, groups, launch.waves, launch.lds, poisoned)
    m.memory = memory
    _set_sgprs(m, launch)
    _set_work_items(m, launch)
    size = launch.kernel.resources.scratch
    m.memory_scratch = Memory()
    if size:
        m.scratch_size = -(-size // 16) * 16
        room = np.zeros(m.waves * LANES * m.scratch_size + 16, np.uint8)
        m.scratch_base = m.memory_scratch.add_array(room, "scratch").base
    return m


def _set_sgprs(m: Machine, launch: Launch) -> None:
    """User SGPRs in the order of the kernel descriptor's enable bits, then workgroup ids."""
    hsa = m.kernel.hsa
    pointer = launch.kernarg.__array_interface__["data"][0]
    packet = launch.packet.__array_interface__["data"][0]
    at = 0
    for name, words, value in (
        ("user_sgpr_dispatch_ptr", 2, packet),
        ("user_sgpr_queue_ptr", 2, 0),
        ("user_sgpr_kernarg_segment_ptr", 2, pointer),
        ("user_sgpr_dispatch_id", 2, 0),
        ("user_sgpr_private_segment_size", 1, m.kernel.resources.scratch),
    ):
        if hsa.get(name, 0):
            for i in range(words):
                m.S[at + i] = value >> 32 * i & 0xFFFFFFFF
            at += words
    preload = hsa.get("user_sgpr_kernarg_preload_length", 0)
    if preload:
        start = 4 * hsa.get("user_sgpr_kernarg_preload_offset", 0)
        loaded = launch.kernarg[start : start + 4 * preload].view(np.uint32)
        m.S[at : at + preload] = loaded[:, None]
        at += preload
    at = max(at, hsa.get("user_sgpr_count", at))
    gx, gy, _ = launch.grid
    linear = m.group_ids[m.group_of]
    ids = {"x": linear % gx, "y": linear // gx % gy, "z": linear // (gx * gy)}
    for axis, coordinate in ids.items():
        if hsa.get(f"system_sgpr_workgroup_id_{axis}", int(axis == "x")):
            m.S[at] = coordinate
            at += 1


def _set_work_items(m: Machine, launch: Launch) -> None:
    """v0 = x | y << 10 | z << 20; lanes past the workgroup's end start with EXEC off."""
    bx, by, _ = launch.block
    wave = np.arange(m.waves) // m.groups
    item = wave[:, None] * LANES + np.arange(LANES)
    m.V[0] = item % bx | (item // bx % by) << 10 | (item // (bx * by)) << 20
    missing = launch.waves * LANES - launch.threads
    if missing:
        on = (1 << (LANES - missing)) - 1
        last = wave == launch.waves - 1
        m.S[EXEC, last], m.S[EXEC + 1, last] = on & 0xFFFFFFFF, on >> 32
