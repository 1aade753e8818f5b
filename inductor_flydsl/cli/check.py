"""`inductor-flydsl check`: run kernels on the emulator; their numbers, hazards and costs.

Kernels are compiled with debug lines, so that what is found names the line of their source.
"""

from __future__ import annotations

import argparse
import functools
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .. import compiler, numerics, samples, settings, space, variants
from ..config import GemmConfig, KernelSpec
from ..devices import get_device
from ..errors import InductorFlyDSLError, ProblemError
from ..problem import GemmProblem
from ..tuner import default_tuner
from . import FAILED, OK, UsageError
from .output import emit_json, microseconds, table

if TYPE_CHECKING:
    from ..devices.emulator import EmulatorDevice
    from ..emulator import RunResult

SHOWN_CONFLICTS = 8


@dataclass
class Report:
    """What one kernel did.

    ran: the problem that was executed whole, a reduced one where `problem` is large. us: emulated
    time of the whole problem.
    """

    name: str
    config: GemmConfig
    ran: GemmProblem
    run: RunResult | None = None
    max_ulp: float | None = None
    failure: str | None = None
    us: float = math.inf

    @property
    def ok(self) -> bool:
        """Right numbers and nothing found."""
        return self.failure is None and self.run is not None and not self.run.findings

    @property
    def verdict(self) -> str:
        """Of the numbers: right, wrong or not reached."""
        if self.max_ulp is not None:
            return "right"
        wrong = self.failure is not None and self.failure.startswith("WrongNumbers")
        return "wrong" if wrong else "not reached"

    def to_json(self, clock: str) -> dict[str, Any]:
        """Findings and conflicts with their source lines; resources by LLVM's names."""
        run = self.run
        return {
            "name": self.name,
            "config": self.config.to_json(),
            "ran": self.ran.to_json(),
            "numbers": self.verdict,
            "max_error_ulp": self.max_ulp,
            "failure": self.failure,
            "us": self.us if math.isfinite(self.us) else None,
            "clock": clock,
            "findings": [asdict(f) | {"severity": f.severity} for f in run.findings] if run else [],
            "lds_bank_conflicts": [asdict(c) | {"ways": c.ways} for c in run.conflicts]
            if run
            else [],
            "resources": asdict(run.resources) if run else None,
        }


def run(arguments: argparse.Namespace) -> int:
    problem = GemmProblem.parse(arguments.problem)
    device: Any = get_device("emulator")
    limit = space.problem_limit(problem, device.arch)
    if limit:
        raise ProblemError("problem", arguments.problem, f"has no kernel: {limit}", "see explain")
    if not 0 <= arguments.seed < 2**63:
        raise UsageError("--seed", arguments.seed, "is out of range", "use 0 to 2**63 - 1")
    if arguments.config:
        configs = [_config(problem, name, device) for name in arguments.config]
    else:
        configs = default_tuner().select(problem, device)[:1]
    with settings.scope(emulator_landing=arguments.landing, emulator_seed=arguments.seed):
        reports = [_check(problem, config, device, arguments.seed) for config in configs]
    if arguments.json:
        emit_json(
            {
                "problem": problem.to_json(),
                "device": device.name,
                "landing": arguments.landing,
                "seed": arguments.seed,
                "results": [r.to_json(device.clock.value) for r in reports],
            }
        )
    else:
        print(f"{problem} on {device.name}, {arguments.landing} landing, seed {arguments.seed}")
        header = ("CONFIG", "NUMBERS", "MAX ULP", "FINDINGS", f"US ({device.clock.value})")
        print(table((*header, "VGPR", "AGPR", "SGPR", "LDS", "SPILLS"), map(_row, reports)))
        for report in reports:
            _print_details(problem, report)
    return OK if all(r.ok for r in reports) else FAILED


def _row(report: Report) -> tuple[object, ...]:
    run = report.run
    ulp = "-" if report.max_ulp is None else f"{report.max_ulp:g}"
    found = len(run.findings) if run else "-"
    row = (report.name, report.verdict, ulp, found, microseconds(report.us))
    if run is None:
        return (*row, *"-----")
    r = run.resources
    return (*row, r.vgpr, r.agpr, r.sgpr, r.lds, r.vgpr_spills + r.sgpr_spills)


def _print_details(problem: GemmProblem, report: Report) -> None:
    if report.ran != problem:
        print(f"  {report.name}: executed {report.ran}, which runs the same kernel")
    if report.failure:
        print(f"  {report.name}: {report.failure}")
    if report.run is None:
        return
    for finding in report.run.findings:
        print("  " + str(finding).replace("\n", "\n  "))
    conflicts = report.run.conflicts
    if conflicts:
        print("  LDS bank conflicts, dearest first:")
    for conflict in conflicts[:SHOWN_CONFLICTS]:
        print(f"    {conflict}")
    if len(conflicts) > SHOWN_CONFLICTS:
        print(f"    and {len(conflicts) - SHOWN_CONFLICTS} more; --json has all")


def _config(problem: GemmProblem, name: str, device: EmulatorDevice) -> GemmConfig:
    for config in (*space.configs(problem), *variants.every_config()):
        if config.name == name:
            why = space.why_not(problem, config, device.arch)
            if why:
                raise UsageError("--config", name, f"cannot run this problem: {why}", "see explain")
            return config
    raise UsageError(
        "--config",
        name,
        "is not a configuration that is listed",
        "take one that inductor-flydsl explain or tune shows; README says what a name's parts are",
    )


def _check(problem: GemmProblem, config: GemmConfig, device: EmulatorDevice, seed: int) -> Report:
    small = numerics.reduced(problem, config)
    report = Report(config.name, config, small)
    device.last_run = None
    try:
        spec = KernelSpec.of(problem, config)
        artifact = compiler.compile_spec(spec, device.arch.name, device.backend, lines=True)
        try:
            report.max_ulp = numerics.check(device, artifact, small, config, seed=seed).max_ulp
        finally:
            report.run = device.last_run
        kernel = device.load(artifact, problem, config)
        times = []
        for tensors in samples.launches(problem, "cpu", seed=seed):
            times.append(device.time(functools.partial(kernel, *tensors)).us)
        report.us = sum(times) / len(times)
    except InductorFlyDSLError as error:
        report.failure = f"{type(error).__name__}: {error}"
    return report
