from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from inductor_flydsl import model, space
from inductor_flydsl.arch import GFX950
from inductor_flydsl.config import GemmConfig
from inductor_flydsl.problem import GemmProblem


def _config(tile_m: int, tile_n: int, **options: int) -> GemmConfig:
    waves = {"waves_m": 2, "waves_n": 4} if tile_m * tile_n >= 65536 else {"waves_m": 2}
    values = {"tile_k": 64, "stages": 2, "waves_n": 2, **waves, **options}
    return GemmConfig(tile_m=tile_m, tile_n=tile_n, **values)


def _us(problem: GemmProblem, config: GemmConfig) -> float:
    return model.predict(problem, config, GFX950).us


def test_every_legal_pair_has_a_finite_positive_time_and_parts() -> None:
    rng = random.Random(3)
    for _ in range(6):
        m, n, k = (rng.choice((1, 7, 16, 127, 1000, 4096, 16384)) for _ in range(3))
        layout = rng.choice(("NN", "NT", "TN", "TT"))
        problem = GemmProblem.dense(m, n, k, layout=layout)
        for config in space.candidates(problem, GFX950):
            found = model.predict(problem, config, GFX950)
            assert math.isfinite(found.us) and found.us > GFX950.launch_floor_us
            assert set(found.parts) == set(model.PARTS)
            assert all(math.isfinite(v) and v >= -1e-9 for v in found.parts.values())
            assert found.parts[found.bound] == max(found.parts.values())
            assert found.us >= found.compute + found.launch
            assert found.us >= max(found.l2, found.hbm)


@pytest.mark.parametrize("extent", ["m", "n", "k"])
def test_more_work_takes_no_less_time(extent: str) -> None:
    for config in (_config(256, 256), _config(128, 128), _config(64, 64)):
        times = []
        for size in (64, 256, 1024, 2048, 4096, 8192, 16384):
            sizes = {"m": 2048, "n": 2048, "k": 2048} | {extent: size}
            times.append(_us(GemmProblem.dense(**sizes), config))
        assert times == sorted(times)
        assert times[-1] > 2 * times[2]


# Published utilisation of the matrix unit by tile, T·44 KB rule (GFX950.md), in percent.
@pytest.mark.parametrize(
    ("tile", "published"), [((256, 256), 96), ((256, 128), 83), ((128, 128), 69), ((128, 64), 47)]
)
def test_utilisation_of_the_k_loop(tile: tuple[int, int], published: int) -> None:
    problem = GemmProblem.dense(16384, 16384, 16384)
    mfma, lds, mem, _ = model._step(problem, _config(*tile), 1)
    # The published rule has enough bytes in flight, which two stages of a small tile are not.
    mem = (tile[0] + tile[1]) * 128 * model.ROUND_TRIP_CLOCKS / model.IN_FLIGHT_BYTES
    found = 100 * mfma / model._soft_max((mfma, lds, mem, 0.0))
    assert abs(found - published) < 3


def test_large_tiles_win_large_problems() -> None:
    problem = GemmProblem.dense(8192, 8192, 8192)
    assert _us(problem, _config(256, 256)) < 0.8 * _us(problem, _config(64, 64))
    best = model.rank(problem, space.candidates(problem, GFX950), GFX950, 1)[0]
    assert best[0].tile_m * best[0].tile_n == 256 * 256
    # Best published on MI355X: 1.61 PFLOP/s; nothing may be predicted beyond it by much.
    assert 0.7 < problem.flops / best[1].us * 1e-9 / 1.61 < 1.1


def test_small_tiles_win_small_m() -> None:
    problem = GemmProblem.dense(16, 4096, 4096)
    assert _us(problem, _config(16, 64, waves_m=1)) < 0.8 * _us(problem, _config(256, 256))
    best = model.rank(problem, space.candidates(problem, GFX950), GFX950, 1)[0]
    assert best[0].tile_m <= 32


def test_deeper_rings_help_when_one_workgroup_waits_for_memory() -> None:
    problem = GemmProblem.dense(64, 4096, 8192)
    times = [_us(problem, _config(64, 64, stages=s)) for s in (2, 3, 4)]
    assert times[0] > times[1] >= times[2]


def test_operands_that_need_a_gather_cost_more() -> None:
    plain = GemmProblem.dense(4096, 4096, 4096)
    strided = replace(plain, a_inner=2, lda=8192)
    assert _us(strided, _config(128, 128)) > 1.2 * _us(plain, _config(128, 128))


def test_a_partial_last_round_shows_as_tail() -> None:
    config = _config(256, 256)
    whole = model.predict(GemmProblem.dense(4096, 4096, 4096), config, GFX950)
    over = model.predict(GemmProblem.dense(4097, 4096, 4096), config, GFX950)
    assert whole.tail == pytest.approx(0.0)
    assert over.tail > 0.5 * whole.compute
    assert over.us > 1.5 * whole.us


def test_the_clock_falls_with_utilisation() -> None:
    clocks = [model._clock_ghz(u / 20, GFX950) for u in range(21)]
    assert clocks == sorted(clocks, reverse=True)
    assert clocks[0] == GFX950.max_clock_ghz
    assert model._clock_ghz(0.97, GFX950) == pytest.approx(1.52)


def test_rank_is_sorted_stable_and_varied() -> None:
    problem = GemmProblem.dense(1024, 1024, 1024)
    configs = space.candidates(problem, GFX950)
    everything = model.rank(problem, configs, GFX950)
    assert sorted(c.name for c, _ in everything) == sorted(c.name for c in configs)
    times = [p.us for _, p in everything]
    assert times == sorted(times)
    short = model.rank(problem, configs, GFX950, 12)
    assert len(short) == 12
    assert short[0] == everything[0]
    tiles = [(c.tile_m, c.tile_n) for c, _ in short]
    assert max(tiles.count(t) for t in tiles) == 2
    four = model.rank(problem, configs, GFX950, 4)
    assert len({(c.tile_m, c.tile_n) for c, _ in four}) == 4
    few = configs[:5]
    assert len(model.rank(problem, few, GFX950, 12)) == 5
    same_tile = [c for c in configs if (c.tile_m, c.tile_n) == (64, 64)]
    assert len(model.rank(problem, same_tile, GFX950, 4)) == 4


def test_fewer_workgroups_fit_where_registers_or_lds_run_out() -> None:
    problem = GemmProblem.dense(4096, 4096, 4096)
    assert model.resident_workgroups(problem, _config(256, 256), GFX950) == 1
    # Two stages are 32 KiB, allocated as 26 granules of 1280 bytes: not five of them in 160 KiB.
    assert model.resident_workgroups(problem, _config(64, 64), GFX950) == 4
    assert model.resident_workgroups(problem, _config(64, 64, stages=4), GFX950) == 2
