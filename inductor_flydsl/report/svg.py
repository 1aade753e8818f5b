"""Plots as SVG text. Owns scales, bars and labels; knows nothing of tuning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

LABEL_WIDTH = 330
BAR_WIDTH = 420
VALUE_WIDTH = 170
ROW = 20
# Distinct in grey and to the colour-blind (Okabe and Ito).
COLOURS = {"chosen": "#0072b2", "ok": "#9ecae1", "rejected": "#d55e00", "other": "#999999"}
BACKENDS = {"FLYDSL": "#0072b2", "TRITON": "#e69f00", "ATEN": "#666666"}


@dataclass(frozen=True)
class Bar:
    """One row of a bar chart.

    Attributes:
        label: on the left; value: µs, or None for a row without a bar; text: on the right.
        kind: a key of COLOURS, or a colour.
        spread: half the length of a whisker around the value's end, in µs.
    """

    label: str
    value: float | None
    text: str
    kind: str = "ok"
    spread: float = 0.0


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Horizontal bars on a scale from zero, so that lengths compare."""
    top = max((r.value + r.spread for r in rows if r.value is not None), default=1.0)
    height = ROW * len(rows) + 6
    width = LABEL_WIDTH + BAR_WIDTH + VALUE_WIDTH
    parts = [_open(width, height, title)]
    for index, row in enumerate(rows):
        y = index * ROW + 3
        middle = y + ROW / 2 + 1
        parts.append(_text(LABEL_WIDTH - 8, middle, row.label, "end"))
        x = LABEL_WIDTH
        if row.value is not None:
            length = BAR_WIDTH * row.value / top
            colour = COLOURS.get(row.kind, row.kind)
            parts.append(
                f'<rect x="{x}" y="{y + 2}" width="{length:.1f}" height="{ROW - 4}" '
                f'fill="{colour}"/>'
            )
            parts += _whisker(x, middle - 1, row, top)
            x += int(BAR_WIDTH * (row.value + row.spread) / top)
        parts.append(_text(x + 6, middle, row.text, "start"))
    return "\n".join([*parts, "</svg>"])


def _whisker(x: float, y: float, row: Bar, top: float) -> list[str]:
    if not row.spread or row.value is None:
        return []
    left, right = (x + BAR_WIDTH * max(0.0, row.value + s) / top for s in (-row.spread, row.spread))
    return [f'<path d="M{left:.1f} {y}H{right:.1f}" stroke="#000" stroke-width="1.5"/>']


@dataclass(frozen=True)
class Point:
    """A point of a scatter plot; ``title`` is shown under the pointer."""

    x: float
    y: float
    title: str
    colour: str


def scatter(title: str, points: Sequence[Point], x_label: str, y_label: str) -> str:
    """Points over two logarithmic axes with their powers of ten."""
    width, height, left, bottom = 640, 360, 70, 45
    inner_w, inner_h = width - left - 20, height - bottom - 15
    x_low, x_high = _decades([p.x for p in points])
    y_low, y_high = _decades([p.y for p in points])

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            left + inner_w * (math.log10(x) - x_low) / (x_high - x_low),
            15 + inner_h * (1 - (math.log10(y) - y_low) / (y_high - y_low)),
        )

    parts = [_open(width, height, title)]
    for power in range(x_low, x_high + 1):
        x, y = at(10.0**power, 10.0**y_low)
        parts.append(f'<path d="M{x:.1f} 15V{y:.1f}" stroke="#ddd"/>')
        parts.append(_text(x, y + 16, _power(power), "middle"))
    for power in range(y_low, y_high + 1):
        x, y = at(10.0**x_low, 10.0**power)
        parts.append(f'<path d="M{x:.1f} {y:.1f}H{left + inner_w}" stroke="#ddd"/>')
        parts.append(_text(x - 6, y + 4, _power(power), "end"))
    for point in points:
        x, y = at(point.x, point.y)
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{point.colour}" fill-opacity="0.75">'
            f"<title>{escape(point.title)}</title></circle>"
        )
    parts.append(_text(left + inner_w / 2, height - 8, x_label, "middle"))
    parts.append(
        f'<text x="16" y="{15 + inner_h / 2}" text-anchor="middle" '
        f'transform="rotate(-90 16 {15 + inner_h / 2})">{escape(y_label)}</text>'
    )
    return "\n".join([*parts, "</svg>"])


def _decades(values: Sequence[float]) -> tuple[int, int]:
    low = math.floor(math.log10(min(values, default=1.0)))
    high = math.ceil(math.log10(max(values, default=10.0)))
    return low, max(high, low + 1)


def _power(power: int) -> str:
    return f"{10.0**power:g}" if -3 <= power <= 4 else f"1e{power}"


def _open(width: int, height: int, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}"><title>{escape(title)}</title>'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y + 3:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
