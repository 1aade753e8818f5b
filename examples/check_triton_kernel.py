"""Checks a Triton kernel on the emulated gfx950: its numbers and its hazards, without a GPU.

    pip install triton numpy
    python examples/check_triton_kernel.py [--json]

Triton compiles for gfx950 on any machine. Exit status 1 if numbers are wrong or anything was found.
"""

import argparse
import json
import sys

import numpy as np
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from inductor_flydsl import emulator

ROWS, COLUMNS, BLOCK, WARPS = 5, 700, 1024, 4


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * columns + at, mask=inside, other=-float("inf"))
    value = tl.exp(value - tl.max(value, 0))
    tl.store(out + row * columns + at, value / tl.sum(value, 0), mask=inside)


def compile_for_gfx950():
    """The compiled kernel: `asm["amdgcn"]` is its text, `metadata.shared` its dynamic LDS."""
    source = ASTSource(
        fn=softmax,
        signature={"x": "*fp32", "out": "*fp32", "columns": "i32", "BLOCK": "constexpr"},
        constexprs={"BLOCK": BLOCK},
    )
    target = GPUTarget("hip", "gfx950", 64)
    return triton.compile(source, target=target, options={"num_warps": WARPS})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    compiled = compile_for_gfx950()
    kernel = emulator.load_program(compiled.asm["amdgcn"]).kernel()
    x = np.random.default_rng(0).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    out = np.full_like(x, np.nan)
    # Triton appends pointers to scratch memory, which this kernel doesn't use.
    own = [x, out, COLUMNS]
    visible = sum(not arg.kind.startswith("hidden_") for arg in kernel.args)
    args = own + [None] * (visible - len(own))
    # Triton's LDS is dynamic; some versions state it in the kernel's metadata too.
    lds = max(0, compiled.metadata.shared - kernel.resources.lds)
    result = emulator.run(kernel, ROWS, 64 * WARPS, args, dynamic_lds=lds)
    exact = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    exact /= exact.sum(1, keepdims=True)
    error = float(np.nan_to_num(np.abs(out - exact), nan=np.inf).max() / exact.max())
    if as_json:
        findings = [str(finding) for finding in result.findings]
        print(json.dumps({"error": error, "findings": findings, "us": result.time_us}))
    else:
        print(f"{result.kernel}: largest relative error {error:.1e}, {result.time_us:.1f} µs "
              f"({result.clock}), {len(result.findings)} findings")  # fmt: skip
        for finding in result.findings:
            print(finding)
        for conflict in result.conflicts:
            print("LDS bank conflict:", conflict)
    return int(error > 1e-5 or bool(result.findings))


if __name__ == "__main__":
    sys.exit(main())
