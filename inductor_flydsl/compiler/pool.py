"""Compiling many kernels at once in worker processes, each kernel once.

A worker is ``python -m inductor_flydsl.compiler.worker``: specs in on stdin, one JSON line each,
outcomes out on stdout. It never imports the user's main module, as a spawned pool would.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, SimpleQueue

from .. import settings
from ..config import KernelSpec
from ..errors import CompileFailed, MissingDependency
from .artifact import Artifact
from .cache import compile_spec, count, find

log = logging.getLogger(__name__)

# A worker spends about two seconds on imports; a kernel takes a few tenths.
WORTH_A_POOL = 8

Outcome = Artifact | CompileFailed


def compile_many(
    specs: Iterable[KernelSpec], arch: str, backend: str, jobs: int = 0
) -> dict[KernelSpec, Outcome]:
    """Compile kernels in parallel.

    Args:
        specs: duplicates are compiled once.
        arch, backend: as for `compile_spec`.
        jobs: worker processes at most; 0 asks the settings, then the machine.

    Returns:
        The artifact of each spec, or the error that its compile ended with.

    Raises:
        MissingDependency: flydsl is absent or of an unsupported version.
    """
    unique = list(dict.fromkeys(specs))
    outcomes: dict[KernelSpec, Outcome] = {}
    missing = []
    for spec in unique:
        found = None if backend == "reference" else find(spec, arch, backend)
        if found is None:
            missing.append(spec)
        else:
            outcomes[spec] = found
    jobs = jobs or settings.current().jobs or os.cpu_count() or 1
    workers = min(jobs, len(missing) // (WORTH_A_POOL // 2))
    if backend != "reference" and workers > 1:
        _compile_in_workers(missing, arch, backend, workers)
    for spec in missing:
        try:
            # Those that a worker compiled are found on disk; the rest are compiled here.
            outcomes[spec] = compile_spec(spec, arch, backend)
        except MissingDependency:
            raise
        except CompileFailed as error:
            outcomes[spec] = error
    return outcomes


def _compile_in_workers(specs: list[KernelSpec], arch: str, backend: str, workers: int) -> None:
    queue: SimpleQueue[KernelSpec] = SimpleQueue()
    for spec in specs:
        queue.put(spec)
    with ThreadPoolExecutor(workers) as threads:
        counts = list(threads.map(lambda _: _drain(queue, arch, backend), range(workers)))
    count("compiled", sum(counts))
    count("disk_hits", -sum(counts))


def _drain(queue: SimpleQueue[KernelSpec], arch: str, backend: str) -> int:
    """Feed one worker from the queue; returns how many kernels it compiled."""
    command = [sys.executable, "-m", "inductor_flydsl.compiler.worker", arch, backend]
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    compiled = 0
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        while True:
            try:
                spec = queue.get_nowait()
            except Empty:
                break
            try:
                worker.stdin.write(json.dumps(spec.to_json()) + "\n")
                worker.stdin.flush()
                answer = worker.stdout.readline()
            except BrokenPipeError:
                answer = ""
            if not answer:
                log.warning("a compile worker died on %s; compiling it here", spec.name)
                break
            compiled += json.loads(answer)["compiled"]
        worker.stdin.close()
    return compiled
