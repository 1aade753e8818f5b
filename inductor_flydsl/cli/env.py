"""`inductor-flydsl env`: versions, devices, settings and where each came from."""

from __future__ import annotations

import argparse
import importlib.metadata
import platform
from typing import Any

from .. import settings
from .._version import __version__
from ..devices import get_device
from ..errors import SettingError
from . import OK
from .output import emit_json, table

PACKAGES = ("torch", "flydsl", "triton", "numpy", "filelock")
DEVICES = ("hip", "emulator", "reference")


def run(arguments: argparse.Namespace) -> int:
    devices = {name: _device(name) for name in DEVICES}
    if arguments.json:
        emit_json({"versions": versions(), "devices": devices, "settings": _settings()})
        return OK
    print(table(("PACKAGE", "VERSION"), [(n, v or "missing") for n, v in versions().items()]))
    states = [
        (name, found["clock"] or "-", found["name"] or f"not available: {found['reason']}")
        for name, found in devices.items()
    ]
    print("\n" + table(("DEVICE", "CLOCK", "STATE"), states))
    knobs = [(s["variable"], s["value"], s["origin"], s["help"]) for s in _settings()]
    print("\n" + table(("SETTING", "VALUE", "FROM", "MEANING"), knobs))
    return OK


def versions() -> dict[str, str | None]:
    """Versions by package, None for one that is not installed; imports none of them."""
    found: dict[str, str | None] = {"inductor-flydsl": __version__}
    found["python"] = platform.python_version()
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def _device(name: str) -> dict[str, str | None]:
    try:
        device = get_device(name)
    except Exception as error:  # Whatever keeps a device from working is what is asked for here.
        reason = " ".join(str(error).split()) or type(error).__name__
        return {"name": None, "clock": None, "reason": reason}
    return {"name": device.name, "clock": device.clock.value, "reason": None}


def _settings() -> list[dict[str, Any]]:
    rows = []
    for knob in settings.KNOBS.values():
        try:
            value, origin = settings.resolve(knob.name)
        except SettingError as error:
            value, origin = f"unusable: {error}", knob.variable
        rows.append(
            {
                "variable": knob.variable,
                "value": settings.as_text(value),
                "origin": origin,
                "help": knob.help,
            }
        )
    return rows
