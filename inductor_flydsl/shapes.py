"""Lists of GEMM problems in files: CSV and JSONL in, the recording of a compile out.

Owns their form. Knows nothing of what is done with the problems.
"""

from __future__ import annotations

import csv
import json
import logging
import os
import threading
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from .errors import ProblemError
from .locks import locked
from .problem import GemmProblem

log = logging.getLogger(__name__)

LOCK_SECONDS = 10.0
_INTEGERS = {f.name for f in fields(GemmProblem) if f.type in (int, "int")}


def read(path: Path) -> list[GemmProblem]:
    """The problems of a file, each once, in the file's order.

    A line that starts with ``{`` is JSON: a problem as `GemmProblem.to_json` writes it, alone or
    under ``problem``, or the arguments of `GemmProblem.dense`. Other lines are CSV, with the
    names of those fields in the first line, or without names as `GemmProblem.parse` reads.
    Empty lines and those that start with ``#`` are passed over.

    Raises:
        ProblemError: the file cannot be read or a line is none of these; it names the line.
    """
    way = "name a CSV or JSONL file"
    try:
        content = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        form = f"is not text (byte {error.start} is not UTF-8)"
        raise ProblemError("shapes", str(path), form, way) from error
    except OSError as error:
        raise ProblemError("shapes", str(path), f"cannot be read ({error})", way) from error
    if "\0" in content:
        raise ProblemError("shapes", str(path), "is not text (it has zero bytes)", way)
    problems: dict[GemmProblem, None] = {}
    header: list[str] | None = None
    for number, line in enumerate(content.splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            if text.startswith("{"):
                problems[_from_json(text)] = None
                continue
            (cells,) = csv.reader([text], skipinitialspace=True)
            if not problems and header is None and not cells[0].strip()[:1].isdigit():
                header = [cell.strip().lower() for cell in cells]
                continue
            problems[_from_cells(cells, header)] = None
        except (ValueError, csv.Error) as error:
            way = "see inductor-flydsl tune --help"
            raise ProblemError("shapes", f"{path}:{number}", f"{error}", way) from error
    return list(problems)


def _from_json(text: str) -> GemmProblem:
    data = json.loads(text)
    data = data.get("problem", data)
    if not isinstance(data, dict):
        raise ValueError(f"problem={data!r} is not an object")
    return _from_fields(data)


def _from_cells(cells: list[str], header: list[str] | None) -> GemmProblem:
    if header is None:
        return GemmProblem.parse(",".join(cells))
    if len(cells) != len(header):
        raise ValueError(f"{len(cells)} cells under {len(header)} columns")
    values: dict[str, Any] = {n: c.strip() for n, c in zip(header, cells, strict=True) if c.strip()}
    for name in sorted(values.keys() & _INTEGERS):
        if not values[name].isdigit():
            raise ValueError(f"{name}={values[name]!r} is not a whole number")
        values[name] = int(values[name])
    return _from_fields(values)


def _from_fields(values: dict[str, Any]) -> GemmProblem:
    if "lda" in values:
        return GemmProblem.from_json(values)
    missing = [name for name in ("m", "n", "k") if name not in values]
    if missing:
        raise ValueError(f"there is no {', '.join(missing)}")
    return GemmProblem.dense(**values)


_known: dict[Path, set[str]] = {}
_lost: set[Path] = set()
_guard = threading.Lock()


def record(path: Path, problems: Iterable[GemmProblem]) -> None:
    """Append problems that a recording does not have yet; safe beside other processes.

    A recording that cannot be written costs one warning: it must not cost the user's compile.
    """
    lines = [json.dumps({"problem": p.to_json()}, sort_keys=True) for p in problems]
    with _guard:
        known = _known.setdefault(path, set())
        new = [line for line in dict.fromkeys(lines) if line not in known]
        if not new:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with locked(path.with_name(path.name + ".lock"), timeout=LOCK_SECONDS):
                _append(path, new)
        except OSError as error:
            if path not in _lost:
                log.warning("record=%s cannot be written (%s); problems are lost", path, error)
            _lost.add(path)
        known.update(new)


def _append(path: Path, lines: list[str]) -> None:
    with open(path, "a+b") as file:
        file.seek(0)
        held = file.read()
        have = set(held.decode(errors="replace").splitlines())
        text = "".join(line + "\n" for line in lines if line not in have)
        # The last line of a process that was killed while it wrote stays a line of its own.
        start = "\n" if held and not held.endswith(b"\n") else ""
        if text:
            file.write((start + text).encode())
            file.flush()
            os.fsync(file.fileno())
