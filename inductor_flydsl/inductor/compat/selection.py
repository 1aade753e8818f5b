"""Lists of choices: the hooks around a benchmark, and what a choice is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
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
    operands: tuple[Any, Any], scales: Sequence[Any], offs: Any, out_dtype: Any
) -> tuple[list[Any], Any]:
    """(realized inputs, output layout) of a grouped product, as Inductor's lowering makes them.

    Args:
        operands: A and B; scales: of both, or none.
        offs: where groups end, or None.
        out_dtype: of the op.
    """
    from torch._inductor.kernel import mm_grouped
    from torch._inductor.kernel.mm_common import realize_inputs

    *_, layout, a, b, _ = mm_grouped.grouped_mm_args(*operands, offs, out_dtype=out_dtype)
    others = [*scales] if offs is None else [*scales, offs]
    return [a, b, *(realize_inputs(x) for x in others)], layout


def aten_grouped(nodes: list[Any], layout: Any, out_dtype: Any, scaled: bool) -> Any:
    """ATen's choice for a grouped product, with scales or without."""
    from torch._inductor.kernel import mm_grouped

    if scaled:
        options = {"out_dtype": out_dtype, "use_fast_accum": False}
        return mm_grouped.aten__scaled_grouped_mm.bind(nodes, layout, **options)
    return mm_grouped.aten__grouped_mm.bind(nodes, layout, out_dtype=out_dtype)


# Whether a node goes to ATen unseen for a type of its operands, and where the name stands.
_TYPE_CHECK = "fallback_node_due_to_unsupported_type"
_TYPE_CHECKERS = ("torch._inductor.lowering", "torch._inductor.graph")


def allow_scales(ops: Collection[Any]) -> None:
    """Let ops with E8M0 operands come to their lowerings, as Inductor lets its scaled products.

    Args:
        ops: overloads that read such operands only as scales.
    """
    for module in (sys.modules.get(name) for name in _TYPE_CHECKERS):
        before = getattr(module, _TYPE_CHECK, None)
        if before is not None and not hasattr(before, "flydsl_before"):
            setattr(module, _TYPE_CHECK, _allowing(before, ops))


def _allowing(before: Callable[..., bool], ops: Collection[Any]) -> Callable[..., bool]:
    def check(node: Any, *args: Any, **kwargs: Any) -> bool:
        return node.target not in ops and before(node, *args, **kwargs)

    check.flydsl_before = before  # type: ignore[attr-defined]
    return check


def disallow_scales() -> None:
    """Undo `allow_scales`."""
    for module in (sys.modules.get(name) for name in _TYPE_CHECKERS):
        before = getattr(getattr(module, _TYPE_CHECK, None), "flydsl_before", None)
        if before is not None:
            setattr(module, _TYPE_CHECK, before)


# What Inductor lowers ``a @ b + c @ d`` with, and where it looks for it at every graph.
_SUM_MODULE, _SUM = "torch._inductor.kernel.mm_plus_mm", "tuned_mm_plus_mm"


def split_sums(apart: Callable[[Sequence[Any]], bool]) -> None:
    """Lower the sum of two products as two products and a sum where ``apart([a, b, c, d])``.

    Inductor has an op of its own for it, which asks for kernels of both at once.
    """
    module = sys.modules.get(_SUM_MODULE)
    before = getattr(module, _SUM, None)
    if before is None or hasattr(before, "flydsl_before"):
        return

    def lower(a: Any, b: Any, c: Any, d: Any, **options: Any) -> Any:
        import torch
        from torch._inductor.lowering import lowerings

        if options or not apart((a, b, c, d)):
            return before(a, b, c, d, **options)
        mm, add = (lowerings[op] for op in (torch.ops.aten.mm, torch.ops.aten.add))
        return add(mm(a, b), mm(c, d))

    lower.flydsl_before = before  # type: ignore[attr-defined]
    setattr(module, _SUM, lower)


def join_sums() -> None:
    """Undo `split_sums`."""
    module = sys.modules.get(_SUM_MODULE)
    before = getattr(getattr(module, _SUM, None), "flydsl_before", None)
    if before is not None:
        setattr(module, _SUM, before)
