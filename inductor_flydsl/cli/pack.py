"""`inductor-flydsl pack`: compile what a store has chosen, for a machine elsewhere."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from .. import packing, settings
from ..arch import get_arch
from ..config import KernelSpec
from ..errors import StoreUnwritable
from ..records import Store, TuningRecord
from ..records.transfer import load
from . import FAILED, OK, UsageError
from .output import emit_json, say, table
from .progress import Progress


def run(arguments: argparse.Namespace) -> int:
    if arguments.jobs is not None and arguments.jobs < 0:
        raise UsageError("--jobs", arguments.jobs, "is negative", "use 0 or more")
    records = _records(arguments)
    arch = get_arch(arguments.arch).name
    backend = arguments.backend if arguments.backend != "auto" else _backend(records)
    if arguments.dry_run:
        return _dry_run(arguments, records, arch, backend)
    progress = Progress()
    try:
        packed = packing.pack(
            records,
            arch=arch,
            backend=backend,
            out=Path(arguments.out),
            jobs=arguments.jobs or 0,
            progress=lambda done, total: progress("compile", done, total),
        )
    except OSError as error:
        if isinstance(error, StoreUnwritable):
            raise
        raise StoreUnwritable(f"--out {arguments.out} cannot be written ({error})") from error
    finally:
        progress.close()
    if arguments.json:
        emit_json({"arch": arch, "backend": backend, "out": arguments.out, **packed.to_json()})
    else:
        _tell(packed, arch, backend, arguments.out)
    for name, why in packed.failed:
        say(f"{name}: {why}")
    return OK if packed.records and not packed.failed else FAILED


def _records(arguments: argparse.Namespace) -> list[TuningRecord]:
    if arguments.store is not None:
        return load(Path(arguments.store))
    return list(Store.over(settings.current().cache_dir).records())


def _backend(records: list[TuningRecord]) -> str:
    kinds = {record.key.device for record in records}
    return "rocm" if "hip" in kinds or "emulator" not in kinds else "emulator"


def _tell(packed: packing.Packed, arch: str, backend: str, out: str) -> None:
    if packed.skipped:
        rows = [(r.id[:12], r.key.problem, r.device, why) for r, why in packed.skipped]
        print(table(("KEY", "SKIPPED", "DEVICE", "WHY"), rows))
    print(
        f"{len(packed.records)} records and {len(packed.kernels)} kernels for {arch} ({backend}) "
        f"are in {out}; {packed.compiled} compiled now"
    )
    if packed.records:
        own = settings.current().cache_dir[0]
        print(f"Use it: INDUCTOR_FLYDSL_CACHE_DIR={own}{os.pathsep}{Path(out).absolute()}")


def _dry_run(
    arguments: argparse.Namespace, records: list[TuningRecord], arch: str, backend: str
) -> int:
    chosen, skipped = packing.select(records, arch, backend)
    specs = {KernelSpec.of(record.key.problem, best).name for record, best in chosen}
    if arguments.json:
        emit_json(
            {
                "kernels": sorted(specs),
                "records": [record.id for record, _ in chosen],
                "skipped": [{"key": r.id, "reason": why} for r, why in skipped],
            }
        )
    else:
        print("\n".join(sorted(specs)))
        say(f"{len(specs)} kernels of {len(chosen)} records; {len(skipped)} records skipped")
    return OK if chosen else FAILED
