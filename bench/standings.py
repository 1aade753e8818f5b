"""What a comparison says: ratios, geometric means, the clock's error in the open, a plot.

Owns arithmetic on entries and their printing. Runs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import quantiles
from typing import Any

from .contest import Entry
from .suites import Shape

OURS = "ours"
# Whose published figure speaks of whose kernel.
SAME_KERNEL = {"vendored": "flydsl", "triton": "triton"}
COLOURS = {OURS: "#0072b2", "vendored": "#d55e00", "triton": "#009e73"}


@dataclass(frozen=True)
class Standing:
    """One shape.

    Attributes:
        entries: by contestant, in the order that they are shown.
        published: µs on an MI355X by who took it.
    """

    shape: Shape
    entries: dict[str, Entry]
    published: dict[str, float]

    def speed(self, peer: str) -> float | None:
        """A peer's time over ours: above 1 where ours is faster. None where one has no time."""
        return ratio(self.entries.get(peer), self.entries.get(OURS))

    def clock_ratios(self) -> dict[str, float]:
        """Published over emulated time of the contestants whose own kernels were published."""
        found = {}
        for name, source in SAME_KERNEL.items():
            entry = self.entries.get(name)
            if entry is not None and entry.best is not None and source in self.published:
                found[name] = self.published[source] / entry.best.us
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "shape": asdict(self.shape),
            "entries": {name: asdict(entry) for name, entry in self.entries.items()},
            "speed": {name: self.speed(name) for name in self.entries if name != OURS},
            "published_us": self.published,
            "published_over_emulated": self.clock_ratios(),
        }


def ratio(over: Entry | None, under: Entry | None) -> float | None:
    """Time of the first over time of the second."""
    if over is None or under is None or over.best is None or under.best is None:
        return None
    return over.best.us / under.best.us


def geomean(values: Iterable[float]) -> float | None:
    """Geometric mean, None of nothing."""
    found = list(values)
    return math.exp(math.fsum(map(math.log, found)) / len(found)) if found else None


def means(standings: Sequence[Standing]) -> dict[str, dict[str, Any]]:
    """By peer and kind: geometric mean of the speeds, how many shapes, and the worst of them."""
    found: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(s.shape.kind for s in standings):
        rows = [s for s in standings if s.shape.kind == kind]
        for peer in dict.fromkeys(name for s in rows for name in s.entries if name != OURS):
            speeds = {s.shape.name: x for s in rows if (x := s.speed(peer)) is not None}
            if speeds:
                worst = min(speeds, key=lambda name: speeds[name])
                found[f"{peer}, {kind}"] = {
                    "geomean": geomean(speeds.values()), "shapes": len(speeds),
                    "of": len(rows), "worst": speeds[worst], "worst_shape": worst,
                }  # fmt: skip
    return found


def spread(values: Iterable[float]) -> dict[str, float] | None:
    """count, p10, p50 and p90; None of fewer than two."""
    found = sorted(values)
    if len(found) < 2:
        return None
    cuts = quantiles(found, n=10, method="inclusive")
    return {"count": len(found), "p10": cuts[0], "p50": cuts[4], "p90": cuts[8]}


def clock_errors(standings: Sequence[Standing]) -> dict[str, dict[str, float]]:
    """`spread` of published over emulated times, by kind, where there are two figures or more."""
    found = {}
    for kind in dict.fromkeys(s.shape.kind for s in standings):
        rows = [s for s in standings if s.shape.kind == kind]
        error = spread(x for s in rows for x in s.clock_ratios().values())
        found |= {} if error is None else {kind: error}
    return found


# --- text -------------------------------------------------------------------------------------

HEADER = (f"  {'':9} {'µs':>9} {'matrix':>6} {'loop':>5}  {'waits for':13} {'ours':>6}  "
          f"{'published/emulated':>18}  kernel")  # fmt: skip


def block(standing: Standing) -> str:
    """A shape's lines: a contestant each, and what else was published."""
    lines = [f"{standing.shape.name} {standing.shape.kind} {standing.shape.layout}"]
    lines += [line(standing, name) for name in standing.entries]
    others = {k: v for k, v in standing.published.items() if k not in SAME_KERNEL.values()}
    if others:
        text = ", ".join(f"{name} {us:.1f}" for name, us in others.items())
        lines.append(f"  {'published':9} {text} µs")
    return "\n".join(lines)


def line(standing: Standing, name: str) -> str:
    """One contestant on one shape."""
    entry = standing.entries[name]
    if entry.best is None:
        return f"  {name:9} none: {entry.reason}"
    best, speed = entry.best, None if name == OURS else standing.speed(name)
    clock = standing.clock_ratios().get(name)
    shown = ""
    if clock is not None:
        shown = f"{standing.published[SAME_KERNEL[name]]:.1f} µs {clock:.2f}"
    text = (
        f"  {name:9} {best.us:9.2f} {100 * best.utilisation:5.1f}% "
        f"{100 * best.loop_utilisation:4.0f}%  {best.bound:13} "
        f"{'' if speed is None else f'{speed:.2f}x':>6}  {shown:>18}  {best.config}"
    )
    counts = [f"best of {len(entry.timed)}"]
    counts += [f"{entry.left_out} predicted far slower"] if entry.left_out else []
    counts += [f"{len(entry.failed)} failed: {_first(entry.failed)}"] if entry.failed else []
    return f"{text} ({', '.join(counts)})"


def _first(failed: Mapping[str, str]) -> str:
    name, reason = next(iter(failed.items()))
    return f"{name}: {reason}"


def summary(standings: Sequence[Standing]) -> str:
    """Geometric means, and what the clock's times are worth."""
    lines = []
    for name, mean in means(standings).items():
        lines.append(
            f"ours over {name}: {mean['geomean']:.3f}x, geometric mean of {mean['shapes']} of "
            f"{mean['of']} shapes; worst {mean['worst']:.2f}x ({mean['worst_shape']})"
        )
    for kind, error in clock_errors(standings).items():
        lines.append(
            f"published/emulated of the peers' own kernels, {kind}, {error['count']} figures: "
            f"p10 {error['p10']:.2f}, median {error['p50']:.2f}, p90 {error['p90']:.2f}"
        )
    return "\n".join(lines)


def markdown(standings: Sequence[Standing]) -> str:
    """The standings as a table for a page: µs, the peers' times over ours, the clock's error."""
    names = list(dict.fromkeys(name for s in standings for name in s.entries))
    peers = [name for name in names if name != OURS]
    header = ["shape", *names, *(f"{name} / ours" for name in peers), "published / emulated"]
    rows = [header, ["---"] * len(header)]
    for s in standings:
        bests = [s.entries[name].best if name in s.entries else None for name in names]
        clock = ", ".join(f"{name} {x:.2f}" for name, x in s.clock_ratios().items())
        rows.append([
            f"{s.shape.name} {s.shape.kind}",
            *("-" if best is None else f"{best.us:.1f}" for best in bests),
            *("-" if (x := s.speed(name)) is None else f"{x:.2f}" for name in peers),
            clock,
        ])  # fmt: skip
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def plot(file: str, title: str, standings: Sequence[Standing]) -> None:
    """PNG: each contestant's TFLOP/s a shape, and below it the peers' times over ours."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(dict.fromkeys(name for s in standings for name in s.entries))
    figure, (rate, speed) = pyplot.subplots(
        2, 1, sharex=True, figsize=(4 + 0.6 * len(standings), 7), layout="constrained"
    )
    for name in names:
        rate.plot([_tflops(s, name) for s in standings], "o", label=name, color=COLOURS.get(name))
    peers = [name for name in names if name != OURS]
    width = 0.8 / max(1, len(peers))
    for i, name in enumerate(peers):
        at = [x + (i - (len(peers) - 1) / 2) * width for x in range(len(standings))]
        ratios = [s.speed(name) or math.nan for s in standings]
        speed.bar(at, [x - 1 for x in ratios], width, bottom=1, color=COLOURS.get(name))
    speed.axhline(1, color="black", linewidth=0.8)
    labels = [f"{s.shape.name}\n{s.shape.kind}" for s in standings]
    speed.set_xticks(range(len(standings)), labels, rotation=60, ha="right", fontsize=8)
    rate.set(title=title, ylabel="TFLOP/s, clock: emulated", yscale="log")
    rate.legend(frameon=False)
    speed.set_ylabel("peer's time over ours\n(above 1 ours is faster)")
    for axes in (rate, speed):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", alpha=0.3)
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def _tflops(standing: Standing, name: str) -> float:
    entry = standing.entries.get(name)
    best = None if entry is None else entry.best
    return math.nan if best is None else standing.shape.flops / best.us * 1e-6
