"""What the benchmarks share: options, how they exit, JSON, plots, and unmet targets."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn


def writable(text: str) -> str:
    """An argparse type: a file that can be written, found out before anything is measured."""
    file = Path(text)
    if file.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a directory; name a file")
    if not file.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: its directory does not exist; make it first")
    if not os.access(file if file.exists() else file.absolute().parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written; name another file")
    return text


def plottable(text: str) -> str:
    """`writable`, where there is something to draw with."""
    if importlib.util.find_spec("matplotlib") is None:
        way = "pip install 'inductor-flydsl[bench]'"
        raise argparse.ArgumentTypeError(f"needs matplotlib: {way}")
    return writable(text)


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Exit with `main`'s status; with 141, as a shell has it, where stdout's reader has left."""
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # Python's own flush at exit must not complain about it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 128 + signal.SIGPIPE
    sys.exit(status)


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", type=writable, metavar="FILE", help="write the results there")
    made.add_argument("--plot", type=plottable, metavar="FILE",
                      help="draw them (PNG; needs matplotlib)")  # fmt: skip
    made.add_argument("--quick", action="store_true", help="fewer repeats, under a minute")
    made.add_argument("--check", action="store_true", help="exit 1 where a target is not met")
    return made


def versions() -> dict[str, str]:
    """What a result depends on beside the code."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in ("torch", "flydsl", "triton"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "none"
    return found | {"date": datetime.date.today().isoformat()}


def finish(arguments: argparse.Namespace, results: dict[str, Any], unmet: Sequence[str]) -> int:
    """Write the JSON, tell of unmet targets, and return the exit status."""
    if arguments.json:
        text = json.dumps({"versions": versions(), **results, "unmet": list(unmet)}, indent=1)
        Path(arguments.json).write_text(text + "\n")
    for target in unmet:
        print(f"target not met: {target}", file=sys.stderr)
    return 1 if unmet and arguments.check else 0


def barh(file: str, title: str, label: str, values: dict[str, float]) -> None:
    """A plot of one horizontal bar a name."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 1 + 0.5 * len(values)), layout="constrained")
    drawn = axes.barh(list(values), list(values.values()), color="#0072b2")
    axes.bar_label(drawn, fmt="%.2f", padding=3)
    axes.invert_yaxis()
    axes.set(title=title, xlabel=label)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
