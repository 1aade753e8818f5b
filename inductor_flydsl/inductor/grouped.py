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
from ..problem import GemmProblem, Layout, alignment
from . import compat
from .operands import Asked, Declined, _dtype, _ints, _operand, _output

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
        problem, check = _problem(a, b, inputs.layout, None)
        return Asked(problem, check)
    (offs,) = offsets
    compat.freeze(offs)
    if str(offs.get_dtype()) != "torch.int32" or offs.get_device() != a.get_device():
        raise Declined(f"offsets are {offs.get_dtype()} on {offs.get_device()}")
    (groups,) = _ints(offs.get_size(), "sizes of the offsets")
    if groups > 1 and _ints(offs.get_stride(), "stride of the offsets") != (1,):
        raise Declined("the offsets have gaps")
    axis = {(2, 3): Axis.M, (3, 2): Axis.N, (2, 2): Axis.K}[dims]
    problem, check = _problem(a, b, inputs.layout, Grouping(axis=axis, groups=groups))
    return Asked(problem, check, (0, 1, 2))


def _problem(a: Any, b: Any, layout: Any, grouping: Grouping | None) -> tuple[GemmProblem, str]:
    """The problem, of batches where there is no grouping, and the operands to check."""
    (m, k), (k2, n) = (
        _ints(x.get_size()[-2:], f"sizes of {name}") for x, name in ((a, "A"), (b, "B"))
    )
    if min(m, n, k) < 1 or k != k2:
        raise Declined(f"an operand is empty ({m}x{n}x{k})")
    if b.get_dtype() != a.get_dtype():
        raise Declined(f"A is {a.get_dtype()} and B is {b.get_dtype()}")
    for node in (a, b):
        compat.freeze(node)
    left = _operand(_Each(a), (m, k), "N", "A")
    right = _operand(_Each(b), (n, k), "T", "B")
    ldc, c_align = _output(_EachOf(layout), m, n)
    steps = [_step(x.get_stride(), name) for x, name in ((a, "A"), (b, "B"))]
    steps.append(_step(layout.stride, "C"))
    sizes = [x.itemsize for x in (a.get_dtype(), b.get_dtype(), layout.dtype)]
    aligns = (
        min(align, max(size, alignment(step * size)))
        for align, step, size in zip((left.align, right.align, c_align), steps, sizes, strict=True)
    )
    a_align, b_align, c_align = aligns
    batch = 1
    if grouping is None:
        (batch,) = _ints(a.get_size()[:1], "groups")
    try:
        problem = GemmProblem(
            m=m,
            n=n,
            k=k,
            dtype=_dtype(a.get_dtype()),
            out_dtype=_dtype(layout.dtype),
            layout=Layout(left.letter + right.letter),
            lda=left.ld,
            ldb=right.ld,
            ldc=ldc,
            a_inner=left.inner,
            b_inner=right.inner,
            a_align=a_align,
            b_align=b_align,
            c_align=c_align,
            op=OP if grouping else BATCHED,
            batch=batch,
            a_batch=steps[0],
            b_batch=steps[1],
            c_batch=steps[2],
            grouping=grouping,
        )
    except ProblemError as error:
        raise Declined(str(error)) from error
    return problem, "a" * left.check + "b" * right.check


def _step(strides: Any, name: str) -> int:
    """Elements from one group's matrix to the next; 0 where there is one matrix."""
    if len(strides) == 2:
        return 0
    (step,) = _ints(strides[:1], f"strides of {name}")
    if step < 0:
        raise Declined(f"operand {name} has a negative stride")
    return step


class _Each:
    """A node as each of its matrices has it."""

    def __init__(self, node: Any) -> None:
        self._node = node

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def get_stride(self) -> Any:
        return self._node.get_stride()[-2:]


class _EachOf:
    """A layout as each of its matrices has it."""

    def __init__(self, layout: Any) -> None:
        self.stride, self.offset, self.dtype = layout.stride[-2:], layout.offset, layout.dtype
