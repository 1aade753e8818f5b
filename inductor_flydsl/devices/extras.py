"""What a launch needs beside C, A and B: operands of its epilogue, and split-K's scratch memory."""

from __future__ import annotations

import threading
from typing import Any


class Workspace:
    """Scratch memory of one kernel, one piece a stream, so that streams do not meet in it.

    Counters start at zero and every launch leaves them so; partial tiles need no initial value.
    Launches of several sizes share it: each gets a piece that is large enough, and none is ever
    given back, since a recorded CUDA graph may hold its address.
    """

    def __init__(self) -> None:
        self._pieces: dict[tuple[int, int, int], tuple[Any, Any]] = {}
        self._lock = threading.Lock()

    def on(self, stream: int, device: Any, need: tuple[int, int]) -> dict[str, Any]:
        """Tensors ``workspace`` and ``counters`` for launches on a stream; none if not needed.

        Args:
            stream, device: handle and torch device of the launches.
            need: bytes and counters, as `GemmConfig.workspace` says.
        """
        if not need[1]:
            return {}
        # Powers of two: however many sizes there are, their pieces are few.
        size, counters = (1 << (count - 1).bit_length() for count in need)
        with self._lock:
            piece = self._pieces.get((stream, size, counters))
            if piece is None:
                import torch

                piece = (
                    torch.empty(size, dtype=torch.uint8, device=device),
                    torch.zeros(counters, dtype=torch.int32, device=device),
                )
                self._pieces[stream, size, counters] = piece
        return {"workspace": piece[0], "counters": piece[1]}
