"""KernelSpec and architecture → Artifact: memory, then disk, then FlyDSL. One compile a kernel.

Knows nothing of tuning or of Inductor. Only `flydsl_bridge` (and the templates) touch flydsl, so
importing this package is cheap and works where flydsl is not installed.
"""

from __future__ import annotations

from .artifact import Artifact, Resources
from .cache import (
    CompileStats,
    artifact_directory,
    compile_spec,
    find,
    reset_memory,
    stats,
    writing_to,
)
from .fingerprint import flydsl_version, source_fingerprint
from .launcher import HostFunction, load
from .pool import compile_many, start_workers

__all__ = [
    "Artifact",
    "CompileStats",
    "HostFunction",
    "Resources",
    "artifact_directory",
    "compile_many",
    "compile_spec",
    "find",
    "flydsl_version",
    "load",
    "reset_memory",
    "source_fingerprint",
    "start_workers",
    "stats",
    "writing_to",
]
