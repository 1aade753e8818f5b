"""The directory of tuning records: one JSON file a key.

Owns atomicity, locking and what happens to a file that cannot be read. A reader takes no lock:
files are only ever replaced whole. A writer holds the key's lock while it reads, merges and
replaces, so that no update is lost; the lock dies with its process. Uses no SQLite and no mmap,
which network file systems break. Never deletes what it cannot read.

A store has layers: the user's directory, which alone is written, over any number of others that
are only read, such as one that came with a container image.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import RecordCorrupt, StoreUnwritable
from ..locks import locked
from .key import TARGET_DIGITS, FieldDiff, RecordKey, difference
from .record import SCHEMA, TuningRecord

log = logging.getLogger(__name__)

LOCK_SECONDS = 60.0
MODES = ("readwrite", "readonly", "refresh", "require", "off")


@dataclass(frozen=True)
class ListedFile:
    """A record file as `Store.entries` found it; ``record`` is None with the reason beside it.

    ``layer`` is the directory of the store that it is in.
    """

    id: str
    path: Path
    record: TuningRecord | None
    reason: str | None = None

    @property
    def layer(self) -> Path:
        return self.path.parent.parent


class Store:
    """Tuning records under a directory, over those of other directories.

    Args:
        root: the directory; made on the first write.
        mode: ``readwrite``; ``readonly``: `put` does nothing; ``refresh``: `get` finds nothing;
            ``require``: as readonly, and the tuner treats a miss as an error; ``off``: neither.
        below: directories of the same form that are only read, the nearest first.
    """

    def __init__(self, root: Path, mode: str = "readwrite", below: Iterable[Path] = ()) -> None:
        if mode not in MODES:
            raise ValueError(f"mode={mode!r} is not one of {', '.join(MODES)}")
        self.root = Path(root)
        self.mode = mode
        self.below = tuple(Path(path) for path in below)

    @classmethod
    def over(cls, layers: Iterable[Path], mode: str = "readwrite") -> Store:
        """The store that a path list names: its first directory over the others."""
        root, *below = layers
        return cls(root, mode, below)

    @property
    def layers(self) -> tuple[Path, ...]:
        """Every directory, the one that is written first."""
        return (self.root, *self.below)

    @property
    def writes(self) -> bool:
        return self.mode in ("readwrite", "refresh")

    @property
    def folder(self) -> Path:
        """Where the record files are."""
        return self.root / "records"

    def path(self, key_id: str) -> Path:
        """The file of a key in the directory that is written."""
        return _file(self.root, key_id)

    def get(self, key: RecordKey) -> TuningRecord | None:
        """The record of exactly this key, or None; never raises for what is on disk."""
        return None if self.mode in ("refresh", "off") else self.peek(key)

    def peek(self, key: RecordKey) -> TuningRecord | None:
        """As `get`, in every mode but ``off``."""
        if self.mode == "off":
            return None
        merged: TuningRecord | None = None
        for root in reversed(self.layers):
            found = self._peek(root, key)
            if found is not None:
                merged = found if merged is None else merged.merged(found)
        return merged

    def _peek(self, root: Path, key: RecordKey) -> TuningRecord | None:
        path = _file(root, key.id)
        try:
            record = _read(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            log.warning("tuning record %s cannot be opened (%s); treated as a miss", path, error)
            return None
        except RecordCorrupt as error:
            log.warning("tuning record %s: %s; treated as a miss", path, error)
            if root == self.root:
                self._set_aside(key.id)
            return None
        if record is None:
            return None
        if record.full_key != key:
            # Sixteen digits of a digest, or a file that was copied under another's name.
            log.warning("tuning record %s is of another key; treated as a miss", path)
            return None
        return record

    def put(self, record: TuningRecord) -> TuningRecord:
        """Merge a record into its file.

        Returns:
            What is stored now: ``record`` merged with what other processes had stored.

        Raises:
            StoreUnwritable: the directory cannot be written, or another process holds the lock
                for longer than a minute.
        """
        if not self.writes:
            return record
        path = self.path(record.id)
        try:
            with self._lock(record.id):
                _remove_leftovers(path)
                held = self._held(record, path)
                if isinstance(held, TuningRecord):
                    record = held.merged(record)
                elif held:
                    return record
                _replace(path, record.to_json())
        except OSError as error:
            raise StoreUnwritable(
                f"cache_dir={str(self.root)!r} cannot be written ({error}); set "
                "INDUCTOR_FLYDSL_CACHE_DIR to a directory of yours or "
                "INDUCTOR_FLYDSL_CACHE=readonly"
            ) from error
        return record

    def _held(self, record: TuningRecord, path: Path) -> TuningRecord | bool:
        """What is on disk for the key; True: something that must stay as it is."""
        try:
            held = _read(path)
        except FileNotFoundError:
            return False
        except RecordCorrupt as error:
            log.warning("tuning record %s: %s; replaced", path, error)
            _rename_aside(path)
            return False
        if held is None:
            log.warning("tuning record %s is of a newer version and stays; nothing stored", path)
            return True
        if held.full_key != record.full_key:
            log.warning("tuning record %s is of another key and is set aside", path)
            _rename_aside(path)
            return False
        return held

    def entries(self) -> Iterator[ListedFile]:
        """Every record file, readable or not, by id; one file a layer that has the id."""
        paths = [path for root in self.layers for path in (root / "records").glob("*.json")]
        for path in sorted(paths, key=lambda path: path.stem):
            try:
                record = _read(path)
            except (OSError, RecordCorrupt) as error:
                yield ListedFile(path.stem, path, None, str(error))
                continue
            reason = None if record else f"written by a newer version (schema over {SCHEMA})"
            yield ListedFile(path.stem, path, record, reason)

    def records(self) -> Iterator[TuningRecord]:
        """Every readable record, by id, merged over the layers as `get` does."""
        merged: dict[str, TuningRecord] = {}
        for root in reversed(self.layers):
            for entry in Store(root).entries():
                found = entry.record
                if found is not None and entry.id == found.id:
                    held = merged.get(found.id)
                    merged[found.id] = found if held is None else held.merged(found)
        yield from (merged[key_id] for key_id in sorted(merged))

    def remove(self, key_id: str) -> bool:
        """Delete one record file; False if there was none.

        Raises:
            StoreUnwritable: the directory cannot be written.
        """
        path = self.path(key_id)
        try:
            if not path.exists():
                return False
            with self._lock(key_id):
                _remove_leftovers(path)
                path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreUnwritable(
                f"cache_dir={str(self.root)!r} cannot be written ({error}); check its owner"
            ) from error
        return True

    def nearest(self, key: RecordKey) -> tuple[TuningRecord, list[FieldDiff]] | None:
        """The stored record that differs from `key` in the fewest fields, and those fields.

        A record of the same target is nearer than any of another.
        """
        best: tuple[TuningRecord, list[FieldDiff]] | None = None
        for pattern in (f"{key.target.digest[:TARGET_DIGITS]}-*.json", "*.json"):
            folders = [root / "records" for root in self.layers]
            for path in [path for folder in folders for path in sorted(folder.glob(pattern))]:
                try:
                    record = _read(path)
                except (OSError, RecordCorrupt):
                    continue
                if record is None:
                    continue
                fields = difference(key, record.full_key)
                if best is None or len(fields) < len(best[1]):
                    best = record, fields
            if best is not None:
                return best
        return None

    @contextlib.contextmanager
    def _lock(self, key_id: str) -> Iterator[None]:
        locks = self.root / "locks"
        self.folder.mkdir(parents=True, exist_ok=True)
        locks.mkdir(exist_ok=True)
        # Lock files stay: removing one while another process opens it would split the lock.
        with locked(locks / f"{key_id}.lock", timeout=LOCK_SECONDS):
            yield

    def _set_aside(self, key_id: str) -> None:
        if not self.writes:
            return
        path = self.path(key_id)
        try:
            with self._lock(key_id):
                try:
                    # Another process may have stored a good one meanwhile.
                    _read(path)
                except RecordCorrupt:
                    _rename_aside(path)
        except FileNotFoundError:
            return
        except OSError as error:
            log.warning("tuning record %s cannot be set aside (%s)", path, error)


def _file(root: Path, key_id: str) -> Path:
    return root / "records" / f"{key_id}.json"


def _read(path: Path) -> TuningRecord | None:
    """A record file; None if a newer version wrote it.

    Raises:
        OSError: the file cannot be opened.
        RecordCorrupt: it can, and is no record.
    """
    try:
        data = json.loads(path.read_bytes())
    except ValueError as error:
        raise RecordCorrupt(f"not JSON ({error})") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise RecordCorrupt(f"schema={schema!r} is not a version")
    if schema > SCHEMA:
        log.info("tuning record %s has schema %d, newer than %d; a miss", path, schema, SCHEMA)
        return None
    return TuningRecord.from_json(data)


def _replace(path: Path, data: dict[str, Any]) -> None:
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    with open(temporary, "xb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    # The rename itself is durable only once the directory is; some file systems refuse to say.
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(directory)
    finally:
        os.close(directory)


def _remove_leftovers(path: Path) -> None:
    """Remove temporary files of writers that died; call under the key's lock."""
    for temporary in path.parent.glob(f"{path.name}.*.tmp"):
        temporary.unlink(missing_ok=True)


def _rename_aside(path: Path) -> None:
    number = 1
    while path.with_name(f"{path.name}.corrupt-{number}").exists():
        number += 1
    os.replace(path, path.with_name(f"{path.name}.corrupt-{number}"))
