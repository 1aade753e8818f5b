"""Inductor's operands of a product → GemmProblem, or the reason why it is none of ours.

Owns what may be assumed of addresses when generated code runs. Knows nothing of kernels and
devices beyond that, and decides nothing about legality, which is `space`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import sympy

from .. import space
from ..errors import ProblemError
from ..fusion import Fusion, Node, Tensor
from ..problem import TENSOR_STRIDES, DType, GemmProblem, Layout, alignment
from . import compat
from .axes import Steps
from .extents import (
    Declined,
    align,
    equal,
    guard_multiple,
    hint,
    is_multiple,
    is_static,
    same,
    static,
)

__all__ = ["Asked", "Declined", "describe", "plain", "product", "tensor_of", "with_bias"]

# What Inductor guarantees of a buffer that it allocates, and of a GPU input that is not in
# `unaligned_buffers` (utils.ALIGNMENT, which its wrapper restores by a copy where it is broken).
BASE_BYTES = 16


@dataclass(frozen=True)
class Asked:
    """A product, and how generated code must call its kernel.

    Attributes:
        problem: what is asked; where sizes are dynamic, at their hints.
        check: letters of the operands (``a``, ``b``, and ``x``, ``y`` of their block scales) whose
            alignment nothing guarantees at run time: inputs on a CPU, where Inductor neither
            guards nor copies.
        order: which of the op's inputs a kernel takes: A, B, block scales, and the tensors of the
            fusion.
        sizes: the integers of the problem that are dynamic, by their names in `GemmProblem.at`,
            as expressions of the graph's symbols.
    """

    problem: GemmProblem
    check: str
    order: tuple[int, ...] = (0, 1)
    sizes: dict[str, Any] = field(default_factory=dict)


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
        a, b: realized IR nodes of A[M, K] and B[K, N], or of A[batch, M, K] and B[batch, K, N];
            a flexible layout among them is frozen. M, N, K and the batch may be symbolic.
        layout: the fixed layout of C[M, N] or C[batch, M, N].
        op: name of the op.

    Raises:
        Declined: sizes, strides, dtypes or the output's layout are not ones of ours.
    """
    batch, m, n, k = _extents(a, b)
    dtype, b_dtype = common_types(a, b)
    out_dtype = _dtype(layout.dtype)
    if not a.get_device() == b.get_device() == layout.device:
        raise Declined(f"operands are on {a.get_device()}, {b.get_device()}, {layout.device}")
    for node in (a, b):
        compat.freeze(node)
    left = _operand(a, (batch, m, k), "N", "A")
    # B is described along K first, as its letter is: T has neighbours along K.
    right = _operand(b, (batch, n, k), "T", "B")
    # With odd ones among its values, each element of C would be stored by itself.
    guard_multiple(n, BASE_BYTES // layout.dtype.itemsize)
    output = _output(layout, batch, m, n)
    numbers = {
        "m": m,
        "n": n,
        "k": k * dtype.packed,
        "batch": batch,
        "lda": left.ld,
        "ldb": right.ld,
    }
    numbers |= {"a_inner": left.inner, "b_inner": right.inner, "ldc": output.ld}
    numbers |= {"a_batch": left.batch, "b_batch": right.batch, "c_batch": output.batch}
    hints: dict[str, Any] = {name: hint(number) for name, number in numbers.items()}
    if not is_static(k) and not compat.guardable(k):
        # Odd: a kernel without a partial last K step would need a guard.
        hints["k"] -= hints["k"] % 2 == 0
    try:
        problem = GemmProblem(
            **hints,
            dtype=dtype,
            out_dtype=out_dtype,
            layout=Layout(left.letter + right.letter),
            a_align=left.align,
            b_align=right.align,
            c_align=output.align,
            op=op,
            b_dtype=b_dtype,
        )
    except ProblemError as error:
        raise Declined(str(error)) from error
    check = "a" * left.check + "b" * right.check
    return Asked(problem, check, sizes=_dynamic(numbers))


def common_types(a: Any, b: Any) -> tuple[DType, DType | None]:
    """Types of A and of B, the latter None where it is A's.

    Raises:
        Declined: no kernel multiplies the two.
    """
    dtype, b_dtype = _dtype(a.get_dtype()), _dtype(b.get_dtype())
    if b_dtype is dtype:
        return dtype, None
    if not dtype.scaled or dtype.packed != b_dtype.packed:
        raise Declined(f"A is {a.get_dtype()} and B is {b.get_dtype()}")
    return dtype, b_dtype


def _extents(a: Any, b: Any) -> tuple[Any, Any, Any, Any]:
    """(batch, M, N, K); a product without a batch index has a batch of 1."""
    (*batches, m, k), (*others, k2, n) = a.get_size(), b.get_size()
    if len(batches) > 1 or len(batches) != len(others):
        raise Declined(f"operands of sizes {list(a.get_size())} and {list(b.get_size())}")
    k = _k_extent(a, k, k2)
    batch = batches[0] if batches else 1
    if is_static(n):
        n = int(n)
    if batches and not same(batch, others[0]):
        raise Declined(f"A has a batch of {batch} and B of {others[0]}")
    if any(int(v) < 1 for v in (batch, m, n, k) if is_static(v)):
        raise Declined(f"an operand is empty ({batch}x{m}x{n}x{k})")
    return batch, m, n, k


def _k_extent(a: Any, k: Any, k2: Any) -> Any:
    """K of A and of B; dynamic where the weights' gradient of a dynamic batch is computed."""
    if _dtype(a.get_dtype()).scaled:
        (k,), (k2,) = (static((v,), "K of FP8 and FP4") for v in (k, k2))
    if not equal(k, k2):
        raise Declined(f"A has {k} columns and B {k2} rows")
    if is_static(k):
        return int(k)
    if compat.guardable(k):
        compat.guard(sympy.Ge(k, 1))
    return k


def _dynamic(numbers: dict[str, Any]) -> dict[str, Any]:
    return {name: number for name, number in numbers.items() if not is_static(number)}


def plain(problem: GemmProblem) -> GemmProblem:
    """The product alone: what is tuned, and what every epilogue on it shares."""
    op = problem.op
    if problem.grouping is None and not problem.dtype.scaled:
        op = "mm" if problem.batch == 1 else "bmm"
    return replace(problem, op=op, fusion=None, tensors=())


def with_bias(asked: Asked, bias: Any, *, alpha: float, beta: float) -> Asked:
    """``beta·bias + alpha·A @ B`` of a product that is asked; the inputs are (bias, A, B).

    Args:
        asked: the product.
        bias: IR node of a tensor that broadcasts to C.
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
    tensor, strides, sizes = bias_tensor(bias, asked, 0)
    nodes.append(Node(op="tensor", value=0))
    if beta != 1:
        nodes += [Node(op="const", value=beta)]
        nodes += [Node(op="mul", args=(len(nodes) - 2, len(nodes) - 1))]
    nodes.append(Node(op="add", args=(product, len(nodes) - 1)))
    fusion = Fusion(nodes=tuple(nodes), tensors=(tensor,))
    problem = replace(problem, fusion=fusion, tensors=(strides,))
    return replace(asked, problem=problem, order=(1, 2, 0), sizes=asked.sizes | sizes)


def bias_tensor(
    bias: Any, asked: Asked, index: int
) -> tuple[Tensor, tuple[int, int, int], dict[str, Any]]:
    """A bias as tensor ``index`` of an epilogue: it, its strides, and which are dynamic.

    Raises:
        Declined: it does not broadcast to C, or is not one of ours.
    """
    steps, tensor = _bias(bias, asked)
    named = {f"t{index}_{axis}": getattr(steps, axis) for axis in TENSOR_STRIDES}
    return tensor, (hint(steps.batch), hint(steps.row), hint(steps.column)), _dynamic(named)


def tensor_of(dtype: DType, steps: Steps, n: Any, base: int, offset: Any = 0) -> Tensor:
    """A tensor as an epilogue reads it.

    Args:
        dtype: of its elements.
        steps: its strides.
        n: columns of C.
        base: bytes that divide the buffer's address.
        offset: first element, from there.
    """
    size = dtype.bytes
    aligned = align(base, offset * size, *(step * size for step in steps.lines))
    quads, eights = (
        steps.column == 1 and is_multiple(n, count) and aligned >= min(BASE_BYTES, count * size)
        for count in (4, 8)
    )
    return Tensor(
        dtype=dtype,
        along_m=steps.row != 0,
        along_n=steps.column != 0,
        quads=bool(quads),
        eights=bool(eights and size == 2),
    )


def _bias(bias: Any, asked: Asked) -> tuple[Steps, Tensor]:
    """Strides of a bias, and how it is read."""
    compat.freeze(bias)
    problem, sizes, strides = asked.problem, list(bias.get_size()), list(bias.get_stride())
    wanted = [asked.sizes.get(name, getattr(problem, name)) for name in ("batch", "m", "n")]
    if len(sizes) > 3 or not all(
        size == 1 or same(size, extent)
        for size, extent in zip(sizes, wanted[3 - len(sizes) :], strict=True)
    ):
        raise Declined(f"a bias of sizes {sizes} does not broadcast to C")
    steps = [0 if size == 1 else stride for size, stride in zip(sizes, strides, strict=True)]
    batch, row, column = [0] * (3 - len(sizes)) + steps
    if min(hint(step) for step in (batch, row, column)) < 0:
        raise Declined("the bias has a negative stride")
    size = bias.get_dtype().itemsize
    base, unsure = base_alignment(bias, size)
    found, dtype = Steps(batch, row, column), _dtype(bias.get_dtype())
    base, offset = size if unsure else base, bias.get_layout().offset
    return found, tensor_of(dtype, found, wanted[2], base, offset)


@dataclass(frozen=True)
class _Operand:
    """Strides in elements, maybe symbolic; see `GemmProblem`."""

    letter: str
    ld: Any
    inner: Any
    batch: Any
    align: int
    check: bool = False


def _operand(node: Any, sizes: tuple[Any, Any, Any], k_letter: str, name: str) -> _Operand:
    """Layout letter, strides and alignment of an operand of ``sizes`` = (batch, rows, K).

    The letter is `k_letter` where K walks memory and the other one where rows do. The stride of
    an index with one value is never used, so it is taken as the one that suits.
    """
    batch, rows, k = sizes
    *first, outer, inner = node.get_stride()
    row_stride, k_stride = (outer, inner) if name == "A" else (inner, outer)
    other = {"N": "T", "T": "N"}[k_letter]
    if row_stride == 1 and rows != 1 and (k_stride != 1 or k == 1):
        letter, ld, inner, lines, length = other, k_stride, 1, k, rows
    else:
        inner = 1 if k == 1 else k_stride
        letter, ld, lines, length = k_letter, row_stride, rows, k
    if lines == 1:
        ld = length
    (inner,) = static((inner,), f"steps between elements of {name}")
    batch_stride = first[0] if first and batch != 1 else 0
    if min(hint(ld), inner, hint(batch_stride)) < 0:
        raise Declined(f"operand {name} has a negative stride")
    size = node.get_dtype().itemsize
    base, check = base_alignment(node, size)
    steps = [ld * size] if lines != 1 else []
    if lines != 1 and guard_multiple(ld, BASE_BYTES // size):
        # With M between columns of A, or K between rows, each element would be loaded by itself
        # for the sake of odd ones, which have a kernel of their own now.
        steps = []
    aligned = align(base, node.get_layout().offset * size, batch_stride * size, *steps)
    aligned = max(aligned, min(size, 16))
    # An element is always aligned to its own size, so nothing is left to check then.
    return _Operand(letter, ld, inner, batch_stride, aligned, check and aligned > size)


def base_alignment(node: Any, size: int) -> tuple[int, bool]:
    """Bytes that divide the address of the node's buffer, and whether that must be checked.

    Inductor records in `unaligned_buffers` the inputs whose example was misaligned, and checks
    and copies the others (compile_fx.get_input_idxs_to_check) on a GPU only; on a CPU every
    input is in that list. There the example's offset says what to expect.
    """
    from torch._inductor.virtualized import V

    name = node.get_name()
    if name not in V.graph.unaligned_buffers:
        return BASE_BYTES, False
    offset = compat.input_offset(V.graph, name)
    if node.get_device().type != "cpu" or not is_static(offset):
        return size, False
    source = V.graph.graph_inputs.get(name)
    source_size = source.get_dtype().itemsize if source is not None else size
    return alignment(BASE_BYTES, int(offset) * source_size), True


def _output(layout: Any, batch: Any, m: Any, n: Any) -> _Operand:
    *first, row, column = layout.stride
    batch_stride = first[0] if first and batch != 1 else 0
    column, offset = static((column, layout.offset), "row strides of the output")
    if (hint(n) > 1 and column != 1) or (m != 1 and hint(row) < hint(n)):
        raise Declined(f"output strides ({row}, {column}) are not row-major")
    size = layout.dtype.itemsize
    ldc = row if m != 1 else n
    steps = [ldc * size] if m != 1 else []
    if not is_static(n):
        # A store of several neighbours ends where a row does, for all N.
        steps.append(n * size)
    aligned = align(BASE_BYTES, offset * size, batch_stride * size, *steps)
    return _Operand("N", ldc, 1, batch_stride, max(aligned, min(size, 16)))


def _dtype(dtype: Any) -> DType:
    try:
        return DType.parse(str(dtype))
    except ProblemError as error:
        name = str(dtype).removeprefix("torch.")
        raise Declined(space.dtype_limit(name)) from error
