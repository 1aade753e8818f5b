"""Every private name of TorchInductor and every branch on torch's version, 2.11 to 2.15.

Nothing else in the package touches a name of ``torch._inductor`` that starts with an underscore,
or asks which torch this is. Knows nothing of kernels, problems or tuning.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

FLAG = "flydsl_enable_autotuning"
FLAG_VARIABLE = "FLYDSL_ENABLE_AUTOTUNING"
BACKEND = "FLYDSL"


def torch_version() -> tuple[int, int]:
    """Major and minor version of torch; works for nightly and vendor builds."""
    import torch

    match = re.match(r"(\d+)\.(\d+)", torch.__version__)
    assert match, torch.__version__
    return int(match[1]), int(match[2])


# --- configuration ---------------------------------------------------------------------------


def add_flag() -> None:
    """Make ``torch._inductor.config.flydsl_enable_autotuning`` settable where torch lacks it.

    ConfigModule rejects unknown names. Through its own entry type the name takes part in
    ``patch``, ``save_config`` and the FX graph cache key as any other. It is never taken away
    again: a thread's cached view of the configuration may hold it, and a program that sets it
    must not fail for the plugin being off.
    """
    import torch._inductor.config as config
    from torch.utils._config_module import _Config, _ConfigEntry  # type: ignore[attr-defined]

    entries = config._config  # type: ignore[attr-defined]
    if FLAG in entries:
        return
    declared: Any = _Config(default=False, env_name_default=[FLAG_VARIABLE], value_type=bool)
    try:
        entries[FLAG] = _ConfigEntry(declared, FLAG)
    except TypeError:  # 2.11: an override is a plain attribute and needs no name.
        entries[FLAG] = _ConfigEntry(declared)  # type: ignore[call-arg]


def autotuning_enabled() -> bool:
    import torch._inductor.config as config

    return bool(getattr(config, FLAG, False))


def autotunes_flydsl() -> bool:
    """Max-autotune is on for GEMMs, and FLYDSL is one of its backends."""
    import torch._inductor.config as config

    return bool(config.max_autotune or config.max_autotune_gemm) and BACKEND in gemm_backends()


def gemm_backends() -> list[str]:
    """The entries of ``max_autotune_gemm_backends`` in upper case; Inductor validates none."""
    import torch._inductor.config as config

    return [name.strip() for name in config.max_autotune_gemm_backends.upper().split(",")]


def prints_tables() -> bool:
    """Whether Inductor prints its autotune tables now."""
    import torch._inductor.config as config
    from torch._inductor import select_algorithm

    return select_algorithm.PRINT_AUTOTUNE and config.autotune_num_choices_displayed != 0


# --- the choices handler ---------------------------------------------------------------------


def install_factory(factory: Any, chained: Callable[[Any], Any]) -> None:
    """Put `factory` under ``config.inductor_choices_class``.

    As the default of the entry it is seen by every thread (2.12 and later keep what is assigned
    to a config in a context variable, which a new thread does not see). Where this context has a
    factory of its own, ``chained(previous)`` takes its place here.
    """
    import torch._inductor.config as config

    previous = config.inductor_choices_class
    _factory_entry().default = factory
    new = factory if previous is None or previous is factory else chained(previous)
    # Assigning also drops this context's cached views of the configuration.
    config.inductor_choices_class = new
    forget_handler()


def remove_factory(is_ours: Callable[[Any], bool], previous: Callable[[Any], Any]) -> None:
    """Undo `install_factory`: ``previous(ours)`` is what a factory of ours had chained, or None."""
    import torch._inductor.config as config

    entry = _factory_entry()
    current = config.inductor_choices_class
    if is_ours(entry.default):
        entry.default = None
    if is_ours(current):
        restored = previous(current)
        config.inductor_choices_class = restored
        if restored is None:
            _clear_override(entry)
    forget_handler()


def _factory_entry() -> Any:
    import torch._inductor.config as config

    return config._config["inductor_choices_class"]  # type: ignore[attr-defined]


def _clear_override(entry: Any) -> None:
    from torch.utils import _config_module

    unset = _config_module._UNSET_SENTINEL  # type: ignore[attr-defined]
    if hasattr(entry.user_override, "set"):
        entry.user_override.set(unset)
    else:
        entry.user_override = unset


def forget_handler() -> None:
    """Let this thread ask the factory again; after a compile it keeps the first answer."""
    virtualized: Any = sys.modules.get("torch._inductor.virtualized")
    if virtualized is None:  # Nothing has asked yet; importing it would import all of Inductor.
        return
    key = virtualized._choices._key
    if hasattr(virtualized.threadlocal, key):
        delattr(virtualized.threadlocal, key)


# --- graph and layouts -----------------------------------------------------------------------


def graph_limit(graph: Any) -> str | None:
    """Why nothing of ours can be generated into this graph, or None."""
    import torch._inductor.config as config

    if getattr(graph, "cpp_wrapper", False) or getattr(graph, "aot_mode", False):
        return "cpp_wrapper and AOTInductor need C++ call sites, which are not generated yet"
    if getattr(graph, "fx_wrapper", False) or getattr(config, "fx_wrapper", False):
        return "fx_wrapper is not supported"
    if getattr(config, "deterministic", False):
        return "config.deterministic keeps to ATen, without benchmarks"
    return None


def freeze(node: Any) -> None:
    """Fix a buffer's strides to what the graph already requires of them."""
    from torch._inductor import ir, select_algorithm

    buffer = node
    while isinstance(buffer, (ir.TensorBox, ir.StorageBox)):
        buffer = buffer.data
    constrained = getattr(select_algorithm, "should_use_layout_constraints", None)
    if constrained is not None and constrained(buffer):
        from torch._inductor.virtualized import V

        layout = V.graph.buffer_layout_constraints[buffer.get_name()]
        if isinstance(buffer.layout, ir.FlexibleLayout):
            buffer.freeze_layout_with_exact_strides(layout.stride)
        return
    buffer.freeze_layout()


def input_offset(graph: Any, name: str) -> Any:
    """Storage offset, in elements, of the example that a graph input was traced with."""
    return getattr(graph, "graph_input_storage_offsets", {}).get(name, 0)


def size_hint(symbol: Any) -> int:
    """The value of a symbol to optimise for; a fixed one where nothing is known of it."""
    from torch._inductor import config
    from torch._inductor.virtualized import V

    fallback = config.unbacked_symint_fallback
    return int(V.graph.sizevars.optimization_hint(symbol, fallback=fallback))


def is_multiple(number: Any, divisor: int) -> bool:
    """Whether a symbolic number is a multiple of a power of two for all values."""
    from torch._inductor.virtualized import V

    return bool(V.graph.sizevars.statically_known_multiple_of(number, divisor))


def guard(condition: Any) -> bool:
    """Compile again where a relation of symbols fails; False if that cannot be had."""
    from torch._inductor.virtualized import V

    environment: Any = V.graph.sizevars.shape_env
    unbacked = any(environment.is_unbacked_symint(s) for s in condition.free_symbols)
    if getattr(environment, "frozen", False) or unbacked:
        return False
    return bool(environment.evaluate_expr(condition))


# --- selection -------------------------------------------------------------------------------


def add_selection_hooks(prune: Callable[..., Any], observe: Callable[..., Any]) -> None:
    """Call `prune` on every list of choices before, and `observe` after a benchmark; once."""
    from torch._inductor.select_algorithm import get_algorithm_selector_cache

    selector: Any = get_algorithm_selector_cache()
    if prune not in selector.preprocessing_fns:
        selector.preprocessing_fns.append(prune)
    if observe not in selector.feedback_saver_fns:
        selector.feedback_saver_fns.append(observe)


def add_first_preprocessing(function: Callable[..., Any]) -> None:
    """Call `function` on every list of choices, before anything else sees it; once."""
    from torch._inductor.select_algorithm import get_algorithm_selector_cache

    functions = get_algorithm_selector_cache().preprocessing_fns
    if function not in functions:
        functions.insert(0, function)


def remove_selection_hooks(*hooks: Callable[..., Any]) -> None:
    """Take functions out of wherever they were added."""
    select_algorithm: Any = sys.modules.get("torch._inductor.select_algorithm")
    selector = getattr(select_algorithm, "_ALGORITHM_SELECTOR_CACHE", None)
    if selector is None:
        return
    for functions in (selector.preprocessing_fns, selector.feedback_saver_fns):
        functions[:] = [function for function in functions if function not in hooks]


def is_extern(choice: Any) -> bool:
    """The choice calls a library (ATen), and generates no kernel."""
    from torch._inductor.select_algorithm import ExternKernelCaller

    return isinstance(choice, ExternKernelCaller)


def backend_name(choice: Any) -> str:
    """The backend of a choice, as named in ``max_autotune_gemm_backends``."""
    from torch._inductor.select_algorithm import TritonTemplateCaller

    if is_extern(choice):
        return "ATEN"
    if isinstance(choice, TritonTemplateCaller):
        return "TRITON"
    return type(choice).__name__.removesuffix("Caller").removesuffix("Template").upper()


def aten_templates(op: str, kernel_inputs: Any) -> tuple[list[Any], dict[str, Any]]:
    """ATen's templates for an op, and their keyword overrides; none for an op of another kind."""
    from torch._inductor.kernel import bmm, mm

    if op in ("mm", "bmm") and kernel_inputs.out_dtype() != kernel_inputs.dtype():
        wider = mm.aten_mm_dtype if op == "mm" else bmm.aten_bmm_dtype
        return [wider], {wider.uid: {"out_dtype": kernel_inputs.out_dtype()}}
    if op == "scaled_mm":
        aten = mm.aten__fp8_mm
        return [aten], {aten.uid: {"out_dtype": kernel_inputs.out_dtype()}}
    modules = {"mm": mm, "addmm": mm, "bmm": bmm, "baddbmm": bmm}
    return ([getattr(modules[op], f"aten_{op}")] if op in modules else []), {}


def grouped_inputs(
    mat_a: Any, mat_b: Any, offs: Any, bias: Any, out_dtype: Any
) -> tuple[list[Any], Any]:
    """(realized inputs, output layout) of a grouped product, as Inductor's lowering makes them."""
    from torch._inductor.kernel import mm_grouped
    from torch._inductor.kernel.mm_common import realize_inputs

    *_, layout, a, b, _ = mm_grouped.grouped_mm_args(mat_a, mat_b, offs, out_dtype=out_dtype)
    return [a, b] + ([] if offs is None else [realize_inputs(offs)]), layout


def aten_grouped(nodes: list[Any], layout: Any, out_dtype: Any) -> Any:
    """ATen's choice for a grouped product."""
    from torch._inductor.kernel import mm_grouped

    return mm_grouped.aten__grouped_mm.bind(nodes, layout, out_dtype=out_dtype)


def are_equal(left: Any, right: Any) -> bool:
    """Two sizes are equal, by the guards that the graph has so far."""
    from torch._inductor.virtualized import V

    return bool(V.graph.sizevars.simplify(left - right) == 0)


def current_node() -> Any:
    """The graph's node that is being lowered."""
    from torch._inductor.virtualized import V

    return V.graph.current_node


# --- scaled products -------------------------------------------------------------------------


def along_k(node: Any, k_axis: int) -> Any:
    """A matrix whose elements along K are neighbours: a dense copy, or itself if it is so."""
    from torch._inductor import ir

    rows, columns = node.get_size()
    strides = (columns, 1) if k_axis == 1 else (1, rows)
    return ir.ExternKernel.realize_input(ir.ExternKernel.require_exact_strides(node, strides))


def is_dense(node: Any) -> bool:
    """The elements of a node with static sizes lie in order, without gaps."""
    return bool(node.get_layout().is_contiguous())


def mx_recipe() -> int | None:
    """Number of the recipe of E8M0 scales for 32 elements each; None where torch has none."""
    from torch.nn import functional

    kinds = getattr(functional, "ScalingType", None)
    return None if kinds is None else int(kinds.BlockWise1x32)


# Checks that a scaled product's scales fit; its name on 2.13, the only version that has it.
_MX_CHECK = "_check_scaled_mm_sizes_v2"


def replace_mx_check(check: Callable[..., str | None]) -> None:
    """Have 2.13's meta function of ``_scaled_mm_v2`` ask `check` about MX scales.

    It takes the scales of B to have A's extents on ROCm, counts packed FP4 as single elements,
    and refuses plain scales elsewhere. All other recipes keep its own check.
    """
    import torch._meta_registrations as metas

    before = getattr(metas, _MX_CHECK, None)
    if before is None or hasattr(before, "flydsl_before"):
        return
    mx = mx_recipe()

    def sizes(
        a: Any, b: Any, scale_a: Any, recipe_a: Any, scale_b: Any, recipe_b: Any, **options: Any
    ) -> Any:
        import torch

        recipes = [int(r) for r in (*recipe_a, *recipe_b)]
        if recipes != [mx, mx]:
            return before(a, b, scale_a, recipe_a, scale_b, recipe_b, **options)
        torch._check(a.dim() == 2 and b.dim() == 2, lambda: "Inputs must be 2D")
        swizzles = [int((options.get(f"swizzle_{x}") or [0])[0]) for x in "ab"]
        wrong = check(a, b, (scale_a[0], scale_b[0]), swizzles)
        torch._check(wrong is None, lambda: f"for MX scaling {wrong}")
        out_dtype = options.get("out_dtype") or a.dtype
        return torch.empty(a.shape[0], b.shape[1], dtype=out_dtype, device=a.device)

    sizes.flydsl_before = before  # type: ignore[attr-defined]
    setattr(metas, _MX_CHECK, sizes)


def restore_mx_check() -> None:
    """Undo `replace_mx_check`."""
    metas = sys.modules.get("torch._meta_registrations")
    before = getattr(getattr(metas, _MX_CHECK, None), "flydsl_before", None)
    if before is not None:
        setattr(metas, _MX_CHECK, before)


def mx_choices(nodes: list[Any], layout: Any, asked: Any, out_dtype: Any) -> list[Any]:
    """What torch itself offers for an MX product: on a ROCm GPU, from 2.15 on.

    Args:
        nodes: A, B, scales of A and of B, and a bias if there is one.
        layout: of the output.
        asked: (scales, recipe, swizzle) of A and of B, as the op has them.
        out_dtype: of the op.
    """
    from torch._inductor.kernel import mm as module

    mm: Any = module
    of_a, of_b = asked
    bias = nodes[4] if len(nodes) > 4 else None
    format_of = getattr(mm, "_get_rocm_mxfp_v2_format", None)
    if format_of is None or layout.device.type != "cuda":
        return []
    made = format_of(nodes[0], nodes[1], *of_a, *of_b, bias, out_dtype, None, False)
    if made is None:
        return []
    choices: list[Any] = []
    for options in mm.get_flydsl_mxfp_template_kwargs(made, layout, *nodes[:4], bias):
        mm.flydsl_mm_template.maybe_append_choice(
            choices, input_nodes=nodes, layout=layout, **options
        )
    sizes = [*nodes[0].get_size(), nodes[1].get_size()[1]]
    if mm.use_aten_gemm_kernels() and all(int(size) % 32 == 0 for size in sizes):
        recipes = {"recipe_a": of_a[1][0], "recipe_b": of_b[1][0]}
        aten = mm.aten__fp8_mm_v2.bind(nodes, layout, **recipes, out_dtype=out_dtype)
        choices.insert(0, aten)
    return choices


# --- scheduling ------------------------------------------------------------------------------


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


def first_user(scheduler: Any, node: Any) -> Any:
    """The first node of a schedule that reads what a node writes, or None."""
    users = [user.node for buffer in node.get_outputs() for user in buffer.users]
    found = [u for u in users if u.get_name() in scheduler.name_to_node]
    return found[0] if found else None


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
