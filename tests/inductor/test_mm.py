"""`aten.mm` through torch.compile: what is chosen, what is generated, and the numbers."""

import logging

import pytest
import torch
import torch._inductor.config as inductor_config

import inductor_flydsl
from inductor_flydsl.devices import reference
from inductor_flydsl.errors import LaunchFailed
from inductor_flydsl.inductor import runtime

from .conftest import assert_product, random

CALL = "flydsl_kernel_0("


def mm(a, b):
    return a @ b


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_every_layout_and_dtype(compiled, ours_is_fast, layout, dtype):
    a = random(40, 72, dtype=dtype) if layout[0] == "N" else random(72, 40, dtype=dtype).t()
    b = random(72, 56, dtype=dtype) if layout[1] == "N" else random(56, 72, dtype=dtype).t()
    result, code, (decision,) = compiled(mm, a, b)
    assert decision.chosen == "FLYDSL" and decision.problem.layout.value == layout
    assert code.count(CALL) == 1 and "extern_kernels.mm" not in code
    assert_product(result, a, b)


def test_generated_code_is_one_import_and_one_call(compiled, ours_is_fast):
    _, code, (decision,) = compiled(mm, random(32, 64), random(64, 48))
    lines = [x for x in code.splitlines() if "flydsl" in x and not x.lstrip().startswith("#")]
    assert len(lines) == 3
    assert lines[0] == "from inductor_flydsl.inductor import runtime as flydsl_runtime"
    text = lines[1].removeprefix("flydsl_kernel_0 = flydsl_runtime.kernel('").removesuffix("')")
    assert runtime.Launch.from_text(text).problem == decision.problem
    assert lines[2].strip().startswith(CALL)


def test_equal_products_share_a_kernel(compiled, ours_is_fast):
    x, y, b = random(32, 64), random(32, 64), random(64, 64)
    results, code, _ = compiled(lambda x, y, b: (x @ b, y @ b), x, y, b)
    assert code.count("flydsl_runtime.kernel(") == 1 and code.count(CALL) == 2
    assert_product(results[0], x, b)
    assert_product(results[1], y, b)


@pytest.mark.parametrize("shape", [(1, 64, 7), (7, 33, 24), (127, 1, 8), (3, 5, 1), (1, 1, 1)])
def test_odd_extents(compiled, ours_is_fast, shape):
    m, k, n = shape
    a, b = random(m, k), random(k, n)
    result, _, _ = compiled(mm, a, b)
    assert_product(result, a, b)


def views():
    base = random(64, 200)
    return {
        "offset rows": (base[3:40, :72], random(72, 40)),
        "offset columns": (base[:, 5:77], random(72, 40)),
        "every second row": (base[::2, :72], random(72, 40)),
        "every second column": (base[:, ::2], random(100, 40)),
        "every third of a transposed": (random(72, 96).t()[::3], random(72, 40)),
        "expanded rows": (random(1, 72).expand(64, 72), random(72, 40)),
        "expanded columns": (random(64, 1).expand(64, 72), random(72, 40)),
        "expanded scalar": (random(1, 1).expand(64, 72), random(72, 40)),
        "overlapping windows": (random(500).as_strided((64, 72), (4, 1)), random(72, 40)),
    }


@pytest.mark.parametrize("name", list(views()))
def test_views(compiled, ours_is_fast, name):
    a, b = views()[name]
    result, _, decisions = compiled(mm, a, b)
    assert [d.chosen for d in decisions] == ["FLYDSL"]
    assert_product(result, a, b)
    # The other operand, through the transposed product.
    result, _, _ = compiled(mm, b.t(), a.t())
    assert_product(result, b.t(), a.t())


def test_views_made_inside_the_graph(compiled, ours_is_fast):
    a, b = random(64, 200), random(72, 90)
    result, code, (decision,) = compiled(lambda a, b: a[1::2, 8:80] @ b[:, 3:59], a, b)
    assert "reinterpret_tensor" in code and decision.chosen == "FLYDSL"
    assert (decision.problem.lda, decision.problem.ldb) == (400, 90)
    assert (decision.problem.a_align, decision.problem.b_align) == (16, 2)
    assert_product(result, a[1::2, 8:80], b[:, 3:59])


def test_both_operands_are_views_of_one_buffer(compiled):
    """Inductor's benchmark passes one tensor for the two; ours is really benchmarked here."""
    x = random(64, 64)
    result, _, (decision,) = compiled(lambda x: x @ x.t(), x)
    assert [t.us > 0 for t in decision.times] == [True, True]
    assert {t.clock for t in decision.times} == {"wall"}
    assert_product(result, x, x.t())


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        (torch.randn(8, 8), torch.randn(8, 8), "dtype float32 has no kernel"),
        (torch.ones(8, 8, dtype=torch.int32), torch.ones(8, 8, dtype=torch.int32), "int32"),
        (
            torch.randn(8, 8, dtype=torch.float64),
            torch.randn(8, 8).double(),
            "dtype float64 has no",
        ),
        (random(8, 0), random(0, 8), "an operand is empty"),
        (random(0, 8), random(8, 8), "an operand is empty"),
    ],
)
def test_what_no_kernel_serves_stays_with_aten(compiled, a, b, reason):
    result, _, decisions = compiled(mm, a, b)
    assert torch.equal(result, a @ b)
    # Some of these never reach a GEMM lowering; what does has its reason.
    assert all(d.chosen == "ATEN" and reason in d.reason for d in decisions)


def test_a_span_over_2_gib_stays_with_aten(compiled):
    storage = torch.empty(2**30 + 64, dtype=torch.bfloat16)
    a = storage.as_strided((2, 16), (2**30, 1))
    a.copy_(random(2, 16))
    b = random(16, 8)
    result, _, (decision,) = compiled(mm, a, b)
    assert decision.chosen == "ATEN" and "tile of A spans" in decision.reason
    assert_product(result, a, b)


def test_other_ops_are_declined_in_words(compiled, monkeypatch):
    from inductor_flydsl.inductor import choices

    monkeypatch.delitem(choices.OPS, "bmm")
    a, b = random(3, 40, 72), random(3, 72, 56)
    result, _, decisions = compiled(torch.bmm, a, b)
    assert decisions and {d.op for d in decisions} == {"bmm"}
    assert all("op bmm has no kernel yet" in d.reason for d in decisions)
    assert_product(result, a, b)


def test_cpp_wrapper_is_declined(compiled):
    with inductor_config.patch(cpp_wrapper=True):
        from inductor_flydsl.inductor import compat

        class Graph:
            cpp_wrapper = True

        assert "cpp_wrapper" in compat.graph_limit(Graph())


class TestFlydslNotInTheList:
    @pytest.mark.parametrize("backends", ["ATEN,TRITON", "ATEN", "ATEN,FLYDSLX"])
    def test_nothing_happens(self, compiled, monkeypatch, backends):
        def touched(*_, **__):
            raise AssertionError("a device was asked for")

        monkeypatch.setattr("inductor_flydsl.inductor.choices.get_device", touched)
        with inductor_config.patch(max_autotune_gemm_backends=backends):
            _, code, decisions = compiled(mm, random(32, 64), random(64, 48))
        assert decisions == () and "flydsl" not in code

    def test_nothing_happens_without_max_autotune(self):
        from inductor_flydsl.inductor import choices

        a, b = random(32, 64), random(64, 48)
        assert_product(torch.compile(mm)(a, b), a, b)
        assert choices.decisions() == ()


class TestFlydslAlone:
    def test_ours_is_taken_unbenchmarked(self, compiled):
        a, b = random(32, 64), random(64, 48)
        with inductor_config.patch(max_autotune_gemm_backends="flydsl"):
            result, code, (decision,) = compiled(mm, a, b)
        assert decision.reason == "the only choice in the list" and CALL in code
        assert_product(result, a, b)

    def test_a_decline_still_compiles(self, compiled):
        a, b = torch.randn(32, 64), torch.randn(64, 48)
        with inductor_config.patch(max_autotune_gemm_backends="FLYDSL"):
            result, code, (decision,) = compiled(mm, a, b)
        assert decision.chosen == "ATEN" and "extern_kernels.mm" in code
        assert_product(result, a, b)


@pytest.fixture
def broken(monkeypatch):
    """``broken(how, all_of_them)`` spoils the first candidate to be loaded, or every one.

    Returns the list of configurations that are spoilt, filled as they are loaded.
    """

    def spoil(how, *, all_of_them):
        spoilt = []
        real = reference.ReferenceDevice.load

        def load(self, artifact, problem, config, scratch=None):
            if config not in spoilt and (all_of_them or not spoilt):
                spoilt.append(config)
            kernel = real(self, artifact, problem, config)
            if config not in spoilt:
                return kernel
            if how == "load":
                raise LaunchFailed("injected: it does not load")

            def wrong(c, a, b):
                if how == "launch":
                    raise LaunchFailed("injected: it does not run")
                kernel(c, a, b)
                c[-1, -1] += 1

            return wrong

        monkeypatch.setattr(reference.ReferenceDevice, "load", load)
        return spoilt

    return spoil


class TestFailures:
    """Whatever goes wrong on our side, the user's compile succeeds and the reason is told."""

    @pytest.mark.parametrize("how", ["wrong numbers", "load", "launch"])
    def test_a_rejected_candidate_loses(self, compiled, ours_is_fast, broken, caplog, how):
        rejected = broken(how, all_of_them=False)
        a, b = random(48, 64), random(64, 48)
        with caplog.at_level(logging.WARNING, "inductor_flydsl"):
            result, _, (decision,) = compiled(mm, a, b)
        assert decision.chosen == "FLYDSL" and rejected and decision.config not in rejected
        told = [r for r in caplog.records if "rejected" in r.message and r.levelname == "WARNING"]
        assert len(told) == 1 and rejected[0].name in told[0].message
        assert_product(result, a, b)

    @pytest.mark.parametrize("how", ["wrong numbers", "load", "launch"])
    @pytest.mark.parametrize("tuned", [True, False])
    def test_when_all_are_rejected_aten_runs(self, compiled, broken, how, tuned):
        broken(how, all_of_them=True)
        a, b = random(56, 64), random(64, 48)
        with inductor_config.patch(flydsl_enable_autotuning=tuned):
            result, code, (decision,) = compiled(mm, a, b)
        assert decision.chosen == "ATEN" and "rejected" in decision.reason
        assert "extern_kernels.mm" in code
        assert_product(result, a, b)

    @pytest.mark.parametrize("error", [ValueError, RuntimeError, KeyError, AssertionError])
    def test_an_error_in_the_benchmark_loses(self, compiled, monkeypatch, caplog, error):
        def load(launch):
            raise error("injected launch failure")

        monkeypatch.setattr(runtime, "load", load)
        runtime.kernel.cache_clear()
        a, b = random(24, 64), random(64, 48)
        with caplog.at_level(logging.WARNING, "inductor_flydsl"):
            result, code, (decision,) = compiled(mm, a, b)
        assert decision.chosen == "ATEN" and "extern_kernels.mm" in code
        assert sum("injected launch failure" in r.message for r in caplog.records) == 1
        assert_product(result, a, b)

    def test_a_bug_of_ours_is_a_decline(self, compiled, monkeypatch, caplog):
        def broken(*_):
            raise ZeroDivisionError("injected bug")

        monkeypatch.setattr("inductor_flydsl.tuner.tune", broken)
        a, b = random(16, 64), random(64, 48)
        with caplog.at_level(logging.WARNING, "inductor_flydsl"):
            result, _, (decision,) = compiled(mm, a, b)
        assert decision.reason == "ZeroDivisionError: injected bug"
        assert_product(result, a, b)

    def test_an_unusable_setting_is_a_decline(self, compiled, monkeypatch):
        monkeypatch.setenv("INDUCTOR_FLYDSL_DEVICE", "toaster")
        a, b = random(16, 64), random(64, 48)
        result, _, (decision,) = compiled(mm, a, b)
        assert decision.chosen == "ATEN" and "INDUCTOR_FLYDSL_DEVICE" in decision.reason
        assert_product(result, a, b)

    def test_a_required_record_that_is_missing_is_the_users_wish(self, compiled, monkeypatch):
        monkeypatch.setenv("INDUCTOR_FLYDSL_CACHE", "require")
        with pytest.raises(Exception, match="no tuning record"):
            compiled(mm, random(16, 64), random(64, 48))


class TestAutotuningFlag:
    def test_off_tries_one_config_and_stores_nothing(self, compiled, ours_is_fast, store):
        from inductor_flydsl import tuner

        before = tuner.stats()
        a, b = random(80, 64), random(64, 48)
        with inductor_config.patch(flydsl_enable_autotuning=False):
            result, _, (decision,) = compiled(mm, a, b)
        assert decision.chosen == "FLYDSL"
        assert tuner.stats().tuned == before.tuned and not list(store.rglob("*.json"))
        assert_product(result, a, b)

    def test_off_takes_a_stored_pick(self, compiled, ours_is_fast):
        a, b = random(80, 64), random(64, 40)
        _, _, (tuned,) = compiled(mm, a, b)
        torch._dynamo.reset()
        with inductor_config.patch(flydsl_enable_autotuning=False):
            _, _, (decision,) = compiled(mm, a, b)
        assert decision.config == tuned.config

    def test_on_measures_once_and_looks_up_afterwards(self, compiled, ours_is_fast):
        from inductor_flydsl import tuner

        a, b = random(96, 64), random(64, 40)
        compiled(mm, a, b)
        measured = tuner.stats().measured
        torch._dynamo.reset()
        compiled(mm, a, b)
        assert tuner.stats().measured == measured


def test_the_random_state_is_left_alone(compiled):
    a, b = random(96, 72), random(72, 40)
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    compiled(mm, a, b)
    assert torch.equal(torch.rand(3), expected)


def test_disabled_block_and_unregister(compiled, ours_is_fast):
    a, b = random(32, 64), random(64, 48)
    with inductor_flydsl.disabled():
        _, code, decisions = compiled(mm, a, b)
    assert decisions == () and "flydsl" not in code
    torch._dynamo.reset()
    inductor_flydsl.unregister()
    _, code, decisions = compiled(mm, a, b)
    assert decisions == () and "flydsl" not in code
    torch._dynamo.reset()
    inductor_flydsl.register()
    _, code, decisions = compiled(mm, a, b)
    assert len(decisions) == 1 and CALL in code


OTHERS = {
    "int_mm": (
        lambda a, b: torch._int_mm(a, b),
        lambda: [torch.randint(-9, 9, (32, 32), dtype=torch.int8) for _ in range(2)],
    ),
    "mm_plus_mm": (
        lambda a, b: a @ b + b @ a,
        lambda: [random(32, 32, dtype=torch.float32) for _ in range(2)],
    ),
}


@pytest.mark.parametrize("op", OTHERS)
def test_ops_without_a_kernel_compile_where_flydsl_is_alone_in_the_list(compiled, op):
    function, make = OTHERS[op]
    inputs = make()
    with inductor_config.patch(max_autotune_gemm_backends="FLYDSL"):
        result, _, decisions = compiled(function, *inputs)
    assert (decisions[0].op, decisions[0].chosen) == (op, "ATEN")
    torch.testing.assert_close(result, function(*inputs))
