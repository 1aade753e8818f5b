"""Python arguments → a kernarg segment.

Owns packing by a kernel's metadata and the registration of arrays. Knows nothing of launches.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from .errors import LaunchError
from .memory import Memory
from .program import Kernel, KernelArg

_FLOATS = {2: "<e", 4: "<f", 8: "<d"}


def pack_arguments(kernel: Kernel, args: Sequence[Any], memory: Memory) -> bytes:
    """The explicit arguments of a kernel as the bytes that it reads.

    args: one for each explicit argument of the metadata, in order: a C-contiguous numpy array or a
    CPU torch tensor (registered in `memory`, passed as its address), None (a null pointer), an
    int, a float, or bytes of the argument's size.

    Raises LaunchError: too few or too many, or one doesn't fit.
    """
    wanted = [arg for arg in kernel.args if not arg.kind.startswith("hidden_")]
    if len(args) != len(wanted):
        raise LaunchError(f"{kernel.name} takes {len(wanted)} arguments, got {len(args)}")
    raw = bytearray(max((a.offset + a.size for a in wanted), default=0))
    for i, (value, arg) in enumerate(zip(args, wanted, strict=True)):
        data = _packed(f"{kernel.name} argument {i}", value, arg, memory)
        raw[arg.offset : arg.offset + arg.size] = data
    return bytes(raw)


def _check_tensor(name: str, value: Any) -> None:
    """The kernel sees a tensor's elements from its address on, one after another."""
    if str(value.device) != "cpu":
        raise LaunchError(f"{name}: a tensor on {value.device}; move it to the CPU")
    if not value.is_contiguous():
        raise LaunchError(
            f"{name}: a tensor of strides {tuple(value.stride())} isn't contiguous; pass "
            "contiguous() or register its storage in a Memory"
        )


def _packed(name: str, value: Any, arg: KernelArg, memory: Memory) -> bytes:
    if isinstance(value, np.ndarray):
        value = memory.add_array(value, name).base
    elif hasattr(value, "data_ptr"):
        _check_tensor(name, value)
        address = value.data_ptr()
        memory.add(address, value.numel() * value.element_size(), name)
        value = address
    elif value is None:
        value = 0
    if isinstance(value, bytes):
        data = value
    elif isinstance(value, float) and arg.size in _FLOATS:
        data = struct.pack(_FLOATS[arg.size], value)
    elif isinstance(value, (int, np.integer)):
        bits = 8 * arg.size
        if not -(1 << bits - 1) <= int(value) < 1 << bits:
            raise LaunchError(f"{name}: {value} does not fit {bits} bits")
        data = (int(value) & (1 << bits) - 1).to_bytes(arg.size, "little")
    else:
        raise LaunchError(f"{name}: {value!r} cannot be an argument of {arg.size} bytes")
    if len(data) != arg.size:
        raise LaunchError(f"{name}: {len(data)} bytes given, it takes {arg.size}")
    return data
