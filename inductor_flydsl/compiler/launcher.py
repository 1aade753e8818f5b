"""From an artifact to a host function that launches it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import LaunchFailed
from ..signature import INTEGERS, LONGS, POINTERS
from .artifact import Artifact

_loaded: dict[tuple[str, str], HostFunction] = {}
_lock = threading.Lock()


class HostFunction:
    """FlyDSL's host launcher of one kernel.

    Args:
        keep: whatever must outlive the launches.
        function: takes a pointer to an array of argument pointers.
    """

    def __init__(self, keep: Any, function: Any) -> None:
        self._keep = keep
        self._function = function

    def bind(self, integers: Mapping[str, int]) -> BoundLaunch:
        """Fix the integers; what is left to pass at a call are addresses and a stream.

        Args:
            integers: by names of `signature.LONGS` and `INTEGERS`; the rest are zero.

        Raises:
            LaunchFailed: a name that no kernel takes.
        """
        names = (*LONGS, *INTEGERS)
        unknown = set(integers) - set(names)
        if unknown:
            raise LaunchFailed(f"kernels take no {sorted(unknown)}; they take {names}")
        values = tuple(integers.get(name, 0) for name in names)
        return BoundLaunch(self._function, values, self)


class BoundLaunch:
    """One kernel with its integers fixed; its argument slots are laid out once a thread."""

    def __init__(self, function: Any, integers: tuple[int, ...], keep: Any) -> None:
        self._function = function
        self._integers = integers
        self._keep = keep
        self._slots = threading.local()

    def _make_slots(self) -> tuple[Any, ...]:
        pointers = {name: ctypes.c_void_p() for name in POINTERS}
        kinds = [ctypes.c_int64] * len(LONGS) + [ctypes.c_int32] * len(INTEGERS)
        values = [kind(v) for kind, v in zip(kinds, self._integers, strict=True)]
        stream = ctypes.c_void_p()
        slots = [*pointers.values(), *values, stream]
        packed = (ctypes.c_void_p * len(slots))(*(ctypes.addressof(s) for s in slots))
        made = (pointers["c"], pointers["a"], pointers["b"], stream, packed, pointers, values)
        self._slots.made = made
        return made

    def __call__(
        self, c: int, a: int, b: int, stream: int | None, others: Mapping[str, int] | None = None
    ) -> None:
        """Launch.

        Args:
            c, a, b: byte addresses.
            stream: handle of the stream, None for the default one.
            others: byte addresses by names of `signature.POINTERS`.
        """
        try:
            made = self._slots.made
        except AttributeError:
            made = self._make_slots()
        made[0].value = c
        made[1].value = a
        made[2].value = b
        made[3].value = stream
        if others:
            for name, address in others.items():
                made[5][name].value = address
        self._function(made[4])

    def on_tensors(
        self,
        stream_of: Callable[[int], int],
        device: int,
        scratch: Callable[[int], Mapping[str, int]] | None = None,
        names: Sequence[str] = (),
    ) -> Callable[..., None]:
        """``call(c, a, b, *tensors)`` of torch tensors, in one Python frame.

        Args:
            stream_of: current stream of a device, asked at every call.
            device: its argument.
            scratch: addresses by names of `signature.POINTERS` that a stream's launches need
                beside the operands; asked when a thread's stream changes.
            names: of `signature.POINTERS`, one for each of ``tensors``.
        """
        slots, function, make = self._slots, self._function, self._make_slots

        def plain(c: Any, a: Any, b: Any) -> None:
            try:
                at_c, at_a, at_b, stream, packed, _, _ = slots.made
            except AttributeError:
                at_c, at_a, at_b, stream, packed, _, _ = make()
            at_c.value = c.data_ptr()
            at_a.value = a.data_ptr()
            at_b.value = b.data_ptr()
            stream.value = stream_of(device)
            function(packed)

        def full(c: Any, a: Any, b: Any, *tensors: Any) -> None:
            try:
                at_c, at_a, at_b, stream, packed, at, _ = slots.made
            except AttributeError:
                at_c, at_a, at_b, stream, packed, at, _ = make()
                slots.scratch_of = None
            at_c.value = c.data_ptr()
            at_a.value = a.data_ptr()
            at_b.value = b.data_ptr()
            for name, tensor in zip(names, tensors, strict=False):
                at[name].value = tensor.data_ptr()
            current = stream_of(device)
            if scratch is not None and slots.scratch_of != current:
                for name, address in scratch(current).items():
                    at[name].value = address
                slots.scratch_of = current
            stream.value = current
            function(packed)

        return full if scratch is not None else plain

    def packed(self, c: int, a: int, b: int, stream: int | None) -> tuple[Any, Any]:
        """The launcher and its argument with these addresses: ``launcher(argument)`` launches."""
        made = self._make_slots()
        for slot, value in zip(made, (c, a, b, stream), strict=False):
            slot.value = value
        return self._function, made[4]


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
    from .flydsl_bridge import executable

    if artifact.path is None:
        raise LaunchFailed(f"{artifact.spec.name} was compiled for {artifact.backend}: no code")
    try:
        payload = artifact.path.read_bytes()
        keep, function = executable(payload, artifact.arch, artifact.backend, runtime_library)
    except Exception as error:
        raise LaunchFailed(f"{artifact.spec.name} cannot be loaded: {error}") from error
    return HostFunction(keep, function)
