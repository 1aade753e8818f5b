"""Measuring on a real GPU of any make, with torch's product standing in for the kernels.

    python tests/device/run_gpu_measure.py

Needs torch with CUDA or ROCm; no FlyDSL. Prints a line a check and exits 1 if any fails.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])

import torch  # noqa: E402

from inductor_flydsl import compiler, isolation, measure, timing  # noqa: E402
from inductor_flydsl.config import KernelSpec  # noqa: E402
from inductor_flydsl.devices import get_device  # noqa: E402
from inductor_flydsl.problem import GemmProblem  # noqa: E402
from inductor_flydsl.space import candidates  # noqa: E402

FAILED = []


def check(name: str, right: bool, told: str) -> None:
    print(f"{'ok  ' if right else 'FAIL'} {name}: {told}", flush=True)
    FAILED.extend([] if right else [name])


def main() -> int:
    device = get_device("reference", torch_type="cuda:0")
    for text in ("256,512,1024", "4096,4096,4096", "16,8192,8192"):
        problem = GemmProblem.parse(text)
        pairs = [
            (c, compiler.compile_spec(KernelSpec.of(problem, c), "gfx950", "reference"))
            for c in candidates(problem, device.arch)[:12]
        ]
        sets = timing.rotation(problem, timing.cache_bytes(device), timing.free_bytes(device)).sets
        start = time.perf_counter()
        found = measure.measure_many(device, pairs, problem)
        seconds = time.perf_counter() - start
        times = sorted(m.us for m in found)
        told = f"{sets} sets, {times[0]:.2f} to {times[-1]:.2f} us, spread "
        told += f"{max(m.spread_us for m in found):.3f}, {seconds:.2f} s for 12"
        check(f"one kernel under twelve names, {text}", times[-1] < 1.05 * times[0], told)
        check(f"numbers, {text}", all(m.ok for m in found), str([m.failure for m in found][:1]))
    isolated = isolation.measure_isolated(device, pairs[:3], problem, timeout=60)
    told = ", ".join(f"{m.us:.2f} us" for m in isolated)
    check("in a process of its own", all(m.ok for m in isolated), told)
    ratio = isolated[0].us / found[0].us
    check("which measures the same", 0.9 < ratio < 1.1, f"{ratio:.3f}")
    isolation.close_children()
    held = torch.cuda.memory_allocated()
    check("nothing is left allocated", held < 200 << 20, f"{held >> 20} MiB")
    left = timing.free_bytes(device) - (1200 << 20)
    block = torch.empty(left, dtype=torch.uint8, device="cuda")
    tight = GemmProblem.dense(16384, 16384, 16384)
    artifact = compiler.compile_spec(KernelSpec.of(tight, pairs[0][0]), "gfx950", "reference")
    (short,) = measure.measure_many(device, [(pairs[0][0], artifact)], tight)
    told = f"{timing.free_bytes(device) >> 20} MiB free: {short.failure or short.note}"
    check("little memory is a reason", not short.tried or bool(short.note), told)
    del block
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
