"""What a launch needs beside C, A and B: operands of its epilogue, and split-K's scratch memory."""

from __future__ import annotations

import threading
from typing import Any

from ..config import GemmConfig
from ..problem import GemmProblem


class Workspace:
    """Scratch memory of one kernel, one piece a stream, so that streams do not meet in it.

    Counters start at zero and every launch leaves them so; partial tiles need no initial value.
    """

    def __init__(self, problem: GemmProblem, config: GemmConfig) -> None:
        self._bytes, self._counters = config.workspace(problem)
        self._pieces: dict[int, tuple[Any, Any]] = {}
        self._lock = threading.Lock()

    def on(self, stream: int, device: Any) -> dict[str, Any]:
        """Tensors ``workspace`` and ``counters`` for launches on a stream; none if not needed."""
        if not self._counters:
            return {}
        with self._lock:
            if stream not in self._pieces:
                import torch

                self._pieces[stream] = (
                    torch.empty(self._bytes, dtype=torch.uint8, device=device),
                    torch.zeros(self._counters, dtype=torch.int32, device=device),
                )
            workspace, counters = self._pieces[stream]
        return {"workspace": workspace, "counters": counters}
