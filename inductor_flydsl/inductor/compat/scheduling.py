"""The scheduler: fusion settings, users of buffers, and ops that it is still to decide."""

from __future__ import annotations

from typing import Any


def fuses_epilogues() -> bool:
    import torch._inductor.config as config

    return bool(config.epilogue_fusion)


def benchmarks_fusion() -> bool:
    """Whether the scheduler times templates with their epilogues; renamed in 2.15."""
    import torch._inductor.config as config

    renamed = getattr(config, "benchmark_template_fusion", None)
    return bool(config.benchmark_epilogue_fusion if renamed is None else renamed)


def used_outside(scheduler: Any, name: str, inside: set[str]) -> bool:
    """Whether a buffer is an output of the graph, or is read by a node not among ``inside``."""
    from torch._inductor.virtualized import V

    if name in V.graph.get_output_names():
        return True
    users = scheduler.name_to_buf[name].users
    return any(user.node.get_name() not in inside for user in users)


def stored_in(node: Any) -> tuple[Any, Any]:
    """Layout of a ComputedBuffer, and the buffer whose elements it updates in place, or None."""
    from torch._inductor import ir

    layout = node.get_layout()
    if not isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
        return layout, None
    return layout.real_layout(), layout.get_buffer()


def updates_whole(node: Any) -> bool:
    """A scheduler node does no more to memory than to write a buffer, or to update one in place,
    as it lies."""
    from torch._inductor import ir

    if not node.has_aliasing_or_mutation():
        return True
    layout = node.node.get_layout() if isinstance(node.node, ir.ComputedBuffer) else None
    if not isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
        return False
    target = layout.target
    while isinstance(target, ir.MutableBox):
        target = target.data
    return isinstance(target, ir.Buffer) and isinstance(target.layout, ir.FixedLayout)


def follows_directly(scheduler: Any, first: Any, follower: Any) -> bool:
    """A plain scheduler node reads what another one writes, and nothing has to run in between."""
    from torch._inductor.scheduler import FusedSchedulerNode, SchedulerNode

    if type(follower) not in (SchedulerNode, FusedSchedulerNode) or follower.is_template():
        return False
    operations, names = first.get_operation_names(), first.get_buffer_names()
    renames = scheduler.mutation_renames
    waits = {renames.get(d.name, d.name) for d in follower.unmet_dependencies}
    if not waits & names or follower.get_operation_names() & first.ancestors:
        return False
    makers = {scheduler.name_to_buf[name].defining_op_name() for name in waits - names}
    return not any(operations & scheduler.name_to_fused_node[op].ancestors for op in makers)


def open_choices(node: Any) -> list[Any]:
    """The choices of an op that the scheduler is still to decide; none for any other node."""
    from torch._inductor import ir
    from torch._inductor.scheduler import SchedulerNode

    if isinstance(node, SchedulerNode) and isinstance(node.node, ir.MultiTemplateBuffer):
        return list(node.node.choices)
    return []


def fuses_own_epilogue(choice: Any) -> bool:
    """Inductor can put an epilogue into the kernel of a choice."""
    from torch._inductor.select_algorithm import TritonTemplateCaller

    return isinstance(choice, TritonTemplateCaller)


def users(scheduler: Any, node: Any) -> list[Any]:
    """The nodes of a schedule that read what a node writes, each once."""
    found = [user.node for buffer in node.get_outputs() for user in buffer.users]
    return [u for u in dict.fromkeys(found) if u.get_name() in scheduler.name_to_node]


def reads(node: Any) -> set[str]:
    """Names of the buffers that a scheduler node reads."""
    return {dependency.name for dependency in node.read_writes.reads}


def is_library_call(node: Any) -> bool:
    """A scheduler node runs no generated pointwise kernel or reduction: it calls a library, is a
    template's, or does nothing."""
    from torch._inductor.scheduler import FusedSchedulerNode, SchedulerNode

    return node.is_template() or not isinstance(node, (SchedulerNode, FusedSchedulerNode))


def close(scheduler: Any, node: Any, choice: Any) -> Any:
    """Decide an open op for a choice: its scheduler node, in the place of the op's.

    Through the scheduler's own step for ops that stayed open after fusion, on this node alone.
    """
    nodes, timings = scheduler.nodes, node.node.choice_timings()
    node.node.get_min_choice = lambda *_, **__: (choice, timings[choice])
    scheduler.nodes = [node]
    try:
        scheduler.finalize_multi_template_buffers()
        (closed,) = scheduler.nodes
    finally:
        scheduler.nodes = nodes
        del node.node.get_min_choice
    if closed is node:
        return node
    scheduler.nodes = [closed if n is node else n for n in nodes]
    # What is worked out before fusion and not in that step.
    for name in ("min_input_distance", "max_input_distance", "mpi_node"):
        if hasattr(node, name):
            setattr(closed, name, getattr(node, name))
    streams = getattr(scheduler, "node_to_stream", {})
    if node in streams:
        streams[closed] = streams[node]
    return closed


def scheduling_table() -> dict[str, Any]:
    """Inductor's records of how each device type is scheduled, with the built-in ones in place."""
    from torch._inductor.codegen import common

    common.init_backend_registration()
    return common.device_codegens
