"""Checks a hand-written FlyDSL kernel on the emulated gfx950: numbers and hazards, without a GPU.

    pip install flydsl numpy
    python examples/check_flydsl_kernel.py            # right: exit status 0
    python examples/check_flydsl_kernel.py --bug      # the barrier is left out: exit status 1

The kernel turns each 256 values around through LDS, so every wave reads what another wrote.
"""

import argparse
import sys

import numpy as np

from inductor_flydsl import emulator
from inductor_flydsl.compiler import flydsl_bridge

THREADS, GROUPS = 256, 3

# FlyDSL chooses its backend for the whole process, before its first compile.
flydsl_bridge.prepare("emulator", "gfx950")

import flydsl.compiler as flyc  # noqa: E402
import flydsl.expr as fx  # noqa: E402
from flydsl.expr import gpu, rocdl  # noqa: E402


def build(bug):
    """The launcher of the kernel, with or without its barrier."""

    @fx.struct
    class Shared:
        values: fx.Array[fx.Float32, THREADS, 16]

    @flyc.kernel(name="turn_around", known_block_size=[THREADS, 1, 1])
    def turn_around(x: fx.Tensor, out: fx.Tensor):
        thread, group = fx.thread_idx.x, fx.block_idx.x
        shared = fx.SharedAllocator().allocate(Shared).peek()
        values = shared.values.view(fx.make_layout(THREADS, 1))
        copy = fx.make_copy_atom(rocdl.BufferCopy32b(), 32)

        def cell(tensor):
            whole = rocdl.make_buffer_tensor(tensor)
            parts = fx.logical_divide(whole, fx.make_layout(1, 1))
            return fx.slice(parts, (None, group * THREADS + thread))

        register = fx.make_rmem_tensor(1, fx.Float32)
        fx.copy(copy, cell(x), register)
        fx.memref_store(fx.memref_load(register, 0), values, thread)
        if not bug:
            gpu.barrier()
        turned = fx.memref_load(values, THREADS - 1 - thread)
        fx.memref_store(turned, register, 0)
        fx.copy(copy, register, cell(out))

    @flyc.jit
    def launch(x: fx.Tensor, out: fx.Tensor, stream: fx.Stream):
        turn_around(x, out).launch(grid=(GROUPS, 1, 1), block=(THREADS, 1, 1), stream=stream)

    return launch


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bug", action="store_true", help="leave the barrier out")
    bug = parser.parse_args().bug
    import torch

    x, out = torch.randn(GROUPS * THREADS), torch.full((GROUPS * THREADS,), torch.nan)
    text = flydsl_bridge.compile_text(build(bug), x, out, fx.Stream(None))
    kernel = emulator.load_program(text).kernel()
    # A one-dimensional fx.Tensor is its address and its int32 length.
    args = [part for tensor in (x, out) for part in (tensor, np.int32(len(tensor)))]
    result = emulator.run(kernel, GROUPS, THREADS, args)
    right = torch.equal(out.view(GROUPS, -1), x.view(GROUPS, -1).flip(1))
    print(f"{result.kernel}: {'right' if right else 'wrong'} numbers, "
          f"{len(result.findings)} findings")  # fmt: skip
    for finding in result.findings:
        print(finding)
    return int(not right or bool(result.findings))


if __name__ == "__main__":
    sys.exit(main())
