"""The comparison of compiles: which candidates, what is printed, and roles that fail."""

from __future__ import annotations

import pytest

from bench import compile as bench_compile
from bench.roles import run_role


def test_candidates_are_spread_over_a_list() -> None:
    assert bench_compile.spread("abcdefghi", 3) == ["a", "e", "i"]
    assert bench_compile.spread("ab", 5) == ["a", "b"]
    assert bench_compile.spread("abc", 1) == ["a"] and bench_compile.spread("", 3) == []


def test_a_line_and_a_reason() -> None:
    found = {"start": 4.0, "seconds": [3.0, 1.0, 1.5], "cpu": [0.9, 0.8, 1.0]}
    line = bench_compile.row("ours", found).split()
    assert line == ["ours", "3", "1.00", "1.50", "3.00", "5.50", "4.00", "0.90"]
    missing = bench_compile.row("triton", {"missing": "triton is not installed"})
    assert missing.split() == ["triton", "none:", "triton", "is", "not", "installed"]


def test_ours_must_not_be_slower_than_the_in_tree_backend() -> None:
    ours = {"start": 1.0, "seconds": [1.0, 1.2, 9.0]}
    slow = {"ours": ours, "vendored": {"start": 1.0, "seconds": [0.1, 1.1, 20.0]}}
    missed = ["1.20 s a candidate, PyTorch's in-tree FlyDSL takes 1.10"]
    assert bench_compile.unmet(slow) == missed
    assert bench_compile.unmet(slow | {"vendored": {"missing": "torch 2.13"}}) == []
    assert bench_compile.unmet({"ours": ours, "vendored": ours}) == []


def test_a_role_that_fails_says_so(tmp_path) -> None:
    with pytest.raises(RuntimeError, match="nothing at all: .*Error while finding module"):
        run_role("no.such_module", ["nothing", "at all"], tmp_path, {})
