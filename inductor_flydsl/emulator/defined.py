"""Which register bits nothing has written, and where such bits come to matter.

Owns definedness: for every bit of a register, whether it depends on something never written. An
undefined value may be read, moved and computed with, as compilers do where they need one half of a
result; it is a fault where it reaches memory, an address, a branch or EXEC. What an instruction
makes of undefined bits is found by executing it again with those bits changed: result bits that
change are undefined. So no opcode needs a rule of its own: a carry goes upwards, a mask hides, a
lane stays a lane, and x XOR x is defined. The price is that a bit which happens to come out alike
under every pattern is taken to be defined.

Registers start undefined, scalar ones defined: the launch or an instruction sets them. Values that
were spilled count as defined when they come back. Knows nothing of what instructions compute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from .asm import EXEC, VCC, Instruction
from .operands import SCC_KEY, SGPR_KEY
from .state import FULL, LANES, Cohort, Machine

Run = Callable[[Cohort], Any]
_SIGNS = np.uint32(0x7FFF7FFF)
# What undefined bits are changed by: all of them; all but signs, for comparisons that a NaN or a
# sign decides alone; and set to zero, for comparisons with zero.
_FLIPS: tuple[np.uint32 | None, ...] = (FULL, _SIGNS, None)


class Origin(NamedTuple):
    """Where an undefined value began: a register that nothing wrote, and its first reader."""

    register: int
    inst: Instruction


@dataclass(frozen=True)
class Uses:
    """Registers an instruction touches.

    bits: for registers of which only some bits matter (a byte store's data; the old half under a
    d16 load: none). sets: for registers of which only some bits are written by a memory operation.
    """

    reads: frozenset[int]
    writes: frozenset[int]
    bits: dict[int, int] = field(default_factory=dict)
    sets: dict[int, int] = field(default_factory=dict)

    @property
    def touched(self) -> frozenset[int]:
        """All of them."""
        return self.reads | self.writes


class Fault(NamedTuple):
    """An undefined value that mattered: the registers that held it, which waves, how many lanes,
    and where it came from."""

    registers: list[int]
    waves: np.ndarray
    lanes: int
    origin: Origin | None


class Definedness:
    """The undefined bits of one machine's registers.

    undefined: register → uint32 [waves, 64] (vector) or [waves] (scalar, SCC) of undefined bits;
    None while nothing has written any of a vector register. Fully defined registers are absent.
    """

    def __init__(self, machine: Machine) -> None:
        self.m = machine
        self.undefined: dict[int, np.ndarray | None] = dict.fromkeys(range(1, len(machine.V)))
        self.origin: dict[int, Origin] = {}

    # --- masks ----------------------------------------------------------------------------

    def mask(self, register: int, c: Cohort) -> np.ndarray | None:
        """Undefined bits of a register in the cohort's waves, None if there are none."""
        bits = self.undefined.get(register, _ABSENT)
        if bits is _ABSENT:
            return None
        if bits is None:
            return np.full((c.n, LANES), FULL)
        part: np.ndarray = bits[c.sel]
        return part.copy() if part.any() else None

    def _set(self, register: int, c: Cohort, mask: np.ndarray | None) -> None:
        """Makes `mask` the register's undefined bits in the cohort's waves; None for none."""
        if register not in self.undefined:
            if mask is None or not mask.any():
                return
            self.undefined[register] = np.zeros((self.m.waves, *mask.shape[1:]), np.uint32)
        bits = self.undefined[register]
        if bits is None:
            if mask is None and c.n == self.m.waves:
                del self.undefined[register]
                return
            bits = self.undefined[register] = np.full((self.m.waves, LANES), FULL)
        bits[c.sel] = 0 if mask is None else mask
        if not bits.any():
            del self.undefined[register]

    # --- registers by key -----------------------------------------------------------------

    def _get(self, register: int, c: Cohort) -> np.ndarray:
        if register < SGPR_KEY:
            return np.array(c.V[register, c.sel])
        if register == SCC_KEY:
            return np.where(self.m.scc[c.sel], FULL, np.uint32(0))
        return np.array(c.S[register - SGPR_KEY, c.sel])

    def _put(self, register: int, c: Cohort, value: np.ndarray) -> None:
        if register < SGPR_KEY:
            c.stamps[register] += 1
            c.V[register, c.sel] = value
        elif register == SCC_KEY:
            self.m.scc[c.sel] = value != 0
        else:
            c.S[register - SGPR_KEY, c.sel] = value
            if register - SGPR_KEY in (EXEC, EXEC + 1):
                c.refresh_exec()

    # --- instructions ---------------------------------------------------------------------

    def execute(self, c: Cohort, run: Run, inst: Instruction, uses: Uses) -> Fault | None:
        """Executes a register instruction and finds out which result bits are undefined.

        Returns a fault if EXEC would be undefined.
        """
        masks = {}
        for register in uses.touched:
            mask = self.mask(register, c) if register in self.undefined else None
            if mask is not None:
                masks[register] = mask
        if not masks:
            run(c)
            return None
        before = {r: self._get(r, c) for r in uses.writes | masks.keys()}
        run(c)
        after = {r: self._get(r, c) for r in before}
        changed = {r: np.zeros_like(after[r]) for r in uses.writes}
        flips = _FLIPS if masks.keys() & uses.reads else _FLIPS[:1]
        for flip in flips:
            for r, old in before.items():
                mask = masks.get(r)
                if mask is not None:
                    old = old & ~mask if flip is None else old ^ (mask & flip)
                self._put(r, c, old)
            run(c)
            for r in uses.writes:
                changed[r] |= self._get(r, c) ^ after[r]
        for r, value in after.items():
            self._put(r, c, value)
        return self._results(c, inst, masks.keys() & uses.reads, changed)

    def _results(self, c: Cohort, inst: Instruction, sources: Iterable[int],
                 changed: dict[int, np.ndarray]) -> Fault | None:  # fmt: skip
        first = min(sources, default=None)
        origin = None if first is None else self.origin.get(first, Origin(first, inst))
        fault = None
        for register, bits in changed.items():
            if register - SGPR_KEY in (EXEC, EXEC + 1):
                if bits.any() and fault is None:
                    fault = Fault([register], bits != 0, int(np.count_nonzero(bits)), origin)
                continue
            if origin is not None and bits.any():
                self.origin[register] = origin
            self._set(register, c, bits)
        return fault

    def access(self, c: Cohort, inst: Instruction, uses: Uses) -> Fault | None:
        """Before a memory operation or jump: whether it depends on undefined bits of its lanes."""
        bad, waves, lanes = [], np.zeros(c.n, np.bool_), 0
        for register in sorted(uses.reads & self.undefined.keys()):
            mask = self.mask(register, c)
            if mask is None:
                continue
            mask &= np.uint32(uses.bits.get(register, 0xFFFFFFFF))
            if mask.ndim == 2 and c.exec is not None:
                mask[~c.exec] = 0
            if mask.any():
                bad.append(register)
                hit = mask != 0
                waves |= hit.any(axis=1) if mask.ndim == 2 else hit
                lanes = max(lanes, int(np.count_nonzero(hit)))
        if not bad:
            return None
        return Fault(bad, waves, lanes, self.origin.get(bad[0], Origin(bad[0], inst)))

    def loaded(self, c: Cohort, uses: Uses) -> None:
        """After a memory operation was issued: what it loads is defined, on active lanes."""
        for register in uses.writes & self.undefined.keys():
            mask = self.mask(register, c)
            if mask is None:
                continue
            kept = ~np.uint32(uses.sets.get(register, 0xFFFFFFFF))
            if mask.ndim == 1 or c.exec is None:
                mask &= kept
            else:
                mask[c.exec] &= kept
            self._set(register, c, mask if mask.any() else None)

    def exchanged(self, c: Cohort, inst: Instruction, registers: tuple[int, int],
                  move: Callable[[np.ndarray], np.ndarray]) -> None:  # fmt: skip
        """A lane exchange `move` between (source, target), on active lanes of the target."""
        source, target = registers
        if source not in self.undefined and target not in self.undefined:
            return
        mask = self.mask(source, c)
        moved = np.zeros((c.n, LANES), np.uint32) if mask is None else move(mask)
        if mask is not None:
            self.origin[target] = self.origin.get(source, Origin(source, inst))
        if c.exec is not None:
            old = self.mask(target, c)
            moved = np.where(c.exec, moved, np.uint32(0) if old is None else old)
        self._set(target, c, moved if moved.any() else None)

    def condition(self, c: Cohort, inst: Instruction) -> Fault | None:
        """Before a conditional branch: whether undefined bits decide it."""
        name = inst.base[len("s_cbranch_") :]
        if name.startswith("scc"):
            keys = [SCC_KEY]
        else:
            first = SGPR_KEY + (VCC if name.startswith("vcc") else EXEC)
            keys = [first, first + 1]
        unknown, known = np.zeros(c.n, np.bool_), np.zeros(c.n, np.bool_)
        for key in keys:
            mask = self.mask(key, c)
            bits = self._get(key, c)
            if mask is not None:
                unknown |= mask != 0
                bits &= ~mask
            known |= bits != 0
        # One bit known to be set decides whether a mask is zero.
        if len(keys) == 2:
            unknown &= ~known
        if not unknown.any():
            return None
        bad = [key for key in keys if key in self.undefined]
        return Fault(bad, unknown, int(unknown.sum()), self.origin.get(bad[0]))


_ABSENT: Any = np.zeros(0, np.uint32)
