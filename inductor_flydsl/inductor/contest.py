"""What happens to our choice among others: pruned to it, or benchmarked beside them.

Owns the two functions that Inductor calls around a benchmark, and the decisions they record. Which
choice there is, is `choices`' business.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from ..devices import get_device
from ..errors import InductorFlyDSLError
from . import activate, compat, operands
from .decisions import Decision, Time, amend, print_table, record, table

log = logging.getLogger("inductor_flydsl")


def prune(choices: list[Any]) -> list[Any]:
    """Keep one choice where times cannot be compared: ours, on the emulator's clock.

    Also records the decision wherever there is one choice, since nothing is benchmarked then.
    """
    from .caller import FlyDSLCaller

    mine = [c for c in choices if isinstance(c, FlyDSLCaller)]
    if not mine or not activate.is_active():
        return choices
    ours = min(mine, key=_own_us)
    if not ours.ranked:
        _tell_unranked(ours, mine, [c for c in choices if c not in mine])
        return [ours]
    if len(choices) == 1:
        _record_win(ours, "the only choice in the list", ())
    return choices


def _own_us(ours: Any) -> float:
    """Time of a choice of ours on its own clock, with that predicted for its copies."""
    times, _ = ours.annotations["flydsl_times"]
    found = [t.us for t in times if t.name == ours.launch.config.name and t.us is not None]
    return float(min(found, default=math.inf) + ours.copy_us)


def _row(ours: Any) -> str:
    """What a table calls a choice of ours where there are several."""
    kernel = f"{ours.launch.config.name} {ours.launch.problem.layout.value}"
    if not ours.copy_us:
        return f"{kernel} as operands lie"
    return f"{kernel} and copies ({ours.copy_us:.2f} us, predicted)"


def _tell_unranked(ours: Any, mine: list[Any], others: list[Any]) -> None:
    times, measured = ours.annotations["flydsl_times"]
    best = ours.launch.config.name
    tried = measured or len(times)
    if len(mine) > 1:
        best = _row(ours)
        times = tuple(Time(_row(c), _own_us(c), c.clock) for c in mine)
    times += tuple(Time(f"{compat.backend_name(c)} {c.name}", None, "none") for c in others)
    reason = f"fastest of {tried} on the {ours.clock} clock; "
    reason += "others are the fallback and not ranked on it"
    _keep(ours, _decision(ours, "FLYDSL", reason, times, best))
    if measured and compat.prints_tables():
        print_table(table(f"{ours.launch.problem}, {ours.launch.device}", times, best))


def _record_win(ours: Any, reason: str, times: tuple[Time, ...]) -> None:
    _keep(ours, _decision(ours, "FLYDSL", reason, times, ours.name))


def _keep(ours: Any, decision: Decision) -> None:
    ours.annotations["flydsl_decision"] = record(decision)


def _amend(ours: Any, **fields: Any) -> None:
    kept = ours.annotations.get("flydsl_decision")
    if kept is not None:
        ours.annotations["flydsl_decision"] = amend(kept, **fields)


def tell_settled(ours: Any, reason: str) -> None:
    """Our choice was taken before epilogues are fused; see `settle`."""
    log.info("%s is taken: %s", ours.name, reason)
    _amend(ours, chosen="FLYDSL", winner=ours.name, reason=reason)


def tell_fused(ours: Any, nodes: list[Any], stores: tuple[str, ...]) -> None:
    """These scheduler nodes are computed in our kernel, which stores these buffers too."""
    found = ours.annotations.setdefault("flydsl_apart", {})
    for node in nodes:
        # Tried before what it reads had joined.
        found.pop(node.get_name(), None)
    names = {node.get_name(): _words(node) for node in nodes}
    words = tuple(names.get(store, f"{store} ({ours.launch.problem.op})") for store in stores)
    _amend(ours, fused=tuple(names.values()), stored=words, apart=tuple(found.values()))


def tell_apart(ours: Any, node: Any, reason: str) -> None:
    """A scheduler node that follows our product cannot join its kernel."""
    log.info("%s stays apart from %s: %s", _words(node), ours.name, reason)
    found = ours.annotations.setdefault("flydsl_apart", {})
    parts = {part.get_name() for part in node.get_nodes()}
    ours.annotations.setdefault("flydsl_told", []).append(parts)
    found[node.get_name()] = f"{_words(node)}: {reason}"
    # Where the op is open still, there is no decision yet: it gets the reasons when it is made.
    _amend(ours, apart=tuple(found.values()))


def told(ours: Any, node: Any) -> bool:
    """It is said already why a scheduler node, or a part of it, stays apart."""
    parts = {part.get_name() for part in node.get_nodes()}
    return any(parts & names for names in ours.annotations.get("flydsl_told", ()))


def _words(node: Any) -> str:
    """A scheduler node by the names of the graph's nodes that it computes."""
    parts = [part.node for part in node.get_nodes() if part.node is not None]
    origins = {origin.name for part in parts for origin in part.get_origins()}
    return f"{node.get_name()} ({', '.join(sorted(origins))})" if origins else node.get_name()


def _decision(
    ours: Any, chosen: str, reason: str, times: tuple[Time, ...], winner: str
) -> Decision:
    return Decision(
        op=ours.launch.problem.op,
        shapes=operands.describe(ours.input_nodes),
        problem=ours.launch.problem,
        chosen=chosen,
        reason=reason,
        config=ours.launch.config,
        dynamic=ours.launch.dynamic,
        apart=tuple(ours.annotations.get("flydsl_apart", {}).values()),
        times=times,
        winner=winner,
        candidates=ours.annotations["flydsl_times"][0],
    )


def observe(timings: dict[Any, float], *_: Any, **__: Any) -> None:
    """Record who won a benchmark that one of ours took part in."""
    from .caller import FlyDSLCaller

    mine = [c for c in timings if isinstance(c, FlyDSLCaller)]
    if not mine or not activate.is_active():
        return
    ours = min(mine, key=timings.__getitem__)
    times = tuple(Time(c.name, ms * 1e3, ours.clock) for c, ms in timings.items())
    winner = min(timings, key=timings.__getitem__)
    backend = "FLYDSL" if winner is ours else compat.backend_name(winner)
    reason = f"fastest of {len(times)} in Inductor's benchmark"
    _keep(ours, _decision(ours, backend, reason, times, winner.name))
    _keep_contest(ours, timings)


def _keep_contest(ours: Any, timings: dict[Any, float]) -> None:
    """Add Inductor's benchmark to the problem's tuning record."""
    from .. import tuner
    from .caller import FlyDSLCaller

    entries = [
        ("FLYDSL" if isinstance(c, FlyDSLCaller) else compat.backend_name(c), c.name, ms * 1e3)
        for c, ms in timings.items()
    ]
    try:
        device = get_device(ours.launch.device, torch_type=ours.launch.torch_device)
        tuner.default_tuner().held_contest(ours.launch.problem, device, entries)
    except InductorFlyDSLError as error:
        log.info("a benchmark of %s is not stored: %s", ours.launch.problem, error)
