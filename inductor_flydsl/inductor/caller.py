"""Our choice in an autotune list: how it is benchmarked, hashed, and turned into a buffer.

Owns nothing of what is legal or fast; it is made from a finished `Launch`.
"""

from __future__ import annotations

import functools
import logging
import math
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor.autotune_process import (
    BenchmarkRequest,
    CPUDeviceBenchmarkMixin,
    GPUDeviceBenchmarkMixin,
    TensorMeta,
)

from .. import settings
from . import compat, runtime
from .epilogue import Product
from .scheduling import FlyDSLTemplateBuffer

log = logging.getLogger("inductor_flydsl")


class FlyDSLBenchmarkRequest(BenchmarkRequest):
    """One timing of one choice, in this process or, pickled, in a tuning process.

    Failures of any kind lose with infinite time and a warning: Inductor aborts the user's compile
    on exceptions other than RuntimeError and NotImplementedError.
    """

    def __init__(
        self, launch: runtime.Launch, nodes: Any, layout: Any, order: tuple[int, ...]
    ) -> None:
        metas = TensorMeta.from_irnodes(nodes)
        out = TensorMeta.from_irnodes(layout)
        super().__init__(launch.config.name, metas, out, ())
        self.launch = launch
        self.launch_text = launch.to_text()
        self.order = order
        self.copies: dict[int, TensorMeta] = {}
        self.names = [node.get_name() for node in nodes]
        # A tuning process lives long: it has neither this process's scopes nor its variables.
        self.scope = _chosen_settings()

    def make_run_fn(self, *input_tensors: torch.Tensor, out: torch.Tensor) -> Any:
        kernel = runtime.kernel(self.launch_text)
        inputs = self._operands(input_tensors)
        copies = {i: _storage(inputs[i], meta) for i, meta in self.copies.items()}
        moves = [(copy, inputs[i]) for i, copy in copies.items()]
        operands = [copies.get(index, inputs[index]) for index in self.order]
        run = functools.partial(_run, moves, kernel, out, *operands)
        run()
        return run

    def benchmark(self, *input_tensors: torch.Tensor, out: torch.Tensor | None = None) -> float:
        """Milliseconds of a launch; infinite if it failed."""
        try:
            with settings.scope(**self.scope):
                return super().benchmark(*input_tensors, out=out)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            log.warning("%s loses, its benchmark failed: %s", self.kernel_name, reason)
            return math.inf

    def _operands(self, tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        """Views of the operands; Inductor passes one tensor a buffer, of the buffer's layout."""
        unique = list(dict.fromkeys(self.names))
        if len(tensors) == len(self.names):
            found = list(tensors)
        else:
            by_name = dict(zip(unique, tensors, strict=True))
            found = [by_name[name] for name in self.names]
        return [_view(t, meta) for t, meta in zip(found, self.input_tensor_meta, strict=True)]


def _chosen_settings() -> dict[str, Any]:
    """The settings that are not at their defaults."""
    found = {name: settings.resolve(name) for name in settings.KNOBS}
    return {name: value for name, (value, origin) in found.items() if origin != "default"}


def _storage(tensor: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    """Memory for a copy."""
    sizes, strides = tuple(meta.sizes), tuple(meta.strides)
    return torch.empty_strided(sizes, strides, dtype=meta.dtype, device=tensor.device)


def _run(moves: list[tuple[Any, Any]], kernel: Any, out: Any, *operands: Any) -> None:
    for copy, source in moves:
        copy.copy_(source)
    kernel(out, *operands)


def _view(tensor: torch.Tensor, meta: TensorMeta) -> torch.Tensor:
    span = sum((n - 1) * s for n, s in zip(meta.sizes, meta.strides, strict=True))
    base = tensor if tensor._base is None else tensor._base
    held = base.untyped_storage().nbytes() // base.element_size()
    if base.dtype != meta.dtype or meta.offset + span >= held:
        tensor = base = meta.to_tensor()
    return torch.as_strided(base, meta.sizes, meta.strides, meta.offset)


class FlyDSLGPURequest(GPUDeviceBenchmarkMixin, FlyDSLBenchmarkRequest):
    """Timed as Inductor times Triton and ATen on a GPU."""


class FlyDSLCPURequest(CPUDeviceBenchmarkMixin, FlyDSLBenchmarkRequest):
    """Timed as Inductor times ATen on a CPU."""


class FlyDSLCaller(ir.ChoiceCaller):
    """One of our candidates beside ATen and Triton.

    Args:
        product: problem, configuration and device, and which sizes are dynamic.
        nodes: IR nodes of the op's inputs, layouts fixed.
        layout: fixed layout of C.
        order: which of the inputs the kernel takes, in its own order.
        identity: versions and hardware facts that its time depends on, for Inductor's own cache.
        clock: what a benchmark of it reads.
        ranked: Inductor may compare its time with others'; False on the emulator's clock.
    """

    def __init__(
        self,
        product: Product,
        nodes: Any,
        layout: Any,
        *,
        order: tuple[int, ...],
        identity: str,
        clock: str,
        ranked: bool,
    ) -> None:
        launch = product.launch
        name = f"flydsl_{launch.problem.op}_{launch.config.name}"
        super().__init__(name, nodes, layout, f"FlyDSL on {launch.device}, clock {clock}")
        self.product = product
        self.launch = launch
        self.order = order
        self.identity = identity
        self.clock = clock
        self.ranked = ranked
        self.copy_us = 0.0
        request = FlyDSLCPURequest if layout.device.type == "cpu" else FlyDSLGPURequest
        self.bmreq = request(launch, nodes, layout, order)

    def __str__(self) -> str:
        return f"FlyDSLCaller({self.name})"

    def benchmark(self, *args: Any, out: torch.Tensor) -> float:
        # Set by 2.12 and later for choices that are to be timed in a CUDA graph.
        self.bmreq.benchmark_with_cudagraphs = getattr(self, "_benchmark_with_cudagraphs", False)
        return self.bmreq.benchmark(*args, out=out)

    def call_name(self) -> str:
        return self.name

    def to_callable(self) -> Any:
        kernel = runtime.kernel(self.launch.to_text())
        return lambda *inputs, out: kernel(out, *(inputs[index] for index in self.order))

    def hash_key(self) -> str:
        return "-".join([self.name, self.identity, self.launch.to_text()])

    def output_node(self) -> Any:
        buffer = FlyDSLTemplateBuffer(self.layout, self.input_nodes, self)
        if "ktc" in self.annotations:
            buffer.annotations["ktc"] = self.annotations["ktc"]
        return ir.TensorBox.create(buffer)

    def info_dict(self) -> dict[str, Any]:
        return {
            "backend": "FLYDSL",
            "config": self.launch.config.name,
            "device": self.launch.device,
            "clock": self.clock,
        }


class FlyDSLCopyingCaller(FlyDSLCaller):
    """One of ours on copies of operands; its benchmark includes making them.

    Args:
        choice: ours on the operands as they are copied.
        nodes: IR nodes of the op's inputs, as they lie.
        copied: which of them are copied, so that they run along K.
        copy_us: predicted time of the copies, for a clock that cannot read it.
    """

    def __init__(
        self, choice: FlyDSLCaller, nodes: Any, copied: tuple[int, ...], copy_us: float
    ) -> None:
        super().__init__(
            choice.product,
            nodes,
            choice.layout,
            order=choice.order,
            identity=choice.identity,
            clock=choice.clock,
            ranked=choice.ranked,
        )
        self.name += "_after_copies_of_" + "".join("ab"[index] for index in copied)
        self.copied = copied
        self.copy_us = copy_us
        self.annotations |= choice.annotations
        metas = choice.bmreq.input_tensor_meta
        self.bmreq.copies = {index: metas[index] for index in copied}

    def to_callable(self) -> Any:
        return lambda *inputs, out: self.bmreq.make_run_fn(*inputs, out=out)()

    def output_node(self) -> Any:
        nodes = list(self.input_nodes)
        for index in self.copied:
            nodes[index] = compat.along_k(nodes[index], 1 - index)
        return ir.TensorBox.create(FlyDSLTemplateBuffer(self.layout, nodes, self))
