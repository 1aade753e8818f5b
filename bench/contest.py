"""One shape, several contestants, one clock: who is how fast.

Owns the protocol of a contestant, which of its candidates are run, and what is known of each.
Knows nothing of FlyDSL or Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .launches import Recipe, WrongLaunch, check_numbers, time_recipe
from .problems import Missing, Operands
from .suites import Shape


@dataclass(frozen=True)
class Candidate:
    """One kernel of a contestant.

    Attributes:
        name: of its configuration.
        predicted_us: by the analytic model; only ever compared with its contestant's others.
        launch: operands → the emulator's RunResult; raises where it can't.
    """

    name: str
    predicted_us: float
    launch: Callable[[Operands], Any]


def recorded(
    configs: Sequence[Any],
    name_of: Callable[[Any], str],
    predicted_us: Callable[[Any], float],
    recipe_of: Callable[[Any, Operands], Recipe],
) -> list[Candidate]:
    """Candidates of a contestant whose launches are recorded, one a configuration."""
    return [
        Candidate(
            name_of(config),
            predicted_us(config),
            lambda operands, c=config: time_recipe(recipe_of(c, operands), operands.tensors),
        )
        for config in configs
    ]


class Contestant(Protocol):
    """Someone who has kernels."""

    name: str

    def candidates(self, shape: Shape) -> list[Candidate]:
        """Its kernels for a shape. Raises Missing with the reason where there are none."""


@dataclass(frozen=True)
class Timed:
    """A kernel's time.

    Attributes:
        config: name.
        us: on the clock ``emulated``.
        utilisation: of the chip's matrix units over the launch; loop_utilisation: of a CU's in
            the main loop.
        bound: what the launch waits for most.
        ghz: the clock under load.
        registers: VGPRs and AGPRs a lane; scratch: bytes a lane.
        energy: of a matrix operation with the LDS traffic that feeds it, as the clock has it; the
            lower, the higher the clock under load.
    """

    config: str
    us: float
    utilisation: float
    loop_utilisation: float
    bound: str
    ghz: float
    registers: int
    scratch: int
    energy: float


@dataclass(frozen=True)
class Entry:
    """What one contestant made of one shape.

    Attributes:
        best: None where nothing works, and then `reason` says why.
        timed: every candidate that was timed, the fastest first.
        failed: name → reason.
        left_out: candidates that the model predicts to be far behind, not run.
    """

    best: Timed | None
    timed: tuple[Timed, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)
    left_out: int = 0
    reason: str = ""

    @property
    def offered(self) -> int:
        """Candidates in all."""
        return len(self.timed) + len(self.failed) + self.left_out


def worth_running(candidates: Sequence[Candidate], within: float) -> list[Candidate]:
    """Those predicted within a factor of the contestant's best prediction; 0: all."""
    if not within or not candidates:
        return list(candidates)
    limit = within * min(candidate.predicted_us for candidate in candidates)
    return [candidate for candidate in candidates if candidate.predicted_us <= limit]


def enter(contestant: Contestant, operands: Operands, within: float = 0.0) -> Entry:
    """Time a contestant's candidates on one shape; whatever breaks is a reason in the entry."""
    try:
        offered = contestant.candidates(operands.shape)
    except Missing as error:
        return Entry(None, reason=str(error))
    chosen = worth_running(offered, within)
    timed, failed = [], {}
    for candidate in chosen:
        operands.reset()
        try:
            timed.append(_timed(candidate, operands))
        except Exception as error:  # A peer's kernel, compiler or launch may fail in any way.
            failed[candidate.name] = reason_of(error)
    timed.sort(key=lambda one: one.us)
    left_out = len(offered) - len(chosen)
    reason = ""
    if not timed:
        reasons = sorted(set(failed.values()))
        reason = f"none of {len(offered)} works: {'; '.join(reasons[:2])}"
        reason = reason if offered else "it has no configuration for this shape"
    return Entry(timed[0] if timed else None, tuple(timed), failed, left_out, reason)


def _timed(candidate: Candidate, operands: Operands) -> Timed:
    result = candidate.launch(operands)
    stats = result.stats
    check_numbers(operands, share_run(stats))
    return Timed(
        config=candidate.name,
        us=result.time_us,
        utilisation=stats["mfma_utilisation"],
        loop_utilisation=stats["mfma_utilisation_loop"],
        bound=str(stats["bound"]),
        ghz=stats["frequency_ghz"],
        registers=result.resources.vgpr + result.resources.agpr,
        scratch=result.resources.scratch,
        energy=stats["matrix_energy"],
    )


def share_run(stats: dict[str, Any]) -> float:
    """Of a launch's workgroups, those that were run."""
    return stats["workgroups_run"] / stats["workgroups"]


def reason_of(error: BaseException) -> str:
    """The first line of an error, with its kind where that is not said by us."""
    text = str(error).strip().splitlines() or [""]
    ours = isinstance(error, (Missing, WrongLaunch))
    return text[0][:200] if ours else f"{type(error).__name__}: {text[0][:200]}"
