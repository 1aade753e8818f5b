"""Entry point of the group ``torch.backends``: what runs inside every ``import torch``.

Imports nothing of torch and nothing heavy, and never raises. It leaves one finder on
``sys.meta_path`` that waits for ``torch._inductor.config`` to be imported, which happens when a
program first compiles; importing that module from here would double the time of ``import torch``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from . import settings

TARGET = "torch._inductor.config"


class Watcher(MetaPathFinder):
    """Calls a function right after a module of another package has run, once.

    Args:
        name: of the module, not imported yet.
        then: takes the module; never raises.
    """

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name, self.then = name, then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not self]
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def run_then_call(module: ModuleType) -> None:
            run(module)
            self.then(module)

        # An attribute of this one loader: its type, and with it inspect.getsource on the module
        # (which ConfigModule needs while it runs), stays as it is.
        spec.loader.exec_module = run_then_call  # type: ignore[method-assign]
        return spec


class ConfigWatcher(Watcher):
    """Registers the plugin right after ``torch._inductor.config`` has run, once."""

    def __init__(self) -> None:
        super().__init__(TARGET, lambda module: _register_quietly())


def autoload() -> None:
    """Arrange for the plugin to register itself when Inductor is first imported."""
    try:
        settings.resolve("disable")
    except Exception as error:
        _complain(error)
    try:
        if TARGET in sys.modules:
            _register_quietly()
        elif not any(isinstance(finder, ConfigWatcher) for finder in sys.meta_path):
            sys.meta_path.insert(0, ConfigWatcher())
    except Exception as error:  # An error here would break the user's `import torch`.
        _complain(error)


def unwatch() -> None:
    """Take every watcher off ``sys.meta_path``."""
    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, ConfigWatcher)]


def _register_quietly() -> None:
    try:
        # The option stays settable where the plugin is off: a program that sets it must not fail.
        from .inductor import compat

        compat.add_flag()
        if _is_off():
            return
        from .inductor.activate import register

        register()
    except Exception as error:  # As above: the import under way must succeed.
        _complain(error)


def _is_off() -> bool:
    """The variable says so, or says something that was complained of at import."""
    try:
        return bool(settings.resolve("disable")[0])
    except Exception:
        return True


def _complain(error: Exception) -> None:
    import logging

    log = logging.getLogger("inductor_flydsl")
    log.warning("inductor_flydsl is not active: %s: %s", type(error).__name__, error)
