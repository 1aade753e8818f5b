"""``aten._grouped_mm``: from Inductor's operands to a grouped problem, and into its choices.

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
from .extents import Declined, equal, hint, is_static, static
from .operands import Asked, _dtype, _dynamic, _operand, _output, product

OP = "grouped_mm"
# What it is called where neither operand is ragged.
BATCHED = "bmm"
_calls = threading.local()


@dataclass(frozen=True)
class _Call:
    """One lowering under way: the graph's node and the op's arguments."""

    node: Any
    arguments: tuple[Any, ...]


def lower(
    mat_a: Any, mat_b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> None:
    """Remember the call for `add_choice`, and leave the lowering to Inductor."""
    from . import activate

    if activate.is_active() and compat.autotunes_flydsl():
        activate.install_scheduling()
        compat.add_first_preprocessing(add_choice)
        _calls.latest = _Call(compat.current_node(), (mat_a, mat_b, offs, bias, out_dtype))


def add_choice(choices: list[Any]) -> list[Any]:
    """The choices of a grouped product with ours among them; those of other ops as they are."""
    from . import activate
    from .choices import offer
    from .ops import Inputs

    call: _Call | None = vars(_calls).pop("latest", None)
    if call is None or call.node is not compat.current_node() or not activate.is_active():
        return choices
    *_, bias, out_dtype = call.arguments
    nodes, layout = compat.grouped_inputs(*call.arguments)
    ours = offer(Inputs(op=OP, nodes=nodes, layout=layout, scalar={"bias": bias}.get), choices)
    if ours is not None:
        return [*choices, ours]
    if not choices and set(compat.gemm_backends()) == {compat.BACKEND}:
        # FLYDSL alone in the list, and not able: the compile must not fail for it.
        return [compat.aten_grouped(nodes, layout, out_dtype)]
    return choices


def ask(inputs: Any) -> Asked:
    """The problem that a grouped product poses, or a batched one where both operands are 3D.

    Raises:
        Declined: sizes, strides, dtypes or the output's layout are not ones of ours.
    """
    if inputs.scalar("bias") is not None:
        raise Declined("a bias has no place in a grouped kernel")
    a, b, *offsets = inputs.nodes
    dims = len(a.get_size()), len(b.get_size())
    if dims == (3, 3):
        return product(a, b, inputs.layout, BATCHED)
    (offs,) = offsets
    compat.freeze(offs)
    if str(offs.get_dtype()) != "torch.int32" or offs.get_device() != a.get_device():
        raise Declined(f"offsets are {offs.get_dtype()} on {offs.get_device()}")
    (groups,) = static(offs.get_size(), "sizes of the offsets")
    if groups > 1 and static(offs.get_stride(), "stride of the offsets") != (1,):
        raise Declined("the offsets have gaps")
    axis = {(2, 3): Axis.M, (3, 2): Axis.N, (2, 2): Axis.K}[dims]
    return _grouped(a, b, inputs.layout, Grouping(axis=axis, groups=groups))


def _grouped(a: Any, b: Any, layout: Any, grouping: Grouping) -> Asked:
    """The problem of operands of which one, or the output, is a matrix for each group.

    The ragged extent may be symbolic.
    """
    (m, k), (k2, n) = (x.get_size()[-2:] for x in (a, b))
    extents = {"m": m, "n": n, "k": k}
    fixed = {name: v for name, v in extents.items() if name != grouping.axis.value}
    extents |= zip(fixed, static(fixed.values(), f"{' and '.join(fixed).upper()}"), strict=True)
    m, n, k = extents.values()
    if min(int(v) for v in extents.values() if is_static(v)) < 1:
        raise Declined(f"an operand is empty ({m}x{n}x{k})")
    if not equal(k, k2):
        raise Declined(f"A has {k} columns and B {k2} rows")
    if b.get_dtype() != a.get_dtype():
        raise Declined(f"A is {a.get_dtype()} and B is {b.get_dtype()}")
    for node in (a, b):
        compat.freeze(node)
    matrices = [x[0] if len(x) == 3 else 1 for x in (a.get_size(), b.get_size(), layout.size)]
    left = _operand(a, (matrices[0], m, k), "N", "A")
    right = _operand(b, (matrices[1], n, k), "T", "B")
    output = _output(layout, matrices[2], m, n)
    numbers = extents | {"lda": left.ld, "ldb": right.ld, "ldc": output.ld}
    numbers |= {"a_batch": left.batch, "b_batch": right.batch, "c_batch": output.batch}
    numbers |= {"a_inner": left.inner, "b_inner": right.inner}
    hints: dict[str, Any] = {name: hint(number) for name, number in numbers.items()}
    try:
        problem = GemmProblem(
            **hints,
            dtype=_dtype(a.get_dtype()),
            out_dtype=_dtype(layout.dtype),
            layout=Layout(left.letter + right.letter),
            a_align=left.align,
            b_align=right.align,
            c_align=output.align,
            op=OP,
            grouping=grouping,
        )
    except ProblemError as error:
        raise Declined(str(error)) from error
    check = "a" * left.check + "b" * right.check
    return Asked(problem, check, (0, 1, 2), sizes=_dynamic(numbers))
