"""What lies before a group's share of K, in the first K step of its tiles: cleared in LDS.

Where a group may begin anywhere along K and K runs along memory, its first K step begins at an
address that DMA takes (`config.start`), and with it come a few elements of the group before.
Both operands are cleared of them, block scales too: what is another group's may be infinite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import flydsl.compiler as flyc

from . import ops
from .loads import Operand
from .scales import BlockScales


def clear_heads(parts: Sequence[Operand | BlockScales | None], count: Any) -> None:
    """Clear what stage 0 holds of K before its first ``count`` elements.

    The stage must have landed for all waves; other waves see the zeros behind the next barrier.

    Args:
        parts: operands, and their block scales if there are any.
        count: elements, fewer than `config.start`.
    """
    for part in parts:
        for index in range(part.head_shares if part is not None else 0):
            assert part is not None
            has_share = (count > 0) & part.has_share(index)
            _when(has_share, lambda p=part, i=index: p.clear_head(count, i))
    ops.wait(lgkmcnt=0)


@flyc.jit
def _when(condition: Any, do: Callable[[], None]) -> None:
    if condition:
        do()
