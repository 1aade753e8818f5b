from __future__ import annotations

import pickle
import random
from dataclasses import replace

import pytest

from inductor_flydsl.errors import ProblemError
from inductor_flydsl.fusion import Fusion, Node, Tensor
from inductor_flydsl.problem import DType, GemmProblem, Layout, alignment


def _random_problem(rng: random.Random) -> GemmProblem:
    n = rng.randint(1, 5000)
    return GemmProblem(
        m=rng.randint(1, 5000),
        n=n,
        k=rng.randint(1, 5000),
        dtype=rng.choice((DType.BF16, DType.FP16)),
        out_dtype=rng.choice(tuple(DType)),
        layout=rng.choice(tuple(Layout)),
        lda=rng.randint(0, 9000),
        ldb=rng.randint(0, 9000),
        ldc=n + rng.randint(0, 64),
        a_inner=rng.randint(0, 3),
        b_inner=rng.randint(0, 3),
        a_align=rng.choice((2, 4, 8, 16)),
    )


def test_json_round_trip() -> None:
    rng = random.Random(0)
    for _ in range(50):
        problem = _random_problem(rng)
        assert GemmProblem.from_json(problem.to_json()) == problem
        assert pickle.loads(pickle.dumps(problem)) == problem


@pytest.mark.parametrize(
    ("layout", "lda", "ldb"), [("NN", 7, 5), ("NT", 7, 7), ("TN", 3, 5), ("TT", 3, 7)]
)
def test_dense_leading_dimensions(layout: str, lda: int, ldb: int) -> None:
    problem = GemmProblem.dense(3, 5, 7, layout=layout)
    assert (problem.lda, problem.ldb, problem.ldc) == (lda, ldb, 5)
    assert problem.a_align == problem.b_align == problem.c_align == 2


def test_dense_alignment_follows_rows() -> None:
    problem = GemmProblem.dense(128, 12, 36, dtype="fp16", out_dtype="fp32")
    assert (problem.a_align, problem.b_align, problem.c_align) == (8, 8, 16)


def test_parse() -> None:
    assert GemmProblem.parse("1,2,3") == GemmProblem.dense(1, 2, 3)
    full = GemmProblem.dense(16, 32, 64, dtype=DType.FP16, layout=Layout.TN)
    assert GemmProblem.parse(" 16, 32,64 ,half, tn") == full


def test_parse_a_batch_and_an_output_type() -> None:
    found = GemmProblem.parse("8x3,5,7,bf16->fp32,NN")
    assert found == GemmProblem.dense(3, 5, 7, batch=8, out_dtype="fp32", layout="NN")
    assert (found.op, found.a_batch, found.b_batch, found.c_batch) == ("bmm", 21, 35, 15)
    assert (found.a_align, found.b_align) == (2, 2)
    assert GemmProblem.parse("1x3,5,7") == GemmProblem.dense(3, 5, 7)


def test_at_other_sizes() -> None:
    fusion = Fusion(
        nodes=(Node(op="acc"), Node(op="tensor", value=0), Node(op="add", args=(0, 1))),
        tensors=(Tensor(dtype=DType.BF16, along_m=True, along_n=True),),
    )
    problem = replace(GemmProblem.dense(4, 8, 16), fusion=fusion, tensors=((0, 8, 1),))
    found = problem.at({"m": 9, "t0_row": 24})
    assert (found.m, found.n, found.tensors) == (9, 8, ((0, 24, 1),))
    with pytest.raises(ProblemError, match="m="):
        problem.at({"m": 0})


@pytest.mark.parametrize(
    "text",
    ["x1,2,3", "0x1,2,3", "2x,2,3", "1,2x3,4", "1,2,3,bf16->,NT", "", "1,2", "1,2,x", "-1,2,3"]
    + ["1,2,3,fp12", "1,2,3,bf16,XX", "1,2,3,bf16,NT,4", "0,1,1"],
)
def test_parse_refuses(text: str) -> None:
    with pytest.raises(ProblemError) as caught:
        GemmProblem.parse(text)
    assert caught.value.argument in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        {"m": 0},
        {"k": True},
        {"n": 2.0},
        {"lda": -1},
        {"a_align": 3},
        {"ldc": 1},
        {"colour": 1},
        {"dtype": "int8"},
        {"layout": 3},
    ],
)
def test_from_json_refuses(change: dict[str, object]) -> None:
    data = GemmProblem.dense(4, 4, 4).to_json() | change
    with pytest.raises(ProblemError, match=next(iter(change))):
        GemmProblem.from_json(data)


def test_from_json_names_what_is_missing() -> None:
    data = GemmProblem.dense(4, 4, 4).to_json()
    del data["ldb"]
    with pytest.raises(ProblemError, match="ldb"):
        GemmProblem.from_json(data)


def test_flops_and_bytes() -> None:
    problem = GemmProblem.dense(3, 5, 7, out_dtype="fp32")
    assert problem.flops == 2 * 3 * 5 * 7
    assert problem.bytes == 2 * (3 * 7 + 7 * 5) + 4 * 3 * 5


def test_alignment_is_the_common_power_of_two() -> None:
    rng = random.Random(1)
    for _ in range(200):
        counts = [rng.randint(0, 1000) * 2 for _ in range(3)]
        found = alignment(*counts)
        assert all(c % found == 0 for c in counts)
        assert found == 16 or any(c % (2 * found) for c in counts)


def test_errors_survive_a_worker_pool() -> None:
    with pytest.raises(ProblemError) as caught:
        GemmProblem.parse("1")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), str(again)) == (ProblemError, str(caught.value))
    assert again.argument == "problem"
