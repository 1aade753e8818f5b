"""`_scaled_grouped_mm` and `_scaled_grouped_mm_v2`: how their scales become a grouped problem's.

Owns what torch's layouts of such scales mean (aten/native/cuda/GroupedBlas.cpp has its checks) and
the lowering of v2, for which Inductor has none. v1 is lowered by Inductor, where `grouped` adds our
choice. Knows nothing of devices, tuning or code generation.

Row-wise factors are fp32, one a row of A and a column of B, for each group: ``[M]`` and ``[N]`` of
a matrix that groups share by those rows, ``[G·M]`` and ``[G·N]`` where they share K, ``[G, M]`` and
``[G, N]`` of a matrix a group. MX scales are E8M0:

- plain (``NO_SWIZZLE``, and v1, as torch has it on ROCm): ``[M, K/32]`` and ``[N, K/32]`` as if
  there were no groups; of a matrix a group ``[G, N, K/32]``, ``[G, N·K/32]``, or ``[G, ·]`` with
  rows and blocks padded to multiples of 128 and 4, as torch's check asks for;
- swizzled (``SWIZZLE_32_4_4``): tiles of 128 rows by 4 blocks, padded for each group by itself, one
  group after another; of a matrix a group ``[G, ·]``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import sympy

from ..errors import ProblemError
from ..problem import alignment
from ..scaling import BLOCK, TILE_BLOCKS, TILE_BYTES, TILE_ROWS, ScaleLayout, Scales, factors
from . import compat, grouped, operands
from .extents import Declined, align, equal, hint, is_static, static
from .operands import Asked
from .scaled import LAYOUTS, SCALE_ALIGN, Recipe

OP = grouped.SCALED_OP
# What it is called where neither operand is cut into groups.
BATCHED = "scaled_mm"
E8M0, FP32 = "float8_e8m0fnu", "float32"


@dataclass(frozen=True, kw_only=True)
class _Matrix:
    """An operand as its scales see it.

    Attributes:
        name: ``a`` or ``b``.
        rows: of A, or columns of B; k: elements along K. Both may be symbolic.
        count: matrices, one a group or batch; 0 for one that groups share.
        shares_k: groups share K, not rows.
    """

    name: str
    rows: Any
    k: Any
    count: Any
    shares_k: bool

    @property
    def blocks(self) -> Any:
        return self.k // BLOCK if is_static(self.k) else sympy.cancel(self.k / BLOCK)


def ask(inputs: Any) -> Asked:
    """The problem of a scaled grouped product, or of a batched one where both operands are 3D.

    Args:
        inputs: nodes are A, B, the scales of A, of B, and the offsets if there are any; scalars
            are ``bias``, ``refused`` (why its recipe has no kernel) and ``recipe``, None for v1.

    Raises:
        Declined: something is not ours.
    """
    if inputs.scalar("refused"):
        raise Declined(inputs.scalar("refused"))
    if inputs.scalar("bias") is not None:
        raise Declined("a bias has no place in a grouped kernel")
    a, b, *scales = inputs.nodes[:4]
    asked = grouped.asked(a, b, inputs.nodes[4:], inputs.layout, (OP, BATCHED))
    order = (0, 1, 4, 2, 3) if asked.problem.grouping else (0, 1, 2, 3)
    asked = replace(asked, order=order)
    kinds = {str(node.get_dtype()).removeprefix("torch.") for node in scales}
    for node in scales:
        compat.freeze(node)
    if kinds == {FP32}:
        return _with_factors(asked, scales)
    if kinds == {E8M0}:
        return _with_blocks(asked, scales, inputs.scalar("recipe") or Recipe())
    raise Declined(f"scales of {' and '.join(sorted(kinds))} have no kernel")


def _matrices(asked: Asked) -> tuple[_Matrix, _Matrix]:
    problem = asked.problem
    m, n, k, batch = (asked.sizes.get(x, getattr(problem, x)) for x in ("m", "n", "k", "batch"))
    if problem.grouping is None:
        counts: tuple[Any, Any] = (batch, batch)
    else:
        axis, groups = problem.grouping.axis.value, problem.grouping.groups
        counts = (groups if axis == "n" else 0, groups if axis == "m" else 0)
    shares_k = problem.grouping is not None and problem.grouping.axis.value == "k"
    left = _Matrix(name="a", rows=m, k=k, count=counts[0], shares_k=shares_k)
    return left, _Matrix(name="b", rows=n, k=k, count=counts[1], shares_k=shares_k)


# --- factors of rows ------------------------------------------------------------------------------


def _with_factors(asked: Asked, scales: Sequence[Any]) -> Asked:
    """fp32 factors of the rows and columns of the result."""
    groups = asked.problem.grouping.groups if asked.problem.grouping else 0
    (of_a, row), (of_b, column) = (
        _factor_steps(node, matrix, groups)
        for node, matrix in zip(scales, _matrices(asked), strict=True)
    )
    tensors = ((of_a, row, 0), (of_b, 0, column))
    problem = replace(asked.problem, fusion=factors(True, True), tensors=tensors)
    return replace(asked, problem=problem)


def _factor_steps(node: Any, matrix: _Matrix, groups: int) -> tuple[int, int]:
    """Elements from a group's factors to the next one's, and from one factor to the next."""
    sizes, strides = list(node.get_size()), list(node.get_stride())
    wrong = f"the scale of {matrix.name.upper()} has sizes {sizes}, not one a row"
    if matrix.count:
        if len(sizes) != 2 or not (equal(sizes[0], matrix.count) and equal(sizes[1], matrix.rows)):
            raise Declined(wrong)
        group, step = static(strides, "strides of a scale")
        return group, step
    total = matrix.rows * groups if matrix.shares_k else matrix.rows
    if len(sizes) != 1 or not equal(sizes[0], total):
        raise Declined(wrong)
    (step,) = static(strides, "stride of a scale")
    (rows,) = static([matrix.rows], "rows of each group") if matrix.shares_k else (0,)
    return rows * step, step


# --- block scales ---------------------------------------------------------------------------------


def _with_blocks(asked: Asked, nodes: Sequence[Any], recipe: Recipe) -> Asked:
    check, held, sizes = asked.check, [], {}
    layouts = (recipe.a, recipe.b)
    for node, layout, matrix, letter in zip(nodes, layouts, _matrices(asked), "xy", strict=True):
        place = _plain if layout is ScaleLayout.PLAIN else _swizzled
        numbers, align_ = place(node, matrix)
        base, unsure = operands.base_alignment(node, 1)
        (offset,) = static([node.get_layout().offset], "offset of block scales")
        aligned = alignment(align_, align(base, offset))
        if layout is ScaleLayout.SWIZZLED and aligned < SCALE_ALIGN:
            raise Declined("swizzled scales at an address that is no multiple of 4: clone() them")
        held.append(
            Scales(layout=layout, align=aligned, **{k: hint(v) for k, v in numbers.items()})
        )
        if not is_static(numbers["row"]):
            sizes[f"{matrix.name}_scale_row"] = numbers["row"]
        check += letter * (unsure and aligned >= SCALE_ALIGN)
    try:
        problem = replace(asked.problem, a_scales=held[0], b_scales=held[1])
    except ProblemError as error:
        raise Declined(str(error)) from error
    return replace(asked, problem=problem, check=check, sizes=asked.sizes | sizes)


def _plain(node: Any, matrix: _Matrix) -> tuple[dict[str, Any], int]:
    """Strides in bytes of scales as they come, and what they are aligned to."""
    sizes, strides = list(node.get_size()), list(node.get_stride())
    wrong = Declined(f"scales of sizes {sizes} are not those of {_words(matrix)}")
    batch: Any = 0
    if matrix.count:
        if not equal(sizes[0], matrix.count):
            raise wrong
        (batch,) = static(strides[:1], "stride of block scales")
        sizes, strides = sizes[1:], strides[1:]
    blocks = matrix.blocks
    if len(sizes) == 2 and equal(sizes[0], matrix.rows) and equal(sizes[1], blocks):
        row, block = strides
    elif len(sizes) == 1 and strides[0] == 1:
        row, block = _flat_row(sizes[0], matrix), 1
        if row is None:
            raise wrong
    else:
        raise wrong
    (block,) = static([block], "steps between block scales")
    block = 1 if blocks == 1 else block
    row = blocks if matrix.rows == 1 else row
    steps = [] if matrix.rows == 1 else [row]
    return {"row": row, "block": block, "batch": batch}, align(16, *steps, batch)


def _flat_row(count: Any, matrix: _Matrix) -> Any:
    """Bytes from row to row of scales in one dimension: dense, or padded as torch's check asks."""
    rows, blocks = matrix.rows, matrix.blocks
    if equal(count, rows * blocks):
        return blocks
    if not matrix.count or not (is_static(rows) and is_static(blocks)):
        return None
    padded = -(-blocks // TILE_BLOCKS) * TILE_BLOCKS
    return padded if count == -(-rows // TILE_ROWS) * TILE_ROWS * padded else None


def _swizzled(node: Any, matrix: _Matrix) -> tuple[dict[str, Any], int]:
    """As `_plain`, of the swizzled layout."""
    if not compat.is_dense(node):
        sizes, strides = list(node.get_size()), list(node.get_stride())
        raise Declined(f"swizzled scales have gaps: strides {strides} of {sizes}")
    have = math.prod(node.get_size())
    if matrix.count or not matrix.shares_k:
        (k,) = static([matrix.k], "K of swizzled scales")
        wanted = Scales.contiguous(k, ScaleLayout.SWIZZLED)
    else:
        # The stride is each group's own.
        wanted = Scales.contiguous(BLOCK, ScaleLayout.SWIZZLED)
    if matrix.count:
        rows, count = static([matrix.rows, matrix.count], "rows of swizzled scales")
        wanted = replace(wanted, batch=wanted.bytes(rows, k))
        fits = equal(have, count * wanted.batch)
    else:
        tiles = _tiles(matrix.rows) * _tiles(matrix.k)
        # As many as there are without the padding between groups, whose ends are not known.
        fits = _at_least(have, tiles * TILE_BYTES)
    if not fits:
        raise Declined(f"{list(node.get_size())} swizzled scales are not those of {_words(matrix)}")
    return {"row": wanted.row, "block": 1, "batch": wanted.batch}, 16


def _tiles(extent: Any) -> Any:
    """Tiles of 128 rows, or of 128 elements along K."""
    return (extent + (TILE_ROWS - 1)) // TILE_ROWS


def _at_least(count: Any, least: Any) -> bool:
    if is_static(count) and is_static(least):
        return bool(count >= least)
    return compat.guard(sympy.Ge(count, least))


def _words(matrix: _Matrix) -> str:
    each = f"{matrix.count} times " if matrix.count else ""
    return f"{matrix.name.upper()}, {each}{matrix.rows} rows of K={matrix.k}"


# --- lowering -------------------------------------------------------------------------------------


def lower_v2(
    a: Any,
    b: Any,
    scale_a: Sequence[Any],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[Any],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    offs: Any = None,
    bias: Any = None,
    out_dtype: Any = None,
    contraction_dim: Any = None,
    use_fast_accum: bool = False,
) -> Any:
    """User lowering of ``aten._scaled_grouped_mm_v2``: the result, or None if it is not ours.

    Nothing else competes: ATen has no such kernel for gfx950, and Inductor none at all.
    """
    import torch
    from torch._inductor.select_algorithm import autotune_select_algorithm

    from . import activate, choices
    from .ops import Inputs

    if not grouped.takes_part():
        return None
    out_dtype = out_dtype or torch.bfloat16
    zeros = grouped.nothing(OP, (a, b), offs, out_dtype) if bias is None else None
    if zeros is not None:
        return zeros
    recipe, refused = _recipe((recipe_a, swizzle_a), (recipe_b, swizzle_b))
    if contraction_dim and [d % 2 for d in contraction_dim] != [1, 0]:
        refused = f"contraction_dim={list(contraction_dim)} is not (-1, -2)"
    scales = (scale_a[0], scale_b[0])
    nodes, layout = compat.grouped_inputs((a, b), scales, offs, out_dtype)
    scalar = {"bias": bias, "recipe": recipe, "refused": refused}.get
    activate.install_scheduling()
    inputs = Inputs(op=OP, nodes=nodes, layout=layout, scalar=scalar)
    ours = choices.offer(inputs, [], needed=True)
    if ours is None:
        return None
    found = autotune_select_algorithm(OP, [ours], nodes, layout)
    return found[0] if isinstance(found, tuple) else found


def _recipe(a: Any, b: Any) -> tuple[Recipe | None, str | None]:
    """The layouts of MX scales, if they are MX, and why the recipe has no kernel, if so."""
    known = compat.recipes()
    named = [[known.get(int(kind), str(kind)) for kind in kinds] for kinds, _ in (a, b)]
    if named == [[compat.ROWWISE]] * 2:
        return None, None
    if named != [[compat.MX]] * 2:
        words = " and ".join("+".join(kinds) for kinds in named)
        return None, f"grouped products with scales {words} have no kernel"
    layouts = [LAYOUTS.get((list(swizzle) or [0])[0]) for _, swizzle in (a, b)]
    if None in layouts:
        return None, "a swizzle other than NO_SWIZZLE and SWIZZLE_32_4_4 has no kernel"
    return Recipe(a=layouts[0], b=layouts[1]), None  # type: ignore[arg-type]


def check(a: Any, b: Any, offs: Any) -> str | None:
    """What is wrong with operands and offsets of a grouped product, or None."""
    dims = a.dim(), b.dim()
    if not set(dims) <= {2, 3}:
        return f"operands must be 2D or 3D, got {dims[0]}D and {dims[1]}D"
    if (offs is None) != (dims == (3, 3)):
        return f"{dims[0]}D x {dims[1]}D operands with offsets {offs}"
    return None


def install() -> None:
    """Give 2.13 the meta function that fake tensors meet before any lowering."""
    compat.add_grouped_meta(check, grouped.may_take_part)


def uninstall() -> None:
    """Undo `install`."""
    compat.remove_grouped_meta()
