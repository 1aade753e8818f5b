from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from inductor_flydsl.arguments import launch_arguments
from inductor_flydsl.config import GemmConfig, KernelSpec, load_kind, store_width
from inductor_flydsl.errors import ConfigError
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.variants import every_config

CONFIG = GemmConfig(tile_m=128, tile_n=64, tile_k=32, stages=3, waves_m=2, waves_n=2)


def test_json_round_trip_and_unique_names() -> None:
    configs = every_config()
    assert [GemmConfig.from_json(c.to_json()) for c in configs] == configs
    assert len({c.name for c in configs}) == len(set(configs)) == len(configs)


def test_derived_values() -> None:
    assert (CONFIG.waves, CONFIG.threads, CONFIG.accumulators) == (4, 256, 32)
    assert (
        KernelSpec.of(GemmProblem.dense(128, 64, 32), CONFIG).ring_bytes == 3 * (128 + 64) * 32 * 2
    )
    assert CONFIG.tiles(GemmProblem.dense(129, 64, 8)) == (2, 1)


@pytest.mark.parametrize(
    "change",
    [{"tile_m": 0}, {"stages": 2.0}, {"waves_n": True}, {"group_m": -1}, {"pipeline": "x"}],
)
def test_refuses(change: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        GemmConfig.from_json(CONFIG.to_json() | change)


def test_from_json_refuses_unknown_and_missing_fields() -> None:
    with pytest.raises(ConfigError, match="tile_q"):
        GemmConfig.from_json(CONFIG.to_json() | {"tile_q": 1})
    with pytest.raises(ConfigError, match="stages"):
        GemmConfig.from_json({k: v for k, v in CONFIG.to_json().items() if k != "stages"})


@pytest.mark.parametrize(
    ("align", "inner", "kind"),
    [(16, 1, "dma16"), (8, 1, "dma4"), (4, 1, "dma4"), (2, 1, "gather"), (16, 2, "gather")],
)
def test_load_kind(align: int, inner: int, kind: str) -> None:
    assert load_kind(align, inner) == kind


def test_stores_never_cross_a_row_and_are_aligned() -> None:
    rng = random.Random(0)
    for _ in range(200):
        out = rng.choice(("bf16", "fp32"))
        problem = GemmProblem.dense(3, rng.randint(1, 300), 8, out_dtype=out)
        width = store_width(problem)
        size = problem.out_dtype.bytes
        assert width >= size and width % size == 0
        assert problem.n * size % width == 0
        assert width == size or width <= problem.c_align


def test_specs_are_shared_by_shapes_and_told_apart_by_kernels() -> None:
    one = GemmProblem.dense(128, 128, 256)
    spec = KernelSpec.of(one, CONFIG)
    assert KernelSpec.of(GemmProblem.dense(1000, 64, 4096), CONFIG) == spec
    others = [
        GemmProblem.dense(128, 128, 248),
        GemmProblem.dense(128, 128, 256, layout="NN"),
        GemmProblem.dense(128, 128, 256, dtype="fp16"),
        GemmProblem.dense(128, 128, 256, out_dtype="fp32"),
        GemmProblem.dense(128, 124, 256),
        replace(one, a_align=4),
        replace(one, b_inner=2),
    ]
    specs = [spec, *(KernelSpec.of(p, CONFIG) for p in others)]
    assert len(set(specs)) == len({s.name for s in specs}) == len({s.digest for s in specs}) == 8


def test_spec_round_trip_and_symbol() -> None:
    spec = KernelSpec.of(GemmProblem.dense(5, 6, 7), CONFIG)
    assert KernelSpec.from_json(spec.to_json()) == spec
    assert re.fullmatch(r"[A-Za-z_]\w*", spec.name)


def test_launch_arguments() -> None:
    problem = GemmProblem.dense(129, 65, 7, layout="TN")
    given = launch_arguments(problem, CONFIG)
    names = ("m", "n", "k", "lda", "ldb", "ldc")
    assert [given[name] for name in names] == [129, 65, 7, 129, 65, 65]
    assert (given["grid"], given["batch"], given["k_split"]) == (4, 1, CONFIG.tile_k)
    split = launch_arguments(problem, replace(CONFIG, split_k=3))
    assert (split["grid"], split["k_split"]) == (12, CONFIG.tile_k)
