"""What is said of a clock's error beside its times."""

from __future__ import annotations

import pytest

from inductor_flydsl import calibration
from inductor_flydsl.problem import GemmProblem


def test_a_clock_that_measures_has_no_error_to_tell() -> None:
    problem = GemmProblem.dense(64, 64, 64)
    assert calibration.note("gpu_event", problem) == calibration.note("wall", problem) == ""


def test_the_error_is_of_the_operands_type(monkeypatch: pytest.MonkeyPatch) -> None:
    low, high = calibration.MODELLED["mxfp4"]
    fp4 = GemmProblem.dense(64, 64, 64, dtype="mxfp4")
    assert f"are {low} to {high} of it (mxfp4, p10 to p90)" in calibration.note("model", fp4)
    half = GemmProblem.dense(64, 64, 64, dtype="fp16")
    monkeypatch.setitem(calibration.EMULATED, "bf16", (0.9, 1.234))
    assert calibration.note("emulated", half) == (
        "clock emulated: published MI355X times are 0.90 to 1.23 of it (bf16, p10 to p90)"
    )
    mixed = GemmProblem.dense(64, 64, 64, dtype="fp4", b_dtype="fp8")
    low, high = calibration.UNFITTED["mxfp8"]
    assert f"are {low} to {high} of it (mxfp8" in calibration.note("model", mixed)
    groups = GemmProblem.dense(64, 64, 64, groups="m4")
    assert "error for grouped bf16 is not known" in calibration.note("model", groups)


def test_errors_are_ranges_around_what_is_plausible() -> None:
    for table in (calibration.MODELLED, calibration.UNFITTED, calibration.EMULATED):
        assert {kind.removeprefix(calibration.GROUPED) for kind in table} <= {
            "bf16", "mxfp8", "mxfp4",
        }  # fmt: skip
        assert all(0.4 < low < high < 2.5 for low, high in table.values())
