"""FlyDSL GEMM kernels for AMD gfx950 in TorchInductor's autotuning, from outside the tree.

Importing this package imports neither torch nor flydsl nor numpy: PyTorch loads it on every
``import torch``. Every public name is resolved on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable

    from . import settings
    from .config import GemmConfig
    from .devices.base import Device
    from .explanation import Explanation
    from .inductor.activate import disabled, register, unregister
    from .inductor.decisions import decisions, last_compile
    from .problem import GemmProblem
    from .records import TuningRecord

__all__ = [
    "GemmConfig",
    "GemmProblem",
    "__version__",
    "decisions",
    "disabled",
    "explain",
    "last_compile",
    "lookup",
    "register",
    "settings",
    "tune",
    "tune_many",
    "unregister",
]

_HOMES = {
    "GemmConfig": "config",
    "GemmProblem": "problem",
    "decisions": "inductor.decisions",
    "disabled": "inductor.activate",
    "last_compile": "inductor.decisions",
    "register": "inductor.activate",
    "unregister": "inductor.activate",
}


def __getattr__(name: str) -> Any:
    if name == "settings":
        return importlib.import_module(f"{__name__}.settings")
    if name in _HOMES:
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


def _problem(problem: GemmProblem | str) -> GemmProblem:
    from .problem import GemmProblem

    return GemmProblem.parse(problem) if isinstance(problem, str) else problem


def _device(device: Device | str | None) -> Device:
    from .devices import get_device

    return get_device(device) if device is None or isinstance(device, str) else device


def tune(
    problem: GemmProblem | str,
    *,
    device: Device | str | None = None,
    effort: str | None = None,
    force: bool = False,
) -> TuningRecord:
    """Find the best configuration for a problem, measuring it unless the store has it.

    Args:
        problem: a GemmProblem, or text like ``4096,4096,4096,bf16,NT``.
        device: a device or its name; None asks the settings (``INDUCTOR_FLYDSL_DEVICE``).
        effort: ``default`` or ``exhaustive``; None asks the settings.
        force: measure even if the store has a record.

    Returns:
        The record; its times are in µs of ``record.clock``, and ``record.best`` is None if every
        candidate was rejected.

    Raises:
        ProblemError: the text is malformed, or no kernel serves the problem.
        DeviceUnavailable: there is no such device here.
        MissingDependency: flydsl or torch is needed and not installed.
        RecordMissing: ``INDUCTOR_FLYDSL_CACHE=require`` and the store has no record.
    """
    from . import tuner

    return tuner.tune(_problem(problem), _device(device), force=force, effort=effort)


def tune_many(
    problems: Iterable[GemmProblem | str],
    *,
    device: Device | str | None = None,
    effort: str | None = None,
    budget: float | None = None,
    force: bool = False,
) -> list[TuningRecord]:
    """`tune` for many problems: every candidate of all of them is compiled first, in parallel.

    Args:
        problems: GemmProblems, or texts like ``4096,4096,4096,bf16,NT``.
        device, effort, force: as `tune` takes them.
        budget: seconds that it may take; None asks the settings, 0 is no limit.

    Returns:
        A record a problem, in their order.

    Raises:
        ProblemError, DeviceUnavailable, MissingDependency, RecordMissing: as `tune` does.
    """
    from . import tuner

    chosen = tuner.default_tuner(effort=effort, budget=budget)
    return chosen.tune_many(map(_problem, problems), _device(device), force=force)


def lookup(
    problem: GemmProblem | str, *, device: Device | str | None = None
) -> TuningRecord | None:
    """The stored record for a problem on a device, or None; measures nothing.

    Args:
        problem: a GemmProblem, or text like ``4096,4096,4096,bf16,NT``.
        device: a device or its name; None asks the settings.

    Raises:
        ProblemError: the text is malformed.
        DeviceUnavailable: there is no such device here.
    """
    from . import tuner

    return tuner.lookup(_problem(problem), _device(device))


def explain(problem: GemmProblem | str, *, arch: str = "gfx950") -> Explanation:
    """Which configurations are legal for a problem, their predicted times, and why the others
    are not; with what the store has. Needs neither torch nor flydsl nor a device.

    Args:
        problem: a GemmProblem, or text like ``4096,4096,4096,bf16,NT``.
        arch: the architecture to explain for.

    Raises:
        ProblemError: the text is malformed.
        BadArgument: the architecture is not known.
    """
    from . import explanation

    return explanation.explain(_problem(problem), arch=arch)
