"""What the benchmarks share: their options, a table, JSON, and unmet targets."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", metavar="FILE", help="write the results there")
    made.add_argument("--plot", metavar="FILE", help="draw them (PNG; needs matplotlib)")
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
