"""Which loops of a pointwise node walk the batch, the rows and the columns of a product.

Owns index expressions and their linear parts. A loop that walks over a border of an operand, as
after a view of [batch, M, N] as [batch·M, N], is split in two there. Knows nothing of operations
and of kernels.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sympy

from .extents import hint, is_static, quotient, same


class Unfusable(Exception):
    """A node that cannot join the epilogue; the message says why."""


@dataclass(frozen=True)
class Steps:
    """Strides in elements along the batch, M and N, maybe symbolic.

    Attributes:
        heads: 0, or how many batches follow one another, ``batch`` apart, before the outer index
            moves, which then is ``outer`` more from the first of them.
    """

    batch: Any
    row: Any
    column: Any
    heads: int = 0
    outer: Any = 0

    def outer_of(self, heads: int) -> Any:
        """The stride of the outer index where batches are taken as so many heads each."""
        return self.outer if self.heads else self.batch * heads

    def same(self, other: Steps, extents: tuple[Any, Any, Any]) -> bool:
        """Both walk over the same elements; nothing moves along an axis of one place."""
        pairs = zip(extents, self.axes, other.axes, strict=True)
        along = all(ours == theirs for extent, ours, theirs in pairs if extent != 1)
        return along and (self.heads, self.outer) == (other.heads, other.outer)

    @property
    def axes(self) -> tuple[Any, Any, Any]:
        return (self.batch, self.row, self.column)

    @property
    def lines(self) -> tuple[Any, ...]:
        """All but that of neighbours along N."""
        return (self.batch, self.row, self.outer)


class Axes:
    """The loops of one pointwise node.

    Args:
        extents: (batch, M, N) of the product, maybe symbolic.
        ranges: of the node's loops, maybe symbolic.

    Attributes:
        index: what to call the node's function with.
    """

    def __init__(self, extents: tuple[Any, Any, Any], ranges: list[Any]) -> None:
        self.extents = extents
        self.ranges: dict[Any, Any] = {}
        self._loops = 0
        self.index: list[Any] = [
            sympy.Integer(0) if extent == 1 else self._loop(extent) for extent in ranges
        ]
        self._borders: dict[Any, set[Any]] = {}
        # Loops of the batch, M and N: symbol → how many places of the axis a turn moves on.
        self.dims: tuple[dict[Any, Any], ...] | None = None

    def _loop(self, extent: Any) -> Any:
        self._loops += 1
        symbol = sympy.Symbol(f"i{self._loops}", integer=True, nonnegative=True)
        self.ranges[symbol] = extent
        return symbol

    def note(self, index: Any) -> None:
        """Remember the borders that an index crosses: where it divides a loop by a number."""
        from torch.utils._sympy.functions import FloorDiv, ModularIndexing

        for part in sympy.sympify(index).atoms(FloorDiv, ModularIndexing):
            base, divisor, *modulus = part.args
            if base in self.ranges:
                crossed = {divisor, *(divisor * m for m in modulus)} - {1, self.ranges[base]}
                self._borders.setdefault(base, set()).update(crossed)

    def cut(self) -> None:
        """Split the loops at the borders that were noted; `index` is another one then."""
        for symbol, borders in self._borders.items():
            # From the outside in; symbolic ones have no order, and one alone needs none.
            for border in sorted(borders, key=hint, reverse=True):
                over = quotient(self.ranges[symbol], border)
                if over is not None:
                    symbol, _ = self._cut(symbol, border, over)
        self._borders.clear()

    def _cut(self, symbol: Any, turns: Any, over: Any) -> tuple[Any, Any]:
        """One loop as two: the inner one of so many turns, and the outer one."""
        del self.ranges[symbol]
        inner, outer = self._loop(turns), self._loop(over)
        self.index = [i.subs({symbol: outer * turns + inner}) for i in self.index]
        return inner, outer

    def coefficients(self, index: Any) -> tuple[dict[Any, Any], Any]:
        """Strides of a linear index by loop, and what is left without loops.

        Raises:
            Unfusable: it is not linear.
        """
        from torch._inductor.virtualized import V

        index = sympy.expand(V.graph.sizevars.simplify_with_ranges(index, self.ranges))
        strides = {symbol: index.coeff(symbol, 1) for symbol in self.ranges}
        rest = sympy.expand(index - sum(s * symbol for symbol, s in strides.items()))
        if any(v.free_symbols & self.ranges.keys() for v in (*strides.values(), rest)):
            raise Unfusable(f"index {index} is not linear")
        return strides, rest

    def match(self, index: Any, place: Steps) -> None:
        """Take the loops' axes from a load of the product, or check that they are the same.

        Raises:
            Unfusable: the load is not element by element.
        """
        strides, offset = self.coefficients(index)
        if self.dims is None:
            strides = self._split(strides, place)
        dims = self._sorted(strides, place)
        whole = all(_covers(d, self.ranges, e) for d, e in zip(dims, self.extents, strict=True))
        if offset != 0 or not whole or self.dims not in (None, dims):
            raise Unfusable(f"the product is read at {index}, not element by element")
        self.dims = dims

    def _sorted(self, strides: dict[Any, Any], place: Steps) -> tuple[dict[Any, Any], ...]:
        dims: tuple[dict[Any, Any], ...] = ({}, {}, {})
        for symbol, stride in strides.items():
            axis, step = self._axis(stride, place)
            dims[axis][symbol] = step
        return dims

    def _axis(self, stride: Any, place: Steps) -> tuple[int, Any]:
        """Number of the axis that a stride walks, and how many of its places."""
        for axis, (extent, unit) in enumerate(
            zip(self.extents[:2], (place.batch, place.row), strict=True)
        ):
            step = quotient(stride, unit) if extent != 1 and unit != 0 else None
            if step is not None:
                return axis, step
        return 2, stride

    def _split(self, strides: dict[Any, Any], place: Steps) -> dict[Any, Any]:
        """Strides where no loop walks over the end of its axis into the next one."""
        done: dict[Any, Any] = {}
        waiting = dict(strides)
        while waiting:
            symbol, stride = waiting.popitem()
            axis, step = self._axis(stride, place)
            turns = quotient(self.extents[axis], step) if step != 0 else None
            over = quotient(self.ranges[symbol], turns) if turns else None
            if axis == 0 or over is None or over == 1 or not self._goes_on(axis, place):
                done[symbol] = stride
                continue
            inner, outer = self._cut(symbol, turns, over)
            waiting |= {inner: stride, outer: sympy.expand(stride * turns)}
        return done

    def _goes_on(self, axis: int, place: Steps) -> bool:
        """The place after the end of this axis is the next one of the axis outside."""
        ends = (place.row * self.extents[1], self.extents[2])[axis - 1]
        follows = place.row if axis == 2 and self.extents[1] != 1 else place.batch
        return same(ends, follows)

    def strides(self, by_symbol: dict[Any, Any]) -> Steps:
        """Of a tensor with these strides by loop.

        Raises:
            Unfusable: it has a negative stride, or none by axis.
        """
        assert self.dims is not None
        batches, *others = self.dims
        if _step(batches, by_symbol) is None:
            row, column = _steps(others, by_symbol)
            found = _by_heads(batches, by_symbol, row, column)
        else:
            found = Steps(*self.steps(by_symbol))
        if min(hint(step) for step in (*found.lines, found.column)) < 0:
            raise Unfusable("a tensor has a negative stride")
        return found

    def steps(self, by_symbol: dict[Any, Any]) -> tuple[Any, Any, Any]:
        """How far a place further along the batch, M and N moves what moves so far by loop.

        Raises:
            Unfusable: loops of one axis move it by different amounts.
        """
        assert self.dims is not None
        batch, row, column = _steps(self.dims, by_symbol)
        return batch, row, column


def _steps(axes: Iterable[dict[Any, Any]], by_symbol: dict[Any, Any]) -> list[Any]:
    found = [_step(dims, by_symbol) for dims in axes]
    if None in found:
        raise Unfusable("a tensor's strides do not follow the product's batches, rows and columns")
    return found


def _step(dims: dict[Any, Any], by_symbol: dict[Any, Any]) -> Any:
    """How far a place further along one axis moves what moves so far by loop; None if that is not
    one number."""
    steps = [quotient(by_symbol[symbol], step) for symbol, step in dims.items()]
    if any(s is None or not same(s, steps[0]) for s in steps):
        return None
    found = steps[0] if steps else 0
    return int(found) if is_static(found) else found


def _by_heads(dims: dict[Any, Any], by_symbol: dict[Any, Any], row: Any, column: Any) -> Steps:
    """Strides of what moves differently along heads and along the batches outside of them."""
    for heads in sorted(int(step) for step in dims.values() if is_static(step) and step != 1):
        inner = {s: step for s, step in dims.items() if is_static(step) and int(step) < heads}
        outside = {s: quotient(step, heads) for s, step in dims.items() if s not in inner}
        if None in outside.values():
            continue
        batch, outer = _step(inner, by_symbol), _step(outside, by_symbol)
        if batch is not None and outer is not None:
            return Steps(batch, row, column, heads, outer)
    raise Unfusable("a tensor's strides do not follow the product's batches, rows and columns")


def _covers(dims: dict[Any, Any], ranges: dict[Any, Any], extent: Any) -> bool:
    """The loops count 0 to ``extent`` - 1, each place once."""
    expected: Any = 1
    left = dict(dims)
    while left:
        symbol = next((s for s, step in left.items() if same(step, expected)), None)
        if symbol is None:
            return False
        del left[symbol]
        expected = expected * ranges[symbol]
    return same(expected, extent)
