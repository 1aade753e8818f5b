"""Several processes on one store, some of them killed in the middle of a write."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

from unit_fakes import PROBLEM, measured, record

from inductor_flydsl.records import Store
from inductor_flydsl.variants import every_config

WRITERS, PUTS = 16, 6

WRITER = """
import sys
from pathlib import Path
from unit_fakes import measured, record
from inductor_flydsl.records import Store
from inductor_flydsl.variants import every_config
store, first, count = Store(Path(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
configs = every_config()
print("ready", flush=True)
sys.stdin.readline()
for number in range(first, first + count):
    store.put(record([measured(configs[number], 10.0 + number)]))
    print(number, flush=True)
"""


def _start(root: Path, first: int, count: int) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root), str(first), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


def _go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def test_no_update_is_lost(tmp_path: Path) -> None:
    writers = [_start(tmp_path, n * PUTS, PUTS) for n in range(WRITERS)]
    for writer in writers:
        _go(writer)
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    stored = Store(tmp_path).get(record([]).full_key)
    assert stored is not None
    configs = every_config()[: WRITERS * PUTS]
    assert {m.config for m in stored.measurements} == set(configs)
    assert stored.best == configs[0]


def test_killed_writers_lose_only_what_they_had_not_written(tmp_path: Path) -> None:
    rng = random.Random(5)
    writers = [_start(tmp_path, n * PUTS, PUTS) for n in range(WRITERS)]
    for writer in writers:
        _go(writer)
    for writer in writers[::2]:
        time.sleep(rng.uniform(0.0, 0.02))
        writer.kill()
    told: set[int] = set()
    for number, writer in enumerate(writers):
        out, _ = writer.communicate(timeout=60)
        told |= {int(line) for line in out.splitlines() if line.isdigit()}
        assert number % 2 == 0 or writer.returncode == 0
    store = Store(tmp_path)
    stored = store.get(record([]).full_key)
    assert stored is not None
    configs = every_config()
    # A kill may fall between the write and the line that tells of it, or inside that line.
    missing = {configs[n].name for n in told} - {m.config.name for m in stored.measurements}
    assert missing == set()
    assert {configs[n] for n in range(PUTS, 2 * PUTS)} <= {m.config for m in stored.measurements}
    store.put(record([measured(configs[-1], 1.0)]))
    assert store.get(record([]).full_key).best == configs[-1]  # type: ignore[union-attr]
    assert [p.name for p in store.folder.iterdir()] == [f"{stored.id}.json"]


def test_a_reader_beside_a_writer_never_sees_a_part(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put(record([measured(every_config()[-1], 5.0)]))
    writer = _start(tmp_path, 0, PUTS)
    _go(writer)
    sizes = []
    while writer.poll() is None:
        data = json.loads(store.path(record([]).id).read_bytes())
        sizes.append(len(data["measurements"]))
    writer.communicate(timeout=60)
    assert writer.returncode == 0
    assert sizes == sorted(sizes)
    assert store.get(record([]).full_key).key.problem == PROBLEM  # type: ignore[union-attr]
