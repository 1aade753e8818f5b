"""The grouped Triton kernel that stands for Inductor's template: written here, in its manner.

Owns device code alone, see `triton_kernels`.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def grouped(
    a, b, ends, c,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, G: tl.constexpr, PROGRAMS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """C[rows of g] = A[rows of g] @ B[g]; A[M, K], B[G, K, N] and C[M, N] row-major.

    ``ends`` holds where each group's rows end. PROGRAMS persistent programs walk the tiles of all
    groups, M fastest, and load through tensor descriptors as Inductor's kernel does.
    """
    tiles_n: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    a_tiles = tl.make_tensor_descriptor(
        a, shape=[M, K], strides=[K, 1], block_shape=[BLOCK_M, BLOCK_K]
    )
    b_tiles = tl.make_tensor_descriptor(
        b, shape=[G, K, N], strides=[K * N, N, 1], block_shape=[1, BLOCK_K, BLOCK_N]
    )
    mine, passed, end = tl.program_id(0), 0, 0
    for group in tl.range(G):
        start = end
        end = tl.load(ends + group)
        rows = end - start
        if rows > 0:
            tiles_m = tl.cdiv(rows, BLOCK_M)
            tiles = tiles_m * tiles_n
            while mine >= passed and mine < passed + tiles:
                row = (mine - passed) % tiles_m * BLOCK_M
                column = (mine - passed) // tiles_m * BLOCK_N
                total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
                for step in range(0, tl.cdiv(K, BLOCK_K)):
                    a_part = a_tiles.load([start + row, step * BLOCK_K])
                    b_part = b_tiles.load([group, step * BLOCK_K, column])
                    total += tl.dot(a_part, b_part.reshape(BLOCK_K, BLOCK_N))
                rows_at = row + tl.arange(0, BLOCK_M)
                columns_at = column + tl.arange(0, BLOCK_N)
                inside = (rows_at[:, None] < rows) & (columns_at[None, :] < N)
                at = c + (start + rows_at[:, None]) * N + columns_at[None, :]
                tl.store(at, total.to(c.dtype.element_ty), mask=inside)
                mine += PROGRAMS
            passed += tiles
