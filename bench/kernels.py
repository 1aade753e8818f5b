"""Our kernels beside PyTorch's in-tree FlyDSL's and Triton's: `python -m bench.kernels`.

One emulator, one clock, one run. Clock: ``emulated``, cycle-approximate times of a gfx950 that
runs on this CPU; nothing here was measured on a GPU. Every kernel of a shape gets the same random
operands, is run on the same sample of its workgroups, and its numbers are looked at.

- ours: the model's first candidates, as the tuner takes them (`--candidates`);
- vendored: the FLYDSL kernels inside the installed torch (2.15 or later), every configuration that
  its heuristics list by default with autotuning on;
- triton: kernels like Inductor's templates for mm and grouped_mm, in every configuration that
  Inductor lists by default, compiled for gfx950; Inductor has none for MX block scales.

A peer's configuration that the analytic model predicts to be over `--within` times slower than
that peer's best is not run. The ratio in the column "ours" is the peer's time over ours.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from inductor_flydsl.errors import ProblemError

from . import published, standings, suites
from .contest import Contestant, enter
from .isa_runs import on_one_core
from .launches import RecipeCache
from .output import exit_with, finish, parser, versions, writable
from .problems import operands_of, problem_of
from .suites import Shape

CANDIDATES, QUICK_CANDIDATES = 12, 4
# With 3 the fastest of a peer was predicted within 1.03 (vendored) and 1.70 (triton) times that
# peer's best prediction on the first ten shapes of the mm suite.
WITHIN, QUICK_WITHIN = 2.0, 1.4
# Geometric mean over a peer that is asked for, and the least on any shape.
TARGETS = {
    ("mm", "vendored"): 1.15, ("mm", "triton"): 1.30, ("scaled", "vendored"): 1.10,
    ("grouped", "vendored"): 1.15, ("grouped", "triton"): 1.30,
}  # fmt: skip
PEERS = tuple(standings.SAME_KERNEL)
LEAST = 0.97
HUNDREDTH = 0.0051  # calibration.EMULATED has two decimals
FEW_ROWS, FEW_ROWS_TARGET = 16, 1.5


def default_cache() -> Path:
    """The user's cache directory for compiled peers."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "inductor_flydsl" / "peers"


def contestants(options: argparse.Namespace) -> list[Contestant]:
    """Who is compared, ours first."""
    from .ours import Ours
    from .peer_flydsl import VendoredFlyDSL
    from .peer_triton import Triton

    kept = RecipeCache(options.cache)
    peers: list[Contestant] = [VendoredFlyDSL(kept), Triton(kept)]
    return [Ours(options.candidates), *(peer for peer in peers if peer.name in options.peers)]


def compare(shape: Shape, options: argparse.Namespace) -> standings.Standing:
    """All contestants on one shape."""
    operands = operands_of(shape)
    entries = {}
    for contestant in contestants(options):
        within = 0.0 if contestant.name == standings.OURS else options.within
        entries[contestant.name] = enter(contestant, operands, within)
    return standings.Standing(shape, entries, published.figures(shape))


def compared(shapes: Sequence[Shape], options: argparse.Namespace) -> Iterator[standings.Standing]:
    """`compare` of each shape, in order; in `options.jobs` processes where that is over one."""
    if options.jobs == 1:
        yield from (compare(shape, options) for shape in shapes)
        return
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(compare, shapes, [options] * len(shapes))


def unmet(op: str, found: Sequence[standings.Standing]) -> list[str]:
    """The targets that are not met, in words."""
    missed = []
    for name, mean in standings.means(found).items():
        target = TARGETS.get((op, name.split(",")[0]))
        if target and mean["geomean"] < target:
            missed.append(f"ours over {name}: {mean['geomean']:.3f}x, at least {target}x")
    for standing in found:
        entry = standing.entries.get(standings.OURS)
        if entry is not None and entry.best is None:
            missed.append(f"{standing.shape.name} {standing.shape.kind}: {entry.reason}")
        for peer in standing.entries:
            speed = standing.speed(peer) if peer != standings.OURS else None
            few = op == "mm" and peer == "vendored" and standing.shape.m <= FEW_ROWS
            least = FEW_ROWS_TARGET if few else LEAST
            if speed is not None and speed < least:
                name = f"{standing.shape.name} {standing.shape.kind}"
                missed.append(f"{name}: {speed:.2f}x over {peer}, at least {least}x")
    return missed + clock_beyond(found)


def clock_beyond(found: Sequence[standings.Standing]) -> list[str]:
    """Kinds whose published figures are further from the clock than `calibration` says."""
    from inductor_flydsl.calibration import EMULATED, GROUPED

    beyond = []
    for kind, error in standings.clock_errors(found).items():
        name = GROUPED + kind if any(s.shape.rows for s in found) else kind
        low, high = EMULATED.get(name, (math.inf, -math.inf))
        if error["p10"] < low - HUNDREDTH or error["p90"] > high + HUNDREDTH:
            beyond.append(
                f"{name}: published/emulated p10 {error['p10']:.2f}, p90 {error['p90']:.2f} exceed "
                f"calibration.EMULATED {low:.2f} to {high:.2f}"
            )
    return beyond


def header(options: argparse.Namespace, count: int) -> str:
    """What the times are, and of which versions."""
    from inductor_flydsl import calibration

    known = versions()
    used = ", ".join(f"{name} {known[name]}" for name in ("torch", "flydsl", "triton"))
    return (
        f"clock: emulated (gfx950, cycle-approximate; no GPU was used); {used}, {known['date']}\n"
        f"error of the clock: published/emulated p10-p90 {_ranges(calibration.EMULATED)}; of the "
        f"model that picks candidates: published/predicted {_ranges(calibration.MODELLED)}\n"
        f"{count} shapes of {options.op}; ours: best of {options.candidates} candidates; peers: "
        f"their default configurations"
        + (f", but for those predicted over {options.within:g}x slower" if options.within else "")
    )


def _ranges(table: Mapping[str, tuple[float, float]]) -> str:
    return ", ".join(f"{kind} {low:.2f}-{high:.2f}" for kind, (low, high) in table.items())


def arguments_of(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line; raises SystemExit where it can't be read."""
    made = parser(__doc__)
    made.formatter_class = argparse.RawDescriptionHelpFormatter
    made.add_argument("--op", choices=suites.OPS, default="mm", help="what is computed (mm)")
    made.add_argument("--shapes", metavar="LIST", help="M,N,K;M,N,K… or a part of the suite: 2:5")
    made.add_argument("--candidates", type=int, metavar="N", help=f"of ours ({CANDIDATES})")
    made.add_argument("--within", type=float, metavar="X",
                      help=f"run peers' configurations predicted within X times their best; "
                           f"0: all ({WITHIN:g})")  # fmt: skip
    made.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS, metavar="NAME",
                      help=f"of {', '.join(PEERS)}; none: ours alone (all)")  # fmt: skip
    made.add_argument("--cache", type=Path, default=default_cache(), metavar="DIR",
                      help="where compiled peers are kept (%(default)s)")  # fmt: skip
    made.add_argument("--markdown", type=writable, metavar="FILE",
                      help="write a table for a page there")  # fmt: skip
    made.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (1)")
    options = made.parse_args(given)
    quick = options.quick
    if options.candidates is None:
        options.candidates = QUICK_CANDIDATES if quick else CANDIDATES
    if options.within is None:
        options.within = QUICK_WITHIN if quick else WITHIN
    for name in ("candidates", "jobs"):
        if getattr(options, name) < 1:
            made.error(f"--{name} {getattr(options, name)}: at least 1")
    try:
        options.chosen = suites.chosen(options.op, options.shapes, quick)
        for shape in options.chosen:
            problem_of(shape)
    except (suites.BadShapes, ProblemError) as error:
        made.error(str(error))
    return options


def main(given: Sequence[str] | None = None) -> int:
    """Prints a block a shape and the means; --check fails where a target is missed."""
    options = arguments_of(given)
    shapes: list[Shape] = options.chosen
    print(header(options, len(shapes)))
    print(standings.HEADER)
    found: list[standings.Standing] = []
    # A run takes minutes: what is there when it is interrupted is worth keeping.
    with contextlib.suppress(KeyboardInterrupt):
        for standing in compared(shapes, options):
            print(standings.block(standing), flush=True)
            found.append(standing)
    print(standings.summary(found))
    if options.plot and found:
        standings.plot(options.plot, f"{options.op}, gfx950", found)
    if options.markdown:
        Path(options.markdown).write_text(standings.markdown(found))
    results: dict[str, Any] = {
        "clock": "emulated",
        "op": options.op,
        "candidates": options.candidates,
        "within": options.within,
        "standings": [standing.to_json() for standing in found],
        "means": standings.means(found),
        "published_over_emulated": standings.clock_errors(found),
    }
    missed = unmet(options.op, found)
    if len(found) < len(shapes):
        missed.append(f"interrupted after {len(found)} of {len(shapes)} shapes")
    return finish(options, results, missed)


if __name__ == "__main__":
    on_one_core("bench.kernels", sys.argv[1:])
    exit_with(main)
