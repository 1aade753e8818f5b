"""`cache list|stats|diff|export|import|prune|report` and `explain --log`."""

from __future__ import annotations

import datetime
import json
import math
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from test_cli import run
from unit_fakes import CONFIGS, ENVIRONMENT, PROBLEM, measured, record, target

from inductor_flydsl import compiler, settings
from inductor_flydsl.devices.base import Clock
from inductor_flydsl.problem import GemmProblem
from inductor_flydsl.records import Contest, Store, now_utc
from inductor_flydsl.report import page
from inductor_flydsl.targets import stale_reason

Capture = pytest.CaptureFixture[str]
CONTEST = Contest(
    entries=(("FLYDSL", "flydsl_mm_0", 9.0), ("ATEN", "mm", 12.0), ("TRITON", "t", math.inf)),
    held_at=now_utc(),
)
ONE = record(
    [
        measured(CONFIGS[0], 12.5, spread_us=0.25, note="given up after 4 rounds"),
        measured(CONFIGS[1], 11.0),
        measured(CONFIGS[3], math.inf, failure="CompileFailed: <spill> & more"),
    ],
    contest=CONTEST,
)
SMALL = GemmProblem.dense(1, 2, 3)
TWO = record([measured(CONFIGS[2], 3.0)], key=target(SMALL))
EMULATED = {"device": "emulator", "clock": Clock.EMULATED}
THREE = record(
    [measured(CONFIGS[0], 5.0, device="emulator:gfx950", clock=Clock.EMULATED)],
    key=target(**EMULATED),
    device="emulator:gfx950",
    clock=Clock.EMULATED,
)


@pytest.fixture
def store(alone: None) -> Store:
    made = Store.over(settings.current().cache_dir)
    for one in (ONE, TWO, THREE):
        made.put(one)
    return made


def test_list_matches_sorts_and_picks_columns(capsys: Capture, store: Store) -> None:
    status, out, _ = run(capsys, "cache", "list", "*1x2x3*", "--json")
    assert status == 0 and [r["key"] for r in json.loads(out)] == [TWO.id]
    status, out, _ = run(
        capsys, "cache", "list", "--sort", "us", "--reverse", "--columns", "us,m,clock"
    )
    header, *rows = [line.split() for line in out.splitlines()]
    assert header == ["US", "M", "CLOCK"]
    assert [r[0] for r in rows] == ["11.00", "5.00", "3.00"]
    assert run(capsys, "cache", "list", "--sort", "colour")[0] == 2
    assert run(capsys, "cache", "list", "--columns", "us,colour")[0] == 2
    status, out, err = run(capsys, "cache", "list", "none*")
    assert (status, out) == (0, "") and "that match" in err


def test_stats_keep_clocks_apart(capsys: Capture, store: Store) -> None:
    status, out, _ = run(capsys, "cache", "stats", "--json")
    found = json.loads(out)
    assert status == 0 and found["records"] == 3
    devices = {(d["device"], d["clock"]): d for d in found["devices"]}
    assert devices["hip", "gpu_event"]["tried"] == 4
    assert devices["emulator", "emulated"]["records"] == 1
    assert found["rejections"] == {"CompileFailed": 1}
    assert found["backends"] == {"FLYDSL": {"met": 1, "won": 1}, "ATEN": {"met": 1, "won": 0}}
    status, out, _ = run(capsys, "cache", "stats")
    assert status == 0 and "fastest in 1 of 1" in out


def test_show_tells_of_notes_and_the_contest(capsys: Capture, store: Store) -> None:
    _, out, _ = run(capsys, "cache", "show", ONE.id)
    assert "given up after 4 rounds" in out and "flydsl_mm_0" in out and "ATEN" in out


def test_diff_of_two_records(capsys: Capture, store: Store) -> None:
    newer = replace(ONE, environment=replace(ENVIRONMENT, flydsl="0.4.0"))
    newer = replace(newer, measurements=(measured(CONFIGS[1], 22.0),), best=CONFIGS[1])
    store.put(newer)
    status, out, _ = run(capsys, "cache", "diff", ONE.id, newer.id, "--json")
    found = json.loads(out)
    assert status == 1
    assert [f["field"] for f in found["fields"]] == ["environment.flydsl"]
    assert found["same_choice"] and found["comparable"]
    assert {t["name"]: t["ratio"] for t in found["times"]}[CONFIGS[1].name] == 2.0
    status, out, _ = run(capsys, "cache", "diff", ONE.id, THREE.id)
    assert status == 1 and "target.clock: 'gpu_event' | 'emulated'" in out
    # Times of different clocks stand side by side and are in no relation.
    assert "2.400" not in out and out.splitlines()[-1].rstrip().endswith("-")
    assert run(capsys, "cache", "diff", ONE.id, ONE.id)[0] == 0
    assert run(capsys, "cache", "diff", ONE.id, "zz")[0] == 1


def test_export_and_import_merge_and_list_conflicts(
    capsys: Capture, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(tmp_path / "all.json")
    assert run(capsys, "cache", "export", file)[0] == 0
    assert json.loads(run(capsys, "cache", "export", "-", "*1x2x3*")[1])["records"]
    assert run(capsys, "cache", "diff", file, str(store.root))[0] == 0
    monkeypatch.setenv("INDUCTOR_FLYDSL_CACHE_DIR", str(tmp_path / "other"))
    theirs = Store(tmp_path / "other")
    theirs.put(record([measured(CONFIGS[4], 2.0)]))
    status, out, _ = run(capsys, "cache", "import", file, "--dry-run", "--json")
    assert {r["state"] for r in json.loads(out)["records"]} == {"new", "merged"}
    assert len(list(theirs.records())) == 1
    status, out, _ = run(capsys, "cache", "import", file)
    assert status == 0 and "2 new, 1 merged, 0 same" in out
    assert CONFIGS[4].name in out and CONFIGS[1].name in out
    merged = theirs.get(ONE.full_key)
    assert merged is not None and len(merged.measurements) == 4 and merged.best == CONFIGS[4]
    assert merged.contest == CONTEST
    status, out, _ = run(capsys, "cache", "import", file)
    assert status == 0 and "3 same" in out
    status, out, _ = run(capsys, "cache", "diff", str(store.root), str(tmp_path / "other"))
    assert status == 1 and "3 problems, 1 differ" in out


@pytest.mark.parametrize("text", ["", "{}", '{"kind": "other"}', "[]"])
def test_import_of_something_else_says_so(
    capsys: Capture, store: Store, tmp_path: Path, text: str
) -> None:
    (tmp_path / "file").write_text(text)
    status, out, err = run(capsys, "cache", "import", str(tmp_path / "file"))
    assert (status, out) == (1, "") and "file" in err and "Traceback" not in err
    assert run(capsys, "cache", "import", str(tmp_path / "absent"))[0] == 1


def test_an_export_of_a_newer_version_is_refused(
    capsys: Capture, store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "all.json"
    run(capsys, "cache", "export", str(file))
    file.write_text(file.read_text().replace('"schema": 1', '"schema": 9', 1))
    status, _, err = run(capsys, "cache", "import", str(file))
    assert status == 1 and "schema 9" in err


def test_prune_needs_a_rule(capsys: Capture, store: Store) -> None:
    assert run(capsys, "cache", "prune")[0] == 2
    assert run(capsys, "cache", "prune", "--older-than", "soon")[0] == 2
    assert run(capsys, "cache", "prune", "--keep", "-1")[0] == 2


def test_prune_by_age(capsys: Capture, store: Store) -> None:
    then = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=40)
    key = target(compute_units=8)
    old = record([measured(CONFIGS[0], 1.0)], key=key, created=then.isoformat(timespec="seconds"))
    store.put(old)
    status, out, _ = run(capsys, "cache", "prune", "--older-than", "30d", "--dry-run")
    assert status == 0 and old.id[:12] in out and "would delete 1 of 4" in out
    assert run(capsys, "cache", "prune", "--older-than", "7w")[1].startswith("deleted 0")
    status, out, _ = run(capsys, "cache", "prune", "--older-than", "720h", "--json")
    assert [r["key"] for r in json.loads(out)["records"]] == [old.id]
    assert len(list(store.records())) == 3


def test_prune_of_stale_records_keeps_as_many_as_asked(
    capsys: Capture, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "source_fingerprint", lambda: "5ca1ab1e")
    stale = [
        record(
            [measured(CONFIGS[0], 1.0)],
            environment=replace(ENVIRONMENT, sources=f"old{i}"),
            created=f"2026-01-0{i}T00:00:00+00:00",
        )
        for i in (1, 2)
    ]
    for one in stale:
        store.put(one)
    assert stale_reason(stale[0], "5ca1ab1e") and stale_reason(ONE, "5ca1ab1e") is None
    status, out, _ = run(capsys, "cache", "prune", "--stale", "--keep", "2", "--json")
    # ONE is the latest of their problem, the second stale one the next.
    assert [r["key"] for r in json.loads(out)["records"]] == [stale[0].id]
    status, out, _ = run(capsys, "cache", "prune", "--keep", "1", "--json")
    assert [r["key"] for r in json.loads(out)["records"]] == [stale[1].id]
    assert {r.id for r in store.records()} == {ONE.id, TWO.id, THREE.id}


class Outline(HTMLParser):
    """Open tags, text, and what the page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.fetched += [v or "" for n, v in attrs if n in ("src", "href", "xlink:href")]
        if tag not in ("meta", "rect", "path", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("rect", "path", "circle"):
            assert self.open.pop() == tag


def test_the_report_is_one_well_formed_page(capsys: Capture, store: Store, tmp_path: Path) -> None:
    file = tmp_path / "page.html"
    assert run(capsys, "cache", "report", str(file))[0] == 0
    text = file.read_text()
    outline = Outline()
    outline.feed(text)
    assert outline.open == [] and outline.fetched == [] and "script" not in outline.seen
    assert "&lt;spill&gt; &amp; more" in text and "<spill>" not in text
    for part in (str(PROBLEM), "clock gpu_event", "clock emulated", "1.333x", CONFIGS[0].name):
        assert part in text
    assert run(capsys, "cache", "report", str(tmp_path / "no" / "page.html"))[0] == 1
    assert "0 records" in page([], "Nothing", "now")


def test_a_browser_shows_the_report(store: Store, tmp_path: Path) -> None:
    found = [shutil.which(n) for n in ("chromium", "chromium-browser", "google-chrome", "chrome")]
    browser = next((path for path in found if path), None)
    if browser is None:
        pytest.skip("no Chromium is installed")
    file = tmp_path / "page.html"
    probe = (
        "<script>const r=[...document.querySelectorAll('svg')].map(s=>s.getBoundingClientRect());"
        "document.title=JSON.stringify({svgs:r.length,drawn:r.filter(b=>b.width>100&&b.height>10)"
        ".length,bars:document.querySelectorAll('svg rect').length,"
        "rows:document.querySelectorAll('tbody tr').length,"
        "wide:document.documentElement.scrollWidth<=innerWidth})</script></body>"
    )
    file.write_text(page([ONE, TWO, THREE], "Store", "now").replace("</body>", probe))
    done = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,900",
         f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", file.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    title = done.stdout.split("<title>", 1)[1].split("</title>")[0]
    shown = json.loads(title)
    # A plot of what was tried for each, one of throughput, one of the contest.
    assert shown["svgs"] == shown["drawn"] == 5
    # 2 and 2 bars of the first record, 1 of each other; the rejected and the failed have none.
    assert shown["bars"] == 6 and shown["rows"] == 5 and shown["wide"]


LOG = """\
I1129 19:10:53.775000 29339 inductor/decisions.py:77] [0/0] mm 32x48x64 bfloat16 NT: ATEN (fast: x)
AUTOTUNE mm(32x64, 64x48)
strides: [64, 1], [1, 64]
  mm 0.0275 ms 100.0%
  flydsl_mm_x 0.0550 ms 50.0% FlyDSL on reference, clock wall
SingleProcess AUTOTUNE benchmarking takes 0.3 seconds
V1129 19:10:54 1 inductor/decisions.py:79] [0/1] inductor_flydsl decision: %s
V1129 19:10:54 1 inductor/decisions.py:79] [0/1] inductor_flydsl decision: {"cut": "off
"""
DECISION = {
    "subject": "mm 1x2x3 bfloat16 NT", "chosen": "FLYDSL", "reason": "fastest of 3",
    "config": "staged_x", "losers": [{"name": "mm", "reason": "2.00x of staged_x"}],
    "compile_id": "0/1",
}  # fmt: skip


def test_explain_a_log(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text(LOG.replace("%s", json.dumps(DECISION)))
    status, out, _ = run(capsys, "explain", "--log", str(file))
    assert status == 0
    assert "mm 1x2x3 bfloat16 NT [0/1]: FLYDSL staged_x, because: fastest of 3" in out
    assert "  not mm: 2.00x of staged_x" in out
    found = json.loads(run(capsys, "explain", "--log", str(file), "--json")[1])
    assert found["tables"] == [
        {"title": "mm(32x64, 64x48)",
         "rows": [{"name": "mm", "ms": 0.0275}, {"name": "flydsl_mm_x", "ms": 0.055}]}
    ]  # fmt: skip


def test_a_log_without_debug_lines_still_tells(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("".join(LOG.splitlines(keepends=True)[:6]))
    status, out, _ = run(capsys, "explain", "--log", str(file), "--json")
    (decision,) = json.loads(out)["decisions"]
    assert status == 0
    assert (decision["subject"], decision["chosen"]) == ("mm 32x48x64 bfloat16 NT", "ATEN")
    assert (decision["reason"], decision["compile_id"]) == ("fast: x", "0/0")
    file.write_text("".join(LOG.splitlines(keepends=True)[1:6]))
    status, out, err = run(capsys, "explain", "--log", str(file))
    assert status == 0 and "mm(32x64, 64x48): mm of 2" in out and "2.00x" in out
    file.write_text("nothing\n")
    status, out, err = run(capsys, "explain", "--log", str(file))
    assert (status, out) == (1, "") and "TORCH_LOGS" in err


@pytest.mark.parametrize("argv", [(), ("8,8,8", "--log", "x"), ("--log", "absent")])
def test_explain_takes_a_problem_or_a_log(capsys: Capture, argv: tuple[str, ...]) -> None:
    status, out, err = run(capsys, "explain", *argv)
    assert (status, out) == (2, "") and "--log" in err
