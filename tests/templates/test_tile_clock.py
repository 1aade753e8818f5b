"""How busy the emulated matrix units are in the main loop, by tile, beside MI355X measurements.

Measured utilisations, fp16 and K steps of 64: 69 % for 128x128 and 47 % for 128x64
(ROCm/gfx950-gluon-tutorials); there L2 is the limit, so any well-buffered kernel gets about that.
"""

import functools

import pytest

from inductor_flydsl.compiler import compile_spec
from inductor_flydsl.config import GemmConfig, KernelSpec
from inductor_flydsl.devices import get_device
from inductor_flydsl.devices.emulator import sampled_compute_units
from inductor_flydsl.grouping import Split
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.samples import operands


@functools.cache
def timed(tile, stages, waves, pipeline="staged"):
    """RunResult of 4096x4096x2048 on a config."""
    config = GemmConfig(
        pipeline=pipeline, tile_m=tile[0], tile_n=tile[1], tile_k=64, stages=stages,
        waves_m=waves[0], waves_n=waves[1], group_m=8, xcd_remap=True,
    )  # fmt: skip
    problem = GemmProblem.dense(4096, 4096, 2048, layout="NT")
    device = get_device("emulator")
    artifact = compile_spec(KernelSpec.of(problem, config), "gfx950", "emulator")
    kernel = device.load(artifact, problem, config)
    tensors = operands(problem)
    device.time(lambda: kernel(*tensors))
    return device.last_run


@pytest.mark.parametrize(
    ("tile", "stages", "measured"), [((128, 128), 2, 0.69), ((128, 64), 3, 0.47)]
)
def test_tiles_that_wait_for_memory(tile, stages, measured):
    stats = timed(tile, stages, (2, 2)).stats
    assert stats["mfma_utilisation_loop"] == pytest.approx(measured, abs=0.05)
    assert stats["bound"] in ("l2", "vmem latency")


def test_ping_pong_keeps_the_matrix_units_busy():
    plain, turns = timed((256, 256), 2, (2, 4)), timed((256, 256), 2, (2, 4), "hti")
    assert turns.stats["bound"] == "mfma"
    assert turns.stats["mfma_utilisation_loop"] > 0.88
    assert turns.time_us < plain.time_us


def test_a_busier_chip_has_a_slower_clock():
    ghz = [
        timed((128, 64), 3, (2, 2)).stats["frequency_ghz"],
        timed((256, 256), 2, (2, 4), "hti").stats["frequency_ghz"],
    ]
    assert 1.4 < ghz[1] < ghz[0] < 2.4


def test_workgroups_that_find_no_tile_cost_nothing():
    """Two a compute unit are launched, because groups might end in more tiles than they do."""
    times = {}
    for persistent in (1, 2):
        config = GemmConfig(
            tile_m=16, tile_n=32, tile_k=64, stages=3, waves_m=1, waves_n=1, persistent=persistent
        )
        problem = GemmProblem.dense(128, 1024, 1024, groups="m8")
        device = get_device("emulator")
        artifact = compile_spec(KernelSpec.of(problem, config), "gfx950", "emulator")
        tensors = operands(problem, split=Split.BALANCED)
        kernel = device.load(artifact, problem, config)
        times[persistent] = device.time(lambda k=kernel, t=tensors: k(*t)).us
        at_once = device.last_run.stats["workgroups_per_cu"]
        assert at_once == persistent  # 256 tiles, and room for 480.
    assert times[2] == pytest.approx(times[1], rel=0.1)


def test_all_workgroups_of_a_compute_unit_are_timed():
    assert sampled_compute_units(480, 256) == (0, 223, 256, 479)
    assert sampled_compute_units(512, 256) == (0, 255, 256, 511)
    assert sampled_compute_units(257, 256) == (0, 256)
