"""What the emulator's benchmarks share: our kernels as assembly text, and launches of such text.

Owns operands, the launch as FlyDSL's own host launcher makes it, and the comparison with float64.
Knows nothing of what is measured.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

# One core and one thread: a rate of the emulator is not a rate of the BLAS under it. It must be
# said before numpy loads its BLAS, so a benchmark begins again with these set.
ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
# Some machines force an OpenBLAS kernel that is slow on them.
_FORCED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")


def on_one_core(module: str, arguments: Sequence[str]) -> None:
    """Starts `module` anew with one BLAS thread, unless this process has been started so."""
    if all(os.environ.get(name) == "1" for name in ONE_THREAD):
        return
    environment = {k: v for k, v in os.environ.items() if k not in _FORCED}
    environment.update(dict.fromkeys(ONE_THREAD, "1"))
    command = [sys.executable, "-m", module, *arguments]
    os.execve(sys.executable, command, environment)


@functools.cache
def compile_text(problem: Any, config: Any) -> str:
    """Assembly text of the kernel that computes `problem` with `config`."""
    from inductor_flydsl.compiler.flydsl_bridge import compile_to_bytes
    from inductor_flydsl.config import KernelSpec

    _, text = compile_to_bytes(KernelSpec.of(problem, config), "gfx950", "emulator")
    assert text is not None
    return text


@dataclass
class Case:
    """One problem's launch: operands in torch tensors, and what the host launcher passed.

    initial: copies of the memory that a launch writes, which every run starts from.
    """

    tensors: tuple[Any, Any, Any]
    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    kernarg: bytes
    memory: Any
    dynamic_lds: int
    initial: list[Any]
    keep: Any

    def reset(self) -> None:
        """Puts the memory that a launch writes back to what it was."""
        for region, bits in zip(self.memory.regions, self.initial, strict=True):
            if bits is not None:
                region.data[:] = bits

    def run(self, program: Any, options: Any) -> Any:
        """Runs the kernel of `program` on this launch; returns its RunResult."""
        from inductor_flydsl import emulator

        self.reset()
        return emulator.run(
            program.kernel(self.name), self.grid, self.block, self.kernarg, self.memory, options,
            dynamic_lds=self.dynamic_lds,
        )  # fmt: skip

    @functools.cached_property
    def exact(self) -> Any:
        """The float64 product."""
        _, a, b = self.tensors
        return a.double() @ b.double()

    def worst(self) -> float:
        """Largest error over the largest element; NaN counts as infinite."""
        return _worst(self.tensors[0], self.exact)

    def worst_at(self, rows: Any, columns: Any) -> float:
        """The same for a part of C, given by index tensors."""
        c, a, b = self.tensors
        return _worst(c[rows][:, columns], a[rows].double() @ b[:, columns].double())


def _worst(got: Any, exact: Any) -> float:
    error = (got.double() - exact).abs().nan_to_num(nan=math.inf)
    return float(error.max() / exact.abs().max())


def case_of(problem: Any, config: Any, seed: int = 0) -> Case:
    """Random operands, and the launch that FlyDSL's host launcher makes of them."""
    from inductor_flydsl.compiler import compile_spec
    from inductor_flydsl.config import KernelSpec
    from inductor_flydsl.devices import emulator as device_module
    from inductor_flydsl.devices import get_device
    from inductor_flydsl.samples import operands

    artifact = compile_spec(KernelSpec.of(problem, config), "gfx950", "emulator")
    call = get_device("emulator").load(artifact, problem, config)
    tensors = operands(problem, seed=seed)
    with mock.patch.object(device_module.emulator, "run") as run:
        call(*tensors)
    kernel, grid, block, kernarg, memory, _ = run.call_args.args
    initial = [region.data.copy() if region.writable else None for region in memory.regions]
    lds = run.call_args.kwargs["dynamic_lds"]
    return Case(tensors, kernel.name, grid, block, kernarg, memory, lds, initial, call)
