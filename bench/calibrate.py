"""How far the cost model is from published MI355X times, and how well it ranks tiles.

`python -m bench.calibrate [--json FILE] [--plot FILE] [--quick] [--check]`. Clock: ``model``, a
formula; the times it is held against are AITER's and PyTorch's (bench/data/SOURCES.md). Nothing
runs on a GPU.

The headline predicts a shape's best time without knowing which kernel AITER chose: the least
prediction over `published.space`. Constants were fitted on the half of the rows whose shape has an
even hash; both halves are printed, and the targets are on the other one. The form, the point that
the fit starts from and the weights of its objective were chosen with both halves in view: held out
are the constants alone, and the error of shapes that nobody has looked at may be larger. Beside it:
the prediction for the tile that AITER's kernel name tells, and the place of that tile among all
FlyDSL tiles that are legal for the shape.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Sequence
from typing import Any

from inductor_flydsl.arch import GFX950
from inductor_flydsl.calibration import MODELLED, UNFITTED
from inductor_flydsl.model import CLOCK, estimate

from . import published
from .output import exit_with, finish, parser
from .published import BANDS, FITTED, HELD_OUT, KINDS, Row

HALVES = {HELD_OUT: "held out", FITTED: "fitted"}
MEDIAN_TARGET = (0.9, 1.1)
SPREAD_TARGET = 1.5
# Tiles that the model's first 5 and first 10 must hold, as a share of shapes.
RANK_TARGETS = {5: 0.80, 10: 0.92}
# AMD's Origami on the same bf16 rows: p90/p10 by band; it has no answer for most of the first.
ORIGAMI_SPREAD = {"M 17-256": 2.4, "M 257-2048": 1.5, "M>2048": 1.2}
ORIGAMI_TOP10 = 0.84
# A row that another beats at a problem at least as large in every extent, by more than this, was
# not the best that AITER can do. Reported apart; the headline leaves nothing out.
DOMINATED = 1.1
HUNDREDTH = 0.0051  # calibration.UNFITTED has two decimals


def quantile(values: Sequence[float], share: float) -> float:
    """Linear interpolation between the sorted values."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def summary(ratios: Sequence[float]) -> dict[str, Any]:
    """Count, p10, p50, p90 and p90/p10 of actual/predicted."""
    if not ratios:
        return {"rows": 0}
    p10, p50, p90 = (quantile(ratios, share) for share in (0.1, 0.5, 0.9))
    return {"rows": len(ratios), "p10": p10, "p50": p50, "p90": p90, "spread": p90 / p10}


def predicted(row: Row) -> float:
    """Least time over the space, the winner unknown."""
    usable = (t for t in published.space(row.kind) if published.usable(row.work, t))
    return min(estimate(row.work, tile, GFX950).us for tile in usable)


def dominated(row: Row, among: Iterable[Row]) -> bool:
    """Whether the table itself has a larger problem done in clearly less time."""
    return any(
        all(a <= b for a, b in zip(row.shape, other.shape, strict=True))
        and other.us * DOMINATED < row.us
        for other in among
    )


def errors(rows: Sequence[Row], ratios: dict[Row, float]) -> list[dict[str, Any]]:
    """Summaries by half, type and band."""
    found = []
    for half, half_name in HALVES.items():
        for kind in KINDS:
            for band in BANDS:
                cell = [r for r in rows if (r.half, r.kind, r.band) == (half, kind, band)]
                values = [ratios[row] for row in cell if row in ratios]
                found.append({"half": half_name, "kind": kind, "band": band, **summary(values)})
    return found


def places(rows: Sequence[Row], tiles: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
    """Of FlyDSL's winners: where the model has their tile among those legal for the shape."""
    found = []
    legal = 0
    for row in rows:
        assert row.tile is not None
        best = {
            tile: min(
                (
                    estimate(row.work, t, GFX950).us
                    for t in published.flydsl_variants(row.work, tile)
                ),
                default=math.inf,
            )
            for tile in tiles
        }
        ordered = sorted((tile for tile in best if best[tile] < math.inf), key=lambda t: best[t])
        legal += len(ordered)
        won = row.tile[:3]
        found.append(ordered.index(won) + 1 if won in ordered else math.inf)
    count = len(found)
    top = {f"top{n}": sum(place <= n for place in found) / count for n in (1, 3, *RANK_TARGETS)}
    return {"shapes": count, "tiles": len(tiles), "legal_mean": legal / count, **top}


def _sample(rows: list[Row], quick: bool) -> list[Row]:
    """All rows, or in a quick run about a quarter of every cell."""
    if not quick:
        return rows
    cells: dict[tuple[int, str], list[Row]] = {}
    for row in rows:
        cells.setdefault((row.half, row.band), []).append(row)
    return [row for cell in cells.values() for row in cell[::5]]


def collect(quick: bool) -> dict[str, Any]:
    """Every result, as the JSON has it."""
    everything = [row for kind in KINDS for row in published.rows(kind)]
    rows = [r for k in KINDS for r in _sample([x for x in everything if x.kind == k], quick)]
    blind = {row: row.us / predicted(row) for row in rows}
    by_kind = {kind: [row for row in everything if row.kind == kind] for kind in KINDS}
    kept = {r: v for r, v in blind.items() if not dominated(r, by_kind[r.kind])}
    told = {r: r.us / estimate(r.work, r.tile, GFX950).us for r in rows if r.tile}
    winners = [row for row in rows if row.library == "flydsl"]
    tiles = published.flydsl_tiles(by_kind["bf16"])
    ranking = {
        name: places([row for row in winners if row.half == half], tiles)
        for half, name in HALVES.items()
    }
    return {
        "clock": CLOCK,
        "calibration": {kind: list(pair) for kind, pair in MODELLED.items()},
        "quick": quick,
        "halves": "parity of the first byte of SHA-256 of 'M,N,K': even fitted, odd held out",
        "unknown_tile": errors(rows, blind),
        "unknown_tile_without_dominated": errors(rows, kept),
        "known_tile": errors(rows, told),
        "ranking": ranking,
        "independent": independent(),
        "points": [[r.kind, r.half, *r.shape, r.us, r.us / ratio] for r, ratio in blind.items()],
    }


def independent() -> list[dict[str, Any]]:
    """PyTorch's published times, none of them fitted, beside the prediction."""
    found = []
    for row in published.independent():
        tiles = [t for t in published.space(row.kind) if published.usable(row.work, t)]
        us = min(estimate(row.work, tile, GFX950).us for tile in tiles)
        shape = f"{row.work.m}x{row.work.n}x{row.work.k}"
        entry = {"kind": row.kind, "shape": shape, "backend": row.backend}
        found.append({**entry, "us": row.us, "predicted": us, "ratio": row.us / us})
    return found


def unmet(results: dict[str, Any]) -> list[str]:
    """Targets that the held-out half misses, and cells of either half beyond MODELLED."""
    missed = []
    for cell in results["unknown_tile"]:
        name = f"{cell['half']} {cell['kind']} {cell['band']}"
        low, high = MODELLED[cell["kind"]]
        if not results["quick"] and (cell["p10"] < low or cell["p90"] > high):
            found = f"{cell['p10']:.3f} to {cell['p90']:.3f}"
            missed.append(f"{name}: {found} exceeds calibration.MODELLED {low} to {high}")
        if cell["half"] != HALVES[HELD_OUT]:
            continue
        if not MEDIAN_TARGET[0] <= cell["p50"] <= MEDIAN_TARGET[1]:
            missed.append(f"{name}: median {cell['p50']:.2f}, not within {MEDIAN_TARGET}")
        if cell["spread"] > SPREAD_TARGET:
            missed.append(f"{name}: p90/p10 {cell['spread']:.2f}, over {SPREAD_TARGET}")
    for kind, (low, high) in UNFITTED.items():
        found = summary([row["ratio"] for row in results["independent"] if row["kind"] == kind])
        if found["p10"] < low - HUNDREDTH or found["p90"] > high + HUNDREDTH:
            beyond = f"{found['p10']:.3f} to {found['p90']:.3f}"
            missed.append(f"{kind}: {beyond} exceeds calibration.UNFITTED {low} to {high}")
    held = results["ranking"][HALVES[HELD_OUT]]
    for first, share in RANK_TARGETS.items():
        if held[f"top{first}"] < share:
            missed.append(f"first {first} hold {held[f'top{first}']:.1%} of tiles, not {share:.0%}")
    return missed


def show(results: dict[str, Any]) -> None:
    """Print the tables."""
    error = ", ".join(f"{k} {low} to {high}" for k, (low, high) in MODELLED.items())
    print(f"clock: {CLOCK} (a formula). Actual/predicted, widest p10 to p90 of a cell: {error}")
    print(f"halves: {results['halves']}{'; QUICK, a fifth of the rows' * results['quick']}")
    titles = {
        "unknown_tile": "Actual/predicted, AITER's best, its kernel unknown (the headline)",
        "unknown_tile_without_dominated": "The same without rows that a larger problem's beat",
        "known_tile": "Actual/predicted for the tile that AITER's kernel name tells",
    }
    for key, title in titles.items():
        print(f"\n{title}\n{'half':9}{'type':7}{'band':12}{'rows':>5}   p10   p50   p90  p90/p10")
        for cell in results[key]:
            line = f"{cell['half']:9}{cell['kind']:7}{cell['band']:12}{cell['rows']:5}"
            if cell["rows"]:
                line += "".join(f"{cell[name]:6.2f}" for name in ("p10", "p50", "p90"))
                line += f"{cell['spread']:9.2f}"
            origami = ORIGAMI_SPREAD.get(cell["band"]) if cell["kind"] == "bf16" else None
            print(line + (f"   Origami {origami}" if origami and key == "unknown_tile" else ""))
    print("\nPlace of FlyDSL's winning tile (M, N and K) among the tiles legal for the shape")
    for half, found in results["ranking"].items():
        top = ", ".join(f"{name} {share:.1%}" for name, share in found.items() if "top" in name)
        print(
            f"{half:9}{found['shapes']:4} shapes, {found['legal_mean']:.1f} of {found['tiles']}"
            f" tiles legal: {top}"
        )
    print(f"Origami (29 tiles): top10 {ORIGAMI_TOP10:.0%}")
    print("\nPyTorch's tables, the fastest backend of each; no constant was fitted to them")
    for row in results["independent"]:
        print(
            f"{row['kind']:7}{row['shape']:18}{row['backend']:8}{row['us']:9.1f} us,"
            f" predicted {row['predicted']:9.1f}, actual/predicted {row['ratio']:.2f}"
        )


def draw(file: str, results: dict[str, Any]) -> None:
    """Actual/predicted against M, held-out rows, one panel a type."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4), sharey=True, layout="constrained")
    for axes, kind in zip(panels, KINDS, strict=True):
        points = [p for p in results["points"] if p[0] == kind and p[1] == HELD_OUT]
        axes.scatter([p[2] for p in points], [p[5] / p[6] for p in points], s=8, color="#0072b2")
        axes.axhspan(*MODELLED[kind], color="#0072b2", alpha=0.15, linewidth=0)
        axes.set(xscale="log", yscale="log", xlabel="M", title=kind)
        axes.minorticks_off()
        ticks = (0.5, 0.7, 1, 1.5, 2, 4, 8)
        axes.set_yticks(ticks, labels=[str(tick) for tick in ticks])
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("AITER's best / model, held-out rows")
    figure.suptitle("Error of the analytic clock `model`; band: widest p10 to p90")
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    options: argparse.Namespace = parser(__doc__).parse_args(arguments)
    results = collect(options.quick)
    show(results)
    if options.plot:
        draw(options.plot, results)
    return finish(options, results, unmet(results))


if __name__ == "__main__":
    exit_with(main)
