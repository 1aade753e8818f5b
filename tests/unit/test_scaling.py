"""Block scales and narrow types as problems: their form and their sizes."""

from __future__ import annotations

import itertools

import pytest

from inductor_flydsl.arch import GFX950
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
        assert ring.row_bytes == ring.chunk_k // 32
        assert ring.operand_bytes >= ring.row_bytes * max(tile, 64)
        assert ring.steps * tile_k == ring.chunk_k


@pytest.mark.parametrize("stages", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("tile_k", [128, 256, 512])
def test_a_slot_is_filled_after_its_last_read(stages: int, tile_k: int) -> None:
    for tile, pipeline in ((32, "staged"), (128, "staged"), (128, "hti")):
        config = GemmConfig(
            pipeline=pipeline, tile_m=tile, tile_n=tile, tile_k=tile_k, waves_m=2, waves_n=2,
            stages=2 if pipeline == "hti" else stages,
        )  # fmt: skip
        ring = KernelSpec.of(GemmProblem.dense(64, 64, 512, dtype="mxfp4"), config).scale_ring
        ahead = 2 if pipeline == "hti" else stages - 1
        for piece in range(4 * ring.steps * ring.slots):
            # The piece of step s + ahead is loaded in step s, after what step s - 1 reads.
            loaded = piece - (ring.steps - 1) - ahead
            chunk = piece // ring.steps
            assert loaded > (chunk - ring.slots + 1) * ring.steps - 1


def test_a_chunk_is_as_long_as_leaves_room_for_as_many_workgroups() -> None:
    wide = GemmConfig(tile_m=256, tile_n=256, tile_k=256, stages=2, waves_m=2, waves_n=4)
    small = GemmConfig(tile_m=32, tile_n=64, tile_k=128, stages=8, waves_m=2, waves_n=2)
    problem = GemmProblem.dense(64, 64, 512, dtype="mxfp8")
    specs = [KernelSpec.of(problem, config) for config in (wide, small)]
    # Two stages of FP8 take all of the LDS of a CU, of which a ring of any size would be too much.
    assert [spec.scale_ring.chunk_k for spec in specs] == [512, 2048]
    assert specs[1].lds_bytes <= GFX950.lds_bytes
