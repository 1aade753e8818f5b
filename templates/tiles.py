"""Which tile of C a workgroup computes, and where its waves and lanes stand in it."""

from __future__ import annotations

from typing import Any

import flydsl.expr as fx

from ..division import divider
from . import ops

XCDS = 8


def remap_xcd(pid: Any, grid: Any) -> Any:
    """Give each XCD a contiguous run of tiles, for any grid size.

    Workgroups go round-robin to XCDs, so the ones that share an L2 are ``XCDS`` apart.
    """
    xcd, extra = ops.modulo(pid, XCDS), ops.modulo(grid, XCDS)
    before = (xcd < extra).select(xcd, extra)
    return xcd * ops.quotient(grid, XCDS) + before + ops.quotient(pid, XCDS)


def divisor(sizes: Any, name: str) -> tuple[Any, Any, Any]:
    """One of `signature.TURNS`, or HEADS, as `ops.divide_by` takes it."""
    return tuple(getattr(sizes, f"{name}{part}") for part in ("", "_multiplier", "_shift"))


def in_turns(pid: Any, tiles_m: Any, sizes: Any, group_m: int) -> tuple[Any, Any]:
    """`group_along_m` with the divisors of `arguments.turns`, which cost a workgroup less.

    Args:
        pid: index of the tile.
        tiles_m: of the problem.
        sizes: of the launch.
        group_m: as in GemmConfig.
    """
    first, inside = ops.divide_by(pid, divisor(sizes, "turn"))
    if group_m == 0:
        return first, inside
    first = first * group_m
    last = tiles_m - first < group_m
    whole = (group_m, *divider(group_m))
    rows = tuple(
        last.select(mine, fx.Int32(full))
        for mine, full in zip(divisor(sizes, "rest"), whole, strict=True)
    )
    column, row = ops.divide_by(inside, rows)
    return first + row, column


def group_along_m(pid: Any, tiles_m: Any, tiles_n: Any, group_m: int) -> tuple[Any, Any]:
    """Tile coordinates of a workgroup: ``group_m`` rows of tiles run before N advances.

    Returns:
        (index along M, index along N).
    """
    if group_m == 0:
        return ops.divide(pid, tiles_n)
    group, inside = ops.divide(pid, group_m * tiles_n)
    first = group * group_m
    left = tiles_m - first
    rows = (left < group_m).select(left, fx.Int32(group_m))
    column, row = ops.divide(inside, rows)
    return first + row, column
