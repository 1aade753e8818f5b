"""Lists of choices: the hooks around a benchmark, and what a choice is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


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
    from torch._inductor.kernel import bmm, mm, mm_plus_mm

    if op in ("mm", "bmm") and kernel_inputs.out_dtype() != kernel_inputs.dtype():
        wider = mm.aten_mm_dtype if op == "mm" else bmm.aten_bmm_dtype
        return [wider], {wider.uid: {"out_dtype": kernel_inputs.out_dtype()}}
    if op == "scaled_mm":
        aten = mm.aten__fp8_mm
        return [aten], {aten.uid: {"out_dtype": kernel_inputs.out_dtype()}}
    modules = {"mm": mm, "addmm": mm, "bmm": bmm, "baddbmm": bmm}
    modules |= {"_int_mm": mm, "mm_plus_mm": mm_plus_mm}
    op = {"int_mm": "_int_mm"}.get(op, op)
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
