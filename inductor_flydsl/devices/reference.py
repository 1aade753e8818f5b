"""`torch.mm` standing in for the kernel, on a CPU or on any GPU that torch knows.

For testing everything around a kernel where no AMD GPU is at hand. Compiles nothing and needs no
FlyDSL: candidates differ in name alone. Its times say nothing about any FlyDSL kernel.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import microscaling
from ..arch import GFX950
from ..config import GemmConfig
from ..errors import DeviceUnavailable, LaunchFailed
from ..fusion import TorchOps
from ..grouping import Axis
from ..problem import GemmProblem
from .base import Clock, Kernel, Timing

if TYPE_CHECKING:
    from ..compiler import Artifact
    from .extras import Workspace

WARM_UP = 3
ROUNDS = 11
# Launches between two reads of the clock, so that its resolution does not show.
INNER = 4


class ReferenceDevice:
    """Implements `devices.base.Device` with torch's own product.

    Args:
        torch_device: of the tensors it takes: ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        DeviceUnavailable: torch has no such device here.
    """

    name = "reference"
    arch = GFX950
    backend = "reference"

    def __init__(self, torch_device: str = "cpu") -> None:
        import torch

        kind = torch_device.partition(":")[0]
        if kind == "cuda" and not torch.cuda.is_available():
            raise DeviceUnavailable(
                f"torch_device={torch_device!r}: torch finds no GPU here; use cpu"
            )
        if kind not in ("cpu", "cuda"):
            raise DeviceUnavailable(f"torch_device={torch_device!r} is not known; use cpu or cuda")
        self.torch_device = torch_device
        self.clock = Clock.GPU_EVENT if kind == "cuda" else Clock.WALL

    def environment(self) -> dict[str, str]:
        """Versions and the chip that torch's product runs on."""
        import torch

        facts = {"torch": torch.__version__, "torch_device": self.torch_device.partition(":")[0]}
        if self.clock is Clock.GPU_EVENT:
            properties = torch.cuda.get_device_properties(torch.device(self.torch_device))
            facts |= {
                "gpu": properties.name,
                "compute_units": str(properties.multi_processor_count),
            }
        return facts

    def load(
        self,
        artifact: Artifact,
        problem: GemmProblem,
        config: GemmConfig,
        scratch: Workspace | None = None,
    ) -> Kernel:
        """``kernel(c, a, b, *tensors)``: the product in place, fp32 accumulate, then the fusion."""
        import torch

        if problem.grouping is not None:
            return _grouped(problem)
        if problem.dtype.scaled:
            return _scaled(torch, problem)
        if problem.fusion is not None:
            return _fused(torch, problem)
        if problem.out_dtype is not problem.dtype:
            return _to_another(torch)

        def kernel(c: Any, a: Any, b: Any) -> None:
            (torch.mm if a.dim() == 2 else torch.bmm)(a, b, out=c)

        return kernel

    def time(self, call: Callable[[], None]) -> Timing:
        """Median over rounds of a few launches; wall clock on a CPU, events on a GPU."""
        try:
            for _ in range(WARM_UP):
                call()
            self.synchronize()
            once = self._events if self.clock is Clock.GPU_EVENT else self._wall
            samples = sorted(once(call) for _ in range(ROUNDS))
        except RuntimeError as error:
            raise LaunchFailed(f"torch's product stopped with: {error}") from error
        low, mid, high = statistics.quantiles(samples, n=4)
        return Timing(us=mid, spread_us=(high - low) / 2, rounds=ROUNDS * INNER)

    def _wall(self, call: Callable[[], None]) -> float:
        start = time.perf_counter()
        for _ in range(INNER):
            call()
        return (time.perf_counter() - start) * 1e6 / INNER

    def _events(self, call: Callable[[], None]) -> float:
        import torch

        with torch.cuda.device(torch.device(self.torch_device)):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(INNER):
                call()
            stop.record()
            stop.synchronize()
        return start.elapsed_time(stop) * 1e3 / INNER

    def synchronize(self) -> None:
        """Wait for the GPU; nothing to wait for on a CPU."""
        import torch

        if self.clock is Clock.GPU_EVENT:
            torch.cuda.synchronize(torch.device(self.torch_device))


def _grouped(problem: GemmProblem) -> Kernel:
    """The product of each group in turn, fp32 accumulate; reads the offsets on the host."""
    p, ops = problem, TorchOps()
    axis = p.grouping.axis if p.grouping else None

    def whole(tensor: Any, strides: tuple[int, int, int]) -> Any:
        # A kernel sees rows of C, whatever shape a tensor has.
        count = p.grouping.groups if p.grouping and strides[0] else p.copies[0]
        return tensor.as_strided((count, p.m, p.n), strides, tensor.storage_offset())

    def kernel(c: Any, a: Any, b: Any, offsets: Any, *others: Any) -> None:
        c = whole(c, (p.c_batch, p.ldc, 1))
        ends = offsets.tolist()
        a, b, tensors = _decoded(p, a, b, others, ends)
        views = [whole(t, strides) for t, strides in zip(tensors, p.tensors, strict=True)]
        reads = len(p.fusion.tensors) if p.fusion else 0
        read, outputs = views[:reads], [c, *views[reads:]]
        at: tuple[Any, ...]
        for group, piece in enumerate(map(slice, [0, *ends], ends)):
            if axis is Axis.M:
                left, right, at = a[piece], b[group], (0, piece)
            elif axis is Axis.N:
                left, right, at = a[group], b[:, piece], (0, slice(None), piece)
            else:
                left, right, at = a[:, piece], b[piece], (group,)
            results = [left.float() @ right.float()]
            if p.fusion is not None:
                own = [t[(group if len(t) > 1 else 0, *at[1:])].float() for t in read]
                results = p.fusion.results(ops, results[0], own)
            for output, result in zip(outputs, results, strict=True):
                output[at] = result

    return kernel


def _fused(torch: Any, problem: GemmProblem) -> Kernel:
    """The product in fp32 and the epilogue's program on it, op by op."""

    def kernel(c: Any, a: Any, b: Any, *tensors: Any) -> None:
        _finish(problem, torch.matmul(a.float(), b.float()), c, tensors)

    return kernel


def _finish(p: GemmProblem, product: Any, c: Any, tensors: tuple[Any, ...]) -> None:
    """The epilogue's program on a product in fp32, if there is one, and its results."""
    # A kernel sees batches of rows of C, whatever shape their tensor has.
    matrix = (p.m, p.n)
    batches = (p.batch // p.heads, p.heads) if p.heads else (p.batch,)
    strides: list[tuple[int, ...]] = [(p.c_batch, p.ldc, 1), *p.tensors]
    if p.heads:
        strides = [(outer, *step) for outer, step in zip(p.outer, strides, strict=True)]
    rows, *views = (
        t.as_strided((*batches, *matrix), step, t.storage_offset())
        for t, step in zip((c, *tensors), strides, strict=True)
    )
    if p.fusion is None:
        rows.copy_(product.reshape(rows.shape))
        return
    reads, shape = len(p.fusion.tensors), (p.batch, *matrix)
    read = [view.reshape(shape).float() for view in views[:reads]]
    results = p.fusion.results(TorchOps(), product.reshape(shape), read)
    for output, result in zip((rows, *views[reads:]), results, strict=True):
        output.copy_(result.expand(shape).reshape(output.shape))


def _scaled(torch: Any, problem: GemmProblem) -> Kernel:
    """A product of narrow types, decoded to fp32, and the epilogue's program on it."""

    def kernel(c: Any, a: Any, b: Any, *others: Any) -> None:
        wide_a, wide_b, tensors = _decoded(problem, a, b, others)
        _finish(problem, torch.matmul(wide_a, wide_b).float(), c, tensors)

    return kernel


def _decoded(
    problem: GemmProblem, a: Any, b: Any, others: tuple[Any, ...], ends: Any = ()
) -> tuple[Any, Any, tuple[Any, ...]]:
    """A and B as their values, block scales multiplied, and what comes after those scales."""
    if not problem.dtype.scaled:
        return a, b, others
    held, rest = (others[:2], others[2:]) if problem.block_scaled else ((None, None), others)
    decode = microscaling.decode_operand
    left, right = decode(a, problem, "a", held[0], ends), decode(b, problem, "b", held[1], ends)
    return left, right, rest


def _to_another(torch: Any) -> Kernel:
    """A 16-bit product with a result of another type, which torch does not offer on a CPU."""

    def kernel(c: Any, a: Any, b: Any) -> None:
        product = torch.mm if a.dim() == 2 else torch.bmm
        if c.is_cuda and c.dtype is torch.float32:
            product(a, b, out_dtype=c.dtype, out=c)
        else:
            c.copy_(product(a.float(), b.float()))

    return kernel
