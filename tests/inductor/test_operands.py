"""What Inductor's operands are taken for: letters, strides, steps and alignments."""

import pytest
import torch

from .conftest import random

K = 72


def strided(rows, columns, strides, offset=0):
    size = (rows - 1) * strides[0] + (columns - 1) * strides[1] + offset + 1
    return random(size).as_strided((rows, columns), strides, offset)


# Operand A[40, 72] of a product with a contiguous B[72, 56] → letter, ld, inner, align.
A_CASES = {
    "rows": ((40, K), (72, 1), 0, ("N", 72, 1, 16)),
    "columns": ((40, K), (1, 40), 0, ("T", 40, 1, 16)),
    "padded rows": ((40, K), (80, 1), 0, ("N", 80, 1, 16)),
    "rows of 2-byte alignment": ((40, K), (73, 1), 0, ("N", 73, 1, 2)),
    "rows of 4-byte alignment": ((40, K), (74, 1), 0, ("N", 74, 1, 4)),
    "rows of 8-byte alignment": ((40, K), (76, 1), 0, ("N", 76, 1, 8)),
    "offset of 2 bytes": ((40, K), (72, 1), 1, ("N", 72, 1, 2)),
    "offset of 8 bytes": ((40, K), (72, 1), 4, ("N", 72, 1, 8)),
    "offset of 16 bytes": ((40, K), (72, 1), 8, ("N", 72, 1, 16)),
    "one row repeated": ((40, K), (0, 1), 0, ("N", 0, 1, 16)),
    "one column repeated": ((40, K), (1, 0), 0, ("T", 0, 1, 16)),
    "overlapping rows": ((40, K), (8, 1), 0, ("N", 8, 1, 16)),
    "a single row": ((1, K), (72, 1), 0, ("N", 72, 1, 16)),
    "a single row of odd stride": ((1, K), (99, 1), 0, ("N", 72, 1, 16)),
}


@pytest.mark.parametrize("name", A_CASES)
def test_left_operand(compiled, ours_is_fast, name):
    (rows, columns), strides, offset, expected = A_CASES[name]
    a = strided(rows, columns, strides, offset)
    _, _, (decision,) = compiled(lambda a, b: a @ b, a, random(K, 56))
    p = decision.problem
    assert (p.layout.value[0], p.lda, p.a_inner, p.a_align) == expected
    assert (p.layout.value[1], p.ldb, p.ldc, p.b_align, p.c_align) == ("N", 56, 56, 16, 16)


@pytest.mark.parametrize("name", A_CASES)
def test_right_operand_is_the_mirror_image(compiled, ours_is_fast, name):
    (rows, columns), strides, offset, (letter, ld, inner, align) = A_CASES[name]
    b = strided(rows, columns, strides, offset).t()
    _, _, (decision,) = compiled(lambda a, b: a @ b, random(48, K), b)
    p = decision.problem
    mirrored = {"N": "T", "T": "N"}[letter]
    assert (p.layout.value[1], p.ldb, p.b_inner, p.b_align) == (mirrored, ld, inner, align)


@pytest.mark.parametrize("strides", [(144, 2), (0, 3), (72, 0)])
def test_a_step_between_elements(compiled, ours_is_fast, monkeypatch, strides):
    """Inductor copies such operands before a product; without that they are described as is."""
    from torch._inductor import ir

    monkeypatch.setattr(ir.ExternKernel, "require_stride1", classmethod(lambda cls, x: x))
    a = strided(40, K, strides)
    result, _, (decision,) = compiled(lambda a, b: a @ b, a, random(K, 56))
    p = decision.problem
    assert (p.layout.value[0], p.lda, p.a_inner) == ("N", *strides)
    assert result.isfinite().all()


@pytest.mark.parametrize(("offset", "align"), [(0, 16), (1, 2), (2, 4), (4, 8), (8, 16)])
def test_the_offset_of_a_view_made_in_the_graph(compiled, ours_is_fast, offset, align):
    a, b = random(40, K + 8), random(K, 56)
    _, _, (decision,) = compiled(lambda a, b: a[:, offset : offset + K] @ b, a, b)
    assert (decision.problem.lda, decision.problem.a_align) == (K + 8, align)


def test_an_inner_product_is_aligned_by_inductor(compiled, ours_is_fast):
    """A buffer that Inductor allocates needs no check of its address; an input on a CPU does."""
    a, b, c = random(32, 64), random(64, 48), random(48, 40)
    _, code, _ = compiled(lambda a, b, c: (a @ b) @ c, a, b, c)
    assert code.count('"check": "ab"') == 1 and code.count('"check": "b"') == 1


def test_a_misaligned_example_promises_nothing(compiled, ours_is_fast):
    a = random(40 * K + 1).as_strided((40, K), (K, 1), 1)
    _, code, (decision,) = compiled(lambda a, b: a @ b, a, random(K, 56))
    assert decision.problem.a_align == 2 and '"check": "b"' in code


def test_one_column_of_output(compiled, ours_is_fast):
    _, _, decisions = compiled(lambda a, b: a @ b, random(40, K), random(K, 1))
    for decision in decisions:  # torch may turn such products into sums first
        assert (decision.problem.n, decision.problem.ldc) == (1, 1)
    assert torch.is_grad_enabled()
