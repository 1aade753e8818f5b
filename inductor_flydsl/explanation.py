"""Why a problem gets the kernel it gets: legal configurations with predictions, the others with
their reasons, and what the store holds.

Needs neither torch nor flydsl nor a device. Measures nothing and decides nothing.
"""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass
from typing import Any

from . import compiler, copies, model, occupancy, ranking, settings, space
from .arch import Arch, get_arch
from .config import GemmConfig
from .errors import MissingDependency
from .model import Prediction
from .occupancy import Occupancy
from .problem import GemmProblem
from .records import Store, TuningRecord
from .targets import stale_reason

EXAMPLES = 2
# Candidates, the best ones, whose compiled kernels are looked for.
KERNELS = 16
# PyTorch whose scaled_mm has MX recipes.
MX_RECIPES = (2, 13)


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """Configurations that one rule forbids.

    Attributes:
        rule: the reason with its numbers left out.
        count: configurations it forbids.
        examples: a few, each with its own reason in words.
    """

    rule: str
    count: int
    examples: tuple[tuple[GemmConfig, str], ...]


@dataclass(frozen=True, kw_only=True)
class StoredRecord:
    """A record of the problem, with why it does not count for the kernels installed here."""

    record: TuningRecord
    stale: str | None


@dataclass(frozen=True, kw_only=True)
class AfterCopies:
    """The best candidate on copies of operands that do not run along K.

    Attributes:
        operands: which are copied.
        copy_us: predicted time of the copies; us: of them and the kernel.
        config: of the kernel.
    """

    operands: str
    copy_us: float
    us: float
    config: GemmConfig

    def to_json(self) -> dict[str, Any]:
        return {
            "operands": self.operands,
            "clock": model.CLOCK,
            "copy_us": self.copy_us,
            "us": self.us,
            "name": self.config.name,
            "config": self.config.to_json(),
        }


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """What `explain` found.

    Attributes:
        problem, arch: what was asked.
        limit: why no kernel serves the problem at all, or None.
        candidates: every legal configuration with its prediction (clock ``model``), best first.
        rejections: the illegal ones by rule, the most frequent first.
        stored: records of the problem in the store, of whatever device and version.
        kernels: what the kernels of the best candidates and of stored configurations occupy, as
            far as they are compiled here.
        notes: what is missing here to compile or run kernels.
        after_copies: the other way to compute the problem, where it has one: a compile offers both.
    """

    problem: GemmProblem
    arch: str
    limit: str | None
    candidates: tuple[tuple[GemmConfig, Prediction], ...]
    rejections: tuple[Rejection, ...]
    stored: tuple[StoredRecord, ...]
    kernels: tuple[tuple[GemmConfig, Occupancy], ...]
    notes: tuple[str, ...]
    after_copies: AfterCopies | None = None

    def __str__(self) -> str:
        """What there is to say in a line; ``inductor-flydsl explain`` says all of it."""
        if not self.candidates:
            return f"{self.problem} on {self.arch}: {self.limit or 'no legal configuration'}"
        config, found = self.candidates[0]
        first = f"{config.name} first, {found.us:.2f} us ({model.CLOCK})"
        return f"{self.problem} on {self.arch}: {len(self.candidates)} configurations, {first}"

    def to_json(self) -> dict[str, Any]:
        """Plain data, complete."""
        return {
            "problem": self.problem.to_json(),
            "arch": self.arch,
            "limit": self.limit,
            "candidates": [
                {
                    "config": c.to_json(),
                    "name": c.name,
                    "clock": model.CLOCK,
                    "us": p.us,
                    "bound": p.bound,
                    "parts_us": p.parts,
                }
                for c, p in self.candidates
            ],
            "rejections": [
                {
                    "rule": r.rule,
                    "count": r.count,
                    "examples": [{"name": c.name, "reason": why} for c, why in r.examples],
                }
                for r in self.rejections
            ],
            "stored": [
                {"id": s.record.id, "stale": s.stale, "record": s.record.to_json()}
                for s in self.stored
            ],
            "kernels": [{"name": c.name, **found.to_json()} for c, found in self.kernels],
            "notes": list(self.notes),
            "after_copies": self.after_copies and self.after_copies.to_json(),
        }


def explain(problem: GemmProblem, *, arch: str = "gfx950") -> Explanation:
    """Gather everything that is known of a problem without running it.

    Raises:
        BadArgument: the architecture is not known.
        SettingError: a setting is unusable.
    """
    hardware = get_arch(arch)
    limit = space.problem_limit(problem, hardware)
    legal: list[GemmConfig] = []
    forbidden: dict[str, list[tuple[GemmConfig, str]]] = {}
    for config in space.configs(problem) if limit is None else ():
        why = space.why_not(problem, config, hardware)
        if why is None:
            legal.append(config)
        else:
            forbidden.setdefault(re.sub(r"\d+", "#", why), []).append((config, why))
    rejections = [
        Rejection(rule=rule, count=len(found), examples=tuple(found[:EXAMPLES]))
        for rule, found in forbidden.items()
    ]
    sources, notes = _installed()
    notes += _out_of_reach(problem)
    now = settings.current()
    stored = [
        StoredRecord(record=record, stale=stale_reason(record, sources))
        for record in (Store.over(now.cache_dir).records() if now.cache != "off" else ())
        if record.key.problem == problem and record.key.arch == hardware.name
    ]
    ranked = tuple(ranking.rank(problem, legal, hardware))
    asked = [c for c, _ in ranked[:KERNELS]]
    asked += [m.config for entry in stored for m in entry.record.measurements]
    occupied = {c: occupancy.compiled(problem, c, hardware) for c in dict.fromkeys(asked)}
    return Explanation(
        problem=problem,
        arch=hardware.name,
        limit=limit,
        candidates=ranked,
        rejections=tuple(sorted(rejections, key=lambda r: -r.count)),
        stored=tuple(stored),
        kernels=tuple((c, found) for c, found in occupied.items() if found is not None),
        notes=notes,
        after_copies=_after_copies(problem, hardware) if limit is None else None,
    )


def _after_copies(problem: GemmProblem, arch: Arch) -> AfterCopies | None:
    made = copies.along_k(problem, arch)
    if made is None:
        return None
    ranked = ranking.rank(made.problem, space.candidates(made.problem, arch), arch)
    if not ranked:
        return None
    config, prediction = ranked[0]
    us = made.us + prediction.us
    return AfterCopies(operands=made.operands, copy_us=made.us, us=us, config=config)


def _out_of_reach(problem: GemmProblem) -> tuple[str, ...]:
    """What PyTorch itself cannot ask for, so that a compile never brings it here."""
    p = problem
    if p.dtype.packed != p.b_type.packed:
        return ("PyTorch has no op for FP8 times FP4: their K extents differ in memory",)
    if p.block_scaled and not _has_mx_recipes():
        return ("PyTorch 2.13 and later have MX recipes in scaled_mm; earlier ones have none",)
    if p.dtype.scaled and p.batch > 1:
        return (
            "scaled_mm takes matrices alone: PyTorch asks for batches of them by scaled_grouped_mm"
            " of 3D x 3D operands",
        )
    return ()


def _has_mx_recipes() -> bool:
    """Whether the installed torch can ask for block scales; found without importing it."""
    try:
        major, minor = importlib.metadata.version("torch").split(".")[:2]
    except importlib.metadata.PackageNotFoundError:
        return False
    return (int(major), int(minor)) >= MX_RECIPES


def _installed() -> tuple[str | None, tuple[str, ...]]:
    """The fingerprint of the kernels here, and what is missing."""
    notes = []
    sources = None
    try:
        sources = compiler.source_fingerprint()
    except MissingDependency as error:
        notes.append(f"kernels cannot be compiled here: {error}")
    try:
        importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        notes.append("torch is not installed: nothing can be measured here")
    return sources, tuple(notes)
