"""Scaled products: what torch checks of them, and what it offers for them itself."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def along_k(node: Any, k_axis: int) -> Any:
    """A matrix whose elements along K are neighbours: a dense copy, or itself if it is so."""
    from torch._inductor import ir

    rows, columns = node.get_size()
    strides = (columns, 1) if k_axis == 1 else (1, rows)
    return ir.ExternKernel.realize_input(ir.ExternKernel.require_exact_strides(node, strides))


def as_asked(a: Any, b: Any) -> tuple[Any, Any]:
    """A and B of the ``_scaled_mm_v2`` that is being lowered, as the graph has them.

    2.15 hands the lowering copies of what does not run along K. Where those go unused, the
    scheduler leaves them out.
    """
    from torch._inductor.kernel import mm
    from torch._inductor.virtualized import V

    if not hasattr(mm, "scaled_mm_v2_constraint"):
        return a, b
    node: Any = V.graph.current_node
    named = dict(zip(("self", "mat2"), node.args, strict=False)) | node.kwargs
    return V.graph.env.get(named.get("self"), a), V.graph.env.get(named.get("mat2"), b)


def copy_to_be(node: Any, k_axis: int) -> Any:
    """What `along_k` would give, described by a buffer that is not in the graph."""
    from torch._inductor import ir

    rows, columns = node.get_size()
    strides = (columns, 1) if k_axis == 1 else (1, rows)
    layout = ir.FixedLayout(node.get_device(), node.get_dtype(), [rows, columns], strides)
    return ir.Buffer(name=f"{node.get_name()}_along_k", layout=layout)


def is_dense(node: Any) -> bool:
    """The elements of a node with static sizes lie in order, without gaps."""
    return bool(node.get_layout().is_contiguous())


def mx_recipe() -> int | None:
    """Number of the recipe of E8M0 scales for 32 elements each; None where torch has none."""
    return next((number for number, name in recipes().items() if name == MX), None)


MX, ROWWISE = "BlockWise1x32", "RowWise"


def recipes() -> dict[int, str]:
    """Names of torch's recipes of scales by their numbers; empty where torch has none."""
    from torch.nn import functional

    kinds = getattr(functional, "ScalingType", None)
    return {} if kinds is None else {int(kind): n for n, kind in kinds.__members__.items()}


# Checks that a scaled product's scales fit; its name on 2.13, the only version that has it.
_MX_CHECK = "_check_scaled_mm_sizes_v2"


def replace_mx_check(check: Callable[..., str | None], stands: Callable[[], bool]) -> None:
    """Have 2.13's meta function of ``_scaled_mm_v2`` ask `check` about MX scales.

    It takes the scales of B to have A's extents on ROCm, counts packed FP4 as single elements,
    and refuses plain scales elsewhere. All other recipes keep its own check, and so do all where
    `stands` says that ours does not stand now.
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
        if recipes != [mx, mx] or not stands():
            return before(a, b, scale_a, recipe_a, scale_b, recipe_b, **options)
        torch._check(a.dim() == 2 and b.dim() == 2, lambda: "Inputs must be 2D")
        words = "x".join(str(s) for s in a.shape) + " and " + "x".join(str(s) for s in b.shape)
        torch._check_value(
            a.shape[1] == b.shape[0],
            lambda: f"mat_a and mat_b shapes cannot be multiplied ({words})",
        )
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


def zeros(sizes: Any, dtype: Any, device: Any) -> Any:
    """A tensor of zeros in the graph."""
    from torch._inductor import lowering

    return lowering.full(sizes, 0, dtype=dtype, device=device)


_E8M0_CPP = "c10::Float8_e8m0fnu"


def add_cpp_scales() -> None:
    """Let Inductor's C++ kernels copy and make E8M0 tensors, for which it has no C++ type."""
    import torch
    from torch._inductor.codegen.cpp_utils import DTYPE_TO_CPP

    DTYPE_TO_CPP.setdefault(torch.float8_e8m0fnu, _E8M0_CPP)


def remove_cpp_scales() -> None:
    """Undo `add_cpp_scales`."""
    module = sys.modules.get("torch._inductor.codegen.cpp_utils")
    table = getattr(module, "DTYPE_TO_CPP", {})
    for dtype in [dtype for dtype, name in table.items() if name is _E8M0_CPP]:
        del table[dtype]


# The only version whose grouped product with recipes no fake tensor can go through is 2.13: it has
# no meta function.
_GROUPED = "_scaled_grouped_mm_v2"
_libraries: list[Any] = []


def add_grouped_meta(check: Callable[..., str | None], stands: Callable[[], bool]) -> None:
    """Give ``_scaled_grouped_mm_v2`` a meta function where torch has none, for all recipes.

    Args:
        check: what is wrong with (A, B, offsets), or None.
        stands: whether it is there now; else the op fails as one without such a function does.
    """
    import torch
    import torch._meta_registrations as metas

    known = getattr(torch.ops.aten, _GROUPED, None) is not None
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if not known or has_kernel(f"aten::{_GROUPED}", "Meta"):
        return

    def grouped(a: Any, b: Any, *others: Any, **options: Any) -> Any:
        if not stands():
            raise NotImplementedError(f"aten::{_GROUPED} has no meta function in this PyTorch")
        names = ("offs", "bias", "out_dtype")
        offs, _, out_dtype = (
            others[6 + i] if len(others) > 6 + i else options.get(name)
            for i, name in enumerate(names)
        )
        wrong = check(a, b, offs)
        torch._check(wrong is None, lambda: str(wrong))
        dtype = out_dtype or torch.bfloat16
        return metas._create_grouped_mm_output_tensor(a, b, offs, dtype)

    library = torch.library.Library("aten", "IMPL")
    library.impl(_GROUPED, grouped, "Meta")
    _libraries.append(library)


def has_cpu_grouped() -> bool:
    """Whether grouped products with scales have a kernel for CPU tensors, whoever made it."""
    import torch

    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    known = ("_scaled_grouped_mm", _GROUPED)
    return any(has_kernel(f"aten::{n}", "CPU") for n in known if hasattr(torch.ops.aten, n))


def remove_grouped_meta() -> None:
    """Undo `add_grouped_meta`."""
    while _libraries:
        _libraries.pop()._destroy()


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
