"""`inductor-flydsl cache diff|export|import`: records between stores."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from ..errors import BadArgument
from ..records import FieldDiff, Store, TuningRecord, difference
from ..records.transfer import Difference, Merge, compare_sets, load, merge_into, to_export
from . import FAILED, OK
from .cache import SHOWN_KEY, find, matching, places
from .output import emit_json, microseconds, say, table


def diff(arguments: argparse.Namespace, store: Store) -> int:
    """Two records, or two sets of them; status 1 if they differ."""
    paths = [Path(text) for text in (arguments.left, arguments.right)]
    if all(path.exists() for path in paths):
        return _diff_sets(arguments, *(load(path) for path in paths))
    left, right = (find(store, text) for text in (arguments.left, arguments.right))
    for entry in (left, right):
        if entry.record is None:
            say(f"{entry.path}: {entry.reason}")
            return FAILED
    assert left.record is not None and right.record is not None
    return _diff_records(arguments, left.record, right.record)


def _diff_records(arguments: argparse.Namespace, left: TuningRecord, right: TuningRecord) -> int:
    fields = difference(left.full_key, right.full_key)
    # Times on different clocks, or of different problems, are shown and never set in relation.
    comparable = left.clock == right.clock and left.key.problem == right.key.problem
    rows = _times(left, right, comparable)
    if arguments.json:
        emit_json(
            {
                "left": left.id,
                "right": right.id,
                "fields": [vars(field) for field in fields],
                "same_choice": left.best == right.best,
                "comparable": comparable,
                "times": rows,
            }
        )
    else:
        _print_fields(fields)
        print(f"choice: {_choice(left)} | {_choice(right)}")
        header = ("CONFIG", f"US A ({left.clock.value})", f"US B ({right.clock.value})", "B/A")
        cells = [
            (r["name"], microseconds(r["left"]), microseconds(r["right"]), _ratio(r)) for r in rows
        ]
        print(table(header, cells))
    return FAILED if fields or left.best != right.best or left != right else OK


def _print_fields(fields: list[FieldDiff]) -> None:
    for field in fields:
        print(f"{field.field}: {field.asked!r} | {field.stored!r}")


def _choice(record: TuningRecord | None) -> str:
    if record is None:
        return "no record"
    best = record.best_measurement
    return record.verdict if best is None else f"{record.verdict} {microseconds(best.us)} us"


def _ratio(row: dict[str, Any]) -> str:
    return "-" if row["ratio"] is None else f"{row['ratio']:.3f}"


def _times(left: TuningRecord, right: TuningRecord, comparable: bool) -> list[dict[str, Any]]:
    configs = dict.fromkeys(m.config for r in (left, right) for m in r.measurements)
    rows = []
    for config in configs:
        a, b = (r.measured(config) for r in (left, right))
        one, two = (m.us if m is not None and m.ok else None for m in (a, b))
        ratio = two / one if one and two and comparable else None
        rows.append({"name": config.name, "left": one, "right": two, "ratio": ratio})
    return rows


def _diff_sets(
    arguments: argparse.Namespace, left: list[TuningRecord], right: list[TuningRecord]
) -> int:
    found = compare_sets(left, right)
    differing = [d for d in found if not d.same_choice]
    if arguments.json:
        emit_json([_set_row(d) for d in differing])
    else:
        rows = [(_subject(d), _choice(d.left), _choice(d.right)) for d in differing]
        if rows:
            print(table(("PROBLEM", "A", "B"), rows))
        print(f"{len(found)} problems, {len(differing)} differ")
    return FAILED if differing else OK


def _subject(d: Difference) -> str:
    record = d.left or d.right
    assert record is not None
    return f"{record.key.problem} on {record.key.device} ({record.clock.value})"


def _set_row(d: Difference) -> dict[str, Any]:
    sides = {"left": d.left, "right": d.right}
    row: dict[str, Any] = {"subject": _subject(d)}
    for name, record in sides.items():
        best = record.best_measurement if record is not None else None
        row[name] = None if record is None else record.id
        row[f"{name}_best"] = None if best is None else best.config.name
        row[f"{name}_us"] = None if best is None else best.us
    return row


def export(arguments: argparse.Namespace, store: Store) -> int:
    """Records as one JSON document, to a file or to stdout."""
    records = matching(store, arguments.glob)
    text = json.dumps(to_export(records), indent=1, allow_nan=False) + "\n"
    if arguments.file == "-":
        sys.stdout.write(text)
        return OK
    try:
        Path(arguments.file).write_text(text)
    except OSError as error:
        problem = f"cannot be written ({error})"
        raise BadArgument("FILE", arguments.file, problem, "name another") from error
    if arguments.json:
        emit_json({"file": arguments.file, "records": [r.id for r in records]})
    else:
        say(f"{len(records)} records of {places(store)} written to {arguments.file}")
    return OK


def import_(arguments: argparse.Namespace, store: Store) -> int:
    """Merge records in; what both sides had chosen differently is listed."""
    records = [record for name in arguments.files for record in load(Path(name))]
    merges = merge_into(store, records, dry_run=arguments.dry_run)
    if arguments.json:
        emit_json({"dry_run": arguments.dry_run, "records": [_merge_row(m) for m in merges]})
        return OK
    conflicts = [m for m in merges if m.conflict is not None]
    if conflicts:
        print("Both sides had a choice; of each configuration the later measurement counts:")
        print(table(("KEY", "PROBLEM", "HELD", "IMPORTED", "NOW"), map(_conflict, conflicts)))
    counts = {state: sum(m.state == state for m in merges) for state in ("new", "merged", "same")}
    verb = "would be" if arguments.dry_run else "are"
    told = ", ".join(f"{count} {state}" for state, count in counts.items())
    print(f"{len(merges)} records {verb} imported into {store.root}: {told}")
    return OK


def _conflict(merge: Merge) -> tuple[object, ...]:
    assert merge.conflict is not None
    held, imported = merge.conflict
    merged = merge.merged
    names = (held.name, imported.name, merged.verdict)
    return (merge.id[:SHOWN_KEY], merged.key.problem, *names)


def _merge_row(merge: Merge) -> dict[str, Any]:
    best = merge.merged.best
    return {
        "key": merge.id,
        "state": merge.state,
        "best": None if best is None else best.name,
        "conflict": None if merge.conflict is None else [c.name for c in merge.conflict],
    }
