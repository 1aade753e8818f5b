from __future__ import annotations

import json
import logging
import math
from dataclasses import replace
from pathlib import Path

import pytest
from unit_fakes import CONFIGS, ENVIRONMENT, measured, record, target

from inductor_flydsl.errors import StoreUnwritable
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.records import RecordKey, Store

A, B, C = CONFIGS[:3]
RECORD = record([measured(A, 10.0), measured(B, math.inf)])
KEY = RECORD.full_key


def _files(store: Store) -> list[str]:
    return sorted(p.name for p in store.folder.iterdir())


def test_put_then_get(tmp_path: Path) -> None:
    store = Store(tmp_path / "deep" / "store")
    assert store.get(KEY) is None
    assert list(store.entries()) == []
    assert store.put(RECORD) == RECORD
    assert Store(store.root).get(KEY) == RECORD
    assert list(store.records()) == [RECORD]
    assert _files(store) == [f"{RECORD.id}.json"]


def test_put_merges_with_what_is_stored(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(RECORD)
    stored = store.put(record([measured(C, 8.0)]))
    assert stored == store.get(KEY)
    assert {m.config for m in stored.measurements} == {A, B, C}
    assert stored.best == C


def test_another_target_or_environment_is_a_miss(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(RECORD)
    assert store.get(replace(KEY, target=target(compute_units=8))) is None
    assert store.get(replace(KEY, environment=replace(ENVIRONMENT, flydsl="0.4"))) is None
    assert store.get(replace(KEY, target=target(device="reference"))) is None


@pytest.mark.parametrize(
    ("mode", "finds", "writes"),
    [
        ("readwrite", True, True),
        ("readonly", True, False),
        ("require", True, False),
        ("refresh", False, True),
        ("off", False, False),
    ],
)
def test_modes(tmp_path: Path, mode: str, finds: bool, writes: bool) -> None:
    Store(tmp_path).put(RECORD)
    store = Store(tmp_path, mode)
    assert (store.get(KEY) == RECORD) is finds
    assert (store.peek(KEY) == RECORD) is (mode != "off")
    store.put(record([], key=target(compute_units=8)))
    assert len(list(Store(tmp_path).records())) == 1 + writes


def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="mode='rw'"):
        Store(tmp_path, "rw")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"schema": "1"}',
        b'{"schema": 0}',
        b'{"schema": true}',
        b'{"schema": 1}',
        json.dumps(RECORD.to_json() | {"clock": "wall"}).encode(),
        json.dumps(RECORD.to_json()).encode()[:-20],
    ],
)
def test_a_corrupt_file_is_a_logged_miss_and_is_set_aside(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    store.put(RECORD)
    path = store.path(RECORD.id)
    path.write_bytes(content)
    assert [e.record for e in store.entries()] == [None]
    with caplog.at_level(logging.WARNING):
        assert store.get(KEY) is None
    assert path.name in caplog.text
    aside = path.with_name(path.name + ".corrupt-1")
    assert aside.read_bytes() == content
    assert not path.exists()
    store.put(RECORD)
    assert store.get(KEY) == RECORD
    assert aside.read_bytes() == content


def test_each_corrupt_file_is_kept(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(3):
        store.put(RECORD)
        store.path(RECORD.id).write_text(f"broken {number}")
        if number % 2:
            store.put(RECORD)
        else:
            store.get(KEY)
    kept = sorted(store.folder.glob("*.corrupt-*"))
    assert [p.read_text() for p in kept] == ["broken 0", "broken 1", "broken 2"]


def test_a_read_only_store_sets_nothing_aside(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(RECORD)
    store.path(RECORD.id).write_text("broken")
    assert Store(tmp_path, "readonly").get(KEY) is None
    assert store.path(RECORD.id).read_text() == "broken"


def test_a_newer_schema_is_a_miss_and_stays(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(RECORD)
    path = store.path(RECORD.id)
    newer = json.dumps({"schema": 2, "shape": "unknown"})
    path.write_text(newer)
    assert store.get(KEY) is None
    store.put(RECORD)
    assert path.read_text() == newer
    (entry,) = store.entries()
    assert entry.record is None and "newer version" in str(entry.reason)


def test_a_file_under_anothers_name_serves_nobody(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(RECORD)
    other = record([measured(B, 3.0)], key=target(compute_units=8))
    store.path(RECORD.id).rename(store.path(other.id))
    assert store.get(other.full_key) is None
    store.put(other)
    assert store.get(other.full_key) == other
    assert f"{other.id}.json.corrupt-1" in _files(store)


def test_remove(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(RECORD)
    assert store.remove(RECORD.id) is True
    assert store.remove(RECORD.id) is False
    assert store.get(KEY) is None


def test_a_directory_that_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    store = Store(blocker / "store")
    with pytest.raises(StoreUnwritable, match="INDUCTOR_FLYDSL_CACHE_DIR"):
        store.put(RECORD)
    assert store.get(KEY) is None


def test_leftovers_of_a_killed_writer_go_with_the_next_write(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(RECORD)
    leftover = store.folder / f"{RECORD.id}.json.123.abcd.tmp"
    leftover.write_text('{"schema')
    assert list(store.records()) == [RECORD]
    store.put(RECORD)
    assert _files(store) == [f"{RECORD.id}.json"]


def test_the_nearest_record_differs_in_the_fewest_fields(tmp_path: Path) -> None:
    store = Store(tmp_path)
    asked = RecordKey(target=target(), environment=ENVIRONMENT)
    assert store.nearest(asked) is None
    far = record([], key=target(GemmProblem.dense(1, 2, 3), compute_units=8))
    store.put(far)
    found = store.nearest(asked)
    assert found is not None and found[0] == far
    same_target = record([], environment=replace(ENVIRONMENT, flydsl="0.4", sources="x"))
    store.put(same_target)
    store.path("0" * 16 + "-00000000").write_text("broken")
    found = store.nearest(asked)
    assert found is not None and found[0] == same_target
    assert [f.field for f in found[1]] == ["environment.flydsl", "environment.sources"]
