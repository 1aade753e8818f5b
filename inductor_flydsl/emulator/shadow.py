"""A shadow of LDS: for each dword, who wrote it last and who has read it, and since when.

Owns the race rules. Time is a workgroup's epoch, the number of its barriers so far. A write or
read lasts from the epoch of its issue to the epoch in which its wave waited for it; two accesses
of different waves, one of them a write, race if their spans meet. Knows nothing of how findings
are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .lds_values import LdsValues

OPEN = (1 << 22) - 1
"""Epoch + 1 of an access that its wave hasn't waited for."""
_LATE = 1 << 8
_EPOCH = 9
_READ = 5
_ITEMS = {4: np.int32, 8: np.int64, 16: np.complex128}


@dataclass(frozen=True)
class Clash:
    """The first of `count` lanes whose access races: byte address, and the other wave's access.

    other: that wave's number in its workgroup. open: its wave hasn't waited for it yet. late: its
    wave waited for it, but only behind a barrier. read: that access is a read.
    """

    row: int
    byte: int
    other: int
    open: bool
    late: bool
    count: int
    read: bool = False


def _parts(addr: np.ndarray, size: int) -> Iterator[tuple[int, np.ndarray]]:
    """Access → (item bytes, item index) that cover its dwords, wide where aligned."""
    if size in (8, 16) and not int(np.bitwise_or.reduce(addr, axis=None)) & (size - 1):
        yield size, addr >> (size.bit_length() - 1)
        return
    for word in range(max(1, size // 4)):
        yield 4, (addr >> 2) + word


class Shadow:
    """The arrays, and the accesses noted in them.

    writer: int32 a dword, (last epoch + 1) << 9 | late << 8 | wave << 4 | bytes; 0 never written.
    reader: int32 [waves of a workgroup, dwords], (last epoch + 1 in which that wave read) << 5 |
    bytes << 1 | late; 0 never.
    All addresses are bytes in the machine's LDS array; `wave` and `epoch` give each row's own.
    """

    def __init__(self, nbytes: int, waves: int) -> None:
        self.dwords = -(-nbytes // 16) * 4
        self.writer = np.zeros(self.dwords, np.int32)
        self.reader = np.zeros(waves * self.dwords, np.int32)
        self.waves = waves
        self.values = LdsValues(nbytes)

    def _gather(self, array: np.ndarray, item: int, index: np.ndarray) -> np.ndarray:
        """int32 [*index.shape, item // 4]."""
        got: np.ndarray = array.view(_ITEMS[item]).take(index)
        return got.view(np.int32).reshape(*index.shape, item // 4)

    def _scatter(self, array: np.ndarray, item: int, index: np.ndarray, value: np.ndarray) -> None:
        words = np.repeat(np.asarray(value, np.int32)[..., None], item // 4, axis=-1)
        array.view(_ITEMS[item])[index] = np.ascontiguousarray(words).view(_ITEMS[item])[..., 0]

    def read(self, addr: np.ndarray, size: int, wave: np.ndarray,
             epoch: np.ndarray) -> tuple[Clash | None, Clash | None]:  # fmt: skip
        """Notes reads at addr [n, L]; wave, epoch [n, 1]. Returns (race, read of unwritten)."""
        race = unwritten = None
        low = int(epoch.min())
        offset = wave * self.dwords
        for item, index in _parts(addr, size):
            code = self._gather(self.writer, item, index)
            if (int(code.max()) >> _EPOCH) > low:
                race = race or self._read_race(addr, size, wave, epoch, code)
            if not code.all():
                unwritten = unwritten or _clash(addr, code == 0, code)
            shift = item // 4
            self._mark_read(item, index + offset // shift, epoch + 1 << _READ, addr, size)
        return race, unwritten

    def _mark_read(self, item: int, index: np.ndarray, code: np.ndarray, addr: np.ndarray,
                   size: int) -> None:  # fmt: skip
        if size >= 4:
            self._scatter(self.reader, item, index, code | 15 << 1)
            return
        old = self._gather(self.reader, item, index)[..., 0]
        same = old >> _READ == code >> _READ
        mask = _bytes(addr, size) | np.where(same, old >> 1 & 15, 0)
        self._scatter(self.reader, item, index, code | mask << 1)

    def _read_race(self, addr: np.ndarray, size: int, wave: np.ndarray, epoch: np.ndarray,
                   code: np.ndarray) -> Clash | None:  # fmt: skip
        late = (code >> _EPOCH) > epoch[..., None]
        mine = (code >> 4 & 15) == wave[..., None]
        # A wave's own DS operations are in order; its LDS-DMA isn't ordered with them.
        late &= ~mine | ((code >> _EPOCH) == OPEN)
        if size < 4:
            late &= (code & 15 & _bytes(addr, size)[..., None]) != 0
        return _clash(addr, late, code)

    def write(self, addr: np.ndarray, size: int, wave: np.ndarray, epoch: np.ndarray,
              data: Sequence[np.ndarray] | None) -> Clash | None:  # fmt: skip
        """Notes writes of words `data` [n, L]; None for an LDS-DMA, which is open until `close`.

        Returns the first race. A write of what is there already races with no other write.
        """
        race, dma = None, data is None
        low = int(epoch.min())
        mask = _bytes(addr, size) if size < 4 else np.full((1, 1), 15, np.int32)
        ends = np.where(dma, OPEN, epoch + 1).astype(np.int32)
        for item, index in _parts(addr, size):
            old = self._gather(self.writer, item, index)
            if (int(old.max()) >> _EPOCH) > low:
                mine = (old >> 4 & 15) == wave[..., None]
                is_open = (old >> _EPOCH) == OPEN
                late = ((old >> _EPOCH) > epoch[..., None]) & ~mine
                if not dma:  # as for reads: its own LDS-DMA may land after this write
                    late |= mine & is_open
                late &= (old & mask[..., None]) != 0
                if data is not None and late.any():
                    late &= self.values.changes(addr, size, data)[..., None] | is_open
                race = race or _clash(addr, late, old)
            race = race or self._readers(addr, (item, index, mask), wave, epoch)
            merged = mask
            if size < 4:  # another half of the dword that this wave wrote in this epoch
                same = (old[..., 0] >> 4) == (ends << 5 | wave)
                merged = mask | np.where(same, old[..., 0] & 15, 0)
            code = ends << _EPOCH | wave << 4 | merged
            self._scatter(self.writer, item, index, code)
        self.values.write(addr, size, data)
        return race or self._together(addr, size, wave, data)

    def _together(self, addr: np.ndarray, size: int, wave: np.ndarray,
                  data: Sequence[np.ndarray] | None) -> Clash | None:  # fmt: skip
        """After a write: waves that go in step may write the same dword in this instruction."""
        if int(wave.min()) == int(wave.max()):
            return None
        mask = _bytes(addr, size) if size < 4 else np.full((1, 1), 15, np.int32)
        for item, index in _parts(addr, size):
            now = self._gather(self.writer, item, index)
            other = ((now >> 4 & 15) != wave[..., None]) & ((now & mask[..., None]) != 0)
            if data is not None and other.any():
                other &= self.values.changes(addr, size, data)[..., None]
            race = _clash(addr, other, now & ~np.int32(_LATE))
            if race:
                return race
        return None

    def _readers(self, addr: np.ndarray, access: tuple[int, np.ndarray, np.ndarray],
                 wave: np.ndarray, epoch: np.ndarray) -> Clash | None:  # fmt: skip
        item, index, mask = access
        for other in range(self.waves):
            seen = self._gather(self.reader, item, index + other * (self.dwords * 4 // item))
            if int(seen.max()) >> _READ <= int(epoch.min()):
                continue
            early = (seen >> _READ > epoch[..., None]) & (wave != other)[..., None]
            early &= (seen >> 1 & mask[..., None]) != 0
            code = (seen >> _READ) << _EPOCH | (seen & 1) * _LATE | other << 4
            # Reads not ended by a barrier come first: they are the graver ones.
            clash = _clash(addr, early & (seen & 1 == 0), code) or _clash(addr, early, code)
            if clash:
                return replace(clash, read=True)
        return None

    def reopen(self, addr: np.ndarray, size: int, wave: np.ndarray, write: bool) -> None:
        """An access not waited for at a barrier: it may still happen behind it."""
        self._set_end(addr, size, wave, np.full_like(wave, OPEN), write=write)

    def close(self, addr: np.ndarray, size: int, wave: np.ndarray,
              epochs: tuple[np.ndarray, np.ndarray], write: bool) -> None:  # fmt: skip
        """The wave has waited for an access that was open; epochs: of its issue, and now."""
        issued, now = epochs
        late = np.where(now > issued, _LATE, 0)
        self._set_end(addr, size, wave, now + 1, write=write, late=late)

    def _set_end(self, addr: np.ndarray, size: int, wave: np.ndarray, end: np.ndarray,
                 *, write: bool, late: np.ndarray | int = 0) -> None:  # fmt: skip
        mask = _bytes(addr, size) if size < 4 else 15
        for item, index in _parts(addr, size):
            if write:
                code = end << _EPOCH | late | wave << 4 | mask
                self._scatter(self.writer, item, index, code)
            else:
                offset = wave * (self.dwords * 4 // item)
                code = end << _READ | (np.asarray(late) != 0)
                self._mark_read(item, index + offset, code, addr, size)

    def fill(self, addr: np.ndarray, size: int, wave: np.ndarray, epoch: np.ndarray) -> None:
        """Notes that atomics made these dwords defined, without taking part in races."""
        for item, index in _parts(addr, size):
            old = self._gather(self.writer, item, index)[..., 0]
            self._scatter(self.writer, item, index, np.where(old == 0, 15, old))


def _bytes(addr: np.ndarray, size: int) -> np.ndarray:
    return (((1 << size) - 1) << (addr & 3)).astype(np.int32)


def _clash(addr: np.ndarray, late: np.ndarray, code: np.ndarray) -> Clash | None:
    if not late.any():
        return None
    at = np.unravel_index(int(late.argmax()), late.shape)
    worst = int(code[at])
    byte = int(addr[at[:-1]]) + 4 * int(at[-1])
    lanes = int(late.any(axis=-1).sum())
    late_wait = bool(worst & _LATE)
    return Clash(int(at[0]), byte, worst >> 4 & 15, worst >> _EPOCH == OPEN, late_wait, lanes)
