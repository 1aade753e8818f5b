"""Grouped kernels on the emulator: every element against a float64 loop over the groups, under the
worst memory.

Memory lands as late as the waits allow, the waves of a workgroup run in random order, registers
and LDS start poisoned, and C with everything around it starts as NaN: a store into a neighbour's
rows, or a tile that is left out, shows. A chip of two compute units makes workgroups take tiles in
turn.
"""

import dataclasses

import pytest
import torch
from kernel_runs import run_grouped

from inductor_flydsl import emulator, numerics, samples
from inductor_flydsl.compiler.flydsl_bridge import compile_to_bytes
from inductor_flydsl.config import GemmConfig, KernelSpec
from inductor_flydsl.dtypes import DType
from inductor_flydsl.fusion import Fusion, Node, Tensor
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.signature import INTEGERS, LONGS, POINTERS

STAGED = GemmConfig(
    tile_m=32, tile_n=64, tile_k=32, stages=3, waves_m=1, waves_n=2, group_m=2, xcd_remap=True
)
SMALL = GemmConfig(tile_m=16, tile_n=64, tile_k=64, stages=2, waves_m=1, waves_n=2)
SQUARE = GemmConfig(tile_m=64, tile_n=64, tile_k=64, stages=2, waves_m=2, waves_n=2, group_m=8)
DEEP = dataclasses.replace(SQUARE, stages=5, tile_k=32)
HTI = GemmConfig(
    pipeline="hti", tile_m=128, tile_n=128, tile_k=64, stages=2, waves_m=2, waves_n=4, group_m=8
)
SKEW = [0, 1, 3, 129]
ALL_EMPTY, ONE_HAS_ALL = [0, 0, 0, 0], [0, 0, 70, 0]
MANY = [(i * 7) % 4 for i in range(128)]
WIDE = [(i * 5) % 3 for i in range(67)]

# Extents of the groups; then M, N and K, the ragged one being their sum, layout and configuration.
ROWS = [
    ([5], 8, 40, "NN", SMALL),
    ([16, 16], 32, 64, "NN", STAGED),
    ([16, 16], 32, 64, "NT", STAGED),
    (SKEW, 96, 72, "NN", STAGED),
    (SKEW, 96, 72, "NT", STAGED),
    (SKEW, 96, 72, "TN", STAGED),
    (SKEW, 96, 72, "TT", STAGED),
    (SKEW, 160, 33, "NT", SQUARE),
    (SKEW, 160, 65, "NN", SQUARE),
    (SKEW, 8, 128, "TT", SQUARE),
    ([129, 3, 1, 0], 32, 64, "NT", SMALL),
    ([1, 0, 129, 3], 2880, 32, "NT", SQUARE),
    ([1, 0, 129, 3], 2880, 32, "NN", STAGED),
    (ALL_EMPTY, 32, 64, "NT", STAGED),
    (ONE_HAS_ALL, 96, 64, "NN", SQUARE),
    (ONE_HAS_ALL, 1, 64, "NT", SMALL),
    (MANY, 32, 40, "NT", SMALL),
    (MANY, 32, 40, "NN", SMALL),
    (MANY, 8, 32, "TN", SMALL),
    (WIDE, 96, 32, "NT", STAGED),
    ([0] * 63 + [9, 2] + [0] * 30, 32, 64, "NT", STAGED),
    ([200, 0, 1, 131], 160, 136, "NT", HTI),
    ([200, 0, 1, 131], 160, 136, "NN", HTI),
    ([200, 0, 1, 131], 136, 72, "TN", HTI),
    ([200, 0, 1, 131], 264, 200, "TT", HTI),
]
COLUMNS = [
    (SKEW, 96, 72, "NN", STAGED),
    (SKEW, 40, 72, "NT", STAGED),
    (SKEW, 40, 33, "TN", SQUARE),
    (SKEW, 96, 64, "TT", SQUARE),
    ([5], 8, 40, "NN", SMALL),
    (ALL_EMPTY, 32, 64, "NN", STAGED),
    (ONE_HAS_ALL, 32, 64, "NT", SMALL),
    (MANY, 24, 32, "NN", SMALL),
    ([150, 0, 1, 131], 136, 72, "NN", HTI),
    ([150, 0, 1, 131], 136, 136, "NT", HTI),
    ([8, 64, 0, 128], 40, 72, "NT", SQUARE),  # No group ends inside of 16 bytes of C.
    ([64, 72, 1, 127], 40, 72, "NN", SQUARE),
]
SUMS = [
    (SKEW, 40, 96, "TN", STAGED),
    (SKEW, 40, 96, "NT", STAGED),
    (SKEW, 33, 24, "NN", SQUARE),
    (SKEW, 40, 96, "TT", SQUARE),
    ([5], 8, 32, "TN", SMALL),
    ([64, 128], 64, 160, "TN", SQUARE),
    (ALL_EMPTY, 32, 24, "TN", STAGED),
    (ONE_HAS_ALL, 17, 24, "TN", SMALL),
    ([33, 31, 1, 0, 65], 96, 8, "TN", STAGED),
    ([33, 31, 1, 0, 65], 7, 160, "TT", SMALL),
    (MANY, 16, 32, "TN", SMALL),
    ([100, 0, 1, 201], 136, 160, "TN", HTI),
    ([100, 0, 1, 201, 7], 136, 160, "NT", HTI),
    ([9, 0, 1, 201, 71], 136, 130, "TT", HTI),
    ([9, 0, 1, 201, 71], 136, 130, "NT", DEEP),
]


def check(axis, extents, case, **options):
    """Compare all that the groups cover; what they don't must be untouched."""
    first, second, layout, config = case
    total = max(1, sum(extents))
    sizes = {"m": (total, first, second), "n": (first, total, second), "k": (first, second, total)}
    problem = GemmProblem.dense(
        *sizes[axis], layout=layout, groups=f"{axis}{len(extents)}", **options
    )
    c, a, b, offsets = run_grouped(problem, config, extents)
    if sum(extents) == 0 and axis != "k":
        assert c.isnan().all()
        return
    numerics.compare(c, a, b, offsets=offsets)
    assert int(samples.buffer(c).isnan().logical_not().sum()) == c.numel()


def name(value):
    if isinstance(value, list):
        return f"G{len(value)}-{'-'.join(str(v) for v in value[:5])}"
    return str(getattr(value, "name", value))


PERSISTENT = [0, 1]


@pytest.mark.parametrize("persistent", PERSISTENT)
@pytest.mark.parametrize("extents, n, k, layout, config", ROWS, ids=name)
def test_ragged_rows(extents, n, k, layout, config, persistent):
    config = dataclasses.replace(config, persistent=persistent)
    check("m", extents, (n, k, layout, config))


@pytest.mark.parametrize("persistent", PERSISTENT)
@pytest.mark.parametrize("extents, m, k, layout, config", COLUMNS, ids=name)
def test_ragged_columns(extents, m, k, layout, config, persistent):
    config = dataclasses.replace(config, persistent=persistent)
    check("n", extents, (m, k, layout, config))


@pytest.mark.parametrize("persistent", PERSISTENT)
@pytest.mark.parametrize("extents, m, n, layout, config", SUMS, ids=name)
def test_ragged_sums(extents, m, n, layout, config, persistent):
    """A group without a share of K is a matrix of zeros, and all of them are written."""
    config = dataclasses.replace(config, persistent=persistent)
    check("k", extents, (m, n, layout, config))


@pytest.mark.parametrize("axis, layout", [("m", "NT"), ("m", "TN"), ("n", "NN"), ("k", "TN")])
def test_fp16_and_fp32_output(axis, layout):
    config = dataclasses.replace(STAGED, persistent=1)
    check(axis, SKEW, (72, 96, layout, config), dtype="fp16")
    check(axis, SKEW, (72, 96, layout, config), out_dtype="fp32")


def test_rows_past_the_last_group_are_left_alone():
    problem = GemmProblem.dense(100, 64, 64, groups="m3")
    config = dataclasses.replace(STAGED, persistent=1)
    c, a, b, offsets = run_grouped(problem, config, [20, 0, 33])
    numerics.compare(c[:53], a[:53], b, offsets=offsets)
    assert c[53:].isnan().all()


def test_offsets_out_of_range_write_nothing_out_of_bounds():
    """A kernel can't refuse what it finds on the device, but it must not leave its operands."""
    problem = GemmProblem.dense(64, 64, 64, groups="m3")
    config = dataclasses.replace(STAGED, persistent=1)
    c, a, b, _ = run_grouped(problem, config, [30, -10, 500])
    assert torch.isfinite(c[:30]).all()
    numerics.compare(c[:20], a[:20], b[:1], offsets=torch.tensor([20]))


def test_arguments_lie_where_a_tile_reads_them_again():
    problem = GemmProblem.dense(64, 64, 64, groups="m3")
    spec = KernelSpec.of(problem, dataclasses.replace(STAGED, persistent=1))
    _, text = compile_to_bytes(spec, "gfx950", "emulator")
    kernel = emulator.load_program(text).kernel(spec.name)
    found = [(a.offset, a.size) for a in kernel.args if not a.kind.startswith("hidden_")]
    longs = [(8 * i, 8) for i in range(len(POINTERS) + len(LONGS))]
    integers = [(8 * len(longs) + 4 * i, 4) for i in range(len(INTEGERS))]
    assert found == longs + integers


STRIDES = {
    "rows and weights of wider tensors": {"lda": 80, "ldb": 88, "ldc": 104, "b_batch": 96 * 96},
    "unaligned base": {"a_align": 2, "b_align": 4, "c_align": 2},
    "every other element of A": {"a_inner": 2, "lda": 200, "a_align": 4},
    "weights that all share": {"b_batch": 0},
}


@pytest.mark.parametrize("changes", STRIDES.values(), ids=STRIDES)
def test_strided_operands(changes):
    problem = GemmProblem.dense(sum(SKEW), 96, 72, groups="m4")
    problem = dataclasses.replace(problem, **changes)
    config = dataclasses.replace(STAGED, persistent=1)
    c, a, b, offsets = run_grouped(problem, config, SKEW)
    numerics.compare(c, a, b, offsets=offsets)


@pytest.mark.parametrize("layout", ["NT", "NN", "TT"])
@pytest.mark.parametrize("align", [8, 4, 2])
def test_columns_of_less_aligned_results(layout, align):
    """Where a group ends or begins in a tile, C is stored element by element; else as it allows."""
    problem = GemmProblem.dense(40, 264, 72, groups="n4", layout=layout)
    problem = dataclasses.replace(problem, c_align=align, ldc=264 + align // 2)
    config = dataclasses.replace(SQUARE, persistent=1)
    c, a, b, offsets = run_grouped(problem, config, [130, 6, 64, 64])
    numerics.compare(c, a, b, offsets=offsets)
    assert int(samples.buffer(c).isnan().logical_not().sum()) == c.numel()


def test_infinity_next_to_a_groups_sum_stays_out_of_it():
    """K steps begin up to 7 elements before the group; nothing of those may count."""
    problem = GemmProblem.dense(40, 96, 64, groups="k2", layout="NT")
    config = dataclasses.replace(STAGED, persistent=1)

    def spoil(a, b):
        a[:, 35] = torch.inf
        b[36] = torch.nan

    c, a, b, offsets = run_grouped(problem, config, [37, 27], spoil)
    numerics.compare(c[1], a[:, 37:], b[37:])
    assert c[0].isnan().all()


def fused():
    """relu(product) · scale of the row + residual + bias of the column."""
    ops = [("acc",), ("relu", 0), ("tensor",), ("mul", 1, 2), ("tensor",), ("add", 3, 4)]
    ops += [("tensor",), ("add", 5, 6)]
    values = iter(range(3))
    nodes = tuple(
        Node(op=op, args=tuple(args), **({"value": next(values)} if op == "tensor" else {}))
        for op, *args in ops
    )
    along = [(DType.FP32, True, False), (DType.BF16, True, True), (DType.BF16, False, True)]
    tensors = tuple(Tensor(dtype=d, along_m=m, along_n=n, quads=False) for d, m, n in along)
    return Fusion(nodes=nodes, tensors=tensors)


@pytest.mark.parametrize("axis, layout", [("m", "NT"), ("m", "TN"), ("n", "NN"), ("k", "TN")])
def test_an_epilogue_reads_its_tensors_where_the_tile_is(axis, layout):
    total, first, second = sum(SKEW), 72, 40
    sizes = {"m": (total, first, second), "n": (first, total, second), "k": (first, second, total)}
    plain = GemmProblem.dense(*sizes[axis], layout=layout, groups=f"{axis}4")
    step = plain.m * plain.n if axis == "k" else 0
    strides = ((0, 1, 0), (step, plain.n, 1), (0, 0, 1))
    problem = dataclasses.replace(plain, fusion=fused(), tensors=strides)
    config = dataclasses.replace(STAGED, persistent=1)
    c, a, b, offsets, *tensors = run_grouped(problem, config, SKEW)
    numerics.compare(c, a, b, problem.fusion, tensors, offsets=offsets)
