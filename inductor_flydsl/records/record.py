"""One measurement, and the record of everything that was tried for one key.

Owns their JSON form and the rule that picks a winner. Knows nothing of files or devices.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..config import GemmConfig
from ..devices.base import Clock
from ..errors import BadArgument, RecordCorrupt
from .key import EnvironmentKey, RecordKey, TargetKey

SCHEMA = 1
# How the failure of a candidate begins that was not tried, for want of time or memory.
NOT_MEASURED = "NotMeasured"
EFFORTS = ("partial", "default", "exhaustive")


def now_utc() -> str:
    """The time now, ISO 8601, UTC, to the microsecond (sorts as text)."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="microseconds")


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What one candidate did on one device.

    Attributes:
        config: the candidate.
        clock: what ``us`` was read from.
        device: name of the device, for example ``hip:0``.
        us: median time of a launch in µs; infinite for a candidate that failed.
        spread_us: half the distance between the quartiles, in µs.
        rounds: launches that were timed.
        max_error: largest distance from the float64 product, in units in the last place of the
            output type; None where numbers were not reached.
        failure: why the candidate is rejected, or None.
        measured_at: UTC, ISO 8601.
        note: what was unusual about the measuring (fewer buffers, stopped early), or empty.
        fatal: the candidate hung or took its process down; it is not tried a second time.
    """

    config: GemmConfig
    clock: Clock
    device: str
    us: float
    spread_us: float = 0.0
    rounds: int = 0
    max_error: float | None = None
    failure: str | None = None
    measured_at: str = ""
    note: str = ""
    fatal: bool = False

    def __post_init__(self) -> None:
        if (self.failure is None) != (math.isfinite(self.us) and self.us > 0):
            way = "a failure has infinite time, a success a positive one"
            raise BadArgument("us", self.us, f"contradicts failure={self.failure!r}", way)
        if self.fatal and self.ok:
            raise BadArgument("fatal", True, "contradicts failure=None", "name the failure")

    @property
    def ok(self) -> bool:
        return self.failure is None

    @property
    def tried(self) -> bool:
        """False where the budget or the memory ran out before the candidate's turn."""
        return self.failure is None or not self.failure.startswith(NOT_MEASURED)

    def to_json(self) -> dict[str, Any]:
        return {
            "config": self.config.to_json(),
            "clock": self.clock.value,
            "device": self.device,
            "us": self.us if self.ok else None,
            "spread_us": self.spread_us,
            "rounds": self.rounds,
            "max_error_ulp": self.max_error,
            "failure": self.failure,
            "measured_at": self.measured_at,
            "note": self.note,
            "fatal": self.fatal,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measurement:
        """Inverse of `to_json`.

        Raises:
            KeyError, TypeError, ValueError: a field is missing or unusable.
        """
        error = data["max_error_ulp"]
        return cls(
            config=GemmConfig.from_json(data["config"]),
            clock=Clock(data["clock"]),
            device=str(data["device"]),
            us=math.inf if data["us"] is None else float(data["us"]),
            spread_us=float(data["spread_us"]),
            rounds=int(data["rounds"]),
            max_error=None if error is None else float(error),
            failure=None if data["failure"] is None else str(data["failure"]),
            measured_at=str(data["measured_at"]),
            note=str(data.get("note", "")),
            fatal=bool(data.get("fatal", False)),
        )


@dataclass(frozen=True, kw_only=True)
class Contest:
    """One benchmark of Inductor's in which our candidate met those of other backends.

    Attributes:
        entries: (backend, name of the choice, µs), the fastest first; all on the record's clock
            and from one benchmark, so comparable with each other and with nothing else.
        held_at: UTC, ISO 8601.
    """

    entries: tuple[tuple[str, str, float], ...]
    held_at: str

    def __post_init__(self) -> None:
        times = [us for _, _, us in self.entries]
        if not times or times != sorted(times):
            raise BadArgument("entries", times, "is empty or not sorted", "fastest first")

    def best(self, backend: str) -> float | None:
        """µs of a backend's fastest choice, None where it had none that worked."""
        return next((us for b, _, us in self.entries if b == backend and math.isfinite(us)), None)

    @property
    def backends(self) -> tuple[str, ...]:
        """Backends with a choice that worked, the winner's first."""
        return tuple(dict.fromkeys(b for b, _, us in self.entries if math.isfinite(us)))

    def to_json(self) -> dict[str, Any]:
        entries = [
            {"backend": b, "name": n, "us": us if math.isfinite(us) else None}
            for b, n, us in self.entries
        ]
        return {"entries": entries, "held_at": self.held_at}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Contest:
        """Inverse of `to_json`.

        Raises:
            KeyError, TypeError, ValueError: a field is missing or unusable.
        """
        entries = [
            (str(e["backend"]), str(e["name"]), math.inf if e["us"] is None else float(e["us"]))
            for e in data["entries"]
        ]
        return cls(entries=tuple(entries), held_at=str(data["held_at"]))


def choose(
    measurements: Iterable[Measurement], incumbent: GemmConfig | None = None
) -> GemmConfig | None:
    """The fastest valid candidate; the incumbent stays while it is within the spread of it.

    Args:
        measurements: of one clock, in order of preference among equals.
        incumbent: an earlier choice; ignored where it has no valid measurement.

    Returns:
        None if every candidate failed.
    """
    valid = [m for m in measurements if m.ok]
    if not valid:
        return None
    best = min(valid, key=lambda m: m.us)
    for m in valid:
        if m.config == incumbent and m.us - best.us <= max(m.spread_us, best.spread_us):
            return m.config
    return best.config


@dataclass(frozen=True, kw_only=True)
class TuningRecord:
    """Everything that was tried for one key, and what was chosen.

    Attributes:
        key, environment: the whole key, so that a miss can be explained field by field.
        measurements: one a config, rejected ones with their reason.
        best: the choice; None if every candidate was rejected.
        created: when the record was last written, UTC, ISO 8601.
        device, clock: of the latest measuring run.
        effort: the largest effort that the record satisfies: ``partial`` (the budget ran out
            first), ``default`` or ``exhaustive``.
        contest: the latest benchmark against other backends, where there was one.
    """

    key: TargetKey
    environment: EnvironmentKey
    measurements: tuple[Measurement, ...]
    best: GemmConfig | None
    created: str
    device: str
    clock: Clock
    effort: str = "default"
    contest: Contest | None = None

    def __post_init__(self) -> None:
        clocks = {m.clock for m in self.measurements} | {self.clock}
        if clocks != {self.key.clock}:
            names = ", ".join(sorted(c.value for c in clocks))
            way = f"a record of the {self.key.clock.value} clock holds nothing else"
            raise BadArgument("measurements", names, "mixes clocks", way)
        kinds = {m.device.split(":", 1)[0] for m in self.measurements}
        if kinds - {self.key.device}:
            way = f"a record of device {self.key.device} holds nothing else"
            raise BadArgument("measurements", sorted(kinds), "mixes devices", way)
        chosen = self.best_measurement
        if self.effort not in EFFORTS:
            raise BadArgument("effort", self.effort, "is not known", f"use one of {EFFORTS}")
        if self.best is not None and (chosen is None or not chosen.ok):
            raise BadArgument("best", self.best.name, "has no valid measurement", "measure it")

    @property
    def verdict(self) -> str:
        """Name of the choice, or in words why there is none."""
        if self.best is not None:
            return self.best.name
        tried = any(m.tried for m in self.measurements)
        return "none works" if tried else "none measured yet"

    @property
    def full_key(self) -> RecordKey:
        return RecordKey(target=self.key, environment=self.environment)

    @property
    def id(self) -> str:
        """Stem of the record's file."""
        return self.full_key.id

    @property
    def best_measurement(self) -> Measurement | None:
        return None if self.best is None else self.measured(self.best)

    @property
    def rejected(self) -> list[Measurement]:
        return [m for m in self.measurements if not m.ok]

    def measured(self, config: GemmConfig) -> Measurement | None:
        """The measurement of one config, if it was tried."""
        return next((m for m in self.measurements if m.config == config), None)

    def merged(self, newer: TuningRecord) -> TuningRecord:
        """This record with another of the same key added.

        The later measurement of a config wins, and this record's choice is the incumbent.

        Raises:
            BadArgument: the records have different keys.
        """
        if newer.full_key != self.full_key:
            raise BadArgument("newer", newer.id, f"is not a record of {self.id}", "merge one key")
        latest = {m.config: m for m in self.measurements}
        for m in newer.measurements:
            held = latest.get(m.config)
            if held is None or held.measured_at <= m.measured_at:
                latest[m.config] = m
        measurements = tuple(latest.values())
        contests = [c for c in (self.contest, newer.contest) if c is not None]
        return replace(
            newer,
            measurements=measurements,
            best=choose(measurements, incumbent=self.best),
            created=max(self.created, newer.created),
            effort=max(self.effort, newer.effort, key=EFFORTS.index),
            contest=max(contests, key=lambda c: c.held_at, default=None),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "target": self.key.to_json(),
            "environment": self.environment.to_json(),
            "device": self.device,
            "clock": self.clock.value,
            "effort": self.effort,
            "created": self.created,
            "best": None if self.best is None else self.best.to_json(),
            "measurements": [m.to_json() for m in self.measurements],
            "contest": None if self.contest is None else self.contest.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TuningRecord:
        """Inverse of `to_json`, for data of this module's SCHEMA.

        Raises:
            RecordCorrupt: a field is missing, unusable, or contradicts another.
        """
        try:
            contest = data["contest"]
            return cls(
                key=TargetKey.from_json(data["target"]),
                environment=EnvironmentKey.from_json(data["environment"]),
                measurements=tuple(Measurement.from_json(m) for m in data["measurements"]),
                best=None if data["best"] is None else GemmConfig.from_json(data["best"]),
                created=str(data["created"]),
                device=str(data["device"]),
                clock=Clock(data["clock"]),
                effort=str(data["effort"]),
                contest=None if contest is None else Contest.from_json(contest),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            detail = f"{type(error).__name__}: {error}"
            raise RecordCorrupt(f"the tuning record is not readable ({detail})") from error
