from __future__ import annotations

from dataclasses import replace

import pytest

from inductor_flydsl.arch import GFX950, get_arch
from inductor_flydsl.errors import BadArgument


def test_looked_up_with_and_without_features() -> None:
    assert get_arch("gfx950") is get_arch("gfx950:sramecc+:xnack-") is GFX950


def test_unknown_arch_names_the_known() -> None:
    with pytest.raises(BadArgument, match="gfx90a.*gfx950"):
        get_arch("gfx90a")


@pytest.mark.parametrize("change", [{"compute_units": 255}, {"lds_bytes": 0}, {"xcds": -8}])
def test_impossible_hardware_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(BadArgument, match=next(iter(change))):
        replace(GFX950, **change)
