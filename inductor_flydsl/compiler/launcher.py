"""From an artifact to a host function that launches it."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Any

from ..errors import LaunchFailed
from .artifact import Artifact

_POINTERS = 3
_loaded: dict[tuple[str, str], HostFunction] = {}
_lock = threading.Lock()


class HostFunction:
    """FlyDSL's host launcher of one kernel, with its argument slots laid out once a thread.

    Args:
        keep: whatever must outlive the launches.
        function: takes a pointer to an array of argument pointers.
        integers: how many 32-bit integers follow the three pointers.
    """

    def __init__(self, keep: Any, function: Any, integers: int) -> None:
        self._keep = keep
        self._function = function
        self._integers = integers

    def bind(self, integers: tuple[int, ...]) -> BoundLaunch:
        """Fix the integers; what is left to pass at a call are three addresses and a stream."""
        if len(integers) != self._integers:
            raise LaunchFailed(f"{self._integers} integers are needed, got {len(integers)}")
        return BoundLaunch(self._function, integers, self)


class BoundLaunch:
    """One kernel with its integers fixed: ``launch(c, a, b, stream)`` of plain addresses."""

    def __init__(self, function: Any, integers: tuple[int, ...], keep: Any) -> None:
        self._function = function
        self._integers = integers
        self._keep = keep
        self._slots = threading.local()

    def _make_slots(self) -> tuple[Any, ...]:
        pointers = [ctypes.c_void_p() for _ in range(_POINTERS)]
        values = [ctypes.c_int32(v) for v in self._integers]
        stream = ctypes.c_void_p()
        slots = [*pointers, *values, stream]
        packed = (ctypes.c_void_p * len(slots))(*(ctypes.addressof(s) for s in slots))
        made = (*pointers, stream, packed, values)
        self._slots.made = made
        return made

    def __call__(self, c: int, a: int, b: int, stream: int | None) -> None:
        try:
            made = self._slots.made
        except AttributeError:
            made = self._make_slots()
        made[0].value = c
        made[1].value = a
        made[2].value = b
        made[3].value = stream
        self._function(made[4])


def load(artifact: Artifact, runtime_library: Path | None = None) -> HostFunction:
    """Load an artifact into this process, once.

    Args:
        artifact: of the ``rocm`` or ``emulator`` backend.
        runtime_library: library that receives launches, for a backend without its own.

    Raises:
        LaunchFailed: the artifact's file is gone or cannot be loaded.
    """
    with _lock:
        slot = (artifact.key, str(runtime_library))
        if slot not in _loaded:
            _loaded[slot] = _load(artifact, runtime_library)
        return _loaded[slot]


def _load(artifact: Artifact, runtime_library: Path | None) -> HostFunction:
    from ..templates.signature import INTEGERS
    from .flydsl_bridge import executable

    if artifact.path is None:
        raise LaunchFailed(f"{artifact.spec.name} was compiled for {artifact.backend}: no code")
    try:
        payload = artifact.path.read_bytes()
        keep, function = executable(payload, artifact.arch, artifact.backend, runtime_library)
    except Exception as error:
        raise LaunchFailed(f"{artifact.spec.name} cannot be loaded: {error}") from error
    return HostFunction(keep, function, len(INTEGERS))
