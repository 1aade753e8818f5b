from __future__ import annotations

import threading
from pathlib import Path

import pytest

from inductor_flydsl import settings
from inductor_flydsl.errors import SettingError


def test_defaults_follow_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    now = settings.current()
    assert now.cache_dir == (tmp_path / "inductor_flydsl",)
    assert (now.disable, now.device, now.cache, now.effort) == (
        False,
        "auto",
        "readwrite",
        "default",
    )
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert settings.current().cache_dir == (Path.home() / ".cache" / "inductor_flydsl",)


def test_argument_beats_scope_beats_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.resolve("device") == ("auto", "default")
    monkeypatch.setenv("INDUCTOR_FLYDSL_DEVICE", "reference")
    assert settings.resolve("device") == ("reference", "INDUCTOR_FLYDSL_DEVICE")
    with settings.scope(device="emulator"):
        assert settings.resolve("device") == ("emulator", "scope")
        with settings.scope(jobs=3):
            assert settings.current().device == "emulator"
            assert settings.current().jobs == 3
        assert settings.resolve("device", "hip:1") == ("hip:1", "argument")
    assert settings.resolve("device") == ("reference", "INDUCTOR_FLYDSL_DEVICE")


def test_scope_ends_with_an_exception_and_stays_in_its_thread() -> None:
    seen = []
    with pytest.raises(RuntimeError), settings.scope(effort="exhaustive"):
        thread = threading.Thread(target=lambda: seen.append(settings.current().effort))
        thread.start()
        thread.join()
        raise RuntimeError
    assert seen == ["default"]
    assert settings.current().effort == "default"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("disable", "maybe"),
        ("device", "cuda"),
        ("device", "hip:x"),
        ("device", "emulator:"),
        ("device", "reference:0"),
        ("cache", "rw"),
        ("cache_dir", ""),
        ("effort", "high"),
        ("jobs", "-1"),
        ("emulator_landing", "never"),
    ],
)
def test_unusable_values_name_the_variable(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    variable = settings.KNOBS[name].variable
    monkeypatch.setenv(variable, text)
    with pytest.raises(SettingError, match=variable):
        settings.current()
    with pytest.raises(SettingError, match=name), settings.scope(**{name: text}):
        pass


@pytest.mark.parametrize("text", ["auto", "hip", "hip:7", "emulator", "emulator:gfx950"])
def test_device_names(text: str) -> None:
    assert settings.resolve("device", text) == (text, "argument")


def test_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, value in (("1", True), ("TRUE", True), ("", False), ("off", False)):
        monkeypatch.setenv("INDUCTOR_FLYDSL_DISABLE", text)
        assert settings.current().disable is value
    with settings.scope(disable=True):
        assert settings.current().disable is True


def test_unknown_names_are_refused() -> None:
    with pytest.raises(SettingError, match="colour.*disable"), settings.scope(colour="red"):
        pass
    with pytest.raises(SettingError, match="colour"):
        settings.resolve("colour")


def test_every_knob_has_a_field_and_help() -> None:
    assert set(settings.KNOBS) == set(settings.Settings.__dataclass_fields__)
    assert all(knob.help.endswith(".") for knob in settings.KNOBS.values())


def test_a_misspelled_variable_is_named_once_with_the_nearest_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("INDUCTOR_FLYDSL_EFORT", "exhaustive")
    monkeypatch.setenv("INDUCTOR_FLYDSL_EFFORT", "default")
    for _ in range(2):
        settings.check_names()
    (line,) = caplog.messages
    assert "INDUCTOR_FLYDSL_EFORT is no setting" in line and "INDUCTOR_FLYDSL_EFFORT?" in line
