"""What a compile logged → every GEMM with its choice and why the others lost.

Owns the reading of ``TORCH_LOGS=+inductor_flydsl`` output and of Inductor's autotune tables in it.
Knows nothing of how the choices were made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

_JSON = re.compile(r"inductor_flydsl decision: (\{.*\})\s*$")
# "mm 64x64x64 bfloat16 NT: ATEN (reason)" after the prefix of TORCH_LOGS, which ends in
# "] [0/0] " or "] ", or after that of another format.
_TOLD = r"(?P<subject>[a-z]\w* .+?): (?P<chosen>FLYDSL|ATEN|TRITON|OTHERS) \((?P<reason>.*)\)\s*$"
_PLAIN = (
    re.compile(r"\] \[(?P<id>\d+/\d+)\] " + _TOLD),
    re.compile(r"(?:^[VIWE]\d{4} [^\]]*\] |\b(?:INFO|WARNING|inductor_flydsl): ?)(?P<id>)" + _TOLD),
    re.compile(r"^(?P<id>)" + _TOLD),
)
_TABLE = re.compile(r"AUTOTUNE (\S.*)$")
_ROW = re.compile(r"^\s+(\S+) ([0-9.]+|inf) ms(?: ([0-9.]+)%)?")


@dataclass
class Logged:
    """One op of the log.

    Attributes:
        subject: the op in words; chosen: the backend; reason: why.
        losers: (name, why it lost).
        compile_id: torch's number of the compilation, where the log has it.
        fused, stored, apart: what joined the product's kernel, what else it stores, and what did
            not join with the reason.
        number: of the decision; one that is told again with the same number replaces it.
    """

    subject: str
    chosen: str
    reason: str
    config: str | None = None
    losers: list[tuple[str, str]] = field(default_factory=list)
    compile_id: str = ""
    fused: list[str] = field(default_factory=list)
    stored: list[str] = field(default_factory=list)
    apart: list[str] = field(default_factory=list)
    number: int = 0

    def to_json(self) -> dict[str, Any]:
        losers = [{"name": name, "reason": why} for name, why in self.losers]
        return {**vars(self), "losers": losers}


@dataclass
class Table:
    """An autotune table of Inductor's: its title, and (name, ms) as it ranked them."""

    title: str
    rows: list[tuple[str, float]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {"title": self.title, "rows": [{"name": n, "ms": ms} for n, ms in self.rows]}


def parse(lines: Iterable[str]) -> tuple[list[Logged], list[Table]]:
    """Read a log.

    Returns:
        The decisions, with the reasons of all losers where the log has level DEBUG, and the
        tables in the log. Lines that are neither are passed over.
    """
    full: list[Logged] = []
    plain: list[Logged] = []
    tables: list[Table] = []
    table: Table | None = None
    for line in lines:
        line = line.rstrip("\n")
        row = _ROW.match(line) if table is not None else None
        if table is not None and row is not None:
            table.rows.append((row[1], float(row[2])))
            continue
        if table is not None and table.rows:
            table = None
        found = _JSON.search(line)
        if found is not None:
            decision = _decision(found[1])
            if decision is not None:
                _put(full, decision)
        elif (match := _plain(line)) is not None:
            plain.append(
                Logged(match["subject"], match["chosen"], match["reason"], compile_id=match["id"])
            )
        elif (match := _TABLE.search(line)) is not None:
            table = Table(match[1])
            tables.append(table)
    return full or plain, [t for t in tables if t.rows]


def _put(known: list[Logged], decision: Logged) -> None:
    """Append a decision, or replace what was told of it before."""
    same = (decision.number, decision.subject, decision.compile_id)
    for place, earlier in enumerate(known):
        if decision.number and (earlier.number, earlier.subject, earlier.compile_id) == same:
            known[place] = decision
            return
    known.append(decision)


def _plain(line: str) -> re.Match[str] | None:
    return next((match for form in _PLAIN if (match := form.search(line))), None)


def _decision(text: str) -> Logged | None:
    try:
        data = json.loads(text)
        return Logged(
            subject=data["subject"],
            chosen=data["chosen"],
            reason=data["reason"],
            config=data["config"],
            losers=[(loser["name"], loser["reason"]) for loser in data["losers"]],
            compile_id=data["compile_id"],
            fused=data.get("fused", []),
            stored=data.get("stored", []),
            apart=data.get("apart", []),
            number=data.get("number", 0),
        )
    except (ValueError, KeyError, TypeError):
        # Cut off by whatever wrote the log; the plain line beside it is no worse than nothing.
        return None
