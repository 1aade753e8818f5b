"""The calibration of the cost model: its data, its halves, its script."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bench import calibrate, fit_model, published
from inductor_flydsl.calibration import MODELLED
from inductor_flydsl.constants import CONSTANTS

ROOT = Path(__file__).parents[2]


def test_rows_are_whole_and_the_halves_are_even_and_apart() -> None:
    for kind, count in (("bf16", 1053), ("mxfp4", 760)):
        rows = published.rows(kind)
        assert len(rows) == count
        assert 0.45 < sum(row.half for row in rows) / count < 0.55
        halves = {row.shape: set() for row in rows}
        for row in rows:
            halves[row.shape].add(row.half)
        assert all(len(found) == 1 for found in halves.values())
        assert {row.band for row in rows} == set(published.BANDS)


def test_names_tell_tiles() -> None:
    name = "flydsl_gemm6_abf16_wbf16_bf16_t16x64x128_split_k8_block_m_warp1_block_n_warp2_"
    tile = published.parse_tile("bf16", name + "block_k_warp4_async_copyTrue", 8)
    assert tile is not None
    assert tile[:8] == (16, 64, 128, 6, 1, 2, 4, 8) and not tile.interleaved
    name = "opus_gemm_512x128x256x64_2x4_16x16x32_0x0x0_cA1cB17"
    tile = published.parse_tile("bf16", name, 0)
    assert tile is not None and (*tile[:3], *tile[4:6]) == (128, 256, 64, 2, 4)
    name = "_ZN5aiter39bf16gemm_fp32bf16_tn_96x64_splitk_cleanE"
    tile = published.parse_tile("bf16", name, 5)
    assert tile is not None and (*tile[:2], tile.split_k) == (96, 64, 5)
    name = "_ZN5aiter42f4gemm_bf16_per1x32Fp4_BpreShuffle_160x384E"
    tile = published.parse_tile("mxfp4", name, 0)
    assert tile is not None and tile[:3] == (160, 384, 256)
    assert published.parse_tile("bf16", "native", 0) is None


def test_every_flydsl_winner_is_among_the_variants_its_rules_allow() -> None:
    rows = published.rows("bf16")
    tiles = published.flydsl_tiles(rows)
    assert len(tiles) == 25
    for row in rows:
        if row.library == "flydsl" and row.tile:
            splits = {t.split_k for t in published.flydsl_variants(row.work, row.tile[:3])}
            assert row.tile.split_k in splits, row


def test_quantiles() -> None:
    assert calibrate.quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert calibrate.quantile([0.0, 10.0], 0.1) == pytest.approx(1.0)
    found = calibrate.summary([0.5, 1.0, 2.0])
    assert found["spread"] == pytest.approx(found["p90"] / found["p10"])


def test_a_larger_problem_done_sooner_dominates() -> None:
    rows = published.rows("bf16")
    slow = replace(rows[0], us=100.0)
    larger = slow.work._replace(n=slow.work.n * 2)
    assert calibrate.dominated(slow, [slow, replace(slow, work=larger, us=50.0)])
    assert not calibrate.dominated(slow, [slow, replace(slow, work=larger, us=95.0)])
    smaller = slow.work._replace(k=slow.work.k - 1)
    assert not calibrate.dominated(slow, [replace(slow, work=smaller, us=1.0)])


def test_a_fit_lowers_the_loss_of_spoilt_constants() -> None:
    cases = fit_model.cases(60)
    assert {case.row.half for case in cases} == {published.FITTED}
    spoilt = replace(CONSTANTS, launch_us=4.0)

    def loss(constants) -> float:
        for case in cases:
            case.refresh(constants)
        return sum(case.loss(constants) for case in cases)

    fitted = fit_model.fit(cases, spoilt, 1)
    assert loss(fitted) < 0.9 * loss(spoilt)
    assert fitted.launch_us < 4.0


def test_the_quick_script_prints_its_clock_and_writes_its_results(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = [sys.executable, "-m", "bench.calibrate", "--quick", "--json", str(file)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "clock: model" in done.stdout
    assert all(f"{low} to {high}" in done.stdout for low, high in MODELLED.values())
    found = json.loads(file.read_text())
    assert found["clock"] == "model" and found["quick"] is True
    for key in ("unknown_tile", "unknown_tile_without_dominated", "known_tile"):
        cells = {(cell["half"], cell["kind"], cell["band"]) for cell in found[key]}
        assert len(cells) == len(found[key]) == 16
        assert all(0.5 < cell["p50"] < 1.5 for cell in found[key])
        assert all(cell["p10"] <= cell["p50"] <= cell["p90"] for cell in found[key])
    for half in ("held out", "fitted"):
        top = found["ranking"][half]
        assert 0 < top["top1"] <= top["top3"] <= top["top5"] <= top["top10"] <= 1
    assert {row["kind"] for row in found["independent"]} == {"bf16", "mxfp8", "mxfp4"}
    assert isinstance(found["unmet"], list)
