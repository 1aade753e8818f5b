"""Inductor's operands of a product → GemmProblem, or the reason why it is none of ours.

Owns what may be assumed of addresses when generated code runs. Knows nothing of kernels and
devices beyond that, and decides nothing about legality, which is `space`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..errors import ProblemError
from ..fusion import Fusion, Node, Tensor
from ..problem import DType, GemmProblem, Layout, alignment
from . import compat

# What Inductor guarantees of a buffer that it allocates, and of a GPU input that is not in
# `unaligned_buffers` (utils.ALIGNMENT, which its wrapper restores by a copy where it is broken).
BASE_BYTES = 16


class Declined(Exception):
    """The op stays with Inductor's own choices; the message says why."""


@dataclass(frozen=True)
class Asked:
    """A product, and how generated code must call its kernel.

    Attributes:
        problem: what is asked.
        check: letters of the operands (``a``, ``b``) whose alignment nothing guarantees at run
            time: inputs on a CPU, where Inductor neither guards nor copies.
        order: which of the op's inputs a kernel takes: A, B, and the tensors of the fusion.
    """

    problem: GemmProblem
    check: str
    order: tuple[int, ...] = (0, 1)


def describe(nodes: Any) -> str:
    """Operands in words: sizes, strides and dtypes as the graph has them."""
    parts = []
    for node in nodes:
        size = "x".join(str(s) for s in node.get_size())
        strides = ",".join(str(s) for s in node.maybe_get_stride() or ())
        parts.append(f"{str(node.get_dtype()).removeprefix('torch.')}[{size}]({strides})")
    return " @ ".join(parts)


def product(a: Any, b: Any, layout: Any, op: str = "mm") -> Asked:
    """The problem that ``C = A @ B`` poses.

    Args:
        a, b: realized IR nodes of A[M, K] and B[K, N]; a flexible layout among them is frozen.
        layout: the fixed layout of C[M, N].
        op: name of the op.

    Raises:
        Declined: sizes, strides, dtypes or the output's layout are not ones of ours.
    """
    (m, k), (k2, n) = (_ints(x.get_size(), f"sizes of {name}") for x, name in ((a, "A"), (b, "B")))
    if (m, n, k) != (max(m, 1), max(n, 1), max(k, 1)) or k != k2:
        raise Declined(f"an operand is empty ({m}x{n}x{k})")
    dtype, out_dtype = _dtype(a.get_dtype()), _dtype(layout.dtype)
    if b.get_dtype() != a.get_dtype():
        raise Declined(f"A is {a.get_dtype()} and B is {b.get_dtype()}")
    if not a.get_device() == b.get_device() == layout.device:
        raise Declined(f"operands are on {a.get_device()}, {b.get_device()}, {layout.device}")
    for node in (a, b):
        compat.freeze(node)
    left = _operand(a, (m, k), "N", "A")
    # B is described along K first, as its letter is: T has neighbours along K.
    right = _operand(b, (n, k), "T", "B")
    ldc, c_align = _output(layout, m, n)
    try:
        problem = GemmProblem(
            m=m,
            n=n,
            k=k,
            dtype=dtype,
            out_dtype=out_dtype,
            layout=Layout(left.letter + right.letter),
            lda=left.ld,
            ldb=right.ld,
            ldc=ldc,
            a_inner=left.inner,
            b_inner=right.inner,
            a_align=left.align,
            b_align=right.align,
            c_align=c_align,
            op=op,
        )
    except ProblemError as error:
        raise Declined(str(error)) from error
    return Asked(problem, "a" * left.check + "b" * right.check)


def plain(problem: GemmProblem) -> GemmProblem:
    """The product alone: what is tuned, and what every epilogue on it shares."""
    op = "mm" if problem.grouping is None else problem.op
    return replace(problem, op=op, fusion=None, tensors=())


def with_bias(asked: Asked, bias: Any, *, alpha: float, beta: float) -> Asked:
    """``beta·bias + alpha·A @ B`` of a product that is asked; the inputs are (bias, A, B).

    Args:
        asked: the product.
        bias: IR node of a tensor that broadcasts to C[M, N].
        alpha, beta: factors of the product and of the bias.

    Raises:
        Declined: the bias is not one of ours.
    """
    problem = asked.problem
    nodes = [Node(op="acc")]
    if alpha != 1:
        nodes += [Node(op="const", value=alpha), Node(op="mul", args=(0, 1))]
    if beta == 0:
        # As in ATen, a bias that counts for nothing is not read.
        alone = replace(problem, fusion=Fusion(nodes=tuple(nodes)))
        return replace(asked, problem=alone, order=(1, 2))
    product = len(nodes) - 1
    row, column, quads = _bias(bias, problem)
    nodes.append(Node(op="tensor", value=0))
    if beta != 1:
        nodes += [Node(op="const", value=beta)]
        nodes += [Node(op="mul", args=(len(nodes) - 2, len(nodes) - 1))]
    nodes.append(Node(op="add", args=(product, len(nodes) - 1)))
    tensor = Tensor(
        dtype=_dtype(bias.get_dtype()), along_m=row != 0, along_n=column != 0, quads=quads
    )
    fusion = Fusion(nodes=tuple(nodes), tensors=(tensor,))
    problem = replace(problem, fusion=fusion, tensors=((0, row, column),))
    return replace(asked, problem=problem, order=(1, 2, 0))


def quads_aligned(base: int, size: int, offset: int, row: int) -> bool:
    """Whether four neighbours along N are aligned to their size together, up to 16 bytes.

    Args:
        base: bytes that divide the buffer's address.
        size: bytes of an element; offset, row: first element and row stride, in elements.
    """
    return alignment(base, offset * size, row * size) >= min(16, 4 * size)


def _bias(bias: Any, problem: GemmProblem) -> tuple[int, int, bool]:
    """(row stride, column stride, whether quads along N are aligned) of a bias."""
    compat.freeze(bias)
    sizes = _ints(bias.get_size(), "sizes of the bias")
    strides = _ints(bias.get_stride(), "strides of the bias")
    wanted = (problem.m, problem.n)[-len(sizes) :]
    if len(sizes) > 2 or any(s not in (1, w) for s, w in zip(sizes, wanted, strict=True)):
        raise Declined(f"a bias of sizes {sizes} does not broadcast to C")
    steps = [0 if size == 1 else stride for size, stride in zip(sizes, strides, strict=True)]
    row, column = ([0, 0] + steps)[-2:]
    if min(row, column) < 0:
        raise Declined("the bias has a negative stride")
    size = bias.get_dtype().itemsize
    base, unsure = _base_alignment(bias, size)
    (offset,) = _ints([bias.get_layout().offset], "offset of the bias")
    aligned = quads_aligned(base, size, offset, row) and not unsure
    return row, column, column == 1 and problem.n % 4 == 0 and aligned


@dataclass(frozen=True)
class _Operand:
    letter: str
    ld: int
    inner: int
    align: int
    check: bool


def _operand(node: Any, sizes: tuple[int, int], k_letter: str, name: str) -> _Operand:
    """Layout letter, strides and alignment of an operand of ``sizes`` = (rows, K).

    The letter is `k_letter` where K walks memory and the other one where rows do. The stride of
    an index with one value is never used, so it is taken as the one that suits.
    """
    rows, k = sizes
    strides = _ints(node.get_stride(), f"strides of {name}")
    row_stride, k_stride = strides if name == "A" else strides[::-1]
    other = {"N": "T", "T": "N"}[k_letter]
    if row_stride == 1 and rows > 1 and (k_stride != 1 or k == 1):
        letter, ld, inner, lines, length = other, k_stride, 1, k, rows
    else:
        inner = 1 if k == 1 else k_stride
        letter, ld, lines, length = k_letter, row_stride, rows, k
    if lines == 1:
        ld = max(length, 1)
    if ld < 0 or inner < 0:
        raise Declined(f"operand {name} has a negative stride")
    size = node.get_dtype().itemsize
    base, check = _base_alignment(node, size)
    (offset,) = _ints([node.get_layout().offset], f"offset of {name}")
    steps = (ld * size,) if lines > 1 else ()
    align = max(alignment(base, offset * size, *steps), min(size, 16))
    # An element is always aligned to its own size, so nothing is left to check then.
    return _Operand(letter, ld, inner, align, check and align > size)


def _base_alignment(node: Any, size: int) -> tuple[int, bool]:
    """Bytes that divide the address of the node's buffer, and whether that must be checked.

    Inductor records in `unaligned_buffers` the inputs whose example was misaligned, and checks
    and copies the others (compile_fx.get_input_idxs_to_check) on a GPU only; on a CPU every
    input is in that list. There the example's offset says what to expect.
    """
    from torch._inductor.virtualized import V

    name = node.get_name()
    if name not in V.graph.unaligned_buffers:
        return BASE_BYTES, False
    if node.get_device().type != "cpu":
        return size, False
    try:
        (offset,) = _ints([compat.input_offset(V.graph, name)], "offset of the input")
    except Declined:
        return size, False
    source = V.graph.graph_inputs.get(name)
    source_size = source.get_dtype().itemsize if source is not None else size
    return alignment(BASE_BYTES, offset * source_size), True


def _output(layout: Any, m: int, n: int) -> tuple[int, int]:
    row, column = _ints(layout.stride, "strides of the output")
    (offset,) = _ints([layout.offset], "offset of the output")
    if (n > 1 and column != 1) or (m > 1 and row < n):
        raise Declined(f"output strides ({row}, {column}) are not row-major")
    size = layout.dtype.itemsize
    ldc = row if m > 1 else n
    steps = (ldc * size,) if m > 1 else ()
    return ldc, max(alignment(BASE_BYTES, offset * size, *steps), min(size, 16))


def _ints(values: Any, what: str) -> tuple[int, ...]:
    """Plain integers of expressions that have a value at compile time.

    Raises:
        Declined: one of them is symbolic.
    """
    try:
        return tuple(int(v) for v in values)
    except (TypeError, ValueError):
        text = ", ".join(str(v) for v in values)
        raise Declined(f"dynamic shapes are not supported yet: {what} are ({text})") from None


def _dtype(dtype: Any) -> DType:
    try:
        return DType.parse(str(dtype))
    except ProblemError as error:
        raise Declined(str(error)) from error
