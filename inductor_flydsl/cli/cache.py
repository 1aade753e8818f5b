"""`inductor-flydsl cache`: what is in the tuning store."""

from __future__ import annotations

import argparse
import collections
import fnmatch
import importlib
import math
from collections.abc import Callable, Iterable

from .. import settings
from ..errors import RecordMissing
from ..records import ListedFile, Measurement, Store, TuningRecord
from . import FAILED, OK, UsageError
from .output import emit_json, microseconds, say, table

SHOWN_KEY = 12
COLUMNS: dict[str, Callable[[TuningRecord], object]] = {
    "key": lambda r: r.id,
    "problem": lambda r: str(r.key.problem),
    "m": lambda r: r.key.problem.m,
    "n": lambda r: r.key.problem.n,
    "k": lambda r: r.key.problem.k,
    "device": lambda r: r.device,
    "clock": lambda r: r.clock.value,
    "best": lambda r: r.verdict,
    "us": lambda r: r.best_measurement.us if r.best_measurement else math.inf,
    "spread": lambda r: r.best_measurement.spread_us if r.best_measurement else math.inf,
    "tflops": lambda r: _tflops(r),
    "tried": lambda r: len(r.measurements),
    "rejected": lambda r: len(r.rejected),
    "effort": lambda r: r.effort,
    "flydsl": lambda r: r.environment.flydsl,
    "written": lambda r: r.created,
}
SHOWN = ("key", "problem", "device", "clock", "best", "us", "tried", "rejected", "written")
VERBS = {"diff": "cache_exchange", "export": "cache_exchange", "import": "cache_exchange"}
VERBS |= {"prune": "cache_delete", "clear": "cache_delete", "report": "cache_report"}


def run(arguments: argparse.Namespace) -> int:
    store = Store.over(settings.current().cache_dir)
    verbs: dict[str, Callable[[argparse.Namespace, Store], int]] = {
        "dir": _dir,
        "list": _list,
        "show": _show,
        "stats": _stats,
    }
    verb = arguments.cache_verb
    if verb in VERBS:
        module = importlib.import_module(f".{VERBS[verb]}", __package__)
        status: int = getattr(module, verb.replace("import", "import_"))(arguments, store)
        return status
    return verbs[verb](arguments, store)


def _dir(arguments: argparse.Namespace, store: Store) -> int:
    if arguments.json:
        emit_json({"cache_dir": str(store.root), "below": [str(path) for path in store.below]})
    else:
        print("\n".join(str(path) for path in store.layers))
    return OK


def places(store: Store) -> str:
    """The directories of a store, for messages."""
    return ", ".join(str(path) for path in store.layers)


def matching(store: Store, glob: str | None, *, quiet: bool = False) -> list[TuningRecord]:
    """The readable records that a pattern selects; the unreadable ones are told on stderr."""
    for entry in () if quiet else store.entries():
        if entry.record is None:
            say(f"{entry.path}: {entry.reason}")
    return [record for record in store.records() if glob is None or matches(record, glob)]


def matches(record: TuningRecord, glob: str) -> bool:
    """Whether a shell pattern fits the key, the problem, the device or the choice, whole."""
    texts = [record.id, str(record.key.problem), record.device]
    texts += [] if record.best is None else [record.best.name]
    return any(fnmatch.fnmatchcase(text, glob) for text in texts)


def _list(arguments: argparse.Namespace, store: Store) -> int:
    columns = _columns(arguments.columns)
    records = matching(store, arguments.glob)
    if arguments.sort:
        (name,) = _columns(arguments.sort, "--sort")
        records.sort(key=COLUMNS[name])  # type: ignore[arg-type]
    if arguments.reverse:
        records.reverse()
    if arguments.json:
        emit_json([summary(record) for record in records])
        return OK
    if not records:
        say(f"no records in {places(store)}" + (" that match" if arguments.glob else ""))
        return OK
    print(table([c.upper() for c in columns], ([_cell(r, c) for c in columns] for r in records)))
    return OK


def _columns(text: str | None, argument: str = "--columns") -> list[str]:
    if text is None:
        return list(SHOWN)
    names = [name.strip().lower() for name in text.split(",")]
    for name in names:
        if name not in COLUMNS:
            raise UsageError(argument, name, "is not a column", f"use {', '.join(COLUMNS)}")
    return names


def _cell(record: TuningRecord, column: str) -> object:
    value = COLUMNS[column](record)
    if column in ("us", "spread"):
        return microseconds(float(value))  # type: ignore[arg-type]
    if column == "tflops":
        return f"{value:.1f}" if value else "-"
    if column == "key":
        return record.id[:SHOWN_KEY]
    return str(value)[:16] + "Z" if column == "written" else value


def _tflops(record: TuningRecord) -> float:
    best = record.best_measurement
    return 0.0 if best is None else record.key.problem.flops / best.us / 1e6


def summary(record: TuningRecord) -> dict[str, object]:
    """A record in a few plain fields."""
    best = record.best_measurement
    return {
        "key": record.id,
        "problem": record.key.problem.to_json(),
        "device": record.device,
        "clock": record.clock.value,
        "best": None if best is None else best.config.name,
        "verdict": record.verdict,
        "us": None if best is None else best.us,
        "spread_us": None if best is None else best.spread_us,
        "tried": len(record.measurements),
        "rejected": len(record.rejected),
        "created": record.created,
    }


def find(store: Store, prefix: str) -> ListedFile:
    """The one record file whose key starts with `prefix`.

    Raises:
        RecordMissing: there is none.
        UsageError: there is more than one.
    """
    found = [e for e in store.entries() if prefix and e.id.startswith(prefix)]
    # The same key in several layers is one record; the first layer's file stands for it.
    entries = list({e.id: e for e in sorted(found, key=_depth(store), reverse=True)}.values())
    if not entries:
        raise RecordMissing(
            f"KEY={prefix!r} is not in {places(store)}; see inductor-flydsl cache list"
        )
    if len(entries) > 1:
        matches = ", ".join(e.id for e in entries[:5])
        more = f" and {len(entries) - 5} more" if len(entries) > 5 else ""
        raise UsageError("KEY", prefix, f"is ambiguous: {matches}{more}", "give more digits")
    return entries[0]


def _depth(store: Store) -> Callable[[ListedFile], int]:
    return lambda entry: store.layers.index(entry.layer)


def _show(arguments: argparse.Namespace, store: Store) -> int:
    entry = find(store, arguments.key)
    if entry.record is None:
        say(f"{entry.path}: {entry.reason}")
        return FAILED
    record = store.peek(entry.record.full_key) or entry.record
    if arguments.json:
        emit_json({"key": entry.id, "path": str(entry.path), **record.to_json()})
        return OK
    print(describe(record))
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
    lines += [f"  {m.config.name}: {m.note}" for m in record.measurements if m.note]
    if record.contest is not None:
        lines += ["", f"Inductor's benchmark of {record.contest.held_at[:16]}Z"]
        rows = [(b, n, microseconds(us)) for b, n, us in record.contest.entries]
        lines += [table(("BACKEND", "CHOICE", f"US ({record.clock.value})"), rows)]
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
            _result(record, m),
        )
        for m in sorted(record.measurements, key=lambda m: m.us)
    ]
    us = f"US ({record.clock.value})"
    return table(("CONFIG", us, "SPREAD", "ROUNDS", "MAX ULP", "RESULT"), rows)


def _result(record: TuningRecord, m: Measurement) -> str:
    if m.config == record.best:
        return "chosen"
    return "ok" if m.ok else "rejected" if m.tried else "not tried"


def _stats(arguments: argparse.Namespace, store: Store) -> int:
    records = matching(store, arguments.glob)
    found = statistics(records)
    found["bytes"] = sum(entry.path.stat().st_size for entry in store.entries())
    if arguments.json:
        emit_json(found)
        return OK
    print(f"{found['records']} records, {found['bytes']} bytes, in {places(store)}")
    rows = [
        (f"{device} ({clock})", *counts.values())
        for (device, clock), counts in _by_device(records).items()
    ]
    if rows:
        header = ("DEVICE", "RECORDS", "PROBLEMS", "TRIED", "REJECTED", "WITHOUT A CHOICE")
        print(table(header, rows))
    for title in ("pipelines", "tiles", "rejections"):
        counted = found[title]
        assert isinstance(counted, dict)
        if counted:
            print(f"\n{title}")
            print(table(("COUNT", "WHAT"), [(n, what) for what, n in counted.items()], "  "))
    for backend, won in _contests(records).items():
        print(f"\n{backend}: fastest in {won['won']} of {won['met']} benchmarks of Inductor's")
    return OK


def statistics(records: Iterable[TuningRecord]) -> dict[str, object]:
    """Counts over records, as plain data; times of different clocks are never put together."""
    records = list(records)
    bests = [r.best for r in records if r.best is not None]
    reasons = [(m.failure or "").split(":")[0] for r in records for m in r.rejected]
    return {
        "records": len(records),
        "devices": [
            {"device": device, "clock": clock, **counts}
            for (device, clock), counts in _by_device(records).items()
        ],
        "pipelines": _counted(b.pipeline for b in bests),
        "tiles": _counted(f"{b.tile_m}x{b.tile_n}x{b.tile_k}" for b in bests),
        "rejections": _counted(reasons),
        "backends": _contests(records),
    }


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(collections.Counter(names).most_common())


def _by_device(records: Iterable[TuningRecord]) -> dict[tuple[str, str], dict[str, int]]:
    groups: dict[tuple[str, str], list[TuningRecord]] = {}
    for record in records:
        groups.setdefault((record.key.device, record.clock.value), []).append(record)
    return {
        name: {
            "records": len(group),
            "problems": len({r.key.problem for r in group}),
            "tried": sum(len(r.measurements) for r in group),
            "rejected": sum(len(r.rejected) for r in group),
            "without_choice": sum(r.best is None for r in group),
        }
        for name, group in sorted(groups.items())
    }


def _contests(records: Iterable[TuningRecord]) -> dict[str, dict[str, int]]:
    """By backend: benchmarks of Inductor's that it took part in, and that it won."""
    counts: dict[str, dict[str, int]] = {}
    for record in records:
        for place, backend in enumerate(record.contest.backends if record.contest else ()):
            entry = counts.setdefault(backend, {"met": 0, "won": 0})
            entry["met"] += 1
            entry["won"] += place == 0
    return counts
