"""Turns the plugin on and off: which hooks are in Inductor, and when.

Owns the state of registration. Importing this module imports no torch, and `register` imports
only what ``import torch._inductor.config`` does, so that it can run while that import is under
way; everything heavier is installed when Inductor first asks for choices.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

from .. import _autoload, settings
from ..errors import InductorFlyDSLError
from . import compat, lowerings, scaled, scaled_grouped

log = logging.getLogger("inductor_flydsl")
_lock = threading.RLock()
_registered = False


class Factory:
    """What ``config.inductor_choices_class`` holds: called, it gives a choices handler of ours.

    Args:
        previous: the factory that was there before; its handlers are kept and stood in front of.

    An object, not a function: PyTorch 2.11 and 2.12 put its pickled form in the FX graph cache
    key, where later versions ask the handler's ``uuid()``. Both have the same content here.
    """

    def __init__(self, previous: Callable[[], Any] | None = None) -> None:
        self.previous = previous

    def __call__(self) -> Any:
        from torch._inductor.choices import InductorChoices

        from . import choices

        handler = InductorChoices() if self.previous is None else self.previous()
        if not _registered:
            return handler
        install_scheduling()
        return choices.handler_of(handler)

    def uuid(self) -> Any:
        """Content for a cache key: that of the handler as it would be made now."""
        made = self()
        return made.uuid() if hasattr(made, "uuid") else ("inductor_flydsl", "off", None)

    def __deepcopy__(self, memo: Any) -> Factory:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.previous, repr(self.uuid()))

    def __repr__(self) -> str:
        return f"inductor_flydsl.Factory(previous={self.previous!r})"


def _restore(previous: Callable[[], Any] | None, key: str) -> Factory:
    """A factory from its pickled form; the key in it is only there to be hashed."""
    return _factory if previous is None else Factory(previous)


_factory = Factory()


def registered() -> bool:
    """Hooks are in place; `disabled` and the settings may still keep them quiet."""
    return _registered


def is_active() -> bool:
    """Registered, and not disabled in this context."""
    try:
        return _registered and not settings.resolve("disable")[0]
    except InductorFlyDSLError as error:
        log.warning("inductor_flydsl is not active: %s", error)
        return False


def register() -> None:
    """Take part in Inductor's autotuning from the next compilation on. Idempotent.

    Imports ``torch._inductor.config``. A choices factory that is in use stays in use behind ours.
    """
    global _registered
    with _lock:
        _autoload.unwatch()
        if _registered:
            return
        compat.add_flag()
        compat.install_factory(_factory, Factory)
        lowerings.install()
        scaled.install()
        scaled_grouped.install()
        _registered = True


def unregister() -> None:
    """Put Inductor's choices factory and schedulers back as `register` found them. Idempotent.

    What is compiled already keeps running; ``config.flydsl_enable_autotuning`` stays settable.
    """
    global _registered
    with _lock:
        _autoload.unwatch()
        if not _registered:
            return
        _registered = False
        compat.remove_factory(_is_ours, lambda factory: factory.previous)
        lowerings.uninstall()
        scaled.uninstall()
        scaled_grouped.uninstall()
        _uninstall_heavy()


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Within the block nothing of ours takes part in what this context compiles. Nests."""
    with settings.scope(disable=True):
        yield


def _is_ours(factory: Any) -> bool:
    return isinstance(factory, Factory)


def install_scheduling() -> None:
    """Put our mixin in front of Inductor's schedulers; idempotent."""
    from . import scheduling

    with _lock:
        if _registered:
            scheduling.install()
            compat.add_cpp_scales()


def _uninstall_heavy() -> None:
    import sys

    compat.remove_cpp_scales()
    if f"{__package__}.scheduling" in sys.modules:
        from . import scheduling

        scheduling.uninstall()
    if f"{__package__}.contest" in sys.modules:
        from . import contest

        compat.remove_selection_hooks(contest.prune, contest.observe)
    if f"{__package__}.grouped" in sys.modules:
        from . import grouped

        compat.remove_selection_hooks(grouped.add_choice)
