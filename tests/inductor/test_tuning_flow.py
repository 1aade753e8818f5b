"""What a compile leaves behind for tuning: the recording, the contest, decisions and the log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from inductor_flydsl import cli, shapes
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.records import Store

MODEL = """
import json
import torch
import torch._inductor.config as config
import inductor_flydsl
inductor_flydsl.register()
config.max_autotune_gemm_backends = "ATEN,FLYDSL"
config.flydsl_enable_autotuning = True
def model(x, w, v):
    return torch.relu(x @ w.t()) @ v
def tensor(*sizes):
    return torch.randn(*sizes, dtype=torch.bfloat16)
torch.compile(model, mode="max-autotune")(tensor(32, 64), tensor(48, 64), tensor(48, 80))
torch.compile(lambda x, y: x @ y, mode="max-autotune")(tensor(16, 32), tensor(32, 24))
print(json.dumps([d.to_json() for d in inductor_flydsl.last_compile()]))
print(len(inductor_flydsl.decisions()))
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Folder, stdout and stderr of one compile of two models on the reference device."""
    folder = tmp_path_factory.mktemp("flow")
    done = subprocess.run(
        [sys.executable, "-c", MODEL],
        env={
            **os.environ,
            "INDUCTOR_FLYDSL_DEVICE": "reference",
            "INDUCTOR_FLYDSL_CACHE_DIR": str(folder / "store"),
            "INDUCTOR_FLYDSL_RECORD": str(folder / "seen.jsonl"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TORCH_LOGS": "+inductor_flydsl",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stdout.splitlines(), done.stderr


def test_the_recording_has_every_product_and_can_be_tuned(compiled):
    folder, _, _ = compiled
    seen = shapes.read(folder / "seen.jsonl")
    assert [(p.m, p.n, p.k) for p in seen] == [(32, 48, 64), (32, 80, 48), (16, 24, 32)]
    assert all(isinstance(p, GemmProblem) for p in seen)


def test_the_last_compile_lists_its_products_with_the_reasons(compiled):
    _, out, _ = compiled
    (decision,) = json.loads(out[0])
    assert decision["subject"].startswith("mm 16x24x32") and out[1] == "3"
    assert decision["chosen"] in ("ATEN", "FLYDSL") and decision["compile_id"] == "1/0"
    names = {loser["name"] for loser in decision["losers"]}
    assert len(names) == len(decision["times"]) - 1 + len(decision["candidates"]) - 1
    assert all(
        "x of " in loser["reason"] and "(wall)" in loser["reason"] for loser in decision["losers"]
    )


def test_the_store_keeps_the_contest(compiled):
    folder, _, _ = compiled
    records = list(Store(folder / "store").records())
    assert len(records) == 3
    for record in records:
        assert record.contest is not None and set(record.contest.backends) == {"ATEN", "FLYDSL"}


def test_the_log_tells_the_same(compiled, tmp_path: Path, capsys):
    _, out, err = compiled
    (tmp_path / "log").write_text(err)
    assert cli.main(["explain", "--log", str(tmp_path / "log"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [d["compile_id"] for d in found["decisions"]] == ["0/0", "0/0", "1/0"]
    (last,) = json.loads(out[0])
    assert {k: found["decisions"][-1][k] for k in ("chosen", "reason", "losers")} == {
        k: last[k] for k in ("chosen", "reason", "losers")
    }
    assert len(found["tables"]) == 3


def test_all_products_of_a_graph_are_compiled_at_its_first(monkeypatch, store):
    import torch

    from inductor_flydsl import settings, tuner

    asked, tuned = [], []
    plain, plain_tune = tuner.Tuner.precompile, tuner.Tuner.tune

    def precompile(self, problems, device):
        asked.append(list(problems))
        return plain(self, problems, device)

    def tune(self, problem, device, **options):
        tuned.append(problem)
        return plain_tune(self, problem, device, **options)

    monkeypatch.setattr(tuner.Tuner, "precompile", precompile)
    monkeypatch.setattr(tuner.Tuner, "tune", tune)

    def tensor(*sizes):
        return torch.randn(*sizes, dtype=torch.bfloat16)

    def model(x, w, v, u):
        y = x @ w.t()
        return (torch.relu(y) @ v)[:, 8:40] @ u

    import torch._inductor.config as config

    torch._dynamo.reset()
    with (
        settings.scope(device="reference"),
        config.patch(
            max_autotune_gemm_backends="ATEN,FLYDSL",
            flydsl_enable_autotuning=True,
            force_disable_caches=True,
        ),
    ):
        torch.compile(model, mode="max-autotune")(
            tensor(32, 64), tensor(48, 64), tensor(48, 80), tensor(32, 24)
        )
    assert len(asked) == 1 and len(tuned) == 3
    # What was guessed from the trace is what was asked for, strides and alignment with it.
    assert asked[0] == tuned
