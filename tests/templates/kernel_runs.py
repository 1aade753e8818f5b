"""What the tests of every pipeline share: checked runs on the emulator,
awkward views, and nodes of epilogues."""

import dataclasses

import torch

from inductor_flydsl import measure, samples, settings
from inductor_flydsl.arch import GFX950
from inductor_flydsl.compiler import compile_spec
from inductor_flydsl.config import KernelSpec
from inductor_flydsl.devices import get_device
from inductor_flydsl.devices.emulator import EmulatorDevice
from inductor_flydsl.fusion import Node
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.space import why_not

VIEWS = {
    "rows of a wider matrix": {"lda": 200, "ldb": 136, "ldc": 80},
    "unaligned base": {"a_align": 2, "b_align": 4, "c_align": 2},
    "odd leading strides": {"lda": 131, "ldb": 129, "ldc": 73, "a_align": 2, "b_align": 2,
                            "c_align": 2},
    "every other element": {"a_inner": 2, "lda": 300, "a_align": 4},
    "B steps by three": {"b_inner": 3, "ldb": 400, "b_align": 2},
    "broadcast A": {"lda": 0},
    "broadcast along K": {"a_inner": 0, "b_inner": 0, "a_align": 2, "b_align": 2},
    "rows that overlap": {"lda": 8},
}  # fmt: skip


def node(op, *args, **fields):
    return Node(op=op, args=args, **fields)


# GELU(acc + tensor 0), spelled out as Inductor does; node 2 is its argument.
BIASED_GELU = (
    node("acc"),
    node("tensor", value=0),
    node("add", 0, 1),
    node("const", value=0.5**0.5),
    node("mul", 2, 3),
    node("erf", 4),
    node("const", value=1.0),
    node("add", 5, 6),
    node("const", value=0.5),
    node("mul", 2, 8),
    node("mul", 9, 7),
)


def run(problem, config, **emulator):
    """Compile, check on the emulator, and return (accuracy, findings)."""
    assert why_not(problem, config, GFX950) is None
    artifact = compile_spec(KernelSpec.of(problem, config), "gfx950", "emulator")
    device = get_device("emulator")
    with settings.scope(**{"emulator_landing": "lazy", "emulator_order": "random", **emulator}):
        accuracy = measure.check(device, artifact, problem, config, seed=problem.m + problem.k)
    return accuracy, device.last_run.findings


def run_on(units, problem, config, **emulator):
    """`run` on a chip of so many compute units."""
    device = EmulatorDevice()
    device.arch = dataclasses.replace(GFX950, compute_units=units, xcds=1)
    assert why_not(problem, config, device.arch) is None
    artifact = compile_spec(KernelSpec.of(problem, config), "gfx950", "emulator")
    with settings.scope(**{"emulator_landing": "lazy", "emulator_order": "random", **emulator}):
        accuracy = measure.check(device, artifact, problem, config, seed=problem.m + problem.k)
    return accuracy, device.last_run.findings


def repeats(problem, config, monkeypatch):
    """Launch one kernel three times, in other orders: the results are the same, and right."""
    artifact = compile_spec(KernelSpec.of(problem, config), "gfx950", "emulator")
    kernel = get_device("emulator").load(artifact, problem, config)
    c, a, b = measure.operands(problem)
    results = []
    for seed in range(3):
        monkeypatch.setenv("INDUCTOR_FLYDSL_EMULATOR_SEED", str(seed))
        c.fill_(float("nan"))
        kernel(c, a, b)  # The same counters each time: every launch must leave them at zero.
        results.append(c.clone())
    assert all(torch.equal(results[0], r) for r in results[1:])
    measure.compare(c, a, b)


def spreads_as_it_should(value, config, layout):
    """NaN or an infinity in A's last column and in B reaches what it should and nothing else."""
    problem = GemmProblem.dense(33, 40, 70, layout=layout)
    artifact = compile_spec(KernelSpec.of(problem, config), "gfx950", "emulator")
    c, a, b = measure.operands(problem)
    a[5, 69] = value
    b[3, 7] = value
    get_device("emulator").load(artifact, problem, config)(c, a, b)
    expected = (a.double() @ b.double()).bfloat16()
    assert torch.equal(c.isnan(), expected.isnan())
    assert torch.equal(c.isposinf(), expected.isposinf())
    assert torch.equal(c.isneginf(), expected.isneginf())


def run_grouped(problem, config, extents, change=lambda *operands: None, **emulator):
    """Run one kernel on groups of ``extents``: (C, A, B, offsets, *others).

    The chip has two compute units, so that workgroups take tiles in turn.

    Args:
        change: told A, B and what follows the offsets before the launch.
        emulator: settings of the emulator.
    """
    assert why_not(problem, config, GFX950) is None
    artifact = compile_spec(KernelSpec.of(problem, config), "gfx950", "emulator")
    device = EmulatorDevice()
    device.arch = dataclasses.replace(GFX950, compute_units=2, xcds=1)
    c, a, b, offsets, *others = samples.operands(problem, seed=len(extents))
    offsets.copy_(torch.tensor(extents).cumsum(0))
    change(a, b, *others)
    kernel = device.load(artifact, problem, config)
    with settings.scope(**{"emulator_landing": "lazy", "emulator_order": "random", **emulator}):
        kernel(c, a, b, offsets, *others)
    assert not device.last_run.findings
    return c, a, b, offsets, *others
