"""What a user meets who turns the plugin off, mistypes a setting, or asks what was decided."""

import logging
import os
import subprocess
import sys

import pytest
import torch

import inductor_flydsl

from .conftest import random

README_PROGRAM = """
import torch
import torch._inductor.config as config
config.max_autotune_gemm_backends = "ATEN,TRITON,FLYDSL"
config.flydsl_enable_autotuning = True
a = torch.randn(8, 16).bfloat16()
f = torch.compile(lambda a: a @ a.t(), mode="max-autotune")
assert torch.allclose(f(a).float(), (a @ a.t()).float(), atol=0.1)
print("fine", "inductor_flydsl.inductor.choices" in __import__("sys").modules)
"""


@pytest.mark.parametrize("value", ["1", "maybe"])
def test_a_program_that_sets_our_option_runs_where_we_are_off(value, tmp_path):
    environment = {**os.environ, "INDUCTOR_FLYDSL_DISABLE": value, "OMP_NUM_THREADS": "1"}
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path)
    program = "import inductor_flydsl._autoload as a; a.autoload()\n" + README_PROGRAM
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "fine False" in done.stdout


def test_the_last_compile_is_one_compilation_after_a_reset(compiled):
    compiled(lambda a, b: a @ b, random(7, 16), random(16, 8))
    torch._dynamo.reset()
    compiled(lambda a, b: a @ b + 1, random(5, 16), random(16, 8))
    (decision,) = inductor_flydsl.last_compile()
    assert decision.problem.m == 5


def test_the_same_product_in_two_compilations_is_two_decisions(compiled):
    a, b = random(7, 16), random(16, 8)
    compiled(lambda a, b: (a @ b).exp(), a, b)
    torch._dynamo.reset()
    _, _, decisions = compiled(lambda a, b: (a @ b).abs(), a, b)
    assert len(decisions) == 1


@pytest.mark.parametrize(
    "variable, value, words",
    [
        ("INDUCTOR_FLYDSL_DEVICE", "gpu", "is not a device"),
        ("INDUCTOR_FLYDSL_DEVICE", "hip", "ROCm build of torch"),
        ("INDUCTOR_FLYDSL_CACHE", "bogus", "is not a choice"),
    ],
)
def test_a_setting_that_keeps_us_out_is_said_once(
    compiled, monkeypatch, caplog, variable, value, words
):
    from inductor_flydsl.inductor import choices

    monkeypatch.setattr(choices, "_told", set())
    monkeypatch.setenv(variable, value)
    with caplog.at_level(logging.WARNING, "inductor_flydsl"):
        for columns in (8, 24):
            _, _, decisions = compiled(lambda a, b: a @ b, random(7, 16), random(16, columns))
            assert [d.chosen for d in decisions] == ["ATEN"]
    (said,) = [r.message for r in caplog.records if words in r.message]
    assert said.startswith("mm ")


def test_a_misspelled_variable_is_said_once_in_a_compile(compiled, monkeypatch, caplog):
    monkeypatch.setenv("INDUCTOR_FLYDSL_EFORTS", "exhaustive")
    for columns in (8, 24):
        compiled(lambda a, b: a @ b, random(7, 16), random(16, columns))
    (said,) = [r.message for r in caplog.records if "EFORTS" in r.message]
    assert "did you mean INDUCTOR_FLYDSL_EFFORT?" in said


def test_what_is_recorded_of_a_biased_layer_serves_its_compile(compiled, monkeypatch, tmp_path):
    from inductor_flydsl import shapes, tuner
    from inductor_flydsl.devices import get_device

    seen = tmp_path / "seen.jsonl"
    monkeypatch.setenv("INDUCTOR_FLYDSL_RECORD", str(seen))
    inputs = random(7, 16), random(8, 16), random(8)
    compiled(torch.nn.functional.linear, *inputs)
    (problem,) = shapes.read(seen)
    monkeypatch.setenv("INDUCTOR_FLYDSL_CACHE_DIR", str(tmp_path / "offline"))
    tuner.tune(problem, get_device("reference"))
    monkeypatch.setenv("INDUCTOR_FLYDSL_CACHE", "require")
    torch._dynamo.reset()
    _, _, decisions = compiled(torch.nn.functional.linear, *inputs)
    assert [d.op for d in decisions] == ["addmm"]
