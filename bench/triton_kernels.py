"""Triton kernels that stand for Inductor's Triton templates: written here, in their manner.

Owns device code alone; `peer_triton` compiles it. Needs triton to be imported. Sizes and strides
are compile-time constants, as Inductor generates them.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def matmul(
    a, b, c,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    A_ROW: tl.constexpr, A_COL: tl.constexpr, B_ROW: tl.constexpr, B_COL: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """C[M, N] = A[M, K] @ B[K, N], C row-major: GROUP_M tiles of M run before N advances.

    Rows and columns past the end wrap around, so that loads need no mask; the store has one.
    """
    tiles_m: tl.constexpr = (M + BLOCK_M - 1) // BLOCK_M
    tiles_n: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    tile = tl.program_id(0)
    band = tile // (GROUP_M * tiles_n)
    rows_of_band = min(tiles_m - band * GROUP_M, GROUP_M)
    tile_m = band * GROUP_M + tile % rows_of_band
    tile_n = tile % (GROUP_M * tiles_n) // rows_of_band
    tl.assume(tile_m >= 0)
    tl.assume(tile_n >= 0)

    row = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    a_row, b_column = row % M, column % N
    if M >= BLOCK_M:
        a_row = tl.max_contiguous(tl.multiple_of(a_row, BLOCK_M), BLOCK_M)
    if N >= BLOCK_N:
        b_column = tl.max_contiguous(tl.multiple_of(b_column, BLOCK_N), BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for step in range(0, tl.cdiv(K, BLOCK_K)):
        k = step * BLOCK_K + inner
        a_at = a + a_row[:, None] * A_ROW + k[None, :] * A_COL
        b_at = b + k[:, None] * B_ROW + b_column[None, :] * B_COL
        if K % BLOCK_K == 0:
            a_part, b_part = tl.load(a_at), tl.load(b_at)
        else:
            a_part = tl.load(a_at, mask=k[None, :] < K, other=0.0)
            b_part = tl.load(b_at, mask=k[:, None] < K, other=0.0)
        total += tl.dot(a_part, b_part, out_dtype=tl.float32)

    inside = (row[:, None] < M) & (column[None, :] < N)
    tl.store(c + row[:, None] * N + column[None, :], total.to(c.dtype.element_ty), mask=inside)
