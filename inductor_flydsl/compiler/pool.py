"""Compiling many kernels at once in worker processes, each kernel once.

A worker is ``python -m inductor_flydsl.compiler.worker``. It never imports the user's main module,
as a spawned pool would. Kernels that nobody has compiled before are compiled there and nowhere
else: LLVM may crash or never end on a bad one, and that must cost a candidate, not the program.
Such a candidate is remembered on disk and not tried again. Workers stay for the next call.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from .. import settings
from ..config import KernelSpec
from ..errors import CompileFailed, MissingDependency
from ..processes import Child, ProcessDied, ProcessHung
from . import cache
from .artifact import Artifact

log = logging.getLogger(__name__)

# A worker imports flydsl and torch: seconds, or a minute on a machine that is short of memory.
START_SECONDS = 300.0
SIGKILL = -9

Outcome = Artifact | CompileFailed
Progress = Callable[[int, int], None]
Each = Callable[[KernelSpec, Outcome], None]


def compile_many(
    specs: Iterable[KernelSpec],
    arch: str,
    backend: str,
    jobs: int = 0,
    *,
    deadline: float | None = None,
    progress: Progress | None = None,
    each: Each = lambda spec, outcome: None,
    stop: threading.Event | None = None,
) -> dict[KernelSpec, Outcome]:
    """Compile kernels in parallel.

    Args:
        specs: the most wanted first; duplicates are compiled once.
        arch, backend: as for `compile_spec`.
        jobs: worker processes at most; 0 asks the settings, then the machine; 1 compiles in this
            process, without the protection of a worker.
        deadline: `time.monotonic` at which to stop.
        progress: called with (done, all) after each kernel that was not found, from any thread.
        each: called with every outcome as soon as it is there, from any thread.
        stop: set by another thread, ends the work; what is left is absent.

    Returns:
        The artifact of each spec, or the error that its compile ended with. What the deadline
        left undone is absent.

    Raises:
        MissingDependency: flydsl is absent or of an unsupported version.
    """
    outcomes: dict[KernelSpec, Outcome] = {}
    missing = []
    for spec in dict.fromkeys(specs):
        if backend == "reference":
            outcomes[spec] = cache.compile_spec(spec, arch, backend)
            each(spec, outcomes[spec])
            continue
        found = cache.find(spec, arch, backend) or cache.failure(spec, arch, backend)
        if found is None:
            missing.append(spec)
        else:
            outcomes[spec] = found
            each(spec, found)
    if not missing:
        return outcomes
    now = settings.current()
    jobs = jobs or now.jobs or _cores()
    batch = _Batch(
        arch=arch,
        backend=backend,
        timeout=now.compile_timeout,
        deadline=deadline,
        progress=progress,
        each=each,
        total=len(missing),
        stop=stop or threading.Event(),
    )
    if jobs == 1:
        batch.compile_here(missing)
    else:
        batch.compile_in_workers(missing, min(jobs, len(missing)))
    return outcomes | batch.outcomes


def _cores() -> int:
    """Cores that this process may use; a container or a job scheduler may grant few of many."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Retired(Exception):
    """The worker ended by itself, idle, as it was about to be asked."""


@dataclass(kw_only=True)
class _Batch:
    arch: str
    backend: str
    timeout: float
    deadline: float | None
    progress: Progress | None
    each: Each
    total: int
    stop: threading.Event
    outcomes: dict[KernelSpec, Outcome] = field(default_factory=dict)
    missing: MissingDependency | None = None

    def compile_here(self, specs: list[KernelSpec]) -> None:
        for spec in specs:
            if self._over():
                return
            try:
                outcome: Outcome = cache.compile_spec(spec, self.arch, self.backend)
            except CompileFailed as error:
                outcome = error
            self._done(spec, outcome)

    def compile_in_workers(self, specs: list[KernelSpec], workers: int) -> None:
        queue: SimpleQueue[KernelSpec] = SimpleQueue()
        for spec in specs:
            queue.put(spec)
        busy: set[Child] = set()
        with ThreadPoolExecutor(workers) as threads:
            # Settings and the artifact directory are context variables: each thread gets a copy.
            running = [
                threads.submit(contextvars.copy_context().run, self._drain, queue, busy)
                for _ in range(workers)
            ]
            try:
                for future in running:
                    future.result()
            except BaseException:
                self.stop.set()
                for child in list(busy):
                    child.kill()
                raise
        if self.missing is not None:
            raise self.missing

    def _drain(self, queue: SimpleQueue[KernelSpec], busy: set[Child]) -> None:
        with contextlib.ExitStack() as stack:
            child: Child | None = None
            while not self._over():
                try:
                    spec = queue.get_nowait()
                except Empty:
                    return
                if child is None:
                    child = stack.enter_context(_borrowed(self.arch, self.backend))
                    busy.add(child)
                try:
                    outcome = self._compile(child, spec)
                except _Retired:
                    queue.put(spec)
                else:
                    if outcome is not None:
                        self._done(spec, outcome)
                if not child.alive:
                    busy.discard(child)
                    child = None

    def _over(self) -> bool:
        late = self.deadline is not None and time.monotonic() >= self.deadline
        return late or self.stop.is_set()

    def _done(self, spec: KernelSpec, outcome: Outcome) -> None:
        self.outcomes[spec] = outcome
        log.info("%d/%d %s", len(self.outcomes), self.total, spec.name)
        self.each(spec, outcome)
        if self.progress is not None:
            self.progress(len(self.outcomes), self.total)

    def _compile(self, child: Child, spec: KernelSpec) -> Outcome | None:
        """One kernel in one worker; None where the deadline came first."""
        limit = self.timeout or None
        left = None if self.deadline is None else self.deadline - time.monotonic()
        cut = left is not None and (limit is None or left < limit)
        try:
            child.send(spec.to_json())
            answer = child.receive(left if cut else limit, self.stop.is_set)
        except ProcessHung as error:
            if cut or self.stop.is_set():
                return None
            text = f"{spec.name}: the compiler gave {error} and was ended"
            return cache.remember_failure(spec, self.arch, self.backend, text)
        except ProcessDied as error:
            if self.stop.is_set():
                return None
            if error.code == 0:
                raise _Retired from None
            text = f"{spec.name}: the compiler {error}"
            if error.code == SIGKILL:
                # The kernel's out-of-memory killer does so too, and memory may be there later.
                return CompileFailed(text)
            return cache.remember_failure(spec, self.arch, self.backend, text)
        if answer.get("missing"):
            self.missing = MissingDependency(answer["missing"])
            self.stop.set()
            return None
        if answer["error"]:
            return CompileFailed(answer["error"])
        return cache.adopt(spec, self.arch, self.backend, compiled=bool(answer["compiled"]))


def start_workers(arch: str, backend: str, jobs: int = 0) -> None:
    """Have workers import their compiler while the caller finds out what to compile.

    Args:
        arch, backend, jobs: as for `compile_many`, which uses them.
    """
    jobs = jobs or settings.current().jobs or _cores()
    if backend == "reference" or jobs == 1:
        return
    key = _key(arch, backend)
    with _idle_lock:
        waiting = _idle.setdefault((os.getpid(), *key), [])
        waiting += [_start(*key[:3]) for _ in range(jobs - len(waiting))]


def _key(arch: str, backend: str) -> tuple[str, str, str, tuple[str, ...]]:
    return arch, backend, cache.chosen_directory(), cache.environment()


def _start(arch: str, backend: str, directory: str) -> Child:
    return Child(["-m", "inductor_flydsl.compiler.worker", arch, backend, directory])


@contextlib.contextmanager
def _borrowed(arch: str, backend: str) -> Iterator[Child]:
    """A worker that is ready; it goes back to the idle ones if it is still alive.

    Raises:
        MissingDependency: the worker says what it lacks.
        CompileFailed: it does not start.
    """
    key = _key(arch, backend)
    child = _take(key) or _start(*key[:3])
    if not child.ready:
        try:
            answer = child.receive(START_SECONDS)
        except (ProcessDied, ProcessHung) as error:
            raise CompileFailed(f"a compile worker does not start: it {error}") from error
        if "missing" in answer:
            child.close()
            raise MissingDependency(answer["missing"])
        child.ready = True
    try:
        yield child
    finally:
        if child.alive:
            with _idle_lock:
                _idle.setdefault((os.getpid(), *key), []).append(child)


_idle: dict[tuple[object, ...], list[Child]] = {}
_idle_lock = threading.Lock()


def _take(key: tuple[object, ...]) -> Child | None:
    with _idle_lock:
        # Keyed by process too: a forked child must not speak into its parent's pipes.
        waiting = _idle.get((os.getpid(), *key), [])
        # The longest started first: it is ready, or will be first.
        while waiting:
            child = waiting.pop(0)
            if child.alive:
                return child
    return None


@atexit.register
def close_workers() -> None:
    """Let the idle workers of this process end."""
    with _idle_lock:
        for key in [k for k in _idle if k[0] == os.getpid()]:
            for child in _idle.pop(key):
                child.close()
