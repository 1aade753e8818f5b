"""Narrow types and block scales: what they mean, and where they lie in memory and in a tile."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from inductor_flydsl import microscaling
from inductor_flydsl.dtypes import DType
from inductor_flydsl.microscaling import scale_offsets
from inductor_flydsl.scaling import ScaleLayout, Scales
from inductor_flydsl.templates.swizzle import chunk_order, place_of


@pytest.mark.parametrize("packed", [1, 2])
@pytest.mark.parametrize("instructions", [1, 2, 4])
def test_an_instruction_finds_whole_blocks(packed: int, instructions: int) -> None:
    slices = 2 if packed == 1 else 1
    chunks = 4 * slices * instructions
    order = [chunk_order(place, chunks, packed) for place in range(chunks)]
    assert sorted(order) == list(range(chunks))
    assert [place_of(chunk, chunks, packed) for chunk in order] == list(range(chunks))
    for instruction, group in itertools.product(range(instructions), range(4)):
        places = [(instruction * slices + s) * 4 + group for s in range(slices)]
        blocks = [order[place] // slices for place in places]
        # FP8: half group % 2 of instruction block group // 2 + 2·slice; FP4: block `group`.
        inner = [group // 2 + 2 * s for s in range(2)] if packed == 1 else [group]
        assert blocks == [instructions * b + instruction for b in inner]
        if packed == 1:
            assert [order[place] % 2 for place in places] == [group % 2] * 2


def test_values_of_narrow_types() -> None:
    for dtype in (DType.FP8_E4M3, DType.FP8_E5M2):
        codes = torch.arange(256, dtype=torch.uint8).view(getattr(torch, dtype.value))
        expected = codes.double()
        found = torch.tensor(microscaling.values(dtype), dtype=torch.float64)
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    assert microscaling.values(DType.FP4) == (*positive, *(-x for x in positive))
    assert math.copysign(1, microscaling.values(DType.FP4)[8]) == -1


def test_the_swizzled_place_of_a_scale() -> None:
    rows, blocks = 300, 11
    scales = Scales.contiguous(blocks * 32, ScaleLayout.SWIZZLED)
    padded = torch.arange(384 * 12).view(384, 12)
    # 128 rows by 4 blocks a tile, its rows 32 apart beside each other.
    tiles = padded.view(3, 4, 32, 3, 4).permute(0, 3, 2, 1, 4).reshape(-1)
    place = scale_offsets(scales, rows, blocks)
    assert torch.equal(tiles[place], padded[:rows, :blocks])
    assert scales.bytes(rows, blocks * 32) == 384 * 12
