"""Functions that Inductor calls before its own lowering of an op that never asks for choices.

Owns the table of them, when it is put in place, which is as soon as Inductor's lowerings are
imported, and that the sum of two products stays two ops. What a function does is the business of
the module of its ops. PyTorch 2.11 has no place for them; there those ops stay with Inductor.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from .. import _autoload
from . import compat

log = logging.getLogger("inductor_flydsl")

TARGET = "torch._inductor.lowering"
# Ops that Inductor leaves to ATen where their scales are E8M0, before it looks for a lowering.
SCALED = "_scaled_grouped_mm"
Lower = Callable[..., Any]


class Lowering:
    """What stands in Inductor's table: ours, then whatever stood there before.

    Args:
        ours: takes an op's arguments; None leaves the op to the next.
        previous: another one's function for the op.
    """

    def __init__(self, ours: Lower, previous: Lower | None) -> None:
        self.ours, self.previous = ours, previous

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.ours(*args, **kwargs)
        if result is None and self.previous is not None:
            return self.previous(*args, **kwargs)
        return result


def install() -> None:
    """Put our functions in place, now or once Inductor's lowerings are imported; idempotent."""
    module = sys.modules.get(TARGET)
    if module is None or getattr(module.__spec__, "_initializing", False):
        if not any(isinstance(finder, _LoweringWatcher) for finder in sys.meta_path):
            sys.meta_path.insert(0, _LoweringWatcher())
        return
    _put(module)


def uninstall() -> None:
    """Undo `install`."""
    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, _LoweringWatcher)]
    compat.disallow_scales()
    compat.join_sums()
    table = getattr(sys.modules.get(TARGET), "user_lowerings", {})
    for op, lowering in list(table.items()):
        if not isinstance(lowering, Lowering):
            continue
        if lowering.previous is None:
            del table[op]
        else:
            table[op] = lowering.previous


class _LoweringWatcher(_autoload.Watcher):
    def __init__(self) -> None:
        super().__init__(TARGET, _put)


def _put(module: ModuleType) -> None:
    compat.split_sums(_apart)
    table = getattr(module, "user_lowerings", None)
    if table is None:
        log.info("this PyTorch has no user lowerings: grouped and MX products stay with Inductor")
        return
    try:
        ours = _ours()
        compat.allow_scales([op for op in ours if SCALED in str(op)])
        for op, lower in ours.items():
            if not isinstance(table.get(op), Lowering):
                table[op] = Lowering(lower, table.get(op))
    except Exception as error:  # The import under way must succeed.
        log.warning("ops without choices stay with Inductor: %s: %s", type(error).__name__, error)


def _apart(nodes: Sequence[Any]) -> bool:
    """Two products that may be ours, and not one op of Inductor's for their sum: the second one's
    kernel adds the first one's result."""
    from . import choices

    return choices.may_serve(nodes)


def _ours() -> dict[Any, Lower]:
    import torch

    from . import grouped, scaled, scaled_grouped

    ours: dict[str, Lower] = {
        "_grouped_mm": grouped.lower,
        "_scaled_grouped_mm": grouped.lower_scaled,
        "_scaled_grouped_mm_v2": scaled_grouped.lower_v2,
        **scaled.LOWERINGS,
    }
    packets = {name: getattr(torch.ops.aten, name, None) for name in ours}
    return {op.default: ours[name] for name, op in packets.items() if op is not None}
