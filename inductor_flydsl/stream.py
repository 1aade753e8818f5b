"""How stream-K shares out the tiles of a last, partial round along K.

Owns the arithmetic alone, for hosts and kernels. Tiles are dealt into `tiles` columns; a tile of
each column makes a chain, and `workgroups` share its K steps evenly, one behind the other. Members
that have the same place in their chains are at the same K step at the same time, as workgroups
with whole tiles are: so neighbours among the chains share operands in L2.
"""

from __future__ import annotations


def first_of(column: int, workgroups: int, tiles: int) -> int:
    """Which member of a chain has the first K steps of its tile in a column."""
    return column * workgroups // tiles


def columns_of(member: int, workgroups: int, tiles: int) -> range:
    """The columns in whose tiles a member of a chain has a share, though it may have no K step."""
    return range(member * tiles // workgroups, -(-(member + 1) * tiles // workgroups))


def shares(workgroups: int, tiles: int) -> int:
    """Workgroups that have a share of each tile; 0 where that differs from column to column."""
    counts = {
        -(-(column + 1) * workgroups // tiles) - first_of(column, workgroups, tiles)
        for column in range(tiles)
    }
    return counts.pop() if len(counts) == 1 else 0


def whole_tiles(tiles: int, compute_units: int) -> int:
    """Tiles of the rounds that are full, which are not split."""
    return tiles - tiles % compute_units


def chains(rest: int, tiles: int) -> int:
    """Chains of the tiles that are left; the last columns may lack a tile in some."""
    return -(-rest // tiles)
