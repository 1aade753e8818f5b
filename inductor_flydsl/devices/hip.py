"""A ROCm GPU as a device."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..arch import get_arch
from ..arguments import extra_pointers, launch_arguments
from ..config import GemmConfig
from ..errors import BadArgument, DeviceUnavailable
from ..problem import GemmProblem
from .base import Clock, Kernel, Timing
from .extras import Workspace

if TYPE_CHECKING:
    from ..compiler import Artifact

# Launches in one graph, and graph replays that are timed: a replay is long enough for the event
# clock's resolution, and there are enough of them for quartiles.
LAUNCHES_PER_GRAPH = 16
REPLAYS = 21
WARM_UP = 3


class HipDevice:
    """Implements `devices.base.Device` on one AMD GPU through a ROCm build of torch.

    Args:
        index: of the GPU, as torch counts.

    Raises:
        DeviceUnavailable: torch is no ROCm build, or has no such GPU, or the GPU's architecture
            has no kernels here.
    """

    clock = Clock.GPU_EVENT
    backend = "rocm"

    def __init__(self, index: int = 0) -> None:
        import torch

        if torch.version.hip is None:
            raise DeviceUnavailable(
                f"device=hip needs a ROCm build of torch; {torch.__version__} is not one"
            )
        if index >= torch.cuda.device_count():
            raise DeviceUnavailable(f"device=hip:{index}: torch sees {torch.cuda.device_count()}")
        self._properties = torch.cuda.get_device_properties(index)
        try:
            self.arch = get_arch(self._properties.gcnArchName)
        except BadArgument as error:
            raise DeviceUnavailable(f"device=hip:{index}: {error}") from error
        self.index = index
        self.name = f"hip:{index}"
        self.torch_device = f"cuda:{index}"

    def environment(self) -> dict[str, str]:
        """Chip, compute units and the ROCm that torch was built with."""
        import torch

        return {
            "gpu": self._properties.name,
            "compute_units": str(self._properties.multi_processor_count),
            "rocm": str(torch.version.hip),
            "torch": torch.__version__,
        }

    def load(
        self,
        artifact: Artifact,
        problem: GemmProblem,
        config: GemmConfig,
        scratch: Workspace | None = None,
    ) -> Kernel:
        """``kernel(c, a, b, *tensors)`` on the current stream of the GPU.

        Raises:
            LaunchFailed: the code object cannot be loaded.
        """
        import torch

        from ..compiler import load

        units = self._properties.multi_processor_count
        launch = load(artifact).bind(launch_arguments(problem, config, units))
        current_stream = torch._C._cuda_getCurrentRawStream
        index = self.index
        names = extra_pointers(problem)
        if not names and config.split_k == 1:
            return launch.on_tensors(current_stream, index)
        workspace, need = scratch or Workspace(), config.workspace(problem, units)

        def addresses(stream: int) -> dict[str, int]:
            pieces = workspace.on(stream, self.torch_device, need)
            return {name: tensor.data_ptr() for name, tensor in pieces.items()}

        return launch.on_tensors(current_stream, index, addresses, names)

    def time(self, call: Callable[[], None]) -> Timing:
        """Median over replays of a graph of launches, so that host time is not measured."""
        import torch

        with torch.cuda.device(self.index):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    call()
            side.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(LAUNCHES_PER_GRAPH):
                    call()
            graph.replay()
            samples = sorted(self._replay(graph) for _ in range(REPLAYS))
        low, mid, high = statistics.quantiles(samples, n=4)
        rounds = REPLAYS * LAUNCHES_PER_GRAPH
        return Timing(us=mid, spread_us=(high - low) / 2, rounds=rounds)

    @staticmethod
    def _replay(graph: Any) -> float:
        import torch

        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) * 1e3 / LAUNCHES_PER_GRAPH

    def synchronize(self) -> None:
        import torch

        torch.cuda.synchronize(self.index)
