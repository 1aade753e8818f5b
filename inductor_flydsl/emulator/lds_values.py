"""What LDS will hold once all writes issued so far have landed.

Owns those bytes, for one question: whether a write changes anything. Waves that all write the same
value to one place, as replicated layouts do, race without effect. Knows nothing of waves or time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_STRANGE = np.uint32(0x9E3779B1)
"""Times an index, it stands for bytes that aren't known: those of an LDS-DMA."""


class LdsValues:
    """`nbytes` bytes; addresses are bytes in the machine's LDS array, any shape."""

    def __init__(self, nbytes: int) -> None:
        words = np.arange(-(-nbytes // 16) * 4, dtype=np.uint32) * _STRANGE
        self.views: dict[int, np.ndarray] = {
            1: words.view(np.uint8), 2: words.view(np.uint16), 4: words,
        }  # fmt: skip

    def changes(self, addr: np.ndarray, size: int, data: Sequence[np.ndarray]) -> np.ndarray:
        """bool like addr: whether a write of `size` bytes, in words of `data`, changes them."""
        step = min(size, 4)
        view, index = self.views[step], addr // step
        found = np.zeros(addr.shape, np.bool_)
        for i, word in enumerate(data):
            found |= view.take(index + i, mode="clip") != word.astype(view.dtype)
        return found

    def write(self, addr: np.ndarray, size: int, data: Sequence[np.ndarray] | None) -> None:
        """Notes a write; None for bytes that aren't known."""
        step = min(size, 4)
        view, index = self.views[step], addr // step
        for i in range(max(1, size // 4)):
            at = index + i
            view[at] = at.astype(np.uint32) * _STRANGE if data is None else data[i]
