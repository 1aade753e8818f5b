"""Which candidates are worth compiling, and in what order.

Owns the short list: what the cost model finds fastest, varied where it can't be trusted to tell.
Prices nothing itself and runs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .arch import Arch
from .config import MFMA_M, GemmConfig
from .model import Prediction, predict
from .problem import GemmProblem

# A list of this many candidates a tile shape holds one more of each.
LIST_PER_TILE = 6
# Pipelines that are no variants of what others do with a tile.
APART = frozenset({"rolled", "direct"})
# Orders of tiles, or numbers of stages, count as one where they are predicted within this factor.
BLIND = 1.001


def rank(
    problem: GemmProblem, configs: Sequence[GemmConfig], arch: Arch, keep: int | None = None
) -> list[tuple[GemmConfig, Prediction]]:
    """Configurations with their predictions, the fastest first.

    Args:
        problem: the GEMM.
        configs: legal ones, in the order that decides ties.
        arch: the hardware.
        keep: how many to return; None is all. A short list holds few of one tile shape (one in
            up to 11, two in 12; as many again with K split, and of the direct pipeline) while
            others are left, because variants of a tile differ by less than the model errs.
    """
    ranked = [(config, predict(problem, config, arch)) for config in configs]
    ranked.sort(key=lambda pair: pair[1].us)
    if keep is None or keep >= len(ranked):
        return ranked
    chosen, spare = _varied(problem, ranked, max(1, keep // LIST_PER_TILE))
    listed = _both_kinds(_with_others(chosen + spare, keep), keep)
    return sorted(listed, key=lambda pair: pair[1].us)


_Ranked = list[tuple[GemmConfig, Prediction]]


def _varied(problem: GemmProblem, ranked: _Ranked, most: int) -> tuple[_Ranked, _Ranked]:
    """At most `most` of a tile shape, split or not, that differ in more than what the model is
    blind to, and none of tiles that are half empty; and the others."""
    chosen: _Ranked = []
    spare: _Ranked = []
    seen: dict[tuple[int, int, bool, bool, str], int] = {}
    kernels: dict[GemmConfig, float] = {}
    for config, prediction in ranked:
        apart = config.pipeline if config.pipeline in APART else ""
        kind = config.split_k > 1, config.stream_k > 0, apart
        tile = config.tile_m, config.tile_n, *kind
        kernel = replace(config, group_m=0, xcd_remap=False, stages=2)
        same = prediction.us <= kernels.get(kernel, 0.0) * BLIND
        kernels.setdefault(kernel, prediction.us)
        if same or _half_empty(problem, config) or seen.get(tile, 0) == most:
            spare.append((config, prediction))
            continue
        seen[tile] = seen.get(tile, 0) + 1
        chosen.append((config, prediction))
    return chosen, spare


def _half_empty(problem: GemmProblem, config: GemmConfig) -> bool:
    """Whether half of every tile lies past C, though there are smaller ones."""
    return any(
        tile > MFMA_M and tile >= 2 * extent
        for tile, extent in ((config.tile_m, problem.m), (config.tile_n, problem.n))
    )


def _with_others(ranked: _Ranked, keep: int) -> _Ranked:
    """The same with no more than two thirds of `keep` of the direct pipeline at the front: its
    constants and those of others are not of one source."""
    direct = [pair for pair in ranked if pair[0].direct][keep - keep // 3 :]
    late = {id(pair) for pair in direct}
    return [pair for pair in ranked if id(pair) not in late] + direct


def _both_kinds(ranked: _Ranked, keep: int) -> _Ranked:
    """The first `keep`, half of them at least with K in one piece, and a third at least split.

    Small launches gain or lose by the split what the model can't tell: with M up to 64 the
    emulated clock finds those in one piece up to 27 % faster than predicted, the split ones up
    to 31 % slower.
    """
    listed, later = ranked[:keep], ranked[keep:]
    for split, least in ((False, keep // 2), (True, keep // 3)):
        others = [pair for pair in listed if (pair[0].split_k > 1) != split]
        missing = least - (len(listed) - len(others))
        more = [pair for pair in later if (pair[0].split_k > 1) == split][: max(0, missing)]
        for pair in others[len(others) - len(more) :]:
            listed.remove(pair)
        listed += more
    return listed
