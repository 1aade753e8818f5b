"""Which tile of C a workgroup computes, and where its waves and lanes stand in it."""

from __future__ import annotations

from typing import Any

import flydsl.expr as fx

from . import ops

XCDS = 8


def remap_xcd(pid: Any, grid: Any) -> Any:
    """Give each XCD a contiguous run of tiles, for any grid size.

    Workgroups go round-robin to XCDs, so the ones that share an L2 are ``XCDS`` apart.
    """
    xcd, extra = ops.modulo(pid, XCDS), ops.modulo(grid, XCDS)
    before = (xcd < extra).select(xcd, extra)
    return xcd * ops.quotient(grid, XCDS) + before + ops.quotient(pid, XCDS)


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
