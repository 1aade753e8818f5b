"""What `tuner` needs of the world, as the real package has it: workers, compiler, measuring.

Owns the choice between measuring here and in a process apart. Imports each when it is used, so
that a tuner that finds every record loads neither torch nor flydsl. Knows nothing of records kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .background import Compile
from .config import GemmConfig, KernelSpec
from .devices.base import Device
from .errors import CompileFailed
from .problem import GemmProblem
from .records import Measurement

if TYPE_CHECKING:
    from .compiler import Artifact

Candidates = Sequence[tuple[GemmConfig, Any]]
Measure = Callable[[Device, Candidates, GemmProblem, "float | None"], list[Measurement]]


def prepare_for(jobs: int) -> Callable[[Device], None]:
    """What starts so many workers for a device ahead of its first compile."""

    def prepare(device: Device) -> None:
        from . import compiler

        compiler.start_workers(device.arch.name, device.backend, jobs)

    return prepare


def compile_in(jobs: int) -> Compile:
    """The compiler, in so many workers."""

    def compile(
        specs: Sequence[KernelSpec], arch: str, backend: str, **options: Any
    ) -> Mapping[KernelSpec, Artifact | CompileFailed]:
        from . import compiler

        return compiler.compile_many(specs, arch, backend, jobs, **options)

    return compile


def measure_within(timeout: float) -> Measure:
    """Measuring in which a candidate may hang for so many seconds; 0: for ever."""

    def measure(
        device: Device, candidates: Candidates, problem: GemmProblem, deadline: float | None
    ) -> list[Measurement]:
        # On a GPU a bad kernel takes its process down or hangs it; nothing there raises.
        if device.backend == "rocm":
            from .isolation import measure_isolated

            return measure_isolated(device, candidates, problem, timeout=timeout, deadline=deadline)
        from .measure import measure_many

        return measure_many(device, candidates, problem, deadline=deadline)

    return measure
