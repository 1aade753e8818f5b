"""The state of the waves that run together: registers, EXEC, LDS, program counters.

Owns the arrays and the sets of waves that share a program counter. Knows nothing of instructions.

Wave w of a machine with G workgroups is wave w // G of workgroup w % G, so that "wave i of every
workgroup" is one contiguous slice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .asm import EXEC
from .program import Kernel

if TYPE_CHECKING:
    from .hazards import Hazards
    from .memory import Memory
    from .queues import Queues

LANES = 64
FULL = np.uint32(0xFFFFFFFF)
RUNNING, AT_BARRIER, ENDED = 0, 1, 2

Selector = slice | np.ndarray


class WaveSet:
    """A set of waves: `sel` indexes wave axes (a slice where contiguous), `idx` lists them."""

    __slots__ = ("idx", "key", "n", "sel")

    def __init__(self, idx: np.ndarray) -> None:
        self.idx = idx
        self.n = len(idx)
        first, last = int(idx[0]), int(idx[-1])
        if last - first + 1 == self.n:
            self.sel: Selector = slice(first, last + 1)
            self.key: Any = (first, last + 1)
        else:
            self.sel = idx
            self.key = idx.tobytes()

    def overlaps(self, other: WaveSet) -> bool:
        """Whether the two share a wave."""
        if isinstance(self.sel, slice) and isinstance(other.sel, slice):
            return self.sel.start < other.sel.stop and other.sel.start < self.sel.stop
        return bool(np.isin(self.idx, other.idx).any())


def poison(shape: tuple[int, ...], on: bool) -> np.ndarray:
    """uint32 array of NaN-like patterns (NaN as f32, and as bf16 in either half), or zeros.

    The pattern varies along the first and last axes.
    """
    if not on:
        return np.zeros(shape, np.uint32)
    first = np.arange(shape[0], dtype=np.uint32).reshape(-1, *[1] * (len(shape) - 1))
    last = np.arange(shape[-1], dtype=np.uint32)
    noise = (first * np.uint32(40503) ^ last * np.uint32(2654435769)) >> np.uint32(7)
    out = np.empty(shape, np.uint32)
    out[...] = np.uint32(0x7FC07FD0) ^ (noise & np.uint32(0x001F000F))
    return out


class Machine:
    """Waves of some workgroups of one launch.

    V: uint32 [VGPRs then AGPRs, W, 64]; S: uint32 [128, W] by scalar operand encoding, VCC, M0
    and EXEC included; scc: bool [W]; lds: uint8, `lds_stride` bytes a workgroup.
    """

    def __init__(self, kernel: Kernel, groups: np.ndarray, waves_per_group: int,
                 lds_size: int, poisoned: bool) -> None:  # fmt: skip
        program = kernel.program
        self.kernel = kernel
        self.group_ids = groups
        self.groups = len(groups)
        self.waves_per_group = waves_per_group
        self.waves = waves = self.groups * waves_per_group
        self.agpr_base = program.vgprs
        self.V = poison((program.vgprs + program.agprs, waves, LANES), poisoned)
        self.VF, self.VI = self.V.view(np.float32), self.V.view(np.int32)
        self.stamps = [0] * len(self.V)
        self.fragments: dict[Any, tuple[list[int], np.ndarray]] = {}
        self.S = poison((128, waves), poisoned)
        self.SF, self.SI = self.S.view(np.float32), self.S.view(np.int32)
        self.S[EXEC : EXEC + 2] = FULL
        self.scc = np.zeros(waves, np.bool_)
        self.pc = np.full(waves, kernel.entry, np.int64)
        self.status = np.zeros(waves, np.uint8)
        self.epoch = np.zeros(self.groups, np.int64)
        self.lds_size = lds_size
        self.lds_stride = -(-lds_size // 16) * 16
        words = poison((self.groups * self.lds_stride // 4 + 16,), poisoned)
        self.lds = words.view(np.uint8)
        self._lds_views: dict[int, np.ndarray] = {
            1: self.lds, 2: words.view(np.uint16), 4: words, 8: words.view(np.uint64),
            16: words.view(np.complex128),
        }  # fmt: skip
        self.lds_view = self._lds_views.__getitem__
        self.group_of = np.tile(np.arange(self.groups, dtype=np.int64), waves_per_group)
        self.lds_base = self.group_of * self.lds_stride
        self.scratch_size = 0
        self.scratch_base = 0
        self.ticks = 0
        self.memory: Memory
        self.memory_scratch: Memory
        self.queues: Queues
        self.hazards: Hazards | None = None

    def wave_name(self, wave: int) -> str:
        """'workgroup 5 wave 2' for a wave index of this machine."""
        group = int(self.group_ids[wave % self.groups])
        return f"workgroup {group} wave {wave // self.groups}"


class Cohort:
    """Waves of a machine that share a program counter; what every instruction closure receives.

    exec: bool [n, 64], or None where every lane is on (`full`). Arrays are the machine's own and
    are indexed with `sel`.
    """

    __slots__ = (
        "S", "SF", "SI", "V", "VF", "VI", "exec", "full", "lds_base", "m", "n", "pc", "sel",
        "stamps", "waves",
    )  # fmt: skip

    def __init__(self, machine: Machine, waves: WaveSet, pc: int) -> None:
        self.m = machine
        self.waves = waves
        self.sel = waves.sel
        self.n = waves.n
        self.pc = pc
        self.V, self.VF, self.VI = machine.V, machine.VF, machine.VI
        self.stamps = machine.stamps
        self.S, self.SF, self.SI = machine.S, machine.SF, machine.SI
        self.lds_base = machine.lds_base[waves.sel][:, None]
        self.refresh_exec()

    def refresh_exec(self) -> None:
        """Takes up EXEC after its scalar registers changed."""
        words = self.S[EXEC : EXEC + 2, self.sel]
        self.full = bool((words == FULL).all())
        self.exec: np.ndarray | None = None if self.full else unpack_mask(words[0], words[1])

    def active(self) -> np.ndarray:
        """EXEC as bool [n, 64], also where all are on."""
        if self.exec is None:
            return np.ones((self.n, LANES), np.bool_)
        return self.exec


def unpack_mask(lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
    """Two uint32 [n] → bool [n, 64], lane 0 in bit 0 of `lo`."""
    words = np.empty((len(lo), 2), np.uint32)
    words[:, 0], words[:, 1] = lo, hi
    bits = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    return bits.view(np.bool_)


def pack_mask(bits: np.ndarray) -> np.ndarray:
    """bool [n, 64] → uint32 [n, 2]."""
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint32)
