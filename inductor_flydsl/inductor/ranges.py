"""Up to which sizes a kernel with dynamic ones may be launched, and the guards that say so.

Beyond a guard Dynamo compiles again, and there the op is declined. Where no guard can be set (two
sizes that are too large together, a symbol without a hint, a graph whose guards are frozen), the
launch itself refuses: see `runtime.Sized`.
"""

from __future__ import annotations

import logging
from typing import Any

import sympy

from .. import space
from ..arch import get_arch
from ..errors import ProblemError
from . import compat
from .extents import hint
from .runtime import Launch

log = logging.getLogger("inductor_flydsl")
TOP = 2**31 - 1


def guard(launch: Launch, sizes: dict[str, Any]) -> dict[str, int]:
    """Set a guard on every symbol of a launch's sizes whose values are limited, and on what K must
    be a multiple of.

    Args:
        launch: a choice.
        sizes: the dynamic integers of its problem, as expressions.

    Returns:
        The largest value of each symbol that has such a limit, by its name.
    """
    unit = space.k_multiple(launch.problem)
    if "k" in sizes and not compat.is_multiple(sizes["k"], unit):
        compat.guard(sympy.Eq(sympy.Mod(sizes["k"], unit), 0))
    symbols = {s for size in sizes.values() for s in size.free_symbols}
    limits = {}
    for symbol in sorted(symbols, key=str):
        top = _largest(launch, sizes, symbol)
        if top < TOP:
            limits[str(symbol)] = top
            if not compat.guard(sympy.Le(symbol, top)):
                log.info("%s <= %d is checked at every launch: it cannot be guarded", symbol, top)
    return limits


def _largest(launch: Launch, sizes: dict[str, Any], symbol: Any) -> int:
    """The largest value of a symbol that a launch can have, the others at their hints."""
    arch, unit = get_arch(launch.arch), space.k_multiple(launch.problem)

    def fits(value: int) -> bool:
        values = {name: hint(size.subs({symbol: value})) for name, size in sizes.items()}
        if "k" in values:
            values["k"] -= values["k"] % unit
        try:
            return space.size_limit(launch.problem.at(values), launch.config, arch) is None
        except ProblemError:
            return False

    low, high = hint(symbol), TOP
    if fits(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
