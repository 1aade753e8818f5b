"""How the times of several candidates are taken so that they can be compared.

Owns the number of operand sets in a rotation, what one sample is on each clock, the order of the
rounds, and when a candidate is given up. Knows nothing of kernels, numbers or records.

Candidates take turns: a GPU that warms up or is shared slows all of them, not the last ones.
Every launch finds its operands outside of the caches, as it does in a model: it takes the next
of several sets that together are larger. On a GPU a sample is the replay of a captured graph, so
that the host's time is not in it.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .devices.base import Clock, Device
from .problem import GemmProblem
from .samples import operand_bytes

Call = Callable[[], None]
Sample = Callable[[], float]

ROUNDS = 21
# Before that many rounds no candidate is given up, and quartiles mean little.
MIN_ROUNDS = 4
# A candidate whose best sample is this much over the leader's median will not win: the medians
# of one kernel measured twice on a busy GPU differ by less than a tenth.
HOPELESS = 1.25
# A replay of this many launches is well over the event clock's resolution of about a µs.
LAUNCHES = 16
MAX_SETS = 1024
# The wall clock needs fewer: it resolves a launch, and a CPU's launch costs a thousand times more.
CPU_LAUNCHES = CPU_SETS = 4
# Share of the free memory that a rotation may take; the user's own program goes on beside it.
MEMORY_SHARE = 0.25
WARM_UP = 3
# Caches of a server's CPU, for the wall clock.
CPU_CACHE_BYTES = 32 << 20


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """How many operand sets a launch is timed over.

    Attributes:
        sets: 0 where not even one fits; ``note`` then says so.
        note: what keeps the rotation from exceeding the caches, or empty.
    """

    sets: int
    note: str = ""


def rotation(
    problem: GemmProblem, cache_bytes: int, free_bytes: int, clock: Clock = Clock.GPU_EVENT
) -> Rotation:
    """The smallest rotation that is twice as large as the caches, within the free memory.

    Args:
        problem: the GEMM.
        cache_bytes: of every cache between the memory and the kernel; 0 asks for one set.
        free_bytes: what the device could still allocate.
        clock: what launches are timed with; on the wall clock a few sets are enough.
    """
    size = operand_bytes(problem)
    fit = int(free_bytes * MEMORY_SHARE) // size
    if fit == 0 and size > free_bytes // 2:
        note = f"the operands take {_mib(size)}, {_mib(free_bytes)} are free"
        return Rotation(sets=0, note=note)
    wanted = max(1, -(-2 * cache_bytes // size))
    if clock is Clock.WALL:
        wanted = min(wanted, CPU_SETS)
    sets = max(1, min(wanted, fit, MAX_SETS))
    if sets == wanted:
        return Rotation(sets=sets)
    why = f"{_mib(free_bytes)} are free" if sets < MAX_SETS else f"at most {MAX_SETS} are used"
    note = f"{sets} operand sets instead of {wanted} ({why}): caches may be warm"
    return Rotation(sets=sets, note=note)


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def free_bytes(device: Device) -> int:
    """Memory that a tensor of the device could still take."""
    if device.torch_device.partition(":")[0] == "cuda":
        import torch

        where = torch.device(device.torch_device)
        held = torch.cuda.memory_reserved(where) - torch.cuda.memory_allocated(where)
        return torch.cuda.mem_get_info(where)[0] + held
    try:
        with open("/proc/meminfo") as lines:
            known = dict(line.split(":", 1) for line in lines)
        return int(known["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        # No Linux, no limit that could be told.
        return 1 << 40


def cache_bytes(device: Device) -> int:
    """Bytes of cache that a rotation must exceed on the device's clock."""
    if device.clock is Clock.EMULATED:
        return 0
    if device.clock is Clock.WALL:
        return CPU_CACHE_BYTES
    return device.arch.infinity_cache_bytes + device.arch.l2_bytes_per_xcd * device.arch.xcds


def sampler(device: Device, calls: Sequence[Call]) -> Sample:
    """A function that runs all of `calls` in turn and returns µs a launch.

    Args:
        device: whose clock is read; not the emulator, whose clock repeats exactly.
        calls: each launches one kernel, on an operand set of its own.
    """
    least = CPU_LAUNCHES if device.clock is Clock.WALL else LAUNCHES
    # Whole turns: calls that differ, as splits of a grouped problem do, count the same.
    launches = [*calls] * -(-least // len(calls))
    if device.clock is Clock.GPU_EVENT:
        return _graph_sampler(device.torch_device, launches)
    for call in launches[:WARM_UP]:
        call()

    def sample() -> float:
        start = time.perf_counter()
        for call in launches:
            call()
        return (time.perf_counter() - start) * 1e6 / len(launches)

    return sample


@functools.cache
def _side_stream(torch_device: str) -> Any:
    """One for all candidates: torch keeps a BLAS workspace for every stream that it has seen."""
    import torch

    return torch.cuda.Stream(torch.device(torch_device))


def _graph_sampler(torch_device: str, launches: Sequence[Call]) -> Sample:
    import torch

    where = torch.device(torch_device)
    with torch.cuda.device(where):
        side = _side_stream(torch_device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for call in launches[:WARM_UP]:
                call()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in launches:
                call()
        graph.replay()
        torch.cuda.synchronize()
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def sample() -> float:
        with torch.cuda.device(where):
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
        return start.elapsed_time(stop) * 1e3 / len(launches)

    return sample


@dataclass
class Race:
    """Times of candidates that take turns.

    Attributes:
        samples: µs by candidate, in the order in which they were taken.
        failed: what a candidate's sample raised, by candidate.
        given_up: candidates that were stopped early, and what was ahead of them (µs).
    """

    samples: dict[Any, list[float]]
    failed: dict[Any, Exception]
    given_up: dict[Any, float]

    def median(self, candidate: Any) -> float:
        return statistics.median(self.samples[candidate])

    def spread(self, candidate: Any) -> float:
        """Half the distance between the quartiles; of few samples, half their range."""
        values = sorted(self.samples[candidate])
        if len(values) < MIN_ROUNDS:
            return (values[-1] - values[0]) / 2
        low, _, high = statistics.quantiles(values, n=4)
        return (high - low) / 2


def race(
    samplers: dict[Any, Sample],
    *,
    rounds: int = ROUNDS,
    over: Callable[[], bool] = lambda: False,
    begin: Callable[[Any], None] = lambda candidate: None,
) -> Race:
    """Take samples of all candidates in interleaved rounds.

    A candidate is given up after MIN_ROUNDS if even its best sample is HOPELESS times the median
    of the fastest. A candidate that raises leaves the race.

    Args:
        samplers: µs by candidate.
        rounds: at most.
        over: asked after every round; True ends the race with what there is.
        begin: told of every sample before it is taken.
    """
    result = Race({c: [] for c in samplers}, {}, {})
    live = list(samplers)
    for done in range(1, rounds + 1):
        # A different one goes first in every round, so that none always follows the same.
        turn = done % len(live) if live else 0
        for candidate in live[turn:] + live[:turn]:
            begin(candidate)
            try:
                result.samples[candidate].append(samplers[candidate]())
            except Exception as error:
                result.failed[candidate] = error
        live = [c for c in live if c not in result.failed]
        if not live or over():
            break
        if done >= MIN_ROUNDS:
            best = min(result.median(c) for c in live)
            for candidate in live:
                if min(result.samples[candidate]) > HOPELESS * best:
                    result.given_up[candidate] = best
            live = [c for c in live if c not in result.given_up]
        if len(live) == 1 and done >= 2 * MIN_ROUNDS and len(samplers) > 1:
            # Nobody is left to be compared with.
            break
    return result
