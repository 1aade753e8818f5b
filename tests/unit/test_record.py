from __future__ import annotations

import json
import math
import random

import pytest
from unit_fakes import CONFIGS, ENVIRONMENT, measured, record, target

from inductor_flydsl.devices.base import Clock
from inductor_flydsl.errors import BadArgument, RecordCorrupt
from inductor_flydsl.records import Measurement, TuningRecord, choose
from inductor_flydsl.records.record import NOT_MEASURED

A, B, C = CONFIGS[:3]


def test_round_trip_keeps_everything() -> None:
    tried = [
        measured(A, 12.25, spread_us=0.5, rounds=30, max_error=1.0),
        measured(B, math.inf, failure="CompileFailed: out of registers\n  at line 3"),
        measured(C, 11.0),
    ]
    before = record(tried, effort="exhaustive")
    text = json.dumps(before.to_json(), allow_nan=False)
    assert TuningRecord.from_json(json.loads(text)) == before
    assert before.best == C
    assert [m.config for m in before.rejected] == [B]


@pytest.mark.parametrize(
    ("us", "failure"), [(math.inf, None), (math.nan, None), (0.0, None), (-1.0, None), (3.0, "x")]
)
def test_a_time_and_a_failure_exclude_each_other(us: float, failure: str | None) -> None:
    with pytest.raises(BadArgument, match="us="):
        Measurement(config=A, clock=Clock.GPU_EVENT, device="hip:0", us=us, failure=failure)


def test_choose_takes_the_fastest_valid() -> None:
    rng = random.Random(0)
    for _ in range(100):
        times = [rng.choice((math.inf, rng.uniform(1, 9))) for _ in CONFIGS]
        tried = [measured(c, us) for c, us in zip(CONFIGS, times, strict=True)]
        best = choose(tried)
        if min(times) == math.inf:
            assert best is None
        else:
            assert best == CONFIGS[times.index(min(times))]


def test_a_verdict_tells_what_failed_from_what_was_not_reached() -> None:
    unreached = measured(B, math.inf, failure=f"{NOT_MEASURED}: the budget ran out")
    failed = measured(A, math.inf, failure="LaunchFailed: no")
    assert record([measured(C, 2.0), failed]).verdict == C.name
    assert record([failed, unreached]).verdict == "none works"
    assert record([unreached], effort="partial").verdict == "none measured yet"


def test_the_incumbent_stays_within_the_spread() -> None:
    tried = [measured(A, 10.0, spread_us=0.3), measured(B, 10.25, spread_us=0.1)]
    assert choose(tried) == A
    assert choose(tried, incumbent=B) == B
    assert choose([tried[0], measured(B, 10.31, spread_us=0.1)], incumbent=B) == A
    assert choose([tried[0], measured(B, math.inf)], incumbent=B) == A
    assert choose(tried, incumbent=C) == A


def test_on_an_exact_clock_only_a_tie_keeps_the_incumbent() -> None:
    tied = [measured(A, 10.0), measured(B, 10.0)]
    assert choose(tied) == A
    assert choose(tied, incumbent=B) == B
    assert choose([measured(A, 9.99), tied[1]], incumbent=B) == A


def test_merge_keeps_all_and_the_later_of_each() -> None:
    old = record([measured(A, 10.0), measured(B, 12.0)])
    new = record([measured(B, 9.0), measured(C, math.inf)], effort="exhaustive")
    merged = old.merged(new)
    assert {m.config: m.us for m in merged.measurements} == {A: 10.0, B: 9.0, C: math.inf}
    assert merged.best == B
    assert merged.effort == "exhaustive"
    assert merged.created == new.created
    # The order of arrival doesn't matter to what was measured when.
    assert set(new.merged(old).measurements) == set(merged.measurements)


def test_merge_refuses_another_key() -> None:
    with pytest.raises(BadArgument, match="is not a record of"):
        record([measured(A, 1.0)]).merged(record([], key=target(compute_units=8)))


@pytest.mark.parametrize(
    "options",
    [
        {"clock": Clock.WALL},
        {"key": target(clock=Clock.WALL)},
        {"key": target(device="emulator", clock=Clock.EMULATED), "clock": Clock.EMULATED},
        {"key": target(device="reference")},
        {"best": B},
    ],
)
def test_clocks_devices_and_the_choice_must_agree(options: dict[str, object]) -> None:
    with pytest.raises(BadArgument):
        record([measured(A, 1.0), measured(B, math.inf)], **options)


def test_unreadable_data_is_one_typed_error() -> None:
    good = record([measured(A, 1.0)]).to_json()
    for name in good.keys() - {"schema"}:
        with pytest.raises(RecordCorrupt, match=name):
            TuningRecord.from_json({k: v for k, v in good.items() if k != name})
    for name, value in (
        ("measurements", [1]),
        ("best", {"tile_m": 3}),
        ("clock", "sundial"),
        ("target", None),
        ("environment", {"device": 3}),
    ):
        with pytest.raises(RecordCorrupt):
            TuningRecord.from_json(good | {name: value})


def test_the_id_is_that_of_the_whole_key() -> None:
    one = record([measured(A, 1.0)])
    assert one.id == record([]).id == one.full_key.id
    assert one.environment == ENVIRONMENT
