"""Shapes → our problems and random operands, the same for every contestant.

Owns tensors and the exact value of any element of C. Knows nothing of kernels.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .suites import Shape

# Larger operands repeat so many random elements, a prime, so that no two rows are alike: memory is
# filled in no time, and only a sample of a launch looks at it.
PERIOD = 16_777_213
# E2M1 by its four bits.
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
SCALE_BLOCK = 32
# E8M0 codes of random scales: 2^-3 to 2^4.
SCALES = (124, 132)


class Missing(Exception):
    """Why a contestant takes no part, in words."""


@dataclass(frozen=True)
class Operands:
    """Tensors of one shape.

    Attributes:
        shape: what is computed.
        tensors: by name; ``c`` is [M, N], NaN, and written. ``a`` is [M, K] and ``b`` [K, N] or
            [G, K, N], bf16; MX ones hold stored elements ([M, K/2] of FP4), and ``scale_a``
            [M, K/32] and ``scale_b`` [N, K/32] follow; ``offs`` int32 [G] is where groups end.
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
        a, b = self._decoded("a", rows, -1), self._columns(rows, columns)
        terms = a * b
        return terms.sum(1), terms.square().sum(1).sqrt()

    def _columns(self, rows: Any, columns: Any) -> Any:
        import torch

        if not self.shape.rows:
            return self._decoded("b", columns, 0)
        ends = self.tensors["offs"].long()
        group = torch.searchsorted(ends, rows.contiguous(), right=True)
        return self.tensors["b"][group, :, columns].double()

    def _decoded(self, name: str, lines: Any, k_axis: int) -> Any:
        """Rows of A (k_axis -1) or columns of B (0) as float64 [n, K], block scales multiplied."""
        stored = self.tensors[name]
        lines_of = stored[lines] if k_axis else stored.t()[lines]
        if self.shape.op != "scaled":
            return lines_of.double()
        values = decode(lines_of, self.shape.kind)
        scales = 2.0 ** (self.tensors[f"scale_{name}"][lines].double() - 127)
        return values * scales.repeat_interleave(SCALE_BLOCK, 1)


def decode(stored: Any, kind: str) -> Any:
    """Elements from their bytes, as the OCP MX specification defines E4M3 and E2M1; float64.

    Args:
        stored: uint8 [n, bytes].
        kind: ``mxfp8`` or ``mxfp4``, of which the low half of a byte comes first.
    """
    import torch

    if kind == "mxfp8":
        return torch.tensor([_e4m3(code) for code in range(256)]).double()[stored.long()]
    table = torch.tensor([*FP4, *(-value for value in FP4)]).double()
    halves = torch.stack([stored & 15, stored >> 4], -1)
    return table[halves.flatten(1).long()]


def _e4m3(code: int) -> float:
    exponent, fraction = code >> 3 & 15, code & 7
    size = fraction * 2.0**-9 if exponent == 0 else (8 + fraction) * 2.0 ** (exponent - 10)
    return float("nan") if code & 127 == 127 else -size if code >> 7 else size


def problem_of(shape: Shape) -> Any:
    """The `GemmProblem` of a shape; its operands are those of `operands_of`, in their order."""
    from inductor_flydsl.problem import GemmProblem

    options = {"layout": shape.layout}
    if shape.op == "scaled":
        options["dtype"] = shape.kind
    if shape.rows:
        options["groups"] = f"m{len(shape.rows)}"
    return GemmProblem.dense(shape.m, shape.n, shape.k, **options)


def work_of(shape: Shape) -> Any:
    """What the analytic model prices: groups as a batch of as many even products."""
    from .published import workload

    if not shape.rows:
        return workload(shape.kind, shape.m, shape.n, shape.k)
    groups = len(shape.rows)
    work = workload(shape.kind, -(-shape.m // groups), shape.n, shape.k)
    return work._replace(batch=groups)


def operands_of(shape: Shape, seed: int = 0) -> Operands:
    """Normal random operands; E8M0 scales around 1, and any code of FP4."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    m, n, k = shape.m, shape.n, shape.k
    tensors = {"c": torch.full((m, n), torch.nan, dtype=torch.bfloat16)}
    if shape.op == "scaled":
        stored = k // 2 if shape.kind == "mxfp4" else k
        sizes = {"a": (m, stored), "b": (n, stored)}
        scales = {"scale_a": (m, k // SCALE_BLOCK), "scale_b": (n, k // SCALE_BLOCK)}
        found = {name: _codes(size, shape.kind, generator) for name, size in sizes.items()}
        tensors |= {"a": found["a"], "b": found["b"].t()}
        for name, size in scales.items():
            tensors[name] = torch.randint(*SCALES, size, dtype=torch.uint8, generator=generator)
        return Operands(shape, tensors)
    a, *b = (m, k), (n, k) if shape.layout == "NT" else (k, n)
    tensors["a"] = _normal(a, generator)
    if shape.rows:
        tensors["b"] = _normal((len(shape.rows), *b[0]), generator)
        ends = list(itertools.accumulate(shape.rows))
        tensors["offs"] = torch.tensor(ends, dtype=torch.int32)
    else:
        stored_b = _normal(b[0], generator)
        tensors["b"] = stored_b.t() if shape.layout == "NT" else stored_b
    return Operands(shape, tensors)


def _normal(size: tuple[int, ...], generator: Any) -> Any:
    import torch

    return _filled(size, lambda n: torch.randn(n, generator=generator).bfloat16())


def _codes(size: tuple[int, ...], kind: str, generator: Any) -> Any:
    """uint8 codes: of normal values in E4M3, any of E2M1."""
    import torch

    def fp8(n: int) -> Any:
        values = torch.randn(n, generator=generator)
        return values.to(torch.float8_e4m3fn).view(torch.uint8)

    def fp4(n: int) -> Any:
        return torch.randint(0, 256, (n,), dtype=torch.uint8, generator=generator)

    return _filled(size, fp8 if kind == "mxfp8" else fp4)


def _filled(size: tuple[int, ...], make: Callable[[int], Any]) -> Any:
    """A tensor of `size` from `make`, which gives so many random elements."""
    count = math.prod(size)
    part = make(min(count, PERIOD))
    return part.repeat(-(-count // len(part)))[:count].view(size)
