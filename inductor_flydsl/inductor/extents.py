"""Numbers of a graph that may be symbolic: what holds for all their values, and their hints.

Knows nothing of products: `operands` and `epilogue` read sizes, strides and offsets through it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import sympy

from ..problem import alignment
from . import compat


class Declined(Exception):
    """The op stays with Inductor's own choices; the message says why."""


def is_static(number: Any) -> bool:
    """Known when the graph is compiled."""
    return isinstance(number, int) or bool(number.is_number)


def static(numbers: Iterable[Any], what: str) -> tuple[int, ...]:
    """Plain integers.

    Raises:
        Declined: one of them is symbolic.
    """
    numbers = tuple(numbers)
    if not all(is_static(v) for v in numbers):
        text = ", ".join(str(v) for v in numbers)
        raise Declined(f"{what} may not be dynamic ({text}): mark it static, or pad to a few sizes")
    return tuple(int(v) for v in numbers)


def static_extents(**extents: Any) -> dict[str, int]:
    """Plain integers of extents, by their names in a problem.

    Raises:
        Declined: some are symbolic; the message names those alone.
    """
    moving = {name: v for name, v in extents.items() if not is_static(v)}
    if moving:
        names = " and ".join(name.upper() for name in moving)
        text = ", ".join(f"{name.upper()} = {v}" for name, v in moving.items())
        raise Declined(
            f"{names} may not be dynamic ({text}): mark it static, or pad to a few sizes"
        )
    return {name: int(v) for name, v in extents.items()}


def hint(number: Any) -> int:
    """The value to tune at; symbols count as at least 2, so that no case of 1 is taken for all."""
    if is_static(number):
        return int(number)
    values = {symbol: max(2, compat.size_hint(symbol)) for symbol in number.free_symbols}
    return int(number.subs(values))


def same(left: Any, right: Any) -> bool:
    """Equal for all values of their symbols, as far as can be told."""
    return left == right or bool(sympy.expand(left - right) == 0)


def equal(left: Any, right: Any) -> bool:
    """As `same`; sizes that inputs have apart are guarded to be equal where they are now."""
    return same(left, right) or compat.guard(sympy.Eq(left, right))


def guard_multiple(number: Any, divisor: int) -> bool:
    """Whether a dynamic number is a multiple, and the graph guarded to be for multiples only.

    Other values compile once more, and then have one kernel for all of them.
    """
    if is_static(number) or hint(number) % divisor:
        return False
    return compat.guard_multiple(number, divisor)


def is_multiple(number: Any, divisor: int) -> bool:
    """Whether a number is a multiple of a power of two for all values of its symbols."""
    return int(number) % divisor == 0 if is_static(number) else compat.is_multiple(number, divisor)


def align(base: int, *counts: Any) -> int:
    """`problem.alignment` of byte counts that may be symbolic: what divides all their values."""
    fixed = [int(c) for c in counts if is_static(c)]
    found = alignment(base, *fixed)
    for count in counts:
        while not is_static(count) and found > 1 and not compat.is_multiple(count, found):
            found //= 2
    return found


def quotient(number: Any, divisor: Any) -> Any:
    """``number / divisor`` if that is whole for all values of their symbols, else None."""
    if is_static(number) and is_static(divisor):
        whole, rest = divmod(int(number), int(divisor))
        return None if rest else whole
    ratio = sympy.cancel(sympy.sympify(number) / divisor)
    return ratio if ratio.is_polynomial() and ratio.is_integer else None
