"""Shapes → our problems and random operands, the same for every contestant.

Owns tensors and the exact value of any element of C. Knows nothing of kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .suites import Shape


class Missing(Exception):
    """Why a contestant takes no part, in words."""


@dataclass(frozen=True)
class Operands:
    """Tensors of one shape.

    Attributes:
        shape: what is computed.
        tensors: by name; ``c`` is [M, N], NaN, and written; ``a`` and ``b`` follow.
    """

    shape: Shape
    tensors: dict[str, Any]

    def reset(self) -> None:
        """C as it was."""
        self.tensors["c"].fill_(float("nan"))

    def exact(self, rows: Any, columns: Any) -> tuple[Any, Any]:
        """(product, root of the sum of squared terms) of elements of C, float64.

        Args:
            rows, columns: int64 [n] each.
        """
        a = self.tensors["a"][rows].double()
        b = self.tensors["b"][:, columns].double().t()
        terms = a * b
        return terms.sum(1), terms.square().sum(1).sqrt()


def problem_of(shape: Shape) -> Any:
    """The `GemmProblem` of a shape.

    Raises:
        Missing: our problems can't express it yet.
    """
    from inductor_flydsl.problem import GemmProblem

    if shape.op != "mm":
        raise Missing(f"no kernel of ours yet: {shape.op} is not among our problems")
    return GemmProblem.dense(shape.m, shape.n, shape.k, layout=shape.layout)


def operands_of(shape: Shape, seed: int = 0) -> Operands:
    """Normal random operands."""
    from inductor_flydsl.numerics import operands

    c, a, b = operands(problem_of(shape), seed=seed)
    return Operands(shape, {"c": c, "a": a, "b": b})
