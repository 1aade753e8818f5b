"""Our template buffer, and what Inductor's schedulers do with it.

Owns code generation: one import and one call. The device's own scheduling is kept and given a
mixin, so everything that is not ours goes the way it always went.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from torch._inductor import ir
from torch._inductor.scheduler import BaseScheduling
from torch._inductor.utils import get_kernel_metadata
from torch._inductor.virtualized import V

from . import compat, runtime

log = logging.getLogger("inductor_flydsl")

DEVICES = ("cpu", "cuda")
IMPORT = "from inductor_flydsl.inductor import runtime as flydsl_runtime"
UNFUSED = "FlyDSL kernels do not fuse their neighbours yet"


class FlyDSLTemplateBuffer(ir.TemplateBuffer):
    """The output of one of our kernels; `launch` says which."""

    def __init__(self, layout: Any, inputs: Any, launch: runtime.Launch) -> None:
        super().__init__(layout, inputs, None)
        self.launch = launch
        if not hasattr(self, "annotations"):
            self.annotations: dict[str, Any] = {}


def own_buffer(node: Any) -> FlyDSLTemplateBuffer | None:
    """The buffer of ours that a scheduler node wraps, if it does."""
    template = node.get_template_node() if node.is_template() else None
    return template if isinstance(template, FlyDSLTemplateBuffer) else None


class FlyDSLSchedulingMixin(BaseScheduling):
    """In front of a device's scheduling class: takes our nodes, passes on all others."""

    def can_fuse_vertical(self, node1: Any, node2: Any) -> bool:
        if _says_no(node1, node2):
            return False
        return super().can_fuse_vertical(node1, node2)

    def can_fuse_horizontal(self, node1: Any, node2: Any) -> bool:
        if _says_no(node1, node2):
            return False
        return super().can_fuse_horizontal(node1, node2)

    def codegen_template(
        self, template_node: Any, epilogue_nodes: Any, prologue_nodes: Any
    ) -> str | None:
        buffer = own_buffer(template_node)
        if buffer is None:
            return super().codegen_template(template_node, epilogue_nodes, prologue_nodes)
        assert not epilogue_nodes and not prologue_nodes, UNFUSED
        self._codegen_call(template_node, buffer)
        return None

    def _codegen_call(self, node: Any, buffer: FlyDSLTemplateBuffer) -> None:
        wrapper = V.graph.wrapper_code
        node.mark_run()
        name = _define(wrapper, node, buffer)
        self.codegen_comment([node], name)  # type: ignore[attr-defined]
        inputs: Any = buffer.inputs
        operands = [x.codegen_reference() for x in inputs]
        wrapper.writeline(f"{name}({', '.join([buffer.get_name(), *operands])})")
        self.free_buffers_in_scheduler()


def _says_no(node1: Any, node2: Any) -> bool:
    if own_buffer(node1) is None and own_buffer(node2) is None:
        return False
    log.debug("%s and %s stay apart: %s", node1.get_name(), node2.get_name(), UNFUSED)
    return True


def _define(wrapper: Any, node: Any, buffer: FlyDSLTemplateBuffer) -> str:
    """Name of the kernel in generated code; defined once for each choice."""
    wrapper.add_import_once(IMPORT)
    body = f"flydsl_runtime.kernel({buffer.launch.to_text()!r})"
    name = wrapper.src_to_kernel.get(body)
    if name is None:
        name = f"flydsl_kernel_{wrapper.next_kernel_suffix()}"
        wrapper.src_to_kernel[body] = name
        origins, detailed = get_kernel_metadata([node], wrapper)
        wrapper.define_kernel(name, body, f"{origins}\n{detailed}", gpu=False)
    return name


@functools.cache
def _mixed(base: type) -> type:
    return type(f"FlyDSL{base.__name__}", (FlyDSLSchedulingMixin, base), {})


class Scheduled:
    """A scheduling constructor that gives what another one makes our mixin."""

    def __init__(self, inner: Callable[[Any], Any]) -> None:
        self.inner = inner

    def __call__(self, scheduler: Any) -> Any:
        made = self.inner(scheduler)
        # The instance keeps its state; only its class, and with it the lookup order, changes.
        made.__class__ = _mixed(type(made))  # type: ignore[arg-type]
        return made


def install() -> None:
    """Wrap the scheduling of every device type our tensors may be on; idempotent."""
    table = compat.scheduling_table()
    for device in DEVICES:
        entry = table.get(device)
        if entry is not None and not isinstance(entry.scheduling, Scheduled):
            entry.scheduling = Scheduled(entry.scheduling)


def uninstall() -> None:
    """Take the wrappers off again."""
    table = compat.scheduling_table()
    for device in DEVICES:
        entry = table.get(device)
        if entry is not None and isinstance(entry.scheduling, Scheduled):
            entry.scheduling = entry.scheduling.inner
