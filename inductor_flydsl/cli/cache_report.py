"""`inductor-flydsl cache report`: a page about the store."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import BadArgument
from ..records import Store, now_utc
from ..report import page
from . import OK
from .cache import matching, places
from .output import emit_json, say


def report(arguments: argparse.Namespace, store: Store) -> int:
    """Write the page; its name goes to stderr, or with --json to stdout."""
    records = matching(store, arguments.glob)
    title = "Tuning store" + (f": {arguments.glob}" if arguments.glob else "")
    text = page(records, title, now_utc()[:16] + "Z")
    try:
        Path(arguments.file).write_text(text, encoding="utf-8")
    except OSError as error:
        problem = f"cannot be written ({error})"
        raise BadArgument("FILE", arguments.file, problem, "name another") from error
    if arguments.json:
        emit_json({"file": arguments.file, "records": len(records)})
    else:
        say(f"{len(records)} records of {places(store)} are in {arguments.file}")
    return OK
