"""Block scales and narrow types as problems: their form and their sizes."""

from __future__ import annotations

import itertools

import pytest

from inductor_flydsl.config import GemmConfig, KernelSpec
from inductor_flydsl.dtypes import DType
from inductor_flydsl.errors import ProblemError
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.scaling import ScaleLayout

CONFIG = GemmConfig(tile_m=64, tile_n=128, tile_k=256, stages=3, waves_m=2, waves_n=2)


@pytest.mark.parametrize("layout", list(ScaleLayout))
@pytest.mark.parametrize(
    ("dtype", "b_dtype"), [("fp8", "fp8"), ("fp4", "fp4"), ("fp8", "bf8"), ("fp4", "fp8")]
)
def test_json_round_trip(dtype: str, b_dtype: str, layout: ScaleLayout) -> None:
    problem = GemmProblem.dense(70, 40, 320, dtype=dtype, b_dtype=b_dtype, scales=layout)
    assert GemmProblem.from_json(problem.to_json()) == problem
    spec = KernelSpec.of(problem, CONFIG)
    assert KernelSpec.from_json(spec.to_json()) == spec
    plain = GemmProblem.dense(70, 40, 320, dtype="fp8")
    assert plain != problem and KernelSpec.of(plain, CONFIG).name != spec.name


def test_unscaled_problems_keep_the_form_that_records_have() -> None:
    data = GemmProblem.dense(64, 64, 64).to_json()
    assert not {"b_dtype", "a_scales", "b_scales"} & data.keys()
    assert GemmProblem.from_json(data) == GemmProblem.dense(64, 64, 64)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"k": 48, "dtype": "mxfp8"}, "k"),
        ({"k": 33, "dtype": "fp4"}, "k"),
        ({"dtype": "mxfp4", "scales": "spiral"}, "scales"),
    ],
)
def test_refuses(changes: dict[str, object], name: str) -> None:
    with pytest.raises(ProblemError, match=name):
        GemmProblem.dense(**({"m": 64, "n": 64, "k": 64} | changes))  # type: ignore[arg-type]


def test_packed_strides_count_pairs() -> None:
    problem = GemmProblem.dense(64, 64, 256, dtype="mxfp4")
    assert (problem.lda, problem.ldb, problem.out_dtype) == (128, 128, DType.BF16)
    assert problem.bytes == 2 * 64 * 128 + 2 * 64 * 8 + 64 * 64 * 2


def test_a_ring_holds_the_scales_of_both_tiles() -> None:
    for tile, tile_k, waves in itertools.product((16, 64, 256), (128, 256, 512), (1, 2, 4)):
        config = GemmConfig(
            tile_m=tile, tile_n=64, tile_k=tile_k, stages=2, waves_m=1, waves_n=waves
        )
        spec = KernelSpec.of(GemmProblem.dense(64, 64, 512, dtype="mxfp8"), config)
        ring = spec.scale_ring
        assert ring.operand_bytes >= 16 * max(tile, 64)
        assert ring.steps * tile_k == 512
