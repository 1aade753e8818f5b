"""`inductor-flydsl cache prune|clear`: what deletes records. Only the user's layer is touched."""

from __future__ import annotations

import argparse
import datetime
import re
import sys

from .. import compiler
from ..errors import MissingDependency
from ..records import Store, TuningRecord
from ..targets import stale_reason
from . import FAILED, OK, UsageError
from .cache import SHOWN_KEY
from .output import emit_json, say, table

UNITS = {"h": 1 / 24, "d": 1.0, "w": 7.0}


def prune(arguments: argparse.Namespace, store: Store) -> int:
    """Delete records that are stale or old, and what exceeds the number to keep."""
    if not (arguments.stale or arguments.older_than or arguments.keep is not None):
        way = "pass --stale, --older-than AGE or --keep N"
        raise UsageError("prune", "", "has no rule", way)
    if arguments.keep is not None and arguments.keep < 0:
        raise UsageError("--keep", arguments.keep, "is negative", "use 0 or more")
    records = list(Store(store.root).records())
    doomed = _doomed(arguments, records)
    if not arguments.dry_run:
        for record in doomed:
            store.remove(record.id)
    if arguments.json:
        emit_json(
            {
                "cache_dir": str(store.root),
                "records": [{"key": r.id, "reason": why} for r, why in doomed.items()],
                "dry_run": arguments.dry_run,
            }
        )
        return OK
    if doomed:
        rows = [(r.id[:SHOWN_KEY], r.key.problem, r.device, why) for r, why in doomed.items()]
        print(table(("KEY", "PROBLEM", "DEVICE", "WHY"), rows))
    verb = "would delete" if arguments.dry_run else "deleted"
    print(f"{verb} {len(doomed)} of {len(records)} records in {store.root}")
    return OK


def _doomed(arguments: argparse.Namespace, records: list[TuningRecord]) -> dict[TuningRecord, str]:
    """Records to delete, with the reason; --keep protects the latest from the other rules."""
    reasons: dict[TuningRecord, str] = {}
    sources = _sources() if arguments.stale else None
    limit = _before(arguments.older_than) if arguments.older_than else ""
    for record in records:
        stale = stale_reason(record, sources) if arguments.stale else None
        if stale:
            reasons[record] = stale
        elif record.created < limit:
            reasons[record] = f"older than {arguments.older_than}"
    if arguments.keep is None:
        return reasons
    groups: dict[str, list[TuningRecord]] = {}
    for record in sorted(records, key=lambda r: r.created, reverse=True):
        groups.setdefault(record.key.digest, []).append(record)
    only_rule = not (arguments.stale or arguments.older_than)
    for group in groups.values():
        for place, record in enumerate(group):
            if place < arguments.keep:
                reasons.pop(record, None)
            elif only_rule:
                reasons[record] = f"not among the latest {arguments.keep} of its problem"
    return reasons


def _sources() -> str | None:
    try:
        return compiler.source_fingerprint()
    except MissingDependency as error:
        say(f"records of compiled kernels count as stale: {error}")
        return None


def _before(age: str) -> str:
    """The time that long ago, in the form of `TuningRecord.created`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([hdw])", age)
    if match is None:
        raise UsageError("--older-than", age, "is not an age", "use for example 12h, 30d or 4w")
    days = float(match[1]) * UNITS[match[2]]
    try:
        then = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=days)
    except OverflowError:
        raise UsageError("--older-than", age, "is before any record", "use less") from None
    return then.isoformat(timespec="microseconds")


def clear(arguments: argparse.Namespace, store: Store) -> int:
    """Delete every record, after asking."""
    ids = [entry.id for entry in Store(store.root).entries()]
    removed = [] if arguments.dry_run else ids
    if ids and not arguments.dry_run and not arguments.yes and not _agreed(store, len(ids)):
        say("nothing was deleted")
        return FAILED
    for key_id in removed:
        store.remove(key_id)
    if arguments.json:
        emit_json({"cache_dir": str(store.root), "records": ids, "dry_run": arguments.dry_run})
    else:
        verb = "would delete" if arguments.dry_run else "deleted"
        print(f"{verb} {len(ids)} records in {store.root}")
    return OK


def _agreed(store: Store, count: int) -> bool:
    if not sys.stdin.isatty():
        raise UsageError("--yes", False, "is needed where nobody can be asked", "pass --yes")
    print(f"Delete {count} records in {store.root}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
