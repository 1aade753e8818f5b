"""Records between stores: files of many records, merging them in, and what differs.

Owns the form of an export and the rule by which two records of one key become one. Knows nothing
of how a person is told of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import GemmConfig
from ..errors import BadArgument
from .record import SCHEMA, TuningRecord
from .store import Store

KIND = "inductor_flydsl tuning records"


def to_export(records: Iterable[TuningRecord]) -> dict[str, Any]:
    """Records as one JSON document."""
    return {"kind": KIND, "schema": SCHEMA, "records": [r.to_json() for r in records]}


def from_export(text: str, name: str) -> list[TuningRecord]:
    """Inverse of `to_export`.

    Args:
        text: the document.
        name: of its file, for messages.

    Raises:
        BadArgument: it is no export, or one of a newer version.
        RecordCorrupt: a record in it is unreadable.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise BadArgument("file", name, f"is not JSON ({error})", "pass an export") from error
    if not isinstance(data, dict) or data.get("kind") != KIND:
        way = "make one with inductor-flydsl cache export"
        raise BadArgument("file", name, "is not an export of tuning records", way)
    if not isinstance(data.get("schema"), int) or data["schema"] > SCHEMA:
        way = "upgrade inductor-flydsl"
        raise BadArgument("file", name, f"has schema {data.get('schema')!r}, over {SCHEMA}", way)
    return [TuningRecord.from_json(record) for record in data["records"]]


def load(path: Path) -> list[TuningRecord]:
    """The records of an export file or of a store's directory.

    Raises:
        BadArgument: there is neither under this path.
        RecordCorrupt: a record in an export is unreadable.
    """
    if path.is_dir():
        return list(Store(path).records())
    try:
        return from_export(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        way = "pass an export or a store's directory"
        raise BadArgument("file", str(path), f"cannot be read ({error})", way) from error


@dataclass(frozen=True, kw_only=True)
class Merge:
    """What importing one record does.

    Attributes:
        id, merged: the key's id, and the record that is stored then.
        state: ``new``, ``same`` (nothing changes) or ``merged``.
        conflict: both had a choice and they differ; (held, imported).
    """

    id: str
    merged: TuningRecord
    state: str
    conflict: tuple[GemmConfig, GemmConfig] | None = None


def merge_into(
    store: Store, records: Iterable[TuningRecord], *, dry_run: bool = False
) -> list[Merge]:
    """Add records to a store; of each configuration the later measurement wins.

    Raises:
        StoreUnwritable: the store's directory cannot be written.
    """
    merges = []
    for record in records:
        held = store.peek(record.full_key)
        merged = record if held is None else held.merged(record)
        state = "new" if held is None else "same" if merged == held else "merged"
        conflict = None
        if held is not None and None not in (held.best, record.best) and held.best != record.best:
            assert held.best is not None and record.best is not None
            conflict = (held.best, record.best)
        if state != "same" and not dry_run:
            merged = store.put(record)
        merges.append(Merge(id=record.id, merged=merged, state=state, conflict=conflict))
    return merges


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One target in two sets of records; None where a set lacks it."""

    target: str
    left: TuningRecord | None
    right: TuningRecord | None

    @property
    def same_choice(self) -> bool:
        both = self.left is not None and self.right is not None
        return both and self.left.best == self.right.best  # type: ignore[union-attr]


def compare_sets(left: Iterable[TuningRecord], right: Iterable[TuningRecord]) -> list[Difference]:
    """Two sets of records side by side, target by target, whatever versions measured them.

    Of several records of one target the latest counts.
    """
    sides = [_latest(left), _latest(right)]
    names = sorted(sides[0].keys() | sides[1].keys())
    return [Difference(target=n, left=sides[0].get(n), right=sides[1].get(n)) for n in names]


def _latest(records: Iterable[TuningRecord]) -> dict[str, TuningRecord]:
    latest: dict[str, TuningRecord] = {}
    for record in records:
        held = latest.get(record.key.digest)
        if held is None or held.created <= record.created:
            latest[record.key.digest] = record
    return latest


__all__ = [
    "Difference",
    "Merge",
    "compare_sets",
    "from_export",
    "load",
    "merge_into",
    "to_export",
]
