"""Places where kernels run, behind one protocol."""

from __future__ import annotations

from .. import settings
from ..errors import DeviceUnavailable
from .base import Clock, Device, Kernel, Timing

__all__ = ["Clock", "Device", "Kernel", "Timing", "get_device"]


def get_device(name: str | None = None, *, torch_type: str | None = None) -> Device:
    """The device that a name, or the settings, ask for.

    Args:
        name: ``auto``, ``hip[:N]``, ``emulator[:ARCH]`` or ``reference``; None asks the settings.
        torch_type: type of the tensors at hand (``cpu`` or ``cuda``), which ``auto`` follows:
            a ROCm GPU for ``cuda``, and where there is none the emulator for ``cpu``. ``reference``
            takes either.

    Raises:
        SettingError: the name is not one of these.
        DeviceUnavailable: there is no such device here; the message says what is missing.
    """
    wanted, _ = settings.resolve("device", name)
    kind, _, rest = wanted.partition(":")
    if kind == "auto":
        kind = _detect(torch_type)
    if kind == "hip":
        from .hip import HipDevice

        return HipDevice(int(rest or 0))
    if kind == "emulator":
        from .emulator import EmulatorDevice

        return EmulatorDevice(rest or "gfx950")
    from .reference import ReferenceDevice

    return ReferenceDevice(torch_type or "cpu")


def _detect(torch_type: str | None) -> str:
    import torch

    rocm = torch.version.hip is not None and torch.cuda.is_available()
    if rocm and torch_type != "cpu":
        return "hip"
    if rocm:
        raise DeviceUnavailable(
            "device=auto leaves CPU tensors to ATEN where there is a ROCm GPU; "
            "set INDUCTOR_FLYDSL_DEVICE=emulator to emulate"
        )
    if torch_type in ("cpu", None):
        return "emulator"
    raise DeviceUnavailable(
        "device=auto found no ROCm GPU for these tensors; kernels are for AMD gfx950 "
        "(set INDUCTOR_FLYDSL_DEVICE=reference to try the flow on another GPU)"
    )
