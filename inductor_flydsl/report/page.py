"""Records → the page. Owns what is told and in which order; times of different clocks never share
a plot or a column."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from html import escape

from .._version import __version__
from ..records import Measurement, TuningRecord
from . import svg
from .svg import BACKENDS, Bar, Point

STYLE = """
body{font:14px/1.45 system-ui,sans-serif;margin:2em auto;max-width:1000px;padding:0 1em;color:#222}
table{border-collapse:collapse;margin:.6em 0 1.4em}
th,td{border-bottom:1px solid #ddd;padding:.25em .7em;text-align:left;vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
h2{margin-top:2em;border-bottom:2px solid #222}
svg{display:block;max-width:100%;height:auto;margin:.4em 0} svg text{font:12px system-ui,sans-serif}
summary{cursor:pointer;padding:.2em 0} .why{color:#a33} code{font-size:92%}
tr.chosen td{font-weight:600}
"""
# A store may hold thousands; a page of as many plots does not open.
DETAILED = 200


def page(records: Sequence[TuningRecord], title: str, made: str) -> str:
    """The whole page.

    Args:
        records: what it is about.
        title: its heading.
        made: when, as text.
    """
    groups: dict[tuple[str, str], list[TuningRecord]] = {}
    for record in records:
        groups.setdefault((record.key.device, record.clock.value), []).append(record)
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f"<p>{len(records)} records; written {escape(made)} by inductor-flydsl {__version__}. "
        "Every table and plot names the clock of its times; times of different clocks are never "
        "compared.</p>",
    ]
    for (device, clock), group in sorted(groups.items()):
        parts += _group(device, clock, group)
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _group(device: str, clock: str, records: list[TuningRecord]) -> list[str]:
    records = sorted(records, key=lambda r: r.key.problem.flops, reverse=True)
    arch = ", ".join(sorted({f"{r.key.arch}, {r.key.compute_units} CUs" for r in records}))
    parts = [f"<h2>{escape(device)}: clock {escape(clock)}</h2>", f"<p>{escape(arch)}</p>"]
    parts.append("<h3>Choices</h3>")
    parts.append(_choices(clock, records))
    parts += _throughput(clock, records)
    parts += _backends(clock, [r for r in records if r.contest is not None])
    parts += _rejections(records)
    parts.append("<h3>What was tried</h3>")
    parts += [_tried(record) for record in records[:DETAILED]]
    if len(records) > DETAILED:
        parts.append(f"<p>{len(records) - DETAILED} smaller problems are left out here.</p>")
    return parts


def _choices(clock: str, records: Iterable[TuningRecord]) -> str:
    header = ("Problem", "Chosen", f"µs ({clock})", "± µs", "TFLOP/s", "Ahead of next", "Tried")
    rows = []
    for r in records:
        best = r.best_measurement
        us, spread = ("-", "-") if best is None else (_us(best.us), _us(best.spread_us))
        rate = "-" if best is None else f"{r.key.problem.flops / best.us / 1e6:.1f}"
        rows.append(
            (str(r.key.problem), r.verdict, us, spread, rate, _lead(r), len(r.measurements))
        )
    return _table(header, rows, numeric=range(2, 7))


def _lead(record: TuningRecord) -> str:
    """By how much the chosen one beats the best of the others, or is behind it."""
    best = record.best_measurement
    others = [m.us for m in record.measurements if m.ok and m.config != record.best]
    if best is None or not others:
        return "-"
    return f"{min(others) / best.us - 1:+.1%}"


def _throughput(clock: str, records: Sequence[TuningRecord]) -> list[str]:
    points = []
    for r in records:
        best = r.best_measurement
        if best is not None:
            rate = r.key.problem.flops / best.us / 1e6
            title = f"{r.key.problem}: {best.config.name}, {_us(best.us)} µs, {rate:.1f} TFLOP/s"
            colour = BACKENDS["FLYDSL"]
            points.append(Point(r.key.problem.flops / 1e9, max(rate, 1e-3), title, colour))
    if len(points) < 2:
        return []
    plot = svg.scatter(
        f"Throughput over size, clock {clock}", points, "GFLOP of the problem", f"TFLOP/s ({clock})"
    )
    return ["<h3>Throughput</h3>", plot]


def _backends(clock: str, records: Sequence[TuningRecord]) -> list[str]:
    """Inductor's own benchmarks, FlyDSL against the rest."""
    if not records:
        return ["<p>No benchmark against other backends is stored for this device and clock.</p>"]
    parts = ["<h3>Backends</h3>"]
    rows, wins = [], {name: 0 for name in BACKENDS}
    gains = []
    for r in records:
        assert r.contest is not None
        times = {name: r.contest.best(name) for name in BACKENDS}
        winner = r.contest.backends[0] if r.contest.backends else "none"
        wins[winner] = wins.get(winner, 0) + 1
        others = [us for name, us in times.items() if name != "FLYDSL" and us is not None]
        ours = times["FLYDSL"]
        gain = min(others) / ours if ours is not None and others else None
        gains += [gain] if gain is not None else []
        cells = [_us(us) for us in times.values()]
        ratio = "-" if gain is None else f"{gain:.3f}x"
        rows.append((str(r.key.problem), winner, *cells, ratio))
    header = ("Problem", "Fastest", *(f"{name} µs ({clock})" for name in BACKENDS), "FlyDSL gain")
    counts = ", ".join(f"{name} {n}" for name, n in wins.items() if n)
    mean = statistics.geometric_mean(gains) if gains else math.nan
    parts.append(f"<p>Fastest: {escape(counts)}.")
    parts.append(
        f"Geometric mean over the best of the others: {mean:.3f}x.</p>" if gains else "</p>"
    )
    parts.append(_table(header, rows, numeric=range(2, 6)))
    for r in records[:DETAILED]:
        assert r.contest is not None
        bars = [
            Bar(f"{b} {n}", us if math.isfinite(us) else None, _us(us), BACKENDS.get(b, "#999"))
            for b, n, us in r.contest.entries[:12]
        ]
        parts.append(f"<h4>{escape(str(r.key.problem))}</h4>")
        parts.append(svg.bars(f"{r.key.problem}: backends, µs, clock {clock}", bars))
    return parts


def _rejections(records: Iterable[TuningRecord]) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for r in records:
        for m in r.rejected:
            what = f"{m.config.name} for {r.key.problem}"
            reasons.setdefault(m.failure or "", []).append(what)
    if not reasons:
        return ["<p>No candidate was rejected.</p>"]
    ordered = sorted(reasons.items(), key=lambda item: -len(item[1]))
    rows = [(len(names), why[:300], names[0]) for why, names in ordered]
    return ["<h3>Rejected</h3>", _table(("Count", "Why", "For example"), rows, numeric=(0,))]


def _tried(record: TuningRecord) -> str:
    title = f"{record.key.problem}: {len(record.measurements)} tried"
    clock = record.clock.value
    ordered = sorted(record.measurements, key=lambda m: m.us)
    bars = [_bar(record, m) for m in ordered]
    environment = record.environment
    about = f"key {record.id}, written {record.created[:16]}Z, effort {record.effort}, "
    about += f"FlyDSL {environment.flydsl}, kernel sources {environment.sources[:12]}"
    listed = [_item(m.config.name, m.failure or "", "why") for m in ordered if not m.ok]
    listed += [_item(m.config.name, m.note, "note") for m in ordered if m.note]
    notes = f"<ul>{''.join(listed)}</ul>" if listed else ""
    return (
        f"<details open><summary>{escape(title)} (µs, clock {clock})</summary>"
        f"<p>{escape(about)}</p>{svg.bars(f'{title}, µs, clock {clock}', bars)}{notes}</details>"
    )


def _item(name: str, text: str, kind: str) -> str:
    return f'<li class="{kind}"><code>{escape(name)}</code> {escape(text[:300])}</li>'


def _bar(record: TuningRecord, m: Measurement) -> Bar:
    if not m.ok:
        return Bar(m.config.name, None, "rejected" if m.tried else "not tried", "rejected")
    best = record.best_measurement
    kind = "chosen" if m.config == record.best else "ok"
    ratio = f"  {m.us / best.us:.2f}x" if best is not None and kind == "ok" else "  chosen"
    return Bar(m.config.name, m.us, _us(m.us) + ratio, kind, m.spread_us)


def _us(us: float | None) -> str:
    if us is None or not math.isfinite(us):
        return "-"
    return f"{us:.2f}" if us < 1000 else f"{us:,.0f}"


def _table(
    header: Sequence[str], rows: Iterable[Sequence[object]], numeric: Iterable[int] = ()
) -> str:
    right = set(numeric)

    def line(tag: str, cells: Sequence[object]) -> str:
        made = (
            f"<{tag}{' class=n' if i in right else ''}>{escape(str(cell))}</{tag}>"
            for i, cell in enumerate(cells)
        )
        return f"<tr>{''.join(made)}</tr>"

    body = "\n".join(line("td", row) for row in rows)
    return f"<table><thead>{line('th', header)}</thead><tbody>\n{body}\n</tbody></table>"
