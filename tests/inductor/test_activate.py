"""Registration: what is put into Inductor, what is taken out again, and what an import costs."""

import os
import pickle
import subprocess
import sys
import threading
import types

import pytest
import torch
import torch._inductor.config as inductor_config
from torch._inductor import choices as inductor_choices
from torch._inductor import select_algorithm
from torch._inductor.codegen import common
from torch._inductor.virtualized import V

import inductor_flydsl
from inductor_flydsl import _autoload
from inductor_flydsl.inductor import activate, choices, compat, contest, scheduling

from .conftest import random


def ours(handler):
    return isinstance(handler, choices.FlyDSLChoicesMixin)


def compile_once(function=lambda a, b: a @ b):
    with torch.no_grad():
        torch.compile(function, mode="max-autotune")(random(32, 64), random(64, 48))


class OtherChoices(inductor_choices.InductorChoices):
    """Somebody else's handler."""

    seen = 0

    def get_template_configs(self, *args, **kwargs):
        OtherChoices.seen += 1
        return super().get_template_configs(*args, **kwargs)

    def uuid(self):
        return "other"


def test_register_and_unregister_are_idempotent():
    for _ in range(3):
        inductor_flydsl.register()
    assert activate.registered() and ours(V.choices)
    for _ in range(3):
        inductor_flydsl.unregister()
    assert not activate.registered() and not ours(V.choices)


def test_unregister_restores_everything():
    inductor_flydsl.unregister()
    selector = select_algorithm.get_algorithm_selector_cache()

    def state():
        table = compat.scheduling_table()
        return (
            inductor_config.inductor_choices_class,
            {device: entry.scheduling for device, entry in table.items()},
            list(selector.preprocessing_fns),
            list(selector.feedback_saver_fns),
            list(sys.meta_path),
        )

    before = state()
    inductor_flydsl.register()
    compile_once()
    assert isinstance(compat.scheduling_table()["cpu"].scheduling, scheduling.Scheduled)
    assert contest.prune in selector.preprocessing_fns
    inductor_flydsl.unregister()
    assert state() == before


def test_a_previous_factory_is_chained_and_restored():
    inductor_flydsl.unregister()
    with inductor_config.patch(inductor_choices_class=OtherChoices):
        inductor_flydsl.register()
        OtherChoices.seen = 0
        compile_once()
        assert OtherChoices.seen == 1 and choices.decisions()
        assert isinstance(V.choices, OtherChoices) and V.choices.uuid()[2] == "other"
        inductor_flydsl.unregister()
        assert inductor_config.inductor_choices_class is OtherChoices


def test_the_handler_that_is_chained_is_not_changed():
    shared = OtherChoices()
    assert ours(choices.handler_of(shared)) and type(shared) is OtherChoices
    assert (
        choices.handler_of(choices.handler_of(shared)).__class__.__mro__.count(
            choices.FlyDSLChoicesMixin
        )
        == 1
    )


def test_a_stale_handler_of_this_thread_is_dropped():
    inductor_flydsl.unregister()
    assert not ours(V.choices)
    inductor_flydsl.register()
    assert ours(V.choices)


def test_every_thread_sees_the_registration():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(ours(V.choices)))
    thread.start()
    thread.join()
    assert seen == [True]


def test_a_handler_left_in_another_thread_is_quiet_after_unregister():
    handler = V.choices
    assert ours(handler) and choices.is_active()
    inductor_flydsl.unregister()
    assert not choices.is_active()
    assert handler.uuid()[1] == "off"


def test_threads_register_and_unregister_at_once():
    def work():
        for _ in range(20):
            inductor_flydsl.register()
            inductor_flydsl.unregister()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not activate.registered()
    # Another thread took it out: this one's view of the config may keep a factory, a quiet one.
    assert not ours(V.choices)
    assert not isinstance(common.device_codegens["cpu"].scheduling, scheduling.Scheduled)


def test_disabled_nests_and_is_of_this_context():
    inside = []
    with inductor_flydsl.disabled():
        with inductor_flydsl.disabled():
            assert not choices.is_active()
        assert not choices.is_active()
        thread = threading.Thread(target=lambda: inside.append(choices.is_active()))
        thread.start()
        thread.join()
    assert choices.is_active() and inside == [True]


def test_the_factory_survives_what_inductor_does_with_config_values():
    import copy

    factory = inductor_config.inductor_choices_class
    assert copy.deepcopy(factory) is factory
    assert pickle.loads(pickle.dumps(factory)) is factory
    inductor_config.save_config()
    assert inductor_config.get_hash()


class TestFlag:
    def test_it_is_a_config_like_any_other(self):
        name = "flydsl_enable_autotuning"
        with inductor_config.patch({name: False}):
            assert getattr(inductor_config, name) is False
            off = inductor_config.save_config_portable()[name]
            with inductor_config.patch({name: True}):
                assert inductor_config.save_config_portable()[name] is not off
                saved = pickle.loads(inductor_config.save_config())
                assert saved[name] is True
                assert compat.autotuning_enabled()
            assert getattr(inductor_config, name) is False

    def test_it_stays_settable_after_unregister(self):
        inductor_flydsl.unregister()
        inductor_config.flydsl_enable_autotuning = True

    def test_other_names_are_still_refused(self):
        with pytest.raises(AttributeError):
            inductor_config.flydsl_enable_autotuningg = True


def python(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), done.stderr


AUTOLOAD = """
import sys, inductor_flydsl._autoload as a
before = set(sys.modules)
a.autoload()
import torch
a.autoload()
print(sum(isinstance(f, a.ConfigWatcher) for f in sys.meta_path))
print(any(n.startswith(("torch._inductor", "flydsl")) for n in sys.modules))
print("inductor_flydsl.inductor.activate" in sys.modules)
"""


class TestAutoload:
    def test_import_torch_imports_nothing_more(self):
        """At most a finder is left behind: no Inductor, no FlyDSL, none of the rest of ours."""
        out, _ = python(AUTOLOAD, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        assert out == ["1", "False", "False"]

    def test_inductors_config_brings_the_registration(self):
        """And imports no more of Inductor than it does by itself."""
        listing = "print(sorted(n for n in sys.modules if n.startswith(('torch', 'flydsl'))))"
        plain = f"import sys, torch, torch._inductor.config\n{listing}"
        code = f"""
import sys, inductor_flydsl._autoload as a
a.autoload()
import torch._inductor.config as config
config.flydsl_enable_autotuning = True
{listing}
from inductor_flydsl.inductor import activate
print(activate.registered(), any(isinstance(f, a.ConfigWatcher) for f in sys.meta_path))
"""
        without, _ = python(plain, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        out, _ = python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
        assert out[-2:] == ["True", "False"]
        assert out[:-2] == without

    def test_the_variable_turns_it_off(self):
        code = AUTOLOAD + "import torch._inductor.config as c; print(c.inductor_choices_class)"
        environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "INDUCTOR_FLYDSL_DISABLE": "1"}
        out, _ = python(code, **environment)
        # The watcher still waits, to make the option settable; nothing is registered.
        assert out == ["1", "False", "False", "None"]

    @pytest.mark.parametrize("value", ["perhaps", "2"])
    def test_an_unusable_variable_is_a_warning(self, value):
        environment = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "INDUCTOR_FLYDSL_DISABLE": value}
        _, err = python("import inductor_flydsl._autoload as a; a.autoload()", **environment)
        assert "inductor_flydsl is not active" in err and "INDUCTOR_FLYDSL_DISABLE" in err

    def test_an_error_in_registration_never_leaves(self, monkeypatch, caplog):
        broken = types.SimpleNamespace()
        monkeypatch.setitem(sys.modules, "inductor_flydsl.inductor.activate", broken)
        _autoload.autoload()
        assert "inductor_flydsl is not active" in caplog.text
