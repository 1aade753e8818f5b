"""Lists of problems in files, and the recording of compiles by several processes."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from inductor_flydsl import shapes
from inductor_flydsl.errors import ProblemError
from inductor_flydsl.problem import GemmProblem

ODD = replace(GemmProblem.dense(33, 40, 65, layout="TN", dtype="fp16"), lda=100, a_align=2)


def test_csv_with_and_without_names(tmp_path: Path) -> None:
    plain = tmp_path / "plain.csv"
    plain.write_text("# of a model\n1,2,3\n\n 4, 5, 6, fp16\n7,8,9,bf16,NN\n1,2,3\n")
    assert shapes.read(plain) == [
        GemmProblem.dense(1, 2, 3),
        GemmProblem.dense(4, 5, 6, dtype="fp16"),
        GemmProblem.dense(7, 8, 9, layout="NN"),
    ]
    batched = tmp_path / "batched.csv"
    batched.write_text("8x1,2,3\n4,5,6\n")
    assert shapes.read(batched) == [GemmProblem.dense(1, 2, 3, batch=8), GemmProblem.dense(4, 5, 6)]
    batched.write_text("m,n,k,batch\n1,2,3,8\n")
    assert shapes.read(batched) == [GemmProblem.dense(1, 2, 3, batch=8)]
    named = tmp_path / "named.csv"
    named.write_text("layout,K,m,n,out_dtype\nTT,3,1,2,fp32\n,30,10,20,\n")
    assert shapes.read(named) == [
        GemmProblem.dense(1, 2, 3, layout="TT", out_dtype="fp32"),
        GemmProblem.dense(10, 20, 30),
    ]


def test_jsonl_of_three_kinds(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    lines = [{"problem": ODD.to_json()}, ODD.to_json(), {"m": 1, "n": 2, "k": 3, "layout": "NN"}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert shapes.read(path) == [ODD, GemmProblem.dense(1, 2, 3, layout="NN")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1,2\n", "1"),
        ("m,n\n1,2\n", ":2"),
        ("m,n,k\n1,2\n", "2 cells under 3"),
        ("m,n,k\n1,2,x\n", ":2"),
        ("m,n,k\n0,2,3\n", "m=0"),
        ("m,n,k,colour\n1,2,3,red\n", "colour"),
        ("1,2,3\n{\n", ":2"),
        ('{"m": 1, "n": 2}\n', "no k"),
        ('{"problem": 3}\n', "not an object"),
        ('{"problem": {"m": 1, "lda": 2}}\n', "lacks a field"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "bad"
    path.write_text(text)
    with pytest.raises(ProblemError) as caught:
        shapes.read(path)
    assert str(path) in str(caught.value) and words in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProblemError, match="cannot be read"):
        shapes.read(tmp_path / "absent")


def test_a_recording_has_every_problem_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "seen.jsonl"
    shapes.record(path, [ODD, ODD])
    shapes.record(path, [GemmProblem.dense(1, 2, 3), ODD])
    assert shapes.read(path) == [ODD, GemmProblem.dense(1, 2, 3)]
    assert len(path.read_text().splitlines()) == 2


def test_a_line_cut_off_by_a_kill_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "seen.jsonl"
    path.write_text('{"problem": {"m"')
    shapes.record(path, [ODD])
    first, second = path.read_text().splitlines()
    assert GemmProblem.from_json(json.loads(second)["problem"]) == ODD


RECORDER = """
import sys
from pathlib import Path
from inductor_flydsl import shapes
from inductor_flydsl.problem import GemmProblem
for m in range(1, 31):
    shapes.record(Path(sys.argv[1]), [GemmProblem.dense(m, 8, 8)])
"""


def test_processes_share_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "seen.jsonl"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    running = [
        subprocess.Popen([sys.executable, "-c", RECORDER, str(path)], env=environment)
        for _ in range(4)
    ]
    assert [process.wait(timeout=60) for process in running] == [0] * 4
    assert {p.m for p in shapes.read(path)} == set(range(1, 31))
    assert len(path.read_text().splitlines()) == 30


def test_a_recording_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING):
        shapes.record(tmp_path / "file" / "seen.jsonl", [ODD])
        shapes.record(tmp_path / "file" / "seen.jsonl", [GemmProblem.dense(1, 2, 3)])
    assert caplog.text.count("seen.jsonl cannot be written (") == 1


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sheet.csv"
    for content, why in ((b"PK\3\4\xff", "byte 4 is not UTF-8"), (b"PK\3\0", "it has zero bytes")):
        path.write_bytes(content)
        with pytest.raises(ProblemError, match=rf"sheet\.csv' is not text \({why}\)"):
            shapes.read(path)


def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path) -> None:
    path = tmp_path / "sheet.csv"
    path.write_bytes(b"\xef\xbb\xbfm,n,k\r\n8,8,16\r\n")
    (problem,) = shapes.read(path)
    assert (problem.m, problem.n, problem.k) == (8, 8, 16)
