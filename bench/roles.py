"""A part of a benchmark in a process of its own, with caches of its own. Knows of no benchmark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Variable → folder below the one that a role is given: ours, torch's, FlyDSL's and Triton's.
CACHES = {
    "INDUCTOR_FLYDSL_CACHE_DIR": "store",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "FLYDSL_RUNTIME_CACHE_DIR": "flydsl",
    "TRITON_CACHE_DIR": "triton",
}


def run_role(
    module: str, arguments: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Run ``python -m module`` and read the JSON object that it prints last.

    Args:
        module, arguments: the command.
        folder: where it keeps what it compiles; empty for cold caches.
        environment: variables beside those of CACHES.

    Raises:
        RuntimeError: it failed; the message ends with what it said.
    """
    caches = {name: str(folder / sub) for name, sub in CACHES.items()}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, **caches, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr.strip()[-1000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
