"""Mutation proof: `python -m bench.mutation [--quick] [--check] [--json FILE]`.

Every s_waitcnt of our kernels is weakened (its count raised by one) and dropped, counter by
counter, and every s_barrier is dropped, one change at a time in the assembly text. Each mutant has
to be caught by a finding or by wrong numbers, or be proved redundant by `bench.waits`. The rest
survive. Score: caught or proved redundant, of all.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .isa_runs import Case, case_of, compile_text, on_one_core
from .output import exit_with, writable

TARGET = 0.98
# Largest error over largest element of a right bf16 result.
TOLERANCE = 0.01
# Wave-instructions beyond the right kernel's that a mutant may run.
PATIENCE = 20


# Landing, order and number of seeds. Lazy memory shows nearly all faults, and waves in step are the
# fastest; workgroups that work together must also be let drift apart.
SCHEDULES = (
    ("lazy", "lockstep", 1), ("lazy", "forward", 1), ("random", "random", 1),
    ("lazy", "priority", 8),
)  # fmt: skip
# K steps of the runs: the first shows most faults; the others take the other paths around a loop.
STEPS = (5, 1, 2, 3, 4, 0, 8)


@dataclass(frozen=True)
class Subject:
    """A kernel and the problems it is run on: small, with whole and partial tiles."""

    label: str
    problems: tuple[Any, ...]
    config: Any


@dataclass(frozen=True)
class Mutant:
    """One change: the instruction (index and 1-based line), what is done, the new text."""

    pc: int
    line: int
    before: str
    after: str
    counts: dict[str, int] | None


@dataclass
class Outcome:
    """verdict: "finding", "numbers", "fault", "redundant" or "survived", and what says so."""

    kernel: str
    line: int
    before: str
    after: str
    verdict: str
    detail: str


def subjects(quick: bool) -> list[Subject]:
    """Both pipelines, operands along K and across it, whole and partial last K steps."""
    from inductor_flydsl.config import GemmConfig

    ring = GemmConfig(tile_m=32, tile_n=64, tile_k=32, stages=4, waves_m=1, waves_n=2, group_m=2)
    square = GemmConfig(tile_m=64, tile_n=64, tile_k=64, stages=2, waves_m=2, waves_n=2)
    deep = GemmConfig(tile_m=64, tile_n=64, tile_k=64, stages=3, waves_m=2, waves_n=2)
    half = GemmConfig(
        pipeline="hti", tile_m=128, tile_n=128, tile_k=64, stages=2, waves_m=2, waves_n=4
    )
    split = replace(square, split_k=2)
    # Name, M and N, what K is past whole steps, layout, configuration.
    plan = [
        ("staged", (128, 64, 0), "TN", square),
        ("hti", (128, 128, 0), "NT", half),
        ("staged ring", (64, 128, 0), "NT", ring),
        ("hti", (128, 128, 0), "TN", half),
        ("staged deep", (128, 64, 0), "NT", deep),
        ("staged", (64, 128, 0), "TT", square),
        ("staged ring", (64, 72, 12), "NN", ring),
        ("staged", (70, 72, 44), "NT", square),
        ("hti", (130, 136, 44), "NT", half),
        ("hti", (130, 136, 44), "NN", half),
        ("split-K", (128, 64, 0), "NT", split),
    ]
    return [_subject(*row) for row in plan[: 2 if quick else len(plan)]]


def _subject(name: str, shape: tuple[int, int, int], layout: str, config: Any) -> Subject:
    from inductor_flydsl.config import KernelSpec
    from inductor_flydsl.problem import GemmProblem

    m, n, tail = shape
    depths = [steps * config.tile_k + tail for steps in STEPS]
    problems = [GemmProblem.dense(m, n, k, layout=layout) for k in depths if k]
    spec = KernelSpec.of(problems[0], config)
    same = tuple(p for p in problems if KernelSpec.of(p, config) == spec)
    return Subject(f"{name} {m}x{n}x{same[0].k} {layout}", same, config)


def _wait_text(counts: Mapping[str, int]) -> str:
    if not counts:
        return "s_nop 0"
    return "s_waitcnt " + " ".join(f"{name}({count})" for name, count in counts.items())


def mutants(program: Any) -> Iterator[Mutant]:
    """Each counter of each wait raised by one and dropped; each barrier dropped."""
    for inst in program.instructions:
        if inst.base == "s_barrier":
            yield Mutant(inst.pc, inst.line, inst.text, "s_nop 0", None)
        elif inst.base == "s_waitcnt":
            for name, count in inst.extra.items():
                weaker = {**inst.extra, name: count + 1}
                without = {k: v for k, v in inst.extra.items() if k != name}
                for counts in (weaker, without):
                    yield Mutant(inst.pc, inst.line, inst.text, _wait_text(counts), counts)


class Judge:
    """Runs mutants of one kernel; the kernel itself must be right and without findings."""

    def __init__(self, subject: Subject) -> None:
        from inductor_flydsl import emulator

        self.subject = subject
        self.emulator = emulator
        self.shared = subject.config.split_k > 1
        self.lines = compile_text(subject.problems[0], subject.config).splitlines()
        self.limits: dict[int, int] = {}
        self.cases = [case_of(problem, subject.config, seed=7) for problem in subject.problems]
        self.program = emulator.load_program("\n".join(self.lines))
        verdict, detail = self._run(self.program)
        if verdict != "survived":
            raise SystemExit(f"{subject.label}: the kernel itself fails: {verdict}: {detail}")

    def _run(self, program: Any) -> tuple[str, str]:
        for case in self.cases:
            for landing, order, seeds in SCHEDULES:
                for seed in range(seeds if order != "priority" or self.shared else 0):
                    verdict = self._launch(program, case, (landing, order, seed))
                    if verdict is not None:
                        return verdict
        return "survived", ""

    def _launch(
        self, program: Any, case: Case, schedule: tuple[str, str, int]
    ) -> tuple[str, str] | None:
        landing, order, seed = schedule
        options = self.emulator.Options(
            landing=landing, order=order, seed=seed, timed=False,
            max_instructions=self.limits.get(id(case), 1_000_000),
        )  # fmt: skip
        try:
            result = case.run(program, options)
        except self.emulator.EmulatorError as error:
            return "fault", f"{type(error).__name__}: {str(error).splitlines()[0]}"
        if result.findings:
            first = result.findings[0]
            return "finding", f"{first.kind} at line {first.line}: {first.message}"
        if case.worst() > TOLERANCE:
            return "numbers", f"error {case.worst():.3g}"
        self.limits.setdefault(id(case), PATIENCE * result.instructions)
        return None

    def judge(self, mutant: Mutant) -> Outcome:
        changed = list(self.lines)
        at = mutant.line - 1
        changed[at] = re.sub(r"s_(waitcnt|barrier)[^;]*", mutant.after + " ", changed[at], count=1)
        program = self.emulator.load_program("\n".join(changed))
        verdict, detail = self._run(program)
        if verdict == "survived":
            verdict, detail = self._prove(mutant, program)
        return Outcome(
            self.subject.label, mutant.line, mutant.before, mutant.after, verdict, detail
        )

    def _prove(self, mutant: Mutant, changed: Any) -> tuple[str, str]:
        from .barriers import prove_ordered, signals_others
        from .waits import prove_redundant

        entry = self.program.kernel().entry
        if mutant.counts is None:
            if signals_others(self.program, mutant.pc):
                return "survived", "it may order memory between workgroups"
            proof = prove_ordered(changed, self.cases)
        else:
            proof = prove_redundant(self.program, entry, mutant.pc, mutant.counts)
            if not proof.redundant:
                proof = self._prove_apart(mutant, changed, proof)
        return ("redundant" if proof.redundant else "survived"), proof.reason

    def _prove_apart(self, mutant: Mutant, changed: Any, proof: Any) -> Any:
        """What is in flight longer touches no LDS that anybody uses meanwhile, and no register."""
        from .barriers import prove_ordered
        from .waits import Verdict, prove_redundant

        assert mutant.counts is not None
        entry = self.program.kernel().entry
        registers = prove_redundant(self.program, entry, mutant.pc, mutant.counts, lds=False)
        if not registers.redundant:
            return proof
        order = prove_ordered(changed, self.cases)
        return Verdict(order.redundant, f"no register or store on any path; {order.reason}")


def run(quick: bool) -> list[Outcome]:
    """All outcomes, kernel by kernel."""
    outcomes = []
    for subject in subjects(quick):
        judge = Judge(subject)
        own = [judge.judge(mutant) for mutant in mutants(judge.program)]
        tally = Counter(o.verdict for o in own)
        print(f"{subject.label:32} {len(own):4} mutants  {dict(tally)}", flush=True)
        outcomes += own
    return outcomes


def score(outcomes: list[Outcome]) -> float:
    """Share of mutants that didn't survive."""
    return sum(o.verdict != "survived" for o in outcomes) / len(outcomes)


def main(arguments: list[str] | None = None) -> int:
    """Prints the score and every mutant that is redundant or survived; --check fails below 98 %."""
    parser = argparse.ArgumentParser(prog="python -m bench.mutation", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two kernels instead of all")
    parser.add_argument("--check", action="store_true", help="exit 1 below the target")
    parser.add_argument("--json", type=writable, metavar="FILE", help="every outcome")
    given = sys.argv[1:] if arguments is None else arguments
    options = parser.parse_args(given)
    on_one_core("bench.mutation", given)
    start = time.perf_counter()
    outcomes = run(options.quick)
    reached = score(outcomes)
    for outcome in outcomes:
        if outcome.verdict in ("redundant", "survived"):
            print(f"{outcome.verdict}: {outcome.kernel} line {outcome.line}: {outcome.before} → "
                  f"{outcome.after}: {outcome.detail}")  # fmt: skip
    print(f"score {reached:.2%} of {len(outcomes)} mutants (target {TARGET:.0%}), "
          f"{time.perf_counter() - start:.0f} s")  # fmt: skip
    if options.json:
        data = {"score": reached, "target": TARGET, "mutants": [asdict(o) for o in outcomes]}
        Path(options.json).write_text(json.dumps(data, indent=1, ensure_ascii=False))
    return 1 if options.check and reached < TARGET else 0


if __name__ == "__main__":
    exit_with(main)
