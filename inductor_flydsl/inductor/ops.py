"""Which ATen ops have kernels of ours, and how each becomes a problem: one table.

A family of ops with operands of its own has a module of its own, with a table like `OPS` that is
joined to it here. Knows nothing of devices, tuning or code generation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import grouped, operands, scaled, scaled_grouped
from .operands import Asked


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """One op as Inductor lowers it.

    Attributes:
        op: as Inductor names it.
        nodes: realized IR nodes, in Inductor's order.
        layout: fixed layout of the output.
        scalar: value of one of the op's numbers, by name (``alpha``).
    """

    op: str
    nodes: list[Any]
    layout: Any
    scalar: Callable[[str], Any]


@dataclass(frozen=True, kw_only=True)
class Op:
    """What there is to know of an op.

    Attributes:
        ask: inputs → problem; raises `operands.Declined` with the reason.
        repeated: Inductor asks for the choices of one such op more than once.
    """

    ask: Callable[[Inputs], Asked]
    repeated: bool = False


def _product(inputs: Inputs) -> Asked:
    a, b = inputs.nodes
    return operands.product(a, b, inputs.layout, inputs.op)


def _product_and_bias(inputs: Inputs) -> Asked:
    bias, a, b = inputs.nodes
    asked = operands.product(a, b, inputs.layout, inputs.op)
    alpha, beta = (float(inputs.scalar(name)) for name in ("alpha", "beta"))
    return operands.with_bias(asked, bias, alpha=alpha, beta=beta)


def _scaled(inputs: Inputs) -> Asked:
    return scaled.ask(inputs.nodes, inputs.layout)


def _block_scaled(inputs: Inputs) -> Asked:
    return scaled.ask(inputs.nodes, inputs.layout, inputs.scalar("recipe"))


OPS: dict[str, Op] = {
    "mm": Op(ask=_product),
    "scaled_mm": Op(ask=_scaled),
    scaled.MX_OP: Op(ask=_block_scaled),
    "addmm": Op(ask=_product_and_bias, repeated=True),
    grouped.OP: Op(ask=grouped.ask),
    scaled_grouped.OP: Op(ask=scaled_grouped.ask),
    "bmm": Op(ask=_product),
    "baddbmm": Op(ask=_product_and_bias),
}
