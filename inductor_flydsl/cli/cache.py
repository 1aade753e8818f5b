"""`inductor-flydsl cache`: what is in the tuning store."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from .. import settings
from ..errors import RecordMissing
from ..records import ListedFile, Store, TuningRecord
from . import FAILED, OK, UsageError
from .output import emit_json, microseconds, say, table

SHOWN_KEY = 12


def run(arguments: argparse.Namespace) -> int:
    store = Store(settings.current().cache_dir)
    verbs: dict[str, Callable[[argparse.Namespace, Store], int]] = {
        "dir": _dir,
        "list": _list,
        "show": _show,
        "clear": _clear,
    }
    return verbs[arguments.cache_verb](arguments, store)


def _dir(arguments: argparse.Namespace, store: Store) -> int:
    if arguments.json:
        emit_json({"cache_dir": str(store.root)})
    else:
        print(store.root)
    return OK


def _list(arguments: argparse.Namespace, store: Store) -> int:
    entries = list(store.entries())
    for entry in entries:
        if entry.record is None:
            say(f"{entry.path}: {entry.reason}")
    records = [entry.record for entry in entries if entry.record is not None]
    if arguments.json:
        emit_json([summary(record) for record in records])
        return OK
    if not records:
        say(f"no records in {store.root}")
        return OK
    header = ("KEY", "PROBLEM", "DEVICE", "CLOCK", "BEST", "US", "TRIED", "REJECTED", "WRITTEN")
    print(table(header, (_row(record) for record in records)))
    return OK


def summary(record: TuningRecord) -> dict[str, object]:
    """A record in a few plain fields."""
    best = record.best_measurement
    return {
        "key": record.id,
        "problem": record.key.problem.to_json(),
        "device": record.device,
        "clock": record.clock.value,
        "best": None if best is None else best.config.name,
        "us": None if best is None else best.us,
        "spread_us": None if best is None else best.spread_us,
        "tried": len(record.measurements),
        "rejected": len(record.rejected),
        "created": record.created,
    }


def _row(record: TuningRecord) -> tuple[object, ...]:
    best = record.best_measurement
    return (
        record.id[:SHOWN_KEY],
        record.key.problem,
        record.device,
        record.clock.value,
        "none works" if best is None else best.config.name,
        microseconds(None if best is None else best.us),
        len(record.measurements),
        len(record.rejected),
        record.created[:16] + "Z",
    )


def find(store: Store, prefix: str) -> ListedFile:
    """The one record file whose key starts with `prefix`.

    Raises:
        RecordMissing: there is none.
        UsageError: there is more than one.
    """
    entries = [e for e in store.entries() if prefix and e.id.startswith(prefix)]
    if not entries:
        raise RecordMissing(
            f"KEY={prefix!r} is not in {store.root}; see inductor-flydsl cache list"
        )
    if len(entries) > 1:
        matches = ", ".join(e.id for e in entries[:5])
        more = f" and {len(entries) - 5} more" if len(entries) > 5 else ""
        raise UsageError("KEY", prefix, f"is ambiguous: {matches}{more}", "give more digits")
    return entries[0]


def _show(arguments: argparse.Namespace, store: Store) -> int:
    entry = find(store, arguments.key)
    if entry.record is None:
        say(f"{entry.path}: {entry.reason}")
        return FAILED
    if arguments.json:
        emit_json({"key": entry.id, "path": str(entry.path), **entry.record.to_json()})
        return OK
    print(describe(entry.record))
    print(f"file         {entry.path}")
    return OK


def describe(record: TuningRecord) -> str:
    """A record for a person."""
    key, environment = record.key, record.environment
    lines = [
        f"key          {record.id}",
        f"problem      {key.problem}",
        f"device       {record.device} ({key.arch}, {key.compute_units} CUs)",
        f"clock        {record.clock.value}",
        f"written      {record.created}, effort {record.effort}",
        f"versions     plugin {environment.plugin}, flydsl {environment.flydsl}, "
        f"kernel sources {environment.sources[:12]}",
    ]
    lines += [f"             {name} {value}" for name, value in environment.device]
    lines += ["", measurements_table(record)]
    lines += [f"  {m.config.name} rejected: {m.failure}" for m in record.rejected]
    return "\n".join(lines)


def measurements_table(record: TuningRecord) -> str:
    """Every measurement of a record, the fastest first, under the name of its clock."""
    rows = [
        (
            m.config.name + (" *" if m.config == record.best else ""),
            microseconds(m.us),
            microseconds(m.spread_us) if m.ok else "-",
            m.rounds if m.ok else "-",
            "-" if m.max_error is None else f"{m.max_error:g}",
            "chosen" if m.config == record.best else "ok" if m.ok else "rejected",
        )
        for m in sorted(record.measurements, key=lambda m: m.us)
    ]
    us = f"US ({record.clock.value})"
    return table(("CONFIG", us, "SPREAD", "ROUNDS", "MAX ULP", "RESULT"), rows)


def _clear(arguments: argparse.Namespace, store: Store) -> int:
    ids = [entry.id for entry in store.entries()]
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
