"""`_scaled_mm` and `_scaled_mm_v2`: how their scales become a problem's, and where MX is lowered.

Tensor-wise and row-wise FP8 reach Inductor's choices like any product; their scales are factors in
the epilogue. MX recipes do so on no version of PyTorch: they come here by a user lowering, and what
is not ours goes on to the built-in one. Knows nothing of devices, tuning or code generation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .. import copies
from ..arch import get_arch
from ..dtypes import DType
from ..errors import ProblemError
from ..fusion import Fusion, Node
from ..problem import alignment
from ..scaling import BLOCK, TILE_BLOCKS, TILE_ROWS, ScaleLayout, Scales, factors
from . import compat, operands
from .decisions import Decision, record
from .extents import Declined, equal, static
from .grouped import may_take_part, takes_part
from .operands import Asked

if TYPE_CHECKING:
    from .ops import Inputs

# Values of torch.nn.functional.SwizzleType.
LAYOUTS = {0: ScaleLayout.PLAIN, 1: ScaleLayout.SWIZZLED}
# What `lower_v2` calls a product with MX scales; its ``recipe`` is a Recipe.
MX_OP = "scaled_mm_v2"
# Address bits that loads of scales by dwords need.
SCALE_ALIGN = 4


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the block scales of A and of B lie."""

    a: ScaleLayout = ScaleLayout.PLAIN
    b: ScaleLayout = ScaleLayout.PLAIN


def ask(nodes: Sequence[Any], layout: Any, recipe: Recipe | None = None) -> Asked:
    """The problem of ``_scaled_mm`` or ``_scaled_mm_v2``.

    Args:
        nodes: realized IR nodes of A, B, the scales of A, of B, and of a bias if there is one.
        layout: the fixed layout of C.
        recipe: of block scales in their v2 form; None is what v1 means by E8M0 scales.

    Raises:
        Declined: something is not ours.
    """
    a, b, a_scale, b_scale, *bias = nodes
    asked = operands.product(a, b, layout, "scaled_mm")
    kinds = {str(node.get_dtype()).removeprefix("torch.") for node in (a_scale, b_scale)}
    if kinds == {"float8_e8m0fnu"}:
        asked = _with_blocks(asked, (a_scale, b_scale), recipe or Recipe())
    elif kinds == {"float32"}:
        asked = _with_factors(asked, (a_scale, b_scale))
    else:
        raise Declined(f"scales of {' and '.join(sorted(kinds))} have no kernel")
    return _with_bias(asked, bias[0]) if bias else asked


def _with_factors(asked: Asked, scales: tuple[Any, Any]) -> Asked:
    """Tensor-wise or row-wise: fp32 factors of the whole result, or of its rows and columns."""
    problem = asked.problem
    rows = [asked.sizes.get(name, getattr(problem, name)) for name in ("m", "n")]
    steps = [_factor_step(x, r, n) for x, r, n in zip(scales, rows, "AB", strict=True)]
    fusion = factors(steps[0] > 0, steps[1] > 0)
    problem = replace(problem, fusion=fusion, tensors=((0, steps[0], 0), (0, 0, steps[1])))
    return replace(asked, problem=problem, order=(0, 1, 2, 3))


def _factor_step(scale: Any, rows: Any, name: str) -> int:
    """Elements from the factor of one row of an operand to the next; 0 where all share one."""
    compat.freeze(scale)
    sizes = list(scale.get_size())
    along = [i for i, size in enumerate(sizes) if size != 1]
    if not along:
        return 0
    if len(along) > 1 or not equal(sizes[along[0]], rows):
        raise Declined(f"{name} has a scale of sizes {sizes}: neither one nor one a row")
    (step,) = static([scale.get_stride()[along[0]]], f"stride of the scale of {name}")
    if step < 1:
        raise Declined(f"the scale of {name} has a stride of {step}")
    return step


def _with_blocks(asked: Asked, nodes: tuple[Any, Any], recipe: Recipe) -> Asked:
    problem, check = asked.problem, asked.check
    rows = [asked.sizes.get(name, getattr(problem, name)) for name in ("m", "n")]
    held = []
    for node, layout, count, letter in zip(nodes, (recipe.a, recipe.b), rows, "xy", strict=True):
        compat.freeze(node)
        if layout is ScaleLayout.PLAIN:
            scales, unsure = _plain_scales(node, count, problem.k)
        else:
            scales, unsure = _swizzled_scales(node, count, problem.k)
        held.append(scales)
        check += letter * unsure
    try:
        problem = replace(problem, a_scales=held[0], b_scales=held[1])
    except ProblemError as error:
        raise Declined(str(error)) from error
    return replace(asked, problem=problem, check=check, order=(0, 1, 2, 3))


def _plain_scales(node: Any, rows: Any, k: int) -> tuple[Scales, bool]:
    """Where the block scales of an operand lie, and whether their address must be checked."""
    blocks = -(-k // BLOCK)
    sizes, strides = list(node.get_size()), list(node.get_stride())
    (offset,) = static([node.get_layout().offset], "offset of block scales")
    if len(sizes) == 2 and equal(sizes[0], rows) and sizes[1] == blocks:
        row, block = static(strides, "strides of block scales")
    elif len(sizes) == 1 and equal(sizes[0], rows * blocks) and strides[0] == 1:
        row, block = blocks, 1
    else:
        raise Declined(f"scales of sizes {sizes} are not those of {rows} rows of {blocks}")
    row, block = blocks if rows == 1 else row, 1 if blocks == 1 else block
    base, unsure = operands.base_alignment(node, 1)
    align = alignment(base, offset, *(() if rows == 1 else (row,)))
    return Scales(row=row, block=block, align=align), unsure and align >= SCALE_ALIGN


def _swizzled_scales(node: Any, rows: Any, k: int) -> tuple[Scales, bool]:
    """As `_plain_scales`, of the swizzled layout."""
    sizes = static(node.get_size(), "sizes of swizzled scales")
    (rows,) = static([rows], "rows of swizzled scales")
    (offset,) = static([node.get_layout().offset], "offset of block scales")
    wanted = Scales.contiguous(k, ScaleLayout.SWIZZLED)
    if not compat.is_dense(node):
        raise Declined(f"swizzled scales have gaps: strides {list(node.get_stride())} of {sizes}")
    if math.prod(sizes) != wanted.bytes(rows, k):
        raise Declined(f"{sizes} swizzled scales are not those of {rows} rows of K={k}")
    base, unsure = operands.base_alignment(node, 1)
    align = alignment(base, offset)
    if align < SCALE_ALIGN:
        raise Declined("swizzled scales at an address that is no multiple of 4: clone() them")
    return replace(wanted, align=align), unsure


def _with_bias(asked: Asked, bias: Any) -> Asked:
    """The bias added last, as ATen does, before the result is rounded."""
    problem = asked.problem
    before = problem.fusion or Fusion(nodes=(Node(op="acc"),))
    index = len(before.tensors)
    tensor, strides, sizes = operands.bias_tensor(bias, asked, index)
    count = len(before.nodes)
    nodes = (Node(op="tensor", value=index), Node(op="add", args=(count - 1, count)))
    fusion = Fusion(nodes=(*before.nodes, *nodes), tensors=(*before.tensors, tensor))
    problem = replace(problem, fusion=fusion, tensors=(*problem.tensors, strides))
    return replace(asked, problem=problem, order=(*asked.order, 4), sizes=asked.sizes | sizes)


# --- lowerings ------------------------------------------------------------------------------


def lower_v1(
    a: Any,
    b: Any,
    scale_a: Any,
    scale_b: Any,
    bias: Any = None,
    scale_result: Any = None,
    out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Any:
    """User lowering of ``aten._scaled_mm``, for operands whose strides the built-in one refuses."""
    if _strides_taken(a, b) or not takes_part():
        return None
    return _lower(a, b, (scale_a, scale_b, bias), out_dtype)


def lower_v2(
    a: Any,
    b: Any,
    scale_a: Sequence[Any],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[Any],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    bias: Any = None,
    out_dtype: Any = None,
    contraction_dim: Any = None,
    use_fast_accum: bool = False,
) -> Any:
    """User lowering of ``aten._scaled_mm_v2``: the result if it is MX and ours, else None.

    Also for other recipes on operands whose strides the built-in one refuses.
    """
    if contraction_dim and [d % 2 for d in contraction_dim] != [1, 0] or not takes_part():
        return None
    a, b = compat.as_asked(a, b)
    recipe = _mx_recipe((recipe_a, swizzle_a), (recipe_b, swizzle_b))
    one_each = len(scale_a) == len(scale_b) == 1 and not any((*swizzle_a, *swizzle_b))
    if recipe is None and (_strides_taken(a, b) or not one_each):
        return None
    asked = ((scale_a, recipe_a, swizzle_a), (scale_b, recipe_b, swizzle_b)) if recipe else None
    return _lower(a, b, (scale_a[0], scale_b[0], bias), out_dtype, (recipe, asked))


def _strides_taken(a: Any, b: Any) -> bool:
    """Row-major A and column-major B, as far as can be told."""
    strides = a.maybe_get_stride(), b.maybe_get_stride()
    if None in strides:
        return True
    return bool(strides[0][1] == 1 and strides[1][0] == 1)


def _after_copies(ours: Any, inputs: Inputs, theirs: Sequence[Any]) -> Any:
    """Ours on copies of those operands that do not run along K, or None.

    Args:
        ours: the choice on the operands as they lie.
        inputs: of the op; theirs: the choices of Inductor's own.
    """
    from . import choices
    from .caller import FlyDSLCopyingCaller

    launch = ours.launch
    made = copies.along_k(launch.problem, get_arch(launch.arch))
    if made is None:
        return None
    copied = tuple(index for index, name in enumerate("AB") if name in made.operands)
    nodes = list(inputs.nodes)
    for index in copied:
        nodes[index] = compat.copy_to_be(nodes[index], 1 - index)
    found = choices.offer(replace(inputs, nodes=nodes), theirs)
    return found and FlyDSLCopyingCaller(found, inputs.nodes, copied, made.us)


def _nothing(a: Any, b: Any, out_dtype: Any) -> Any:
    """An MX product without elements, or without K: zeros, as eager PyTorch has them."""
    shapes, reason = operands.describe((a, b)), "an operand is empty: the result is zeros"
    record(Decision(op=MX_OP, shapes=shapes, chosen="OTHERS", reason=reason))
    sizes = [a.get_size()[0], b.get_size()[1]]
    return compat.zeros(sizes, out_dtype or a.get_dtype(), a.get_device())


def _lower(
    a: Any,
    b: Any,
    others: tuple[Any, Any, Any],
    out_dtype: Any,
    mx: tuple[Recipe | None, Any] = (None, None),
) -> Any:
    """Ours beside what torch has for it, benchmarked as any GEMM; None if ours is declined.

    Args:
        a, b: of the op; others: the scales of A and of B, and the bias or None.
        out_dtype: of the op.
        mx: the recipe of MX scales, and what the op says of those of A and of B.
    """
    from torch._inductor.kernel.mm_common import mm_args
    from torch._inductor.select_algorithm import autotune_select_algorithm, realize_inputs

    from . import activate, choices
    from .ops import Inputs

    if mx[0] is not None and any(size == 0 for size in (*a.get_size(), *b.get_size())):
        return _nothing(a, b, out_dtype)
    _, _, _, layout, mat_a, mat_b = mm_args(a, b, out_dtype=out_dtype)
    nodes = [mat_a, mat_b, *(realize_inputs(x) for x in others if x is not None)]
    recipe, asked = mx
    theirs = [] if recipe is None else compat.mx_choices(nodes, layout, asked, out_dtype)
    scalars = {"recipe": recipe}
    op = "scaled_mm" if recipe is None else MX_OP
    inputs = Inputs(op=op, nodes=nodes, layout=layout, scalar=scalars.__getitem__)
    # Where nothing else in the graph asks for choices, ours may be the first buffer.
    activate.install_scheduling()
    ours = choices.offer(inputs, theirs, needed=recipe is not None)
    if ours is None:
        return None
    copying = _after_copies(ours, inputs, theirs)
    # Where the op stayed open until the scheduler's turn, it would be too late for copies.
    options = {} if copying is None else {"return_multi_template": False}
    offered = [c for c in (*theirs, ours, copying) if c is not None]
    found = autotune_select_algorithm("scaled_mm", offered, nodes, layout, **options)
    return found[0] if isinstance(found, tuple) else found


def _mx_recipe(a: Any, b: Any) -> Recipe | None:
    """The layouts of MX scales, or None where it is another recipe."""
    mx = compat.mx_recipe()
    if mx is None or list(a[0]) != [mx] or list(b[0]) != [mx]:
        return None
    layouts = [LAYOUTS.get((list(swizzle) or [0])[0]) for _, swizzle in (a, b)]
    if None in layouts:
        return None
    return Recipe(a=layouts[0], b=layouts[1])  # type: ignore[arg-type]


LOWERINGS: dict[str, Callable[..., Any]] = {"_scaled_mm": lower_v1, "_scaled_mm_v2": lower_v2}

# --- 2.13's meta function --------------------------------------------------------------------


def install() -> None:
    """Mend 2.13's meta function, which fake tensors meet before any lowering."""
    compat.replace_mx_check(_check_mx, may_take_part)


def uninstall() -> None:
    """Undo `install`."""
    compat.restore_mx_check()


def _check_mx(a: Any, b: Any, scales: tuple[Any, Any], swizzles: tuple[int, int]) -> str | None:
    """What is wrong with the scales of an MX product, or None.

    Args:
        a, b: A[M, K] and B[K, N] as torch has them.
        scales: of A and of B; swizzles: values of SwizzleType.
    """
    k = a.shape[1] * DType.parse(str(a.dtype)).packed
    blocks = -(-k // BLOCK)
    for name, rows, scale, swizzle in zip(
        "ab", (a.shape[0], b.shape[1]), scales, swizzles, strict=True
    ):
        wanted = rows * blocks
        if swizzle:
            tiles = -(-rows // TILE_ROWS) * -(-blocks // TILE_BLOCKS)
            wanted = tiles * TILE_ROWS * TILE_BLOCKS
        if scale.numel() != wanted:
            return f"scale_{name} must have {wanted} elements, got {scale.numel()}"
        if "e8m0" not in str(scale.dtype):
            return f"scale_{name} must be torch.float8_e8m0fnu, got {scale.dtype}"
    return None
