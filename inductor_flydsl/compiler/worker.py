"""A compile worker: ``python -m inductor_flydsl.compiler.worker ARCH BACKEND``.

Reads a KernelSpec a line, leaves its artifact on disk, and answers
``{"compiled": 0 or 1, "error": text or null}``. The parent reads artifacts from disk and compiles
a failed spec again itself, so that the error it reports is the one that the user's process sees.
"""

from __future__ import annotations

import json
import os
import sys

from ..config import KernelSpec
from ..errors import CompileFailed
from .cache import compile_spec, stats


def main(arch: str, backend: str) -> int:
    # Whatever a compiler prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        before = stats().compiled
        error = None
        try:
            compile_spec(KernelSpec.from_json(json.loads(line)), arch, backend)
        except CompileFailed as failure:
            error = str(failure)
        print(json.dumps({"compiled": stats().compiled - before, "error": error}), file=answers)
        answers.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
