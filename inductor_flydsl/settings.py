"""Every INDUCTOR_FLYDSL_* variable, typed; the only reader of them.

Argument beats scope beats environment beats default: a function that takes one of these as an
argument passes it through `resolve`, everything else asks `current`.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
import os
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import SettingError

PREFIX = "INDUCTOR_FLYDSL_"


@dataclass(frozen=True)
class Knob:
    """One setting: its default, how its text is read, and what it does."""

    name: str
    default: Any
    parse: Callable[[str, str], Any]
    help: str

    @property
    def variable(self) -> str:
        return PREFIX + self.name.upper()


def _bool(name: str, text: str) -> bool:
    value = {"1": True, "true": True, "yes": True, "on": True}
    value |= {"": False, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in value:
        raise SettingError(name, text, "is not a switch", "use 1 or 0")
    return value[text.lower()]


def _one_of(*choices: str) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        if text not in choices:
            raise SettingError(name, text, "is not a choice", f"use one of {', '.join(choices)}")
        return text

    return parse


def _natural(name: str, text: str) -> int:
    if not text.isdigit():
        raise SettingError(name, text, "is not a whole number", "use 0 or more")
    return int(text)


def _device(name: str, text: str) -> str:
    kind, _, rest = text.partition(":")
    legal = {"auto": rest == "", "reference": rest == ""}
    legal |= {"hip": rest == "" or rest.isdigit(), "emulator": rest == "" or rest[:3] == "gfx"}
    if not legal.get(kind, False) or text.endswith(":"):
        way = "use auto, hip, hip:N, emulator, emulator:gfx950 or reference"
        raise SettingError(name, text, "is not a device", way)
    return text


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise SettingError(name, text, "is not a time", "use seconds, 0 or more")
    return value


def _paths(name: str, text: str) -> tuple[Path, ...]:
    parts = text.split(os.pathsep)
    if not all(parts):
        raise SettingError(name, text, "names an empty path", "name directories or unset it")
    return tuple(Path(part).expanduser() for part in parts)


def _file(name: str, text: str) -> Path | None:
    return Path(text).expanduser() if text else None


def _default_store() -> tuple[Path, ...]:
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return (Path(root).expanduser() / "inductor_flydsl",)


KNOBS: dict[str, Knob] = {
    knob.name: knob
    for knob in (
        Knob("disable", False, _bool, "Take no part in autotuning."),
        Knob("device", "auto", _device, "Where kernels run: auto, hip[:N], emulator, reference."),
        Knob(
            "cache_dir",
            None,
            _paths,
            "Directories of the tuning store, as in PATH: the first is written, the others are "
            "only read. Default: inductor_flydsl under $XDG_CACHE_HOME or ~/.cache.",
        ),
        Knob(
            "cache",
            "readwrite",
            _one_of("readwrite", "readonly", "refresh", "require", "off"),
            "readwrite; readonly: store nothing; refresh: measure again; require: a miss is an "
            "error; off: neither look nor store.",
        ),
        Knob("effort", "default", _one_of("default", "exhaustive"), "How many candidates."),
        Knob(
            "jobs",
            0,
            _natural,
            "Compile workers; 0: one a core; 1: no workers, compile in the process itself.",
        ),
        Knob("budget", 0.0, _seconds, "Seconds that one call to tune may take; 0: no limit."),
        Knob(
            "compile_timeout",
            120.0,
            _seconds,
            "Seconds after which the compile of one kernel is ended and the candidate rejected; "
            "0: no limit.",
        ),
        Knob(
            "measure_timeout",
            60.0,
            _seconds,
            "Seconds after which a candidate that hangs while it is measured is ended and "
            "rejected; 0: no limit.",
        ),
        Knob(
            "record",
            None,
            _file,
            "File to which every compile appends the GEMM problems that it meets, for tune.",
        ),
        Knob(
            "emulator_landing",
            "lazy",
            _one_of("lazy", "eager", "random"),
            "When asynchronous memory lands on the emulator: as late as the waits allow, at once, "
            "or at random.",
        ),
        Knob(
            "emulator_order",
            "random",
            _one_of("forward", "reverse", "random", "lockstep"),
            "The order in which the emulator runs the waves of a workgroup.",
        ),
        Knob("emulator_seed", 0, _natural, "Seed of the emulator's random choices."),
    )
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The resolved settings; `KNOBS` documents each."""

    disable: bool
    device: str
    cache_dir: tuple[Path, ...]
    cache: str
    effort: str
    jobs: int
    budget: float
    compile_timeout: float
    measure_timeout: float
    record: Path | None
    emulator_landing: str
    emulator_order: str
    emulator_seed: int


_scope: contextvars.ContextVar[Mapping[str, Any]] = contextvars.ContextVar("scope")
_NO_SCOPE: Mapping[str, Any] = types.MappingProxyType({})


def _check(name: str, value: Any) -> Any:
    if name not in KNOBS:
        raise SettingError(name, value, "is not a setting", f"use one of {', '.join(KNOBS)}")
    # Scoped values take the same path as text, so that both obey the same rules.
    return KNOBS[name].parse(name, as_text(value))


_told: set[str] = set()


def check_names() -> None:
    """Warn of variables with our prefix that no setting reads, once a name and process."""
    known = [knob.variable for knob in KNOBS.values()]
    strangers = [v for v in os.environ if v.startswith(PREFIX) and v not in known]
    for variable in strangers:
        if variable not in _told:
            # Here, not above: every `import torch` imports this module.
            import difflib
            import logging

            _told.add(variable)
            (near,) = difflib.get_close_matches(variable, known, n=1, cutoff=0.0)
            log = logging.getLogger("inductor_flydsl")
            log.warning("%s is no setting and does nothing; did you mean %s?", variable, near)


def as_text(value: Any) -> str:
    """A setting's value as its variable would hold it."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, tuple):
        return os.pathsep.join(map(str, value))
    return "" if value is None else str(value)


def origin(name: str) -> str:
    """Where a setting comes from, usable or not: ``scope``, its variable's name or ``default``."""
    knob = KNOBS[name]
    if name in _scope.get(_NO_SCOPE):
        return "scope"
    return knob.variable if knob.variable in os.environ else "default"


def resolve(name: str, argument: Any = None) -> tuple[Any, str]:
    """The value of a setting and where it came from.

    Args:
        name: a key of KNOBS.
        argument: the caller's own value, or None.

    Returns:
        (value, origin), origin one of ``argument``, ``scope``, the variable's name, ``default``.

    Raises:
        SettingError: the value is not legal; the message names the variable or argument.
    """
    knob = KNOBS.get(name)
    if knob is None:
        raise SettingError(name, argument, "is not a setting", f"use one of {', '.join(KNOBS)}")
    if argument is not None:
        return _check(name, argument), "argument"
    scoped = _scope.get(_NO_SCOPE)
    if name in scoped:
        return scoped[name], "scope"
    text = os.environ.get(knob.variable)
    if text is not None:
        return knob.parse(knob.variable, text), knob.variable
    return (_default_store() if name == "cache_dir" else knob.default), "default"


def current() -> Settings:
    """Every setting as it stands now in this context.

    Raises:
        SettingError: a variable of the environment has an unusable value.
    """
    return Settings(**{name: resolve(name)[0] for name in KNOBS})


@contextlib.contextmanager
def scope(**overrides: Any) -> Iterator[Settings]:
    """Override settings in this context, for the length of a ``with`` block.

    Raises:
        SettingError: an unknown name or an unusable value.
    """
    checked = {name: _check(name, value) for name, value in overrides.items()}
    token = _scope.set({**_scope.get(_NO_SCOPE), **checked})
    try:
        yield current()
    finally:
        _scope.reset(token)
