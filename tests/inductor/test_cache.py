"""FX graph cache: what its key holds, and a second process that compiles and measures nothing."""

import json
import os
import subprocess
import sys

import pytest
import torch
import torch._inductor.config as inductor_config
from torch._inductor.virtualized import V

import inductor_flydsl
from inductor_flydsl.errors import MissingDependency
from inductor_flydsl.inductor import cachekey


def key():
    with inductor_config.patch(max_autotune=True):
        return V.choices.uuid()


def test_the_key_repeats():
    assert key() == key()
    assert set(json.loads(key()[1])) >= {"plugin", "kernels", "flydsl", "settings", "hardware"}


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DEVICE", "emulator"),
        ("EFFORT", "exhaustive"),
        ("CACHE", "refresh"),
        ("CACHE_DIR", "/elsewhere"),
        ("EMULATOR_SEED", "7"),
    ],
)
def test_settings_that_change_results_change_the_key(monkeypatch, variable, value):
    before = key()
    monkeypatch.setenv(f"INDUCTOR_FLYDSL_{variable}", value)
    assert key() != before


def test_settings_that_do_not_change_results_do_not(monkeypatch):
    before = key()
    monkeypatch.setenv("INDUCTOR_FLYDSL_JOBS", "3")
    assert key() == before


@pytest.mark.parametrize("part", ["__version__", "plugin_sources", "_kernels", "_flydsl"])
def test_versions_and_sources_change_the_key(monkeypatch, part):
    before = key()
    changed = "changed" if part == "__version__" else lambda: "changed"
    monkeypatch.setattr(cachekey, part, changed)
    assert key() != before


def test_off_and_idle_ask_for_no_part(monkeypatch):
    def asked():
        raise AssertionError("a part of the key was asked for")

    monkeypatch.setattr(cachekey, "_parts", asked)
    assert V.choices.uuid()[1] == "idle"
    with inductor_flydsl.disabled():
        assert key()[1] == "off"


def test_it_fails_closed(monkeypatch, caplog):
    def broken():
        raise OSError("injected: no sources")

    monkeypatch.setattr(cachekey, "plugin_sources", broken)
    assert key() != key()
    assert "FX graph cache is not used: OSError: injected" in caplog.text


def test_without_flydsl_the_key_says_so(monkeypatch):
    def absent():
        raise MissingDependency("flydsl is not installed")

    monkeypatch.setattr("inductor_flydsl.compiler.source_fingerprint", absent)
    assert key() == key() and "absent" in json.loads(key()[1])["kernels"]


PROGRAM = """
import json, sys, torch
import torch._inductor.config as config
import inductor_flydsl
inductor_flydsl.register()
from inductor_flydsl.inductor import cachekey, caller, choices
from torch._dynamo.utils import counters
# A working copy may be edited between the processes; that sources count is tested apart.
cachekey.plugin_sources = cachekey._kernels = lambda: "the same in both"
caller.FlyDSLBenchmarkRequest.benchmark = lambda *a, **k: 1e-9
config.max_autotune_gemm_backends = "ATEN,TRITON,FLYDSL"
config.flydsl_enable_autotuning = True
torch.manual_seed(1)
a, b = torch.randn(48, 96, dtype=torch.bfloat16), torch.randn(96, 40, dtype=torch.bfloat16)
with torch.no_grad():
    c = torch.compile(lambda a, b: a[:, 1:] @ b[1:], mode="max-autotune")(a, b)
error = (c.double() - a[:, 1:].double() @ b[1:].double()).abs().max().item()
from inductor_flydsl import tuner
from inductor_flydsl.inductor import runtime
print(json.dumps({
    "hit": counters["inductor"]["fxgraph_cache_hit"],
    "measured": tuner.stats().measured,
    "kernels": runtime.kernel.cache_info().currsize,
    "error": error,
    "decisions": [d.chosen for d in choices.decisions()],
}))
"""


def run(tmp_path, **environment):
    own = {
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "INDUCTOR_FLYDSL_DEVICE": "reference",
        **environment,
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_second_process_hits_the_cache_and_finds_the_kernel(tmp_path):
    first = run(tmp_path)
    assert first["hit"] == 0 and first["measured"] > 0 and first["decisions"] == ["FLYDSL"]
    second = run(tmp_path)
    assert second["hit"] == 1 and second["measured"] == 0 and second["decisions"] == []
    # The kernel was made by the generated code alone, and its numbers are right.
    assert second["kernels"] == 1 and second["error"] < 0.2
    third = run(tmp_path, INDUCTOR_FLYDSL_EFFORT="exhaustive", INDUCTOR_FLYDSL_CACHE="readonly")
    assert third["hit"] == 0


def test_flydsl_not_installed_leaves_aten_and_the_reason(tmp_path):
    blocker = tmp_path / "sitecustomize.py"
    blocker.write_text(
        "import sys, importlib.metadata as m\n"
        "sys.modules['flydsl'] = None\n"
        "real = m.version\n"
        "def version(name):\n"
        "    if name == 'flydsl': raise m.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "m.version = version\n"
    )
    program = PROGRAM.replace("cachekey._kernels = ", "")
    program = program.replace("print(json", "print(choices.decisions()[-1].reason)\nprint(json")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
        "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"),
        "INDUCTOR_FLYDSL_DEVICE": "emulator",
    }
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reason, result = done.stdout.splitlines()[-2:]
    assert "flydsl is not installed" in reason
    assert json.loads(result)["decisions"] == ["ATEN"] and json.loads(result)["error"] < 0.2


def test_torch_of_this_run_is_a_supported_one():
    from inductor_flydsl.inductor import compat

    assert (2, 11) <= compat.torch_version() <= (2, 15), torch.__version__
