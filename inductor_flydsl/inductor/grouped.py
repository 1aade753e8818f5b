"""Grouped products, plain and `_scaled_grouped_mm`: from operands to a problem and its choice.

Inductor lowers the op without asking the choices handler, so a function of ours runs before its
lowering and remembers the call, and another adds our choice to the list that the lowering makes.
Knows nothing of kernels, devices or tuning.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from ..errors import ProblemError
from ..grouping import Axis, Grouping
from ..problem import GemmProblem, Layout
from . import compat
from .decisions import Decision, record
from .extents import Declined, equal, hint, is_static, static, static_extents
from .operands import Asked, _dtype, _dynamic, _operand, _output, common_types, describe, product

OP, SCALED_OP = "grouped_mm", "scaled_grouped_mm"
# What it is called where neither operand is ragged.
BATCHED = "bmm"
_calls = threading.local()


@dataclass(frozen=True, kw_only=True)
class _Call:
    """One lowering under way: the graph's node and the op's arguments."""

    node: Any
    op: str
    operands: tuple[Any, Any]
    scales: tuple[Any, ...] = ()
    offs: Any
    bias: Any
    out_dtype: Any


def lower(
    mat_a: Any, mat_b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> None:
    """Remember the call for `add_choice`, and leave the lowering to Inductor."""
    _remember(OP, (mat_a, mat_b), (), offs=offs, bias=bias, out_dtype=out_dtype)


def nothing(op: str, operands: Any, offs: Any, out_dtype: Any) -> Any:
    """The result of a scaled product where an operand has no elements, zeros; None where all have.

    Args:
        op: its name; operands: A and B; offs, out_dtype: of the op.
    """
    if not any(equal(size, 0) for x in operands for size in x.get_size() if is_static(size)):
        return None
    (*_, m, _), (*_, n) = (x.get_size() for x in operands)
    dims: Any = tuple(len(x.get_size()) for x in operands)
    count = {(2, 2): offs, (3, 3): operands[0]}.get(dims)
    sizes = [*([] if count is None else count.get_size()[:1]), m, n]
    shapes, reason = describe(operands), "an operand is empty: the result is zeros"
    record(Decision(op=op, shapes=shapes, chosen="OTHERS", reason=reason))
    return compat.zeros(sizes, out_dtype, operands[0].get_device())


def lower_scaled(
    mat_a: Any,
    mat_b: Any,
    scale_a: Any,
    scale_b: Any,
    offs: Any = None,
    bias: Any = None,
    scale_result: Any = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Any:
    """As `lower`, of ``aten._scaled_grouped_mm``; its meta function allows no ``scale_result``.

    Returns:
        Zeros where an operand is empty, else None.
    """
    import torch

    options = {"offs": offs, "bias": bias, "out_dtype": out_dtype or torch.bfloat16}
    if takes_part() and bias is None:
        zeros = nothing(SCALED_OP, (mat_a, mat_b), offs, options["out_dtype"])
        if zeros is not None:
            return zeros
    _remember(SCALED_OP, (mat_a, mat_b), (scale_a, scale_b), **options)
    return None


def may_take_part() -> bool:
    """`takes_part` as far as can be told before lowering: whether our checks stand for torch's."""
    from . import activate

    return activate.is_active() and compat.lists_flydsl()


def takes_part() -> bool:
    """Whether what is being lowered may become ours."""
    from . import activate

    return activate.is_active() and compat.autotunes_flydsl()


def _remember(op: str, operands: tuple[Any, Any], scales: tuple[Any, ...], **options: Any) -> None:
    from . import activate

    if takes_part():
        activate.install_scheduling()
        compat.add_first_preprocessing(add_choice)
        node = compat.current_node()
        _calls.latest = _Call(node=node, op=op, operands=operands, scales=scales, **options)


def add_choice(choices: list[Any]) -> list[Any]:
    """The choices of a grouped product with ours among them; those of other ops as they are."""
    from . import activate
    from .choices import offer
    from .ops import Inputs

    call: _Call | None = vars(_calls).pop("latest", None)
    if call is None or call.node is not compat.current_node() or not activate.is_active():
        return choices
    nodes, layout = compat.grouped_inputs(call.operands, call.scales, call.offs, call.out_dtype)
    scalar = {"bias": call.bias, "recipe": None}.get
    inputs = Inputs(op=call.op, nodes=nodes, layout=layout, scalar=scalar)
    ours = offer(inputs, choices, needed=bool(call.scales))
    if ours is not None:
        return [*choices, ours]
    if not choices and set(compat.gemm_backends()) == {compat.BACKEND}:
        # FLYDSL alone in the list, and not able: the compile must not fail for it.
        return [compat.aten_grouped(nodes, layout, call.out_dtype, bool(call.scales))]
    return choices


def ask(inputs: Any) -> Asked:
    """The problem that a grouped product poses, or a batched one where both operands are 3D.

    Raises:
        Declined: sizes, strides, dtypes or the output's layout are not ones of ours.
    """
    if inputs.scalar("bias") is not None:
        raise Declined("a bias has no place in a grouped kernel")
    a, b, *offsets = inputs.nodes
    return asked(a, b, offsets, inputs.layout, (OP, BATCHED))


def asked(a: Any, b: Any, offsets: list[Any], layout: Any, ops: tuple[str, str]) -> Asked:
    """The product alone of any grouped op; its kernel takes A, B and the offsets, if any.

    Args:
        a, b: realized IR nodes; offsets: that of the groups' ends, where there are any.
        layout: the fixed layout of C.
        ops: names of the problem's op, grouped and batched.

    Raises:
        Declined: as `ask`.
    """
    dims = len(a.get_size()), len(b.get_size())
    if dims == (3, 3):
        return product(a, b, layout, ops[1])
    (offs,) = offsets
    compat.freeze(offs)
    if str(offs.get_dtype()) != "torch.int32" or offs.get_device() != a.get_device():
        raise Declined(f"offsets are {offs.get_dtype()} on {offs.get_device()}")
    (groups,) = static(offs.get_size(), "sizes of the offsets")
    if groups > 1 and static(offs.get_stride(), "stride of the offsets") != (1,):
        raise Declined("the offsets have gaps")
    axis = {(2, 3): Axis.M, (3, 2): Axis.N, (2, 2): Axis.K}[dims]
    return _grouped(a, b, layout, ops[0], Grouping(axis=axis, groups=groups))


def _grouped(a: Any, b: Any, layout: Any, op: str, grouping: Grouping) -> Asked:
    """The problem of operands of which one, or the output, is a matrix for each group.

    The ragged extent may be symbolic.
    """
    (m, k), (k2, n) = (x.get_size()[-2:] for x in (a, b))
    extents = {"m": m, "n": n, "k": k}
    fixed = {name: v for name, v in extents.items() if name != grouping.axis.value}
    extents |= static_extents(**fixed)
    m, n, k = extents.values()
    if any(int(v) < 1 for v in extents.values() if is_static(v)):
        raise Declined(f"an operand is empty ({m}x{n}x{k})")
    if not equal(k, k2):
        raise Declined(f"A has {k} columns and B {k2} rows")
    dtype, b_dtype = common_types(a, b)
    for node in (a, b):
        compat.freeze(node)
    matrices = [x[0] if len(x) == 3 else 1 for x in (a.get_size(), b.get_size(), layout.size)]
    left = _operand(a, (matrices[0], m, k), "N", "A")
    right = _operand(b, (matrices[1], n, k), "T", "B")
    output = _output(layout, matrices[2], m, n)
    extents["k"] = k * dtype.packed
    numbers = extents | {"lda": left.ld, "ldb": right.ld, "ldc": output.ld}
    numbers |= {"a_batch": left.batch, "b_batch": right.batch, "c_batch": output.batch}
    numbers |= {"a_inner": left.inner, "b_inner": right.inner}
    hints: dict[str, Any] = {name: hint(number) for name, number in numbers.items()}
    try:
        problem = GemmProblem(
            **hints,
            dtype=dtype,
            b_dtype=b_dtype,
            out_dtype=_dtype(layout.dtype),
            layout=Layout(left.letter + right.letter),
            a_align=left.align,
            b_align=right.align,
            c_align=output.align,
            op=op,
            grouping=grouping,
        )
    except ProblemError as error:
        raise Declined(str(error)) from error
    check = "a" * left.check + "b" * right.check
    return Asked(problem, check, (0, 1, 2), sizes=_dynamic(numbers))
