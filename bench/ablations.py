"""What techniques gain on the emulated clock, beside what was published of them.

`python -m bench.ablations [--quick] [--check] [--json FILE]`. Each row compares two kernels of ours
that differ in one technique, on one problem, under the clock `emulated`; it hits where the gain has
the published sign and its logarithm is within a third of the published one. Published gains were
measured on MI355X with other kernels; bf16 stands for fp8, whose matrix clocks and bytes a K step
of 128 are those of bf16 with 64. Rows that our kernels can't express are listed with the reason.
Below, emulated times of whole launches beside published times of like kernels.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .output import exit_with, writable

SHARE = 1 / 3
"""Of the published log-ratio that ours may be off."""
BLOG = "AMD blog, CDNA4 GEMM kernels, fp8 4096³"
HIPKITTENS = "HipKittens paper and repository, bf16"
FLYDSL = "AMD blog, low-latency GEMMs with FlyDSL, bf16"
NOT_EXPRESSED = {
    "multi-stage LDS ring (1.10-2.35x)": "every pipeline has two stages or more, several waves",
    "direct-to-LDS loads (1.50x)": "no pipeline stages vectors through registers",
    "16x16 MFMA, not 32x32 (1.22x)": "every pipeline uses 16x16",
    "accumulators pinned to AGPRs (1.08-1.10x)": "the rolled kernel alone has them there",
    "XOR swizzle (0.98x, 1.10x)": "LDS tiles are always swizzled",
    "16 waves, not 8, 256x256 (0.97x)": "128 registers a wave are too few for our fragments",
    "scales by async DMA (1.02x)": "needs a scaled pipeline with both forms",
    "4-wave interleave (1.03x)": "the rolled kernel has it, for MXFP4; published of FP8",
    "no wave specialisation (1.80x)": "no pipeline is specialised",
}


@dataclass(frozen=True)
class Row:
    """One technique: time before over time after, published and ours."""

    technique: str
    problem: str
    published: float
    ours: float
    source: str
    note: str = ""

    @property
    def hit(self) -> bool:
        """Whether ours has the sign of the published gain and about its size."""
        want, got = math.log(self.published), math.log(self.ours)
        return want * got > 0 and abs(got - want) <= SHARE * abs(want)


@dataclass(frozen=True)
class Launch:
    """One launch, µs: published, of the kernel that `source` names, and ours on the clock."""

    problem: str
    kernel: str
    published_us: float
    ours_us: float
    source: str

    @property
    def ratio(self) -> float:
        """Published over emulated time; 1 where the clock agrees."""
        return self.published_us / self.ours_us


@functools.cache
def run(shape: tuple[int, int, int], config: Any) -> Any:
    """The emulator's RunResult of one timed launch, bf16, B transposed."""
    from inductor_flydsl.compiler import compile_spec
    from inductor_flydsl.config import KernelSpec
    from inductor_flydsl.devices import get_device
    from inductor_flydsl.problem import GemmProblem
    from inductor_flydsl.samples import operands

    problem = GemmProblem.dense(*shape, layout="NT")
    device = get_device("emulator")
    artifact = compile_spec(KernelSpec.of(problem, config), "gfx950", "emulator")
    tensors = operands(problem)
    kernel = device.load(artifact, problem, config)
    device.time(lambda: kernel(*tensors))
    return device.last_run


def staged(tile_m: int, tile_n: int, waves: tuple[int, int]) -> Any:
    """A two-stage kernel with K steps of 64."""
    from inductor_flydsl.config import GemmConfig

    return GemmConfig(
        tile_m=tile_m, tile_n=tile_n, tile_k=64, stages=2, waves_m=waves[0], waves_n=waves[1],
        group_m=8, xcd_remap=True,
    )  # fmt: skip


def interleaved() -> Any:
    """The half-tile interleaved kernel of 256x256, 8 waves."""
    return replace(staged(256, 256, (2, 4)), pipeline="hti")


def gain(shape: tuple[int, int, int], before: Any, after: Any) -> float:
    """Emulated time of `before` over that of `after`."""
    return run(shape, before).time_us / run(shape, after).time_us


def tiles(k: int) -> list[Row]:
    """Tiles, and the order of clusters in a workgroup."""
    shape = (4096, 4096, k)
    name = "x".join(map(str, shape))
    large, small = staged(256, 256, (2, 4)), staged(128, 128, (2, 4))
    pingpong = interleaved()
    registers = [run(shape, config).resources for config in (large, pingpong)]
    fewer = (registers[0].vgpr + registers[0].agpr) / (registers[1].vgpr + registers[1].agpr)
    return [
        Row("256x256 tile, not 128x128, 8 waves", name, 2288 / 1829, gain(shape, small, large),
            BLOG),
        Row("8-wave ping-pong", name, 2680 / 2288, gain(shape, large, pingpong), BLOG),
        Row("half-tile interleave: registers", name, 448 / 384, fewer, "gfx950 gluon tutorials"),
    ]  # fmt: skip


def order(extent: int, k: int) -> Row:
    """Workgroup order: row by row against groups of rows, each XCD a contiguous run."""
    shape = (extent, extent, k)
    plain = replace(interleaved(), group_m=0, xcd_remap=False)
    return Row(
        "XCD remap + group-M", "x".join(map(str, shape)), 1068 / 900,
        gain(shape, plain, interleaved()), HIPKITTENS,
        "the Infinity Cache's rate is that of the published slower time; ours has more to lose, as "
        "the faster one is 1068 TFLOP/s, of a kernel of 192x256 tiles",
    )  # fmt: skip


# M, N, K → AITER's FlyDSL split-K kernel and the best of hipBLASLt, AITER Triton and asm, µs.
LOW_LATENCY = {
    (16, 384, 7168): (6.3, 9.7), (16, 1024, 7168): (7.3, 12.1), (64, 512, 7168): (7.8, 11.9),
    (64, 2112, 7168): (14.6, 17.9), (32, 640, 2880): (5.7, 9.2), (16, 2880, 4096): (8.0, 9.0),
}  # fmt: skip


def best_of(shape: tuple[int, int, int], splits: Sequence[int]) -> tuple[float, str]:
    """µs and name of the best kernel with small tiles, K split in one of `splits`."""
    from inductor_flydsl.arch import GFX950
    from inductor_flydsl.config import GemmConfig
    from inductor_flydsl.problem import GemmProblem
    from inductor_flydsl.space import why_not

    rows = 16 if shape[0] <= 32 else 64
    found = []
    for tile_n, split in ((n, k) for n in (32, 64) for k in splits):
        config = GemmConfig(
            tile_m=rows, tile_n=tile_n, tile_k=128 if rows == 16 else 64, stages=4,
            waves_m=1, waves_n=2, split_k=split,
        )  # fmt: skip
        if not why_not(GemmProblem.dense(*shape, layout="NT"), config, GFX950):
            found.append((run(shape, config).time_us, config.name))
    return min(found)


def split_k(shapes: Sequence[tuple[int, int, int]]) -> Row:
    """The best split of K against the best kernel without."""
    published = ours = 0.0
    for shape in shapes:
        ours += math.log(best_of(shape, (1,))[0] / best_of(shape, (2, 4, 8))[0])
        split, other = LOW_LATENCY[shape]
        published += math.log(other / split)
    published, ours = (math.exp(total / len(shapes)) for total in (published, ours))
    return Row(
        "split-K at small M", f"{len(shapes)} shapes, geometric mean", published, ours, FLYDSL,
        "published against other libraries' kernels, which may split K too",
    )  # fmt: skip


# Published µs of 256x256 8-wave ping-pong kernels, bf16 NT.
LARGE = {
    (4096, 4096, 4096): (97.3, HIPKITTENS),
    (4096, 4096, 8192): (184.3, "PyTorch PR 190903, FlyDSL"),
    (8192, 8192, 8192): (713.6, "PyTorch PR 190903, FlyDSL"),
}  # fmt: skip


def launches(quick: bool) -> list[Launch]:
    """Whole launches; quick: one large one and two small ones."""
    found = []
    for shape, (us, source) in list(LARGE.items())[: 1 if quick else None]:
        name = "x".join(map(str, shape))
        ours = run(shape, interleaved())
        found.append(Launch(name, interleaved().name, us, ours.time_us, source))
    for shape, (us, _) in list(LOW_LATENCY.items())[: 2 if quick else None]:
        ours_us, kernel = best_of(shape, (1, 2, 4, 8))
        found.append(Launch("x".join(map(str, shape)), kernel, us, ours_us, FLYDSL))
    return found


def rows(quick: bool) -> list[Row]:
    """All rows; quick: shorter K, a smaller grid and two split-K shapes."""
    shapes = list(LOW_LATENCY)[: 2 if quick else None]
    wide = order(7424, 1024) if quick else order(14592, 6144)
    return [*tiles(2048 if quick else 4096), wide, split_k(shapes)]


def report(found: Sequence[Row], whole: Sequence[Launch]) -> None:
    """The tables on stdout."""
    print("clock: emulated (gfx950). Gains: time without the technique over time with it.")
    for row in found:
        verdict = "hit" if row.hit else "MISSED"
        print(f"{row.technique:36} {row.problem:28} published {row.published:5.2f}  "
              f"ours {row.ours:5.2f}  {verdict}  [{row.source}]")  # fmt: skip
        if row.note:
            print(f"{'':36} {row.note}")
    for technique, reason in NOT_EXPRESSED.items():
        print(f"{technique:43} not expressed: {reason}")
    print(f"{sum(row.hit for row in found)} of {len(found)} hit")
    for launch in whole:
        print(f"{launch.problem:16} {launch.kernel:36} published {launch.published_us:6.1f} us  "
              f"ours {launch.ours_us:6.1f}  ratio {launch.ratio:4.2f}  "
              f"[{launch.source}]")  # fmt: skip
    middle = statistics.median(launch.ratio for launch in whole)
    print(f"published over emulated time, median of {len(whole)} launches: {middle:.2f}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table; --check fails where a row is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.ablations", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller problems")
    parser.add_argument("--check", action="store_true", help="exit 1 where a row is missed")
    parser.add_argument("--json", type=writable, metavar="FILE", help="the rows as JSON")
    options = parser.parse_args(arguments)
    found = rows(options.quick)
    whole = launches(options.quick)
    report(found, whole)
    if options.json:
        data = {
            "clock": "emulated",
            "rows": [asdict(row) | {"hit": row.hit} for row in found],
            "not_expressed": NOT_EXPRESSED,
            "launches": [asdict(launch) | {"ratio": launch.ratio} for launch in whole],
        }
        Path(options.json).write_text(json.dumps(data, indent=1, ensure_ascii=False))
    missed = [row.technique for row in found if not row.hit]
    if options.check and missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    exit_with(main)
