"""Speed of the emulator: `python -m bench.emulator [--quick] [--check] [--json FILE]`.

One core, wall-independent: processor time of a run after its code was decoded (the second run). A
whole 1024×1024×1024 bf16 GEMM of each pipeline with findings off and on, a sampled 4096×4096×4096
one, numbers checked, and the process's peak memory. Clock: `processor` seconds of this machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .isa_runs import case_of, compile_text, on_one_core
from .output import exit_with, writable

TARGET_OFF, TARGET_ON = 1_000_000, 300_000
TARGET_LARGE_SECONDS = 30.0
TARGET_BYTES = 4 << 30
TOLERANCE = 0.01
SAMPLED = 8


@dataclass
class Row:
    """One run: wave-instructions, processor seconds; `ok` if the target was met."""

    what: str
    instructions: int
    seconds: float
    error: float
    target: str
    ok: bool

    @property
    def rate(self) -> float:
        """Wave-instructions a second."""
        return self.instructions / self.seconds


def configs() -> dict[str, Any]:
    """The configuration of each pipeline that is measured."""
    from inductor_flydsl.config import GemmConfig

    return {
        "staged": GemmConfig(
            tile_m=128, tile_n=128, tile_k=64, stages=2, waves_m=2, waves_n=2
        ),
        "hti": GemmConfig(
            pipeline="hti", tile_m=256, tile_n=256, tile_k=64, stages=2, waves_m=2, waves_n=4
        ),
    }  # fmt: skip


def _run(case: Any, program: Any, options: Any) -> tuple[Any, float]:
    start = time.process_time()
    result = case.run(program, options)
    return result, time.process_time() - start


def whole(name: str, config: Any, findings: bool, rounds: int) -> Row:
    """1024³ in full, every element checked; the fastest of `rounds` after one to decode."""
    from inductor_flydsl import emulator
    from inductor_flydsl.problem import GemmProblem

    problem = GemmProblem.dense(1024, 1024, 1024, layout="NT")
    program = emulator.load_program(compile_text(problem, config))
    case = case_of(problem, config)
    options = emulator.Options(findings=findings, timed=False)
    case.run(program, options)
    runs = [_run(case, program, options) for _ in range(rounds)]
    result, seconds = min(runs, key=lambda run: run[1])
    error, target = case.worst(), TARGET_ON if findings else TARGET_OFF
    assert error < TOLERANCE and not result.findings, (error, result.findings)
    rate = result.instructions / seconds
    what = f"1024³ {name}, findings {'on' if findings else 'off'}"
    return Row(what, result.instructions, seconds, error, f"≥ {target}/s", rate >= target)


def sampled(name: str, config: Any) -> Row:
    """4096³, workgroups spread over the grid, with findings and the clock, decoding included."""
    from inductor_flydsl import emulator
    from inductor_flydsl.problem import GemmProblem

    problem = GemmProblem.dense(4096, 4096, 4096, layout="NT")
    program = emulator.load_program(compile_text(problem, config))
    case = case_of(problem, config)
    groups = case.grid[0] * case.grid[1] * case.grid[2]
    chosen = tuple(i * (groups - 1) // (SAMPLED - 1) for i in range(SAMPLED))
    result, seconds = _run(case, program, emulator.Options(sample_workgroups=chosen))
    written = case.tensors[0].isnan().logical_not()
    tile = config.tile_m * config.tile_n
    assert int(written.sum()) == SAMPLED * tile and not result.findings, result.findings
    columns = written.any(0).nonzero()[:16, 0]
    rows = written[:, columns[0]].nonzero()[:256, 0]
    error = case.worst_at(rows, columns)
    assert error < TOLERANCE, error
    what = f"4096³ {name}, {SAMPLED} of {groups} workgroups, findings on"
    target = f"< {TARGET_LARGE_SECONDS:.0f} s"
    return Row(what, result.instructions, seconds, error, target, seconds < TARGET_LARGE_SECONDS)


def measure(quick: bool) -> list[Row]:
    """All rows; quick: one round of each instead of the best of five."""
    rows = []
    for name, config in configs().items():
        rows += [whole(name, config, findings, 1 if quick else 5) for findings in (False, True)]
        rows.append(sampled(name, config))
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Prints the table; --check fails where a target isn't met."""
    parser = argparse.ArgumentParser(prog="python -m bench.emulator", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round instead of five")
    parser.add_argument("--check", action="store_true", help="exit 1 where a target isn't met")
    parser.add_argument("--json", type=writable, metavar="FILE", help="the rows as JSON")
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(given)
    on_one_core("bench.emulator", given)
    rows = measure(options.quick)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"clock: processor seconds, one core of {platform.processor() or platform.machine()}")
    for row in rows:
        verdict = "ok" if row.ok else "MISSED"
        print(f"{row.what:56} {row.instructions:>9} wave-instructions {row.seconds:6.2f} s "
              f"{row.rate:>10,.0f}/s  target {row.target:12} {verdict}")  # fmt: skip
    memory_ok = peak < TARGET_BYTES
    print(f"peak memory {peak / 2**30:.2f} GiB  target < 4 GiB  {'ok' if memory_ok else 'MISSED'}")
    if options.json:
        data = {"clock": "processor seconds", "rows": [asdict(r) | {"rate": r.rate} for r in rows],
                "peak_bytes": peak}  # fmt: skip
        Path(options.json).write_text(json.dumps(data, indent=1, ensure_ascii=False))
    missed = not memory_ok or not all(row.ok for row in rows)
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    exit_with(main)
