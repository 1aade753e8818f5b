"""`inductor-flydsl check`: run kernels on the emulator and compare their numbers."""

from __future__ import annotations

import argparse

from .. import compiler, space
from ..config import GemmConfig, KernelSpec
from ..devices import Device, get_device
from ..errors import CompileFailed, ProblemError
from ..measure import measure
from ..problem import GemmProblem
from ..records import Measurement
from ..tuner import default_tuner
from . import FAILED, OK, UsageError
from .output import emit_json, microseconds, table


def run(arguments: argparse.Namespace) -> int:
    problem = GemmProblem.parse(arguments.problem)
    device = get_device("emulator")
    limit = space.problem_limit(problem, device.arch)
    if limit:
        raise ProblemError("problem", arguments.problem, f"has no kernel: {limit}", "see explain")
    if arguments.config:
        configs = [_config(problem, name, device) for name in arguments.config]
    else:
        configs = default_tuner().select(problem, device)[:1]
    results = [_check(problem, config, device, arguments.seed) for config in configs]
    if arguments.json:
        emit_json(
            {
                "problem": problem.to_json(),
                "device": device.name,
                "results": [r.to_json() | {"name": r.config.name} for r in results],
            }
        )
    else:
        print(f"{problem} on {device.name}")
        header = ("CONFIG", "NUMBERS", "MAX ULP", f"US ({device.clock.value})")
        print(table(header, map(_row, results)))
        for result in results:
            if result.failure:
                print(f"  {result.config.name}: {result.failure}")
    return OK if all(r.ok for r in results) else FAILED


def _row(result: Measurement) -> tuple[object, ...]:
    ulp = "-" if result.max_error is None else f"{result.max_error:g}"
    verdict = "right" if result.max_error is not None else "not reached"
    if result.failure and result.failure.startswith("WrongNumbers"):
        verdict = "wrong"
    return (result.config.name, verdict, ulp, microseconds(result.us))


def _config(problem: GemmProblem, name: str, device: Device) -> GemmConfig:
    for config in space.every_config():
        if config.name == name:
            why = space.why_not(problem, config, device.arch)
            if why:
                raise UsageError("--config", name, f"cannot run this problem: {why}", "see explain")
            return config
    raise UsageError("--config", name, "is not a configuration", "see inductor-flydsl explain")


def _check(problem: GemmProblem, config: GemmConfig, device: Device, seed: int) -> Measurement:
    spec = KernelSpec.of(problem, config)
    try:
        artifact = compiler.compile_spec(spec, device.arch.name, device.backend)
    except CompileFailed as error:
        return Measurement(
            config=config,
            clock=device.clock,
            device=device.name,
            us=float("inf"),
            failure=f"CompileFailed: {error}",
        )
    return measure(device, artifact, problem, config, seed=seed)
