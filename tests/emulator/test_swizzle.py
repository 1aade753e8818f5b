"""The macros that LLVM writes for ds_swizzle_b32's offset."""

from __future__ import annotations

import numpy as np
import pytest
from isa_text import evaluate

from inductor_flydsl.emulator import UnknownInstruction

LANE = np.arange(64)


@pytest.mark.parametrize("macro, source", [
    ("swizzle(SWAP,8)", LANE ^ 8),
    ("swizzle(SWAP,1)", LANE ^ 1),
    ("swizzle(REVERSE,16)", LANE ^ 15),
    ("swizzle(BROADCAST,4,1)", LANE // 4 * 4 + 1),
    ("swizzle(BROADCAST,32,5)", LANE // 32 * 32 + 5),
    ("swizzle(QUAD_PERM,3,1,2,0)", LANE // 4 * 4 + np.array([3, 1, 2, 0])[LANE % 4]),
    ('swizzle(BITMASK_PERM,"01pip")', LANE & 32 | 8 | LANE & 4 | (LANE ^ 2) & 2 | LANE & 1),
])  # fmt: skip
def test_swizzle_macros(macro: str, source: np.ndarray) -> None:
    body = f"ds_swizzle_b32 v10, v1 offset:{macro}\ns_waitcnt lgkmcnt(0)"
    assert (evaluate(body) == 4 * source).all()


@pytest.mark.parametrize("macro", ["swizzle(ROTATE,0,3)", "swizzle(SWAP,x)", "swoosh(1)"])
def test_swizzles_without_a_model_are_refused(macro: str) -> None:
    with pytest.raises(UnknownInstruction, match="ds_swizzle_b32"):
        evaluate(f"ds_swizzle_b32 v10, v1 offset:{macro}")
