"""Time to the first result: `python -m bench.coldstart [--quick] [--check] [--json F] [--plot F]`.

A model with 20 distinct GEMMs (the projections of a small transformer at several batch sizes), the
candidates that the tuner takes for each. Three processes, each with caches of its own but for the
last:

- ours: every candidate of every GEMM is compiled first, in parallel, each kernel once;
- the peer's flow, on the same candidates and the same compiler: GEMM by GEMM, candidate by
  candidate, compiled when its benchmark first calls it, in the process (in-tree FLYDSL, 2.15);
- a second process of ours that finds the first one's store and kernels.

Clock: wall time of this machine. Kernels are compiled for gfx950 to assembly; a benchmark of one
candidate, for which there is no GPU here, is a pause of 10 ms in both flows.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from .output import barh, exit_with, finish, parser
from .roles import run_role

TARGET_RATIO = 1.7
TARGET_WARM_SECONDS = 1.0
BENCHMARK_SECONDS = 0.010
HIDDEN, FEED = 1024, 4096
CANDIDATES, QUICK_CANDIDATES = 12, 8


def problems() -> list[Any]:
    """Twenty GEMMs: four projections and their weight gradients, and odd shapes among them."""
    from inductor_flydsl.problem import GemmProblem

    shapes = [(m, n, k, "NT") for m in (1, 128, 2048) for n, k in _projections()]
    shapes += [(n, k, 2048, "TN") for n, k in _projections()]
    shapes += [(2048, k, n, "NN") for n, k in _projections()]
    return [GemmProblem.dense(m, n, k, layout=layout) for m, n, k, layout in shapes]


def _projections() -> list[tuple[int, int]]:
    return [(3 * HIDDEN, HIDDEN), (HIDDEN, HIDDEN), (FEED, HIDDEN), (HIDDEN, FEED)]


def tuner(count: int) -> Any:
    """The tuner of the settings, with so many candidates and a pause for a benchmark."""
    import dataclasses

    from inductor_flydsl import model, ranking, space
    from inductor_flydsl.records import Measurement, now_utc
    from inductor_flydsl.tuner import Tuner, default_tuner

    def measure(device: Any, candidates: Any, problem: Any, deadline: Any) -> list[Any]:
        time.sleep(BENCHMARK_SECONDS * len(candidates))
        return [
            Measurement(
                config=config,
                clock=device.clock,
                device=device.name,
                us=model.predict(problem, config, device.arch).us,
                measured_at=now_utc(),
            )
            for config, _ in candidates
        ]

    class Short(Tuner):
        def select(self, problem: Any, device: Any) -> list[Any]:
            legal = space.candidates(problem, device.arch)
            return [c for c, _ in ranking.rank(problem, legal, device.arch, count)]

    parts = {f.name: getattr(default_tuner(), f.name) for f in dataclasses.fields(Tuner) if f.init}
    return Short(**{n: v for n, v in parts.items() if not n.startswith("_")} | {"measure": measure})


def ours(count: int) -> dict[str, Any]:
    """Tune all; then find every chosen kernel, as a first call would."""
    from inductor_flydsl import compiler, ledger
    from inductor_flydsl.config import KernelSpec
    from inductor_flydsl.devices import get_device

    device = get_device("emulator")
    start = time.perf_counter()
    records = tuner(count).tune_many(problems(), device)
    for record in records:
        compiler.compile_spec(KernelSpec.of(record.key.problem, record.best), "gfx950", "emulator")
    seconds = time.perf_counter() - start
    done = {"compiled": compiler.stats().compiled, "measured": ledger.stats().measured}
    return {"seconds": seconds, **done, "chosen": [r.best.name for r in records]}


def serial(count: int) -> dict[str, Any]:
    """The peer's flow."""
    from inductor_flydsl import compiler
    from inductor_flydsl.config import KernelSpec
    from inductor_flydsl.devices import get_device

    device = get_device("emulator")
    start = time.perf_counter()
    chooser, measured = tuner(count), 0
    for problem in problems():
        for config in chooser.select(problem, device):
            compiler.compile_spec(KernelSpec.of(problem, config), "gfx950", "emulator")
            time.sleep(BENCHMARK_SECONDS)
            measured += 1
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "compiled": compiler.stats().compiled, "measured": measured}


ROLES = {"ours": ours, "peer": serial, "warm": ours}


def run(role: str, count: int, folder: Path) -> dict[str, Any]:
    """One role in a process of its own, with caches under `folder`."""
    use = {"INDUCTOR_FLYDSL_CACHE": "require" if role == "warm" else "readwrite"}
    arguments = ["--role", role, "--candidates", str(count)]
    return run_role("bench.coldstart", arguments, folder, use)


def _arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--role", choices=ROLES, help=argparse.SUPPRESS)
    made.add_argument("--candidates", type=int, help="for each GEMM")
    options = made.parse_args()
    if options.candidates is None:
        options.candidates = QUICK_CANDIDATES if options.quick else CANDIDATES
    if options.candidates < 1:
        made.error(f"--candidates {options.candidates}: at least 1")
    return options


def main() -> int:
    arguments = _arguments()
    count = arguments.candidates
    if arguments.role:
        print(json.dumps(ROLES[arguments.role](count)))
        return 0
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        results = {"ours": run("ours", count, Path(first))}
        results["warm"] = run("warm", count, Path(first))
        results["peer"] = run("peer", count, Path(second))
    ratio = results["peer"]["seconds"] / results["ours"]["seconds"]
    cores = len(os.sched_getaffinity(0))
    print(f"clock: wall; {cores} cores; 20 GEMMs, {count} candidates each")
    print(f"{'flow':24} {'seconds':>8} {'compiled':>9} {'measured':>9}")
    names = {"peer": "peer: serial, lazy", "ours": "ours, cold", "warm": "ours, second process"}
    for role, name in names.items():
        r = results[role]
        print(f"{name:24} {r['seconds']:8.2f} {r['compiled']:9} {r['measured']:9}")
    print(f"ours is {ratio:.2f}x faster to the first result")
    unmet = _unmet(results, ratio)
    if arguments.plot:
        seconds = {name: results[role]["seconds"] for role, name in names.items()}
        barh(arguments.plot, "Time to the first result, 20 GEMMs", "s, wall clock", seconds)
    data = {"clock": "wall", "cores": cores, "candidates": count, "ratio": ratio, **results}
    return finish(arguments, data, unmet)


def _unmet(results: dict[str, Any], ratio: float) -> list[str]:
    warm, unmet = results["warm"], []
    if ratio < TARGET_RATIO:
        unmet.append(f"{ratio:.2f}x over the serial flow, at least {TARGET_RATIO}x")
    if warm["compiled"] or warm["measured"]:
        unmet.append(f"a second process compiled {warm['compiled']}, measured {warm['measured']}")
    if warm["seconds"] > TARGET_WARM_SECONDS:
        unmet.append(f"{warm['seconds']:.2f} s in a second process, at most {TARGET_WARM_SECONDS}")
    if warm["chosen"] != results["ours"]["chosen"]:
        unmet.append("a second process chose otherwise")
    return unmet


if __name__ == "__main__":
    exit_with(main)
