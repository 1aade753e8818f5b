"""Takes our choice where it wins an op that Inductor left open, before epilogues are fused.

With benchmarked fusion, the default on a GPU, an op with Triton choices stays open until the
scheduler fuses (`ir.MultiTemplateBuffer`), which then tries Triton's choices alone: ours would keep
a pointwise kernel behind it, or be replaced by a fused Triton kernel that is slower than ours is
with the same epilogue. What is compared here instead, all in Inductor's own benchmark:

- with Triton: the products alone, since an epilogue joins either kernel;
- with ATen and the like, which fuse nothing: ours against theirs and the epilogue's own kernel.

Where an epilogue cannot join ours, Inductor's own way is right: it compares ours and a pointwise
kernel with fused Triton kernels. Knows nothing of what can be fused: that is `scheduling`'s.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

from . import compat, contest
from .caller import FlyDSLCaller

log = logging.getLogger("inductor_flydsl")

WhyApart = Callable[[Any, FlyDSLCaller, Any], "str | None"]
"""(the open op's node, our choice, the next node) → why they cannot be one kernel, or None."""


def watch(scheduler: Any, why_apart: WhyApart) -> None:
    """Settle a scheduler's open ops before it fuses; once a scheduler."""
    fuse = scheduler.fuse_nodes
    if getattr(fuse, "flydsl_settles", False):
        return

    def fuse_nodes(nodes: list[Any]) -> Any:
        return fuse([_settled(scheduler, node, why_apart) for node in nodes])

    fuse_nodes.flydsl_settles = True  # type: ignore[attr-defined]
    scheduler.fuse_nodes = fuse_nodes


def _settled(scheduler: Any, node: Any, why_apart: WhyApart) -> Any:
    """The node, or that of our choice in its place."""
    try:
        choices = compat.open_choices(node)
        ours = next((c for c in choices if isinstance(c, FlyDSLCaller)), None)
        if ours is None:
            return node
        reasons = {user: why_apart(node, ours, user) for user in compat.users(scheduler, node)}
        follower = next((user for user, reason in reasons.items() if reason is None), None)
        if follower is None:
            for user, reason in reasons.items():
                contest.tell_apart(ours, user, str(reason))
            return node
        if not _wins(scheduler, node, ours, follower):
            return node
        return compat.close(scheduler, node, ours)
    except Exception as error:  # The op stays open, as Inductor made it.
        log.warning("%s stays open: %s: %s", node.get_name(), type(error).__name__, error)
        log.debug("not settled", exc_info=True)
        return node


def _wins(scheduler: Any, node: Any, ours: FlyDSLCaller, follower: Any) -> bool:
    """Whether ours is fastest, an epilogue kernel counted for those that cannot fuse one."""
    timings = node.node.choice_timings()
    mine = timings.get(ours, math.inf)
    fusing = [ms for c, ms in timings.items() if compat.fuses_own_epilogue(c)]
    others = [ms for c, ms in timings.items() if c is not ours and not compat.fuses_own_epilogue(c)]
    if math.isinf(mine) or mine > min(fusing, default=math.inf):
        return False
    if mine <= min(others, default=math.inf):
        contest.tell_settled(ours, "fastest unfused, and its epilogue joins it")
        return True
    pointwise = scheduler.benchmark_fused_nodes(list(follower.get_nodes()))[0]
    if mine > min(others) + pointwise:
        return False
    kernel = f"the epilogue's own kernel ({pointwise * 1e3:.2f} us)"
    contest.tell_settled(ours, f"faster with its epilogue in it than any other and {kernel}")
    return True
