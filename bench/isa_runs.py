"""What the emulator's benchmarks share: our kernels as assembly text, and one launch of such text.

Owns operands, argument packing and the comparison with float64. Knows nothing of what is measured.
"""

from __future__ import annotations

import functools
import os
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

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


def to_bf16(x: np.ndarray) -> np.ndarray:
    """float32 → bf16 bits, rounded to nearest even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    odd = bits >> np.uint32(16) & np.uint32(1)
    return (bits + np.uint32(0x7FFF) + odd >> np.uint32(16)).astype(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """bf16 bits → float64."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


@dataclass
class Operands:
    """bf16 bits: A and B as they lie in memory, C with NaNs; `exact` is the float64 product."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    exact: np.ndarray | None

    def worst(self, rows: slice = slice(None)) -> float:
        """Largest error over the largest element of the product; NaN counts as infinite."""
        assert self.exact is not None
        error = np.abs(from_bf16(self.c[rows]) - self.exact[rows])
        return float(np.nan_to_num(error, nan=np.inf).max() / np.abs(self.exact).max())


def operands(problem: Any, seed: int = 0, product: bool = True) -> Operands:
    """Random normal operands of a contiguous bf16 problem."""
    rng = np.random.default_rng(seed)
    a, b = (
        to_bf16(rng.standard_normal(shape, np.float32))
        for shape in ((problem.m, problem.k), (problem.k, problem.n))
    )
    exact = from_bf16(a) @ from_bf16(b) if product else None
    if not problem.layout.a_k_contiguous:
        a = np.ascontiguousarray(a.T)
    if problem.layout.b_k_contiguous:
        b = np.ascontiguousarray(b.T)
    return Operands(a, b, np.full((problem.m, problem.n), 0x7FC0, np.uint16), exact)


def launch(kernel: Any, problem: Any, config: Any, data: Operands, options: Any) -> Any:
    """Runs one launch of a `Kernel`; returns its RunResult."""
    from inductor_flydsl import emulator
    from inductor_flydsl.config import launch_arguments
    from inductor_flydsl.signature import INTEGERS, POINTERS

    memory = emulator.Memory()
    pointers = [
        memory.add_array(array, name, writable=name == "C").base
        for name, array in (("C", data.c), ("A", data.a), ("B", data.b))
    ]
    given = launch_arguments(problem, config)
    # The epilogue's operands and split-K's scratch memory are not used by these kernels.
    pointers += [0] * (len(POINTERS) - len(pointers))
    integers = [given.get(name, 0) for name in INTEGERS]
    values = [struct.pack("<Q", p) for p in pointers] + [struct.pack("<i", i) for i in integers]
    visible = [arg for arg in kernel.args if not arg.kind.startswith("hidden_")]
    kernarg = bytearray(kernel.kernarg_size)
    for arg, value in zip(visible, values, strict=True):
        kernarg[arg.offset : arg.offset + arg.size] = value
    return emulator.run(
        kernel, given["grid"], config.threads, bytes(kernarg), memory, options
    )
