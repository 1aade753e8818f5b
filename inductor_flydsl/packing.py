"""A store's choices with their compiled kernels, made on a machine without a GPU.

Owns the directory that comes of it: ``records`` and ``artifacts``, a layer of the tuning store as
`records.Store` and `compiler` read it, and a manifest of what it was made with. Measures nothing.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import compiler
from ._version import __version__
from .config import GemmConfig, KernelSpec
from .errors import CompileFailed, MissingDependency
from .records import Store, TuningRecord
from .targets import stale_reason

# The kind of device whose records a compile backend serves.
DEVICES = {"rocm": "hip", "emulator": "emulator"}
LINKER = Path("llvm") / "bin" / "ld.lld"


@dataclass(frozen=True, kw_only=True)
class Packed:
    """What became of a store's records.

    Attributes:
        kernels: kernels in the pack, by name.
        compiled: of them, how many were compiled just now.
        records: ids of records in the pack.
        skipped: (record, why it is not).
        failed: (kernel, why it did not compile).
    """

    kernels: tuple[str, ...]
    compiled: int
    records: tuple[str, ...]
    skipped: tuple[tuple[TuningRecord, str], ...]
    failed: tuple[tuple[str, str], ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "kernels": list(self.kernels),
            "compiled": self.compiled,
            "records": list(self.records),
            "skipped": [{"key": r.id, "reason": why} for r, why in self.skipped],
            "failed": [{"kernel": name, "reason": why} for name, why in self.failed],
        }


def select(
    records: Sequence[TuningRecord], arch: str, backend: str
) -> tuple[list[tuple[TuningRecord, GemmConfig]], list[tuple[TuningRecord, str]]]:
    """Records whose choice can be compiled here for `arch`, and why the others cannot.

    Raises:
        MissingDependency: flydsl is not usable, so no record can be matched with its kernels.
    """
    sources = compiler.source_fingerprint()
    chosen, skipped = [], []
    for record in records:
        why = stale_reason(record, sources)
        if record.key.device != DEVICES[backend]:
            why = f"measured on {record.key.device}, whose kernels are not of backend {backend}"
        elif record.key.arch != arch:
            why = f"measured on {record.key.arch}"
        if record.best is None:
            why = "no candidate works"
        if why is None:
            assert record.best is not None
            chosen.append((record, record.best))
        else:
            skipped.append((record, why))
    return chosen, skipped


def pack(
    records: Sequence[TuningRecord],
    *,
    arch: str,
    backend: str,
    out: Path,
    jobs: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Packed:
    """Compile the choices of records into a directory that a machine of `arch` uses as it is.

    The compiled kernels serve the same versions of Python (major and minor), FlyDSL and this
    package as made them; others compile again.

    Args:
        records: of any device; those of others than `backend` runs on are skipped.
        arch: LLVM name of the target.
        backend: ``rocm`` for GPUs, ``emulator``.
        out: the directory; what is packed there already is kept.
        jobs: compile workers; 0 asks the settings.
        progress: told (done, all) kernels.

    Raises:
        MissingDependency: flydsl, or the linker that ``rocm`` needs, is not installed.
        StoreUnwritable: `out` cannot be written.
    """
    chosen, skipped = select(records, arch, backend)
    if backend == "rocm":
        check_linker()
    specs = {record.id: KernelSpec.of(record.key.problem, best) for record, best in chosen}
    before = compiler.stats().compiled
    with compiler.writing_to(out / "artifacts"):
        outcomes = compiler.compile_many(specs.values(), arch, backend, jobs, progress=progress)
    failed = {s.name: str(o) for s, o in outcomes.items() if isinstance(o, CompileFailed)}
    store, stored = Store(out), []
    for record, _ in chosen:
        if specs[record.id].name not in failed:
            store.put(record)
            stored.append(record.id)
    kernels = [spec.name for spec in outcomes if spec.name not in failed]
    if stored:
        _write_manifest(out, arch, backend, len(kernels))
    return Packed(
        kernels=tuple(kernels),
        compiled=compiler.stats().compiled - before,
        records=tuple(stored),
        skipped=tuple(skipped),
        failed=tuple(failed.items()),
    )


def check_linker() -> Path:
    """The linker that FlyDSL makes code objects with.

    Raises:
        MissingDependency: it is not there.
    """
    root = Path(os.environ.get("ROCM_PATH") or "/opt/rocm")
    linker = root / LINKER
    if not linker.exists():
        raise MissingDependency(
            f"backend=rocm links code objects with {linker}, which is not there; install ROCm's "
            "LLVM (package rocm-llvm), or set ROCM_PATH to a directory whose llvm/bin/ld.lld is "
            "any LLVM linker of version 19 or later"
        )
    return linker


def _write_manifest(out: Path, arch: str, backend: str, kernels: int) -> None:
    manifest = {
        "arch": arch,
        "backend": backend,
        "kernels": kernels,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "flydsl": compiler.flydsl_version(),
        "inductor_flydsl": __version__,
        "sources": compiler.source_fingerprint(),
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
