"""Fit the cost model's constants: `python -m bench.fit_model [--quick] [--rounds N]`.

Prints `ModelConstants` fields to paste into ``inductor_flydsl/constants.py``; clock ``model``. Only
rows of the FITTED half are read (see `bench.published.Row.half`). The loss is a mean over the eight
cells of type and M band of the mean of: the log error of the best tile of the space; where
the winner's tile is known from FlyDSL's name, also that tile's log error and how far it is
predicted behind the third best tile. A pattern search: each constant is tried a step up and down
in turn, steps that fail are halved.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from dataclasses import dataclass, field, replace

from inductor_flydsl.arch import GFX950
from inductor_flydsl.constants import CONSTANTS, ModelConstants
from inductor_flydsl.model import CLOCK, Tile, estimate

from . import published
from .output import exit_with
from .published import Row

FREE = (
    "launch_us",
    "miss_ns",
    "workgroup_flight",
    "cu_flight",
    "barrier_clocks",
    "start_ns",
    "reduce_tb_s",
    "write_tb_s",
    "power",
    "overlap",
)
# Errors below this don't draw the fit: published times repeat no better.
NOISE = 0.05
# Weight of the tile's own error and of its place behind the third, against the best tile's error.
TILE_WEIGHT, PLACE_WEIGHT = 0.25, 1.0
# Tiles of a row that are kept between two looks at the whole space.
SHORT, SHORT_RANKED = 10, 6


@dataclass
class Case:
    """One row with the tiles that matter to it under the constants of the last `refresh`."""

    row: Row
    weight: float
    tiles: list[Tile]
    by_tile: dict[tuple[int, int, int], list[Tile]]
    short: list[Tile] = field(default_factory=list)
    rivals: list[Tile] = field(default_factory=list)
    winner: Tile | None = None

    def us(self, tile: Tile, constants: ModelConstants) -> float:
        return estimate(self.row.work, tile, GFX950, constants).us

    def refresh(self, constants: ModelConstants) -> None:
        """Keep the fastest tiles of the space, and of FlyDSL's kernel the best of each tile."""

        def us(tile: Tile) -> float:
            return self.us(tile, constants)

        self.short = sorted(self.tiles, key=us)[:SHORT]
        if self.by_tile and self.row.tile:
            best = {tile: min(found, key=us) for tile, found in self.by_tile.items()}
            self.winner = best.get(self.row.tile[:3])
            self.rivals = sorted(best.values(), key=us)[:SHORT_RANKED]

    def loss(self, constants: ModelConstants) -> float:
        found = min(self.us(tile, constants) for tile in self.short)
        loss = _smooth(math.log(self.row.us / found))
        if self.winner and self.row.tile:
            own = _smooth(math.log(self.row.us / self.us(self.row.tile, constants)))
            rivals = sorted(self.us(tile, constants) for tile in self.rivals)
            third = rivals[min(2, len(rivals) - 1)]
            behind = max(0.0, math.log(self.us(self.winner, constants) / third))
            loss = 0.5 * loss + TILE_WEIGHT * own + PLACE_WEIGHT * behind
        return self.weight * loss


def _smooth(error: float) -> float:
    return math.sqrt(error * error + NOISE * NOISE)


def cases(stride: int) -> list[Case]:
    """Every `stride`-th row of the fitted half, each cell of type and band with equal weight."""
    found = []
    for kind in published.KINDS:
        everything = published.rows(kind)
        tiles = published.flydsl_tiles(everything)
        rows = [row for row in everything if row.half == published.FITTED][::stride]
        count = Counter(row.band for row in rows)
        for row in rows:
            by_tile = {}
            if row.library == "flydsl":
                variants = {t: list(published.flydsl_variants(row.work, t)) for t in tiles}
                by_tile = {tile: listed for tile, listed in variants.items() if listed}
            usable = [t for t in published.space(kind) if published.usable(row.work, t)]
            weight = 1 / (count[row.band] * len(count) * len(published.KINDS))
            found.append(Case(row, weight, usable, by_tile))
    return found


def fit(found: list[Case], constants: ModelConstants, rounds: int) -> ModelConstants:
    """The pattern search."""

    def total(tried: ModelConstants) -> float:
        return sum(case.loss(tried) for case in found)

    def refresh() -> float:
        for case in found:
            case.refresh(constants)
        return total(constants)

    steps = dict.fromkeys(FREE, 0.2)
    best = refresh()
    for number in range(rounds):
        for name in FREE:
            for sign in (1, -1):
                value = getattr(constants, name) * math.exp(sign * steps[name])
                tried = replace(constants, **{name: value})
                if (loss := total(tried)) < best - 1e-6:
                    constants, best = tried, loss
                    steps[name] *= 1.3
                    break
            else:
                steps[name] /= 2
        best = refresh()
        print(f"# round {number + 1}: loss {best:.4f}", flush=True)
        if max(steps.values()) < 0.01:
            break
    return constants


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="every eighth row, two rounds")
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    found = cases(8 if arguments.quick else 1)
    print(f"# clock {CLOCK}; {len(found)} rows of the fitted half")
    constants = fit(found, CONSTANTS, 2 if arguments.quick else arguments.rounds)
    for name in FREE:
        print(f"{name}: float = {getattr(constants, name):.4g}")
    return 0


if __name__ == "__main__":
    exit_with(main)
