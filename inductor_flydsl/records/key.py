"""What a tuning record is filed under: the target (what was asked, where) apart from the
environment (which kernels and versions measured it).

Two records of one target and different environments are comparable by a person and never stand
in for each other. Knows nothing of files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..devices.base import Clock
from ..errors import BadArgument
from ..problem import GemmProblem

TARGET_DIGITS = 16
ENVIRONMENT_DIGITS = 8


def _digest(data: Mapping[str, Any]) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class TargetKey:
    """What was tuned and on what kind of machine.

    Attributes:
        problem: the GEMM.
        arch: LLVM name of the architecture the kernels are compiled for.
        device: kind of device, ``hip``, ``emulator`` or ``reference``; never its ordinal.
        clock: the clock of every time in the record.
        compute_units: CUs that the device offers (a partitioned GPU offers fewer).
    """

    problem: GemmProblem
    arch: str
    device: str
    clock: Clock
    compute_units: int

    def __post_init__(self) -> None:
        if self.device == "emulator" and self.clock is not Clock.EMULATED:
            raise BadArgument("clock", self.clock.value, "is not the emulator's", "use emulated")
        if self.device == "hip" and self.clock is Clock.EMULATED:
            raise BadArgument("clock", "emulated", "is not a GPU's", "use gpu_event or wall")

    def to_json(self) -> dict[str, Any]:
        return {
            "problem": self.problem.to_json(),
            "arch": self.arch,
            "device": self.device,
            "clock": self.clock.value,
            "compute_units": self.compute_units,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TargetKey:
        """Inverse of `to_json`.

        Raises:
            KeyError, TypeError, ValueError: a field is missing or unusable.
        """
        return cls(
            problem=GemmProblem.from_json(data["problem"]),
            arch=str(data["arch"]),
            device=str(data["device"]),
            clock=Clock(data["clock"]),
            compute_units=int(data["compute_units"]),
        )

    @property
    def digest(self) -> str:
        """Hex SHA-256 of the JSON form."""
        return _digest(self.to_json())


@dataclass(frozen=True, kw_only=True)
class EnvironmentKey:
    """Everything else that a measurement depends on.

    Attributes:
        sources: fingerprint of the kernel sources.
        flydsl: FlyDSL's version, or ``none`` where nothing is compiled.
        plugin: version of this package.
        device: what the device says of itself (driver, library versions), sorted by name.
    """

    sources: str
    flydsl: str
    plugin: str
    device: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "sources": self.sources,
            "flydsl": self.flydsl,
            "plugin": self.plugin,
            "device": dict(self.device),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EnvironmentKey:
        """Inverse of `to_json`.

        Raises:
            KeyError, TypeError, AttributeError: a field is missing or unusable.
        """
        return cls(
            sources=str(data["sources"]),
            flydsl=str(data["flydsl"]),
            plugin=str(data["plugin"]),
            device=tuple(sorted((str(k), str(v)) for k, v in data["device"].items())),
        )

    @property
    def digest(self) -> str:
        """Hex SHA-256 of the JSON form."""
        return _digest(self.to_json())


@dataclass(frozen=True, kw_only=True)
class RecordKey:
    """The whole key of a record."""

    target: TargetKey
    environment: EnvironmentKey

    @property
    def id(self) -> str:
        """File stem: target digest, a dash, environment digest (both shortened)."""
        target = self.target.digest[:TARGET_DIGITS]
        return f"{target}-{self.environment.digest[:ENVIRONMENT_DIGITS]}"

    def to_json(self) -> dict[str, Any]:
        return {"target": self.target.to_json(), "environment": self.environment.to_json()}


@dataclass(frozen=True)
class FieldDiff:
    """One field in which two keys differ; None stands for an absent field."""

    field: str
    asked: Any
    stored: Any

    def __str__(self) -> str:
        return f"{self.field}: asked {self.asked!r}, stored {self.stored!r}"


def difference(asked: RecordKey, stored: RecordKey) -> list[FieldDiff]:
    """The fields in which two keys differ, by dotted name, in a fixed order."""
    left, right = _flat(asked.to_json()), _flat(stored.to_json())
    return [
        FieldDiff(name, left.get(name), right.get(name))
        for name in sorted(left.keys() | right.keys())
        if left.get(name) != right.get(name)
    ]


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[prefix + name] = value
    return flat
