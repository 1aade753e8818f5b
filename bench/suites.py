"""The GEMMs of the comparison: suites that were published, and what a command line asks for.

Owns shapes and the reading of ``bench/data/suites.json``. Knows nothing of kernels.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

DATA = Path(__file__).parent / "data"
OPS = ("mm", "scaled", "grouped")
KINDS = {"mm": ("bf16",), "scaled": ("mxfp8", "mxfp4"), "grouped": ("bf16",)}
# One launch of each regime of the suite: few rows, a full machine, few columns, long K.
QUICK = {"mm": (1, 6, 9, 14), "scaled": (0, 6, 14), "grouped": (11, 13, 22)}


class BadShapes(ValueError):
    """``--shapes`` can't be read."""


@dataclass(frozen=True)
class Shape:
    """One GEMM, bf16 out.

    Attributes:
        op: one of OPS.
        kind: what the operands hold, see KINDS.
        m, n, k: extents; with groups, m is the sum of all groups' rows.
        layout: NT where B is stored [N, K], NN where [K, N] (with groups [G, K, N]).
        rows: of each group, empty where there are none.
    """

    op: str
    kind: str
    m: int
    n: int
    k: int
    layout: str = "NT"
    rows: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        text = f"{self.m}x{self.n}x{self.k}"
        if not self.rows:
            return text
        uneven = " ragged" if len(set(self.rows)) > 1 else ""
        return f"{len(self.rows)} groups {text}{uneven}"

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k


def suite(op: str) -> list[Shape]:
    """The published suite of an op, in its order; MXFP8 before MXFP4."""
    data = json.loads((DATA / "suites.json").read_text())
    if op == "mm":
        return [Shape(op, "bf16", *mnk) for mnk in data["mm_bf16_nt"]]
    if op == "scaled":
        return [Shape(op, kind, *mnk) for kind in KINDS[op] for mnk in data[f"scaled_{kind}"]]
    return [_grouped(case) for case in data["grouped"]]


def _grouped(case: dict[str, object]) -> Shape:
    rows = group_rows(int(str(case["G"])), str(case["group_sizes"]))
    m, n, k = (int(str(case[name])) for name in "MNK")
    assert sum(rows) == m, case
    return Shape("grouped", "bf16", m, n, k, "NN", rows)


def group_rows(groups: int, text: str) -> tuple[int, ...]:
    """Rows of each group, from ``uniform 512`` or all of them in a row."""
    uniform = re.fullmatch(r"uniform (\d+)", text)
    rows = [int(uniform[1])] * groups if uniform else [int(size) for size in text.split()]
    assert len(rows) == groups, text
    return tuple(rows)


def chosen(op: str, text: str | None, quick: bool) -> list[Shape]:
    """The shapes that a command line asks for.

    Args:
        op: one of OPS.
        text: None for the suite; ``M,N,K;M,N,K…`` (scaled: both kinds, or the one named as a
            fourth part; grouped: ``G,M,N,K`` with M rows shared out evenly); or a part of the
            suite as Python indexes it: ``4``, ``:3``, ``2:9``.
        quick: where `text` is None, a few of the suite.

    Raises:
        BadShapes: the text has another form, or leaves nothing.
    """
    whole = suite(op)
    if text is None:
        return [whole[i] for i in _quick(op)] if quick else whole
    if re.fullmatch(r"-?\d+|-?\d*:-?\d*", text):
        found = _part(whole, text)
    else:
        found = [shape for part in text.split(";") if part.strip() for shape in _one(op, part)]
    if not found:
        raise BadShapes(f"--shapes {text!r} leaves nothing of the {len(whole)} of {op}")
    return found


def _quick(op: str) -> tuple[int, ...]:
    half = len(suite(op)) // len(KINDS[op])
    return tuple(i + half * part for part in range(len(KINDS[op])) for i in QUICK[op])


def _part(whole: list[Shape], text: str) -> list[Shape]:
    if ":" in text:
        start, _, stop = text.partition(":")
        return whole[int(start) if start else None : int(stop) if stop else None]
    index = int(text)
    return [whole[index]] if -len(whole) <= index < len(whole) else []


def _one(op: str, text: str) -> list[Shape]:
    parts = [part.strip() for part in text.split(",")]
    kinds: tuple[str, ...] = KINDS[op]
    if op == "scaled" and parts[-1] in kinds:
        kinds = (parts.pop(),)
    wanted = 4 if op == "grouped" else 3
    if len(parts) != wanted or not all(re.fullmatch(r"[1-9]\d*", part) for part in parts):
        form = {"mm": "M,N,K", "scaled": "M,N,K[,mxfp8|mxfp4]", "grouped": "G,M,N,K"}[op]
        raise BadShapes(f"--shapes {text!r} is not {form}, nor a part of the suite such as 2:5")
    numbers = [int(part) for part in parts]
    if op != "grouped":
        return [Shape(op, kind, *numbers) for kind in kinds]
    groups, m, n, k = numbers
    rows = tuple(m * (i + 1) // groups - m * i // groups for i in range(groups))
    return [Shape(op, "bf16", m, n, k, "NN", rows)]
