"""Host memory that kernels may touch, and vectorised access to it and to LDS.

Owns registered regions of real 64-bit host addresses and the gather/scatter over lanes. Knows
nothing of instructions, waves or wait counters. Nothing outside a region is ever dereferenced.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .errors import LaunchError

_VIEWS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64, 16: np.complex128}


@dataclass
class Region:
    """`nbytes` bytes at host address `base`; `data` is a uint8 view of them."""

    name: str
    base: int
    nbytes: int
    writable: bool
    data: np.ndarray = field(repr=False)
    owner: Any = field(default=None, repr=False)
    views: dict[int, np.ndarray] = field(default_factory=dict, repr=False)

    def view(self, size: int) -> np.ndarray:
        """The region as elements of `size` bytes (1, 2, 4, 8 or 16) from its start."""
        found = self.views.get(size)
        if found is None:
            found = self.data[: self.nbytes // size * size].view(_VIEWS[size])
            self.views[size] = found
        return found


class Outside(Exception):
    """Some active lanes are outside every region (or not writable): `lanes` is bool like addr."""

    def __init__(self, lanes: np.ndarray) -> None:
        super().__init__("access outside every registered region")
        self.lanes = lanes


class Memory:
    """Registered regions of host memory.

    `add` wraps raw memory without a copy: the caller keeps it alive and mapped while kernels run.
    Memory may be registered again, whole or in part, as a tensor that is passed twice is.
    """

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self.bytes_read = 0
        self.bytes_written = 0
        self._last: Region | None = None

    def add(self, address: int, nbytes: int, name: str, writable: bool = True) -> Region:
        """Registers `nbytes` bytes at host `address`. Raises LaunchError on overlap or null."""
        if address <= 0 or nbytes < 0:
            raise LaunchError(f"region {name!r}: address {address:#x}, {nbytes} bytes is not valid")
        buffer = (ctypes.c_uint8 * nbytes).from_address(address)
        data = np.ctypeslib.as_array(buffer)
        return self._insert(Region(name, address, nbytes, writable, data, buffer))

    def add_array(self, array: np.ndarray, name: str, writable: bool = True) -> Region:
        """Registers a C-contiguous array's memory; returns its region (`.base` is its address)."""
        if not array.flags.c_contiguous:
            raise LaunchError(f"region {name!r}: the array is not C-contiguous; make a copy of it")
        address = array.__array_interface__["data"][0]
        data = array.reshape(-1).view(np.uint8)
        writable = writable and array.flags.writeable
        return self._insert(Region(name, address, array.nbytes, writable, data, array))

    def remove(self, region: Region) -> None:
        """Forgets a region; one that lay inside of another was never kept."""
        self.regions = [other for other in self.regions if other is not region]
        self._last = None

    def _insert(self, region: Region) -> Region:
        for other in self.regions:
            if (
                other.base <= region.base
                and region.base + region.nbytes <= other.base + other.nbytes
                and other.writable >= region.writable
            ):
                return region  # a view of memory that is there already
            if region.base < other.base + other.nbytes and other.base < region.base + region.nbytes:
                raise LaunchError(
                    f"region {region.name!r} at {region.base:#x} overlaps {other.name!r}; "
                    "remove the old one first"
                )
        self.regions.append(region)
        return region

    def find(self, low: int, high: int) -> Region | None:
        """The region that holds [low, high), or None."""
        last = self._last
        if last is not None and low >= last.base and high <= last.base + last.nbytes:
            return last
        for region in self.regions:
            if low >= region.base and high <= region.base + region.nbytes:
                self._last = region
                return region
        return None

    # --- lanes ----------------------------------------------------------------------------

    def gather(self, addr: np.ndarray, size: int, active: np.ndarray | None) -> np.ndarray:
        """Reads `size` bytes at int64 `addr` [n, 64] → uint32 [ceil(size/4), n, 64].

        Inactive lanes give 0. Raises Outside if an active lane is in no region.
        """
        words = max(1, size // 4)
        if active is not None:
            flat = addr[active]
            out = np.zeros((words, *addr.shape), np.uint32)
            if flat.size:
                self.bytes_read += flat.size * size
                out[:, active] = self._gather(flat, size, active)
            return out
        self.bytes_read += addr.size * size
        return self._gather(addr, size, None)

    def _gather(self, addr: np.ndarray, size: int, active: np.ndarray | None) -> np.ndarray:
        region = self.find(int(addr.min()), int(addr.max()) + size)
        if region is not None:
            return gather_flat(region.view, region.base, addr, size)
        out = np.zeros((max(1, size // 4), *addr.shape), np.uint32)
        for region, mask in self._by_region(addr, size, active, write=False):
            out[:, mask] = gather_flat(region.view, region.base, addr[mask], size)
        return out

    def scatter(self, addr: np.ndarray, size: int, data: np.ndarray,
                active: np.ndarray | None) -> None:  # fmt: skip
        """Writes uint32 [words, n, 64] to int64 `addr` [n, 64]; the highest lane wins a clash.

        Raises Outside, having written nothing, if an active lane is in no writable region.
        """
        if active is not None:
            addr, data = addr[active], data[:, active]
            if not addr.size:
                return
        self.bytes_written += addr.size * size
        region = self.find(int(addr.min()), int(addr.max()) + size)
        if region is not None and region.writable:
            scatter_flat(region.view, region.base, addr, size, data)
            return
        parts = list(self._by_region(addr, size, active, write=True))
        for part, mask in parts:
            scatter_flat(part.view, part.base, addr[mask], size, data[:, mask])

    def _by_region(self, addr: np.ndarray, size: int, active: np.ndarray | None,
                   write: bool) -> list[tuple[Region, np.ndarray]]:  # fmt: skip
        left = np.ones(addr.shape, np.bool_)
        parts = []
        for region in self.regions:
            if write and not region.writable:
                continue
            inside = (addr >= region.base) & (addr + size <= region.base + region.nbytes)
            if inside.any():
                parts.append((region, inside))
                left &= ~inside
        if left.any():
            if active is None:
                raise Outside(left)
            lanes = np.zeros(active.shape, np.bool_)
            lanes[active] = left
            raise Outside(lanes)
        return parts

    def items(self, addr: np.ndarray, size: int) -> np.ndarray | None:
        """Reads aligned elements of `size` bytes from one region, as they are; else None."""
        region = self.find(int(addr.min()), int(addr.max()) + size)
        if region is None:
            return None
        offset = addr - region.base
        if _step(offset, size, region.base) != size:
            return None
        self.bytes_read += addr.size * size
        return region.view(size).take(offset >> (size.bit_length() - 1))

    def element(self, address: int, size: int) -> tuple[np.ndarray, int] | None:
        """(array of size-byte elements, index) for one address, None outside or misaligned."""
        region = self.find(address, address + size)
        if region is None or (address - region.base) % size:
            return None
        return region.view(size), (address - region.base) // size


View = Callable[[int], np.ndarray]


def _step(offset: np.ndarray, size: int, base: int) -> int:
    """Largest element size (≤ 16) that divides the access and aligns all offsets and the base.

    numpy copies the whole of an array that isn't aligned to its elements, hence the base.
    """
    bits = int(np.bitwise_or.reduce(offset, axis=None)) | size | 16 | (base & 15)
    return bits & -bits


def gather_flat(view: View, base: int, addr: np.ndarray, size: int) -> np.ndarray:
    """Reads from one flat memory: addr any shape → uint32 [ceil(size/4), *shape]."""
    offset = addr - base if base else addr
    step = _step(offset, size, base)
    memory = view(step)
    if step < 4:
        return _gather_narrow(memory, offset, size, step)
    index = offset >> (step.bit_length() - 1)
    if step == size == 4:
        return memory.take(index)[None]
    words = step // 4
    out = np.empty((size // 4, *addr.shape), np.uint32)
    for part in range(size // step):
        item = memory.take(index + part if part else index)
        if words == 1:
            out[part] = item
        else:
            lanes = item.view(np.uint32).reshape(*addr.shape, words)
            for word in range(words):
                out[part * words + word] = lanes[..., word]
    return out


def _gather_narrow(memory: np.ndarray, offset: np.ndarray, size: int, step: int) -> np.ndarray:
    index = offset >> (step.bit_length() - 1)
    out = np.zeros((max(1, size // 4), *offset.shape), np.uint32)
    for part in range(size // step):
        at = part * step
        item = memory.take(index + part).astype(np.uint32)
        out[at // 4] |= item << np.uint32(8 * (at % 4))
    return out


def scatter_flat(view: View, base: int, addr: np.ndarray, size: int,
                 data: Sequence[np.ndarray] | np.ndarray) -> None:  # fmt: skip
    """Writes uint32 [ceil(size/4), *shape] to one flat memory."""
    offset = addr - base if base else addr
    step = min(_step(offset, size, base), 4)
    memory = view(step)
    index = offset >> (step.bit_length() - 1)
    for part in range(size // step):
        at = part * step
        item = data[at // 4]
        if step < 4:
            item = (item >> np.uint32(8 * (at % 4))).astype(memory.dtype)
        memory[index + part if part else index] = item
