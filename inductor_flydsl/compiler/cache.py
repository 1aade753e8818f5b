"""Artifacts in memory and on disk: safe under threads and processes, each kernel compiled once."""

from __future__ import annotations

import getpass
import json
import logging
import os
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock

from ..config import KernelSpec
from ..errors import CompileFailed
from .artifact import Artifact, Resources
from .fingerprint import artifact_key

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CompileStats:
    """What this process did to obtain artifacts."""

    compiled: int = 0
    disk_hits: int = 0
    memory_hits: int = 0


_memory: dict[str, Artifact] = {}
_counts = {"compiled": 0, "disk_hits": 0, "memory_hits": 0}
_guard = threading.Lock()
_key_locks: dict[str, threading.Lock] = {}


def stats() -> CompileStats:
    """Counts since the process started or `reset_memory`."""
    with _guard:
        return CompileStats(**_counts)


def count(what: str, number: int = 1) -> None:
    with _guard:
        _counts[what] += number


def reset_memory() -> None:
    """Forget artifacts and counts of this process; files stay."""
    with _guard:
        _memory.clear()
        for name in _counts:
            _counts[name] = 0


def artifact_directory() -> Path:
    """Where artifacts lie: under Inductor's cache directory, which the user may move or clear."""
    root = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if not root:
        root = os.path.join(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
    return Path(root) / "flydsl"


def _paths(key: str) -> tuple[Path, Path]:
    folder = artifact_directory() / key[:2]
    return folder / f"{key}.bin", folder / f"{key}.json"


def find(spec: KernelSpec, arch: str, backend: str) -> Artifact | None:
    """The artifact if it was compiled before, here or by another process."""
    key = artifact_key(spec, arch, backend)
    with _guard:
        if key in _memory:
            _counts["memory_hits"] += 1
            return _memory[key]
    artifact = _read(spec, arch, backend, key)
    if artifact is not None:
        count("disk_hits")
        with _guard:
            _memory[key] = artifact
    return artifact


def _read(spec: KernelSpec, arch: str, backend: str, key: str) -> Artifact | None:
    payload, meta = _paths(key)
    try:
        data = json.loads(meta.read_text())
        size = payload.stat().st_size
        if size != data["size"]:
            raise ValueError(f"{payload} has {size} bytes, {data['size']} were written")
        resources = data["resources"] and Resources(**data["resources"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("artifact %s cannot be read (%s); compiling again", key[:12], error)
        return None
    return Artifact(
        spec=spec, arch=arch, backend=backend, key=key, resources=resources, path=payload
    )


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file so that a reader sees the old content or the new, never a part."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name + ".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def compile_spec(spec: KernelSpec, arch: str, backend: str) -> Artifact:
    """Compile a kernel, or find it compiled.

    Args:
        spec: what to specialise on.
        arch: LLVM name of the target, for example ``gfx950``.
        backend: ``rocm``, ``emulator``, or ``reference``, which needs no code.

    Raises:
        CompileFailed: FlyDSL could not compile it.
        MissingDependency: flydsl is absent or of an unsupported version.
    """
    key = artifact_key(spec, arch, backend)
    if backend == "reference":
        return Artifact(spec=spec, arch=arch, backend=backend, key=key)
    found = find(spec, arch, backend)
    if found is not None:
        return found
    with _guard:
        lock = _key_locks.setdefault(key, threading.Lock())
    with lock:
        with _guard:
            if key in _memory:
                return _memory[key]
        payload, _ = _paths(key)
        try:
            payload.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CompileFailed(
                f"artifact directory {payload.parent} cannot be made ({error}); "
                "set TORCHINDUCTOR_CACHE_DIR to a writable one"
            ) from error
        with FileLock(payload.with_suffix(".lock")):
            artifact = _read(spec, arch, backend, key)
            if artifact is None:
                artifact = _compile(spec, arch, backend, key)
                count("compiled")
            else:
                count("disk_hits")
        with _guard:
            _memory[key] = artifact
        return artifact


def _compile(spec: KernelSpec, arch: str, backend: str, key: str) -> Artifact:
    from .flydsl_bridge import compile_to_bytes

    code, isa = compile_to_bytes(spec, arch, backend)
    resources = Resources.from_isa(isa) if isa else None
    payload, meta = _paths(key)
    write_atomic(payload, code)
    description = {
        "spec": spec.to_json(),
        "arch": arch,
        "backend": backend,
        "size": len(code),
        "resources": resources and asdict(resources),
    }
    # The description is written last: an artifact without one does not exist.
    write_atomic(meta, json.dumps(description, indent=1).encode())
    return Artifact(
        spec=spec, arch=arch, backend=backend, key=key, resources=resources, path=payload
    )
