"""The arguments of every kernel, in order. Needs no flydsl.

All kernels take all of them, so that one host wrapper serves all; what a kernel does not use costs
it nothing but its place in the argument block.
"""

from __future__ import annotations

from .fusion import MAX_TENSORS

TENSORS = tuple(f"t{i}" for i in range(MAX_TENSORS))
# E8M0 block scales of A and of B.
SCALES = ("a_scale", "b_scale")
SCALE_STRIDES = ("row", "block", "batch")
# What there is an outer stride of: from one outer index of batches to the next.
OUTER = ("c", *TENSORS)
# Byte addresses: C, A, B, the operands of the epilogue, block scales, scratch memory of split-K
# kernels, and the ends of the groups of a grouped problem (32-bit integers).
POINTERS = ("c", "a", "b", *TENSORS, *SCALES, "workspace", "counters", "offsets")
# 64-bit integers: strides from one batch, group or outer index of batches to the next.
LONGS: tuple[str, ...] = tuple(f"{name}_batch" for name in ("a", "b", "c", *TENSORS, *SCALES))
LONGS += tuple(f"{name}_outer" for name in OUTER)
# 32-bit integers. Strides are in stored elements, those of scales in bytes; `k_split` is the K
# extent of one split, `whole` the tiles that stream-K leaves in one piece.
INTEGERS: tuple[str, ...] = (
    "m",
    "n",
    "k",
    "lda",
    "ldb",
    "ldc",
    "a_inner",
    "b_inner",
    "grid",
    "k_split",
    "whole",
)
INTEGERS += ("batch", "groups")
# Divisors by which a workgroup finds its tile, `arguments.turns`, each with its `division.divider`.
TURNS = ("tiles", "turn", "rest")
INTEGERS += tuple(f"{turn}{part}" for turn in TURNS for part in ("", "_multiplier", "_shift"))
INTEGERS += tuple(f"{t}_{axis}" for t in TENSORS for axis in ("row", "column"))
# Batches that follow one another before the outer index of batches moves, as a divisor.
HEADS = "heads"
INTEGERS += tuple(f"{HEADS}{part}" for part in ("", "_multiplier", "_shift"))
INTEGERS += tuple(f"{scale}_{axis}" for scale in SCALES for axis in ("row", "block"))
