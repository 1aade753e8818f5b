"""Division by multiplication, exact for every dividend a launch has."""

import random

import pytest

from inductor_flydsl.arguments import turns
from inductor_flydsl.config import GemmConfig
from inductor_flydsl.division import divider
from inductor_flydsl.signature import INTEGERS

LIMIT = 2**31


def divided(x, divisor):
    """As the kernels do it, on unsigned 32-bit integers."""
    multiplier, shift = divider(divisor)
    assert -LIMIT <= multiplier < LIMIT and 0 <= shift < 32
    return (2 * x * (multiplier % 2**32) >> 32) >> shift


@pytest.mark.parametrize("seed", range(4))
def test_quotients(seed):
    rng = random.Random(seed)
    small = list(range(1, 300))
    large = [rng.randrange(1, LIMIT) >> rng.randrange(31) or 1 for _ in range(2000)]
    for divisor in [*small, *large, LIMIT - 1, *(2**i for i in range(31))]:
        most = LIMIT // divisor
        near = [k * divisor + d for k in (1, most // 2, most) for d in (-1, 0, 1)]
        for x in [0, 1, LIMIT - 1, rng.randrange(LIMIT), *near]:
            if 0 <= x < LIMIT:
                assert divided(x, divisor) == x // divisor, (x, divisor)


@pytest.mark.parametrize("group_m", [0, 1, 3, 8])
def test_turns_of_a_launch(group_m):
    config = GemmConfig(
        tile_m=64, tile_n=64, tile_k=64, stages=2, waves_m=1, waves_n=1, group_m=group_m
    )
    values = turns(config, 13, 7)
    rows = group_m or 1
    assert (values["tiles"], values["turn"], values["rest"]) == (91, 7 * rows, 13 % rows or rows)
    assert set(values) <= set(INTEGERS)
