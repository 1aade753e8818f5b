"""The graph that is being lowered: its limits, layouts, symbols and guards."""

from __future__ import annotations

import math
from typing import Any


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
    """Whether a symbolic number is a multiple of a power of two for all values of the graph."""
    import sympy
    from torch._inductor.virtualized import V

    if V.graph.sizevars.statically_known_multiple_of(number, divisor):
        return True
    known = {s: of * s for s, of in _multiples().items() if s in number.free_symbols}
    if not known:
        return False
    # Of a sum of products of whole numbers, each term is a multiple.
    expanded = sympy.expand(number.subs(known))
    terms = expanded.as_coefficients_dict()
    whole = all(term.is_integer for term in terms)
    return whole and all(factor % divisor == 0 for factor in terms.values())


def guard_multiple(number: Any, divisor: int) -> bool:
    """`guard` that a number is a multiple; that of a symbol `is_multiple` knows from then on,
    which torch does not conclude from its own guards."""
    import sympy

    if not guard(sympy.Eq(sympy.Mod(number, divisor), 0)):
        return False
    factor, rest = number.as_coeff_Mul()
    if rest.is_Symbol:
        multiples = _multiples()
        of = divisor // math.gcd(divisor, int(factor))
        multiples[rest] = math.lcm(multiples.get(rest, 1), of)
    return True


def _multiples() -> dict[Any, int]:
    """Symbols of the graph that are guarded to be multiples, and of what."""
    from torch._inductor.virtualized import V

    found: dict[Any, int] = vars(V.graph).setdefault("_flydsl_multiples", {})
    return found


def guardable(number: Any) -> bool:
    """Whether relations of a number's symbols can be guarded: unbacked ones, and those of a graph
    whose guards are made already, cannot."""
    from torch._inductor.virtualized import V

    environment: Any = V.graph.sizevars.shape_env
    unbacked = any(environment.is_unbacked_symint(s) for s in number.free_symbols)
    return not (getattr(environment, "frozen", False) or unbacked)


def guard(condition: Any) -> bool:
    """Compile again where a relation of symbols fails; False if that cannot be had."""
    from torch._inductor.virtualized import V

    return guardable(condition) and bool(V.graph.sizevars.shape_env.evaluate_expr(condition))


def current_node() -> Any:
    """The graph's node that is being lowered."""
    from torch._inductor.virtualized import V

    return V.graph.current_node
