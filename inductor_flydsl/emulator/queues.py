"""Memory operations in flight, and when they land.

Owns vmcnt and lgkmcnt. Operations of one wave land in issue order within VM and within DS; scalar
loads land in any order, so only lgkmcnt(0) covers them (LLVM AMDGPU memory model, gfx90a-gfx942).
gfx950 counts loads, stores and LDS-DMA alike in vmcnt. Knows nothing of instructions: an entry
carries a function that makes it land.

Queues hold disjoint sets of waves, and every entry of a queue covers all of its queue's waves;
so a queue's length is the counter of each of its waves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .state import Machine, WaveSet

if TYPE_CHECKING:
    import random

    from .asm import Instruction

VM, DS, SMEM = "vmcnt", "ds", "smem"
# Counter widths of gfx9-gfx950: vmcnt 6 bits, lgkmcnt 4; issue stalls where one is full.
VM_LIMIT, LGKM_LIMIT = 63, 15

LandFn = Callable[..., Any]


class Entry:
    """One operation in flight. `arrays` have the wave axis first (or are None).

    regs: what it writes when it lands. stores: whether a DS operation writes LDS. landed: its
    effect has happened though no wait has covered it yet.
    """

    __slots__ = ("arrays", "inst", "kind", "land", "landed", "marks", "note", "regs", "stores",
                 "waves")  # fmt: skip

    def __init__(self, kind: str, waves: WaveSet, land: LandFn,
                 arrays: tuple[np.ndarray | None, ...], inst: Instruction,
                 *, regs: tuple[int, ...] = (), stores: bool = False) -> None:  # fmt: skip
        self.kind = kind
        self.waves = waves
        self.land = land
        self.arrays = arrays
        self.inst = inst
        self.regs = regs
        self.stores = stores
        self.landed = False
        self.marks: Any = None
        self.note: Any = None

    def split(self, waves: WaveSet, rows: np.ndarray) -> Entry:
        """The part of this entry that belongs to `waves`, which are its `rows`."""
        arrays = tuple(None if a is None else a[rows] for a in self.arrays)
        part = Entry(
            self.kind, waves, self.land, arrays, self.inst, regs=self.regs, stores=self.stores
        )
        part.landed, part.note = self.landed, self.note
        if self.marks is not None:
            part.marks = tuple(None if a is None else a[rows] for a in self.marks)
        return part


class _Queue:
    __slots__ = ("entries", "waves")

    def __init__(self, waves: WaveSet) -> None:
        self.waves = waves
        self.entries: list[Entry] = []


class _Counter:
    """The queues of one hardware counter."""

    def __init__(self) -> None:
        self.queues: dict[Any, _Queue] = {}

    def covering(self, waves: WaveSet) -> list[_Queue]:
        """Queues that together hold what `waves` have in flight, cut to fit inside `waves`."""
        queue = self.queues.get(waves.key)
        if queue is not None:
            return [queue]
        if not self.queues:
            return []
        found = []
        for queue in list(self.queues.values()):
            if not queue.waves.overlaps(waves):
                continue
            inside = np.isin(queue.waves.idx, waves.idx)
            found.append(queue if inside.all() else self.cut(queue, inside))
        return found

    def cut(self, queue: _Queue, inside: np.ndarray) -> _Queue:
        """Splits `queue` in two; returns the part inside."""
        del self.queues[queue.waves.key]
        parts = []
        for mask in (inside, ~inside):
            rows = np.flatnonzero(mask)
            part = _Queue(WaveSet(queue.waves.idx[rows]))
            part.entries = [entry.split(part.waves, rows) for entry in queue.entries]
            self.queues[part.waves.key] = part
            parts.append(part)
        return parts[0]

    def push(self, entry: Entry) -> list[_Queue]:
        """Adds an entry; returns the queues that now hold it."""
        held = self.covering(entry.waves)
        if len(held) == 1 and held[0].waves.key == entry.waves.key:
            held[0].entries.append(entry)
            return held
        covered = np.zeros(0, np.int64)
        for queue in held:
            rows = np.flatnonzero(np.isin(entry.waves.idx, queue.waves.idx))
            queue.entries.append(entry.split(queue.waves, rows))
            covered = np.concatenate([covered, queue.waves.idx])
        rows = np.flatnonzero(~np.isin(entry.waves.idx, covered))
        if len(rows):
            queue = _Queue(WaveSet(entry.waves.idx[rows]))
            whole = queue.waves.key == entry.waves.key
            queue.entries.append(entry if whole else entry.split(queue.waves, rows))
            self.queues[queue.waves.key] = queue
            held.append(queue)
        return held


class Queues:
    """All operations in flight of a machine; `landing` is "eager", "lazy" or "random"."""

    def __init__(self, machine: Machine, landing: str, rng: random.Random) -> None:
        self.m = machine
        self.landing = landing
        self.rng = rng
        self.eager = landing == "eager"
        self.vm, self.lgkm = _Counter(), _Counter()
        self.late_stores = 0
        self.ended: list[Entry] = []

    def issue(self, entry: Entry) -> None:
        """Puts an operation in flight; makes it land at once where landing is eager."""
        hazards = self.m.hazards
        if self.eager:
            entry.land(self.m, entry.waves.sel, *entry.arrays)
            if hazards is None:
                return
            entry.landed = True
        elif entry.stores:
            self.late_stores += entry.waves.n
        if hazards is not None:
            hazards.issued(entry)
        counter, limit = (self.vm, VM_LIMIT) if entry.kind is VM else (self.lgkm, LGKM_LIMIT)
        for queue in counter.push(entry):
            if len(queue.entries) > limit:
                self._land(counter, queue, queue.entries[0])

    def order_ds(self, waves: WaveSet) -> None:
        """Before a DS read takes its data: earlier DS writes of its waves reach LDS."""
        if not self.late_stores:
            return
        for queue in self.lgkm.covering(waves):
            for entry in queue.entries:
                if entry.stores and not entry.landed:
                    self._take_effect(entry)
                    entry.landed = True

    def wait_vm(self, waves: WaveSet, count: int) -> None:
        """s_waitcnt vmcnt(count) for `waves`."""
        if self.vm.queues:
            for queue in self.vm.covering(waves):
                self._trim(self.vm, queue, count)

    def wait_lgkm(self, waves: WaveSet, count: int) -> None:
        """s_waitcnt lgkmcnt(count): count > 0 covers only all but the newest `count` DS ops."""
        if not self.lgkm.queues:
            return
        for queue in self.lgkm.covering(waves):
            if count == 0:
                self._trim(self.lgkm, queue, 0)
                continue
            ds = [entry for entry in queue.entries if entry.kind is DS]
            for entry in ds[: max(0, len(ds) - count)]:
                self._land(self.lgkm, queue, entry)

    def land_all(self, waves: WaveSet) -> None:
        """Lands whatever `waves` and ended waves have in flight: time enough has passed."""
        self.wait_vm(waves, 0)
        self.wait_lgkm(waves, 0)
        self.land_ended()

    def retire(self, waves: WaveSet) -> None:
        """Waves have ended: nothing promises when what they stored lands, but for the launch's end.

        So it is held back, for other waves to miss it that read it too early.
        """
        for queue in self.vm.covering(waves):
            for entry in queue.entries:
                base = entry.inst.base
                if not entry.landed and ("_store" in base or "_atomic" in base):
                    entry.landed = True
                    self.ended.append(entry)
        self.wait_vm(waves, 0)
        self.wait_lgkm(waves, 0)

    def land_ended(self) -> None:
        """Lands the stores of ended waves."""
        for entry in self.ended:
            self._take_effect(entry)
        self.ended.clear()

    def land_random(self, waves: WaveSet) -> None:
        """Lands one operation that hardware might land next."""
        counter = self.vm if self.rng.random() < 0.5 else self.lgkm
        for queue in counter.covering(waves):
            first = next((e for e in queue.entries if e.kind is not SMEM), None)
            scalar = [entry for entry in queue.entries if entry.kind is SMEM]
            choices = scalar + ([first] if first else [])
            if choices:
                self._land(counter, queue, self.rng.choice(choices))

    def pending(self, waves: WaveSet) -> list[Entry]:
        """Entries in flight of `waves`, oldest first within a counter."""
        found = []
        for counter in (self.vm, self.lgkm):
            for queue in counter.covering(waves):
                found += queue.entries
        return found

    def _trim(self, counter: _Counter, queue: _Queue, count: int) -> None:
        entries = queue.entries
        for entry in entries[: max(0, len(entries) - count)]:
            self._land(counter, queue, entry)

    def _land(self, counter: _Counter, queue: _Queue, entry: Entry) -> None:
        queue.entries.remove(entry)
        if not queue.entries:
            del counter.queues[queue.waves.key]
        if not entry.landed:
            self._take_effect(entry)
        if self.m.hazards is not None:
            self.m.hazards.landed(entry)

    def _take_effect(self, entry: Entry) -> None:
        if entry.stores:
            self.late_stores -= entry.waves.n
        entry.land(self.m, entry.waves.sel, *entry.arrays)
