from __future__ import annotations

from dataclasses import replace

import pytest
from unit_fakes import ENVIRONMENT, PROBLEM, target

from inductor_flydsl.devices.base import Clock
from inductor_flydsl.errors import BadArgument
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.records import EnvironmentKey, RecordKey, TargetKey, difference

KEY = RecordKey(target=target(), environment=ENVIRONMENT)


def test_round_trip() -> None:
    assert TargetKey.from_json(KEY.target.to_json()) == KEY.target
    assert EnvironmentKey.from_json(ENVIRONMENT.to_json()) == ENVIRONMENT


@pytest.mark.parametrize(
    "other",
    [
        target(GemmProblem.dense(256, 512, 1025)),
        target(replace(PROBLEM, b_align=8)),
        target(device="reference"),
        target(device="emulator", clock=Clock.EMULATED),
        target(clock=Clock.WALL),
        target(compute_units=128),
        target(arch="gfx942"),
    ],
)
def test_every_part_of_the_target_changes_the_first_half(other: TargetKey) -> None:
    changed = RecordKey(target=other, environment=ENVIRONMENT)
    assert changed.id.split("-")[0] != KEY.id.split("-")[0]
    assert changed.id.split("-")[1] == KEY.id.split("-")[1]
    assert len(difference(changed, KEY)) >= 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"sources": "x"}, "environment.sources"),
        ({"flydsl": "0.4.0"}, "environment.flydsl"),
        ({"plugin": "9"}, "environment.plugin"),
        ({"device": (("driver", "6.5"),)}, "environment.device.driver"),
        ({"device": ()}, "environment.device.driver"),
    ],
)
def test_every_part_of_the_environment_changes_the_second_half(
    change: dict[str, object], field: str
) -> None:
    changed = RecordKey(target=KEY.target, environment=replace(ENVIRONMENT, **change))
    assert changed.id.split("-")[0] == KEY.id.split("-")[0]
    assert changed.id != KEY.id
    assert [d.field for d in difference(changed, KEY)] == [field]


def test_difference_tells_both_values() -> None:
    asked = RecordKey(target=target(compute_units=64), environment=ENVIRONMENT)
    (found,) = difference(asked, KEY)
    assert str(found) == "target.compute_units: asked 64, stored 256"
    assert difference(KEY, KEY) == []


def test_a_clock_that_the_device_cannot_have_is_refused() -> None:
    with pytest.raises(BadArgument, match="emulated"):
        target(clock=Clock.EMULATED)
    with pytest.raises(BadArgument, match="wall"):
        target(device="emulator", clock=Clock.WALL)
