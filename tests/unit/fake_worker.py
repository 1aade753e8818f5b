"""A compile worker whose compiler is made up: what a kernel does hangs on its number of stages.

2 compiles, 3 kills the process with SIGSEGV, 4 never ends, 5 fails, 6 is killed from outside.
Each try adds a line to the file FAKE_WORKER_LOG.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

from inductor_flydsl.compiler import cache, flydsl_bridge, worker
from inductor_flydsl.errors import CompileFailed, MissingDependency


def fake_key(spec: Any, arch: str, backend: str, **options: Any) -> str:
    return str(spec.digest)


def compile_to_bytes(spec: Any, arch: str, backend: str, **options: Any) -> tuple[bytes, None]:
    with open(os.environ["FAKE_WORKER_LOG"], "a") as log:
        print(spec.name, file=log)
    print("a compiler that talks on stdout")
    stages = spec.config.stages
    if stages in (3, 6):
        print("about to die", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV if stages == 3 else signal.SIGKILL)
    if stages == 4:
        time.sleep(600)
    if stages == 5:
        raise CompileFailed(f"{spec.name}: no registers left")
    return b"code of " + spec.name.encode(), None


def prepare(backend: str, arch: str) -> None:
    if backend == "rocm":
        raise MissingDependency("there is no flydsl")


if __name__ == "__main__":
    cache.artifact_key = fake_key
    flydsl_bridge.prepare = prepare
    flydsl_bridge.compile_to_bytes = compile_to_bytes
    sys.exit(worker.main(*sys.argv[1:]))
