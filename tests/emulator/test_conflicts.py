"""The LDS bank conflict report: which instruction, how many ways, how often."""

from __future__ import annotations

import numpy as np
import pytest
from isa_text import HEAD, launch

from inductor_flydsl.emulator import BankConflict, Options


def conflicts_of(body: str, **given: object) -> tuple[BankConflict, ...]:
    setup = HEAD + "v_mov_b32_e32 v2, 0\nv_mov_b32_e32 v3, 0\n"
    result = launch(setup + body, [np.zeros(1)], lds=65536, **given)
    return result.conflicts


# Lane → bytes between lanes, the instruction, and how many lanes meet at a bank.
@pytest.mark.parametrize("stride, access, ways", [
    (4, "ds_write_b32 v9, v2", 1),
    (8, "ds_write_b32 v9, v2", 2),
    (256, "ds_write_b32 v9, v2", 32),
    (4, "ds_read_b32 v2, v9", 1),
    (8, "ds_read_b32 v2, v9", 2),
    (256, "ds_read_b32 v2, v9", 64),
    (16, "ds_read_b128 v[4:7], v9", 1),
    (256, "ds_read_b128 v[4:7], v9", 16),
    (8, "ds_read_b64 v[4:5], v9", 1),
    (256, "ds_read_b64 v[4:5], v9", 32),
    (0, "ds_read_b128 v[4:7], v9", 1),
])  # fmt: skip
def test_ways(stride: int, access: str, ways: int) -> None:
    found = conflicts_of(f"v_mul_u32_u24_e32 v9, {stride}, v0\n{access}")
    if ways == 1:
        assert not found
        return
    (conflict,) = found
    assert (conflict.text, conflict.ways, conflict.executions) == (access, ways, 1)
    assert f"{ways}-way" in str(conflict)


def test_the_dearest_comes_first_and_executions_are_of_the_run() -> None:
    body = """
    v_lshlrev_b32_e32 v9, 3, v0
    v_lshlrev_b32_e32 v8, 7, v0
    ds_write_b32 v9, v2
    ds_write_b32 v8, v2
    """
    first, second = conflicts_of(body, grid=6)
    assert (first.ways, second.ways) == (32, 2)
    assert {first.executions, second.executions} == {6}
    assert not conflicts_of(body, options=Options(timed=False))
