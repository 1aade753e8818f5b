"""How verbs print: tables, times with their clock, JSON, colours on a terminal alone."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

_CODES = {"bold": "1", "red": "31", "green": "32", "dim": "2"}


def paint(text: str, style: str) -> str:
    """`text` in a style, where stdout is a terminal and NO_COLOR is not set."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"


def table(header: Sequence[str], rows: Iterable[Sequence[object]], indent: str = "") -> str:
    """Columns padded to their widest cell; cells that look like numbers go to the right."""
    cells = [list(header)] + [[str(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    right = [
        len(cells) > 1 and all(_numeric(row[i]) for row in cells[1:]) for i in range(len(header))
    ]
    lines = []
    for row in cells:
        padded = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        lines.append((indent + "  ".join(padded)).rstrip())
    lines[0] = paint(lines[0], "bold")
    return "\n".join(lines)


def _numeric(cell: str) -> bool:
    return not cell.strip("0123456789.,+-e ") or cell == "-"


def microseconds(us: float | None) -> str:
    """A time for a table whose header names the clock."""
    if us is None or us == float("inf"):
        return "-"
    return f"{us:.2f}" if us < 1000 else f"{us:.0f}"


def emit_json(data: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(data, indent=2, allow_nan=False))


def say(text: str) -> None:
    """A message, on stderr."""
    print(text, file=sys.stderr, flush=True)
