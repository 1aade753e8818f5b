from __future__ import annotations

import inspect
import math
import random
import re
from dataclasses import fields as dataclass_fields
from dataclasses import replace

import pytest

from bench.fit_model import FREE
from inductor_flydsl import constants, model, ranking, space
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


# Utilisation of the matrix unit by tile, in percent, of hand-interleaved fp16 loops with one
# workgroup a CU, 44 KiB in flight, operands in L2 and no limit to its bandwidth: what the published
# rule gives. Measured were 96, 83, 69 and 47: beside 256x128, where two resources are near each
# other, the rule is within 4 points.
@pytest.mark.parametrize(
    ("tile", "published"),
    [((256, 256), 100), ((256, 128), 94), ((128, 128), 70), ((128, 64), 47)],
)
def test_utilisation_of_the_k_loop(tile: tuple[int, int], published: int) -> None:
    warm = replace(
        constants.CONSTANTS, workgroup_flight=44 * 1024, cu_flight=44 * 1024, miss_ns=0.0
    )
    arch = replace(GFX950, l2_tb_s=1e3)
    waves = (2, 4) if tile == (256, 256) else (2, 2)
    kernel = model.Tile(*tile, 64, 8, *waves, interleaved=True)
    one = model._group(model.Workload(16384, 16384, 16384), kernel, arch, warm)
    found = model._round(one, 1, 256, arch, warm)
    loop_ns = found.ns(2.0, warm) - found.start_ns - max(found.store / 2.0, found.store_ns)
    assert abs(100 * found.matrix / (2.0 * loop_ns) - published) < 5


def test_large_tiles_win_large_problems() -> None:
    problem = GemmProblem.dense(8192, 8192, 8192)
    assert _us(problem, _config(256, 256)) < 0.8 * _us(problem, _config(64, 64))
    best = ranking.rank(problem, space.candidates(problem, GFX950), GFX950, 1)[0]
    assert best[0].tile_m * best[0].tile_n == 256 * 256
    # Best published on MI355X: 1.61 PFLOP/s; nothing may be predicted beyond it by much.
    assert 0.7 < problem.flops / best[1].us * 1e-9 / 1.61 < 1.1


def test_small_tiles_win_small_m() -> None:
    problem = GemmProblem.dense(16, 4096, 4096)
    assert _us(problem, _config(16, 64, waves_m=1)) < 0.8 * _us(problem, _config(256, 256))
    best = ranking.rank(problem, space.candidates(problem, GFX950), GFX950, 1)[0]
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


@pytest.mark.parametrize("bits", [16, 8, 4])
def test_the_clock_falls_with_utilisation(bits: int) -> None:
    plain = replace(constants.CONSTANTS, power=1.0)
    clocks = [model._clock_ghz(u / 20, bits, GFX950, plain) for u in range(21)]
    assert clocks == sorted(clocks, reverse=True)
    assert clocks[0] == GFX950.max_clock_ghz
    for utilisation, ghz in constants.POWER_CLOCK[bits]:
        assert model._clock_ghz(utilisation, bits, GFX950, plain) == pytest.approx(ghz)


def test_the_parts_add_up() -> None:
    rng = random.Random(5)
    for _ in range(200):
        m, n, k = (rng.choice((1, 16, 100, 777, 4096, 16384)) for _ in range(3))
        problem = GemmProblem.dense(m, n, k, dtype=rng.choice(("bf16", "fp16")))
        config = _config(
            *rng.choice(((256, 256), (64, 64), (128, 128))), split_k=rng.choice((1, 4))
        )
        found = model.predict(problem, config, GFX950)
        alone = max(found.compute, found.lds, found.l2, found.hbm)
        assert found.us == pytest.approx(alone + found.latency + found.tail + found.launch)
        # Not even all of the matrix unit at the highest clock, nor HBM alone, takes longer.
        peak = 2 * 4 * 512 * GFX950.compute_units * GFX950.max_clock_ghz * 1e3
        assert found.us > problem.flops / peak
        assert found.us > problem.bytes / GFX950.hbm_tb_s * 1e-6


@pytest.mark.parametrize("m", [1, 16, 64])
def test_split_k_pays_where_tiles_are_few_and_costs_where_they_are_many(m: int) -> None:
    few = GemmProblem.dense(m, 512, 8192)
    config = _config(16, 64, waves_m=1, stages=4)
    times = {s: _us(few, replace(config, split_k=s)) for s in (1, 4, 8)}
    assert times[1] > 1.5 * times[4] > 1.5 * times[8]
    many = GemmProblem.dense(4096, 4096, 512)
    assert _us(many, _config(64, 64, split_k=8)) > 1.2 * _us(many, _config(64, 64))


def test_narrower_elements_take_less_time_and_move_fewer_bytes() -> None:
    tile = model.Tile(256, 256, 256, 2, 2, 2, interleaved=True)
    found = {}
    for bits, tile_k in ((16, 64), (8, 128), (4, 256)):
        scale = 0.0 if bits == 16 else 0.25
        work = model.Workload(8192, 8192, 8192, bits, scale)
        found[bits] = model.estimate(work, tile._replace(tile_k=tile_k), GFX950)
    assert found[16].us > 1.5 * found[8].us > 1.5 * 1.4 * found[4].us
    assert found[16].hbm > found[8].hbm > found[4].hbm
    scaled = model.estimate(model.Workload(1, 65536, 8192, 4, 0.25), tile, GFX950)
    plain = model.estimate(model.Workload(1, 65536, 8192, 4, 0.0), tile, GFX950)
    assert scaled.hbm == pytest.approx(plain.hbm * 4.25 / 4, rel=0.01)


def test_a_batch_costs_as_much_as_a_problem_of_its_tiles() -> None:
    tile = model.Tile(128, 128, 64, 3, 2, 2)
    one = model.estimate(model.Workload(1024, 1024, 4096), tile, GFX950).us
    eight = model.estimate(model.Workload(1024, 1024, 4096, batch=8), tile, GFX950)
    joined = model.estimate(model.Workload(8192, 1024, 4096), tile, GFX950)
    assert 1.5 * one < eight.us
    assert eight.us == pytest.approx(joined.us, rel=0.1)


def test_an_interleaved_loop_is_no_slower() -> None:
    work = model.Workload(4096, 4096, 4096)
    tile = model.Tile(256, 256, 64, 2, 2, 4)
    plain, interleaved = (
        model.estimate(work, tile._replace(interleaved=flag), GFX950).us for flag in (False, True)
    )
    assert plain > 1.1 * interleaved


def test_every_constant_says_where_it_is_from() -> None:
    lines = inspect.getsource(constants.ModelConstants).splitlines()
    fields = [line for line in lines if ": float = " in line]
    assert len(fields) == len(dataclass_fields(constants.ModelConstants))
    fitted = [line for line in fields if "fitted" in line]
    assert all("fitted" in line or re.search(r"\[(ISA|GT|WP)\]", line) for line in fields)
    assert {line.split(":")[0].strip() for line in fitted} == set(FREE)
    assert len(fields) < 20


def test_rank_is_sorted_stable_and_varied() -> None:
    problem = GemmProblem.dense(1024, 1024, 1024)
    configs = space.candidates(problem, GFX950)
    everything = ranking.rank(problem, configs, GFX950)
    assert sorted(c.name for c, _ in everything) == sorted(c.name for c in configs)
    times = [p.us for _, p in everything]
    assert times == sorted(times)
    short = ranking.rank(problem, configs, GFX950, 12)
    assert len(short) == 12
    assert short[0] == everything[0]
    tiles = [(c.tile_m, c.tile_n, c.direct) for c, _ in short]
    assert max(tiles.count(t) for t in tiles) == 2
    assert 4 <= sum(not direct for *_, direct in tiles) < 12
    four = ranking.rank(problem, configs, GFX950, 4)
    assert len({(c.tile_m, c.tile_n, c.direct) for c, _ in four}) == 4
    few = configs[:5]
    assert len(ranking.rank(problem, few, GFX950, 12)) == 5
    same_tile = [c for c in configs if (c.tile_m, c.tile_n) == (64, 64)]
    assert len(ranking.rank(problem, same_tile, GFX950, 4)) == 4


# The fastest on the emulated clock of 30 to 45 configurations of each shape that were run there.
FASTEST = {
    (8, 4096, 4096): "direct_16x16x128_s4_w1x1x4",
    (16, 4096, 4096): "direct_16x16x128_s4_w1x1x4",
    (32, 4096, 4096): "direct_32x16x128_s4_w1x1x4",
    (64, 4096, 4096): "direct_32x32x128_s4_w1x1x4",
    (128, 4096, 4096): "direct_64x32x128_s4_w1x1x4",
    (256, 4096, 4096): "direct_64x64x128_s2_w1x1x4",
    (512, 4096, 4096): "direct_128x64x128_s2_w1x1x4",
    (32, 14336, 4096): "direct_16x64x128_s4_w1x1x4",
    (4096, 256, 4096): "direct_64x64x128_s2_w1x1x4_g8_xcd",
}


@pytest.mark.parametrize("shape", FASTEST)
def test_a_short_list_holds_what_the_emulated_clock_finds_fastest(
    shape: tuple[int, int, int],
) -> None:
    problem = GemmProblem.dense(*shape, layout="NT")
    short = ranking.rank(problem, space.candidates(problem, GFX950), GFX950, 12)
    assert FASTEST[shape] in [config.name for config, _ in short]


@pytest.mark.parametrize("m", [1, 16, 33, 64])
def test_a_short_list_spends_no_place_on_what_cannot_differ(m: int) -> None:
    problem = GemmProblem.dense(m, 4096, 4096, layout="NT")
    short = ranking.rank(problem, space.candidates(problem, GFX950), GFX950, 12)
    assert sum(config.split_k == 1 for config, _ in short) == 6
    assert all(config.tile_m < max(2 * m, 32) for config, _ in short)
    kernels = [(replace(c, stages=2, group_m=0, xcd_remap=False), round(p.us, 2)) for c, p in short]
    assert len(set(kernels)) == 12


def test_fewer_workgroups_fit_where_registers_or_lds_run_out() -> None:
    problem = GemmProblem.dense(4096, 4096, 4096)
    assert model.resident_workgroups(problem, _config(256, 256), GFX950) == 1
    # Two stages are 32 KiB, allocated as 26 granules of 1280 bytes: not five of them in 160 KiB.
    assert model.resident_workgroups(problem, _config(64, 64), GFX950) == 4
    assert model.resident_workgroups(problem, _config(64, 64, stages=4), GFX950) == 2
