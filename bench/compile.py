"""Seconds per candidate compile: `python -m bench.compile [--quick] [--check] [--json F]`.

One bf16 GEMM, several candidates of each contestant, compiled for gfx950 one after another with
every cache cold, each contestant in a process of its own: ours, PyTorch 2.15's in-tree FlyDSL
kernels, and Triton's. Then ours once more, all at once in the worker pool, as the tuner does.

Clock: wall time of this machine. A first compile that is not among the candidates comes before,
so that imports are not in the times; what they and it take is the column "start". "CPU" is the
median of this process's CPU time, which says more where others use the machine. FlyDSL stops at
assembly text, for which no ROCm is needed; Triton goes on to a code object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .output import barh, exit_with, finish, parser
from .problems import Missing, operands_of
from .roles import run_role
from .suites import Shape

SHAPE = Shape("mm", "bf16", 1024, 4096, 4096)
WARM_UP = Shape("mm", "bf16", 128, 128, 128)
COUNT, QUICK_COUNT = 9, 4
Compile = Callable[[], Any]


def spread(found: Sequence[Any], count: int) -> list[Any]:
    """`count` of a list, evenly over it, the first and the last among them."""
    count = min(count, len(found))
    if count < 2:
        return list(found[:count])
    return [found[i * (len(found) - 1) // (count - 1)] for i in range(count)]


def specs(shape: Shape, count: int) -> list[Any]:
    """Kernels of ours: the model's first for the shape."""
    from inductor_flydsl import ranking, space
    from inductor_flydsl.arch import GFX950
    from inductor_flydsl.config import KernelSpec

    from .problems import problem_of

    problem = problem_of(shape)
    legal = space.candidates(problem, GFX950)
    return [KernelSpec.of(problem, c) for c, _ in ranking.rank(problem, legal, GFX950, count)]


def ours(shape: Shape, count: int) -> list[Compile]:
    from inductor_flydsl.compiler import compile_spec

    return [lambda s=spec: compile_spec(s, "gfx950", "emulator") for spec in specs(shape, count)]


def vendored(shape: Shape, count: int) -> list[Compile]:
    from . import peer_flydsl

    modules, operands = peer_flydsl.vendored(), operands_of(shape)

    def compiling(config: dict[str, Any]) -> Compile:
        param = peer_flydsl.gemm_param(modules, shape, config)
        kernel, tensors, numbers = peer_flydsl.call_of(modules, param, operands)
        return lambda: peer_flydsl.compile_now(kernel, tensors, numbers, param)

    return [compiling(c) for c in spread(peer_flydsl.configurations(modules, shape), count)]


def triton(shape: Shape, count: int) -> list[Compile]:
    from . import peer_triton

    peer_triton.target()
    operands = operands_of(shape)

    def compiling(config: Any) -> Compile:
        kernel, names, constants = peer_triton.call_of(config, operands)
        return lambda: peer_triton.compile_kernel(kernel, names, constants, config, operands)

    return [compiling(c) for c in spread(peer_triton.configurations(shape), count)]


SERIAL = {"ours": ours, "vendored": vendored, "triton": triton}


def one_by_one(contestant: str, count: int) -> dict[str, Any]:
    """Seconds of each compile, or why there are none."""
    start = time.perf_counter()
    try:
        SERIAL[contestant](WARM_UP, 1)[0]()
        compiles = SERIAL[contestant](SHAPE, count)
    except Missing as error:
        return {"missing": str(error)}
    begun = time.perf_counter() - start
    seconds, cpu = [], []
    for one in compiles:
        before, used = time.perf_counter(), time.process_time()
        one()
        seconds.append(time.perf_counter() - before)
        cpu.append(time.process_time() - used)
    return {"start": begun, "seconds": seconds, "cpu": cpu}


def pool(count: int) -> dict[str, Any]:
    """Seconds until the pool has compiled all, its workers' start among them."""
    from inductor_flydsl.compiler import compile_many

    wanted, cores = specs(SHAPE, count), len(os.sched_getaffinity(0))
    start = time.perf_counter()
    done = compile_many(wanted, "gfx950", "emulator", jobs=cores)
    seconds = time.perf_counter() - start
    failed = [str(outcome) for outcome in done.values() if isinstance(outcome, Exception)]
    if failed:
        raise RuntimeError(failed[0])
    return {"whole": seconds, "kernels": len(done), "workers": cores}


def measured(role: str, count: int) -> dict[str, Any]:
    """A role in a process of its own with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        # Records have no part in it, and FlyDSL's own disk cache is of no use to a first compile.
        use = {"INDUCTOR_FLYDSL_CACHE": "off", "FLYDSL_RUNTIME_ENABLE_CACHE": "0"}
        arguments = ["--role", role, "--candidates", str(count)]
        return run_role("bench.compile", arguments, Path(folder), use)


def row(name: str, found: dict[str, Any]) -> str:
    """One contestant's line."""
    if "missing" in found:
        return f"{name:10} none: {found['missing']}"
    s = found["seconds"]
    return (f"{name:10} {len(s):7} {min(s):7.2f} {statistics.median(s):7.2f} {max(s):7.2f} "
            f"{sum(s):8.2f} {found['start']:7.2f} "
            f"{statistics.median(found['cpu']):7.2f}")  # fmt: skip


def unmet(results: dict[str, Any]) -> list[str]:
    """Ours must not take longer to compile than the in-tree backend's, which it replaces."""
    own, peer = results["ours"], results["vendored"]
    if "missing" in peer:
        return []
    mine, theirs = (statistics.median(found["seconds"]) for found in (own, peer))
    slower = f"{mine:.2f} s a candidate, PyTorch's in-tree FlyDSL takes {theirs:.2f}"
    return [slower] if mine > theirs else []


def _arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--role", choices=(*SERIAL, "pool"), help=argparse.SUPPRESS)
    made.add_argument("--candidates", type=int, help="of each contestant, 3 or more")
    options = made.parse_args()
    if options.candidates is None:
        options.candidates = QUICK_COUNT if options.quick else COUNT
    if options.candidates < 3 and not options.role:
        made.error(f"--candidates {options.candidates}: at least 3, for a median")
    return options


def main() -> int:
    options = _arguments()
    count = options.candidates
    if options.role:
        found = pool(count) if options.role == "pool" else one_by_one(options.role, count)
        print(json.dumps(found))
        return 0
    print(f"clock: wall, s; {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}; "
          f"{SHAPE.name} {SHAPE.kind} {SHAPE.layout}, caches cold")  # fmt: skip
    print(
        f"{'serial':10} {'kernels':>7} {'min':>7} {'median':>7} {'max':>7} {'all':>8} {'start':>7} "
        f"{'CPU':>7}"
    )
    results = {}
    for name in SERIAL:
        results[name] = measured(name, count)
        print(row(name, results[name]), flush=True)
    whole = measured("pool", count)
    print(f"ours in the pool, {whole['workers']} workers: {whole['kernels']} kernels in "
          f"{whole['whole']:.2f} s with the workers' start, "
          f"{whole['whole'] / whole['kernels']:.2f} s a kernel")  # fmt: skip
    if options.plot:
        medians = {name: statistics.median(found["seconds"])
                   for name, found in results.items() if "seconds" in found}  # fmt: skip
        medians["ours, pool"] = whole["whole"] / whole["kernels"]
        barh(options.plot, "Compile of one candidate", "s, wall clock", medians)
    data = {"clock": "wall", "shape": SHAPE.name, **results, "pool": whole}
    return finish(options, data, unmet(results))


if __name__ == "__main__":
    exit_with(main)
