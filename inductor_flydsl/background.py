"""Kernels that are being compiled while something else goes on.

Owns the thread that waits for the compiler, and how it is stopped. Knows nothing of problems.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from .config import KernelSpec
from .devices.base import Device
from .errors import CompileFailed

if TYPE_CHECKING:
    from .compiler import Artifact

Compile = Callable[..., "Mapping[KernelSpec, Artifact | CompileFailed]"]


class Artifacts:
    """The outcomes of a compile that runs in a thread of its own, within a ``with`` block.

    Leaving the block by an exception stops the compile; else its end is waited for.

    Args:
        compile: (specs, arch, backend, deadline=, progress=, each=, stop=) → outcome by spec.
        specs: what to compile, each once; nothing runs if there are none.
        device: names the architecture and the backend.
        deadline, progress: passed on.
    """

    def __init__(
        self,
        compile: Compile,
        specs: Sequence[KernelSpec],
        device: Device,
        *,
        deadline: float | None,
        progress: Callable[[int, int], None],
    ) -> None:
        self._found: dict[KernelSpec, Artifact | CompileFailed] = {}
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._ended = not specs
        self._error: BaseException | None = None
        self._compile = lambda: compile(
            specs,
            device.arch.name,
            device.backend,
            deadline=deadline,
            progress=progress,
            each=self._add,
            stop=self._stop,
        )
        # Settings are context variables, and a thread starts with none of them.
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=context.run, args=(self._run,), daemon=True)

    def __enter__(self) -> Artifacts:
        if not self._ended:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            outcomes = self._compile()
        except BaseException as error:  # Raised again where the outcomes are asked for.
            self._end({}, error)
        else:
            self._end(outcomes, None)

    def _end(self, outcomes: Mapping[KernelSpec, Any], error: BaseException | None) -> None:
        with self._changed:
            self._found |= outcomes
            self._error = error
            self._ended = True
            self._changed.notify_all()

    def _add(self, spec: KernelSpec, outcome: Any) -> None:
        with self._changed:
            self._found[spec] = outcome
            self._changed.notify_all()

    def wait_for(
        self, specs: Sequence[KernelSpec]
    ) -> Mapping[KernelSpec, Artifact | CompileFailed]:
        """The outcomes of these specs; those that the compile left undone are absent.

        Raises:
            Exception: what the compile ended with.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ended or all(s in self._found for s in specs))
            if self._error is not None:
                raise self._error
            return {spec: self._found[spec] for spec in specs if spec in self._found}

    def all(self) -> Mapping[KernelSpec, Artifact | CompileFailed]:
        """Every outcome, once the compile has ended.

        Raises:
            Exception: what the compile ended with.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ended)
            if self._error is not None:
                raise self._error
            return dict(self._found)
