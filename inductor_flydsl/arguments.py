"""What a launch passes to a kernel: its integers, how many workgroups it has, and its pointers.

Knows nothing of devices and of how arguments are laid out, which is `signature`'s business.
"""

from __future__ import annotations

from . import stream
from .arch import GFX950
from .config import GemmConfig, KernelSpec, start
from .division import divider
from .grouping import Axis
from .problem import TENSOR_STRIDES, GemmProblem
from .signature import HEADS, OUTER, SCALE_STRIDES, SCALES, TENSORS, TURNS


def launch_arguments(
    problem: GemmProblem, config: GemmConfig, compute_units: int = GFX950.compute_units
) -> dict[str, int]:
    """The integers a kernel takes, by the names of `signature.LONGS` and `INTEGERS`.

    ``grid`` is the number of workgroups of one batch, of stream-K of all; those not named here are
    zero.

    Args:
        problem, config: what is launched.
        compute_units: of the device.
    """
    p = problem
    values = {name: getattr(p, name) for name in ("m", "n", "k", "lda", "ldb", "ldc")}
    values |= {name: getattr(p, name) for name in ("a_inner", "b_inner", "batch")}
    values |= {name: getattr(p, name) for name in ("a_batch", "b_batch", "c_batch")}
    values |= {"grid": _grid(p, config, compute_units), "k_split": config.split_extent(p)}
    values["whole"] = config.whole(p, compute_units)
    if p.grouping is not None:
        values["groups"] = p.grouping.groups
    else:
        values |= turns(config, *config.tiles(p))
    for index, strides in enumerate(p.tensors):
        for axis, stride in zip(TENSOR_STRIDES, strides, strict=True):
            values[f"t{index}_{axis}"] = stride
    if p.heads:
        values |= _divisor(HEADS, p.heads)
        values |= zip((f"{name}_outer" for name in OUTER), p.outer, strict=False)
    for name, scales in (("a", p.a_scales), ("b", p.b_scales)):
        if scales is not None:
            values |= {f"{name}_scale_{of}": getattr(scales, of) for of in SCALE_STRIDES}
    return values


def turns(config: GemmConfig, tiles_m: int, tiles_n: int) -> dict[str, int]:
    """Divisors by which a workgroup finds its tile, by the names of `signature.INTEGERS`.

    ``tiles`` are those of C, ``turn`` those that run before the next rows of tiles do, and
    ``rest`` the rows of the last turn.
    """
    rows = max(1, config.group_m)
    values: dict[str, int] = {}
    divisors = (tiles_m * tiles_n, rows * tiles_n, tiles_m % rows or rows)
    for name, divisor in zip(TURNS, divisors, strict=True):
        values |= _divisor(name, divisor)
    return values


def _divisor(name: str, value: int) -> dict[str, int]:
    multiplier, shift = divider(value)
    return {name: value, f"{name}_multiplier": multiplier, f"{name}_shift": shift}


def _grid(problem: GemmProblem, config: GemmConfig, compute_units: int) -> int:
    if problem.grouping is None:
        tiles_m, tiles_n = config.tiles(problem)
        if not config.stream_k:
            return tiles_m * tiles_n * config.split_k
        whole = config.whole(problem, compute_units)
        rest = tiles_m * tiles_n * problem.batch - whole
        return whole + config.split_k * stream.chains(rest, config.stream_k)
    most = max_tiles(problem, config)
    if not config.persistent:
        return most
    # Not rounded to whole compute units: fewer workgroups than tiles would make some take two,
    # and those without a tile leave at once.
    return min(most, config.persistent * compute_units)


def max_tiles(problem: GemmProblem, config: GemmConfig) -> int:
    """Tiles that a grouped problem may have, wherever its groups end.

    Every group but an empty one may end in a partial tile, and begin in one where tiles begin at
    whole chunks (`start`).
    """
    assert problem.grouping is not None
    tiles_m, tiles_n = config.tiles(problem)
    axis, groups = problem.grouping.axis, problem.grouping.groups
    if axis is Axis.K:
        return tiles_m * tiles_n * groups
    extent, tile, others = (
        (problem.m, config.tile_m, tiles_n)
        if axis is Axis.M
        else (problem.n, config.tile_n, tiles_m)
    )
    live = min(groups, extent)
    before = start(KernelSpec.of(problem, config)) - 1
    return (live + (extent + live * before - live) // tile) * others


def extra_pointers(problem: GemmProblem) -> tuple[str, ...]:
    """Names, of `signature.POINTERS`, of what a kernel is called with after C, A and B."""
    offsets = ("offsets",) if problem.grouping is not None else ()
    scales = SCALES if problem.block_scaled else ()
    return offsets + scales + TENSORS[: len(problem.tensors)]
