"""What an artifact depends on besides its spec. Every part fails closed: no value, no caching."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import sys
from pathlib import Path

from .._version import __version__
from ..config import KernelSpec
from ..errors import MissingDependency

SUPPORTED_FLYDSL = ("0.3.4", "0.6")


# What the kernel sources import of the package, and what compiles them.
AROUND: tuple[str, ...] = ("activations.py", "config.py", "division.py", "dtypes.py", "fusion.py")
AROUND += ("grouping.py", "scale_ring.py", "scaling.py", "signature.py", "stream.py")
AROUND += ("compiler/flydsl_bridge.py",)


def _release(version: str) -> tuple[int, ...]:
    parts = []
    for part in version.split("+")[0].split("."):
        digits = "".join(c for c in part if c.isdigit())
        if not digits:
            break
        parts.append(int(digits))
    return tuple(parts)


@functools.cache
def flydsl_version() -> str:
    """Version of the installed flydsl.

    Raises:
        MissingDependency: it is not installed, or outside the supported range.
    """
    try:
        version = importlib.metadata.version("flydsl")
    except importlib.metadata.PackageNotFoundError:
        raise MissingDependency("flydsl is not installed; pip install flydsl") from None
    low, high = SUPPORTED_FLYDSL
    if not _release(low) <= _release(version) < _release(high):
        raise MissingDependency(f"flydsl {version} is not supported; install >={low},<{high}")
    return version


def _sources() -> list[Path]:
    package = Path(__file__).resolve().parents[1]
    templates = package / "templates"
    if not templates.is_dir():
        # In a source checkout the templates stand beside the package.
        templates = package.parent / "templates"
    kernels = sorted(templates.glob("*.py"))
    if not kernels:
        raise MissingDependency(f"no kernel sources in {templates}; reinstall inductor-flydsl")
    return [*kernels, *(package / name for name in AROUND)]


@functools.cache
def source_fingerprint() -> str:
    """Hex digest of the kernel sources, the plugin's and FlyDSL's versions.

    Raises:
        MissingDependency: a part cannot be had.
    """
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    digest.update(f"{__version__} {flydsl_version()}".encode())
    return digest.hexdigest()


def artifact_key(spec: KernelSpec, arch: str, backend: str, *, lines: bool = False) -> str:
    """Hex digest that names an artifact; lines: with its source lines.

    Raises:
        MissingDependency: a part cannot be had.
    """
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    sources = "reference" if backend == "reference" else source_fingerprint()
    parts = (spec.digest, arch, backend, sources, python, *(["lines"] if lines else []))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
