"""Artifacts in memory and on disk: safe under threads and processes, each kernel compiled once.

They are looked for in the artifact directory, then in the folder ``artifacts`` of every directory
of the tuning store, where ``inductor-flydsl pack`` leaves them. Only the first is written.
"""

from __future__ import annotations

import contextlib
import contextvars
import getpass
import json
import logging
import os
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from .. import settings
from ..config import KernelSpec
from ..errors import CompileFailed
from ..locks import locked
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
_chosen: contextvars.ContextVar[Path | None] = contextvars.ContextVar("directory", default=None)
# Where there is no flock, a compile that holds a key for this long is taken for dead.
STALE_SECONDS = 1200.0


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


@contextlib.contextmanager
def writing_to(directory: Path | None) -> Iterator[None]:
    """Within the block artifacts are found in and written to this directory alone."""
    token = _chosen.set(directory)
    try:
        yield
    finally:
        _chosen.reset(token)


def chosen_directory() -> str:
    """The directory of `writing_to`, or an empty text; workers are told it."""
    return str(_chosen.get() or "")


def environment() -> tuple[str, ...]:
    """What a worker inherits that decides where artifacts lie; a change asks for another."""
    names = ("TORCHINDUCTOR_CACHE_DIR", settings.KNOBS["cache_dir"].variable)
    return tuple(os.environ.get(name, "") for name in names)


def artifact_directory() -> Path:
    """Where artifacts lie: under Inductor's cache directory, which the user may move or clear."""
    chosen = _chosen.get()
    if chosen is not None:
        return chosen
    root = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if not root:
        root = os.path.join(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
    return Path(root) / "flydsl"


def _paths(key: str, directory: Path | None = None) -> tuple[Path, Path]:
    folder = (directory or artifact_directory()) / key[:2]
    return folder / f"{key}.bin", folder / f"{key}.json"


def _failure_path(key: str) -> Path:
    return artifact_directory() / key[:2] / f"{key}.failed.json"


def _directories() -> list[Path]:
    """Where artifacts are looked for, in this order."""
    own = artifact_directory()
    if _chosen.get() is not None:
        return [own]
    return [own, *(layer / "artifacts" for layer in settings.resolve("cache_dir")[0])]


def find(spec: KernelSpec, arch: str, backend: str, *, lines: bool = False) -> Artifact | None:
    """The artifact if it was compiled before, here or by another process."""
    key = artifact_key(spec, arch, backend, lines=lines)
    with _guard:
        if key in _memory and _chosen.get() is None:
            _counts["memory_hits"] += 1
            return _memory[key]
    artifact = _read(spec, arch, backend, key)
    if artifact is not None:
        count("disk_hits")
        _keep(artifact)
    return artifact


def adopt(spec: KernelSpec, arch: str, backend: str, *, compiled: bool) -> Artifact | CompileFailed:
    """The artifact that a worker has just left on disk.

    Args:
        spec, arch, backend: what it was asked.
        compiled: it compiled the kernel; else it found that another process had.
    """
    artifact = _read(spec, arch, backend, artifact_key(spec, arch, backend))
    if artifact is None:
        return CompileFailed(
            f"{spec.name}: the compiled kernel is gone from {artifact_directory()}"
        )
    count("compiled" if compiled else "disk_hits")
    _keep(artifact)
    return artifact


def _keep(artifact: Artifact) -> None:
    if _chosen.get() is None:
        with _guard:
            _memory[artifact.key] = artifact


def failure(spec: KernelSpec, arch: str, backend: str) -> CompileFailed | None:
    """Why a kernel is not compiled again: its compile once crashed or hung."""
    path = _failure_path(artifact_key(spec, arch, backend))
    try:
        reason = json.loads(path.read_text())["reason"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("%s cannot be read (%s); compiling again", path, error)
        return None
    return CompileFailed(f"{reason} (remembered; remove {path} to try again)")


def remember_failure(spec: KernelSpec, arch: str, backend: str, reason: str) -> CompileFailed:
    """Note a crash or a time limit on disk; returns the error that tells of it."""
    path = _failure_path(artifact_key(spec, arch, backend))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps({"spec": spec.to_json(), "reason": reason}).encode())
    except OSError as error:
        log.warning("%s cannot be written (%s); the kernel will be tried again", path, error)
    return CompileFailed(reason)


def _read(spec: KernelSpec, arch: str, backend: str, key: str) -> Artifact | None:
    for directory in _directories():
        payload, meta = _paths(key, directory)
        try:
            data = json.loads(meta.read_text())
            size = payload.stat().st_size
            if size != data["size"]:
                raise ValueError(f"{payload} has {size} bytes, {data['size']} were written")
            resources = data["resources"] and Resources(**data["resources"])
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("artifact %s cannot be read (%s); compiling again", meta, error)
            continue
        return Artifact(
            spec=spec, arch=arch, backend=backend, key=key, resources=resources, path=payload
        )
    return None


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


def compile_spec(spec: KernelSpec, arch: str, backend: str, *, lines: bool = False) -> Artifact:
    """Compile a kernel, or find it compiled.

    Args:
        spec: what to specialise on.
        arch: LLVM name of the target, for example ``gfx950``.
        backend: ``rocm``, ``emulator``, or ``reference``, which needs no code.
        lines: with debug lines, for reports that name the kernel's source; the instructions are
            the same, but it is another artifact.

    Raises:
        CompileFailed: FlyDSL could not compile it.
        MissingDependency: flydsl is absent or of an unsupported version.
    """
    key = artifact_key(spec, arch, backend, lines=lines)
    if backend == "reference":
        return Artifact(spec=spec, arch=arch, backend=backend, key=key)
    found = find(spec, arch, backend, lines=lines)
    if found is not None:
        return found
    with _guard:
        lock = _key_locks.setdefault(key, threading.Lock())
    with lock:
        with _guard:
            if key in _memory and _chosen.get() is None:
                return _memory[key]
        known = failure(spec, arch, backend)
        if known is not None:
            raise known
        payload, _ = _paths(key)
        try:
            payload.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CompileFailed(
                f"artifact directory {payload.parent} cannot be made ({error}); "
                "set TORCHINDUCTOR_CACHE_DIR to a writable one"
            ) from error
        with locked(payload.with_suffix(".lock"), timeout=-1, stale=STALE_SECONDS):
            artifact = _read(spec, arch, backend, key)
            if artifact is None:
                artifact = _compile(spec, arch, backend, key, lines)
                count("compiled")
            else:
                count("disk_hits")
        _keep(artifact)
        return artifact


def _compile(spec: KernelSpec, arch: str, backend: str, key: str, lines: bool) -> Artifact:
    from .flydsl_bridge import compile_to_bytes

    code, isa = compile_to_bytes(spec, arch, backend, lines=lines)
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
