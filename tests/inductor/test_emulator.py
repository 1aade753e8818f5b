"""The same path with real FlyDSL kernels for gfx950, run and timed by the emulator."""

import json
import os
import subprocess
import sys

import pytest
import torch
import torch._inductor.config as inductor_config

from inductor_flydsl import compiler

from .conftest import assert_product, random

pytestmark = pytest.mark.usefixtures("real_kernels")


def test_candidates_compete_on_the_emulated_clock(compiled, capsys):
    a, b = random(40, 72), random(72, 56)
    with inductor_config.patch(flydsl_enable_autotuning=True):
        result, code, (decision,) = compiled(lambda a, b: a @ b, a, b)
    ranked = [t for t in decision.times if t.us is not None]
    assert decision.chosen == "FLYDSL" and len(ranked) > 1
    assert {t.clock for t in ranked} == {"emulated"}
    assert min(ranked, key=lambda t: t.us).name == decision.config.name
    assert '"device": "emulator:gfx950"' in code and "extern_kernels.mm" not in code
    table = capsys.readouterr().err
    assert table.count("(emulated)") == len(ranked) and "ATEN mm not ranked" in table
    assert_product(result, a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_every_layout_and_dtype(compiled, layout, dtype):
    a = random(33, 40, dtype=dtype) if layout[0] == "N" else random(40, 33, dtype=dtype).t()
    b = random(40, 24, dtype=dtype) if layout[1] == "N" else random(24, 40, dtype=dtype).t()
    result, _, (decision,) = compiled(lambda a, b: a @ b, a, b)
    assert decision.chosen == "FLYDSL" and decision.problem.layout.value == layout
    assert_product(result, a, b)


VIEWS = {
    "offset": lambda x: x[1:34, 3:43],
    "every second row": lambda x: x[:66:2, :40],
    "repeated row": lambda x: x[:1, :40].expand(33, 40),
    "overlapping rows": lambda x: x.as_strided((33, 40), (8, 1), 2),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(compiled, name):
    x, b = random(66, 48), random(40, 24)
    view = VIEWS[name]
    result, _, (decision,) = compiled(lambda x, b: view(x) @ b, x, b)
    assert decision.chosen == "FLYDSL"
    assert_product(result, view(x), b)


def test_an_input_that_is_less_aligned_later(compiled):
    """The kernel loads 16 bytes at once; an address that does not allow it is copied."""
    a, b = random(32, 64), random(64, 24)
    fast = torch.compile(lambda a, b: a @ b, mode="max-autotune")
    with torch.no_grad():
        assert_product(fast(a, b), a, b)
        moved = random(32 * 64 + 8).as_strided((32, 64), (64, 1), 1)
        assert_product(fast(moved, b), moved, b)


def test_forward_and_backward():
    a, w = random(24, 40).requires_grad_(), random(16, 40).requires_grad_()
    out = random(24, 16)
    result = torch.compile(torch.nn.functional.linear, mode="max-autotune")(a, w)
    result.backward(out)
    from inductor_flydsl.inductor import choices

    found = sorted((d.chosen, d.problem.layout.value) for d in choices.decisions())
    assert found == [("FLYDSL", "NN"), ("FLYDSL", "NT"), ("FLYDSL", "TN")]
    with torch.no_grad():
        assert_product(result, a, w.t())
        assert_product(a.grad, out, w)
        assert_product(w.grad, out.t(), a)


def test_a_kernel_that_does_not_compile_leaves_aten(compiled, monkeypatch, caplog):
    from inductor_flydsl.errors import CompileFailed

    def broken(specs, *_, **__):
        return {spec: CompileFailed("injected") for spec in specs}

    monkeypatch.setattr(compiler, "compile_many", broken)
    a, b = random(32, 64), random(64, 24)
    with inductor_config.patch(flydsl_enable_autotuning=True):
        result, _, (decision,) = compiled(lambda a, b: a @ b, a, b)
    assert decision.chosen == "ATEN" and "CompileFailed: injected" in decision.reason
    assert "rejected: CompileFailed: injected" in caplog.text
    assert_product(result, a, b)


PROGRAM = """
import json, torch
import torch._inductor.config as config
import inductor_flydsl
from inductor_flydsl import compiler, tuner
from inductor_flydsl.inductor import cachekey
from torch._dynamo.utils import counters
inductor_flydsl.register()
cachekey.plugin_sources = lambda: "the same in both"
config.max_autotune_gemm_backends = "ATEN,TRITON,FLYDSL"
config.flydsl_enable_autotuning = True
torch.manual_seed(1)
a, b = torch.randn(40, 72).bfloat16(), torch.randn(72, 24).bfloat16()
with torch.no_grad():
    c = torch.compile(lambda a, b: a @ b, mode="max-autotune")(a, b)
error = (c.double() - a.double() @ b.double()).abs().max().item()
s, t = compiler.stats(), tuner.stats()
print(json.dumps([counters["inductor"]["fxgraph_cache_hit"], s.compiled, t.measured, error]))
"""


def test_a_second_process_compiles_and_measures_nothing(tmp_path):
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}
    found = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    (miss, _, measured, first), (hit, compiled_again, measured_again, second) = found
    assert (miss, hit) == (0, 1) and measured > 0
    assert compiled_again == measured_again == 0
    assert first == second < 0.2
