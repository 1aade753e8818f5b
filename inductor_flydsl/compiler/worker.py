"""A compile worker: ``python -m inductor_flydsl.compiler.worker ARCH BACKEND [DIRECTORY]``.

Says ``{"ready": true}`` once its compiler is imported, then reads a KernelSpec a line, leaves its
artifact on disk, and answers ``{"compiled": 0 or 1, "error": text or null}``. What is missing for
any compile is ``{"missing": text}``, after which it ends. Ends by itself, with status 0, when its
parent closes stdin or asks nothing for a while.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from ..config import KernelSpec
from ..errors import CompileFailed, MissingDependency
from ..processes import answers, questions
from .cache import compile_spec, stats, writing_to


def main(arch: str, backend: str, directory: str = "") -> int:
    say = answers()
    try:
        _warm(arch, backend)
    except MissingDependency as error:
        say(missing=str(error))
        return 0
    say(ready=True)
    with writing_to(Path(directory) if directory else None):
        _serve(arch, backend, say)
    return 0


def _serve(arch: str, backend: str, say: Callable[..., None]) -> None:
    for question in questions():
        before = stats().compiled
        error = None
        try:
            compile_spec(KernelSpec.from_json(question), arch, backend)
        except MissingDependency as failure:
            say(missing=str(failure))
            return
        except CompileFailed as failure:
            error = str(failure)
        say(compiled=stats().compiled - before, error=error)


def _warm(arch: str, backend: str) -> None:
    """Import what a compile needs, so that no kernel's time limit pays for it."""
    from . import flydsl_bridge

    flydsl_bridge.prepare(backend, arch)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
