"""The products that a graph will ask for: compiled all at once when it asks for the first.

Inductor lowers one op after another and would wait for the candidates of each. Owns the reading of
FX nodes that are not lowered yet; what is guessed wrong here (a layout that Inductor changes) costs
a compile and is compiled rightly when its turn comes. Decides nothing and never fails.
"""

from __future__ import annotations

import logging
import types
import weakref
from typing import Any

from .. import settings
from ..devices import Device
from ..problem import GemmProblem
from . import operands

log = logging.getLogger("inductor_flydsl")

# Ops that look at their first argument's memory.
VIEWS = ("permute", "t", "transpose", "view", "reshape", "slice", "expand", "unsqueeze", "squeeze")
# Op → which argument is A; B is the next one.
FIRST = {"aten.mm.default": 0, "aten.addmm.default": 1}
FIRST |= {"aten.bmm.default": 0, "aten.baddbmm.default": 1}
_seen: weakref.WeakSet[Any] = weakref.WeakSet()


def compile_all(device: Device) -> None:
    """Compile the candidates of every product of the graph that is being lowered, once a graph."""
    from torch._inductor.virtualized import V

    from .. import tuner

    try:
        graph = V.graph
        if graph in _seen or settings.current().cache in ("require", "off"):
            return
        _seen.add(graph)
        found = problems(graph)
        if len(found) > 1:
            tuner.default_tuner().precompile(found, device)
    except Exception as error:  # Only the order of compiles is at stake here.
        log.debug("the graph's products are compiled one by one: %s", error, exc_info=True)


def problems(graph: Any) -> list[GemmProblem]:
    """The matrix products of a graph as its traced values describe them, each once."""
    found: dict[GemmProblem, None] = {}
    for node in graph.module.graph.nodes:
        first = FIRST.get(str(node.target))
        if first is None:
            continue
        try:
            value = node.meta["val"]
            layout = types.SimpleNamespace(
                size=_numbers(value.shape),
                stride=_numbers(value.stride()),
                offset=0,
                dtype=value.dtype,
                device=value.device,
            )
            a, b = (_Traced(argument) for argument in node.args[first : first + 2])
            found[operands.plain(operands.product(a, b, layout).problem)] = None
        except Exception as error:
            log.debug("%s is not compiled ahead: %s", node, error)
    return list(found)


def _numbers(values: Any) -> list[Any]:
    """Traced sizes as Inductor has them; to make an int of a symbolic one would fix its value."""
    return [v if isinstance(v, int) else v.node.expr for v in values]


class _Traced:
    """What `operands` asks of an IR node, of an FX node."""

    def __init__(self, node: Any) -> None:
        self._value = node.meta["val"]
        while getattr(node.target, "overloadpacket", None) is not None and (
            node.target.overloadpacket.__name__ in VIEWS
        ):
            node = node.args[0]
        self._name = node.name

    def get_name(self) -> str:
        return self._name

    def get_size(self) -> list[Any]:
        return _numbers(self._value.shape)

    def get_stride(self) -> list[Any]:
        return _numbers(self._value.stride())

    def get_dtype(self) -> Any:
        return self._value.dtype

    def get_device(self) -> Any:
        return self._value.device

    def get_layout(self) -> Any:
        (offset,) = _numbers([self._value.storage_offset()])
        return types.SimpleNamespace(offset=offset)

    def freeze_layout(self) -> None:
        """What is traced is fixed."""
