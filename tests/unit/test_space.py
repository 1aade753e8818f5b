from __future__ import annotations

import random
from dataclasses import replace

import pytest

from inductor_flydsl import space, variants
from inductor_flydsl.arch import GFX950
from inductor_flydsl.config import GemmConfig, KernelSpec
from inductor_flydsl.fusion import Fusion, Node
from inductor_flydsl.grouping import Axis, Grouping
from inductor_flydsl.problem import DType, GemmProblem

CONFIG = GemmConfig(tile_m=128, tile_n=128, tile_k=64, stages=2, waves_m=2, waves_n=2)
PROBLEM = GemmProblem.dense(512, 512, 512)


def test_a_plain_pair_is_legal() -> None:
    assert space.problem_limit(PROBLEM, GFX950) is None
    assert space.why_not(PROBLEM, CONFIG, GFX950) is None


COUNTING = Fusion(nodes=(Node(op="acc"), Node(op="row"), Node(op="add", args=(0, 1))))
GROUPED = {"op": "grouped_mm", "grouping": Grouping(axis=Axis.M, groups=2)}


def test_an_epilogue_counts_rows() -> None:
    problem = replace(PROBLEM, fusion=COUNTING, m=2**22)
    assert space.problem_limit(problem, GFX950) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"op": "conv"}, "op conv"),
        ({"dtype": DType.FP32, "out_dtype": DType.FP32}, "dtype float32"),
        ({"out_dtype": DType.FP8_E4M3}, "output float8_e4m3fn has no kernel"),
        ({"dtype": DType.BOOL}, "dtype bool has no kernel"),
        ({"fusion": COUNTING, "m": 2**22 + 1}, "rows and columns up to 4194304"),
        ({"fusion": COUNTING, **GROUPED}, "has no grouped kernel"),
        ({"k": 2**31, "lda": 2**31}, "k=2147483648 does not fit"),
        ({"batch": 2, "b_batch": 2**48}, "batches 281474976710656 elements apart are over"),
    ],
)
def test_problems_without_a_kernel(change: dict[str, object], words: str) -> None:
    problem = replace(PROBLEM, **change)
    limit = space.problem_limit(problem, GFX950)
    assert limit is not None and words in limit
    assert space.why_not(problem, CONFIG, GFX950) == limit
    assert space.candidates(problem, GFX950) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stages": 1}, "stages=1"),
        ({"waves_m": 8, "waves_n": 4}, "32 waves"),
        ({"tile_m": 48}, "tile_m=48"),
        ({"tile_n": 48}, "tile_n=48"),
        ({"tile_k": 48}, "tile_k=48"),
        ({"stages": 6}, "bytes of LDS"),
        ({"tile_m": 256, "tile_n": 256, "waves_m": 1, "waves_n": 2, "tile_k": 32}, "accumulators"),
        ({"tile_m": 256, "tile_n": 256, "waves_m": 4, "waves_n": 4, "tile_k": 64}, "of fragments"),
        ({"tile_m": 256, "tile_n": 256, "waves_m": 1, "waves_n": 8, "tile_k": 32}, "of fragments"),
        ({"tile_m": 16, "tile_k": 32, "waves_m": 1, "waves_n": 4}, "do not tile A in LDS evenly"),
        ({"tile_n": 16, "tile_k": 32, "waves_m": 4, "waves_n": 1}, "do not tile B in LDS evenly"),
    ],
)
def test_configs_that_are_not_legal(change: dict[str, int], words: str) -> None:
    reason = space.why_not(PROBLEM, replace(CONFIG, **change), GFX950)
    assert reason is not None and words in reason


def test_descriptor_limit_is_exact() -> None:
    # The last byte of a K step of A is at (m-1)·lda·2 + tile_k·2.
    fits = replace(PROBLEM, m=2, lda=(2**31 - 2) // 2 - CONFIG.tile_k, a_align=2)
    assert space.why_not(fits, CONFIG, GFX950) is None
    limit = space.why_not(replace(fits, lda=fits.lda + 1), CONFIG, GFX950)
    assert limit is not None and "K step of a tile of A" in limit


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lda": 2**24}, "K step of a tile of A"),
        ({"ldb": 2**24}, "K step of a tile of B"),
        ({"ldc": 2**24}, "a tile of C"),
    ],
)
def test_rows_too_far_apart_for_a_tile(change: dict[str, int], words: str) -> None:
    problem = replace(PROBLEM, m=1024, n=1024, **{"ldc": 1024, **change})
    large = replace(CONFIG, tile_m=128, tile_n=128)
    limit = space.why_not(problem, large, GFX950)
    assert limit is not None and words in limit
    assert space.candidates(problem, GFX950), "smaller tiles span less"


def test_operands_over_four_gibibytes_are_served() -> None:
    problem = GemmProblem.dense(2**20, 2**13, 4096)
    assert space.problem_limit(problem, GFX950) is None
    assert space.candidates(problem, GFX950)


def test_candidates_are_exactly_the_configs_without_a_reason() -> None:
    rng = random.Random(2)
    everything = variants.every_config()
    assert len(set(everything)) == len(everything)
    for _ in range(8):
        m, n, k = (rng.randint(1, 4097) for _ in range(3))
        problem = GemmProblem.dense(m, n, k, layout=rng.choice(("NN", "NT", "TN", "TT")))
        found = space.candidates(problem, GFX950)
        reasons = {c: space.why_not(problem, c, GFX950) for c in everything}
        assert found == [c for c in everything if reasons[c] is None]
        assert found, f"{problem} has no candidate"
        assert all(reason for reason in reasons.values() if reason is not None)


def test_legal_configs_fit_the_hardware() -> None:
    for config in space.candidates(PROBLEM, GFX950):
        assert KernelSpec.of(PROBLEM, config).lds_bytes <= GFX950.lds_bytes
        assert config.waves <= GFX950.max_waves_per_workgroup
        assert config.tile_m % (16 * config.waves_m) == 0
