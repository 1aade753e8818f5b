"""One CU, clock by clock where something happens: waves, their SIMDs, LDS and vector memory.

Owns the issue rules and the queues. A wave issues in order, a SIMD takes one instruction of each
class a turn, from different waves; among waves that could, the highest s_setprio goes first, then
the oldest. Knows nothing of instructions beyond their micro-operations, nor of other CUs: what
they leave of L2 and memory is in `Memory`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from . import uops as u
from .facts import GFX950, Facts

_TIME = 20
"""Heap keys: time above these bits, then priority and age of the wave."""


@dataclass(frozen=True)
class MemoryShare:
    """A CU's share of the memory: clocks of a load's and of a store's round trip, bytes a clock.

    exchange_latency, exchange_bytes_per_clock: of what workgroups leave for one another, which
    goes past L2.
    """

    latency: int
    store_latency: int
    bytes_per_clock: float
    exchange_latency: int
    exchange_bytes_per_clock: float


class _Group:
    """A workgroup on the CU, and what it gets of the memory."""

    def __init__(self, waves: int, share: MemoryShare) -> None:
        self.alive, self.share = waves, share
        self.waiting: list[_Wave] = []
        self.arrived = 0


class _Wave:
    __slots__ = ("age", "ds", "group", "i", "key", "marks", "ops", "pair", "prio", "ready", "simd",
                 "smem", "vm")  # fmt: skip

    def __init__(self, ops: Sequence[u.Uop], group: _Group, age: int, simd: int) -> None:
        self.ops, self.group, self.age, self.simd = ops, group, age, simd
        self.pair = simd >> 1
        self.i = 0
        self.ready: dict[int, int] = {}
        self.vm: list[int] = []
        self.ds: list[int] = []
        self.smem = 0
        self.marks: list[tuple[int, int]] = []
        self.prio = 0
        self.key = 3 << 16 | age


class CU:
    """Runs workgroups to their end. All times are clocks from the first wave's start."""

    def __init__(self, facts: Facts = GFX950) -> None:
        self.facts = facts
        simds = facts.simds
        self.valu = [0] * simds
        self.salu = [0] * simds
        self.matrix = [0] * simds
        self.lds_port = [0] * simds
        self.vmem_port = [0] * simds
        self.bus = [0] * (simds // 2)
        self.fifo: list[deque[int]] = [deque() for _ in range(simds // 2)]
        self.core = 0
        self.port = 0
        self.dma: deque[tuple[int, int]] = deque()
        self.dma_free = 0
        self.address = 0
        self.queue: deque[int] = deque()
        self.flight: deque[tuple[int, int]] = deque()
        self.in_flight = 0
        self.returned = 0.0
        self.stored = 0.0
        self.waves: list[_Wave] = []
        self.heap: list[int] = []
        self.end = 0
        self.busy = dict.fromkeys(("mfma", "valu", "lds", "lds write", "bus", "vmem", "memory"), 0)
        self.stalls: dict[str, int] = {}
        self.pending: deque[tuple[Sequence[Sequence[u.Uop]], MemoryShare]] = deque()
        self.next_simd = 0
        self.handlers = [
            self._valu, self._matrix, self._salu, self._branch, self._ds, self._vmem, self._smem,
            self._wait, self._barrier, self._priority, self._idle, self._finish, self._mark,
        ]  # fmt: skip

    def run(self, groups: Sequence[tuple[Sequence[Sequence[u.Uop]], MemoryShare]],
            resident: int) -> int:  # fmt: skip
        """Clocks until all `groups` have ended: their waves' micro-operations, and what they get.

        resident: workgroups on the CU at a time; the next starts where one has ended.
        """
        self.pending.extend(groups)
        for _ in range(min(resident, len(groups))):
            self._start(0)
        heap, handlers, waves = self.heap, self.handlers, self.waves
        mask = (1 << 16) - 1
        while heap:
            key = heapq.heappop(heap)
            wave = waves[key & mask]
            op = wave.ops[wave.i]
            then = handlers[op[0]](wave, op, key >> _TIME)
            if then >= 0:
                heapq.heappush(heap, (then + 3 & -4) << _TIME | wave.key)
        return self.end

    def _start(self, now: int) -> None:
        if not self.pending:
            return
        programs, share = self.pending.popleft()
        group = _Group(len(programs), share)
        for ops in programs:
            wave = _Wave(ops, group, len(self.waves), self.next_simd)
            self.next_simd = (self.next_simd + 1) % self.facts.simds
            self.waves.append(wave)
            heapq.heappush(self.heap, (now + 3 & -4) << _TIME | wave.key)

    def _stall(self, why: str, clocks: int) -> None:
        self.stalls[why] = self.stalls.get(why, 0) + clocks

    def _dependency(self, wave: _Wave, depends: tuple[int, ...], now: int) -> int:
        """When MFMA results that an instruction touches are there."""
        ready = wave.ready
        when = now
        for base in depends:
            at = ready.get(base, 0)
            if at > when:
                when = at
        return when

    # --- arithmetic -----------------------------------------------------------------------

    def _valu(self, wave: _Wave, op: u.Uop, now: int) -> int:
        simd = wave.simd
        when = self.valu[simd]
        if when > now:
            self._stall("issue", when - now)
            return when
        if op[2] and wave.ready:
            when = self._dependency(wave, op[2], now)
            if when > now:
                self._stall("mfma result", when - now)
                return when
        self.valu[simd] = now + op[1]
        self.busy["valu"] += op[1]
        wave.i += 1
        return now + 4

    def _matrix(self, wave: _Wave, op: u.Uop, now: int) -> int:
        _, clocks, blocked, depends, result, latency = op
        simd = wave.simd
        when = self.matrix[simd]
        if when > now:
            self._stall("mfma", when - now)
            return when
        when = self.valu[simd]
        if when > now:
            self._stall("issue", when - now)
            return when
        if depends:
            when = self._dependency(wave, depends, now)
            if when > now:
                self._stall("mfma result", when - now)
                return when
        self.matrix[simd] = now + clocks
        self.valu[simd] = now + blocked
        self.busy["mfma"] += clocks
        wave.ready[result] = now + latency
        wave.i += 1
        return now + 4

    def _salu(self, wave: _Wave, op: u.Uop, now: int) -> int:
        when = self.salu[wave.simd]
        if when > now:
            self._stall("issue", when - now)
            return when
        self.salu[wave.simd] = now + 4
        wave.i += 1
        return now + 4

    def _branch(self, wave: _Wave, op: u.Uop, now: int) -> int:
        wave.i += 1
        return now + op[1]

    # --- memory ---------------------------------------------------------------------------

    def _ds(self, wave: _Wave, op: u.Uop, now: int) -> int:
        _, core, bus, write, depends = op
        pair = wave.pair
        fifo = self.fifo[pair]
        while fifo and fifo[0] <= now:
            fifo.popleft()
        if len(fifo) >= self.facts.lds_fifo:
            self._stall("lds", fifo[0] - now)
            return fifo[0]
        when = self.lds_port[wave.simd]
        if when > now:
            self._stall("issue", when - now)
            return when
        if depends and wave.ready:
            when = self._dependency(wave, depends, now)
            if when > now:
                self._stall("mfma result", when - now)
                return when
        if write:
            begin = self._write_port(now + 4, core)
        else:
            begin = max(now + 4, self.core)
            self.core = begin + core
            self.busy["lds"] += core
        served = max(begin, self.bus[pair])
        self.bus[pair] = served + bus
        fifo.append(served)
        done = max(begin + core, served + bus) + self.facts.lds_latency
        if wave.ds and wave.ds[-1] > done:
            done = wave.ds[-1]
        wave.ds.append(done)
        self.lds_port[wave.simd] = now + 4
        self.busy["bus"] += bus
        wave.i += 1
        return now + 4

    def _write_port(self, now: int, clocks: int) -> int:
        """Takes the LDS write port from `now` on; DMAs that have landed by then go first."""
        port = self.port
        while self.dma and self.dma[0][0] <= max(port, now):
            at, written = self.dma.popleft()
            port = max(port, at) + written
        begin = max(now, port)
        self.port = begin + clocks
        self.busy["lds write"] += clocks
        return begin

    def _vmem(self, wave: _Wave, op: u.Uop, now: int) -> int:
        _, issue, moved, missed, written, store, depends, exchange = op
        queue = self.queue
        while queue and queue[0] <= now:
            queue.popleft()
        if len(queue) >= self.facts.vmem_queue:
            self._stall("vmem issue", queue[0] - now)
            return queue[0]
        when = self.vmem_port[wave.simd]
        if when > now:
            self._stall("issue", when - now)
            return when
        if depends and wave.ready:
            when = self._dependency(wave, depends, now)
            if when > now:
                self._stall("mfma result", when - now)
                return when
        begin = max(now + 4, self.address)
        if not store and missed:
            begin = self._room(begin, missed)
        self.address = begin + issue
        self.busy["vmem"] += issue
        queue.append(begin)
        sent = begin + issue
        share = wave.group.share
        rate = share.exchange_bytes_per_clock if exchange else share.bytes_per_clock
        if store:
            self.stored = max(float(sent), self.stored) + moved / rate
            done = int(self.stored) + (share.exchange_latency if exchange else share.store_latency)
        else:
            latency = share.exchange_latency if exchange else share.latency
            done = self._load(sent, missed, latency, missed / rate)
        if written:
            self.dma_free = max(self.dma_free, done) + written
            self.dma.append((done, written))
            self.busy["lds write"] += written
            done = self.dma_free
        if wave.vm and wave.vm[-1] > done:
            done = wave.vm[-1]
        wave.vm.append(done)
        self.vmem_port[wave.simd] = now + 4
        wave.i += 1
        return now + 4

    def _room(self, now: int, size: int) -> int:
        """When there is room for `size` more bytes in flight."""
        flight, limit = self.flight, self.facts.vmem_in_flight
        while flight and flight[0][0] <= now:
            self.in_flight -= flight.popleft()[1]
        while flight and self.in_flight + size > limit:
            at, landed = flight.popleft()
            self.in_flight -= landed
            now = max(now, at)
        return now

    def _load(self, sent: int, missed: int, latency: int, clocks: float) -> int:
        """When a load that was sent has its data; loads return in order."""
        if not missed:
            return max(sent + self.facts.l1_latency, int(self.returned))
        self.returned = max(float(sent + latency), self.returned + clocks)
        self.busy["memory"] += int(clocks)
        done = int(self.returned)
        self.flight.append((done, missed))
        self.in_flight += missed
        return done

    def _smem(self, wave: _Wave, op: u.Uop, now: int) -> int:
        wave.smem = max(wave.smem, now + self.facts.scalar_latency)
        wave.i += 1
        return now + 4

    # --- flow -----------------------------------------------------------------------------

    def _wait(self, wave: _Wave, op: u.Uop, now: int) -> int:
        _, vm, lgkm = op
        when, why = now, ""
        over = len(wave.vm) - vm
        if over > 0:
            if wave.vm[over - 1] > when:
                when, why = wave.vm[over - 1], "vmem"
            del wave.vm[:over]
        if lgkm != u.NO_WAIT:
            over = len(wave.ds) - lgkm
            if over > 0:
                if wave.ds[over - 1] > when:
                    when, why = wave.ds[over - 1], "lds"
                del wave.ds[:over]
            if not lgkm and wave.smem > when:
                when, why = wave.smem, "scalar"
        if why:
            self._stall(why, when - now)
        wave.i += 1
        return max(when, now + 4)

    def _barrier(self, wave: _Wave, op: u.Uop, now: int) -> int:
        group = wave.group
        wave.i += 1
        wave.marks.append((-1, now))
        group.waiting.append(wave)
        if len(group.waiting) == group.alive:
            self._release(group, now)
        return -1

    def _release(self, group: _Group, now: int) -> None:
        then = now + self.facts.barrier
        for wave in group.waiting:
            arrived = wave.marks.pop()[1]
            self._stall("barrier", then - arrived)
            heapq.heappush(self.heap, (then + 3 & -4) << _TIME | wave.key)
        group.waiting = []

    def _priority(self, wave: _Wave, op: u.Uop, now: int) -> int:
        wave.prio = op[1]
        wave.key = (3 - op[1]) << 16 | wave.age
        wave.i += 1
        return now + 4

    def _idle(self, wave: _Wave, op: u.Uop, now: int) -> int:
        wave.i += 1
        return now + op[1]

    def _mark(self, wave: _Wave, op: u.Uop, now: int) -> int:
        wave.marks.append((now, self.busy["mfma"]))
        wave.i += 1
        return now

    def _finish(self, wave: _Wave, op: u.Uop, now: int) -> int:
        group = wave.group
        group.alive -= 1
        last = max(now + 4, wave.vm[-1] if wave.vm else 0)
        self.end = max(self.end, last)
        if group.alive == 0:
            self._start(now + 4)
        elif len(group.waiting) == group.alive:
            self._release(group, now)
        return -1
