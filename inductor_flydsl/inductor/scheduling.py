"""Our template buffer, and what Inductor's schedulers do with it.

Owns code generation: one import and one call. The device's own scheduling is kept and given a
mixin, so everything that is not ours goes the way it always went.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch._inductor import ir
from torch._inductor.scheduler import BaseScheduling
from torch._inductor.utils import get_kernel_metadata
from torch._inductor.virtualized import V

from .. import space
from ..arch import get_arch
from ..dtypes import DType
from ..problem import TENSOR_STRIDES
from . import compat, contest, epilogue, ranges, runtime

if TYPE_CHECKING:
    from .caller import FlyDSLCaller

log = logging.getLogger("inductor_flydsl")

DEVICES = ("cpu", "cuda")
IMPORT = "from inductor_flydsl.inductor import runtime as flydsl_runtime"


class FlyDSLTemplateBuffer(ir.TemplateBuffer):
    """The output of one of our kernels.

    Attributes:
        choice: the choice that it is of, for telling what became of it.
        product: which kernel.
        operands: the inputs that it takes, in its own order: A, B, the offsets of its groups, and
            what its fusion reads.
    """

    def __init__(self, layout: Any, inputs: Any, choice: FlyDSLCaller) -> None:
        super().__init__(layout, inputs, None)
        self.operands: list[Any] = [self.inputs[index] for index in choice.order]
        self.choice = choice
        self.product = choice.product
        if not hasattr(self, "annotations"):
            self.annotations: dict[str, Any] = {}


def own_buffer(node: Any) -> FlyDSLTemplateBuffer | None:
    """The buffer of ours that a scheduler node wraps, if it does."""
    template = node.get_template_node() if node.is_template() else None
    return template if isinstance(template, FlyDSLTemplateBuffer) else None


class FlyDSLSchedulingMixin(BaseScheduling):
    """In front of a device's scheduling class: takes our nodes, passes on all others."""

    def can_fuse_vertical(self, node1: Any, node2: Any) -> bool:
        if own_buffer(node1) is None and own_buffer(node2) is None:
            return super().can_fuse_vertical(node1, node2)
        buffer = own_buffer(node1)
        if buffer is None:
            log.info("%s stays apart: FlyDSL kernels take no prologue", node1.get_name())
            return False
        joining = [*node1.get_nodes()[1:], *node2.get_nodes()]
        reason = _why_apart(self.scheduler, _of_buffer(buffer), node1, joining)  # type: ignore[attr-defined]
        if reason:
            contest.tell_apart(buffer.choice, node2, reason)
        return reason is None

    def can_fuse_multi_outputs_template(self, node1: Any, node2: Any) -> bool:
        """Also asked of nodes that Inductor itself would not join to a product: which write heads
        side by side, or update an input in place."""
        buffer = own_buffer(node1)
        if buffer is None:
            return bool(super().can_fuse_multi_outputs_template(node1, node2))
        scheduler = self.scheduler  # type: ignore[attr-defined]
        if not compat.follows_directly(scheduler, node1, node2):
            return False
        joining = [*node1.get_nodes()[1:], *node2.get_nodes()]
        return _why_apart(scheduler, _of_buffer(buffer), node1, joining) is None

    def can_fuse_horizontal(self, node1: Any, node2: Any) -> bool:
        if own_buffer(node1) is None and own_buffer(node2) is None:
            return super().can_fuse_horizontal(node1, node2)
        return False

    def codegen_template(
        self, template_node: Any, epilogue_nodes: Any, prologue_nodes: Any
    ) -> str | None:
        buffer = own_buffer(template_node)
        if buffer is None:
            return super().codegen_template(template_node, epilogue_nodes, prologue_nodes)
        assert not prologue_nodes, "FlyDSL kernels take no prologue"
        self._codegen_call([template_node, *epilogue_nodes], buffer)
        return None

    def _codegen_call(self, nodes: list[Any], buffer: FlyDSLTemplateBuffer) -> None:
        wrapper = V.graph.wrapper_code
        product, output = buffer.product, buffer.get_name()
        a, b, *extra = [x.codegen_reference() for x in buffer.operands]
        if len(nodes) > 1:
            live = _live(self.scheduler, nodes)  # type: ignore[attr-defined]
            made = _plan(_of_buffer(buffer), nodes[1:], live)
            contest.tell_fused(buffer.choice, nodes[1:], made.stores)
            product = made.product
            output, *stores = (made.updates.get(n, n) for n in (made.output, *made.stores))
            fixed = len(extra) - len(buffer.product.launch.problem.tensors)
            extra = [*extra[:fixed], *(_reference(read) for read in made.reads), *stores]
            V.graph.removed_buffers |= set(made.dead)
        for node in nodes:
            node.mark_run()
        name = _define(wrapper, nodes, product.launch)
        self.codegen_comment(nodes, name)  # type: ignore[attr-defined]
        if product.sizes:
            sizes = [wrapper.codegen_sizevar(size) for size in product.sizes.values()]
            name += f".at({', '.join(sizes)})"
        wrapper.writeline(f"{name}({', '.join([output, a, b, *extra])})")
        self.free_buffers_in_scheduler()


@dataclass(frozen=True)
class _Kernel:
    """One of our products, as far as fusing asks: a buffer's, or that of a choice for an open op.

    Attributes:
        name: of the buffer that it writes.
        operands, product: as in `FlyDSLTemplateBuffer`.
    """

    name: str
    operands: list[Any]
    product: epilogue.Product


def _of_buffer(buffer: FlyDSLTemplateBuffer) -> _Kernel:
    return _Kernel(buffer.get_name(), buffer.operands, buffer.product)


def _why_apart(scheduler: Any, kernel: _Kernel, first: Any, nodes: list[Any]) -> str | None:
    """Why scheduler nodes cannot join the kernel of a product, or None if they can.

    Args:
        kernel: the product's.
        first: its scheduler node, maybe with nodes that have joined it.
        nodes: those, and what else is to join.
    """
    if not compat.fuses_epilogues():
        return "config.epilogue_fusion is off"
    try:
        made = _plan(kernel, nodes, _live(scheduler, [first, *nodes]))
    except epilogue.Unfusable as error:
        return str(error)
    except Exception as error:  # A question of Inductor's must not end the user's compile.
        log.debug("no plan", exc_info=True)
        return f"{type(error).__name__}: {error}"
    launch = made.product.launch
    limit = space.why_not(launch.problem, launch.config, get_arch(launch.arch))
    if limit is None:
        ranges.guard(launch, made.product.sizes)
    return limit


def _why_open_apart(node: Any, choice: FlyDSLCaller, follower: Any) -> str | None:
    """`settle.WhyApart`."""
    operands = [choice.input_nodes[index] for index in choice.order]
    kernel = _Kernel(node.node.get_name(), operands, choice.product)
    return _why_apart(node.scheduler, kernel, node, list(follower.get_nodes()))


def _own_choice(node: Any) -> FlyDSLCaller | None:
    buffer = own_buffer(node)
    return None if buffer is None else buffer.choice


def _why_follower_apart(node: Any, follower: Any) -> str | None:
    """Why a scheduler node did not join the kernel of ours that it reads from."""
    buffer = own_buffer(node)
    assert buffer is not None
    joining = [*node.get_nodes()[1:], *follower.get_nodes()]
    return _why_apart(node.scheduler, _of_buffer(buffer), node, joining)


def _live(scheduler: Any, nodes: list[Any]) -> Callable[[str], bool]:
    """Whether a buffer is an output of the graph, or is read by other nodes than these."""
    inside = {part.get_name() for node in nodes for part in (node, *node.get_nodes())}
    return lambda name: compat.used_outside(scheduler, name, inside)


def _plan(kernel: _Kernel, nodes: list[Any], live: Callable[[str], bool]) -> epilogue.Plan:
    """The kernel of a product and of the scheduler nodes that follow it.

    Args:
        kernel: the product's.
        nodes: the others.
        live: as in `epilogue.plan`.

    Raises:
        epilogue.Unfusable: it cannot be one.
    """
    product = kernel.product
    problem = product.launch.problem
    for node in nodes:
        if node.is_reduction():
            raise epilogue.Unfusable(f"{node.get_name()} is a reduction")
        if len(node.get_nodes()) != 1 or len(node.get_outputs()) != 1:
            raise epilogue.Unfusable(f"{node.get_name()} is not one pointwise function")
        if not isinstance(node.node, ir.ComputedBuffer) or not compat.updates_whole(node):
            raise epilogue.Unfusable(f"{node.get_name()} mutates or aliases a buffer")
        if str(node.node.get_device()) != product.launch.torch_device:
            raise epilogue.Unfusable(f"{node.get_name()} is on {node.node.get_device()}")
    if problem.grouping is not None and problem.copies[0] > 1:
        raise epilogue.Unfusable("C has an index of groups in front")
    reads = []
    read_first = len(kernel.operands) - len(problem.tensors)
    for index, x in enumerate(kernel.operands[read_first:]):
        fixed = zip(TENSOR_STRIDES, problem.tensors[index], strict=True)
        steps = (product.sizes.get(f"t{index}_{axis}", step) for axis, step in fixed)
        dtype = DType.parse(str(x.get_dtype()))
        offset = x.get_layout().offset
        reads.append(epilogue.Read(x.get_name(), offset, epilogue.Steps(*steps), dtype))
    made = epilogue.plan(kernel.name, product, reads, [n.node for n in nodes], live)
    taken = {x.get_name() for x in kernel.operands[:read_first]} & set(made.updates.values())
    if taken:
        raise epilogue.Unfusable(f"{min(taken)} is updated in place, and an operand of the product")
    return made


def _reference(read: epilogue.Read) -> str:
    """A tensor in generated code whose first element is the one that the kernel reads first."""
    if read.offset == 0:
        return read.name
    offset = V.graph.wrapper_code.codegen_sizevar(read.offset)
    return f"reinterpret_tensor({read.name}, (1,), (1,), {offset})"


def _define(wrapper: Any, nodes: list[Any], launch: runtime.Launch) -> str:
    """Name of the kernel in generated code; defined once for each choice."""
    wrapper.add_import_once(IMPORT)
    body = f"flydsl_runtime.kernel({launch.to_text()!r})"
    name = wrapper.src_to_kernel.get(body)
    if name is None:
        name = f"flydsl_kernel_{wrapper.next_kernel_suffix()}"
        wrapper.src_to_kernel[body] = name
        origins, detailed = get_kernel_metadata(nodes, wrapper)
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
        from . import followers, settle

        if scheduler is not None:  # Inductor makes one without, to ask what it can do.
            settle.watch(scheduler, _why_open_apart)
            followers.watch(scheduler, _own_choice, _why_follower_apart)
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
