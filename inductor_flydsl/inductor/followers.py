"""Tells why work on our products runs in kernels of its own where nobody asked about it.

Inductor asks for a fusion only where it sees a chance of one: not for reductions, gathers and
views of a part. After it has fused what it will, this module looks at what still reads our
products, so that a decision names all of it. Knows nothing of what can be fused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from . import compat, contest

log = logging.getLogger("inductor_flydsl")


def watch(
    scheduler: Any, choice_of: Callable[[Any], Any], why_apart: Callable[[Any, Any], str | None]
) -> None:
    """Look at a scheduler's nodes once it has fused them.

    Args:
        scheduler: whose `fuse_nodes` is wrapped, once.
        choice_of: a scheduler node's choice of ours, or None.
        why_apart: (our node, a node that reads what it writes) → why they are not one kernel, or
            None if they could be.
    """
    fuse = scheduler.fuse_nodes
    if getattr(fuse, "flydsl_followers", False):
        return

    def fuse_nodes(nodes: list[Any]) -> Any:
        fused = fuse(nodes)
        chosen = [(node, choice_of(node)) for node in fused]
        chosen = [(node, choice) for node, choice in chosen if choice is not None]
        readers = _readers(fused) if chosen else {}
        for node, choice in chosen:
            following = [r for name in node.get_buffer_names() for r in readers.get(name, ())]
            for follower in dict.fromkeys(following):
                if follower is not node and not contest.told(choice, follower):
                    reason = why_apart(node, follower) or "Inductor's scheduler does not join them"
                    contest.tell_apart(choice, follower, reason)
        return fused

    fuse_nodes.flydsl_followers = True  # type: ignore[attr-defined]
    fuse_nodes.flydsl = True  # type: ignore[attr-defined]
    scheduler.fuse_nodes = fuse_nodes


def _readers(nodes: list[Any]) -> dict[str, list[Any]]:
    """Name of a buffer → the nodes with generated kernels that read it."""
    found: dict[str, list[Any]] = {}
    for node in nodes:
        if not compat.is_library_call(node):
            for name in compat.reads(node):
                found.setdefault(name, []).append(node)
    return found
