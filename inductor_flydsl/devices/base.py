"""The device protocol: what the tuner and the Inductor side may ask of a place where kernels run.

A device allocates nothing for its user: tensors come in, and results land in them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..arch import Arch
from ..config import GemmConfig
from ..problem import GemmProblem

if TYPE_CHECKING:
    from ..compiler import Artifact
    from .extras import Workspace

Kernel = Callable[..., None]
"""``kernel(c, a, b, *others)``: torch tensors of the problem it was loaded for, the others those of
`arguments.extra_pointers`: where its groups end, and what its fusion reads and stores; writes C."""


class Clock(enum.Enum):
    """What a time was read from. Times of different clocks are never compared."""

    GPU_EVENT = "gpu_event"
    EMULATED = "emulated"
    WALL = "wall"


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Time of one launch.

    Attributes:
        us: median, in µs.
        spread_us: half the distance between the first and the third quartile, in µs; 0 on a
            clock that repeats exactly.
        rounds: launches that were timed.
    """

    us: float
    spread_us: float
    rounds: int


class Device(Protocol):
    """A place where kernels run.

    Attributes:
        name: ``hip:0``, ``emulator:gfx950`` or ``reference``.
        clock: what `time` reads.
        arch: the architecture kernels are compiled for.
        backend: the compile backend its artifacts need (``rocm`` or ``emulator``), or
            ``reference`` where torch stands in for the kernel and nothing is compiled.
        torch_device: the torch device of the tensors it takes, for example ``cuda:0`` or ``cpu``.
    """

    name: str
    clock: Clock
    arch: Arch
    backend: str
    torch_device: str

    def environment(self) -> dict[str, str]:
        """What a measurement here depends on besides the key: compute units, driver, versions."""

    def load(
        self,
        artifact: Artifact,
        problem: GemmProblem,
        config: GemmConfig,
        scratch: Workspace | None = None,
    ) -> Kernel:
        """Bind an artifact to a problem; the result launches asynchronously on current streams.

        Args:
            artifact: of the kernel that `KernelSpec.of` names for the problem and the config.
            problem, config: what to launch.
            scratch: memory that launches of other sizes share; None: memory of its own.

        Raises:
            LaunchFailed: the artifact cannot be loaded here.
        """

    def time(self, call: Callable[[], None]) -> Timing:
        """Time ``call``, which launches exactly one kernel obtained from `load`."""

    def synchronize(self) -> None:
        """Return when every launch so far has finished, and raise what it failed with."""
