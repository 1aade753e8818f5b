"""What compiled graphs depend on beyond Inductor's own key: the part we add to its FX graph cache.

Fails closed: where a part of the key cannot be had, the key is one that never comes again, so
nothing is found in the cache and nothing stored there is found later.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import logging
import uuid
from pathlib import Path
from typing import Any

from .. import settings
from .._version import __version__
from ..devices.base import Device
from ..errors import MissingDependency, SettingError
from . import compat

log = logging.getLogger("inductor_flydsl")

# Settings that change neither what is chosen nor what is computed.
HARMLESS = ("jobs", "compile_timeout", "measure_timeout")


def graph_key(active: bool) -> str:
    """The key of a compilation under the settings and the configuration of this moment."""
    if not active:
        return "off"
    if not compat.autotunes_flydsl():
        # Then nothing of ours happens, and flydsl is not even looked for.
        return "idle"
    try:
        return json.dumps(_parts(), sort_keys=True)
    except Exception as error:
        # A product of the graph says so of a setting, once, when it is left to other backends.
        level = logging.DEBUG if isinstance(error, SettingError) else logging.WARNING
        log.log(level, "the FX graph cache is not used: %s: %s", type(error).__name__, error)
        return f"unknown-{uuid.uuid4()}"


def _parts() -> dict[str, Any]:
    now = dataclasses.asdict(settings.current())
    return {
        "plugin": __version__,
        "plugin_sources": plugin_sources(),
        "kernels": _kernels(),
        "flydsl": _flydsl(),
        "settings": {k: str(v) for k, v in now.items() if k not in HARMLESS},
        "hardware": _hardware(),
    }


def identity(device: Device) -> str:
    """Digest of what the time of one of our kernels on `device` depends on besides its config.

    Raises:
        MissingDependency: the device's kernels need flydsl and it is not there.
    """
    parts: dict[str, Any] = {
        "plugin": __version__,
        "device": device.name.partition(":")[0],
        "arch": device.arch.name,
        "compute_units": device.arch.compute_units,
        "environment": dict(device.environment()),
    }
    if device.backend != "reference":
        from .. import compiler

        parts |= {"kernels": compiler.source_fingerprint(), "flydsl": _flydsl()}
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


@functools.cache
def plugin_sources() -> str:
    """Digest of the package's own Python files, kernels apart."""
    root = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _kernels() -> str:
    from .. import compiler

    try:
        return compiler.source_fingerprint()
    except MissingDependency as error:
        # A known state: every op is declined, whatever the kernels look like.
        return f"absent: {error}"


def _flydsl() -> str:
    try:
        return importlib.metadata.version("flydsl")
    except importlib.metadata.PackageNotFoundError:
        return "absent"


def _hardware() -> dict[str, str]:
    """Which kind of device ``auto`` means here, and how large it is."""
    import torch

    facts = {"hip": str(torch.version.hip)}
    if torch.version.hip is not None and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        facts["arch"] = str(getattr(properties, "gcnArchName", properties.name))
        facts["compute_units"] = str(properties.multi_processor_count)
    return facts
