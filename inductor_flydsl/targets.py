"""What a measurement on a device is filed under, and why there is none.

Owns the step from a device to the keys of the store. Measures nothing and stores nothing.
"""

from __future__ import annotations

import os

from ._version import __version__
from .devices.base import Device
from .problem import GemmProblem
from .records import EnvironmentKey, RecordKey, Store, TargetKey, TuningRecord


def target_key(problem: GemmProblem, device: Device) -> TargetKey:
    """What a record on this device is filed under, apart from versions."""
    units = device.environment().get("compute_units", device.arch.compute_units)
    return TargetKey(
        problem=problem,
        arch=device.arch.name,
        device=device.name.split(":", 1)[0],
        clock=device.clock,
        compute_units=int(units),
    )


def environment_key(device: Device) -> EnvironmentKey:
    """The versions that measurements on this device depend on.

    Raises:
        MissingDependency: flydsl is needed for the device's kernels and not there.
    """
    about = {k: str(v) for k, v in device.environment().items() if k != "compute_units"}
    if device.backend == "reference":
        sources = flydsl = "none"
    else:
        from . import compiler

        sources = compiler.source_fingerprint()
        flydsl = compiler.flydsl_version()
    return EnvironmentKey(
        sources=sources,
        flydsl=flydsl,
        plugin=__version__,
        device=tuple(sorted(about.items())),
    )


def miss_report(problem: GemmProblem, key: RecordKey | None, store: Store) -> str:
    """Why there is no record: in words, with the fields that differ from the nearest one."""
    places = os.pathsep.join(map(str, store.layers))
    text = f"no tuning record for {problem} in {places}"
    if key is None:
        return f"{text}: flydsl is not usable here, so its kernels' version cannot be told"
    text += f" (key {key.id}, clock {key.target.clock.value})"
    found = store.nearest(key)
    if found is None:
        return f"{text}; the store has no records; run inductor-flydsl tune"
    nearest, fields = found
    detail = "; ".join(str(f) for f in fields)
    return f"{text}; the nearest, {nearest.id}, differs in {detail}; run inductor-flydsl tune"


def stale_reason(record: TuningRecord, sources: str | None) -> str | None:
    """Why a record does not count for the kernels installed here, or None if it does.

    Args:
        record: the record.
        sources: `compiler.source_fingerprint()`, or None where flydsl is missing.
    """
    environment = record.environment
    if environment.plugin != __version__:
        return f"measured by version {environment.plugin}, this is {__version__}"
    if record.key.device == "reference":
        return None
    if sources is None:
        return "the kernels here have no version to compare with"
    if environment.sources != sources:
        return "measured with other kernel sources or another FlyDSL version"
    return None
