"""`inductor-flydsl demo`: the main job, told step by step.

Compiles two functions with ``torch.compile(mode="max-autotune")`` and FLYDSL among the backends,
on a GPU that FlyDSL serves or else on the emulated gfx950, and checks what came of it: the kernel
that was chosen, its numbers against float64, and what the store holds now.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import indent
from typing import TYPE_CHECKING, Any

from .. import settings, tuner
from ..devices import Clock, Device, get_device
from ..errors import InductorFlyDSLError
from ..records import TuningRecord
from . import FAILED, OK, UsageError
from .cache import measurements_table
from .env import versions
from .output import emit_json, paint, say

if TYPE_CHECKING:
    import torch

    from ..inductor.decisions import Decision
    from ..measure import Accuracy

BACKENDS = "ATEN,TRITON,FLYDSL"


@dataclass(frozen=True)
class Step:
    """One compiled function and what came of it."""

    title: str
    seconds: float
    decision: Decision | None
    record: TuningRecord | None
    measured: int
    accuracy: Accuracy

    @property
    def right(self) -> bool:
        return self.accuracy.outliers <= self.accuracy.allowed

    @property
    def backend(self) -> str:
        return "none" if self.decision is None else self.decision.chosen


def run(arguments: argparse.Namespace) -> int:
    for name in ("m", "n", "k"):
        if getattr(arguments, name) < 1:
            raise UsageError(f"--{name}", getattr(arguments, name), "is not positive", "use 1 up")
    if settings.current().disable:
        raise UsageError("INDUCTOR_FLYDSL_DISABLE", "1", "turns this off", "unset it")
    device = get_device()
    if not arguments.json:
        _announce(device)
    steps = _steps(arguments, device)
    if arguments.json:
        emit_json(_json(device, steps))
    else:
        _conclude(device)
    problems = [p for step in steps for p in _problems(step, device)]
    for problem in problems:
        say(f"failed: {problem}")
    return FAILED if problems else OK


def _announce(device: Device) -> None:
    found = versions()
    print(f"torch {found['torch']}, flydsl {found['flydsl']}, on {device.name}")
    if device.clock is Clock.EMULATED:
        print(
            f"No AMD GPU is used: kernels for {device.arch.name} run on an emulator. Its times\n"
            f"have the clock {device.clock.value}: estimates for the GPU, never of this CPU."
        )
    print(f'\n  config.max_autotune_gemm_backends = "{BACKENDS}"')
    print("  config.flydsl_enable_autotuning = True")
    print('  torch.compile(f, mode="max-autotune")')


def _steps(arguments: argparse.Namespace, device: Device) -> list[Step]:
    import torch

    from .. import register

    generator = torch.Generator(device=device.torch_device).manual_seed(0)
    options: dict[str, Any] = {"dtype": torch.bfloat16, "device": device.torch_device}
    m, n, k = arguments.m, arguments.n, arguments.k
    x = torch.randn(m, k, generator=generator, **options)
    w = torch.randn(n, k, generator=generator, **options)

    def linear(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w.t()

    def linear_relu(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w.t())

    register()
    # With Inductor's graph cache a second run would never come to a decision to show.
    with torch._inductor.config.patch(
        max_autotune_gemm_backends=BACKENDS, flydsl_enable_autotuning=True, fx_graph_cache=False
    ):
        steps = []
        for number, function in enumerate((linear, linear_relu), start=1):
            step = _step(function, x, w)
            if not arguments.json:
                _tell(number, step)
            steps.append(step)
    return steps


def _step(function: Callable[..., Any], x: torch.Tensor, w: torch.Tensor) -> Step:
    import torch

    from ..inductor import decisions
    from ..measure import accuracy

    # A decision that repeats the one before is not listed twice.
    decisions.clear()
    tuned = len(tuner.history())
    start = time.perf_counter()
    with torch.no_grad():
        try:
            out = torch.compile(function, mode="max-autotune")(x, w)
        except Exception as error:
            raise InductorFlyDSLError(f"torch.compile failed: {_root(error)}") from error
        exact = function(x.double(), w.double())
    seconds = time.perf_counter() - start
    new = [d for d in decisions.decisions() if d.op == "mm"]
    found = tuner.history()[tuned:]
    record, measured = found[-1] if found else (None, 0)
    return Step(
        title=f"{function.__name__}(x{list(x.shape)}, w{list(w.shape)})",
        seconds=seconds,
        decision=new[-1] if new else None,
        record=record,
        measured=measured,
        accuracy=accuracy(out, exact),
    )


def _root(error: BaseException) -> str:
    """The first of our errors under those that torch wraps around it, or the error, in words."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, InductorFlyDSLError):
        found = found.__cause__ or found.__context__
    told = found or error
    return f"{type(told).__name__}: {str(told).strip().splitlines()[0]}"


def _tell(number: int, step: Step) -> None:
    print(f"\n{paint(f'{number}. {step.title}', 'bold')}, compiled in {step.seconds:.1f} s (wall)")
    if step.record is not None:
        source = f"{step.measured} candidates measured" if step.measured else "found in the store"
        print(f"   tuned    {step.record.key.problem}: {source}")
        if step.measured or number == 1:
            print(indent(measurements_table(step.record), "     "))
    if step.decision is not None:
        for timed in step.decision.times:
            if step.record is None or timed.clock != step.record.clock.value:
                us = f"{timed.us:.2f} us ({timed.clock})" if timed.us else "not ranked"
                print(f"     {timed.name}: {us}")
        print(f"   winner   {paint(step.backend, 'green')}: {step.decision.reason}")
    found = step.accuracy
    verdict = paint("right", "green") if step.right else paint("WRONG", "red")
    print(
        f"   numbers  {verdict}: against float64 at most {found.max_abs:.3g} off, "
        f"{found.max_ulp:g} ulp; {found.outliers} of {found.elements} by more than 1 ulp"
    )
    if step.record is not None:
        print(f"   record   {step.record.id}")


def _conclude(device: Device) -> None:
    from .. import compiler

    counts, kernels = tuner.stats(), compiler.stats()
    print(
        f"\n{kernels.compiled} kernels compiled, {counts.measured} candidates measured, "
        f"{counts.hits} of {counts.lookups} lookups found in "
        f"{settings.as_text(settings.current().cache_dir)}"
    )
    if counts.measured:
        print("Run it again with INDUCTOR_FLYDSL_CACHE=require: nothing is measured any more.")
    print("See: inductor-flydsl cache list; inductor-flydsl cache show KEY")


def _problems(step: Step, device: Device) -> list[str]:
    problems = []
    if not step.right:
        problems.append(f"{step.title}: wrong numbers")
    if step.decision is None:
        problems.append(f"{step.title}: FLYDSL took no part in autotuning")
    elif step.backend != "FLYDSL" and device.clock is Clock.EMULATED:
        problems.append(f"{step.title}: {step.backend} was chosen, not FLYDSL")
    return problems


def _json(device: Device, steps: list[Step]) -> dict[str, Any]:
    from .. import compiler

    counts, kernels = tuner.stats(), compiler.stats()
    return {
        "versions": versions(),
        "device": device.name,
        "clock": device.clock.value,
        "steps": [
            {
                "title": s.title,
                "seconds_wall": s.seconds,
                "chosen": s.backend,
                "reason": None if s.decision is None else s.decision.reason,
                "right": s.right,
                "max_abs_error": s.accuracy.max_abs,
                "max_ulp": s.accuracy.max_ulp,
                "outliers": s.accuracy.outliers,
                "elements": s.accuracy.elements,
                "measured": s.measured,
                "record": None if s.record is None else {"id": s.record.id, **s.record.to_json()},
            }
            for s in steps
        ],
        "compiled": kernels.compiled,
        "measured": counts.measured,
        "hits": counts.hits,
        "lookups": counts.lookups,
        "failed": [p for s in steps for p in _problems(s, device)],
    }
