"""Our choice: its benchmark in and out of this process, its hash, and the runtime kernel."""

import dataclasses
import logging
import math
import pickle

import pytest
import torch
import torch._inductor.config as inductor_config

from inductor_flydsl import GemmProblem, settings, space
from inductor_flydsl.arch import GFX950
from inductor_flydsl.errors import BadArgument
from inductor_flydsl.inductor import caller, choices, operands, runtime

from .conftest import assert_product, random


def launch_of(problem, check=""):
    config = space.candidates(problem, GFX950)[0]
    return runtime.Launch(
        problem=problem,
        config=config,
        device="reference",
        torch_device="cpu",
        arch="gfx950",
        check=check,
    )


class TestRuntime:
    def test_text_round_trip(self):
        launch = launch_of(GemmProblem.dense(33, 24, 65, layout="TT", out_dtype="fp32"), "b")
        assert runtime.Launch.from_text(launch.to_text()) == launch
        assert "\n" not in launch.to_text()

    @pytest.mark.parametrize("text", ["", "{}", "[]", '{"problem": 3}'])
    def test_other_text_is_refused(self, text):
        with pytest.raises(BadArgument, match="is not a kernel of this version"):
            runtime.Launch.from_text(text)

    def test_it_loads_once_and_lazily(self, monkeypatch):
        loads = []
        real = runtime.load
        monkeypatch.setattr(runtime, "load", lambda x: loads.append(x) or real(x))
        launch = launch_of(GemmProblem.dense(40, 24, 65, layout="NN"))
        runtime.kernel.cache_clear()
        kernel = runtime.kernel(launch.to_text())
        assert runtime.kernel(launch.to_text()) is kernel and loads == []
        a, b, c = random(40, 65), random(65, 24), torch.full((40, 24), math.nan).bfloat16()
        for _ in range(3):
            kernel(c, a, b)
        assert loads == [launch]
        assert_product(c, a, b)

    @pytest.mark.parametrize("offset", [0, 1, 4, 8])
    @pytest.mark.parametrize("operand", ["a", "b"])
    def test_checked_operands_arrive_aligned(self, offset, operand):
        """Same strides, same values, and an address that the kernel may assume."""
        problem = GemmProblem.dense(16, 24, 32, layout="NN")
        launch = launch_of(problem, "ab")
        seen = {}

        def loaded(c, a, b):
            seen.update(a=a, b=b)

        shapes = {"a": (16, 32), "b": (32, 24)}
        tensors = {name: random(*shape) for name, shape in shapes.items()}
        rows, columns = shapes[operand]
        storage = random(rows * columns + 64)
        misaligned = storage.as_strided((rows, columns), (columns, 1), offset)
        tensors[operand] = misaligned
        runtime._checked(loaded, launch)(None, tensors["a"], tensors["b"])
        for name, tensor in tensors.items():
            assert seen[name].data_ptr() % 16 == 0
            assert torch.equal(seen[name], tensor) and seen[name].stride() == tensor.stride()
        copied = seen[operand].data_ptr() != misaligned.data_ptr()
        assert copied == bool(misaligned.data_ptr() % 16)

    def test_unchecked_letters_are_left_alone(self):
        seen = []
        launch = launch_of(GemmProblem.dense(16, 24, 32, layout="NN"), "a")
        b = random(1000).as_strided((32, 24), (24, 1), 1)
        runtime._checked(lambda c, a, b: seen.append(b), launch)(None, random(16, 32), b)
        assert seen[0] is b


def test_an_input_that_is_less_aligned_later_is_copied(compiled, ours_is_fast, monkeypatch):
    """Inductor guards no input's address on a CPU; a kernel must see what it was compiled for."""
    addresses = []
    real = runtime.load

    def load(launch):
        loaded = real(dataclasses.replace(launch, check=""))

        def watched(c, a, b):
            addresses.append(
                (a.data_ptr() % launch.problem.a_align, b.data_ptr() % launch.problem.b_align)
            )
            loaded(c, a, b)

        return runtime._checked(watched, launch)

    monkeypatch.setattr(runtime, "load", load)
    runtime.kernel.cache_clear()
    a, b = random(32, 64), random(64, 48)
    fast = torch.compile(lambda a, b: a @ b, mode="max-autotune")
    with torch.no_grad():
        fast(a, b)
        moved = random(32 * 64 + 8).as_strided((32, 64), (64, 1), 1)
        result = fast(moved, b)
    (decision,) = choices.decisions()
    assert decision.problem.a_align == 16
    assert addresses == [(0, 0), (0, 0)]
    assert_product(result, moved, b)


def captured(monkeypatch, function, *inputs):
    """The FlyDSLCaller made while `function` is compiled."""
    made = []
    real = choices._choice
    monkeypatch.setattr(choices, "_choice", lambda *args: made.append(real(*args)) or made[-1])
    with torch.no_grad():
        torch.compile(function, mode="max-autotune")(*inputs)
    return made


def test_a_request_is_benchmarked_from_its_pickle(monkeypatch, ours_is_fast):
    base = random(64, 200)
    (made,) = captured(monkeypatch, lambda x: x[1:41, 3:67] @ x[:, 8:80], base)
    request = made.bmreq
    monkeypatch.undo()
    restored = pickle.loads(pickle.dumps(request))
    assert 0 < restored.benchmark() < 100
    # In this process Inductor passes each buffer once, and our operands are views of it.
    out = torch.full((40, 72), math.nan, dtype=torch.bfloat16)
    run = request.make_run_fn(base, out=out)
    run()
    assert_product(out, base[1:41, 3:67], base[:, 8:80])


def test_a_small_buffer_is_replaced_by_one_that_fits(monkeypatch, ours_is_fast):
    (made,) = captured(monkeypatch, lambda x, y: x @ y, random(40, 64), random(64, 24))
    a, b = made.bmreq._operands((random(2, 2), random(64, 24)))
    assert a.shape == (40, 64) and b.shape == (64, 24)


def test_hash_keys_tell_apart_what_times_depend_on(monkeypatch, ours_is_fast):
    a, b = random(40, 64), random(64, 24)
    (first,) = captured(monkeypatch, lambda a, b: a @ b, a, b)
    (other,) = captured(monkeypatch, lambda a, b: a @ b, random(41, 64), b)
    assert first.hash_key() != other.hash_key()
    device = choices._device(torch.device("cpu"))
    before = choices.cachekey.identity(device)
    monkeypatch.setattr(type(device), "environment", lambda self: {"compute_units": "3"})
    assert choices.cachekey.identity(device) != before
    monkeypatch.undo()
    monkeypatch.setattr(choices.cachekey, "__version__", "9.9")
    assert choices.cachekey.identity(device) != before


def test_failures_are_infinite_time_and_one_warning(monkeypatch, ours_is_fast, caplog):
    (made,) = captured(monkeypatch, lambda a, b: a @ b, random(40, 64), random(64, 24))
    monkeypatch.undo()

    def broken(launch):
        raise SystemError("injected")

    monkeypatch.setattr(runtime, "load", broken)
    runtime.kernel.cache_clear()
    with caplog.at_level(logging.WARNING, "inductor_flydsl"):
        assert made.bmreq.benchmark() == math.inf
    ours = [r for r in caplog.records if r.name == "inductor_flydsl"]
    assert [r.levelname for r in ours] == ["WARNING"]
    assert "SystemError: injected" in ours[0].message


def test_a_request_carries_scoped_settings(monkeypatch, ours_is_fast):
    with settings.scope(emulator_seed=11):
        (made,) = captured(monkeypatch, lambda a, b: a @ b, random(40, 64), random(64, 24))
    assert made.bmreq.scope["emulator_seed"] == 11


def test_autotuning_in_a_subprocess(compiled):
    """Ours is timed in Inductor's tuning process, ATen here; the table has both."""
    a, b = random(128, 64), random(64, 96)
    with inductor_config.patch(autotune_in_subproc=True):
        result, _, (decision,) = compiled(lambda a, b: a @ b, a, b)
    times = {t.name.split("_")[0]: t.us for t in decision.times}
    assert 0 < times["flydsl"] < 1e6
    assert_product(result, a, b)


def test_info_names_backend_and_clock(monkeypatch, ours_is_fast):
    (made,) = captured(monkeypatch, lambda a, b: a @ b, random(40, 64), random(64, 24))
    assert made.info_dict()["backend"] == "FLYDSL" and made.info_dict()["clock"] == "wall"
    assert "clock wall" in made.description


def test_the_emulated_clock_is_never_ranked_beside_another(monkeypatch, compiled, capsys):
    """The reference device, claiming the emulator's clock, stands in for it."""
    from inductor_flydsl.devices import Clock, reference

    real = reference.ReferenceDevice.__init__

    def emulated(self, torch_device="cpu"):
        real(self, torch_device)
        self.clock = Clock.EMULATED

    monkeypatch.setattr(reference.ReferenceDevice, "__init__", emulated)

    def benchmarked(*_, **__):
        raise AssertionError("Inductor benchmarked a choice on the emulated clock")

    monkeypatch.setattr(caller.FlyDSLBenchmarkRequest, "benchmark", benchmarked)
    a, b = random(72, 64), random(64, 96)
    result, code, (decision,) = compiled(lambda a, b: a @ b, a, b)
    assert decision.chosen == "FLYDSL" and "flydsl_kernel_0(" in code
    ranked = [t for t in decision.times if t.us is not None]
    assert {t.clock for t in ranked} == {"emulated"}
    assert min(ranked, key=lambda t: t.us).name == decision.config.name
    assert [t.name for t in decision.times if t.us is None] == ["ATEN mm"]
    table = capsys.readouterr().err
    assert "AUTOTUNE mm 72x96x64 bfloat16 NN" in table and "(emulated)" in table
    assert "ATEN mm not ranked" in table
    assert_product(result, a, b)


def test_a_declined_operand_names_what_is_wrong():
    with pytest.raises(operands.Declined, match="float8"):
        operands._dtype(torch.float8_e4m3fnuz)
