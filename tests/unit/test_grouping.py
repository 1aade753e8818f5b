"""Groups of a ragged extent: their form, and the splits that kernels are tuned on."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from inductor_flydsl import model
from inductor_flydsl.arch import GFX950
from inductor_flydsl.arguments import launch_arguments, max_tiles
from inductor_flydsl.config import GemmConfig, KernelSpec, start
from inductor_flydsl.errors import ProblemError
from inductor_flydsl.explanation import explain
from inductor_flydsl.grouping import Axis, Grouping, Split, offsets, pieces, sizes
from inductor_flydsl.inductor.decisions import Decision
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.space import candidates, problem_limit, why_not

CONFIG = GemmConfig(tile_m=64, tile_n=32, tile_k=64, stages=2, waves_m=2, waves_n=1)


@pytest.mark.parametrize("split", Split)
@pytest.mark.parametrize(("total", "groups"), [(4096, 8), (5, 8), (1, 1), (100, 3), (300, 128)])
def test_sizes_add_up(total: int, groups: int, split: Split) -> None:
    made = sizes(total, groups, split)
    assert len(made) == groups and min(made) >= 0 and sum(made) == total
    assert offsets(total, groups, split)[-1] == total


def test_splits_are_what_they_are_called() -> None:
    assert sizes(4096, 8, Split.BALANCED) == [512] * 8
    skewed, sparse = (sorted(sizes(4096, 8, s), reverse=True) for s in (Split.SKEWED, Split.SPARSE))
    assert skewed[0] > 7 * skewed[-1] > 0
    assert sparse[3] > 0 and sparse[4:] == [0] * 4


def test_json_round_trip_and_earlier_records() -> None:
    plain = GemmProblem.dense(64, 64, 64)
    assert "grouping" not in plain.to_json()
    for text in ("m8", "n3", "k128"):
        problem = GemmProblem.dense(64, 48, 32, groups=text)
        assert problem.to_json()["grouping"] == Grouping.parse(text).to_json()
        assert GemmProblem.from_json(problem.to_json()) == problem
        assert GemmProblem.parse(f"64,48,32,bf16,NT,{text}") == problem
        assert str(problem).endswith(text)
        spec = KernelSpec.of(problem, CONFIG)
        assert KernelSpec.from_json(spec.to_json()) == spec
    assert GemmProblem.parse("64,48,32,m8") == GemmProblem.dense(64, 48, 32, groups="m8")


def test_problems_with_scales() -> None:
    """A matrix a group has scales a group; of one that is cut, swizzled ones are padded a group."""
    for text in ("m8", "k8"):
        problem = GemmProblem.parse(f"256,96,512,mxfp8,nt,{text}")
        assert problem.op == "scaled_grouped_mm" and problem_limit(problem, GFX950) is None
        assert GemmProblem.from_json(problem.to_json()) == problem
        assert ("batch" in problem.to_json()["b_scales"]) == (text == "m8")
    rows, sums = (
        GemmProblem.dense(256, 96, 512, dtype="mxfp8", groups=g, scales="swizzled")
        for g in ("m8", "k8")
    )
    # 16 blocks of K are 4 tiles of 512 bytes for each 128 rows.
    assert rows.b_scales and rows.b_scales.batch == 4 * 512
    assert rows.scale_bytes("a") == (2 + 8) * 4 * 512 and rows.scale_bytes("b") == 8 * 4 * 512
    assert sums.scale_bytes("a") == 2 * (4 + 8) * 512 and sums.scale_bytes("b") == (4 + 8) * 512
    columns = GemmProblem.dense(64, 96, 512, dtype="mxfp8", groups="n8", scales="swizzled")
    assert "swizzled" in (problem_limit(columns, GFX950) or "")


@pytest.mark.parametrize(("text", "early"), [
    ("64,64,64,bf16,TN,m8", 8), ("64,64,64,bf16,NT,m8", 1), ("64,64,64,bf16,NT,n8", 8),
    ("64,64,64,bf16,NT,k8", 8), ("64,64,64,bf16,TN,k8", 1), ("64,64,64,fp8,NT,k8", 16),
    ("64,64,512,mxfp8,NT,k8", 128), ("64,64,96,mxfp8,NT,k8", 1), ("64,64,512,mxfp4,TN,m8", 16),
])  # fmt: skip
def test_where_groups_begin(text: str, early: int) -> None:
    assert start(KernelSpec.of(GemmProblem.parse(text), CONFIG)) == early


@pytest.mark.parametrize("text", ["m", "8", "x8", "m-1", "m0", "mm8"])
def test_parse_says_what_is_wrong(text: str) -> None:
    with pytest.raises(ProblemError, match="groups"):
        Grouping.parse(text)


def test_from_json_says_what_is_wrong() -> None:
    data = GemmProblem.dense(64, 48, 32, groups="m8").to_json()
    for bad in ({"axis": "q", "groups": 8}, {"axis": "m"}, {"axis": "m", "groups": 0}):
        with pytest.raises(ProblemError):
            GemmProblem.from_json(data | {"grouping": bad})


@pytest.mark.parametrize(
    ("text", "copies", "steps"),
    [("m4", (1, 1, 4), (0, 0, 48 * 32)), ("n4", (1, 4, 1), (0, 64 * 32, 0)),
     ("k4", (4, 1, 1), (64 * 48, 0, 0))],
)  # fmt: skip
def test_what_a_group_has_for_itself(text, copies, steps) -> None:
    problem = GemmProblem.dense(64, 48, 32, groups=text)
    assert problem.copies == copies
    assert (problem.c_batch, problem.a_batch, problem.b_batch) == steps
    assert problem.flops == GemmProblem.dense(64, 48, 32).flops


def test_groups_and_batches_exclude_each_other() -> None:
    data = GemmProblem.dense(64, 48, 32, groups="m8").to_json()
    with pytest.raises(ProblemError, match="batch"):
        GemmProblem.from_json(data | {"batch": 2})


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("axis", Axis)
def test_no_split_has_more_tiles_than_are_launched(axis: Axis, layout: str) -> None:
    rng = random.Random(0)
    for _ in range(50):
        groups = rng.choice((1, 2, 5, 17))
        extents = {name: rng.randint(1, 300) for name in "mnk"}
        problem = GemmProblem.dense(**extents, layout=layout, groups=f"{axis.value}{groups}")
        total = extents[axis.value]
        cuts = sorted(rng.randint(0, total) for _ in range(groups))
        assert _tiles(problem, cuts) <= max_tiles(problem, CONFIG)


def _tiles(problem: GemmProblem, ends: list[int]) -> int:
    """Tiles of given groups, those of M and N from a multiple of 8 on where that may be."""
    across = {"m": -(-problem.m // CONFIG.tile_m), "n": -(-problem.n // CONFIG.tile_n)}
    axis = problem.grouping.axis
    if axis is Axis.K:
        return len(ends) * across["m"] * across["n"]
    tile = CONFIG.tile_m if axis is Axis.M else CONFIG.tile_n
    strided = (problem.layout.value[0] == "T") if axis is Axis.M else problem.layout.value[1] == "N"
    along = 0
    for first, end in zip([0, *ends], ends, strict=False):
        begin = first // 8 * 8 if strided else first
        along += -(-(end - begin) // tile) if end > first else 0
    return along * across["n" if axis is Axis.M else "m"]


def test_grid_of_persistent_workgroups() -> None:
    problem = GemmProblem.dense(4096, 4096, 64, groups="m8")
    persistent = GemmConfig(**{**CONFIG.to_json(), "persistent": 2})
    assert launch_arguments(problem, persistent)["grid"] == 512
    assert launch_arguments(problem, persistent, 80)["grid"] == 160
    assert launch_arguments(problem, CONFIG)["grid"] == max_tiles(problem, CONFIG)
    # Up to 71 tiles of rows times 4 of columns.
    few = GemmProblem.dense(4096, 128, 64, groups="m8")
    assert launch_arguments(few, persistent)["grid"] == max_tiles(few, persistent) == 284
    small = GemmProblem.dense(8, 32, 64, groups="m8")
    assert launch_arguments(small, persistent)["grid"] == 8


def test_limits() -> None:
    dense, grouped = (GemmProblem.dense(64, 64, 64, **g) for g in ({}, {"groups": "m8"}))
    persistent = GemmConfig(**{**CONFIG.to_json(), "persistent": 1})
    assert "persistent" in (why_not(dense, persistent, GFX950) or "")
    assert why_not(grouped, persistent, GFX950) is None
    assert "split" in (why_not(grouped, GemmConfig(**{**CONFIG.to_json(), "split_k": 2}), GFX950))
    many = GemmProblem.dense(64, 64, 64, groups="m1025")
    assert "1024" in (problem_limit(many, GFX950) or "")
    found = candidates(grouped, GFX950)
    assert {c.persistent for c in found} == {1, 2, 4} and {c.split_k for c in found} == {1}


def test_the_model_prices_what_the_splits_need() -> None:
    """A tile that a group leaves mostly empty costs a whole one, and so do groups of one size."""
    config = GemmConfig(
        tile_m=128, tile_n=128, tile_k=64, stages=2, waves_m=2, waves_n=2, persistent=1
    )
    full, over = (GemmProblem.dense(m, 4096, 4096, groups="m8") for m in (8 * 1024, 8 * 1025))
    fits, exceeds = (model.predict(p, config, GFX950) for p in (full, over))
    assert exceeds.us > 1.03 * fits.us
    dense = model.predict(
        GemmProblem.dense(8192, 4096, 4096), replace(config, persistent=0), GFX950
    )
    assert fits.us > dense.us
    assert sum(fits.parts.values()) > 0 and fits.bound == max(fits.parts, key=fits.parts.get)
    assert pieces(8, 4, Split.SPARSE, 2) == (2, 5)


@pytest.mark.parametrize("last", ["m-4", "q4", "m0"])
def test_what_looks_like_groups_is_told_how_they_are_written(last: str) -> None:
    with pytest.raises(ProblemError, match="^groups="):
        GemmProblem.parse(f"64,128,256,bf16,{last}")
    assert GemmProblem.parse("64,128,256,f16").dtype.value == "float16"


def test_words_of_layouts_that_differ_and_of_an_explanation() -> None:
    plain = GemmProblem.dense(64, 128, 256, dtype="mxfp8")
    swizzled = GemmProblem.dense(64, 128, 256, dtype="mxfp8", scales="swizzled")
    assert "mx plain ->" in str(plain)
    assert "mx swizzled x plain" in str(replace(plain, a_scales=swizzled.a_scales))
    assert "mx plain x swizzled" in str(replace(plain, b_scales=swizzled.b_scales))
    batched = explain(GemmProblem.dense(64, 128, 256, batch=4, dtype="mxfp8"))
    assert "scaled_grouped_mm" in batched.notes[-1]
    assert len(str(batched)) < 250 and "(model)" in str(batched)


def test_a_decision_names_the_extent_that_groups_share() -> None:
    for axis in "mnk":
        problem = GemmProblem.dense(64, 64, 64, groups=f"{axis}4")
        made = Decision(
            op="grouped_mm",
            shapes="",
            chosen="FLYDSL",
            reason="",
            problem=problem,
            dynamic=(axis, "lda"),
        )
        assert f"({axis.upper()} dynamic, tuned at 64)" in made.subject
