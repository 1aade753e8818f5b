"""How stream-K shares tiles out: every K step of every tile once, by as many as it says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from inductor_flydsl import stream
from inductor_flydsl.arch import GFX950
from inductor_flydsl.arguments import launch_arguments
from inductor_flydsl.config import GemmConfig
from inductor_flydsl.errors import ConfigError
from inductor_flydsl.model import predict
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.ranking import rank
from inductor_flydsl.space import candidates, size_limit, why_not

CONFIG = GemmConfig(
    pipeline="hti", tile_m=256, tile_n=256, tile_k=64, stages=2, waves_m=2, waves_n=4, group_m=8,
    xcd_remap=True, split_k=4, stream_k=1,
)  # fmt: skip


@pytest.mark.parametrize(
    ("workgroups", "tiles", "expected"),
    [(4, 1, 4), (3, 2, 2), (5, 2, 3), (4, 3, 2), (7, 3, 3), (5, 4, 2), (5, 3, 0), (7, 4, 0)],
)
def test_members_with_a_share_of_each_tile(workgroups: int, tiles: int, expected: int) -> None:
    assert stream.shares(workgroups, tiles) == expected


@pytest.mark.parametrize(("workgroups", "tiles"), [(4, 1), (3, 2), (5, 2), (4, 3), (7, 3), (8, 7)])
def test_members_have_whole_k_steps_of_their_columns(workgroups: int, tiles: int) -> None:
    for steps in range(4 * workgroups):
        begins = [i * tiles * steps // workgroups for i in range(workgroups + 1)]
        for member in range(workgroups):
            own = stream.columns_of(member, workgroups, tiles)
            assert own[0] * steps <= begins[member] <= begins[member + 1] <= (own[-1] + 1) * steps
            assert 1 <= len(own) <= 2
    for column in range(tiles):
        having = [i for i in range(workgroups) if column in stream.columns_of(i, workgroups, tiles)]
        assert having[0] == stream.first_of(column, workgroups, tiles)
        assert len(having) == stream.shares(workgroups, tiles)


def test_grid_and_workspace() -> None:
    problem = GemmProblem.dense(4608, 4096, 4096)
    given = launch_arguments(problem, CONFIG)
    assert (given["whole"], given["grid"]) == (256, 256 + 32 * 4)
    assert CONFIG.workspace(problem) == (32 * 4 * 256 * 256 * 4, 32 * 8)
    chains = replace(CONFIG, split_k=3, stream_k=2)
    assert launch_arguments(problem, chains, 280)["whole"] == 280
    assert launch_arguments(problem, chains, 280)["grid"] == 280 + 4 * 3
    assert chains.workspace(problem, 280) == (8 * 2 * 256 * 256 * 4, 8 * 8)
    full = GemmProblem.dense(4096, 4096, 4096)
    assert launch_arguments(full, CONFIG)["grid"] == 256
    assert CONFIG.workspace(full) == (0, 0)
    batched = GemmProblem.dense(1024, 1024, 4096, batch=18)
    assert launch_arguments(batched, CONFIG)["grid"] == 256 + 32 * 4


def test_names_and_json() -> None:
    assert CONFIG.name.endswith("_k4_sk1")
    assert GemmConfig.from_json(CONFIG.to_json()) == CONFIG
    with pytest.raises(ConfigError, match="stream_k"):
        replace(CONFIG, stream_k=-1)


@pytest.mark.parametrize(
    ("m", "change", "words"),
    [
        (4096, {}, "no round is partial, 256 tiles fill 256 compute units"),
        (2048, {}, "no round is full"),
        (4608, {"split_k": 1}, "more workgroups than tiles"),
        (4608, {"split_k": 3, "stream_k": 3}, "more workgroups than tiles"),
        (4608, {"split_k": 5, "stream_k": 3}, "more workgroups than others"),
        (4608, {"split_k": 3, "stream_k": 2}, "two tiles in turn, 64 at most"),
        (4608, {"split_k": 128}, "exceeds the 64 K steps"),
    ],
)
def test_rules(m: int, change: dict[str, int], words: str) -> None:
    problem = GemmProblem.dense(m, 4096, 4096)
    assert words in (why_not(problem, replace(CONFIG, **change), GFX950) or "")


def test_a_kernel_is_launched_for_full_rounds_too() -> None:
    # With dynamic M, a launch may have no rest.
    assert size_limit(GemmProblem.dense(4096, 4096, 4096), CONFIG, GFX950) is None


def test_it_is_among_the_candidates_where_a_last_round_is_nearly_empty() -> None:
    problem = GemmProblem.dense(4608, 4096, 4096)
    found = rank(problem, candidates(problem, GFX950), GFX950, 12)
    assert found[0][0].stream_k
    even = GemmProblem.dense(4096, 4096, 4096)
    assert not any(config.stream_k for config in candidates(even, GFX950))


def test_the_model_prices_the_last_round_and_the_reduction() -> None:
    whole = replace(CONFIG, split_k=1, stream_k=0)
    full, over = (GemmProblem.dense(m, 4096, 4096) for m in (4096, 4608))
    one_round, two = (predict(problem, whole, GFX950).us for problem in (full, over))
    shared = predict(over, CONFIG, GFX950).us
    # A quarter of a round and some: 32 MiB of partial sums are written and read.
    assert one_round * 1.25 + 6 < shared < 0.85 * two
    # Where the round is nearly full, nothing is gained.
    busy = GemmProblem.dense(7936, 4096, 4096)
    assert predict(busy, replace(CONFIG, split_k=2), GFX950).us > predict(busy, whole, GFX950).us
