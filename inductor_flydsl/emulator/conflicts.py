"""LDS bank conflicts by instruction: a report, not a fault.

Owns the summary of what a run's recorder saw of each ds_ instruction. Phases and banks, and so the
clocks, are `lds_timing`'s. Knows nothing of findings or of time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .lds_timing import access_of
from .program import Program
from .trace import GroupTrace, LdsCost


@dataclass(frozen=True)
class BankConflict:
    """A ds_ instruction whose lanes wait for each other at LDS banks.

    text, line, source: the instruction, as in a Finding. phases: clocks of the LDS core without a
    conflict; clocks: of its worst recorded execution, and mean over all recorded. banks: that its
    phases spread over. executions: wave-instructions of the run.
    """

    text: str
    line: int
    source: str
    phases: int
    banks: int
    clocks: int
    mean_clocks: float
    executions: int

    @property
    def ways(self) -> float:
        """How many times as long as without conflicts, at worst."""
        return self.clocks / self.phases

    def __str__(self) -> str:
        where = f" ({self.source})" if self.source else ""
        return (
            f"line {self.line}{where}: {self.text}: {self.ways:g}-way, {self.clocks} clocks for "
            f"{self.phases}, {self.executions} times"
        )


def bank_conflicts(
    program: Program, traces: Iterable[GroupTrace], hits: Mapping[int, int]
) -> tuple[BankConflict, ...]:
    """Conflicts of the followed workgroups, those that cost most clocks first.

    hits: wave-instructions executed by index of the instruction.
    """
    seen: dict[int, list[int]] = {}
    for group in traces:
        for wave in group.waves:
            for pc, costs in wave.costs.items():
                clocks = [cost.core for cost in costs if isinstance(cost, LdsCost)]
                seen.setdefault(pc, []).extend(clocks)
    found = []
    for pc, clocks in seen.items():
        inst = program.instructions[pc]
        access = access_of(inst.base) if inst.base.startswith("ds_") else None
        if access is None or not clocks:
            continue
        phases = len(access.phases) * access.accesses
        if max(clocks) > phases:
            mean = sum(clocks) / len(clocks)
            found.append(
                BankConflict(
                    inst.text, inst.line, inst.source, phases, access.banks, max(clocks), mean,
                    int(hits.get(pc, 0)),
                )
            )  # fmt: skip
    found.sort(key=lambda c: (-(c.mean_clocks - c.phases) * c.executions, c.line))
    return tuple(found)
